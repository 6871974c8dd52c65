"""Reports that the page makes. If these fail, a visitor takes away a report of something else than was on the
page, of somebody else's run, or nothing and no word why."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from app import limits
from app.learn import training
from app.parts import report_files
from app.sections import methods, speed, survey, take_away
from app.sections.methods import Owner
from app.state.controls import DEFAULT_RANGE
from app.state.selection import Selection, tensor_key
from explorer.bench.cpu_gemm import plan_on_cpu, time_on_cpu
from explorer.methods.evaluate import Outcome
from explorer.recordings.files import Recording
from explorer.recordings.gemm import recorded_gemms
from explorer.recordings.machine import Machine
from explorer.reports.check import read_record
from explorer.reports.tensor import More
from explorer.reports.training import Settings
from explorer.training.digits import train

(RECORDED,) = survey.recorded()
HERE = Selection(sample="attention_query", scheme="int4_group64", second="int4_group64+gptq")
TIMED = Recording(
    Machine(cpu="a CPU of mine"), tuple(time_on_cpu(plan_on_cpu(["bf16"], [(8, 16, 32)], "torch"), repeats=2))
)
SETTINGS = Settings(("4",), 1, 1, 1)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages shown to the visitor."""
    messages: list[str] = []
    monkeypatch.setattr(limits, "notify", messages.append)
    return messages


def last(steps: Iterator[Any]) -> Any:
    *_, view = steps
    return view


def record(view: Any) -> dict[str, Any]:
    (path,) = (Path(p) for p in view.files["value"] if str(p).endswith(".html"))
    return read_record(path)


def of_survey(run: Any = None, bits: float = 4.0) -> Any:
    return last(survey.report(RECORDED, None, None, "any", "", False, bits, "none", "bits", 1, run, ["page"]))


def of_speed(view: str, own: Any, kinds: list[str]) -> Any:
    return last(
        speed.report(*dataclasses.astuple(Selection(scheme="nvfp4")), view, "1×8192×8192", own, (), kinds)
    )


def of_training(kinds: list[str]) -> Any:
    done = training.Done(SETTINGS, tuple(train(("4",), 1, 1, 1)))
    return last(training.report(done, kinds))


PLACES = {
    "survey": (lambda: of_survey(), "explorer report survey all-MiniLM-L6-v2 --bits 4.0"),
    "speed": (lambda: of_speed("recorded", None, ["page"]), "--shape 1x8192x8192 --schemes nvfp4"),
    "training": (lambda: of_training(["page"]), "explorer report training --widths 4 --seeds 1"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_each_place_makes_its_report(kind: str) -> None:
    """A section without its report, or with a command that makes another."""
    make, command = PLACES[kind]
    view = make()
    assert record(view)["recipe"]["kind"] == kind and command in unescape(view.command)
    assert "1 file" in view.status


def test_what_was_run_is_in_the_report_of_the_tensor() -> None:
    """Methods, the range that was dragged and timings of one's own, with their names; the results of another
    tensor, and what a slider shows that nobody has moved, are not."""
    values = dataclasses.astuple(HERE)
    run = list(methods.run("this", "", None, None, None, ["rtn", "gptq"], [], "as they are", *values))
    assert all(o.layer is None for o in run[-1].owner.outcomes), "a session keeps no layers"
    view = last(take_away.make(*values, ["page"], "own", 0.4, run[-1].owner, TIMED))
    found = record(view)
    recipe, numbers = found["recipe"], found["numbers"]
    assert recipe["methods"] == ["rtn", "gptq"] and recipe["own"] == 0.4
    assert recipe["inputs"] == "sample:query_in"
    outcome = run[-1].owner.outcomes[-1]
    assert numbers["methods.int4_group64+gptq.output_sqnr_db"] == outcome.output_sqnr_db
    assert recipe["measured"]["machine"]["cpu"] == "a CPU of mine" and numbers["B.sqnr_db"]
    untouched = take_away._more(Selection(scheme="nvfp4"), [], DEFAULT_RANGE, run[-1].owner, None)
    assert untouched == More(analyses=())


def outcome(method: str, scheme: str) -> Outcome:
    return Outcome(method, method, scheme, "")


STOPPED = [
    (["rtn a", "gptq a", "rtn b"], (("rtn", "gptq"), ("a",))),
    (["rtn a", "gptq a"], (("rtn", "gptq"), ("a",))),
    (["rtn a", "gptq a", "rtn b", "gptq b"], (("rtn", "gptq"), ("a", "b"))),
    ([], None),
]


@pytest.mark.parametrize(("ran", "kept"), STOPPED)
def test_a_stopped_run_is_reported_as_far_as_the_command_makes_it(
    ran: list[str], kept: tuple[tuple[str, ...], tuple[str, ...]] | None
) -> None:
    """If this fails, ``--check`` of such a report says that numbers moved which were never there."""
    methods_ = take_away._whole_run([outcome(*text.split()) for text in ran], "")
    assert (methods_ and (methods_.names, methods_.schemes)) == kept


def test_a_check_of_another_recipe_is_left_out() -> None:
    """If this fails, the report of one budget shows the true loss of another."""
    run = survey.Run("another recipe", object(), "")  # type: ignore[arg-type]
    assert record(of_survey(run))["recipe"]["check_model"] is False


ASKED = (None, None, "any", "", False, 4.0, "none")
REFUSED = [
    (
        lambda: survey.report(RECORDED, None, None, "any", "", False, 4.0, "none", "bits", 1, None, []),
        "at least one kind",
    ),
    (
        lambda: survey.report("own", None, None, "any", "", False, 4.0, "none", "bits", 1, None, ["page"]),
        "open a survey",
    ),
    (lambda: iter([of_speed("live", None, ["page"])]), "nothing is measured here yet"),
    (lambda: training.report(None, ["page"]), "Train first"),
    (lambda: training.report(training.Done(SETTINGS, ()), ["page"]), "0 of 5 networks"),
    (lambda: take_away.make(*dataclasses.astuple(HERE), []), "at least one kind"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_cannot_be_reported_is_said(make: Any, words: str, said: list[str]) -> None:
    """An empty file, or none and no word."""
    view = last(make())
    assert words in said[0] and words in view.status


def test_without_a_printer_the_page_says_what_to_do(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A hosted page may have no Chromium: the HTML report is made, and how to print it is said."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CHROMIUM", raising=False)
    alone = of_training(["pdf"])
    assert "Ctrl+P" in said[0] and "Chromium" in alone.status and alone.files.get("value") is None
    both = of_training(["page", "pdf", "parts"])
    assert [Path(p).suffix for p in both.files["value"]] == [".html"] and "Ctrl+P" in both.status
    assert len(said) == 1, "what could be made was made: no warning"


def test_a_stopped_report_ends() -> None:
    """If this fails, Stop only hides the work: it goes on, and holds the place of the next visitor's."""
    before, ended = threading.active_count(), threading.Event()

    def compose(progress: Any) -> Any:
        try:
            while True:
                progress(1, 7)
        finally:
            ended.set()

    steps = report_files.report_steps(compose, ["page"])
    assert "1 of 7" in next(steps).status
    steps.close()  # type: ignore[attr-defined]
    assert ended.wait(10) and threading.active_count() <= before + 1


def test_a_visitors_results_stay_with_the_visitor() -> None:
    """What was run travels in the session's own state: nothing of it is found by another selection, nor under
    another upload of the same name."""
    owner = Owner("w", ("file", "/tmp/a/w.npy", 1, None), (outcome("rtn", "nvfp4"),))
    chosen = Selection(source="builtin", sample="mlp_up")
    assert take_away._more(chosen, [], 1.0, owner, None).methods is None
    mine = dataclasses.replace(owner, tensor=tensor_key(chosen))
    assert take_away._more(chosen, [], 1.0, mine, None).methods is not None
    assert recorded_gemms().machine.gpu, "what ships is not what a visitor has timed"
