"""What the measurement of the page makes of its numbers, without a browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.first_numbers import KEY, FirstNumbers, random_file, row_of
from lab.page import Answer, PageTiming, _printed, summary

ANSWERS = [
    Answer(whole=300, first=90, shift=0.0, task=60, received=5000),
    Answer(whole=100, first=50, shift=0.02, task=0, received=7000),
    Answer(whole=200, first=70, shift=0.01, task=110, received=6000),
]


def test_a_row_has_medians_and_the_worst() -> None:
    """Times and bytes by their median, shifts and tasks by their worst: one jump is one too many."""
    row = summary("swap A and B", "mlp_up", ANSWERS)
    assert row == PageTiming("swap A and B", "mlp_up", 3, 0.2, 0.1, 0.3, 0.07, 6000, 0.02, 0.11)
    with pytest.raises(ValueError, match="'swap'"):
        summary("swap", "mlp_up", [])


def test_first_numbers_have_medians_and_extremes(tmp_path: Path) -> None:
    """Pairs of the first and of all numbers; the file holds what its shape says, from one seed."""
    row = row_of(KEY, (4, 4), [(0.5, 9.0), (0.3, 5.0), (0.4, 7.0)])
    assert row == FirstNumbers(KEY, (4, 4), 3, 0.4, 0.3, 0.5, 7.0)
    with pytest.raises(ValueError):
        row_of(KEY, (4, 4), [])
    assert _printed(["a line\n", "Quantization Explorer: http://x/?a=b\n"]) == "http://x/?a=b"
    with pytest.raises(ValueError):
        _printed(["a line\n"])
    values = np.load(random_file(tmp_path / "x.npy", (300, 8)))
    assert values.shape == (300, 8) and values.dtype == np.float32
    large = np.abs(values).mean(1) > 8
    assert abs(float(values[~large].std()) - 1) < 0.05 and len(np.unique(values)) > 2300
    assert np.flatnonzero(large).tolist() == [75, 150, 225]
