"""AutoRound against the paper's equations with their gradients written out, in numpy and float64.

If these fail, weights are rounded by other offsets than those that signed gradient descent finds.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import FORMATS, SCHEMES, MappingType, Scheme
from explorer.methods.autoround import ITERATIONS, autoround
from explorer.methods.layer import same_gram
from explorer.methods.rtn import rtn

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEME = Scheme("t", "t", FORMATS["int3"], (1, 16), mapping=MappingType.ASYMMETRIC)


def layer(n: int = 8, k: int = 48, tokens: int = 30) -> tuple[Tensor, Tensor]:
    """A weight [n, k] and inputs [tokens, k] that share a few directions."""
    r = np.random.default_rng(0)
    x = r.standard_normal((tokens, 6)) @ r.standard_normal((6, k)) + 0.3 * r.standard_normal((tokens, k))
    return torch.from_numpy(r.standard_normal((n, k))).float(), torch.from_numpy(x).float()


def plain(weight: Tensor, inputs: Tensor) -> list[float]:
    """The loss before each step, for groups of 16 with 3 bits and zero points (codes -4 … 3)."""
    w, x = weight.double().numpy().reshape(len(weight), -1, 16), inputs.double().numpy()
    low0, high0 = np.minimum(w.min(2, keepdims=True), 0), np.maximum(w.max(2, keepdims=True), 0)
    v, alpha, beta, losses = np.zeros_like(w), np.ones_like(low0), np.ones_like(low0), []
    for t in range(ITERATIONS):
        low, high = low0 * beta, high0 * alpha
        s = (high - low) / 7
        z = np.clip(np.rint(-4 - low / s), -4, 3)
        codes = np.rint(w / s + z + v)
        inside = (codes >= -4) & (codes <= 3)
        codes = np.clip(codes, -4, 3)
        error = ((codes - z) * s - w).reshape(len(w), -1) @ x.T
        losses.append((error**2).mean())
        g = (error @ x).reshape(w.shape)  # dL/dW up to a positive factor
        dz_ds = low / s**2
        by_s = (codes - z) + s * (inside * (-w / s**2 + dz_ds) - dz_ds)
        by_z = s * (inside - 1.0)
        d_low = (g * (by_s / -7 + by_z * -1 / s)).sum(2, keepdims=True)
        d_high = (g * by_s / 7).sum(2, keepdims=True)
        rate = (1 - t / ITERATIONS) / ITERATIONS
        v = np.clip(v - rate * np.sign(g * s * inside), -0.5, 0.5)
        alpha = np.clip(alpha - rate * np.sign(d_high * high0), 0, 1)
        beta = np.clip(beta - rate * np.sign(d_low * low0), 0, 1)
    return losses


def test_it_is_signed_gradient_descent() -> None:
    """Step by step at first; later a sign near 0 may differ in float32, and the curves differ a little."""
    w, x = layer()
    got, want = autoround(w, SCHEME, x).objective, plain(w, x)
    assert len(got) == ITERATIONS + 1
    np.testing.assert_allclose(got[:10], want[:10], rtol=1e-3)
    assert min(got) == pytest.approx(min(want), rel=0.1) and min(got) < 0.5 * got[0]


@pytest.mark.parametrize("name", ["int4_group32_asym", "int2_group64_full"])
def test_the_layer_is_that_of_the_least_loss(name: str) -> None:
    """Codes, scales and zero points alone give the best loss of the curve; ragged groups included."""
    w, x = layer(8, 72, 100)
    quantized = autoround(w, SCHEMES[name], x)
    exact = x.double() @ w.double().t()
    layers = (rtn(w, SCHEMES[name], x), quantized)
    before, after = (float((m.output(x) - exact).square().mean()) for m in layers)
    assert after == pytest.approx(min(quantized.objective), rel=1e-3)
    assert before == pytest.approx(quantized.objective[0], rel=1e-3)
    assert quantized.residues == () and quantized.transforms == ()


def test_more_tokens_than_channels_are_seen_through_a_square() -> None:
    """R of the QR decomposition has the inputs' Gram matrix, whatever the number of tokens."""
    for tokens in (10, 400):
        x = layer(2, 48, tokens)[1]
        small = same_gram(x)
        assert len(small) == min(tokens, 48)
        torch.testing.assert_close(small.t() @ small, x.t() @ x, rtol=1e-4, atol=1e-3)


def test_what_it_cannot_learn_is_refused() -> None:
    """Blocks over several rows, formats whose steps differ, and floating-point offsets in place of zero
    points."""
    w, x = layer()
    for name in ("nvfp4", "int8_tensor", "nf4_block64", "q4_1"):
        with pytest.raises(ValueError, match="groups"):
            autoround(w, SCHEMES[name], x)
