"""Logarithmic axes as a browser draws them: labels rise, and none lies over its neighbour.

If these fail, an axis reads "5 2 0.1 5 2", or a phone shows digits on top of each other.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import plotly
import pytest
from playwright.sync_api import Browser

from explorer.figures import style
from tests.covering import sampled

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
RANGES = [(40, 420), (9, 11), (3, 200), (1e-3, 2), (15, 7_000), (4, 17_000), (1e-3, 9e2), (5e4, 9e5)]
DRAWN = """async figure => {
  const plot = document.getElementById('plot');
  await Plotly.newPlot(plot, figure.data, figure.layout);
  const labels = axis => [...plot.querySelectorAll(`.${axis}tick text`)].map(text => {
    const {left, right, top, bottom} = text.getBoundingClientRect();
    return {text: text.textContent, left, right, top, bottom};
  });
  return {x: labels('x'), y: labels('y')};
}"""


@pytest.mark.parametrize("width", sampled([360, 1100], [360]))
def test_labels_of_log_axes_rise_and_keep_apart(browser: Browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 600})
    page.set_content("<div id=plot></div>")
    page.add_script_tag(path=str(PLOTLY))
    for low, high in RANGES:
        figure = style.figure("x", "y", "n")
        figure.add_scatter(x=[low, high], y=[low, high])
        for axis in ("x", "y"):
            style.log_axis(figure, axis, low, high)
        drawn = json.loads(figure.to_json())
        drawn["layout"]["width"] = width
        shown = page.evaluate(DRAWN, drawn)
        for axis, (start, end) in (("x", ("left", "right")), ("y", ("top", "bottom"))):
            labels = shown[axis]
            numbers = [float(label["text"].replace(",", "")) for label in labels]
            assert len(numbers) > 1 and numbers == sorted(set(numbers)), (low, high, axis, numbers)
            places = sorted(labels, key=lambda label: label[start])
            gaps = [after[start] - before[end] for before, after in itertools.pairwise(places)]
            assert min(gaps) > -2, (low, high, axis, [label["text"] for label in places])
    page.close()
