"""What recipes save that can be written: the commands printed in README and docs/models.md.

If these fail, a reader who runs the printed commands gets other numbers than are printed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explorer.cli import main
from explorer.models.evaluate import MODEL
from explorer.survey import SENSITIVITIES, load_survey
from explorer.survey.run import SCHEMES
from lab.recipes import SHIPPED, SIGNAL
from lab.written import WrittenRun, recorded_written
from tests.covering import covering, sampled

ROWS = [run for run in recorded_written().rows if run.kind == "embedding"]
BY_ROW = {f"{run.target}-{run.budget:g}": run for run in ROWS}


def recipe_of(run: WrittenRun, folder: Path) -> Path:
    """The file that the printed command writes."""
    out = folder / "recipe.json"
    command = ["recipe", str(SHIPPED), "--bits", f"{run.budget:g}", "--for", run.target, "--out", str(out)]
    assert main([*command, "--json"]) == 0
    return out


@pytest.mark.parametrize("row", sampled(BY_ROW, covering(BY_ROW, lambda row: {BY_ROW[row].target})))
def test_the_printed_recipe_is_the_recorded_one(row: str, tmp_path: Path) -> None:
    """Bits of the files and the predicted loss, from the shipped survey."""
    run, made = BY_ROW[row], json.loads(recipe_of(BY_ROW[row], tmp_path).read_text())
    assert made["bits"] == pytest.approx(run.bits, rel=1e-5)
    assert made["predicted_loss"] == pytest.approx(run.predicted, rel=1e-5)


def test_the_shipped_survey_is_whole_and_current() -> None:
    """By every signal, of the schemes that a survey has without being told."""
    head, survey = load_survey(SHIPPED).head, load_survey(SHIPPED)
    assert survey.complete and len(survey.linear) == 36 and (head.model, head.schemes) == (MODEL, SCHEMES)
    assert head.signals == tuple(SENSITIVITIES) and head.default == SIGNAL
