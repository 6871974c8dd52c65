"""The range over the histogram. If these fail, the visitor drags one thing and another is taken."""

from __future__ import annotations

import pytest
import torch

from explorer import SCHEMES
from explorer.analysis.calibration import SHOWN, compare_calibrators
from explorer.figures.calibration import COLORS, HANDLES, objectives_figure, range_figure
from explorer.figures.style import A, B

X = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scheme", ["int4_group128", "int4_group128_asym"])
@pytest.mark.parametrize("x", [X, X.relu(), -X.abs()], ids=["both signs", "positive", "negative"])
def test_the_two_ends_are_the_first_shapes(x: torch.Tensor, scheme: str) -> None:
    """Low and high, by name and in this order; both inside of the axis, as is every method's range."""
    report = compare_calibrators(x, SCHEMES[scheme], 0.5)
    own = report.choices[-1]
    fig = range_figure(report, own.low, own.high, "n")
    assert [shape.name for shape in fig.layout.shapes[:2]] == list(HANDLES)
    assert [shape.x0 for shape in fig.layout.shapes[:2]] == [own.low, own.high]
    assert all(shape.x0 == shape.x1 and shape.xref == "x" for shape in fig.layout.shapes[:2])
    low, high = fig.layout.xaxis.range
    assert all(low < end < high for choice in report.choices for end in (choice.low, choice.high))
    assert list(fig.layout.yaxis2.ticktext) == [choice.label for choice in report.choices[:-1]]
    assert fig.layout.yaxis.domain[1] < fig.layout.yaxis2.domain[0]


def test_methods_have_colours_of_their_own() -> None:
    """None of them looks like a scheme's; each objective is drawn."""
    colors = [COLORS[method] for method in SHOWN]
    assert len(set(colors)) == len(colors) and not {A, B} & set(colors)
    assert len(objectives_figure(compare_calibrators(X, SCHEMES["int4_row"]), "n").data) >= 3


def test_beyond_a_threshold_is_not_called_clipped() -> None:
    """The curve counts values beyond a threshold, the table those beyond the outermost codes, which rounding
    would not bring back: under one name they contradict each other."""
    report = compare_calibrators(torch.randn(64, 64), SCHEMES["int4_row"])
    names = [trace.name or "" for trace in objectives_figure(report, "test").data]
    assert any("beyond the threshold" in name for name in names) and not any("clip" in n for n in names)
