"""Numbers of a sample of a large tensor on the page, until those of the whole tensor are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app.chosen import ChosenView

from app import start
from app.parts import views as views_module
from app.serving import work
from app.state import analyses
from app.state.estimates import estimated
from app.state.record import Record
from app.state.selection import is_read
from explorer import SCHEMES, compare, quantize
from explorer.analysis import estimate
from explorer.sources import open_tensors
from tests.app.acting import did, unchanged, views_of

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


def of_sample(view: ChosenView) -> bool:
    return not unchanged(view.shown.kpis) and "≈" in view.shown.kpis


def held(file: str) -> dict[str, Any]:
    """The record of a page that shows the file."""
    return {"source": "file", "file": file, "file_tensor": "weight", "scheme": "int8_row"}


def test_a_scheme_is_estimated_before_the_whole_tensor_is_quantized(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    did({"do": "file"}, upload=file, scheme="int8_row")
    chosen = held(file) | {"scheme": "int4_group128"}
    seen = views_of({"do": "scheme", "text": "int4_group128"}, **held(file))
    first = next(seen)
    recipe = Record(scheme="int4_group128").recipes[0]
    assert of_sample(first) and unchanged(first.record.scheme)
    assert analyses.known_report(Record(**chosen), recipe) is None
    assert "6.2 %" in first.answered.said and "≥" in first.shown.kpis
    end = list(seen)[-1]
    x = open_tensors(file).matrix().values
    whole = compare(x, quantize(x, SCHEMES["int4_group128"]))
    assert f"{whole.sqnr_db:.2f}" in end.shown.kpis and "≈" not in end.shown.kpis + end.answered.said
    assert end.record.scheme == str(recipe)
    size = estimated(Record(**held(file) | {"scheme": "q4_0"}))
    assert size is not None and size.reports[0].nbytes == quantize(x, SCHEMES["q4_0"]).nbytes
    monkeypatch.setattr(estimate, "WORTH", SHAPE[0] * SHAPE[1])
    assert estimated(Record(**held(file))) is None, "small tensors have none"


def test_first_numbers_stand_beside_nothing_of_the_tensor_before(file: str) -> None:
    """They come before the file is read. If this fails, they stand beside the picture of another tensor."""
    seen = views_of({"do": "file"}, upload=file, scheme="int8_row", second="nvfp4")
    first = next(view for view in seen if of_sample(view))
    assert not is_read(Record(**held(file))) and "weight" in first.shown.chips
    card = first.answered.picture
    assert "weight" in card and "1,024 × 256" in card and "img" not in card
    assert 'aria-pressed="true"' not in first.answered.samples
    said = json.loads(first.answer)["sampled"]  # the address names what is seen
    assert said["file"] == file and said["scheme"] == "int8_row"
    end = list(seen)[-1]
    assert not of_sample(end) and "data:image/png" in end.answered.picture
    assert "sampled" not in json.loads(end.answer)


def restored(seen: list[ChosenView]) -> ChosenView:
    return next(view for view in reversed(seen) if not unchanged(view.shown.kpis))


def test_a_value_that_is_not_finite_has_no_first_numbers(file: str) -> None:
    """Else a large file with a NaN is opened by ``explorer page``, or has numbers for a while."""
    assert start._can_be_sampled(file)
    x = np.load(file)
    x[-1] = np.nan
    np.save(file, x)
    assert not start._can_be_sampled(file)  # then all of it is looked at, and refused, before it is served
    seen = list(views_of({"do": "file"}, upload=file, scheme="int8_row"))
    assert "256 of 262144" in json.loads(seen[-1].answer)["why"]
    assert all(unchanged(view.shown.kpis) for view in seen)


def test_what_a_visitor_looks_at_is_awaited() -> None:
    """The handlers that show a tensor hold back what fills the screen."""
    quiet: list[bool] = []

    def seen(chosen: Record) -> str:
        quiet.append(work._NO_VIEW.free)
        return ""

    for is_seen in (True, False):
        views_module.shows(seen=is_seen)(seen)(*vars(Record()).values())
    assert quiet == [False, True] and work._NO_VIEW.free
