"""Low-rank correction against a plain SVD in float64.

If these fail, the factors are not the best of their rank, or their bits or their term of the product are
wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from explorer import SCHEMES, quantize
from explorer.methods import apply, rtn
from explorer.methods.low_rank import LowRank, autocorrelation_roots, factor, lqer, qera

pytestmark = pytest.mark.usefixtures("one_thread")

Layer = Callable[..., tuple[Tensor, Tensor]]
HALF = 2.0**-11
"""Relative error of a value rounded to float16."""


def plain(w: Tensor, rounded: Tensor, x: Tensor, rank: int) -> np.ndarray:
    """The paper's A · B, as the [N, K] matrix it adds: S⁻¹ times the first ``rank`` terms of the SVD of S ·
    Eᵀ."""
    error, inputs = (w - rounded).double().numpy().T, x.double().numpy()
    mean = np.maximum(np.abs(inputs).mean(0), 1e-4)
    s = np.diag(mean / np.sqrt(mean.min() * mean.max()))
    u, sigma, vt = np.linalg.svd(s @ error)
    a = np.linalg.inv(s) @ u[:, :rank]
    b = np.diag(sigma[:rank]) @ vt[:rank]
    return (a @ b).T


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)], ids=str)
def test_it_is_the_papers_decomposition(shape: tuple[int, int]) -> None:
    """Both for more outputs and for more inputs; the bound is the rounding of both factors to float16."""
    r = np.random.default_rng(0)
    w = torch.from_numpy(r.standard_normal(shape)).float()
    x = torch.from_numpy(r.standard_normal((64, shape[1])) * np.exp(r.standard_normal(shape[1]))).float()
    layer = rtn(w, SCHEMES["int3_row"], x)
    for rank in (1, 5, 16, 24):
        residue = lqer(layer, w, x, rank=rank)
        want = plain(w, layer.q.dequantize(), x, rank)
        bound = 2.1 * HALF * (residue.up.double().abs() @ residue.down.double().abs()).numpy() + 1e-7
        correction = residue.merged(torch.zeros(shape, dtype=torch.float64)).numpy()
        assert (np.abs(correction - want) <= bound).all(), rank


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)], ids=str)
def test_qera_is_the_papers_theorem(shape: tuple[int, int]) -> None:
    """S = R^½ by scipy's matrix square root, and by Eckart and Young: the output's error is that of its best
    approximation of the rank, E · xᵀ's singular values from there on."""
    r = np.random.default_rng(0)
    w = torch.from_numpy(r.standard_normal(shape)).float()
    mix = r.standard_normal((shape[1], shape[1])) * np.exp(r.standard_normal(shape[1]))
    x = torch.from_numpy(r.standard_normal((64, shape[1])) @ mix).float()
    layer = rtn(w, SCHEMES["int3_row"], x)
    error, inputs = (w - layer.q.dequantize()).double().numpy(), x.double().numpy()
    root = scipy.linalg.sqrtm(inputs.T @ inputs / 64).real
    u, sigma, vt = np.linalg.svd(error @ root)
    for rank in (1, 5, 16):
        residue = qera(layer, w, x, rank=rank)
        want = u[:, :rank] * sigma[:rank] @ vt[:rank] @ np.linalg.inv(root)
        bound = 2.1 * HALF * (residue.up.double().abs() @ residue.down.double().abs()).numpy() + 1e-6
        correction = residue.merged(torch.zeros(shape, dtype=torch.float64)).numpy()
        assert (np.abs(correction - want) <= bound).all(), rank
        least = np.linalg.norm(np.linalg.svd(error @ inputs.T, compute_uv=False)[rank:])
        assert np.linalg.norm((error - correction) @ inputs.T) == pytest.approx(least, rel=0.01)


def test_roots_of_fewer_tokens_than_channels() -> None:
    """R is singular: its root is undone where there are inputs, and nothing is amplified elsewhere."""
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0)).double()
    root, inverse = autocorrelation_roots(x)
    torch.testing.assert_close(root @ root.t(), x.t() @ x / 5)
    torch.testing.assert_close(x @ root @ inverse, x @ root @ torch.linalg.pinv(root))
    torch.testing.assert_close(x @ inverse.t() @ root.t(), x)
    assert root.shape == (12, 5) and float(inverse.norm()) < 100


@pytest.mark.parametrize("before", ["rtn", "gptq", "rotation+gptq", "awq", "hqq", "llm_int8"])
def test_it_helps_after_every_kind_of_method(layer: Layer, before: str) -> None:
    """It takes the error that the other method left, in that method's basis and beside its residues; QERA,
    the optimum of its rank, leaves less than LQER."""
    w, x = layer("mlp_up")
    exact = x.double() @ w.double().t()
    alone, by_lqer, by_qera = (
        float((apply(name, w, SCHEMES["int4_group64_asym"], x).output(x) - exact).norm())
        for name in (before, f"{before}+lqer", f"{before}+qera")
    )
    assert by_qera < by_lqer < alone


def test_its_bits_are_counted(layer: Layer) -> None:
    """k · (N + K) float16 numbers beside the codes, to the bit."""
    w, x = layer("attention_query", 32)
    scheme = SCHEMES["int4_group128_asym"]
    (n, k), codes = w.shape, quantize(w, scheme).bits_per_element.total
    for name in ("lqer", "gptq+lqer", "rotation+gptq+lqer", "qera"):
        quantized = apply(name, w, scheme, x)
        (residue,) = quantized.residues
        assert isinstance(residue, LowRank)
        assert residue.bits == 16 * 16 * (n + k) == 8 * sum(t.nbytes for t in residue.tensors().values())
        signs = k if "rotation" in name else 0
        want = codes + (residue.bits + signs) / (n * k)
        assert quantized.bits_per_weight == pytest.approx(want, rel=1e-12)


def test_alone_it_rounds_to_nearest(layer: Layer) -> None:
    """``lqer`` without a rounding method before it is ``rtn+lqer``."""
    w, x = layer("attention_query", 16)
    one, other = (apply(name, w, SCHEMES["mxfp4"], x) for name in ("lqer", "rtn+lqer"))
    assert torch.equal(one.q.packed, quantize(w, SCHEMES["mxfp4"]).packed)
    assert torch.equal(one.weight(), other.weight())


def test_a_weight_that_needs_no_correction_gets_none() -> None:
    """No error, no inputs: the factors are zero, not NaN."""
    w, x = torch.zeros(8, 32), torch.zeros(4, 32)
    for name in ("lqer", "qera"):
        assert bool((apply(name, w, SCHEMES["int8_row"], x).weight() == 0).all())
    up, down = factor(torch.zeros(5, 3, dtype=torch.float64), 2)
    assert up.shape == (5, 2) and down.shape == (2, 3) and bool((up @ down == 0).all())


def test_bad_input_is_refused() -> None:
    """Else a rank of zero gives empty factors, a wrong shape a traceback, and a correction beyond float16
    infinities in every output."""
    w, x = torch.ones(4, 64), torch.ones(8, 64)
    layer = rtn(w, SCHEMES["int8_row"], x)
    for method in (lqer, qera):
        with pytest.raises(ValueError, match="1"):
            method(layer, w, x, rank=0)
    with pytest.raises(ValueError, match="activations"):
        lqer(layer, w, x[:, :8])
    w, x = torch.randn(24, 40) * 1e12, torch.randn(64, 40)
    with pytest.raises(ValueError, match="float16"):
        lqer(rtn(w, SCHEMES["int3_row"], x), w, x)
