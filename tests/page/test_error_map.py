"""What the page computes from an error map in the browser is what the server knows of it.

If this fails, the hover names another element than the one with the cell's largest error.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import cast

import plotly.graph_objects as go
import pytest
import torch

from explorer import SCHEMES, words
from explorer.analysis.tensor import MAP_LIMIT, Side, analyse
from explorer.analysis.tiles import tile_size
from explorer.figures.error_map import error_map_figure
from explorer.figures.tensor import scales_figures
from tests.cells import largest_in_cell
from tests.page.scripts import run_scripts

SCRIPTS = ("numbers", "words", "error_map")
X = torch.randn(3200, 2600, generator=torch.Generator().manual_seed(0))
HEAVY = X / torch.rand(3200, 2600, generator=torch.Generator().manual_seed(1)).clamp_min(1e-6)


PLACES = [((40, 64), False), ((400, 640), True), ((3200, 2600), False)]
"""Places of none, one and two bytes."""


def told(figure: go.Figure, cells: Sequence[tuple[int, int]]) -> list[str]:
    """The words under the mouse in cells, one line a line."""
    words = run_scripts(
        SCRIPTS,
        """([figure, cells]) => cells.map(([down, right]) =>
        explorer.errorMap.told(figure.data, figure.data[0], down, right).join("\\n"))""",
        [json.loads(figure.to_json()), [list(cell) for cell in cells]],
    )
    return cast(list[str], words)


@pytest.mark.parametrize(("shape", "heavy"), PLACES, ids=str)
def test_cells_have_their_element_and_its_error(shape: tuple[int, int], heavy: bool) -> None:
    """Zero is called 0 and nothing else is; x, A and B of the element, and
    its error in scales; a click opens it, on the map of the difference that of the larger error."""
    x = (HEAVY if heavy else X)[: shape[0], : shape[1]].clone()
    tall, wide = tile_size(shape, MAP_LIMIT)
    x[: 2 * tall, : 32 * wide] = 0
    analyses = [analyse(x, SCHEMES[name]) for name in ("int4_group32", "nvfp4")]
    restored = [analysis.q.dequantize() for analysis in analyses]
    figure = error_map_figure(x, [Side("n", analysis) for analysis in analyses], (0, 0), "n")
    cells = [(0, 0), (3, 5), (20, 30), (x.shape[0] // tall - 1, x.shape[1] // wide - 1)]
    errors = (restored[0] - x).abs()
    scale = analyses[0].q.scales.scale
    for (down, right), text in zip(cells, told(figure, cells), strict=True):
        value, scaled, row, column, was, a, b = re.fullmatch(
            r"\|error\| (?:at most )?(.*), (?:at most )?(.*) of its block's scale\nrow (\d+), column (\d+)\n"
            r"x (.*) · A (.*) · B (.*)",
            text,
        ).groups()  # type: ignore[union-attr]
        at = int(row), int(column)
        assert at == largest_in_cell(analyses[0], down * tall, right * wide)
        error = float(errors[at])
        assert (value == "0") == (error == 0)
        if (down, right) != (0, 0) and "at most" not in text:
            assert read(value) == pytest.approx(error, rel=0.02)
            if not heavy:
                ratio = error / float(scale[at[0], at[1] // 32])
                assert read(scaled) == pytest.approx(ratio, rel=0.06, abs=0.01)
            for word, want in ((was, x), (a, restored[0]), (b, restored[1])):
                assert read(word) == pytest.approx(float(want[at]), rel=0.02, abs=error * 0.02)
    maps = [i for i, trace in enumerate(figure.data) if trace.type == "heatmap" and trace.meta.get("codes")]
    mine = [largest_in_cell(analysis, 3 * tall, 5 * wide) for analysis in analyses]
    (apart,) = (i for i, trace in enumerate(figure.data) if trace.meta and "difference" in trace.meta)
    larger = max((0, 1), key=lambda i: float(analyses[i].error_map[3, 5]))
    opened = run_scripts(
        SCRIPTS,
        """([figure, traces]) => traces.map(at =>
        explorer.errorMap.elementOf(figure.data, figure.data[at], 3, 5))""",
        [json.loads(figure.to_json()), [*maps, apart]],
    )
    assert [*map(tuple, opened)] == [*mine, mine[larger]]


def read(text: str) -> float:
    """The number that words stand for."""
    plain, _, power = text.replace(",", "").replace("−", "-").partition(" × 10")
    return float(plain) * 10.0 ** int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)


@pytest.mark.parametrize("shape", [(64, 2048), (3200, 2560)], ids=str)
def test_scales_are_told_under_the_mouse(shape: tuple[int, int]) -> None:
    """A cell that is a block says its scale, one of several blocks which they are and their largest."""
    analysis = analyse(X[: shape[0], : shape[1]], SCHEMES["int4_group32"])
    scales = analysis.q.scales.scale
    (text,) = told(scales_figures([Side("A", analysis)], "n")[0], [(3, 5)])
    tall = tile_size((scales.shape[0], scales.shape[1]), MAP_LIMIT)[0]
    if tall == 1:
        assert text == f"scale {words.number(float(scales[3, 5]))}\nblock row 3, block column 5"
    else:
        largest = words.number(float(scales[3 * tall : 4 * tall, 5].max()))
        where = f"the largest of block row {3 * tall} and the next {tall - 1}, block column 5"
        assert text == f"scale {largest}\n{where}"


VALUES = (0, 1520.4, 2110, 0.03517, 999.6, 99.96, -0.5, 1e6, 1.2e-7, -9.996e-7, 9.996e14, 1e15, 3.4e38, 1e-4)


def test_the_browser_writes_numbers_as_the_server_does() -> None:
    cases = [*itertools.product(VALUES, (1, 2, 3, 6))]
    written = run_scripts(
        SCRIPTS, "cases => cases.map(([value, digits]) => explorer.words.number(value, digits))", cases
    )
    assert written == [words.number(value, digits) for value, digits in cases]
