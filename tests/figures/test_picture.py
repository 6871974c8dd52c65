"""Pictures before and after a scheme: the pixels are the values, the lines are where blocks meet.

If these fail, a picture shows greys that no code has, or blocks where the scheme has none.
"""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from explorer import SCHEMES, load_matrix
from explorer.analysis.tensor import Side, analyse
from explorer.cli import main
from explorer.figures.picture import (
    GREY,
    Cut,
    Shades,
    original_panel,
    panel_of,
    picture_html,
    picture_uri,
)
from explorer.schemes import Scheme


def pixels(uri: str) -> np.ndarray:
    kind, data = uri.split(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_every_grey_comes_back() -> None:
    """All 256 stored values; what a scheme restores beyond black and white is black and white."""
    stored = np.arange(256, dtype=np.uint8).reshape(16, 16)
    x = torch.from_numpy(stored.astype(np.float32)) / 255
    assert (pixels(picture_uri(x)) == stored).all()
    beyond = torch.tensor([[-0.5, 0.0, 0.5, 1.0, 1.5]])
    assert pixels(picture_uri(beyond)).tolist() == [[0, 0, 128, 255, 255]]


def test_any_matrix_has_colours() -> None:
    """Zero lies in the middle of the scale, the largest magnitude at its ends; from 0 to 1 all is grey."""
    x = torch.tensor([[-2.0, 0.0, 2.0]])
    low, zero, high = pixels(picture_uri(x, Shades.of(x)))[0].tolist()
    assert low[2] > low[0] and high[0] > high[2] and min(zero) > 240
    assert Shades.of(x / -2).colours and Shades.of(x[:, 1:]).colours
    assert Shades.of(x[:, 1:] / 2) == Shades.of(torch.zeros(2, 2)) == GREY


CUTS = [
    ((0, 0), (600, 512), Cut(0, 0)),
    ((150, 250), (600, 512), Cut(128, 224)),
    ((87, 87), (600, 512), Cut(64, 48)),
    ((599, 511), (600, 512), Cut(568, 464)),
    ((3, 5), (10, 20), Cut(0, 0, 10, 20)),
]


def test_a_cut_holds_its_element() -> None:
    """At the edges and in a small matrix too."""
    for position, shape, cut in CUTS:
        found = Cut.around(position, shape)
        assert found == cut
        assert found.row <= position[0] < found.row + found.rows <= shape[0]
        assert found.column <= position[1] < found.column + found.columns <= shape[1]


CUT = Cut(1, 2, 4, 8)
EDGES = {
    "int8_tensor": ("", ""),
    "fp8_e4m3_cast": ("", ""),
    "int4_row": ("M2 2H10M2 3H10M2 4H10", "M2 3H10V4H2Z"),
    "int8_column": ("M3 1V5M4 1V5M5 1V5M6 1V5M7 1V5M8 1V5M9 1V5", "M6 1H7V5H6Z"),
    "int4~2x4~symmetric~float16~minmax": ("M4 1V5M8 1V5M2 2H10M2 4H10", "M4 2H8V4H4Z"),
    "nvfp4": ("M2 2H10M2 3H10M2 4H10", "M2 3H10V4H2Z"),
}
"""Scheme -> the edges of its blocks in rows 1 to 4 and columns 2 to 9 of a matrix of 8 x 16, and the block of
row 3, column 6."""


def test_the_figure_says_what_the_core_measured() -> None:
    """Original first; each scheme by name, bits and dB; names are text; six schemes are too many."""
    x = load_matrix("sample:portrait").values[:64, :64]
    cut = Cut.around((0, 0), (64, 64))
    side = Side("a <b>", analyse(x, SCHEMES["nvfp4"]))
    html = picture_html(original_panel(x, cut), panel_of(side, cut))
    report = side.analysis.report
    measured = f"{report.bits.total:.4g} bits, {report.sqnr_db:.1f} dB"
    titles = re.findall(r"<figcaption><b>(.*?)</b>(.*?)</figcaption>", html)
    assert titles == [("Original", "64×64"), ("a &lt;b&gt;", measured)]
    drawn = pixels(re.findall(r'<img src="(.*?)"', html)[1])
    assert (drawn == GREY.paint(side.analysis.q.dequantize())).all()
    enlarged = pixels(re.findall(r'<image href="(.*?)"', html)[1])
    assert (enlarged == drawn[: cut.rows, : cut.columns]).all()
    with pytest.raises(ValueError, match="up to 5"):
        picture_html(*[original_panel(x, cut)] * 7)


def test_the_command_writes_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with a panel for each scheme, and what was measured; or one line, and no file."""
    monkeypatch.chdir(tmp_path)
    command = ["picture", "sample:portrait", "--schemes", "int4_tensor,nvfp4", "--out", "x.html", "--json"]
    refused = {
        ("--at", "600", "0"): "rows 0 to 599",
        ("--schemes", "nvfp4,mxfp4,nvfp4,mxfp4,nvfp4,mxfp4"): "up to 5",
        ("--schemes", "nvfp5"): "nvfp5",
        ("--out", "x.png"): ".html",
    }
    for options, words in refused.items():
        assert main([*command, *options]) == 2
        assert words in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert main(command) == 0
    x = load_matrix("sample:portrait").values
    reports = [analyse(x, Scheme.parse(name)).report for name in ("int4_tensor", "nvfp4")]
    shown = json.loads(capsys.readouterr().out)
    assert [row["sqnr_db"] for row in shown] == [report.sqnr_db for report in reports]
    page = Path("x.html").read_text()
    assert page.count("<figure>") == 3 and "NVFP4" in page and page.startswith("<!doctype html>")
