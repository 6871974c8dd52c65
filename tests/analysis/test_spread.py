"""Values, errors and maps as they are drawn: nothing lost or counted twice, and a cell's largest error found.

If these fail, a figure shows another tensor than the one that was quantized.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import SCHEMES
from explorer.analysis.histograms import histogram
from explorer.analysis.spread import Spread, error_spread, frame_of, on_same_bins, spread
from explorer.analysis.tensor import MAP_LIMIT, analyse
from explorer.analysis.tiles import largest_differences, tile_size
from tests.cells import largest_in_cell


def cauchy(rows: int, columns: int) -> Tensor:
    """Heavy tails: extremes a million times the quartiles."""
    draw = torch.Generator().manual_seed(3)
    return torch.randn(rows, columns, generator=draw) / torch.randn(
        rows, columns, generator=draw
    ).abs().clamp(1e-7)


SPIKES = torch.zeros(64, 64)
SPIKES[5, 7], SPIKES[40, 2] = 1e6, -3.0
TENSORS = {
    "heavy tails": cauchy(2048, 2048),
    "normal": torch.randn(300, 200, generator=torch.Generator().manual_seed(0)),
    "two spikes in zeros": SPIKES, "constant": torch.full((17, 9), 3.25), "all zero": torch.zeros(8, 64),
    "one element": torch.full((1, 1), -0.7), "one side": cauchy(64, 512).abs() + 1,
    "smallest numbers": torch.tensor([[1e-45, 3e-45, 0.0, -1e-45]]),
    "whole range": torch.tensor([[1.6e38, -1.6e38, 1.0, 0.0]]),
}  # fmt: skip


def shares(s: Spread) -> float:
    return float(sum(s.share(part).sum() for part in (s.middle, s.below, s.above)))


@pytest.mark.parametrize("x", TENSORS.values(), ids=TENSORS.keys())
def test_every_value_is_counted_once(x: Tensor) -> None:
    """Bins and tails add up to the whole tensor, before and after, and tails hold what numpy counts there."""
    analysis = analyse(x, SCHEMES["int4_group128"])
    for counted in (analysis.before, analysis.after, analysis.errors):
        assert counted.total == x.numel() and shares(counted) == pytest.approx(1, abs=1e-12)
        assert min(part.counts.min(initial=0) for part in vars(counted).values()) >= 0
    frame, values = frame_of(x), x.double().numpy().ravel()
    assert analysis.before.below.counts.sum() == (values < frame.low).sum()
    assert analysis.before.above.counts.sum() == (values > frame.high).sum()
    for tail in (analysis.before.below, analysis.before.above):
        assert len(tail.edges) == len(tail.counts) + 1 and (np.diff(tail.edges) > 0).all()
        if len(tail.counts):
            assert tail.counts.tolist() == np.histogram(values, tail.edges)[0].tolist()[
                : len(tail.counts)
            ] or (abs(tail.counts - np.histogram(values, tail.edges)[0]).sum() <= 1)


def test_the_central_range_is_that_of_the_usual_values() -> None:
    """A few outliers do not squeeze all other values into one bin; without outliers nothing is cut off."""
    heavy = spread(TENSORS["heavy tails"], frame_of(TENSORS["heavy tails"]))
    assert 0.9985 < heavy.share(heavy.middle).sum() < 0.9995
    assert heavy.middle.counts.max() < 0.9 * heavy.total and heavy.above.edges[-1] > 1e4
    frame = frame_of(TENSORS["normal"])
    assert frame.whole and (frame.low, frame.high) == (frame.least, frame.largest)


def test_the_sample_sees_every_column() -> None:
    """If it took every 128th element of rows of 4096, it would see 32 columns; here those are all zero."""
    x = torch.randn(2048, 4096, generator=torch.Generator().manual_seed(1))
    x[:, ::64] = 0.0
    assert not frame_of(x).high <= 0.5


def test_one_value_has_bins_around_it() -> None:
    """If this fails, the axis of an all-zero tensor runs to 250 beside a single bar at its edge."""
    for value in (0.0, 1.0, -2e-40, 3e38):
        h = histogram(torch.full((4, 4), value), value, value, 256)
        assert h.edges[0] < value < h.edges[-1] and h.counts.sum() == 16
        assert h.edges[-1] - h.edges[0] <= max(1.0, abs(value) * 1.01)
        assert h.counts[127:129].sum() == 16


def test_two_sides_are_counted_on_the_same_bins() -> None:
    """Equal edges, nothing lost, and the wider one's counts as they were."""
    for names in (("int4_group128", "int8_row"), ("binary_row", "fp16"), ("fp32", "nvfp4")):
        spreads = [analyse(TENSORS["normal"], SCHEMES[name]).errors for name in names]
        merged = on_same_bins(spreads)
        assert (merged[0].edges == merged[1].edges).all()
        for before, after in zip(spreads, merged, strict=True):
            assert after.counts.sum() == before.middle.counts.sum()
        wide = np.trim_zeros(max(spreads, key=lambda s: s.middle.edges[-1]).middle.counts).tolist()
        assert any(np.trim_zeros(m.counts).tolist() == wide for m in merged)


def test_merged_bins_are_those_of_a_direct_count() -> None:
    """Three bins in one, with zero in the middle: as if counted on the wide bins from the start."""
    x = torch.randint(-300, 301, (50, 50), generator=torch.Generator().manual_seed(2)).float()
    narrow = error_spread(x, torch.zeros_like(x), 150.0, 300.0)
    x[0, 0] = 3000.0
    wide = error_spread(x, torch.zeros_like(x), 2000.0, 3000.0)
    merged, same = on_same_bins([narrow, wide])
    difference = merged.counts - same.counts
    assert abs(difference).sum() == 2, "only the changed element may lie elsewhere"


@pytest.mark.parametrize(
    ("shape", "name"),
    [((1, 1), "bf16"), ((3, 500), "int4_group128"), ((700, 5), "bf16"), ((161, 479), "binary_row")],
)
def test_a_cell_knows_its_largest_error(shape: tuple[int, int], name: str) -> None:
    """A click anywhere in a cell opens the element whose error the cell shows."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    analysis = analyse(x, SCHEMES[name])
    errors = (analysis.q.dequantize() - x).abs()
    tall, wide = tile_size(shape, MAP_LIMIT)
    for down in range(analysis.error_map.shape[0]):
        for right in range(analysis.error_map.shape[1]):
            cell = errors[down * tall : (down + 1) * tall, right * wide : (right + 1) * wide]
            row, column = largest_in_cell(analysis, down * tall, right * wide)
            assert errors[row, column] == cell.max() == analysis.error_map[down, right]
            first = divmod(int(cell.reshape(-1).argmax()), cell.shape[1])
            assert (row - down * tall, column - right * wide) == first, "of equal errors the first"
    largest = analysis.report.max_error_at
    assert errors[largest_in_cell(analysis, *largest)] == analysis.report.max_error


def test_ties_and_nan_in_a_cell() -> None:
    """The first of equal differences, in rows from the left; a NaN before any number."""
    x, y = torch.zeros(4, 6), torch.zeros(4, 6)
    x[1, 2] = x[1, 4] = x[3, 0] = 5.0
    values, at = largest_differences(x, y, 1)
    assert values.tolist() == [[5.0]] and at.tolist() == [[1 * 6 + 2]]
    x[2, 1] = math.nan
    values, at = largest_differences(x, y, 1)
    assert values.isnan().all() and at.tolist() == [[2 * 6 + 1]]
