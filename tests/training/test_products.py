"""NVFP4 training: the three products by hand, what the rules promise, and that a network learns by them.

If these fail, docs/training.md recommends another training than NVIDIA's.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from explorer import quantize
from explorer.core.hadamard import find_rotation
from explorer.training.digits import accuracy, fit, network
from explorer.training.products import BF16, NVFP4, TrainedLinear, TrainingPrecision, prepare_training
from lab.training_precision import (
    VARIANTS,
    PrecisionRun,
    interval,
    losses_over_bf16,
    precisions_table,
)

pytestmark = pytest.mark.usefixtures("one_thread")
K, N, TOKENS = 48, 32, 40


def layer(precision: TrainingPrecision, seed: int = 0) -> TrainedLinear:
    torch.manual_seed(0)
    return TrainedLinear(nn.Linear(K, N), precision, seed)


def operands() -> tuple[Tensor, Tensor]:
    """X [tokens, K] and dL/dY [tokens, N]; some tokens have large gradients."""
    g = torch.Generator().manual_seed(1)
    x, dy = torch.randn(TOKENS, K, generator=g), torch.randn(TOKENS, N, generator=g)
    dy[::9] *= 30
    return x, dy


def gradients(linear: TrainedLinear) -> tuple[Tensor, Tensor, Tensor]:
    """Y, dL/dX, dL/dW."""
    x, dy = operands()
    x.requires_grad_()
    linear.weight.grad = None
    y = linear(x)
    y.backward(dy)
    assert x.grad is not None and linear.weight.grad is not None
    return y.detach(), x.grad, linear.weight.grad


def test_the_three_products_by_hand() -> None:
    """Quantized along what they sum over: K, N, and tokens, which are padded to whole blocks of 16."""
    linear = layer(dataclasses.replace(NVFP4, stochastic=False))
    (x, dy), w, bias = operands(), linear.weight.detach(), linear.bias.detach()
    y, dx, dw = gradients(linear)

    def by(matrix: Tensor, part: str) -> Tensor:
        return quantize(matrix.contiguous(), getattr(NVFP4, part)).dequantize()

    assert torch.equal(y, by(x, "inputs") @ by(w, "weights").t() + bias)
    assert torch.equal(dx, by(dy, "gradients") @ by(w, "weights"))
    sixteen = find_rotation(16)
    whole = torch.zeros(16, 16)
    for i, unit in enumerate(torch.eye(16)):
        whole[i] = sixteen.inputs(unit[None])[0]
    mix = torch.block_diag(whole, whole, whole)
    assert torch.allclose(mix @ mix.t(), torch.eye(48), atol=1e-6) and len(whole.unique()) == 2
    left, right = (nn.functional.pad(part.t(), (0, 8)).unflatten(1, (3, 16)) @ whole for part in (dy, x))
    expected = by(left.flatten(1), "gradients") @ by(right.flatten(1), "inputs").t()
    assert torch.allclose(dw, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "passes"), [("nvfp4", 60), pytest.param("clipped", 200, marks=pytest.mark.thorough)]
)
def test_gradients_are_unbiased(name: str, passes: int) -> None:
    """The mean of many passes is the product of the quantized inputs and weights with the exact gradients;
    without headroom it is not."""
    x, dy = operands()
    linear = layer(dataclasses.replace(VARIANTS[name].precision, hadamard=1))
    w = quantize(linear.weight.detach(), NVFP4.weights).dequantize()
    q = quantize(x.t().contiguous(), NVFP4.inputs).dequantize().t()
    found = [gradients(linear)[1:] for _ in range(passes)]
    for i, true in enumerate((dy @ w, dy.t() @ q)):
        each = torch.stack([one[i] for one in found])
        # Squares of a standard normal number have the mean 1; these are of thousands of them.
        error = float(((each.mean(0) - true).square() / each.var(0)).mean() * passes)
        assert 0.8 < error < 1.2 if name == "nvfp4" else error > 2


def test_each_pass_and_each_layer_rounds_by_its_own_seed() -> None:
    first, other = layer(NVFP4), layer(NVFP4, seed=1)
    one, two = gradients(first), gradients(first)
    assert torch.equal(one[0], two[0]) and not torch.equal(one[1], two[1])
    assert not torch.equal(one[1], gradients(other)[1])
    again = gradients(layer(NVFP4))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))


def test_bf16_and_kept_layers() -> None:
    """A layer that is kept is exact; BF16's products are those of operands rounded to BF16."""
    x, dy = operands()
    y, dx, dw = gradients(linear := layer(BF16))
    w = linear.weight.detach()
    low = [part.bfloat16().float() for part in (x, w, dy)]
    assert torch.equal(y, low[0] @ low[1].t() + linear.bias.detach())
    assert torch.equal(dx, low[2] @ low[1]) and torch.equal(dw, low[2].t().contiguous() @ low[0])
    model = network(0, (32, 32))
    assert prepare_training(model, keep=["4"]) == ["0", "2"]
    assert isinstance(model[0], TrainedLinear) and type(model[4]) is nn.Linear
    assert model[0].weight is dict(model.named_parameters())["0.weight"]
    assert (model[0].seed, model[2].seed) == (0, 1)  # type: ignore[union-attr]


def test_a_network_learns_by_it() -> None:
    model = network(0, (32, 32))
    prepare_training(model, keep=["4"])
    assert accuracy(model) < 0.3
    *_, last = fit(model, 3, 0, 1e-2)
    assert last > 0.8


def test_more_axes_and_no_tokens() -> None:
    """An expert of a mixture may have no tokens; inputs of the first layer need no gradient."""
    linear, x = layer(NVFP4), torch.randn(2, 5, K)
    linear(x).sum().backward()
    assert linear(x).shape == (2, 5, N) and linear.weight.grad is not None and x.grad is None
    linear, x = layer(NVFP4), torch.zeros(0, K, requires_grad=True)
    linear(x).sum().backward()
    assert linear(x).shape == (0, N) and bool((linear.weight.grad == 0).all())


def test_intervals_and_pairs() -> None:
    """Student's t of two values: 12.706 standard errors; losses are compared within a seed."""
    middle, half = interval([1.0, 3.0])
    assert middle == 2 and half == pytest.approx(12.7062, rel=1e-4)
    runs = (("bf16", 0, 1.0), ("bf16", 1, 5.0), ("nvfp4", 1, 5.5), ("nvfp4", 0, 1.25))
    rows = [PrecisionRun(variant, seed, loss, 0.9) for variant, seed, loss in runs]
    assert losses_over_bf16(rows, "nvfp4") == [0.5, 0.25]
    assert "+0.3750 ± 1.5883" in precisions_table(rows)
