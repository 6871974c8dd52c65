"""Metrics against numpy in float64: if these fail, the page's key numbers are wrong."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from explorer import SCHEMES, Scheme, compare, mark_frontier, nvfp4_exactly, quantize
from explorer.analysis.element import inspect_element
from explorer.analysis.grids import exact_scheme, grid_words
from explorer.analysis.histograms import Histogram, histogram, histogram_kl
from explorer.analysis.memory import MODELS, estimate, left_on, sizes_that_differ
from explorer.analysis.report import measure, sqnr_db
from explorer.analysis.schemes import compare_schemes, on_frontier
from explorer.analysis.tensor import analyse, block_levels
from explorer.analysis.tiles import tile_maximum
from explorer.core.quantize import quantize_as_one
from explorer.formats import IntegerFormat
from explorer.formats.code import short
from tests.covering import EACH_SCHEME, FEW

FLAT = "int4~flat64~asymmetric~float16~minmax"


@pytest.mark.parametrize("name", [*EACH_SCHEME, FLAT, "int4~flat50~asymmetric~float16~minmax"])
def test_report_matches_numpy(name: str, gaussian: Tensor) -> None:
    """Every number of a report under every scheme; the one-pass analysis of the page has the same."""
    x = gaussian[:70, :333].contiguous()
    q = quantize(x, Scheme.parse(name))
    r = compare(x, q)
    a, b = x.double().numpy(), q.dequantize().double().numpy()
    error = b - a
    assert r.mse == pytest.approx(np.mean(error**2), rel=1e-9, abs=1e-300)
    assert r.mae == pytest.approx(np.abs(error).mean(), rel=1e-9, abs=1e-300)
    assert r.max_error == np.abs(error).max()
    assert np.abs(error)[r.max_error_at] == r.max_error
    assert r.relative_error == pytest.approx(np.linalg.norm(error) / np.linalg.norm(a), rel=1e-9, abs=1e-300)
    assert r.cosine == pytest.approx((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-9)
    assert r.zeroed == np.mean((b == 0) & (a != 0))
    if r.mse:
        assert r.sqnr_db == pytest.approx(-20 * math.log10(r.relative_error), rel=1e-9)
    if r.codes_used is not None:
        _, counts = np.unique(q.codes.numpy(), return_counts=True)
        p = counts / counts.sum()
        entropy = pytest.approx(-(p * np.log2(p)).sum(), abs=1e-9)
        assert (r.codes_used, r.entropy_bits) == (len(counts), entropy)
    analysis = analyse(x, Scheme.parse(name))
    assert analysis.measured.before.counts.sum() == analysis.measured.after.counts.sum() == x.numel()
    assert float(analysis.error_map.max()) == pytest.approx(r.max_error, rel=1e-6)
    assert measure(x, analysis.q).report == analysis.report


def test_clipped_share_counts_what_rounding_alone_would_not_keep() -> None:
    """INT8 with range ±1: 127.5 steps still round to 127, more is clipped."""
    from explorer import Range

    step = 1 / 127
    x = torch.tensor([[1.0, 127.4 * step, 127.6 * step, -2.0]])
    q = quantize(x, SCHEMES["int8_tensor"], clip_range=Range(-torch.ones(1, 1), torch.ones(1, 1)))
    assert compare(x, q).clipped == 0.5
    shifted = torch.rand(4, 256) + 1
    assert compare(shifted, quantize(shifted, SCHEMES["int4_group128_asym"])).clipped == 0


def test_exact_and_zero_tensors() -> None:
    """No division by zero: exact copies and all-zero tensors have defined numbers."""
    ones = torch.ones(2, 8)
    assert compare(ones, quantize(ones, SCHEMES["bf16"])).sqnr_db == math.inf
    zeros = torch.zeros(2, 8)
    r = compare(zeros, quantize(zeros, SCHEMES["int4_group32"]))
    assert (r.cosine, r.mse, r.sqnr_db) == (1.0, 0.0, math.inf)


def test_blocks_that_become_zero_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values too small for the smallest scale are lost without being clipped; those near it are not."""
    x = torch.zeros(4, 64)
    x[0, 0], x[1, :16], x[2, 33:40] = 2688, 0.005, 1e-12
    for name, count in (("int4_group32", 1), ("nvfp4", 1), ("int8_row", 0), ("mxfp4", 0)):
        q = quantize(x, SCHEMES[name])
        assert q.dequantize().isfinite().all() and compare(x, q).zero_blocks == count, name
    x[:], x[:, 0] = 1e-12, 1  # was filled up to whole blocks: gigabytes for a link
    huge, filled, pad = Scheme.parse("int4~1x1000~symmetric~float32~minmax"), list[int](), functional.pad
    monkeypatch.setattr(functional, "pad", lambda mask, by: filled.extend(by) or pad(mask, by))
    found = compare(x, quantize(x, huge))
    assert found.zero_blocks == 0 < found.zeroed and set(filled) == {0}


def test_weights_on_a_grid_are_told_their_scheme() -> None:
    """If this fails, weights that 4 bits hold exactly are said to lose 7 % (LightCompress issue 334)."""
    w = 0.01 * torch.randint(-8, 8, (8, 128))
    w[:, 0] = -0.08
    exact = exact_scheme(w)
    assert exact is not None and exact.format.bits == 4
    assert torch.allclose(quantize(w, exact).dequantize(), w, atol=1e-8)
    rows = torch.randint(-1, 2, (8, 128)) * torch.arange(1, 9)[:, None]
    assert (found := exact_scheme(rows.float())) and found.format.bits == 2 and found.block == (1, None)
    assert exact_scheme(torch.randn(64, 1)) is None, "a scale for each element restores all, in more bits"
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, -6])[torch.randint(8, (20, 64))]
    levels[:, :32] = levels[:, :32].clamp(-4, 4) * 2**-17  # blocks whose amax is 4 beside those of 6
    assert compare(levels, quantize(levels, SCHEMES["nvfp4"])).relative_error > 1e-3
    assert torch.equal(nvfp4_exactly(levels).dequantize(), levels) and "So does NVFP4" in grid_words(levels)
    assert exact_scheme(levels) == SCHEMES["mxfp4"]
    one, other = quantize_as_one([levels[:8, 32:], levels[8:, :32]], SCHEMES["nvfp4"])
    assert torch.equal(other.dequantize(), levels[8:, :32]) and one.scales.tensor_scale == 2**-8
    levels[9, :32] = 2**-20
    assert nvfp4_exactly(levels) is None and "NVFP4 cannot" in grid_words(levels)
    assert exact_scheme(torch.randn(8, 512)) is None and exact_scheme(w, most_bits=3) is None


def test_histogram_counts_everything_once(gaussian: Tensor) -> None:
    """No value is lost at the edges, and a histogram does not diverge from itself."""
    h = histogram(gaussian, -2, 2, 200)
    want, _ = np.histogram(gaussian.clamp(-1.9999, 1.9999).numpy(), 200, (-2, 2))
    assert h.counts.sum() == gaussian.numel()
    assert np.abs(h.counts - want).max() <= 0.002 * want.max() + 3
    assert histogram_kl(h, h) == 0


def test_tile_maximum_loses_no_outlier() -> None:
    """A single spike anywhere stays visible in the reduced map, in its tile."""
    for shape, seed in itertools.product([(1, 1), (5, 700), (700, 5), (193, 385)], range(3)):
        draw = torch.Generator().manual_seed(seed)
        x = torch.rand(shape, generator=draw)
        row, column = (int(torch.randint(0, n, (1,), generator=draw)) for n in shape)
        x[row, column] = 9.0
        reduced = tile_maximum(x, 192)
        assert max(reduced.shape) <= 192
        tall, wide = math.ceil(shape[0] / 192), math.ceil(shape[1] / 192)
        assert reduced[row // tall, column // wide] == 9.0


RULES = [
    FLAT, "int4~1x32~asymmetric~bfloat16-ct~minmax~zerofirst~bf16",
    "int5~1x32~asymmetric~float32~minmax~zerofirst",
    "int8~row~asymmetric~float32-torchao~minmax~reciprocal",
    "int8~row~asymmetric~bfloat16-torchao~minmax~reciprocal~bf16", "int4~1x32~midpoint~float32~minmax~up",
    "int4~1x32~minimum~float16~minmax~reciprocal~unrounded~up",
    "float4_e2m1fn~1x16~symmetric~float16~minmax~away", "int4~1x32~symmetric~float16~minmax~fit",
]  # fmt: skip
ROUNDED = re.compile(
    r"round(?P<ties>| ties up| ties away)\((?P<scaled>\S+?)(?: \+ \((?P<before>\S+)\))?(?P<bf16> in BF16)?\)"
    r"(?: \+ \((?P<after>\S+)\))? → (?P<code>\S+), code"
)


def _whole(value: Tensor, ties: str, first: float) -> Tensor:
    if ties == " ties up":
        return (value + (0.5 - first)).floor() + first
    return value.abs().add(0.5).floor().copysign(value) if ties else value.round()


@pytest.mark.parametrize("name", [*EACH_SCHEME, *RULES])
def test_the_number_that_the_inspector_rounds_gives_the_code(name: str, gaussian: Tensor) -> None:
    """By the rule that the line states, and ends at the element's own restored value. If this fails, the page
    shows an arithmetic that was not done."""
    x, scheme = gaussian[:40, :150] * 3.3, Scheme.parse(name)
    x = (x * 64).round() / 64  # so that some values meet ties
    q, draw = quantize(x, scheme), torch.Generator().manual_seed(0)
    restored, fmt, (low, high) = q.dequantize(), scheme.format, scheme.code_limits
    places = torch.stack([torch.randint(0, n, (40,), generator=draw) for n in x.shape], 1).tolist()
    for row, column in ([0, 0], [39, 149], *places):
        seen, value = inspect_element(x, q, row, column), float(restored[row, column])
        assert seen.restored == pytest.approx(value, rel=1e-6, abs=1e-12)
        assert seen.rows[0] <= row < seen.rows[1] and seen.columns[0] <= column < seen.columns[1]
        assert len(seen.bits) == fmt.bits
        levels = block_levels(q, row, column)
        assert not len(levels) or np.abs(levels - value).min() <= 1e-6
        line = dict(seen.arithmetic)["rounded"].replace("−", "-")
        if scheme.least_squares_scale and q.scales.unrounded is None:
            assert ROUNDED.match(line) is None  # the scale before it was refitted is not kept
            continue
        found = ROUNDED.match(line)
        assert found, line
        units = torch.tensor([float(found["scaled"])]) + float(found["before"] or 0)
        units = units.bfloat16().float() if found["bf16"] else units
        if isinstance(fmt, IntegerFormat):
            first = low if found["ties"] == " ties up" and not scheme.mapping.has_offset else 0.0
            whole = _whole(units, found["ties"], first)
            got = float((whole + float(found["after"] or 0)).clamp(low, high))
        else:
            got = float(fmt.decode(fmt.encode_unchecked(units, scheme.rounding)))
        assert short(got).replace("−", "-") == found["code"] and got == seen.code_value, line
    with pytest.raises(ValueError, match="0 to 39"):
        inspect_element(x, q, 40, 0)


def test_the_inspector_divides_where_a_scale_has_no_reciprocal() -> None:
    """1 / 1e-39 is beyond float32: the value was divided by its scale, and the line says so."""
    x = torch.zeros(1, 64)
    x[0, 3] = 1e-39
    line = dict(inspect_element(x, quantize(x, SCHEMES["nf4_block64_bnb"]), 0, 3).arithmetic)
    assert line["x / scale"] == "1e−39 / 1e−39 = 1" and line["restored"].endswith(" = 1e−39")


def test_inspector_shows_the_part_of_a_flat_block_in_the_row(gaussian: Tensor) -> None:
    """Block 4 of 64 in rows of 150 holds the elements 256 … 319: row 1 from column 106, row 2 up to 19."""
    x = gaussian[:40, :150]
    seen = inspect_element(x, quantize(x, Scheme.parse(FLAT)), 2, 0)
    assert (seen.rows, seen.columns) == ((2, 3), (0, 20))
    assert dict(seen.arithmetic)["block"].endswith(", 64 values")
    low = float(x.reshape(-1)[256:320].min())
    assert dict(seen.arithmetic)["block"].startswith(f"min {short(low)}, ")


def test_sqnr() -> None:
    """The definition, and what stands for an exact copy. An all-zero original that changed has no ratio; a
    number there would rank it."""
    cases = ((100.0, 1.0, 20.0), (1.0, 10.0, -10.0), (5.0, 0.0, math.inf), (0.0, 0.0, math.inf))
    for signal, noise, want in cases:
        assert sqnr_db(signal, noise) == pytest.approx(want)
    assert math.isnan(sqnr_db(0.0, 1.0))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5) | st.just(math.nan)), max_size=12))
def test_the_frontier_is_what_no_other_beats(points: list[tuple[float, float]]) -> None:
    """Marked if and only if nothing as cheap gains as much; of equal points one is marked, NaN never."""
    marks = on_frontier(points, lambda p: p[0], lambda p: p[1])
    for i, (cost, gain) in enumerate(points):
        others = [p for j, p in enumerate(points) if j != i and p[0] <= cost and p[1] >= gain]
        beaten = any(p != points[i] for p in others) or points.index(points[i]) != i
        assert marks[i] == (not math.isnan(gain) and not beaten), (i, points)


def test_frontier_is_what_nothing_beats(gaussian: Tensor) -> None:
    """The frontier's marks on real schemes."""
    rows = mark_frontier(compare_schemes(gaussian[:64], map(SCHEMES.get, FEW)))
    for row in rows:
        beaten = any(
            o.report.bits.total <= row.report.bits.total and o.report.sqnr_db > row.report.sqnr_db
            for o in rows
        )
        assert not (row.on_frontier and beaten)
    assert any(r.on_frontier for r in rows)


def test_parameter_counts() -> None:
    """The exact counts of the published checkpoints, from their configurations."""
    published = {
        "Llama-2-7B": 6_738_415_616, "Llama-2-13B": 13_015_864_320, "Llama-2-70B": 68_976_648_192,
        "Mistral-7B 0.1": 7_241_732_096, "Llama-3-8B": 8_030_261_248, "Llama-3-70B": 70_553_706_496,
    }  # fmt: skip
    assert {name: MODELS[name].parameters for name in published} == published


def test_llama_2_7b_sizes() -> None:
    """Gigabytes of a known model, as the published checkpoints and bits per element give them."""
    for name, everything, linears in (
        ("fp32", 26.95, None), ("fp16", 13.48, None), ("int4_group128", 3.47, 3.86),
        ("nvfp4", 3.79, 4.17), ("mxfp4", 3.58, 3.96), ("ternary_twn", 1.35, 1.82),
    ):  # fmt: skip
        got = estimate(SCHEMES[name], MODELS["Llama-2-7B"])
        assert got.everything / 1e9 == pytest.approx(everything, abs=0.006)
        if linears:
            assert (got.linears_only or 0) / 1e9 == pytest.approx(linears, abs=0.006)


def test_histograms_of_any_size() -> None:
    """A bin narrower than 1 / float32's largest, or a range wider than it, is counted like any other."""
    for size in (1e-37, 1e-40, 1e-44, 1.6e38):
        x = torch.linspace(-1, 1, 513).view(27, 19) * size * 2
        low, high = float(x.min()), float(x.max())
        h = histogram(x, low, high, 64)
        centre = ((x.double() - low) / ((high - low) / 64)).floor().clamp(0, 63).long()
        want = np.bincount(centre.flatten().numpy(), minlength=64)
        # A value on an edge may fall to either side, which a cumulative count shows as one value.
        alike = 1 if size > 1e-42 else 40  # of so few subnormals many are equal
        assert np.abs((h.counts - want).cumsum()).max() <= alike and int(h.counts.sum()) == x.numel()
        moved = histogram(x, low, high, 64, minus=torch.zeros_like(x))
        assert np.array_equal(moved.counts, h.counts)


def test_kl_of_histograms_lies_between_equal_and_apart() -> None:
    """0 only for the same shape, ln 2 where no bin has values of both."""
    edges = np.arange(257.0)
    for values in (3, 30, 300):
        counts = np.bincount(np.random.default_rng(0).integers(0, 256, values), minlength=256)
        p, other = Histogram(edges, np.arange(1, 257)), Histogram(edges, counts)
        assert 0 < histogram_kl(p, other) < math.log(2)
        assert histogram_kl(other, other) == histogram_kl(other, Histogram(edges, 3 * counts)) == 0
    left, right = Histogram(edges, counts * (edges[1:] < 100)), Histogram(edges, counts * (edges[1:] > 200))
    assert histogram_kl(left, right) == pytest.approx(math.log(2), rel=1e-12)


def test_kl_by_hand() -> None:
    """Worked values of Lin's K divergence."""
    for p, q, kl in (
        ([1, 3], [0, 4], math.log(2) / 4 + 0.75 * math.log(6 / 7)),  # against the mean 1/8, 7/8
        ([1, 1, 2], [2, 0, 2], 0.25 * math.log(2 / 3) + math.log(2) / 4),  # the mean is 3/8, 1/8, 1/2
        ([4, 0], [2, 2], math.log(4 / 3)),
        ([2, 2], [0, 0], math.log(2)),  # nothing finite was restored
        ([0, 0], [0, 0], 0.0),
    ):
        edges = np.arange(len(p) + 1.0)
        got = histogram_kl(Histogram(edges, np.array(p)), Histogram(edges, np.array(q)))
        assert got == pytest.approx(kl, abs=1e-12)


def test_what_is_left_on_a_gpu_tells_schemes_apart() -> None:
    """Nine tenths of the memory less the weights; the first GPU is the smallest that holds any of them."""
    assert left_on(4e9, 16) == pytest.approx(10.4) and left_on(15e9, 16) is None
    assert sizes_that_differ([140e9, 35e9]) == [48, 80, 141]
    assert sizes_that_differ([1e12]) == []
