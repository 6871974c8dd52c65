"""The part of the errors that the map is zoomed to. If these fail, the histogram shows another part."""

from __future__ import annotations

import pytest
import torch

from explorer import SCHEMES
from explorer.analysis.error_map import clipped_part, part_errors
from explorer.analysis.tensor import analyse


def test_a_zoom_has_whole_rows_of_the_matrix() -> None:
    """Axes run downwards, beyond the matrix, and between two rows: at least one is shown, none beyond."""
    for ends, part in (
        ((-0.5, 9.5), (0, 10)), ((9.5, -0.5), (0, 10)), ((2.2, 4.9), (3, 5)), ((2.0, 4.0), (2, 5)),
        ((2.2, 2.4), (3, 4)), ((-30.0, -20.0), (0, 1)), ((40.0, 50.0), (9, 10)),
    ):  # fmt: skip
        assert clipped_part(ends, 10) == part


@pytest.mark.parametrize("name", ["int4_group32", "nvfp4", "fp32"])
def test_a_part_has_its_own_errors(name: str) -> None:
    """All of its elements are counted, and its largest error is that of no other part."""
    x = torch.randn(40, 96, generator=torch.Generator().manual_seed(0))
    analysis = analyse(x, SCHEMES[name])
    spread, largest = part_errors(x, analysis, (3, 17), (5, 64))
    errors = (analysis.q.dequantize() - x)[3:17, 5:64].abs()
    assert largest == float(errors.max())
    assert (
        sum(int(part.counts.sum()) for part in (spread.middle, spread.below, spread.above)) == errors.numel()
    )
