"""Lattice and trellis quantizers against brute force, and the errors that their papers report."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from lab.vector_codes import (
    CODES,
    LLOYD_MAX,
    _viterbi,
    e8p_magnitudes,
    lloyd_max,
    nearest_e8p,
    one_mad,
    restored,
    three_inst,
    trellis,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def all_points() -> Tensor:
    """The 2^16 points of E8P: even sums of odd halves, moved by 1/4 in every place either way."""
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=8)))
    points = (e8p_magnitudes()[:, None] * signs).reshape(-1, 8)
    even = points[points.sum(1) % 2 == 0]
    return torch.cat([even + 0.25, even - 0.25])


def test_e8p_is_the_code_of_its_paper() -> None:
    """256 magnitudes, 227 of them of norm² up to 10; 2^16 different points, all in E8 moved by 1/4."""
    squares = e8p_magnitudes().square().sum(1)
    assert int((squares <= 10).sum()) == 227 and int((squares == 12).sum()) == 29
    points = all_points()
    assert points.shape == (1 << 16, 8) and len(points.unique(dim=0)) == 1 << 16
    lattice = points[: 1 << 15] - 0.25 + 0.5  # whole numbers of an even sum: D8
    assert torch.equal(lattice, lattice.round()) and bool((lattice.sum(1) % 2 == 0).all())


def test_the_nearest_point_is_that_of_all() -> None:
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)) * 1.3
    points = all_points()
    least = torch.cdist(x, points, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    found = nearest_e8p(x)
    assert torch.allclose((x - found).norm(dim=1), least, atol=1e-5)
    assert bool((torch.cdist(found, points).amin(1) < 1e-3).all())


def chains(bits_of_state: int, bits: int, steps: int) -> Tensor:
    """All paths of states [paths, steps] of a small trellis."""
    states, new = 1 << bits_of_state, 1 << bits
    paths = torch.arange(states)[:, None]
    for _ in range(steps - 1):
        following = (paths[:, -1:] << bits) % states + torch.arange(new)
        paths = torch.cat([paths.repeat_interleave(new, 0), following.reshape(-1, 1)], 1)
    return paths


@pytest.mark.parametrize(("bits_of_state", "bits", "steps"), [(4, 2, 5), (5, 2, 4), (4, 1, 7)])
def test_paths_are_those_of_least_error_of_all(bits_of_state: int, bits: int, steps: int) -> None:
    """Free, and bound at both ends."""
    g = torch.Generator().manual_seed(bits_of_state)
    x, code = torch.randn(20, steps, generator=g), torch.randn(1 << bits_of_state, generator=g)
    paths = chains(bits_of_state, bits, steps)
    errors = (x[:, None] - code[paths]).square().sum(2)
    found = _viterbi(x, code, bits)
    assert torch.allclose((x - code[found]).square().sum(1), errors.amin(1), atol=1e-5)
    assert bool((found[:, :, None] == paths.t()[None]).all(1).any(1).all()), "each is a path"
    tail = torch.randint(1 << (bits_of_state - bits), (20,), generator=g)
    shared = (paths[:, 0] >> bits == tail[:, None]) & (
        paths[:, -1] % (1 << (bits_of_state - bits)) == tail[:, None]
    )
    bound = _viterbi(x, code, bits, tail)
    least = errors.masked_fill(~shared, torch.inf).amin(1)
    assert torch.allclose((x - code[bound]).square().sum(1), least, atol=1e-5)
    assert torch.equal(bound[:, 0] >> bits, tail) and torch.equal(
        bound[:, -1] % (1 << (bits_of_state - bits)), tail
    )


def test_computed_codes_by_plain_integers() -> None:
    """1MAD and 3INST as QTIP's algorithms 1 and 2 have them, of a few states."""
    mad, inst = one_mad(16), three_inst(16)
    for state in (0, 1, 77, 4095, 65535):
        x = (state * 34038481 + 76625530) % 2**32
        assert float(mad[state]) == pytest.approx((sum(x.to_bytes(4, "little")) - 510) / 147.8005, abs=1e-5)
        x = (state * 89226354 + 64248484) % 2**32
        constant = int(np.float16(0.922).view(np.uint16))
        words = [(x >> shift & 0b1000111111111111) ^ constant for shift in (0, 16)]
        assert float(inst[state]) == sum(float(np.uint16(word).view(np.float16)) for word in words)
    assert abs(float(mad.mean())) < 0.01 and float(mad.std()) == pytest.approx(1, abs=0.01)
    assert torch.equal(one_mad(12), mad[:4096])


def test_errors_on_normal_values() -> None:
    """Lloyd-Max's .1175, and less by E8P; a trellis of 2^8 states errs less than that already, and no code
    beats the bound of 1/16."""
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(0))

    def error(found: Tensor) -> float:
        return float((x - found).square().mean() / x.square().mean())

    scalar, lattice = error(lloyd_max(x)), error(restored(x, CODES["e8p"], 1.02))
    path = error(trellis(x, one_mad(8)))
    assert scalar == pytest.approx(0.1175, abs=0.002) and lattice == pytest.approx(0.0905, abs=0.002)
    assert 1 / 16 < path < lattice < scalar
    normal = torch.distributions.Normal(0, 1)
    edges = torch.tensor([-torch.inf, *((LLOYD_MAX[1:] + LLOYD_MAX[:-1]) / 2), torch.inf])
    density = normal.log_prob(edges).exp().nan_to_num(0)
    centres = (density[:-1] - density[1:]) / normal.cdf(edges).diff()
    assert torch.allclose(centres, LLOYD_MAX, atol=1e-3), "each level is the mean of its values"
