"""AWQ and SmoothQuant: their published examples, and that folding changes nothing but the rounding.

If these fail, a layer is scaled by other factors than its input is divided by, or the search misses its
optimum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, quantize
from explorer.methods import apply, factor_of, objective_axis
from explorer.methods.awq import ALPHAS, awq, channel_scale
from explorer.methods.factors import Readers, tied
from explorer.methods.smoothquant import smoothing

pytestmark = pytest.mark.usefixtures("one_thread")


def uneven(n: int = 256, k: int = 512, tokens: int = 512) -> tuple[Tensor, Tensor]:
    """Activation channels of log-normal size (σ 1.2), as the reference's check has them."""
    r = np.random.default_rng(0)
    size = np.exp(1.2 * r.standard_normal(k))
    return torch.from_numpy(r.standard_normal((n, k))).float(), torch.from_numpy(
        r.standard_normal((tokens, k)) * size
    ).float()


def output_error(w: Tensor, rounded: Tensor, x: Tensor) -> float:
    exact = x.double() @ w.double().t()
    return float((x.double() @ rounded.double().t() - exact).square().mean())


def test_awq_is_never_worse_on_its_own_objective(layer: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """On a real layer and its inputs; α = 0 without duo scaling is rounding to nearest itself. Weights that
    every α restores exactly are left as they are. A combination is drawn over what its objective is of."""
    w, x = layer("mlp_up")
    for name in ("int4_row_asym", "nvfp4", "mxfp4"):
        base = output_error(w, quantize(w, SCHEMES[name]).dequantize(), x)
        for duo in (False, True):
            assert output_error(w, awq(w, SCHEMES[name], x, duo=duo).weight(), x) <= base * 1.0001
    w, x = uneven(8, 64, 32)
    found = awq(torch.zeros_like(w), SCHEMES["int4_group64"], x)
    assert found.objective == (0.0,) * 20
    assert torch.equal(found.transforms[0].scale, torch.ones(64))
    for name, label in (
        ("smoothquant_search+gptq", "damping"),
        ("smoothquant_search", "α"),
        ("smoothquant_search+hqq", "share of the iterations"),
        ("smoothquant+awq", "α"),
    ):
        axis, layer_of = objective_axis(name), apply(name, w, SCHEMES["int4_group32_asym"], x)
        assert axis is not None and axis.label == label
        assert not axis.values or len(axis.values) == len(layer_of.objective)
    assert objective_axis("smoothquant") is None and objective_axis("rtn") is None


def test_smoothquant_by_the_worked_example() -> None:
    """max|X| = 100, 1, 4 and max|W| = 1, 1, .25 give s = 10, 1, 4, and both sides then reach 10, 1, 1."""
    x, w = torch.tensor([[100.0, -1, 4], [-50, 0.5, 1]]), torch.tensor([[1.0, 0.5, -0.25], [0.5, -1, 0.1]])
    s = smoothing(x, [w])
    assert s.tolist() == pytest.approx([10, 1, 4])
    assert (x / s).abs().amax(0).tolist() == pytest.approx([10, 1, 1])
    assert (w * s).abs().amax(0).tolist() == pytest.approx([10, 1, 1])
    assert torch.allclose((x / s) @ (w * s).t(), x @ w.t(), atol=1e-4)


def test_layers_that_share_an_input_share_a_scale() -> None:
    """The largest weight of all of them counts; the scale is centred."""
    w, x = uneven(8, 32, 16)
    both = smoothing(x, [w, 3 * w])
    assert torch.allclose(both, smoothing(x, [3 * w]))
    s = channel_scale(x.abs().mean(0), 0.5)
    assert s.dtype == torch.float16 and float(s.max() * s.min()) == pytest.approx(1, rel=2e-3)


def test_bad_input_is_refused() -> None:
    """Else wrong shapes and values end in a traceback of torch, or in NaN."""
    w, x = uneven(4, 64, 8)
    with pytest.raises(ValueError, match="one token"):
        awq(w, SCHEMES["int4_group64"], x[:0])
    with pytest.raises(ValueError, match="activations"):
        apply("smoothquant", w, SCHEMES["int8_row"], x[:, :32])
    with pytest.raises(ValueError, match="0 and 1"):
        smoothing(x, [w], 1.5)


@pytest.mark.parametrize("duo", [False, True])
def test_awq_is_the_plain_search(layer: Callable[..., tuple[Tensor, Tensor]], duo: bool) -> None:
    """Twenty α one after another in float64 and numpy, by the paper's formulas: the same curve and choice."""
    w, x = layer("mlp_up", 256)
    searched = awq(w, SCHEMES["int4_group128_asym"], x, duo=duo)
    wn, xn, curve, scales = w.double().numpy(), x.double().numpy(), [], []
    importance = np.abs(xn).mean(0)
    groups = np.abs(wn).reshape(len(wn), -1, 128)
    relative = (groups / groups.max(2, keepdims=True)).reshape(len(wn), -1).mean(0)
    for i in range(20):
        alpha = i / 20
        s = importance**alpha / (relative ** (1 - alpha) + 1e-4) if duo else importance**alpha
        s = np.maximum(s, 1e-4)
        s = s / np.sqrt(s.max() * s.min())
        scaled = (wn * s).astype(np.float32).reshape(len(wn), -1, 128)
        low, high = np.minimum(scaled.min(2, keepdims=True), 0), np.maximum(scaled.max(2, keepdims=True), 0)
        scale = ((high - low) / np.float32(15)).astype(np.float16).astype(np.float32)
        zero = np.clip(np.rint(-8 - low / scale), -8, 7)
        codes = np.clip(np.rint(scaled / scale) + zero, -8, 7)
        rounded = ((codes - zero) * scale).reshape(wn.shape) / s
        curve.append(((xn @ (rounded - wn).T) ** 2).mean())
        scales.append(s)
    np.testing.assert_allclose(searched.objective, curve, rtol=0.01)
    best = int(np.argmin(searched.objective))
    assert curve[best] <= 1.005 * min(curve)
    np.testing.assert_allclose(searched.transforms[0].scale.numpy(), scales[best], rtol=2**-11)


def test_what_is_not_folded_is_counted() -> None:
    """16 / N bits for each channel scale, 1 / N for a sign: in BERT no operation before a layer can take
    them."""
    w, x = uneven(24, 64, 16)
    for name in ("awq", "smoothquant", "smoothquant_search+gptq", "smoothquant+rotation+awq"):
        layer = apply(name, w, SCHEMES["int4_group32_asym"], x)
        scales = sum(part.startswith(("awq", "smoothquant")) for part in name.split("+"))
        extra = (16 * scales + ("rotation" in name)) / len(w)
        assert layer.bits_per_weight == pytest.approx(layer.q.bits_per_element.total + extra, rel=1e-12)
        stored = layer.extra_tensors().values()
        assert {t.dtype for t in stored if t.dim() and "rotation" not in name} <= {torch.float16}


@pytest.mark.parametrize("inputs", ["", "int8_row", "int8_tensor"])
def test_the_best_alpha_is_that_of_a_plain_search(inputs: str) -> None:
    """Twenty α one after another in numpy, the weight in INT8 a row, the inputs as at run time."""
    w, x = uneven(16, 48, 32)
    x[:, 3] *= 60
    of_inputs = SCHEMES[inputs] if inputs else None
    layer = apply("smoothquant_search", w, SCHEMES["int8_row"], x, of_inputs=of_inputs)
    wn, xn, curve = w.double().numpy(), x.double().numpy(), []

    def rounded(a: np.ndarray, axis: int | None) -> np.ndarray:
        scale = np.abs(a).max(axis, keepdims=True) / 127
        return np.rint(a / scale) * scale

    for i in range(20):
        alpha = i / 20
        s = np.abs(xn).max(0) ** alpha / np.abs(wn).max(0) ** (1 - alpha)
        xq = xn / s if not inputs else rounded(xn / s, 1 if inputs == "int8_row" else None)
        curve.append(((xq @ rounded(wn * s, 1).T - xn @ wn.T) ** 2).mean())
    np.testing.assert_allclose(layer.objective, curve, rtol=0.1)  # s rounded to float16 turns single codes
    assert curve[int(np.argmin(layer.objective))] < 1.05 * min(curve)
    axis = objective_axis("smoothquant_search")
    assert axis is not None and len(axis.values) == len(layer.objective)


@pytest.mark.parametrize("name", ["awq", "awq_clip", "smoothquant", "smoothquant_search"])
def test_a_group_of_one_has_the_factor_of_its_layer(name: str) -> None:
    """The search of a group is that of a layer: else a fold is not the method that it names."""
    w, x = uneven(64, 128, 64)
    alone = apply(name, w, SCHEMES["int4_group64"], x)
    factor = factor_of(name, Readers((w,), (SCHEMES["int4_group64"],), x))
    assert torch.equal(factor, alone.transforms[0].scale.float())
    rest = apply(name, w * factor, SCHEMES["int4_group64"], x / factor, folded=True)
    assert rest.plain and torch.equal(rest.q.packed, alone.q.packed)


@pytest.mark.parametrize("name", ["awq", "awq_clip", "smoothquant_search"])
def test_a_group_has_the_factor_with_the_least_error_of_all(name: str) -> None:
    """The errors of layers that read the same inputs are added, over all their rows: the objective of a group
    is that of the matrix of all of them."""
    (first, x), (second, _) = uneven(64, 128, 64), uneven(96, 128, 64)
    weights = (first, 3 * second * x.abs().mean(0) ** -1.5)
    scheme = SCHEMES["int3_group64"]
    whole = factor_of(name, Readers((torch.cat(weights),), (scheme,), x))
    assert torch.equal(factor_of(name, Readers(weights, (scheme, scheme), x)), whole)
    assert not torch.equal(factor_of(name, Readers(weights[:1], (scheme,), x)), whole)


def test_channels_of_one_row_have_one_factor() -> None:
    """The heads of a query group read one value head: its row can be divided by one number only."""
    w, x = uneven(64, 128, 64)
    rows = torch.arange(32).view(2, 1, 16).expand(2, 4, 16).reshape(-1)
    for name in ("awq", "awq_clip", "smoothquant", "smoothquant_search"):
        factor = factor_of(name, Readers((w,), (SCHEMES["int4_group64"],), x, rows=rows)).view(2, 4, 16)
        assert torch.equal(factor, factor[:, :1].expand_as(factor)) and len(factor.unique()) > 8
    assert torch.allclose(tied(torch.tensor([1.0, 4, 2]), torch.tensor([0, 0, 1])), torch.tensor([2.0, 2, 2]))


def test_the_objective_is_the_mean_over_all_tokens() -> None:
    """Also where there are more tokens than inputs, and the search looks at as many rows as inputs."""
    w, scheme = torch.randn(24, 32), SCHEMES["int4_group32"]
    for tokens in (16, 400):
        x = torch.randn(tokens, 32) * torch.linspace(0.1, 3, 32)
        found = awq(w, scheme, x).objective
        importance = x.abs().mean(0)
        for alpha, error in zip(ALPHAS, found, strict=True):
            scale = channel_scale(importance, alpha)
            restored = quantize(w * scale, scheme).dequantize() / scale
            exact = (x.double() @ (restored - w).double().t()).square().mean()
            assert error == pytest.approx(float(exact), rel=1e-4), alpha
