"""Reports that the page makes. If these fail, a visitor takes away a report of something else than was on the
page, of somebody else's run, or nothing and no word why."""

from __future__ import annotations

import dataclasses
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

from app.learn import training
from app.sections import methods, take_away
from app.state import visits
from app.state.controls import DEFAULT_RANGE
from app.state.query import Query
from app.state.selection import Selection
from explorer.bench.cpu_gemm import plan_on_cpu, time_on_cpu
from explorer.recordings.files import Recording
from explorer.recordings.machine import Machine
from explorer.reports.tensor import More
from explorer.reports.training import Settings
from explorer.training.digits import train
from tests.records import read_record

ADDRESS = {"sample": "attention_query", "scheme": "int4_group64", "second": "int4_group64+gptq"}
HERE = Selection(**ADDRESS)
TIMED = Recording(
    Machine(cpu="a CPU of mine"), tuple(time_on_cpu(plan_on_cpu(["bf16"], [(8, 16, 32)], "torch"), repeats=2))
)
SETTINGS = Settings(("4",), 1, 1, 1)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> visits.VisitData:
    """What the page keeps of its one visitor."""
    data = visits.VisitData()
    for section in (take_away, training):
        monkeypatch.setattr(section, "visit", lambda: data)
    return data


def test_a_training_makes_its_report(kept: visits.VisitData) -> None:
    """A section without its report, or with a command that makes another."""
    kept.trained = visits.TrainedNetworks(SETTINGS, tuple(train(("4",), 1, 1, 1)))
    *_, shown = training.report(Query({}))
    address = re.search(r'href="gradio_api/file=([^"]+)"', str(shown["report"]))
    assert address and read_record(Path(unquote(address[1])))["recipe"]["kind"] == "training"
    assert "explorer report training --widths 4 --seeds 1" in unescape(str(shown["report"]))


def test_what_was_run_is_in_the_report_of_the_tensor(kept: visits.VisitData) -> None:
    """Methods, the dragged range and own timings; what a slider shows that nobody has moved is not."""
    kept.gemm_timings = TIMED
    values = dataclasses.astuple(HERE)
    run = list(methods.run("this", "", None, None, None, ["rtn", "gptq"], [], "as they are", *values))
    assert all(o.layer is None for o in run[-1].owner.outcomes), "a session keeps no layers"
    kept.method_results = run[-1].owner
    assert list(take_away.make(Query(ADDRESS | {"range": "0.4", "take": "page"}))) and kept.taken is not None
    found = read_record(kept.taken[1][0])
    recipe, numbers = found["recipe"], found["numbers"]
    assert recipe["methods"] == ["rtn", "gptq"] and recipe["own"] == 0.4
    assert recipe["inputs"] == "sample:query_in"
    outcome = run[-1].owner.outcomes[-1]
    assert numbers["methods.int4_group64+gptq.output_sqnr_db"] == outcome.output_sqnr_db
    assert recipe["measured"]["machine"]["cpu"] == "a CPU of mine" and numbers["B.sqnr_db"]
    kept.gemm_timings = None
    untouched = take_away._more(Query({"scheme": "nvfp4", "range": str(DEFAULT_RANGE)}), [])
    assert untouched == More(analyses=())


def test_what_cannot_be_reported_is_said(kept: visits.VisitData) -> None:
    """An empty file, or none and no word."""
    for trained in (None, visits.TrainedNetworks(SETTINGS, ())):
        kept.trained = trained
        with pytest.raises(ValueError):
            list(training.report(Query({})))
