"""Reports: one file that asks for nothing, whose numbers can be computed again.

If these fail, a figure in somebody's document cannot be traced, or opens to nothing without a network.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from playwright.sync_api import Browser, Request

from explorer import SCHEMES, load_matrix
from explorer.analysis.calibration import compare_calibrators
from explorer.bench.cpu_gemm import plan_on_cpu, time_on_cpu
from explorer.cli import main
from explorer.methods.evaluate import MOST_TOKENS, evaluate_all
from explorer.methods.recipe import Recipe
from explorer.progress import Progress
from explorer.recordings.files import recording_json
from explorer.recordings.machine import Machine
from explorer.reports import Where, again, as_html, command_of, moved, survey_report, tensor_report
from explorer.reports.again import KINDS
from explorer.reports.check import CUSTOM, read_record
from explorer.reports.content import Content, Part, Table, content
from explorer.reports.survey import Asked, bought, find_survey
from explorer.reports.tensor import sha256_of
from explorer.reports.write import write_tables
from explorer.schemes.scheme import todays_text
from explorer.sources.tensors import Matrix
from explorer.survey.check import Check, Checked
from explorer.survey.loss import Loss

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


@pytest.mark.usefixtures("computed_once")
def test_a_report_is_checked(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same numbers are said to be the same; one that was edited is named, with exit code 1."""
    assert main(["report", "--check", str(folder / "r.html")]) == 0
    assert "numbers are the same" in capsys.readouterr().out
    shown = (folder / "r.html").read_text().replace(">20.4815<", ">25.4815<")
    (tmp_path / "shown.html").write_text(shown)
    assert main(["report", "--check", str(tmp_path / "shown.html")]) == 1
    assert "shows something else" in capsys.readouterr().out
    edited = re.sub(r'"B.sqnr_db": [\d.]+', '"B.sqnr_db": 33.25', (folder / "r.html").read_text())
    (tmp_path / "edited.html").write_text(edited)
    assert main(["report", "--check", str(tmp_path / "edited.html"), "--json"]) == 1
    (number,) = json.loads(capsys.readouterr().out)["moved"]
    assert number["name"] == "B.sqnr_db" and number["said"] == 33.25


WEIGHT = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).numpy()
INPUTS = torch.randn(48, 64, generator=torch.Generator().manual_seed(1)).numpy()
OF_ALL = {
    "tensor": "w.npy --schemes int4_group32_asym,int4_group32_asym+gptq --inputs x.npy --methods rtn,gptq "
    "--own 0.5 --timings t.json",
    "survey": "survey all-MiniLM-L6-v2 --bits 4 --for compressed-tensors --fuse --keep layer.0",
    "speed": "speed --schemes nvfp4,bf16",
    "training": "training --widths 4 --seeds 1 --epochs 1 --again 1 --activations int8_row",
}
"""A small report of each kind, with all that it can hold but a model that is run."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands of ``OF_ALL`` read, and their reports, a file a kind."""
    made = tmp_path_factory.mktemp("kinds")
    np.save(made / "w.npy", WEIGHT)
    np.save(made / "x.npy", INPUTS)
    timing = next(time_on_cpu(plan_on_cpu(["bf16"], [(8, 16, 32)], "torch"), repeats=2))
    (made / "t.json").write_text(json.dumps(recording_json(Machine(cpu="a CPU"), [timing])))
    with contextlib.chdir(made):
        for kind, command in OF_ALL.items():
            assert main(["report", *command.split(), "--out", f"{kind}.html"]) == 0
    return made


@pytest.fixture(scope="module")
def computed() -> dict[str, Content]:
    """What the recipes of this module's reports have given."""
    return {}


@pytest.fixture
def computed_once(computed: dict[str, Content], monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of one recipe compute it once, and compare each time."""

    def recalled(recipe: Mapping[str, Any], where: Where, progress: Progress | None) -> Content:
        key = json.dumps([recipe, vars(where)])
        if key not in computed:
            computed[key] = again(recipe, where, progress)
        return computed[key]

    monkeypatch.setattr("explorer.reports.again", recalled)


def test_every_kind_is_tried_here() -> None:
    """A kind of report without a row above would not be checked by anything below."""
    assert set(OF_ALL) == set(KINDS)


@pytest.mark.usefixtures("computed_once")
@pytest.mark.parametrize("kind", OF_ALL)
def test_every_kind_is_checked(
    kind: str,
    reports: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If this fails, ``--check`` cannot compute a report again, or lets an edited number or table pass."""
    monkeypatch.chdir(reports)
    path = reports / f"{kind}.html"
    assert main(["report", "--check", path.name]) == 0
    assert "numbers are the same" in capsys.readouterr().out
    text, record = path.read_text(), read_record(path)
    name = next(name for name, value in record["numbers"].items() if value)
    other = text.replace(f'"{name}": {record["numbers"][name]!r}', f'"{name}": 123.25', 1)
    (reports / "moved.html").write_text(other)
    assert main(["report", "--check", "moved.html", "--json"]) == 1
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["moved"]] == [name]
    cell = re.search(r'<td class="number">([\d.,e+-]+)</td>', text)
    assert cell
    (reports / "edited.html").write_text(text.replace(cell[0], '<td class="number">77</td>', 1))
    assert main(["report", "--check", "edited.html"]) == 1
    assert "shows something else" in capsys.readouterr().out


EDITS = {
    "methods": [(r"<td>INT4 ", "<td>INT2 "), (r"<th([^>]*)>method", r"<th\1>how"), (r"GPTQ", "AWQ")],
    "numbers": [(r"by GPTQ", "by AWQ"), (r"INT4", "INT3")],
    "element-b": [(r"<th([^>]*)>quantity", r"<th\1>size")],
}
"""Of tables whose numbers may end elsewhere: what is changed in the report of a tensor."""


@pytest.mark.usefixtures("computed_once")
@pytest.mark.parametrize(("table", "edit"), [(t, edit) for t, edits in EDITS.items() for edit in edits])
def test_edited_texts_are_noticed_where_numbers_are_loose(
    table: str,
    edit: tuple[str, str],
    reports: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If this fails, a report that names another scheme or method than it tried passes its check."""
    monkeypatch.chdir(reports)
    text = (reports / "tensor.html").read_text()
    found = re.search(rf'<table id="table-{table}".*?</table>', text, re.S)
    assert found
    other, changed = re.subn(*edit, found[0], count=1)
    assert changed, found[0][:600]
    (reports / "worded.html").write_text(text.replace(found[0], other))
    assert main(["report", "--check", "worded.html"]) == 1
    assert table in capsys.readouterr().out


SURVEY_EDITS = {
    "the lead": (r"predicted loss 0\.\d+", "predicted loss 0.0142"),
    "the title": (r"<h1>(.*?)4 bits", r"<h1>\g<1>2 bits"),
    "a sentence": (r"(\d+\.\d+) % of the whole", "1.65 % of the whole"),
    "the command": (r"--bits 4\.0", "--bits 3.5"),
    "a checksum": (r"<td>[0-9a-f]{8}", "<td>00000000"),
    "an added table": (r"</section>", "<table><tr><td>99</td></tr></table></section>"),
    "a heading": (r"<h2>Every budget", "<h2>Any budget"),
    "a figure": (r'"z":\{"dtype":"u1","bdata":".{8}', '"z":{"dtype":"u1","bdata":"AAAAAAAA'),
}


@pytest.mark.usefixtures("computed_once")
@pytest.mark.parametrize("what", SURVEY_EDITS)
def test_what_people_quote_is_checked(
    what: str, reports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a report whose sentences or figures were altered passes its check."""
    monkeypatch.chdir(reports)
    text = (reports / "survey.html").read_text()
    other, changed = re.subn(*SURVEY_EDITS[what], text, count=1)
    assert changed and other != text
    (reports / "quoted.html").write_text(other)
    assert main(["report", "--check", "quoted.html"]) == 1
    out = capsys.readouterr().out
    assert "shows something else" in out and "are the same" not in out


@pytest.mark.usefixtures("computed_once")
def test_sentences_of_another_version_are_not_compared(
    reports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, every report is said to be edited once the explorer words something otherwise."""
    monkeypatch.chdir(reports)
    record = read_record(reports / "survey.html")
    text = (reports / "survey.html").read_text().replace("Every budget", "Each budget")
    (reports / "older.html").write_text(text.replace(f'"{record["versions"]["commit"]}"', '"1234567"'))
    assert main(["report", "--check", "older.html"]) == 0
    assert "another version" in capsys.readouterr().out


def test_a_report_takes_as_many_tokens_as_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a report that the page made of a file with many tokens fails its own check."""
    monkeypatch.chdir(tmp_path)
    x = torch.randn(MOST_TOKENS + 904, 64, generator=torch.Generator().manual_seed(2))
    np.save("w.npy", WEIGHT)
    np.save("x.npy", x.numpy())
    assert (
        main(
            [
                "report",
                "w.npy",
                "--schemes",
                "int4_group32",
                "--inputs",
                "x.npy",
                "--methods",
                "rtn",
                "--out",
                "r.html",
            ]
        )
        == 0
    )
    numbers = read_record(tmp_path / "r.html")["numbers"]
    scheme, w = SCHEMES["int4_group32"], torch.from_numpy(WEIGHT)
    (outcome,) = evaluate_all(["rtn"], [scheme], w, x[:MOST_TOKENS])
    assert numbers["methods.int4_group32+rtn.output_sqnr_db"] == pytest.approx(outcome.output_sqnr_db)


@pytest.mark.parametrize("kind", OF_ALL)
def test_the_command_in_a_report_writes_it_again(
    kind: str, reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the appendix names a command that gives other numbers, or none. Timings are read from
    the file that the reader has to name."""
    monkeypatch.chdir(reports)
    record = read_record(reports / f"{kind}.html")
    said = command_of(record["recipe"], "again.html")
    assert html.escape(command_of(record["recipe"]), quote=True) in (reports / f"{kind}.html").read_text()
    words = shlex.split(said.replace("YOUR_TIMINGS.json", "t.json"))
    assert words[:3] == ["python", "-m", "explorer"] and main(words[3:]) == 0
    now = read_record(reports / "again.html")
    assert now["numbers"] == record["numbers"] and now["recipe"] == record["recipe"]


def test_a_tensors_report_holds_what_was_run(reports: Path) -> None:
    """If this fails, methods, one's own range or timings are lost, or stand without their source."""
    text = (reports / "tensor.html").read_text()
    numbers = read_record(reports / "tensor.html")["numbers"]
    w, x = torch.from_numpy(WEIGHT), torch.from_numpy(INPUTS)
    (outcome,) = evaluate_all(["gptq"], [SCHEMES["int4_group32_asym"]], w, x)
    assert numbers["methods.int4_group32_asym+gptq.output_sqnr_db"] == pytest.approx(outcome.output_sqnr_db)
    assert numbers["B.sqnr_db"] == pytest.approx(outcome.weight_sqnr_db)
    own = compare_calibrators(w, SCHEMES["int4_group32_asym"], 0.5).choices[-1]
    assert numbers["range.own.high"] == pytest.approx(own.high) and "your range" in text
    assert "Measured on one a CPU" in text and "Recorded on one NVIDIA" in text


def test_a_search_may_end_elsewhere_on_another_machine() -> None:
    """If this fails, GPTQ's rounding on another processor is said to be another result, or nothing is."""
    numbers = {"methods.nvfp4+gptq.output_sqnr_db": 20.0, "A.sqnr_db": 20.0}
    now = content("", (), (), (), {}, numbers, {"file": "w"}, "", loose=("methods.",))
    for change, wanted in ((2e-4, ["A.sqnr_db"]), (2e-2, [*sorted(numbers)])):
        said = {"numbers": {name: value * (1 + change) for name, value in numbers.items()}}
        assert [row.name for row in moved(said, now)] == wanted


def test_a_report_of_a_budget_of_time_is_made_again() -> None:
    """Its record and its command hold the time and the batch: else the report made again is of other bits."""
    one = bought(find_survey("all-MiniLM-L6-v2"), Asked(seconds=155e-6, batch=16))
    made = survey_report("all-MiniLM-L6-v2", one)
    assert "--time 155us --batch 16" in command_of(made.recipe) and "--bits" not in command_of(made.recipe)
    assert made.numbers["choice.seconds"] <= 155e-6 and again(made.recipe).numbers == made.numbers


def test_what_a_check_of_the_recipe_measured_is_in_the_report() -> None:
    """If this fails, a predicted loss passes for a measured one, or the other way round."""
    one = bought(find_survey("all-MiniLM-L6-v2"), Asked(4.0))
    loss = Loss("embedding", 0.0312, 0.03, 0.033, 240, 4000)
    check = Check((Checked("recipe", "fisher_diagonal", one.choice.bits, one.choice.loss, loss),), "", True)
    plain, checked = survey_report("m", one), survey_report("m", one, check, "folder")
    assert "none is measured" in " ".join(plain.lead) and "Measured" in [p.title for p in checked.parts]
    assert checked.numbers["check.recipe.fisher_diagonal.loss"] == 0.0312
    assert "--check-model --model folder" in command_of(checked.recipe)


def test_an_old_report_is_still_read(tmp_path: Path) -> None:
    """Reports say of what kind they are since there are several; those before were of tensors."""
    record = {"recipe": {"file": "w.npy"}, "tensor_sha256": "0", "versions": {}, "numbers": {}}
    text = f'<script type="application/json" id="explorer-report">{json.dumps(record)}</script>'
    (tmp_path / "old.html").write_text(text)
    assert read_record(tmp_path / "old.html")["sha256"] == "0"
    for recipe, words in (({"kind": "pear"}, "unknown kind"), ({"kind": "survey"}, "how it was made")):
        with pytest.raises(ValueError, match=words):
            again(recipe)


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
        (["report", "sample:mlp_up", "--schemes", "nvfp4", "--own", "2"], "share of min-max"),
        (["report", "survey", "all-MiniLM-L6-v2", "--bits", "1"], "bits per weight; the budget is 1"),
        (["report", "sample:mlp_up", "--schemes", "int4_group128+gptq"], "name them by --inputs"),
        (["report", "sample:mlp_up", "--schemes", "nvfp4", "--methods", "gptq"], "name them by --inputs"),
        (["report", "sample:mlp_up", "--schemes", "nvfp4", "--methods", "x", "--inputs", "y"], "'x'"),
        (["report", "sample:mlp_up", "--schemes", "nvfp4", "--timings", __file__], "no JSON file"),
        (["report", "survey", "none.jsonl"], "all-MiniLM-L6-v2"),
        (["report", "survey", "../surveys/all-MiniLM-L6-v2"], "is no survey's file"),
        (["report", "survey", "all-MiniLM-L6-v2", "--signal", "pear"], "no signal 'pear'"),
        (["report", "survey", "all-MiniLM-L6-v2", "--keep", "pear"], "no layer's name matches"),
        (["report", "survey", "all-MiniLM-L6-v2", "--model", "x"], "--check-model"),
        (["report", "speed", "--shape", "3x5x7"], "nothing was timed at 3x5x7"),
        (["report", "speed", "--schemes", "nvfp4,mxfp4,int8_row"], "one or two schemes"),
        (["report", "training", "--widths", "pear"], "no width 'pear'"),
        (["report", "pear"], "name a tensor"),
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


def test_small_numbers_are_in_latex_too(tmp_path: Path) -> None:
    """If this fails, a loss of 3e-7 is 0.000000 in a paper."""
    part = Part(
        "Losses", (), (Table("losses", ("scheme", "loss"), (("INT8_row", 7.54208e-05), ("x", 3e-7))),)
    )
    assert list(write_tables(content("", (), (part,), (), {}, {}, {"file": "w"}, ""), tmp_path))
    text = (tmp_path / "losses.tex").read_text()
    assert "INT8\\_row & 7.54208e-05" in text and "x & 3e-07" in text


def test_an_earlier_spelling_of_a_scheme_is_no_change() -> None:
    """Reports of earlier versions spelled custom schemes in upper case."""
    old = "<td>explorer report w.npy --schemes 'nvfp4,int4~1x48~ASYMMETRIC~float16~minmax'</td>"
    new = old.replace("ASYMMETRIC", "asymmetric")
    assert CUSTOM.sub(lambda found: todays_text(found[0]), old) == new != old
