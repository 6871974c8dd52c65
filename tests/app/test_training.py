"""Training on the page. If these fail, a visitor trains something else than was asked for, loses what was
trained, or takes away a report of another run."""

from __future__ import annotations

import dataclasses
from html import unescape

import pytest

from app import limits
from app.learn import training
from app.state import visits
from app.state.query import Query
from explorer.progress import StoppedError
from explorer.recordings.files import recorded
from explorer.training.digits import Underflow

ASKED = Query({"widths": "4", "seeds": "1", "epochs": "1", "again": "1"})


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch) -> visits.VisitData:
    here = visits.VisitData()
    monkeypatch.setattr(training, "visit", lambda: here)
    return here


def test_a_run_is_kept_and_reported(visit: visits.VisitData) -> None:
    """Progress first; figures, table and files at the end; the report is of this run, and is refused
    before."""
    with pytest.raises(ValueError, match="Train first"):
        list(training.report(ASKED))
    first, *_, last = training.run(ASKED)
    assert (
        "0 of 5" in str(first["status"])
        and "LSQ" in str(last["table"])
        and "digits.csv" in str(last["files"])
    )
    assert {"said", "accuracy", "curves", "steps"} <= last.keys()
    assert visit.trained and len(visit.trained.results) == 5
    made = unescape(str(list(training.report(ASKED))[-1]["report"]))
    assert "explorer report training --widths 4 --seeds 1" in made and "report.html" in made


def test_the_time_limit_keeps_what_is_trained(
    visit: visits.VisitData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that would go on too long ends with its files, and says how far it came."""
    short = dataclasses.replace(limits.current(), run_seconds=0)
    monkeypatch.setattr(limits, "current", lambda: short)
    shown = []
    with pytest.raises(StoppedError, match="1 of 5"):
        for step in training.run(ASKED):
            shown.append(step)
    assert "files" in shown[-1] and visit.trained and len(visit.trained.results) == 1


def test_loss_scaling_is_the_recordings() -> None:
    """A number without its machine; a control that is not valid and no word."""
    asked = Query({"seeds": "pear", "hidden": "pear"})
    words = unescape(str(training.view(asked)["loss-scaling-words"]))
    assert recorded("gradients", Underflow).sentence in words and asked.problems.keys() == {"seeds", "hidden"}
