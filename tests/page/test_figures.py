"""Figures as plotly draws them, at the widths of a phone, a tablet and a desk.

If these fail, an axis' title lies over its labels, the labels read "5 2 0.1 5 2", or a legend leaves the
figure.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import plotly.graph_objects as go
import pytest
import torch
from playwright.sync_api import Browser, Page

from explorer import SCHEMES, Scheme, compare_schemes, mark_frontier
from explorer.analysis.tensor import Side, analyse, block_levels
from explorer.figures import style
from explorer.figures.compare import frontier_figure
from explorer.figures.error_map import error_map_figure
from explorer.figures.errors import error_figure, errors_of, multiples_figure
from explorer.figures.tensor import scales_figures, usage_figures
from explorer.figures.values import values_figure
from explorer.paths import ASSETS, PLOTLY
from tests.covering import THOROUGH
from tests.page.acts import new_context

torch.manual_seed(0)
TENSORS = {
    "normal": torch.randn(384, 1536),
    "heavy": torch.distributions.StudentT(1.0).sample((512, 1024)),
    "constant": torch.full((256, 512), 3.25),
    "zero": torch.zeros(256, 512),
    "one": torch.full((1, 1), -0.7),
}
WIDTHS = (304, 620, 1360)
"""Pixels of a figure on a phone of 390, in a half of the page, and over all of it."""
PAIR = ("int4~1x32~ASYMMETRIC~float16~mse~fit", "nvfp4")


@pytest.fixture(scope="module")
def empty(browser: Browser) -> Iterator[Page]:
    """A page with plotly and the script of figures, and nothing else."""
    context = new_context(browser)
    page = context.new_page()
    page.set_content('<div id="plot"></div>')
    font = base64.b64encode((ASSETS / "fonts/inter-latin-wght-normal.woff2").read_bytes()).decode()
    page.add_style_tag(
        content=f"@font-face{{font-family:Inter;font-weight:100 900;src:url(data:font/woff2;base64,{font})}}"
    )
    page.evaluate("document.fonts.load('12px Inter')")
    page.add_script_tag(path=PLOTLY)
    page.evaluate("() => { window.explorer = {}; }")
    for name in ("numbers", "words", "error_map", "figure", "paper"):
        page.add_script_tag(path=ASSETS / f"{name}.js")
    yield page
    context.close()


@cache
def figures_of(name: str) -> dict[str, go.Figure]:
    x = TENSORS[name]
    sides = [Side(scheme.label, analyse(x, scheme)) for scheme in map(Scheme.parse, PAIR)]
    at = sides[0].analysis.report.max_error_at
    levels = [block_levels(side.analysis.q, *at) for side in sides]
    few = [s for n, s in SCHEMES.items() if not n.endswith("_k")]
    rows = mark_frontier(compare_schemes(x[:64, :256], few if name == "normal" else few[:8]))
    return {
        "frontier": frontier_figure(rows, "n", rows[2], rows[-3]),
        "values": values_figure(sides[0].analysis.before, sides, levels, "n"),
        "error": error_figure(sides, "n"),
        "map": error_map_figure(x, sides, at, "n"),
        "multiples": multiples_figure(errors_of([*sides, *sides[:1]]), "n"),
        "scales": scales_figures(sides, "n")[0],
        "usage": usage_figures(sides, "n")[1],
    }


BOXES = """async ([figure, width]) => {
  const plot = document.getElementById('plot');
  explorer.fit(figure.layout, width);
  const layout = {...figure.layout, width, autosize: false};
  await Plotly.newPlot(plot, figure.data, layout, {displayModeBar: false});
  const from = plot.getBoundingClientRect();
  const boxes = query => [...plot.querySelectorAll(query)].map(e => {
    const box = e.getBoundingClientRect(), {left, top} = from;
    return [e.textContent, box.left - left, box.top - top, box.right - left, box.bottom - top];
  }).filter(([, left, top, right, bottom]) => right > left && bottom > top);
  const size = plot._fullLayout._size;
  return {size, height: plot._fullLayout.height, titles: boxes('.g-xtitle text, .g-ytitle text'),
    labels: boxes('.xtick text, .ytick text'), legend: boxes('.legend'),
    buttons: boxes('.updatemenu-container'), notes: boxes('.annotation-text')};
}"""


def apart(empty: Page, name: str, width: int) -> None:
    """Titles, tick labels, buttons and the legend are apart, and all of it lies in the figure."""
    for kind, figure in figures_of(name).items():
        found: dict[str, Any] = empty.evaluate(BOXES, [json.loads(figure.to_json()), width])
        parts = [*found["titles"], *found["labels"], *found["legend"], *found["buttons"]]
        parts += found["notes"] if kind != "frontier" else []
        for text, left, top, right, bottom in parts:
            inside = left > -2 and right < width + 2 and top > -2 and bottom < found["height"] + 2
            assert inside, f"{kind} at {width}: {text} leaves the figure"
        for one, other in itertools.combinations(parts, 2):
            across = min(one[3], other[3]) - max(one[1], other[1])
            down = min(one[4], other[4]) - max(one[2], other[2])
            assert across < 2 or down < 2, f"{kind} at {width}: {one[0]} lies over {other[0]}"
        size = found["size"]
        for text, left, top, right, _ in found["titles"] if kind == "frontier" else []:
            beside = right <= size["l"] or left >= width - size["r"] or top >= found["height"] - size["b"]
            assert beside, f"{text} lies in the plot at {width}"


RANGES = [(40, 420), (9, 11), (3, 200), (1e-3, 2), (15, 7_000), (4, 17_000), (1e-3, 9e2), (5e4, 9e5)]
TICKS = """async figure => {
  const plot = document.getElementById('plot');
  await Plotly.newPlot(plot, figure.data, figure.layout);
  const labels = axis => [...plot.querySelectorAll(`.${axis}tick text`)].map(text => {
    const {left, right, top, bottom} = text.getBoundingClientRect();
    return {text: text.textContent, left, right, top, bottom};
  });
  return {x: labels('x'), y: labels('y')};
}"""


def rise(empty: Page, width: int) -> None:
    """Labels of logarithmic axes rise, and none lies over its neighbour."""
    for low, high in RANGES:
        figure = style.figure("x", "y", "n")
        figure.add_scatter(x=[low, high], y=[low, high])
        for axis in ("x", "y"):
            style.log_axis(figure, axis, low, high)
        drawn = json.loads(figure.to_json())
        drawn["layout"]["width"] = width
        shown = empty.evaluate(TICKS, drawn)
        for axis, (start, end) in (("x", ("left", "right")), ("y", ("top", "bottom"))):
            labels = shown[axis]
            numbers = [float(label["text"].replace(",", "")) for label in labels]
            assert len(numbers) > 1 and numbers == sorted(set(numbers)), (low, high, axis, numbers)
            places = sorted(labels, key=lambda label: label[start])
            gaps = [after[start] - before[end] for before, after in itertools.pairwise(places)]
            assert min(gaps) > -2, (low, high, axis, [label["text"] for label in places])


@THOROUGH
def test_figures_are_drawn_whole(empty: Page) -> None:
    """Every tensor and every width, not each with each."""
    for name, width in zip(TENSORS, itertools.cycle(WIDTHS), strict=False):
        apart(empty, name, width)
    rise(empty, 360)
