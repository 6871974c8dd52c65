"""What the page computes from an error map in the browser is what the server knows of it.

If this fails, the hover names another element than the one with the cell's largest error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import cast

import plotly.graph_objects as go
import pytest
import torch
from playwright.sync_api import Browser, Page

from explorer import SCHEMES, words
from explorer.analysis.tensor import Side, analyse
from explorer.analysis.tiles import tile_size
from explorer.figures.tensor import error_map_figures, scales_figures
from explorer.paths import ASSETS
from tests.cells import largest_in_cell

SCRIPT = "".join(
    (ASSETS / name).read_text(encoding="utf-8") for name in ("numbers.js", "words.js", "error_map.js")
)
X = torch.randn(3200, 2600, generator=torch.Generator().manual_seed(0))
HEAVY = X / torch.rand(3200, 2600, generator=torch.Generator().manual_seed(1)).clamp_min(1e-6)


@pytest.fixture(scope="module")
def script(browser: Browser) -> Iterator[Page]:
    """An empty page with the scripts of maps."""
    page = browser.new_page()
    page.evaluate(f"() => {{ window.explorer = {{}}; {SCRIPT} }}")
    yield page
    page.close()


def described(script: Page, figure: go.Figure) -> list[list[str]]:
    """The words under the mouse, cell by cell."""
    told = script.evaluate(
        "figure => explorer.errorMap.describe(figure).data[0].text", json.loads(figure.to_json())
    )
    return cast(list[list[str]], told)


@pytest.mark.parametrize("shape", [(40, 64), (400, 640), (3200, 2600)], ids=str)
@pytest.mark.parametrize("heavy", [False, True])
def test_cells_have_their_element_and_its_error(script: Page, shape: tuple[int, int], heavy: bool) -> None:
    """Linear and logarithmic colours, places of none, one and two bytes; zero is called 0 and nothing else
    is."""
    x = (HEAVY if heavy else X)[: shape[0], : shape[1]].clone()
    tall, wide = tile_size(shape, 160)
    x[: 2 * tall, : 32 * wide] = 0
    analysis = analyse(x, SCHEMES["int4_group32"])
    errors = (analysis.q.dequantize() - x).abs()
    figure = error_map_figures([Side("A", analysis)], shape, (0, 0), "n")[0]
    assert figure.data[0].meta["logarithmic"] == heavy
    texts = described(script, figure)
    point = {"data": json.loads(figure.to_json())["data"][0], "pointNumber": [3, 5]}
    clicked = script.evaluate("point => explorer.errorMap.clicked(point)", point)
    assert tuple(clicked) == largest_in_cell(analysis, 3 * tall, 5 * wide)
    largest = float(errors.max())
    for down, right in ((0, 0), (3, 5), (20, 30), (len(texts) - 1, len(texts[0]) - 1)):
        value, row, column = re.fullmatch(
            r"\|error\| (?:at most )?(.*)<br>row (\d+), column (\d+)", texts[down][right]
        ).groups()  # type: ignore[union-attr]
        assert (int(row), int(column)) == largest_in_cell(analysis, down * tall, right * wide)
        error = float(errors[int(row), int(column)])
        assert read(value) == pytest.approx(error, rel=0.02, abs=largest * 1e-4)
        assert (value == "0") == (error == 0)
    assert texts[0][0].startswith("|error| 0<br>")


def read(text: str) -> float:
    """The number that words stand for."""
    plain, _, power = text.replace(",", "").replace("−", "-").partition(" × 10")
    return float(plain) * 10.0 ** int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)


@pytest.mark.parametrize("shape", [(64, 2048), (3200, 2560)], ids=str)
def test_scales_are_told_under_the_mouse(script: Page, shape: tuple[int, int]) -> None:
    """A cell that is a block says its scale, one of several blocks which they are and their largest."""
    analysis = analyse(X[: shape[0], : shape[1]], SCHEMES["int4_group32"])
    scales = analysis.q.scales.scale
    texts = described(script, scales_figures([Side("A", analysis)], "n")[0])
    if scales.shape[0] <= 160:
        assert texts[3][5] == f"scale {words.number(float(scales[3, 5]))}<br>block row 3, block column 5"
    else:
        largest = words.number(float(scales[60:80, 5].max()))
        assert (
            texts[3][5] == f"scale {largest}<br>the largest of block row 60 and the next 19, block column 5"
        )


@pytest.mark.parametrize(
    "value",
    [0, 1520.4, 2110, 0.03517, 999.6, 99.96, -0.5, 1e6, 1.2e-7, -9.996e-7, 9.996e14, 1e15, 3.4e38, 1e-4],
)
@pytest.mark.parametrize("digits", [1, 2, 3, 6])
def test_the_browser_writes_numbers_as_the_server_does(script: Page, value: float, digits: int) -> None:
    told = script.evaluate("([value, digits]) => explorer.words.number(value, digits)", [value, digits])
    assert told == words.number(value, digits)
