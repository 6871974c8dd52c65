"""Numbers of a sample of a large tensor on the page, until those of the whole tensor are there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import chosen as page
from app import start
from app.chosen import ChosenView
from app.parts import views as views_module
from app.serving import work
from app.serving.work import OvertakenError
from app.state import analyses
from app.state.estimates import estimated
from app.state.record import Record
from app.state.selection import is_read
from explorer import SCHEMES, compare, quantize
from explorer.analysis import estimate
from explorer.sources import open_tensors
from tests.app.test_handlers import did, unchanged

SHAPE = (1024, 256)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file whose tensor counts as large."""
    monkeypatch.setattr(estimate, "WORTH", 0)
    monkeypatch.setattr(estimate, "WORTH_SEARCHED", 0)
    monkeypatch.setattr(estimate, "ELEMENTS", 1 << 14)
    path = tmp_path / "weight.npy"
    np.save(path, np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32))
    return str(path)


def views(
    *acts: dict[str, Any], upload: str | None = None, sampled: bool = False, whole: bool = False, **held: Any
) -> Iterator[ChosenView]:
    text = json.dumps({"number": 7, "whole": whole, "acts": acts, "sampled": sampled})
    yield from page.choose(text, upload, *vars(Record(**held)).values())


def of_sample(view: ChosenView) -> bool:
    return not unchanged(view.shown.kpis) and "≈" in view.shown.kpis


def held(file: str) -> dict[str, Any]:
    """The record of a page that shows the file."""
    return {"source": "file", "file": file, "file_tensor": "weight", "scheme": "int8_row"}


def test_a_scheme_is_estimated_before_the_whole_tensor_is_quantized(file: str) -> None:
    did({"do": "file"}, upload=file, scheme="int8_row")
    seen = views({"do": "scheme", "text": "int4_group128"}, **held(file))
    first = next(seen)
    known = analyses.known_report(Record(**held(file) | {"scheme": "int4_group128"}), _recipe())
    assert of_sample(first) and known is None and unchanged(first.record.scheme)
    assert "≈" in first.answered.said and "≈ 6.2 % of the tensor, ± " in first.answered.said
    assert "≥" in first.shown.kpis and "dB, of 6.2 %" in first.shown.kpis
    last = list(seen)[-1]
    x = open_tensors(file).matrix().values
    whole = compare(x, quantize(x, SCHEMES["int4_group128"]))
    assert f"{whole.sqnr_db:.2f}" in last.shown.kpis and "≈" not in last.shown.kpis + last.answered.said
    assert last.record.scheme == str(_recipe())
    size = estimated(Record(**held(file) | {"scheme": "q4_0"}))
    assert size is not None and size.reports[0].nbytes == quantize(x, SCHEMES["q4_0"]).nbytes


def _recipe() -> Any:
    return Record(scheme="int4_group128").recipes[0]


def test_a_file_is_estimated_before_it_is_read(file: str) -> None:
    seen = views({"do": "file"}, upload=file, scheme="int8_row", second="nvfp4")
    sampled = next(view for view in seen if of_sample(view))
    assert not is_read(Record(**held(file))) and "weight" in sampled.shown.chips
    assert "A ± " in sampled.answered.said and "B ± " in sampled.answered.said
    assert not of_sample(list(seen)[-1])


def test_first_numbers_stand_beside_nothing_of_the_tensor_before(file: str) -> None:
    """Name, size and samples are the file's, its picture is to come, and the script is told the record, so
    that the address names what is seen. If this fails, numbers of one tensor stand beside the picture of
    another."""
    seen = list(views({"do": "file"}, upload=file, scheme="int8_row"))
    first = next(view for view in seen if of_sample(view))
    card = first.answered.picture
    assert (
        "weight" in card and "1,024 × 256" in card and "follow with the whole" in card and "img" not in card
    )
    assert 'aria-pressed="true"' not in first.answered.samples
    said = json.loads(first.answer)
    assert said["number"] == 7 and said["sampled"]["file"] == file and said["sampled"]["scheme"] == "int8_row"
    assert "data:image/png" in seen[-1].answered.picture and "sampled" not in json.loads(seen[-1].answer)


def test_first_numbers_come_before_all_else_where_a_page_opens(file: str) -> None:
    """If this fails, a page that opens on a large file shows nothing until all of it was computed."""
    did({"do": "file"}, upload=file, scheme="int8_row")  # it is read, as a link to a sample's tensor is
    seen = list(views({"do": "scheme", "text": "int4_row"}, whole=True, **held(file)))
    first = next(view for view in seen if not unchanged(view.answered.said))
    assert of_sample(first) and not unchanged(first.answered.goals) and not unchanged(first.answered.head)
    assert json.loads(first.answer)["sampled"]["scheme"] == "int4_row"


def test_the_way_back_from_first_numbers_shows_all_of_what_was_shown(file: str) -> None:
    """A large tensor and then the one before it, before all numbers of the first are there: numbers, bar and
    picture are again those of the second. If this fails, they stay those of a tensor that was left."""
    at_home = {"source": "builtin", "sample": "mlp_down", "scheme": "int8_row"}
    shown = did({"do": "sample", "name": "mlp_down"}, whole=True, **at_home)
    *_, last = views({"do": "sample", "name": "mlp_down"}, sampled=True, **at_home)
    assert last.answered.picture == shown.answered.picture and last.shown.chips == shown.shown.chips
    assert last.shown.kpis == shown.shown.kpis and last.answered.samples == shown.answered.samples


@pytest.mark.parametrize("end", [ValueError("no memory for it"), OvertakenError("other acts follow")])
def test_estimates_of_what_is_not_shown_go_away(
    file: str, end: Exception, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, numbers of a scheme that was refused or left stand beside the scheme before it."""
    shown = did({"do": "file"}, upload=file, scheme="int8_row")

    def fail(*_: object) -> Iterator[str]:
        raise end
        yield ""

    with monkeypatch.context() as patch:
        patch.setattr(page, "analysing", fail)
        seen = list(views({"do": "scheme", "text": "int5_row"}, **held(file)))
    assert of_sample(seen[0])
    if isinstance(end, OvertakenError):  # the script sends the acts again, here with the way back
        assert json.loads(seen[-1].answer)["overtaken"]
        seen = list(views({"do": "scheme", "text": "int8_row"}, sampled=True, **held(file)))
    else:
        assert said == ["no memory for it"]
    restored = next(view for view in reversed(seen) if not unchanged(view.shown.kpis))
    assert restored.shown.kpis == shown.shown.kpis and restored.answered.said == shown.answered.said


@pytest.mark.usefixtures("said")
def test_estimates_of_a_request_before_go_away_with_a_refusal(file: str) -> None:
    """Else numbers of a scheme that was left stand under "Still shown: the previous view"."""
    shown = did({"do": "file"}, upload=file, scheme="int8_row")
    refused = list(views({"do": "scheme", "text": "int4~nonsense"}, sampled=True, **held(file)))
    restored = next(view for view in reversed(refused) if not unchanged(view.shown.kpis))
    assert restored.shown.kpis == shown.shown.kpis


def test_a_refusal_is_said_though_nothing_can_come_back(
    file: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the visitor reads of the tensor before, and not what was wrong with the act."""
    did({"do": "file"}, upload=file, scheme="int8_row")
    did({"do": "scheme", "text": "int8_row"}, upload=file, **held(file))

    def gone(*_: object) -> ChosenView:
        raise OSError("the file is gone")

    monkeypatch.setattr(page, "_as_held", gone)
    *_, last = views({"do": "scheme", "text": "int4~nonsense"}, sampled=True, **held(file))
    assert "nonsense" in json.loads(last.answer)["why"] and "gone" not in "".join(said)


def test_small_tensors_have_no_estimate(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "WORTH", SHAPE[0] * SHAPE[1])
    assert estimated(Record(**held(file))) is None


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages shown to the visitor."""
    messages: list[str] = []
    monkeypatch.setattr(page.limits, "notify", messages.append)
    return messages


def test_a_value_that_is_not_finite_has_no_first_numbers(file: str) -> None:
    """Wherever it is. If this fails, a large file with a NaN is opened by ``explorer page`` and never
    refused, or has numbers for a while."""
    assert start._can_be_sampled(file)
    x = np.load(file)
    x[-1] = np.nan
    np.save(file, x)
    assert not start._can_be_sampled(file)  # then all of it is looked at, and refused, before it is served
    seen = list(views({"do": "file"}, upload=file, scheme="int8_row"))
    assert "256 of 262144 values are NaN or Inf" in json.loads(seen[-1].answer)["why"]
    assert all(unchanged(view.shown.kpis) for view in seen)


def test_what_fills_the_screen_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, first numbers wait for a core while schemes nobody looks at are computed."""
    waited: list[float] = []
    monkeypatch.setattr(work, "_WAITS_S", 0.05)
    for kind in (work.FILLING, page.CHOOSING):
        check = work.check_of_this_run(kind)
        for inside in (False, True):
            began = time.monotonic()
            with work.first_numbers() if inside else nullcontext():
                check()
            waited.append(time.monotonic() - began)
    assert waited[1] >= 0.05 and max(waited[0], *waited[2:]) < 0.05


def test_what_fills_the_screen_gives_way_to_views_and_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a view waits for the rows of other visitors' tables, or those wait for ever on a page
    that somebody always looks at."""
    monkeypatch.setattr(work, "_WAITS_S", 0.05)
    check = work.check_of_this_run(work.FILLING)
    began = time.monotonic()
    with work.awaited():
        check()
        first = time.monotonic() - began
        for _ in range(200):
            time.sleep(0.001)
            check()
    whole = time.monotonic() - began
    assert first >= 0.05
    assert whole <= 2 * (0.05 + 200 * 0.01), "half of its time, of what sleeps of a millisecond take at most"
    began = time.monotonic()
    check()
    assert time.monotonic() - began < 0.05


def test_what_a_visitor_looks_at_is_awaited() -> None:
    """The handlers that show a tensor hold back what fills the screen. If this fails, they share the cores
    with it."""
    quiet: list[bool] = []

    def seen(chosen: Record) -> str:
        quiet.append(work._NO_VIEW.free)
        return ""

    for is_seen in (True, False):
        views_module.shows(seen=is_seen)(seen)(*vars(Record()).values())
    assert quiet == [False, True] and work._NO_VIEW.free
