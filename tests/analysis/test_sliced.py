"""A tensor analysed slice by slice.

If these fail, a tensor too large for a GPU gets another result than one that fits.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from explorer import SCHEMES, Scheme
from explorer.analysis.sliced import analyse_in_slices, rows_that_fit
from explorer.analysis.tensor import analyse


@pytest.mark.parametrize("name", [*SCHEMES, "int4~flat64~asymmetric~float16~minmax"])
def test_slices_add_up_to_the_whole(name: str, device: torch.device) -> None:
    """Codes, scales, counts and maps equal; sums to the last digits of another order of adding."""
    scheme = Scheme.parse(name)
    x = torch.randn(700, 260, generator=torch.Generator().manual_seed(0))
    rows = rows_that_fit((700, 260), scheme, 300 * 260 * 14)
    assert rows % (scheme.block[0] or 1) == 0 and rows <= 300
    whole, sliced = analyse(x, scheme), analyse_in_slices(x, scheme, device, rows)
    assert torch.equal(sliced.q.packed, whole.q.packed)
    assert torch.equal(sliced.q.scales.stored, whole.q.scales.stored)
    assert torch.equal(sliced.error_map, whole.error_map) and torch.equal(sliced.largest_at, whole.largest_at)
    for a, b in ((sliced.before, whole.before), (sliced.after, whole.after), (sliced.errors, whole.errors)):
        assert all((getattr(a, part).counts == getattr(b, part).counts).all() for part in vars(a))
    assert (sliced.errors.middle.counts == whole.errors.middle.counts).all()
    assert (sliced.measured.before.counts == whole.measured.before.counts).all()
    for field in dataclasses.fields(whole.report):
        got, want = getattr(sliced.report, field.name), getattr(whole.report, field.name)
        assert got == (pytest.approx(want, rel=1e-12) if isinstance(want, float) else want), field.name


def test_a_slice_is_at_least_one_block() -> None:
    """However little memory is free, a slice is never cut inside a block."""
    assert rows_that_fit((1000, 1 << 20), SCHEMES["fp8_e4m3_128x128"], 1) == 128
