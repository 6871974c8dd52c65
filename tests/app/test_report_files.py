"""A report of the tensor that the page makes. If this fails, a visitor takes away one of something else than
was on the page, or of somebody else's run."""

from __future__ import annotations

import pytest

from app.sections import methods, take_away
from app.state import visits
from app.state.query import Query
from explorer.bench.cpu_gemm import plan_on_cpu, time_on_cpu
from explorer.recordings.files import Recording
from explorer.recordings.machine import Machine
from explorer.reports.tensor import More
from tests.records import read_record

HERE = {"sample": "attention_query", "scheme": "int4_group64", "second": "int4_group64+gptq"}
TIMED = Recording(
    Machine(cpu="a CPU of mine"), tuple(time_on_cpu(plan_on_cpu(["bf16"], [(8, 16, 32)], "torch"), repeats=2))
)


def test_what_was_run_is_in_the_report_of_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods, the dragged range and own timings; what a slider shows that nobody has moved is not."""
    kept = visits.VisitData(gemm_timings=TIMED)
    for section in (methods, take_away):
        monkeypatch.setattr(section, "visit", lambda: kept)
    assert list(methods.run(Query(HERE | {"methods": "rtn,gptq"})))
    assert kept.method_results is not None
    outcomes = kept.method_results.outcomes
    assert all(outcome.layer is None for outcome in outcomes), "a session keeps no layers"
    assert list(take_away.make(Query(HERE | {"range": "0.4", "take": "page"}))) and kept.taken is not None
    found = read_record(kept.taken[1][0])
    recipe, numbers = found["recipe"], found["numbers"]
    assert recipe["methods"] == ["rtn", "gptq"] and recipe["own"] == 0.4
    assert recipe["inputs"] == "sample:query_in"
    last = numbers["methods.int4_group64+gptq.output_sqnr_db"]
    assert last == outcomes[-1].output_sqnr_db
    assert recipe["measured"]["machine"]["cpu"] == "a CPU of mine" and numbers["B.sqnr_db"]
    kept.gemm_timings = None
    untouched = take_away._more(Query({"scheme": "nvfp4", "range": "0.5"}), [])
    assert untouched == More(analyses=())
