"""What an address says, and what of it cannot be shown. If these fail, a link's receiver sees another view
than its sender, without a word."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest

from app import ui
from app.parts.controls import NumberInput
from app.places import NAMES, PLACES
from app.sections import answer
from app.sections.bar import check_place, unknown_keys
from app.serving.sessions import CurrentRequest, answering
from app.serving.values import MOST_TEXT
from app.state.query import NO_FILE, Query, texts_of
from app.state.record import Record
from tests.app.acting import query_of, ran, shown

LINKS: list[tuple[dict[str, str], dict[str, str]]] = [
    ({}, {}),
    ({"scheme": "nvfp4", "sample": "mlp_down", "tab": "speed"}, {}),
    ({"sample": "zzz"}, {"sample": "mlp_up"}),
    ({"source": "moon"}, {"source": "builtin"}),
    ({"source": "file"}, {"source": NO_FILE}),
    ({"scheme": "zzz"}, {"scheme": "zzz"}),
    ({"second": "zzz"}, {"second": "zzz"}),
    ({"scheme": "nvfp4", "second": "nvfp4"}, {"second": "as A and as B"}),
    ({"second": "nvfp4", "row": "3", "column": "4"}, {}),
    ({"row": "x", "column": "4"}, {"row": "whole number"}),
    ({"goal": "nonsense"}, {"goal": "4-bit"}),
    ({"list": "nvfp4,zzz"}, {"list": "schemes"}),
]


def test_what_a_link_cannot_show_is_said() -> None:
    """Else its receiver takes the defaults for what the sender saw, and the next copy has the same defect."""
    for query, words in LINKS:
        seen = Query(query)
        assert isinstance(seen.record, Record)
        assert seen.problems.keys() == words.keys(), query
        assert all(words[key] in said for key, said in seen.problems.items()), query


CONTROLS = [
    (place.NAME, one)
    for place in PLACES
    for section in place.SECTIONS
    for one in section.controls
    if one.usual or not isinstance(one, NumberInput)
]


@pytest.mark.parametrize("control", [one for _, one in CONTROLS], ids=lambda one: one.key)
def test_a_control_reads_its_usual_value_and_refuses_nonsense(control) -> None:  # type: ignore[no-untyped-def]
    """Every control of every section: the usual value is valid and says nothing; what is no value is said,
    with what is accepted, and the usual one is shown."""
    usual = control.of(Query({}))
    for nonsense in ("\u2603", "-1e99", "[" * 500):
        query = Query({control.key: nonsense})
        found = control.of(query)
        assert found == usual or not query.problems
        assert query.problems.keys() <= {control.key}
        assert all(len(said) > 20 for said in query.problems.values())


def test_keys_that_no_section_reads_are_named() -> None:
    """A mistyped key would be dropped without a word. Those of earlier versions say nothing."""
    known = {key for place in PLACES for section in place.SECTIONS for key in section.keys}
    assert unknown_keys(
        Query({"pear": "1", "tab": "model", "ranked": "x", "utm_source": "x"}), known
    ).keys() == {"pear"}
    (said,) = set(unknown_keys(Query(dict.fromkeys("abcde", "1")), known).values())
    assert "'a'" in said and "2 more" in said
    assert {place for place, _ in NAMES.values()} <= {place.NAME for place in PLACES}


def test_a_place_and_a_section_that_are_not_there_are_said() -> None:
    """Else a link to a section that was renamed shows the place's beginning without a word."""
    sections, moved = (
        {"tensor": ["values"], "model": ["sizes"], "old": ["sizes"]},
        {"speed": ("speed", "speed")},
    )
    for link in ("", "section=values", "tab=old&section=sizes", "section=speed"):
        check_place(query := Query(dict(parse_qsl(link))), sections, moved)
        assert not query.problems, link
    for link, wrong in (
        ("tab=pear", "tab"),
        ("section=sizes", "section"),
        ("tab=model&section=x", "section"),
    ):
        check_place(query := Query(dict(parse_qsl(link))), sections, moved)
        assert [*query.problems] == [wrong], link


def test_a_record_and_its_address_are_one() -> None:
    """What is written of a record is read as the same one, and a fresh page writes nothing."""
    assert not any(texts_of(Record.fresh()).values())
    for record in (
        Record.fresh(),
        Record(scheme="nvfp4", second="mxfp4", element="3,4", goal="8-bit", shortlist="nvfp4,int8_row"),
        Record(sample="mlp_down", scheme="nvfp4", second=""),
        Record(source="model", model="owner/name", revision="main", layer="a.weight", scheme="int8_row"),
    ):
        texts = {key: text for key, text in texts_of(record).items() if text}
        assert Query(dict(parse_qsl(urlencode(texts)))).record == record


def test_a_query_takes_texts_alone() -> None:
    """Values of other kinds come from programs alone."""
    long = {"shape": f"1{' ' * MOST_TEXT}1"}
    many = {str(i): "" for i in range(101)}
    for given in (None, [], {"a": 1}, long, {"what": "x" * 70_000}, many, {1: "a"}):
        with pytest.raises(ValueError, match=r"text|characters"):
            Query(given)
    for control in (one for place in PLACES for section in place.SECTIONS for one in section.controls):
        text = "x" * getattr(control, "most", 1)
        assert Query({control.key: text})[control.key] == text


def test_a_link_that_cannot_be_shown_says_why() -> None:
    """The bar names what was asked for, and nothing of another tensor stands beside it."""
    asked = {"source": "model", "model": "/nonexistent/x", "layer": "w", "scheme": "nvfp4"}
    with answering(CurrentRequest("mine")):
        assert ran(answer.fill(query_of(**asked)))["tick"] == answer.COMPLETE
        slots = shown(**asked)
    assert "/nonexistent/x" in slots["said"] and not slots["frontier"] and not slots["listed"]


def test_back_leads_to_a_tensor_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link from outside cannot carry the file; of one that another replaced, the tensor is said."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path.parent))
    np.save(path := tmp_path / "second.npy", np.ones((4, 4), np.float32))
    asked = {"source": "file", "file": str(path)}
    right = Query(asked | {"file_tensor": "second"})
    assert (right.record.source, right.record.file) == ("file", str(path)) and not right.problems
    other = Query(asked | {"file_tensor": "first"})
    assert other.record.file_tensor == "second"
    assert "'first'" in other.problems["file_tensor"] and "second.npy" in other.problems["file_tensor"]
    assert Query(asked).record.file_tensor == "second"
    outside = Query(asked | {"file": "/etc/passwd"})
    assert outside.record.source == "builtin" and outside.problems


def test_a_page_without_a_link_compares_two() -> None:
    """A link that names one scheme has one."""
    fresh = Query({}).record
    assert (fresh.scheme, fresh.second) == ("int4_group128_asym", "nvfp4")
    assert (
        Query({"scheme": "nvfp4"}).record.second == "" and Query({"second": "mxfp4"}).record.second == "mxfp4"
    )


def test_each_section_is_one_component() -> None:
    """At most 120 components and 90 listeners: the page's time to open grows with them."""
    built = ui.build()
    assert len(built.blocks) <= 120 and len(built.fns) <= 90
    assert sum(len(section.title) > 0 for place in PLACES for section in place.SECTIONS) <= 17
