"""Bias correction, alone and after every other method: exact on its calibration inputs, and worth something
on others.

If these fail, a constant is added to a layer's outputs that is not their error, or one is stored that a bias
could have taken in.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from explorer import SCHEMES, Scheme
from explorer.methods import METHODS, apply
from explorer.methods.bias_correction import BiasCorrection, bias_correction, into_bias, mean_error
from explorer.methods.layer import QuantizedLayer
from explorer.methods.method import BiasMethod
from explorer.models.capture import Captured
from explorer.models.quantize import MethodLinear, quantize_by_method

pytestmark = pytest.mark.usefixtures("one_thread")
N, K = 24, 128
SCHEME = SCHEMES["int4_group64_asym"]
CARRIERS = [name for name, row in METHODS.items() if not isinstance(row, BiasMethod)]
"""Every method that can be followed by bias correction: all but itself."""
FLOAT16_INPUTS = ("llm_int8", "llm_int8_dynamic")
"""Methods that round some inputs to float16, so that no matrix gives their outputs exactly."""


@pytest.fixture(scope="module")
def shifted() -> tuple[Tensor, Tensor, Tensor]:
    """A weight, inputs of which each channel has a mean of its own, and others of the same means."""
    draw = torch.Generator().manual_seed(0)
    w, means = torch.randn(N, K, generator=draw), 1.5 * torch.randn(K, generator=draw)
    calibration, held_out = (torch.randn(64, K, generator=draw) + means for _ in range(2))
    return w, calibration, held_out


def error(layer: QuantizedLayer, w: Tensor, x: Tensor) -> Tensor:
    """float64 [tokens, N] of the layer's outputs."""
    return layer.output(x) - x.double() @ w.double().t()


@pytest.mark.parametrize("name", CARRIERS)
def test_every_method_carries_it(shifted: tuple[Tensor, Tensor, Tensor], name: str) -> None:
    """The codes stay, the mean error on the calibration inputs is gone, that on others falls, and one number
    an output channel is counted."""
    w, calibration, held_out = shifted
    plain = apply(name, w, SCHEME, calibration)
    corrected = apply(
        "bias_correction" if name == "rtn" else f"{name}+bias_correction", w, SCHEME, calibration
    )
    assert torch.equal(corrected.weight(), plain.weight())
    assert torch.equal(corrected.q.packed, plain.q.packed)
    assert corrected.bits_per_weight == pytest.approx(plain.bits_per_weight + 32 / K, rel=1e-12)
    before, after = (error(layer, w, calibration).mean(0).abs().max() for layer in (plain, corrected))
    assert before > 1e-2 and after < (5e-3 * before if name in FLOAT16_INPUTS else 1e-5)
    gain = error(corrected, w, held_out).norm() / error(plain, w, held_out).norm()
    assert gain < (0.6 if name == "rtn" else 1)  # GPTQ has seen the mean in its Hessian


def test_the_mean_error_is_exact(shifted: tuple[Tensor, Tensor, Tensor]) -> None:
    """In float64 nothing is left but its rounding; stored in float32, that of the number stored."""
    w, x, _ = shifted
    layer = apply("rtn", w, SCHEME, x)
    restored = layer.q.dequantize()
    found = mean_error(restored, w, x.double().mean(0))
    outputs = error(layer, w, x)
    bound = 2.0**-52 * K * (len(x) + 1) * x.double().abs().mean(0) @ (w.abs() + restored.abs()).double().t()
    assert bool(((outputs - found).mean(0).abs() <= bound).all())
    stored = bias_correction(layer, w, x).values
    assert stored.dtype is torch.float32
    assert bool(((stored.double() + found).abs() <= 2.0**-24 * found.abs()).all())


def test_inputs_with_a_mean_of_zero_change_nothing() -> None:
    """Every input is there with both signs: the mean is exactly 0, and so is the correction."""
    draw = torch.Generator().manual_seed(1)
    w, half = torch.randn(N, K, generator=draw), torch.randn(40, K, generator=draw)
    for name in ("bias_correction", "gptq+bias_correction", "hqq+bias_correction"):
        layer = apply(name, w, SCHEME, torch.cat([half, -half]))
        (correction,) = (one for one in layer.residues if isinstance(one, BiasCorrection))
        assert not bool(correction.values.any())


def test_it_takes_the_error_that_corrections_before_it_left(shifted: tuple[Tensor, Tensor, Tensor]) -> None:
    """After LQER it is another constant than after GPTQ alone, and the mean error is 0 again."""
    w, x, _ = shifted
    layer = apply("gptq+lqer+bias_correction", w, SCHEME, x)
    alone = apply("gptq+bias_correction", w, SCHEME, x)
    assert float(error(layer, w, x).mean(0).abs().max()) < 1e-5
    assert not torch.allclose(layer.residues[-1].product(x, x), alone.residues[-1].product(x, x), atol=1e-3)


def test_a_bias_takes_it_in(shifted: tuple[Tensor, Tensor, Tensor]) -> None:
    """The layer is plain then, and the bias is the sum, rounded once to its own dtype; a layer without a bias
    keeps the correction."""
    w, x, _ = shifted
    layer = apply("gptq+bias_correction", w, SCHEME, x)
    (correction,) = layer.residues
    for dtype in (torch.float32, torch.bfloat16):
        bias = torch.linspace(-3, 3, N).to(dtype)
        plain, taken = into_bias(layer, bias)
        assert plain.plain and taken is not None and taken.dtype is dtype
        assert torch.equal(taken, (bias.double() + correction.product(x[:1], x[:1].double())[0]).to(dtype))
        assert into_bias(plain, bias) == (plain, bias)
    assert into_bias(layer, None) == (layer, None)


def test_a_model_stores_it_where_there_is_no_bias(shifted: tuple[Tensor, Tensor, Tensor]) -> None:
    """Of two layers the one with a bias costs nothing more; outputs have the original's mean in both."""
    w, x, _ = shifted
    bits: dict[tuple[str, bool], float] = {}
    for has_bias in (True, False):
        for method in ("gptq", "gptq+bias_correction"):
            network = nn.Sequential(nn.Linear(K, N, bias=has_bias))
            network[0].weight.data = w.clone()
            network.requires_grad_(False)
            expected = network(x).double().mean(0)
            bits[method, has_bias] = quantize_by_method(network, [Captured("0", w, x)], method, SCHEME)
            assert isinstance(network[0], MethodLinear)
            difference = float((network(x).double().mean(0) - expected).abs().max())
            assert (difference < 1e-4) is method.endswith("bias_correction")
    assert bits["gptq+bias_correction", True] == bits["gptq", True]
    assert bits["gptq+bias_correction", False] == pytest.approx(bits["gptq", False] + 32 / K)


def test_a_mean_error_beyond_float32_is_refused() -> None:
    """If this fails, a layer's outputs are all Inf."""
    draw = torch.Generator().manual_seed(0)
    w, x = 1e30 * torch.randn(4, 64, generator=draw), 1e10 * torch.rand(8, 64, generator=draw)
    with pytest.raises(ValueError, match="float32"):
        apply("bias_correction", w, Scheme.parse("int4~1x64~symmetric~float32~minmax"), x)
