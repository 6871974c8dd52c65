"""What methods promise: folding is exact, none is worse than rounding on its own objective, refusals say why.

If these fail, a method makes a layer worse than leaving it alone would, or a transform is not undone by its
counterpart.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.core.hadamard import find_rotation, paley_matrix
from explorer.core.quantize import quantize_with_scales
from explorer.methods import METHODS, apply, names_in
from explorer.methods.awq import clip_search
from explorer.methods.evaluate import evaluate_all, halves, summary
from explorer.methods.gptq import gptq
from explorer.methods.hqq import hqq
from explorer.methods.llm_int8 import llm_int8, llm_int8_dynamic, outlier_columns
from explorer.schemes import scale_for
from tests.covering import sampled

pytestmark = pytest.mark.usefixtures("one_thread")

Layer = Callable[..., tuple[Tensor, Tensor]]


def lost(w: Tensor, other: Tensor, x: Tensor) -> float:
    """Squared error of the output."""
    return float((x.double() @ (w - other).double().t()).square().sum())


@pytest.mark.parametrize(
    "name",
    ["gptq", "gptq_order", "awq", "awq_clip", "rotation+gptq", "lqer", "gptq+lqer", "qera", "autoround"],
)
def test_never_worse_than_rounding_on_the_inputs_it_saw(real: tuple[Tensor, Tensor], name: str) -> None:
    """Else a method that looks at the inputs would better not have."""
    w, x = real
    scheme = SCHEMES["int4_group128_asym"]
    assert lost(w, apply(name, w, scheme, x).weight(), x) <= lost(w, quantize(w, scheme).dequantize(), x)


def test_hqq_lowers_its_norm_and_stores_the_best_zero_points(layer: Layer) -> None:
    """The objective it reports is that of the weight it gives, and its offsets' bits are counted."""
    w, x = layer("mlp_up")
    scheme = SCHEMES["int4_group64_asym"]
    quantized, base = hqq(w, scheme, x), quantize(w, scheme)

    def norm(other: Tensor) -> float:
        return float((w - other).abs().pow(0.7).mean())

    scale = base.scales.scale.repeat_interleave(64, 1)
    low = w.view(len(w), -1, 64).amin(2).clamp(max=0).repeat_interleave(64, 1)
    zero = -8 - low / scale  # not rounded: the fraction is what HQQ can store
    start = ((w / scale + zero).round().clamp(-8, 7) - zero) * scale
    assert quantized.objective[0] == pytest.approx(norm(start), rel=1e-4)
    assert norm(quantized.weight()) < 0.99 * norm(base.dequantize())
    assert norm(quantized.weight()) == pytest.approx(min(quantized.objective), rel=1e-3)  # float16 offsets
    assert quantized.bits_per_weight == pytest.approx(base.bits_per_element.total + 16 / 64)
    moved = (quantized.weight() - quantized.q.dequantize()).abs().max()
    assert float(moved) <= 0.51 * float(quantized.q.scales.scale.max())
    ragged = hqq(w[:8, :100], scheme, x[:, :100])
    assert ragged.weight().shape == (8, 100) and min(ragged.objective) <= ragged.objective[0]
    folded = x[:9, :100].double() @ ragged.weight().double().t()
    torch.testing.assert_close(ragged.output(x[:9, :100]), folded, rtol=1e-4, atol=1e-5)


def test_hqq_is_the_plain_loop() -> None:
    """Twenty iterations one after another in float64 and numpy, by the formulas: |x| - |x|^(p-1) / β with
    p = 0.7 and β = 10, 10.1, 10.201 … Errors are so large here that they pass the threshold."""
    w = torch.from_numpy(2 * np.random.default_rng(0).standard_t(3, (32, 256))).float()
    scheme = Scheme.parse("int3~1x64~asymmetric~float32~minmax")
    groups = w.double().numpy().reshape(32, 4, 64)
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    scale = ((high - low).astype(np.float32) / np.float32(7)).astype(np.float64)[:, :, None]
    zero, want = -4 - low[:, :, None] / scale, []
    for beta in 10 * 1.01 ** np.arange(21.0):
        codes = np.clip(np.rint(groups / scale + zero), -4, 3)
        error = groups - (codes - zero) * scale
        want.append((np.abs(error) ** 0.7).mean())
        size = np.maximum(np.abs(error), 1e-12)
        shrunk = np.sign(error) * np.maximum(size - size**-0.3 / beta, 0)
        zero = (codes - (groups - shrunk) / scale).mean(2, keepdims=True)
    got = hqq(w, scheme, torch.randn(4, 256)).objective
    np.testing.assert_allclose(got, want, rtol=2e-6)


def test_hadamard_matrices_are_orthogonal() -> None:
    """Else a rotation changes the product; 27 is no prime, so that order 28 is not Paley's."""
    for order in (4, 8, 12, 20, 24, 44, 60):
        h = paley_matrix(order)
        assert torch.equal(h @ h.t(), order * torch.eye(order, dtype=torch.float64))
        assert torch.equal(h.abs(), torch.ones_like(h))
    with pytest.raises(ValueError, match="27"):
        paley_matrix(28)


WIDTHS = {1: 1, 64: 64, 384: 384, 1536: 1536, 768: 768, 896: 896, 100: 4, 45: 1, 11008: 11008}


@pytest.mark.parametrize(("channels", "order"), sampled(list(WIDTHS.items()), [*WIDTHS.items()][:-1]))
def test_rotation_is_orthogonal_and_spreads(channels: int, order: int) -> None:
    """Also where the number of channels is no power of two; where no Hadamard matrix is known here, in
    blocks."""
    rotation = find_rotation(channels)
    assert rotation.order == order or rotation.order % 4 == 0
    x = torch.randn(5, channels, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(rotation.undo(rotation.inputs(x)), x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rotation.inputs(x) @ rotation.weight(x).t(), x @ x.t(), rtol=1e-10, atol=1e-9)
    spike = torch.zeros(1, channels, dtype=torch.float64)
    spike[0, 0] = 1
    assert float(rotation.inputs(spike).abs().max()) == pytest.approx(1 / math.sqrt(rotation.order))
    assert torch.equal(find_rotation(channels).signs, rotation.signs)


def test_llm_int8_is_the_papers_decomposition() -> None:
    """By hand: outlier columns in float16, the rest with row maxima that do not see them."""
    r = np.random.default_rng(0)
    x, w = (torch.from_numpy(r.standard_normal((rows, 32))).float() for rows in (6, 5))
    x[2, 7], x[4, 20] = 9.0, -6.0
    assert outlier_columns(x).tolist() == [7, 20] and outlier_columns(x, 8).tolist() == [7]
    got = llm_int8(w, SCHEMES["int8_row"], x).output(x, SCHEMES["int8_row"])
    rest = x.clone()
    rest[:, [7, 20]] = 0
    a, b = rest.abs().amax(1, keepdim=True) / 127, w.abs().amax(1, keepdim=True) / 127
    want = ((rest / a).round().double() @ (w / b).round().double().t()) * a.double() * b.double().t()
    want += x[:, [7, 20]].half().double() @ w[:, [7, 20]].half().double().t()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert llm_int8(w, SCHEMES["int8_row"], x.clamp(-5, 5)).residues == ()


def test_outliers_are_found_at_run_time() -> None:
    """The paper's decomposition of each input by its own outliers, which calibration need not have seen."""
    r = np.random.default_rng(0)
    x, w = (torch.from_numpy(r.standard_normal((rows, 32))).float() for rows in (6, 5))
    layer = llm_int8_dynamic(w, SCHEMES["int8_row"], x)
    b = w.abs().amax(1, keepdim=True) / 127
    codes = (w / b).round()
    for columns in ([], [7], [3, 20]):
        seen = x.clone()
        seen[2, columns] = 9.0
        rest = seen.clone()
        rest[:, columns] = 0
        a = rest.abs().amax(1, keepdim=True) / 127
        want = ((rest / a).round().double() @ codes.double().t()) * a.double() * b.double().t()
        want += seen[:, columns].half().double() @ (codes * b)[:, columns].half().double().t()
        torch.testing.assert_close(layer.output(seen, SCHEMES["int8_row"]), want, rtol=1e-5, atol=1e-5)
    assert layer.bits_per_weight == pytest.approx(layer.q.bits_per_element.total + 32 / w.numel())
    seen[:, 5] = 30.0
    exact = seen.double() @ w.double().t()
    fixed = llm_int8(w, SCHEMES["int8_row"], x)
    errors = [float((m.output(seen, SCHEMES["int8_row"]) - exact).norm()) for m in (layer, fixed)]
    assert errors[0] < 0.7 * errors[1]


def test_clip_search_is_the_plain_search() -> None:
    """Each block's range against the ten tried one after another, by the output's error alone. Of ranges with
    the same error the first is kept, which is the whole one: inputs that are always zero say nothing."""
    r = np.random.default_rng(0)
    w = torch.from_numpy(r.standard_t(3, (6, 96))).float()
    x = torch.from_numpy(r.standard_normal((40, 96))).float()
    scheme = SCHEMES["int4_group32"]
    ranges = clip_search(w, scheme, x)

    def error(part: Tensor, inputs: Tensor, top: Tensor) -> float:
        scale = (top / 7).half().float()
        rounded = (part / scale).round().clamp(-7, 7) * scale
        return float((inputs @ (part - rounded)).square().sum())

    for group in range(3):
        part, inputs = w[:, 32 * group : 32 * group + 32], x[:, 32 * group : 32 * group + 32]
        for row in range(6):
            tops = [part[row].abs().max() * (1 - i / 20) for i in range(10)]
            best = min(tops, key=lambda top: error(part[row], inputs, top))
            chosen = torch.maximum(-ranges.low, ranges.high)[row, group]
            assert float(chosen) == pytest.approx(float(best), rel=1e-5)
    better = quantize_with_scales(w, scheme, scale_for(ranges, scheme)).dequantize()
    assert lost(w, better, x) < lost(w, quantize(w, scheme).dequantize(), x)
    x[:, 32:64] = 0
    ranges = clip_search(w, scheme, x)
    assert torch.equal(torch.maximum(-ranges.low, ranges.high)[:, 1], w[:, 32:64].abs().amax(1))


def test_clip_search_leaves_the_tensor_scale_alone() -> None:
    """NVFP4's blocks against the ten tops tried one after another, under the whole weight's tensor scale.

    Else each trial moves all other blocks' scales too, and what was tried is not what is stored.
    """
    r = np.random.default_rng(0)
    w = torch.from_numpy(r.standard_t(3, (6, 64))).float()
    x = torch.from_numpy(r.standard_normal((40, 64))).float()
    ranges = clip_search(w, SCHEMES["nvfp4"], x)
    levels = torch.tensor(SCHEMES["nvfp4"].format.levels)
    upper = w.abs().max() / (6 * 448)

    def error(part: Tensor, inputs: Tensor, top: Tensor) -> float:
        scale = (top / 6 / upper).to(torch.float8_e4m3fn).float() * upper
        nearest = levels[((part / scale)[:, None] - levels).abs().argmin(1)] * scale
        return float((inputs @ (part - nearest)).square().sum())

    for group in range(4):
        part, inputs = w[:, 16 * group : 16 * group + 16], x[:, 16 * group : 16 * group + 16]
        for row in range(6):
            tops = [part[row].abs().max() * (1 - i / 20) for i in range(10)]
            chosen = torch.maximum(-ranges.low, ranges.high)[row, group]
            least = min(error(part[row], inputs, top) for top in tops)
            assert error(part[row], inputs, chosen) == pytest.approx(least, rel=1e-3)


def test_evaluation_holds_half_back_and_says_why(layer: Layer) -> None:
    """Errors are measured on the other half of the inputs; what a method cannot do is said, not skipped."""
    w, x = layer("mlp_up", 256)
    outcomes = list(evaluate_all(["rtn", "hqq", "awq"], [SCHEMES["int3_group128"]], w, x))
    assert [o.refused != "" for o in outcomes] == [False, True, False] and "asymmetric" in outcomes[1].refused
    _, held_out = halves(x)
    exact = held_out.double() @ w.double().t()
    wrong = held_out.double() @ quantize(w, SCHEMES["int3_group128"]).dequantize().double().t() - exact
    assert outcomes[0].output_error == pytest.approx(float(wrong.norm() / exact.norm()), rel=1e-9)
    assert len(outcomes[0].channel_error) == w.shape[0]
    text = summary(outcomes, x)
    assert "AWQ" in text and "4 of 384" in text and "GPTQ" not in text


def test_too_few_tokens_for_gptq_are_named(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the attention query GPTQ with little damping fits 200 tokens and loses on the others: the summary
    says so."""
    little = dataclasses.replace(METHODS["gptq"], round=functools.partial(gptq, damping=0.01))  # type: ignore[call-arg]
    monkeypatch.setitem(METHODS, "gptq", little)
    w, x = layer("attention_query", None)
    outcomes = list(evaluate_all(["rtn", "gptq"], [SCHEMES["int4_group128_asym"]], w, x))
    assert outcomes[1].output_sqnr_db < outcomes[0].output_sqnr_db
    assert "200 tokens are few for 384" in summary(outcomes, x)


def test_names_and_bad_input() -> None:
    """Else a wrong name, order, shape or scheme ends in a traceback."""
    assert [m.name for m in names_in("smoothquant + gptq")] == ["smoothquant", "gptq"]
    w, x = torch.ones(4, 64), torch.ones(8, 64)
    for name, scheme, inputs, words in (
        ("gptqq", "int4_group64", x, "gptqq"),
        ("awq+gptq", "int4_group64", x, "AWQ.*GPTQ"),
        ("gptq+rotation", "int4_group64", x, "before"),
        ("lqer+gptq", "int4_group64", x, "LQER.*GPTQ"),
        ("gptq+lqer+lqer", "int4_group64", x, "before"),
        ("bias_correction+lqer", "int4_group64", x, "LQER"),
        ("rtn", "int4_group64", x[:, :8], "activations"),
        ("awq", "int4_group64", x * float("inf"), "Inf"),
        ("awq_clip", "int8_tensor", x, "groups"),
        ("hqq", "int4_group64", x, "asymmetric"),
    ):
        with pytest.raises(ValueError, match=words):
            apply(name, w, SCHEMES[scheme], inputs)
    with pytest.raises(ValueError, match="two rows"):
        halves(x[:1])
    for name in ("rotation+rotation", "smoothquant+rotation+smoothquant", "rotation+" * 5000 + "gptq"):
        with pytest.raises(ValueError):  # a link with 20,000 rotations would hold a core for minutes
            names_in(name)


def test_a_block_of_zeros_spoils_nothing() -> None:
    """Its scale is 0; if this fails, the layer is NaN, or nothing is learned of the other blocks."""
    w, x = torch.randn(4, 128), torch.randn(32, 128)
    w[1, :64] = 0
    silent = "int4~1x64~asymmetric~float16-zero~minmax"
    for name, text in (("hqq", silent), ("autoround", silent), ("autoround", "q4_0")):
        quantized = apply(name, w, Scheme.parse(text), x)
        assert bool(quantized.weight().isfinite().all()) and bool((quantized.weight()[1, :64] == 0).all())
        assert min(quantized.objective) < 0.99 * quantized.objective[0]


def test_numbers_that_cannot_be_kept_are_refused() -> None:
    """If this fails, what a method keeps in float16 is Inf, and so is every output; or every step of a
    search looks as good as the first."""
    w, x = torch.randn(4, 128), torch.randn(32, 128)
    for name in ("hqq", "llm_int8", "llm_int8_dynamic"):
        with pytest.raises(ValueError, match="65504"):
            apply(name, w * 1e7, SCHEMES["int4_group64_asym"], x * 4)
    with pytest.raises(ValueError, match="inf"):
        apply("autoround", w * 1e25, Scheme.parse("int4~1x64~asymmetric~float32~minmax"), x)
