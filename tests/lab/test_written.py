"""What recipes save that can be written: the table of README and docs/models.md, and the commands beside it.

If these fail, a reader who runs the printed commands gets other numbers than are printed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explorer.checkpoints import EXPORTS
from explorer.cli import main
from explorer.models.evaluate import MODEL
from lab.recipes import SHIPPED
from lab.written import BUDGETS, TARGETS, WrittenRun, readme_table, recorded_written, written_table

RECORDED = recorded_written()
ROWS = [run for run in RECORDED.rows if run.kind == "embedding"]
COMMANDS = pytest.mark.parametrize("run", ROWS, ids=lambda run: f"{run.target}-{run.budget:g}")


def recipe_of(run: WrittenRun, folder: Path) -> Path:
    """The file that the printed command writes."""
    out = folder / "recipe.json"
    command = ["recipe", str(SHIPPED), "--bits", f"{run.budget:g}", "--for", run.target, "--out", str(out)]
    assert main([*command, "--json"]) == 0
    return out


def test_every_target_and_budget_is_there() -> None:
    """A row that is missing would be the one that saves least."""
    assert [(run.budget, run.target) for run in ROWS] == [(b, t) for b in BUDGETS for t in TARGETS]
    assert all(run.fused == EXPORTS[run.target].fused and run.bits <= run.budget for run in RECORDED.rows)
    assert all(run.bound <= run.loss < run.single_loss for run in RECORDED.rows if run.single)
    assert written_table(RECORDED.rows).count("\n") == len(RECORDED.rows) + 1
    assert readme_table(RECORDED).startswith("Recorded on one ")


@COMMANDS
def test_the_printed_recipe_is_the_recorded_one(run: WrittenRun, tmp_path: Path) -> None:
    """Bits of the files and the predicted loss, from the shipped survey."""
    made = json.loads(recipe_of(run, tmp_path).read_text())
    assert made["bits"] == pytest.approx(run.bits, rel=1e-5)
    assert made["predicted_loss"] == pytest.approx(run.predicted, rel=1e-5)


@pytest.mark.thorough
@COMMANDS
def test_the_printed_check_gives_the_printed_numbers(
    run: WrittenRun, minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measured loss, and the best single scheme with its own."""
    recipe = recipe_of(run, tmp_path)
    capsys.readouterr()
    survey = ("--survey", str(SHIPPED), "--model", str(minilm))
    assert main(["check", str(recipe), *survey, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["loss"]["value"] == pytest.approx(run.loss, rel=1e-3)
    if run.single:
        (best,) = [row for row in rows if row["name"] == run.single and row["what"].startswith("one scheme")]
        assert best["loss"]["value"] == pytest.approx(run.single_loss, rel=1e-3)
    assert MODEL.endswith("MiniLM-L6-v2")
