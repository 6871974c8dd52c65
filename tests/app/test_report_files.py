"""Reports that the page makes. If these fail, a visitor takes away a report of something else than was on the
page, of somebody else's run, or nothing and no word why."""

from __future__ import annotations

import dataclasses
from html import unescape
from pathlib import Path
from typing import Any

from app.sections import methods, take_away
from app.serving.sessions import CurrentRequest, answering
from app.state.controls import DEFAULT_RANGE
from app.state.selection import Selection
from app.state.visits import visit
from explorer.bench.cpu_gemm import plan_on_cpu, time_on_cpu
from explorer.recordings.files import Recording
from explorer.recordings.machine import Machine
from explorer.reports.tensor import More
from tests.app.acting import last, unchanged
from tests.records import read_record

HERE = Selection(sample="attention_query", scheme="int4_group64", second="int4_group64+gptq")
TIMED = Recording(
    Machine(cpu="a CPU of mine"), tuple(time_on_cpu(plan_on_cpu(["bf16"], [(8, 16, 32)], "torch"), repeats=2))
)


def record(view: Any) -> dict[str, Any]:
    (path,) = (Path(p) for p in view.files["value"] if str(p).endswith(".html"))
    return read_record(path)


def test_what_was_run_is_in_the_report_of_the_tensor() -> None:
    """Methods, the dragged range and own timings; what a slider shows that nobody has moved is not."""
    values = dataclasses.astuple(HERE)
    run = list(methods.run("this", "", None, None, None, ["rtn", "gptq"], [], "as they are", *values))
    assert all(o.layer is None for o in run[-1].owner.outcomes), "a session keeps no layers"
    with answering(CurrentRequest("whose products were timed")):
        visit().gemm_timings = TIMED
        view = last(take_away.make(*values, ["page"], "own", 0.4, run[-1].owner))
    found = record(view)
    recipe, numbers = found["recipe"], found["numbers"]
    assert recipe["methods"] == ["rtn", "gptq"] and recipe["own"] == 0.4
    assert recipe["inputs"] == "sample:query_in"
    outcome = run[-1].owner.outcomes[-1]
    assert numbers["methods.int4_group64+gptq.output_sqnr_db"] == outcome.output_sqnr_db
    assert recipe["measured"]["machine"]["cpu"] == "a CPU of mine" and numbers["B.sqnr_db"]
    untouched = take_away._more(Selection(scheme="nvfp4"), [], DEFAULT_RANGE, run[-1].owner)
    assert untouched == More(analyses=())


def test_what_cannot_be_reported_is_said(said: list[str]) -> None:
    """An empty file, or none and no word."""
    view = last(take_away.make(*dataclasses.astuple(HERE), []))
    assert said.pop() in unescape(view.status) and not said and unchanged(view.files)
