"""GPTQ against a plain float64 reference that inverts the remaining Hessian at every column.

If these fail, the method compensates less than it could, or its codes are not what its scales give.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, MappingType, quantize
from explorer.core.importances import takes_importance
from explorer.core.quantize import find_ranges
from explorer.methods import apply
from explorer.methods.column_scales import finds_scales_together
from explorer.methods.gptq import DAMPINGS, Order, _inverse_factor, gptaq, gptq, hessian, same_inputs
from explorer.schemes import scale_for

pytestmark = pytest.mark.usefixtures("one_thread")


def correlated(n: int = 64, k: int = 256, tokens: int = 1024) -> tuple[Tensor, Tensor]:
    """A weight, and inputs that share a few directions, as activations do."""
    r = np.random.default_rng(0)
    x = r.standard_normal((tokens, 16)) @ r.standard_normal((16, k)) + 0.3 * r.standard_normal((tokens, k))
    return torch.from_numpy(r.standard_normal((n, k))).float(), torch.from_numpy(x).float()


def output_error(w: Tensor, rounded: Tensor, x: Tensor) -> float:
    exact = w.double() @ x.double().t()
    return float(((rounded.double() - w.double()) @ x.double().t()).square().sum() / exact.square().sum())


def plain(w: Tensor, x: Tensor, group: int) -> Tensor:
    """Column by column, the remaining Hessian inverted afresh each time; symmetric INT4, fp16 scales."""
    w = w.double().clone()
    k = w.shape[1]
    h = hessian(x)
    h += torch.eye(k) * 0.01 * torch.diagonal(h).mean()
    out = torch.empty_like(w)
    for j in range(k):
        if j % group == 0:
            scale = (w[:, j : j + group].float().abs().amax(1) / 7).half().float()
        q = ((w[:, j].float() / scale).round().clamp(-7, 7) * scale).double()
        inverse = torch.linalg.inv(h[j:, j:])
        out[:, j] = q
        w[:, j:] -= (w[:, j] - q)[:, None] * inverse[0][None] / inverse[0, 0]
    return out


def test_it_is_the_plain_algorithm() -> None:
    """Else the Cholesky factor's rows are not the inverses of the remaining Hessians."""
    w, x = correlated(16, 128, 512)
    got = gptq(w, SCHEMES["int4_group64"], x, damping=0.01).q.dequantize().double()
    want = plain(w, x, 64)
    differ = float((got != want).double().mean())
    assert differ < 0.002, f"{100 * differ:.2f} % of the codes differ"
    assert output_error(w, got, x) == pytest.approx(output_error(w, want, x), rel=0.01)


TOGETHER = sorted(
    name for name, scheme in SCHEMES.items() if scheme.block[0] == 1 and finds_scales_together(scheme)
)
"""Schemes whose scales are quantized too, or searched."""


@pytest.mark.parametrize("name", TOGETHER)
def test_scales_that_are_found_together_are_those_of_the_weight(name: str) -> None:
    """Those that rounding has under the inputs' mean squares: else a file's blocks have scales that no reader
    restores. Codes make up for each other's errors all the same."""
    w, x = correlated(8, 512, 512)
    scheme = SCHEMES[name]
    weighed = (hessian(x).diagonal() / 2).float() if takes_importance(scheme) else None
    rounded = quantize(w, scheme, importance=weighed)
    for order in Order:
        found = gptq(w, scheme, x, damping=0.01, order=order).q
        assert torch.equal(found.scales.scale, rounded.scales.scale)
        offsets = found.scales.offsets, rounded.scales.offsets
        assert (offsets[0] is None and offsets[1] is None) or torch.equal(*offsets)
        assert output_error(w, found.dequantize(), x) < 0.9 * output_error(w, rounded.dequantize(), x)


def test_equal_and_independent_inputs_leave_rounding() -> None:
    """Of a Hessian without products of two inputs: nothing is compensated, and a K-quant's codes are those of
    the search."""
    w, _ = correlated(8, 256, 8)
    x = 4 * torch.eye(256)
    for name in ("q4_k", "iq4_xs", "nf4_block64_double"):
        scheme = SCHEMES[name]
        weighed = (hessian(x).diagonal() / 2).float() if takes_importance(scheme) else None
        found = gptq(w, scheme, x, damping=0.01).q
        assert torch.equal(found.packed, quantize(w, scheme, importance=weighed).packed)


@pytest.mark.parametrize("order", Order)
def test_the_block_of_columns_changes_nothing(order: Order) -> None:
    """Also where groups are longer or shorter than blocks, or cross their ends; for GPTAQ's sums too."""
    w, x = correlated(8, 192, 256)
    for group in ("int4_group32", "int4_group64", "int4_group128", "int4_row", "nvfp4"):
        first, *others = [
            gptaq(w, SCHEMES[group], x, 1.1 * x.roll(1, 1), damping=0.01, order=order, block=b).q.codes
            for b in (16, 48, 128, 192)
        ]
        for other in others:
            assert float((other != first).float().mean()) < 0.002, group


def test_damping_is_chosen_on_tokens_that_the_hessian_has_not_seen(
    layer: Callable[..., tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 tokens of 384 channels: else GPTQ fits them, and does worse on others than rounding.

    The objective is the error on the second half of the tokens, and the least one's damping is used.
    """
    w, x = layer("attention_query", 96)
    scheme = SCHEMES["int4_group128_asym"]
    chosen, fixed = (gptq(w, scheme, x[:200], damping=damping) for damping in (None, 0.01))
    rounded = quantize(w, scheme).dequantize()
    errors = [output_error(w, other, x[200:]) for other in (chosen.weight(), rounded, fixed.weight())]
    assert errors == sorted(errors), "chosen, round to nearest, 0.01"
    for damping, error in zip(DAMPINGS, chosen.objective, strict=True):
        half = gptq(w, scheme, x[:100], damping=damping).weight()
        assert error == pytest.approx(output_error(w, half, x[100:200]) ** 0.5, rel=0.02)
    best = DAMPINGS[chosen.objective.index(min(chosen.objective))]
    assert torch.equal(gptq(w, scheme, x[:200], damping=best).q.packed, chosen.q.packed)
    monkeypatch.setattr(sys.modules[gptq.__module__], "CHOICE_ELEMENTS", 2 * 384**2)
    assert gptq(w, scheme, x[:200]).objective == pytest.approx(chosen.objective), "two dampings at a time"
    assert fixed.objective == () and gptq(w, scheme, x[:1]).objective == ()


def test_dead_columns_count_for_nothing() -> None:
    """The other columns get the codes that they have without them: the mean diagonal is over those alone.
    Nor do they with inputs of small size, which would be damped until nothing is compensated."""
    w, x = correlated(32, 64, 256)
    dead = torch.arange(64) % 4 == 0
    x[:, dead] = 0
    w[:, dead] *= 0.5  # no row's largest
    for damping, size in ((0.01, 1.0), (1.0, 1.0), (0.01, 2.0**-10)):
        whole = gptq(w, SCHEMES["int4_row"], x * size, damping=damping).q.codes[:, ~dead]
        alone = gptq(w[:, ~dead].contiguous(), SCHEMES["int4_row"], x[:, ~dead], damping=damping).q.codes
        assert torch.equal(whole, alone)


def test_the_scale_of_the_tensor_is_that_of_the_original_weight(
    layer: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    """NVFP4's blocks get their scales as columns are updated, under a scale of the tensor fixed before; both
    ways of block scales beat rounding on held-out inputs."""
    w, x = layer("mlp_up", 96)
    base = quantize(w, SCHEMES["nvfp4"])
    assert base.scales.tensor_scale is not None
    error = output_error(w, base.dequantize(), x[200:])
    for order in Order:
        q = gptq(w, SCHEMES["nvfp4"], x[:200], order=order).q
        assert q.scales.tensor_scale is not None and q.bits_per_element == base.bits_per_element
        assert torch.equal(q.scales.tensor_scale, base.scales.tensor_scale)
        assert torch.equal(q.scales.stored, base.scales.stored) == (order is Order.ENERGY)
        assert output_error(w, q.dequantize(), x[200:]) < 0.8 * error


def test_orders_are_permutations_by_energy() -> None:
    """Group-aware order (arXiv 2505.14638) by hand: groups by their largest, columns by their own energy."""
    energy = torch.tensor([1.0, 4, 2, 9, 3, 8, 7])
    assert Order.COLUMNS.permutation(energy, 3).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert Order.ENERGY.permutation(energy, 3).tolist() == [3, 5, 6, 1, 4, 2, 0]
    assert Order.GROUPS.permutation(energy, 3).tolist() == [3, 5, 4, 6, 1, 2, 0]


def plain_gptaq(w: Tensor, seen: Tensor, wanted: Tensor, group: int) -> Tensor:
    """The paper's definition, column by column with least squares of its own; symmetric INT4, static scales.

    ``w``'s remaining columns make up for (w_q - ŵ_q) X̂_q + w_q (X - X̂)_q, the first part by the remaining
    Hessian with column q in it (GPTQ), the second without.
    """
    w, seen, wanted = w.double().numpy().copy(), seen.double().numpy(), wanted.double().numpy()
    k = w.shape[1]
    h = seen.T @ seen
    h += np.eye(k) * 0.01 * h.diagonal().mean()
    scale = np.abs(w.reshape(len(w), -1, group)).max(2) / np.float32(7)
    scale = scale.astype(np.float16).astype(np.float64).repeat(group, 1)
    out = np.empty_like(w)
    for j in np.argsort(-h.diagonal(), kind="stable"):
        out[:, j] = (w[:, j] / scale[:, j]).round().clip(-7, 7) * scale[:, j]
        rest = [i for i in range(k) if h[i, i] < h[j, j]]
        if not rest:
            continue
        inverse = np.linalg.inv(h[np.ix_([j, *rest], [j, *rest])])
        pull = (wanted[:, j] - seen[:, j]) @ seen[:, rest] @ np.linalg.inv(h[np.ix_(rest, rest)])
        w[:, rest] += np.outer(w[:, j], pull)
        w[:, rest] -= np.outer(w[:, j] - out[:, j], inverse[0, 1:] / inverse[0, 0])
    return torch.from_numpy(out)


def test_gptaq_is_the_papers_definition() -> None:
    """Else P, from the Cholesky factor, is not the least squares solution in the columns after each."""
    w, x = correlated(16, 128, 512)
    seen = x + 0.2 * x.roll(3, 1) + 0.1 * torch.randn(x.shape)
    got = gptaq(w, SCHEMES["int4_group64"], seen, x, damping=0.01).q.dequantize()
    differ = (got - plain_gptaq(w, seen, x, 64)).abs() > 1e-5
    assert float(differ.double().mean()) < 0.002
    alone = gptq(w, SCHEMES["int4_group64"], seen, damping=0.01, order=Order.ENERGY).q.dequantize()
    exact = x.double() @ w.double().t()
    lost = [float((seen.double() @ other.double().t() - exact).square().sum()) for other in (got, alone)]
    assert lost[0] < 0.5 * lost[1], "GPTQ does not know what the inputs should have been"


def test_gptaq_with_the_same_inputs_is_gptq() -> None:
    """Both where they are one tensor and where they are equal ones, for the choice of damping too."""
    w, x = correlated(16, 128, 256)
    want = gptq(w, SCHEMES["int4_group64"], x, order=Order.ENERGY)
    for original in (x, x.clone()):
        got = gptaq(w, SCHEMES["int4_group64"], x, original)
        assert torch.equal(got.q.packed, want.q.packed) and got.objective == want.objective


def test_on_a_real_layer_and_held_out_inputs(layer: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """It generalises with 200 tokens; progress, objective and snapshots go from the first column to the
    last. Fewer tokens than channels, and inputs that are always zero, do not make the Hessian singular."""
    w, x = layer("mlp_up", 192)
    calibration, held_out = x[:200].clone(), x[200:]
    calibration[:, 5] = held_out[:, 5] = 0
    done: list[tuple[int, int]] = []
    quantized = gptq(w, SCHEMES["int4_group128"], calibration, progress=lambda a, b: done.append((a, b)))
    assert done == sorted(done) and done[-1] == (384, 384) and (192, 384) in done, "the choice, the layer"
    assert quantized.snapshots is not None and quantized.snapshots.shape == (12, 24, 384)
    rounded = quantized.q.dequantize()
    assert torch.equal(quantized.snapshots[-1], rounded[:24]), "the last snapshot is the dequantized weight"
    base = quantize(w, SCHEMES["int4_group128"])
    assert output_error(w, rounded, held_out) < output_error(w, base.dequantize(), held_out)
    assert torch.equal(rounded[:, 5], base.dequantize()[:, 5]), "a column without input is rounded, not wiped"
    assert quantized.q.bits_per_element == base.bits_per_element
    steps = [after / before for before, after in itertools.pairwise(DAMPINGS)]
    assert (DAMPINGS[0], DAMPINGS[-1]) == (0.003, 1.0) and all(2.9 < step < 3.5 for step in steps)


@functools.cache
def llm_compressor() -> Callable[..., Any]:
    """Its layer-level GPTQ. Its packages import everything it can do; only the two modules needed are
    loaded."""
    spec = importlib.util.find_spec("llmcompressor")
    assert spec and spec.submodule_search_locations, "pip install --no-deps llmcompressor compressed-tensors"
    root = spec.submodule_search_locations[0]
    for name, path in (
        ("", root),
        (".modifiers", f"{root}/modifiers"),
        (".modifiers.gptq", f"{root}/modifiers/gptq"),
    ):
        package = types.ModuleType(f"llmcompressor{name}")
        package.__path__ = [path]
        sys.modules[package.__name__] = package
    quantize_weight: Callable[..., Any] = importlib.import_module(
        "llmcompressor.modifiers.gptq.gptq_quantize"
    ).quantize_weight
    return quantize_weight


@pytest.mark.parametrize(
    ("sample", "name", "act_order"),
    [
        ("mlp_up", "int4_row", False),
        ("mlp_up", "int8_row", True),
        ("mlp_up", "int4_group128", True),
        ("mlp_up", "int4_group64_asym", True),
        pytest.param("mlp_down", "int3_group128_asym", True, marks=pytest.mark.thorough),
    ],
)
def test_it_is_what_llm_compressor_computes(
    layer: Callable[..., tuple[Tensor, Tensor]], sample: str, name: str, act_order: bool
) -> None:
    """Code for code but for ties of its float32 sums: the same scales, Hessian and damping on real layers."""
    from compressed_tensors.quantization import QuantizationArgs

    w, x = layer(sample, 384)
    scheme = SCHEMES[name]
    if not scheme.asymmetric:  # it uses all codes
        scheme = dataclasses.replace(scheme, mapping=MappingType.FULL)
    scales = scale_for(find_ranges(w, scheme), scheme)
    group = scheme.block[1]
    arguments = QuantizationArgs(
        num_bits=scheme.format.bits,
        type="int",
        symmetric=not scheme.asymmetric,
        strategy="group" if group else "channel",
        group_size=group,
        actorder="weight" if act_order else None,
    )
    zero = torch.zeros_like(scales.scale) if scales.zero_points is None else scales.zero_points
    want = llm_compressor()(
        w[None].clone(),
        hessian(x).float()[None],
        scales.scale[None],
        zero[None].to(torch.int8),
        None,
        arguments,
    )[0][0]
    order = Order.ENERGY if act_order else Order.COLUMNS
    got = gptq(w, scheme, x, damping=0.01, order=order).q.dequantize()
    assert float(((got - want).abs() > 1e-6).float().mean()) < 0.01
    assert output_error(w, got, x) == pytest.approx(output_error(w, want, x), rel=0.005)


def test_bad_input_is_refused() -> None:
    """Else wrong shapes or schemes end in a traceback of torch."""
    w, x = correlated(4, 64, 8)
    scheme = SCHEMES["int4_group64"]
    with pytest.raises(ValueError, match=r"\[N, K\]"):
        gptq(w, scheme, x[:, :32])
    for name in ("int8_tensor", "bf16", "fp8_e4m3_128x128"):
        with pytest.raises(ValueError, match="rows"):
            gptq(w, SCHEMES[name], x)
    with pytest.raises(ValueError, match="NaN"):
        gptq(w, scheme, x * float("nan"))
    with pytest.raises(ValueError, match="one token"):
        gptq(w, scheme, x[:0])
    with pytest.raises(ValueError, match="8 and 7"):
        gptaq(w, scheme, x, x[:7])
    w, x = torch.zeros(4, 128), torch.eye(128)
    w[3, 70] = 2.0e38  # named by the layer's column, not by that of the group that is reached
    with pytest.raises(ValueError, match="row 3, column 70"):
        gptq(w, SCHEMES["int4_group32"], x)


@pytest.mark.parametrize("order", list(Order))
def test_several_schemes_of_the_same_inputs_have_the_codes_that_each_has_alone(order: Order) -> None:
    """With the damping of the first: a Hessian that is kept is not changed by whoever uses it, dead columns
    included, and one order's factor is not another's."""
    draw = torch.Generator().manual_seed(3)
    x, w = torch.randn(60, 64, generator=draw), torch.randn(8, 64, generator=draw)
    x[:, 5] = 0
    schemes = [SCHEMES[name] for name in ("int4_group64", "int3_group64_asym", "int4_group32")]
    with same_inputs():
        for other in Order:
            gptq(w, schemes[0], x, order=other, damping=0.3)
        kept = [gptq(w, scheme, x, order=order) for scheme in schemes]
    damping = DAMPINGS[kept[0].objective.index(min(kept[0].objective))]
    assert not kept[1].objective and not kept[2].objective
    for scheme, one in zip(schemes, kept, strict=True):
        assert torch.equal(one.q.packed, gptq(w, scheme, x, order=order, damping=damping).q.packed)


def test_damping_grows_tenfold_until_there_is_a_factor() -> None:
    """H of rounded sums may have an eigenvalue below 0: .01 of the mean is too little here, .1 is enough."""
    h, eye = torch.diag(torch.tensor([1.0, -0.05], dtype=torch.float64)), torch.eye(2, dtype=torch.float64)
    factor = _inverse_factor(h, 0.01, 1.0)
    assert torch.allclose(factor.t() @ factor @ (h + 0.1 * eye), eye, atol=1e-12)


def test_other_inputs_never_have_the_hessian_of_freed_ones() -> None:
    """Inputs in bfloat16 are copied to float32 for each call: the copy of the next ones may lie where that of
    the first did, and would be taken for it."""
    w, x = correlated(16, 128, 256)
    inputs = [(x * 4.0**i * (1 + torch.arange(128) % (i + 2))).bfloat16() for i in range(4)]
    alone = [apply("gptq", w, SCHEMES["int4_group64"], one).q.packed for one in inputs]
    with same_inputs():
        together = [apply("gptq", w, SCHEMES["int4_group64"], one).q.packed for one in inputs]
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
