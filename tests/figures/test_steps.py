"""The figure of a model's step, from what was recorded.

If these fail, the page shows a step that was not measured, or in another order than it says.
"""

from __future__ import annotations

import dataclasses

import pytest

from explorer.figures.steps import PARTS, steps_figure
from explorer.recordings.steps import recorded_steps

ROWS = [row for row in recorded_steps().rows if row.shape == "Llama-3-8B" and row.batch == 1]


def test_bars_are_the_recorded_parts_fastest_first() -> None:
    figure = steps_figure(ROWS, "step")
    ordered = sorted(ROWS, key=lambda row: row.step.median_s)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == [name for name, _ in PARTS.values()]
    for index, row in enumerate(ordered):
        parts = dataclasses.astuple(row.parts)
        assert [bar.customdata[index] for bar in bars] == pytest.approx([1e3 * part for part in parts])
        assert sum(bar.x[index] for bar in bars) == pytest.approx(1e3 * row.step.median_s, rel=0.02)
        assert f"{row.speedup:.2f} ×" in figure.layout.annotations[index].text
    assert list(bars[0].y) == [row.label for row in ordered]
