"""Reports: one file that asks for nothing, whose numbers can be computed again.

If these fail, a figure in somebody's document cannot be traced, or opens to nothing without a network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from playwright.sync_api import Browser

from explorer import SCHEMES, load_matrix
from explorer.analysis.calibration import compare_calibrators
from explorer.bench.cpu_gemm import plan_on_cpu, time_on_cpu
from explorer.cli import main
from explorer.methods.evaluate import evaluate_all
from explorer.methods.recipe import Recipe
from explorer.recordings.files import recording_json
from explorer.recordings.machine import Machine
from explorer.reports import as_html, command_of, survey_report, tensor_report
from explorer.reports.survey import Asked, bought, commands, find_survey
from explorer.sources.tensors import Matrix
from explorer.survey.check import Check, Checked
from explorer.survey.loss import Loss
from tests.covering import sampled
from tests.page.acts import new_context
from tests.records import read_record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the built-in layer with its print, figures and tables, made by the command."""
    made = tmp_path_factory.mktemp("report")
    files = ["--out", f"{made}/r.html", "--pdf", f"{made}/r.pdf", "--figures", f"{made}/files"]
    command = ["report", "sample:mlp_up", "--schemes", "int4_group128_asym,nvfp4", *files]
    with ThreadPoolExecutor() as thread:  # that draws by a browser of its own: one a thread
        assert thread.submit(main, command).result() == 0
    return made


def test_the_file_works_from_disk_and_asks_for_nothing(folder: Path, browser: Browser) -> None:
    """Figures are painted, with fonts of the file, and no request leaves the page."""
    context = new_context(browser)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{folder / 'r.html'}")
    page.evaluate("async () => { await window.drawn; await document.fonts.ready; }")
    figures = page.locator(".plot .main-svg").all()
    assert len(figures) >= 7 and all(figure.bounding_box() for figure in figures)
    assert page.evaluate("document.fonts.check('15px Inter')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert [url.split(":")[0] for url in asked] == ["file"]


def test_numbers_are_the_librarys_and_figures_are_files(folder: Path) -> None:
    """Figures and tables have the names that they have in the report."""
    x, text, files = load_matrix("sample:mlp_up"), (folder / "r.html").read_text(), folder / "files"
    recipes = [Recipe(SCHEMES[name]) for name in ("int4_group128_asym", "nvfp4")]
    computed = tensor_report(x, recipes, {"file": "sample:mlp_up"})
    frame = pandas.read_csv(files / "numbers.csv").set_index("quantity")
    assert frame.iloc[0, 1] == pytest.approx(computed.numbers["B.sqnr_db"], rel=1e-9)
    assert read_record(folder / "r.html")["numbers"]["A.sqnr_db"] == pytest.approx(19.47, abs=0.01)
    for name in re.findall(r'id="figure-([\w-]+)"', text):
        assert (files / f"{name}.svg").read_text().startswith("<svg")
        assert (files / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (files / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in re.findall(r'id="table-([\w-]+)"', text):
        rows = pandas.read_csv(files / f"{name}.csv")
        assert len(rows) == len(json.loads((files / f"{name}.json").read_text())) > 0
        assert "\\toprule" in (files / f"{name}.tex").read_text()
    assert (folder / "r.pdf").read_bytes().startswith(b"%PDF")


WEIGHT = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).numpy()
INPUTS = torch.randn(48, 64, generator=torch.Generator().manual_seed(1)).numpy()
OF_ALL = {
    "tensor": "w.npy --schemes int4_group32_asym,int4_group32_asym+gptq --inputs x.npy --methods rtn,gptq "
    "--own 0.5 --timings t.json",
    "survey": "survey all-MiniLM-L6-v2 --bits 4 --for compressed-tensors --keep layer.0",
    "speed": "speed --schemes nvfp4,bf16",
    "training": "training --widths 4 --seeds 1 --epochs 1 --again 1 --activations int8_row",
}
"""A small report of each kind, with all that it can hold but a model that is run."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.fixture
def reports(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of reports, to stand in."""
    monkeypatch.chdir(made)
    return made


@pytest.mark.parametrize("kind", sampled(OF_ALL, ["tensor", "survey"]))
def test_the_command_in_a_report_writes_it_again(kind: str, reports: Path) -> None:
    """If this fails, the appendix names a command that gives other numbers, or none. Timings are read from
    the file that the reader has to name."""
    record = read_record(reports / f"{kind}.html")
    said = command_of(record["recipe"], "again.html")
    assert html.escape(command_of(record["recipe"]), quote=True) in (reports / f"{kind}.html").read_text()
    words = shlex.split(said.replace("YOUR_TIMINGS.json", "t.json"))
    assert words[:3] == ["python", "-m", "explorer"] and main(words[3:]) == 0
    now = read_record(reports / "again.html")
    assert now["numbers"] == record["numbers"] and now["recipe"] == record["recipe"]


def test_a_tensors_report_holds_what_was_run(reports: Path) -> None:
    """If this fails, methods or one's own range are lost."""
    numbers, scheme = read_record(reports / "tensor.html")["numbers"], SCHEMES["int4_group32_asym"]
    w, x = torch.from_numpy(WEIGHT), torch.from_numpy(INPUTS)
    (outcome,) = evaluate_all(["gptq"], [scheme], w, x)
    assert numbers["methods.int4_group32_asym+gptq.output_sqnr_db"] == pytest.approx(outcome.output_sqnr_db)
    assert numbers["B.sqnr_db"] == pytest.approx(outcome.weight_sqnr_db)
    own = compare_calibrators(w, scheme, 0.5).choices[-1]
    assert numbers["range.own.high"] == pytest.approx(own.high)


def test_a_command_to_copy_has_no_characters_of_a_terminal() -> None:
    """A survey names its model as somebody else wrote it."""
    found = find_survey("all-MiniLM-L6-v2")
    head = dataclasses.replace(found.head, model="a'\x1b[31m\n\u202eb")
    line, *_ = commands(bought(dataclasses.replace(found, head=head), Asked()), "r.json")
    assert line.isprintable() and shlex.split(line)[2] == "a'\\x1b[31m\\n\\u202eb"


def test_a_survey_by_time_and_with_its_check() -> None:
    """Record and command hold the time and the batch: else the report made again is of other bits. A loss
    that was measured stands beside the predicted one."""
    one = bought(find_survey("all-MiniLM-L6-v2"), Asked(seconds=240e-6, batch=16))
    timed = survey_report("all-MiniLM-L6-v2", one)
    assert "--time 240us --batch 16" in command_of(timed.recipe) and "--bits" not in command_of(timed.recipe)
    assert timed.numbers["choice.seconds"] <= 240e-6
    loss = Loss("embedding", 0.0312, 0.03, 0.033, 240, 4000)
    check = Check((Checked("recipe", "fisher_diagonal", one.choice.bits, one.choice.loss, loss),), "", True)
    checked = survey_report("m", one, check, "folder")
    assert checked.numbers["check.recipe.fisher_diagonal.loss"] == 0.0312
    assert not [name for name in timed.numbers if name.startswith("check.")]
    assert "--check-model --model folder" in command_of(checked.recipe)


WRONG = (
    ("", "tensor"),
    ("sample:mlp_up --schemes nvfp4,mxfp4,int8_row", "two schemes"),
    ("sample:mlp_up --schemes nvfp4 --element 9999,0", "(9999, 0)"),
    ("sample:mlp_up --schemes nvfp4 --out r.txt", ".html"),
    ("sample:mlp_up --schemes nvfp4 --own 2", "2.0"),
    ("sample:mlp_up --schemes int4_group128+gptq", "--inputs"),
    (f"sample:mlp_up --schemes nvfp4 --timings {__file__}", "JSON"),
    ("survey ../surveys/all-MiniLM-L6-v2", "survey"),
    ("survey all-MiniLM-L6-v2 --bits 1", "budget is 1"),
    ("survey all-MiniLM-L6-v2 --keep pear", "name matches"),
    ("survey all-MiniLM-L6-v2 --model x", "--check-model"),
    ("speed --shape 0x5x7", "0x5x7"),
)


def test_wrong_input_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was wrong, and no file is left behind."""
    monkeypatch.chdir(tmp_path)
    for arguments, fact in WRONG:
        assert main(["report", *arguments.split()]) == 2, arguments
        assert fact in capsys.readouterr().err, arguments
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("values", [torch.zeros(8, 32), torch.full((1, 1), 1e30), torch.randn(1, 1000)])
def test_hard_tensors_have_reports(values: torch.Tensor) -> None:
    """All zeros, one value, one row; a tensor's name cannot become part of the file's program."""
    name = "</script><script>alert(1)</script>"
    matrix = Matrix(values, name, name, tuple(values.shape), "float32")
    recipes = [Recipe(SCHEMES["nvfp4"]), Recipe(SCHEMES["fp32"])]
    made = tensor_report(matrix, recipes, {"file": name})
    assert made.numbers and "<script>alert(1)" not in as_html(made)
