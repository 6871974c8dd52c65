"""What the page computes from an error map in the browser is what the server knows of it.

If this fails, the hover names another element than the one with the cell's largest error.
"""

from __future__ import annotations

import json
import re

import pytest
import torch
from playwright.sync_api import Browser

from explorer import SCHEMES
from explorer.analysis.tensor import Side, analyse, largest_in_cell
from explorer.analysis.tiles import tile_size
from explorer.figures.tensor import error_map_figures
from explorer.paths import ASSETS

SCRIPT = (ASSETS / "error_map.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("shape", [(40, 64), (400, 640), (3200, 2600)], ids=str)
@pytest.mark.parametrize("heavy", [False, True])
def test_cells_have_their_element_and_its_error(
    browser: Browser, shape: tuple[int, int], heavy: bool
) -> None:
    """Linear and logarithmic colours, places of none, one and two bytes."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if heavy:
        x = x / torch.rand(shape, generator=torch.Generator().manual_seed(1)).clamp_min(1e-6)
    analysis = analyse(x, SCHEMES["int4_group32"])
    errors = (analysis.q.dequantize() - x).abs()
    figure = json.loads(error_map_figures([Side("A", analysis)], shape, (0, 0), "n")[0].to_json())
    assert figure["data"][0]["meta"]["logarithmic"] == heavy
    page = browser.new_page()
    page.evaluate(f"() => {{ window.explorer = {{}}; {SCRIPT} }}")
    texts = page.evaluate("figure => explorer.errorMap.describe(figure).data[0].text", figure)
    point = {"data": figure["data"][0], "pointNumber": [3, 5]}
    clicked = page.evaluate("point => explorer.errorMap.clicked(point)", point)
    page.close()
    tall, wide = tile_size(shape, 160)
    assert tuple(clicked) == largest_in_cell(analysis, 3 * tall, 5 * wide)
    for down, right in ((0, 0), (3, 5), (len(texts) - 1, len(texts[0]) - 1)):
        error, row, column = (float(n) for n in re.findall(r"[\d.e-]*\d", texts[down][right]))
        assert (row, column) == largest_in_cell(analysis, down * tall, right * wide)
        assert error == pytest.approx(
            float(errors[int(row), int(column)]), rel=0.02, abs=float(errors.max()) * 1e-4
        )
