"""Reports: one file that asks for nothing, whose numbers can be computed again.

If these fail, a figure in somebody's document cannot be traced, or opens to nothing without a network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from playwright.sync_api import Browser, Request

from explorer import SCHEMES, load_matrix
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.reports import as_html, command_of, tensor_report
from explorer.reports.check import read_record
from explorer.reports.tensor import sha256_of
from explorer.sources.tensors import Matrix

SOURCE = {"file": "sample:mlp_up"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the built-in layer with its print, figures and tables, made by the command."""
    made = tmp_path_factory.mktemp("report")
    arguments = ("report", "sample:mlp_up", "--schemes", "int4_group128_asym,nvfp4", "--out")
    files = (str(made / "r.html"), "--pdf", str(made / "r.pdf"), "--figures", str(made / "files"))
    subprocess.run([sys.executable, "-m", "explorer", *arguments, *files], check=True)
    return made


def test_the_file_works_from_disk_and_asks_for_nothing(folder: Path, browser: Browser) -> None:
    """Figures are painted, with fonts of the file, and no request leaves the page."""
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(_url(request)))
    page.goto(f"file://{folder / 'r.html'}")
    page.evaluate("async () => { await window.drawn; await document.fonts.ready; }")
    figures = page.locator(".plot .main-svg").all()
    assert len(figures) >= 7 and all(figure.bounding_box() for figure in figures)
    assert page.evaluate("document.fonts.check('15px Inter')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
    assert [url.split(":")[0] for url in asked] == ["file"]


def _url(request: Request) -> str:
    return request.url


def test_what_is_said_is_what_was_computed(folder: Path) -> None:
    """The key numbers in the file's table are the library's."""
    recipes = [Recipe(SCHEMES[name]) for name in ("int4_group128_asym", "nvfp4")]
    content = tensor_report(load_matrix("sample:mlp_up"), recipes, SOURCE)
    frame = pandas.read_csv(folder / "files" / "numbers.csv").set_index("quantity")
    assert frame.iloc[0, 1] == pytest.approx(content.numbers["B.sqnr_db"], rel=1e-9)
    assert read_record(folder / "r.html")["numbers"]["A.sqnr_db"] == pytest.approx(19.47, abs=0.01)


def test_figures_and_tables_have_the_same_names(folder: Path) -> None:
    text, files = (folder / "r.html").read_text(), folder / "files"
    for name in re.findall(r'id="figure-([\w-]+)"', text):
        assert (files / f"{name}.svg").read_text().startswith("<svg")
        assert (files / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (files / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in re.findall(r'id="table-([\w-]+)"', text):
        assert len(pandas.read_csv(files / f"{name}.csv")) > 0
        assert "\\toprule" in (files / f"{name}.tex").read_text()
    assert (folder / "r.pdf").read_bytes().startswith(b"%PDF")


def test_a_report_is_checked(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same numbers are said to be the same; one that was edited is named, with exit code 1."""
    assert main(["report", "--check", str(folder / "r.html")]) == 0
    assert "numbers are the same" in capsys.readouterr().out
    shown = (folder / "r.html").read_text().replace(">20.4815<", ">25.4815<")
    (tmp_path / "shown.html").write_text(shown)
    assert main(["report", "--check", str(tmp_path / "shown.html")]) == 1
    assert "show something else" in capsys.readouterr().out
    edited = re.sub(r'"B.sqnr_db": [\d.]+', '"B.sqnr_db": 33.25', (folder / "r.html").read_text())
    (tmp_path / "edited.html").write_text(edited)
    assert main(["report", "--check", str(tmp_path / "edited.html"), "--json"]) == 1
    (moved,) = json.loads(capsys.readouterr().out)["moved"]
    assert moved["name"] == "B.sqnr_db" and moved["said"] == 33.25


def test_another_tensor_is_noticed(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = load_matrix("sample:mlp_up").values.numpy().copy()
    other[3, 5] += 0.001
    np.save(tmp_path / "w.npy", other)
    assert main(["report", str(tmp_path / "w.npy"), "--check", str(folder / "r.html")]) == 1
    assert "another one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report"], "name a tensor"),
        (["report", "sample:mlp_up", "--schemes", "nvfp4,mxfp4,int8_row"], "one or two schemes"),
        (["report", "sample:mlp_up", "--schemes", "nvfp4", "--element", "9999,0"], "no element (9999, 0)"),
        (["report", "sample:mlp_up", "--schemes", "nvfp4", "--element", "one"], "ROW,COLUMN"),
        (["report", "sample:mlp_up", "--schemes", "nvfp4", "--out", "r.txt"], ".html"),
        (["report", "--check", __file__], "no report"),
        (["report", "--check", "none.html"], "cannot be read"),
        (["report", "--check", __file__, "--schemes", "nvfp4"], "nothing is written"),
    ],
)
def test_wrong_input_is_refused(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("values", [torch.zeros(8, 32), torch.full((1, 1), 1e30), torch.randn(1, 1000)])
def test_hard_tensors_have_reports(values: torch.Tensor) -> None:
    """All zeros, one value, one row: sections that mean nothing for them are left out."""
    matrix = Matrix(values, "w", "test", tuple(values.shape), "float32")
    recipes = [Recipe(SCHEMES["nvfp4"]), Recipe(SCHEMES["fp32"])]
    assert "In numbers" in as_html(tensor_report(matrix, recipes, {"file": "w.npy"}))


def test_names_of_a_file_are_text(tmp_path: Path) -> None:
    """A tensor's name cannot become part of the file's program."""
    name = "</script><script>alert(1)</script>"
    matrix = Matrix(torch.randn(32, 64), name, name, (32, 64), "float32")
    text = as_html(tensor_report(matrix, [Recipe(SCHEMES["int8_row"])], {"file": name}))
    assert "<script>alert(1)" not in text


def test_the_command_builds_the_report_again() -> None:
    recipe = {"file": "a b.npy", "tensor": "w", "revision": None, "schemes": ["nvfp4"], "element": [1, 2]}
    assert command_of(recipe) == (
        "python -m explorer report 'a b.npy' --tensor w --schemes nvfp4 --element 1,2 --out report.html"
    )
    assert sha256_of(torch.zeros(2, 3)) != sha256_of(torch.zeros(3, 2))
