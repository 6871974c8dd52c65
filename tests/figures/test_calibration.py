"""The range over the histogram. If these fail, the visitor drags one thing and another is taken."""

from __future__ import annotations

import torch

from explorer import SCHEMES
from explorer.analysis.calibration import compare_calibrators
from explorer.figures.calibration import HANDLES, range_figure

X = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))


def test_the_two_ends_are_the_first_shapes() -> None:
    """Low and high, by name and in this order; both inside of the axis, as is every method's range."""
    for x, scheme in ((X, "int4_group128"), (X.relu(), "int4_group128_asym"), (-X.abs(), "int4_group128")):
        report = compare_calibrators(x, SCHEMES[scheme], 0.5)
        own = report.choices[-1]
        fig = range_figure(report, own.low, own.high, "n")
        assert list(fig.data[0].y) == list(report.counts)
        assert [shape.name for shape in fig.layout.shapes[:2]] == list(HANDLES)
        assert [shape.x0 for shape in fig.layout.shapes[:2]] == [own.low, own.high]
        assert all(shape.x0 == shape.x1 and shape.xref == "x" for shape in fig.layout.shapes[:2])
        low, high = fig.layout.xaxis.range
        assert all(low < end < high for choice in report.choices for end in (choice.low, choice.high))
        assert list(fig.layout.yaxis2.ticktext) == [choice.label for choice in report.choices[:-1]]
