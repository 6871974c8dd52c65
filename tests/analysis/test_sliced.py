"""A tensor analysed slice by slice.

If these fail, a tensor too large for a GPU gets another result than one that fits.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from explorer import SCHEMES, Scheme, quantize
from explorer.analysis import report, sliced, tensor
from explorer.analysis.sliced import analyse_in_slices, rows_that_fit
from explorer.analysis.spread import own_values
from explorer.analysis.tensor import analyse
from tests.covering import EACH_SCHEME


@pytest.mark.parametrize("name", [*EACH_SCHEME, "int4~flat64~asymmetric~float16~minmax"])
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


@pytest.mark.parametrize("name", ["int8_row", "int4_group32", "q4_0"])
def test_a_refusal_names_the_row_of_the_tensor(name: str) -> None:
    """If this fails, whoever looks for the value finds an innocent row: the one of a slice. The second device
    is another name of the same, in place of a GPU."""
    scheme = SCHEMES[name]
    for value in (float("nan"), 3e38):
        x = torch.ones(16, 64)
        x[10, 5] = value
        with pytest.raises(ValueError) as whole:
            quantize(x, scheme)
        with pytest.raises(ValueError) as in_slices:
            analyse_in_slices(x, scheme, torch.device("cpu:0"), 4)
        assert str(in_slices.value) == str(whole.value) and "row 10" in str(whole.value)


def test_a_slice_is_at_least_one_block() -> None:
    """However little memory is free, a slice is never cut inside a block."""
    assert rows_that_fit((1000, 1 << 20), SCHEMES["fp8_e4m3_128x128"], 1) == 128


@pytest.mark.parametrize("name", ["int4_group128_asym", "nvfp4", "int8_tensor"])
@pytest.mark.parametrize("outlier", [False, True])
def test_what_is_of_the_matrix_alone_is_counted_once(
    name: str, outlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Range, frame, histogram and spread are the same for all schemes, and the same numbers come out. If this
    fails, every change of a scheme on the page counts the tensor anew."""
    x = torch.randn(700, 256, generator=torch.Generator().manual_seed(0))
    x[3, 5] = 1e4 if outlier else x[3, 5]
    scheme, cpu = SCHEMES[name], torch.device("cpu")
    want = analyse(x, scheme)
    own = own_values(x)

    def counted(*_: object) -> None:
        raise AssertionError("counted again")

    for module in (tensor, sliced, report):
        for function in ("finite_range", "frame_of", "own_histogram"):
            monkeypatch.setattr(module, function, counted, raising=False)
    for got in (analyse(x, scheme, lambda: own), analyse_in_slices(x, scheme, cpu, 128, lambda: own)):
        for a, b in ((got.before, want.before), (got.after, want.after), (got.errors, want.errors)):
            assert all((getattr(a, part).counts == getattr(b, part).counts).all() for part in vars(a))
            assert all((getattr(a, part).edges == getattr(b, part).edges).all() for part in vars(a))
        assert (got.measured.before.counts == want.measured.before.counts).all()
        assert got.report.kl == want.report.kl
        assert got.report.sqnr_db == pytest.approx(want.report.sqnr_db, rel=1e-12)
