"""Sums of FP8 products: probes find what an accumulator keeps, and the page says what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lab.accumulation import (
    CUT,
    DATA,
    INSTRUCTION,
    KERNELS,
    LENGTHS,
    NORMAL,
    PLACES,
    POSITIVE,
    PROBE,
    PROBES,
    ROUNDED,
    Kernel,
    SumRow,
    error_at,
    in_words,
    operand_error,
    operands,
    probe,
    probes_table,
    recorded_sums,
    run_sums,
    sums_figure,
    sums_table,
    unrecorded_probes,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated accumulator is slow."""
    monkeypatch.setattr("lab.accumulation.SIDE", 8)


def emulated(bits: int, step: int, rounds: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """An accumulator that adds ``step`` products at a time, each brought to ``bits`` below the largest
    exponent among them and the sum."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        total = torch.zeros(len(x), len(w), dtype=torch.float64)
        for start in range(0, x.shape[1], step):
            xs, ws = (v[:, start : start + step].double() for v in (x, w))
            parts = torch.cat([total[..., None], xs[:, None, :] * ws[None, :, :]], 2)
            exponent = torch.frexp(parts.abs().amax(2, keepdim=True)).exponent - 1
            unit = 2.0 ** (exponent - bits).double()
            total = (rounds(parts / unit) * unit).sum(2)
        return total.float()

    return run


@pytest.mark.parametrize(
    ("bits", "data"),
    [(7, PROBE), (13, PROBE), (20, PROBE), *((13, data) for data in PROBES if data != PROBE)],
)
@pytest.mark.parametrize(("rounds", "rest"), [(torch.trunc, CUT), (torch.round, ROUNDED)])
@pytest.mark.parametrize("place", PLACES)
def test_a_probe_finds_what_an_accumulator_keeps(
    bits: int, data: str, rounds: Callable[[Tensor], Tensor], rest: str, place: int
) -> None:
    """If this fails, the bits on the page are not those of the hardware."""
    assert probe(emulated(bits, INSTRUCTION, rounds), place, CPU, PROBES[data]) == (bits, rest)


def test_a_negative_sum_tells_a_cut_downwards_from_one_towards_zero() -> None:
    """If this fails, the page says "cut off" of sums that are rounded down: positive ones look alike."""
    found = {
        name: probe(emulated(13, INSTRUCTION, torch.floor), 1, CPU, factors)
        for name, factors in PROBES.items()
    }
    assert found == {"probe": (13, CUT), "probe_24": (13, CUT), "probe_minus_24": (13, ROUNDED)}


def test_sums_in_float32_lose_nothing_that_a_probe_can_see() -> None:
    """If this fails, an exact sum looks like a short one."""
    assert probe(lambda x, w: x.float() @ w.float().t(), INSTRUCTION, CPU)[0] == 23


def test_cut_sums_are_too_small_and_worse_the_longer_they_are() -> None:
    """If this fails, the figure's errors do not come from the sums."""
    kernels = {
        "short": Kernel("short", emulated(10, INSTRUCTION, torch.trunc)),
        "exact": Kernel("exact", lambda x, w: (x.double() @ w.double().t()).float()),
    }
    rows = list(run_sums(kernels, (128, 1024), CPU))
    probes = [row for row in rows if row.data in PROBES]
    assert [(row.kernel, row.data, row.k) for row in probes] == [
        (name, data, k) for name in kernels for data in PROBES for k in PLACES
    ]
    assert [row.bits for row in probes] == [10] * 9 + [23] * 9
    assert (
        probes_table([replace(row, kernel="mma") for row in probes[:9]]).count("10 bits, the rest cut off")
        == 9
    )
    short = [error_at(rows, "short", POSITIVE, k) for k in (128, 1024)]
    exact = [error_at(rows, "exact", data, 1024) for data in DATA]
    assert all(row is not None and row.bias < 0 for row in short)
    assert short[0] and short[1] and short[1].error > 2 * short[0].error
    assert all(row is not None and row.error < 2.0**-22 and row.bias < 2.0**-22 for row in exact)


def test_operands_are_what_their_names_say() -> None:
    """If this fails, data of one sign are not, or two runs differ."""
    for data, positive in ((POSITIVE, True), (NORMAL, False)):
        x, w = operands(data, 128, CPU)
        again, _ = operands(data, 128, CPU)
        assert torch.equal(x.float(), again.float()) and not torch.equal(x.float(), w.float())
        assert bool((x.float() >= 0).all()) is positive


def test_the_page_has_every_kernel_of_the_recording() -> None:
    """If this fails, a kernel was added and not recorded, or a recorded one is not shown."""
    rows = recorded_sums().rows
    assert {(row.kernel, row.k) for row in rows if row.data == PROBE} == {
        (name, place) for name in KERNELS for place in PLACES
    }
    assert {(row.kernel, row.data, row.k) for row in rows if row.data not in PROBES} == {
        (name, data, k) for name in KERNELS for data in DATA for k in LENGTHS
    }
    for kernel in KERNELS.values():
        assert probes_table(rows).count(f"| {kernel.label} | 16 · 16 |") == 1
        assert sums_table(rows).count(kernel.label) == len(DATA)
    assert [trace.name for trace in sums_figure(rows).data] == [kernel.label for kernel in KERNELS.values()]


def test_the_words_state_the_recorded_loss() -> None:
    """If this fails, the sentence under the figure is not of its rows, or an error of operands is wrong."""
    rows = [SumRow(name, POSITIVE, 4096, bias=-0.07, error=0.07) for name in KERNELS]
    assert "7 % too small" in in_words(rows) and "not recorded" in in_words(rows[:1]).lower()
    # Each operand's error is about 2.6 % of it, and the two are independent.
    assert 0.035 < operand_error(NORMAL, 1024) < 0.04


def test_without_a_recording_the_page_says_so() -> None:
    """If this fails, a page with a missing recording cannot be written."""
    assert "not recorded yet" in probes_table([]) and "not recorded yet" in sums_table([])
    assert unrecorded_probes([SumRow("wgmma", PROBE, 1)]).startswith(" Probes with 24 · 24 and −24 · 24: not")
    assert unrecorded_probes([SumRow("wgmma", data, 1) for data in PROBES]) == ""
    assert SumRow("wgmma", PROBE, 1).bits == 0 and not sums_figure([]).data[0].x


def test_the_figure_has_a_title_and_ticks_at_its_ends() -> None:
    """If this fails, a reader cannot tell where the lines begin and end, or what they show."""
    rows = recorded_sums().rows
    fig = sums_figure(rows)
    assert fig.layout.title.text and fig.layout.xaxis.tickvals[0] == LENGTHS[0]
    assert fig.layout.xaxis.tickvals[-1] == LENGTHS[-1]
    errors = [row.error for row in rows if row.data == POSITIVE]
    ticks = fig.layout.yaxis.tickvals
    assert ticks[0] <= min(errors) and ticks[-1] >= max(errors)
