"""What sections take of the address, and what they say of it. If these fail, a number is of another model or
another choice than the page shows, or a visitor is told the same thing in three places."""

from __future__ import annotations

import dataclasses
import itertools
import json
from types import SimpleNamespace
from typing import Any

import gradio as gr
import plotly.graph_objects as go
import pytest
from markupsafe import Markup

from app import limits
from app.parts.section import Section, drawn
from app.places import PLACES
from app.sections import bar, budget, checkpoints, methods, ranges, take_away, values
from app.serving.values import DEFECT
from app.state import analyses
from app.state.query import Query
from app.theme import plot_data
from explorer import SourceError


def functions_of(section: Section) -> dict[str, Any]:
    """What the section's script calls, by name."""
    return {function.__name__: function for function in section._server_functions()}


def ended(section: Section, run: str, **query: str) -> str:
    """The last that the browser hears of a run."""
    *_, last = section._runner()(gr.EventData(None, {"run": run, "number": "1", "query": query}))
    return last


PLACE: dict[str, list[str]] = {"tensor": []}


def test_two_checkpoints_take_the_bars_model_at_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the one that is named instead of it at none."""
    opened: list[Any] = []

    def opens(where: str, revision: str | None = None, limits: Any = None) -> Any:
        opened.append((where, revision))
        raise SourceError("offline")

    monkeypatch.setattr("explorer.checkpoints.diff.open_checkpoint", opens)
    for one in ("", "other/two"):
        asked = {"model": "owner/one", "revision": "a1b2", "one": one, "other": "owner/two", "weight": "w"}
        checkpoints.view(query := Query(asked))
        assert query.problems == {"weight": "offline"}
    assert opened == [("owner/one", "a1b2"), ("other/two", None)]
    assert "revision" in checkpoints.SECTION.follows


def test_a_problem_of_a_link_is_said_in_one_place() -> None:
    """The bar's keys by the bar, a control's by its section, an unknown survey where one is chosen. Programs
    see one section and hear all."""
    link = {"scheme": "zzz", "row": "x", "range": "9", "survey": "pear"}
    top = bar.bar(link, PLACE, {})
    said = {
        section.name: set(functions_of(section)["view"](dict(link)).get("problems", ()))
        for section in (top, ranges.SECTION, values.SECTIONS[2], take_away.SECTION, budget.SECTION)
    }
    assert said == {
        "bar": {"scheme", "row"}, "calibration": {"range"}, "inspector": set(), "take-away": set(),
        "budget": {"survey"},
    }  # fmt: skip
    with pytest.raises(gr.Error, match="zzz"):
        ranges.SECTION._endpoint()({"scheme": "zzz"})


def test_a_run_takes_no_invalid_value_for_the_usual_one() -> None:
    """It would compute for minutes what nobody asked for."""
    assert "Methods" in ended(methods.SECTION, "methods", methods="pear")
    assert "from 0.02 to 1" in ended(ranges.SECTION, "ranges", range="0.01")


def test_what_a_run_shows_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an answer of a view has: nobody may read it."""
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, answer_bytes=1000))
    for size, said in ((900, '"slots"'), (1001, "at most 1 kB")):
        run = Section(name="x", runs={"go": lambda query, size=size: iter([{"a": "x" * size}])})  # type: ignore[misc]
        steps = list(run._runner()(gr.EventData(None, {"run": "go", "number": "1", "query": {}})))
        assert said in steps[0] and '"ended": true' in steps[-1]


def test_words_in_a_slot_are_no_html() -> None:
    """A view that forgets to escape a layer's name gives it no tags."""
    figure, evil = go.Figure(layout_title_text="a<br>b"), "<img src=x>"
    shown = drawn({"a": evil, "b": Markup(evil), "c": figure, "d": plot_data(figure), "e": "a & b"})
    assert shown["a"] == "&lt;img src=x&gt;" and shown["b"] == evil and shown["e"] == "a & b"
    assert all(json.loads(shown[name])["layout"]["title"]["text"] == "a<br>b" for name in "cd")
    record = bar.view(Query({"layer": evil}))["record"]
    assert "<" not in str(record) and json.loads(str(record))["layer"] == evil


def test_the_report_has_the_range_that_the_page_shows() -> None:
    for text, share in (("0.4", 0.4), ("0.5", None), ("0.01", None), ("", None)):
        assert take_away._more(Query({"range": text}), []).own == share


def test_a_scheme_that_is_none_is_refused_in_the_pages_words() -> None:
    """Nobody at the page has a command line."""
    query = Query({"scheme": "pear"})
    assert query.record
    refused = functions_of(bar.bar((), PLACE, {}))["act"](
        {"act": "choose", "what": '{"acts": [{"do": "scheme", "text": "pear"}]}'}
    )
    for said in (query.problems["scheme"], refused["refused"]):
        assert "'pear'" in said and "in the bar" in said and "explorer schemes" not in said


CLICKED = (
    *(f'{{"{key}": {value}}}'
      for key in ("data", "to", "value", "path", "figure", "acts", "set", "name", "layer")
      for value in ("5", "null", "[]", "{}", '{"a": 1}', "[5]", "[[]]", '[{"do": {}}]', '"x"', "1e308")),
    f'{{"to": 1{"0" * 400}}}', '{"to": NaN}', '{"to": 1e999}', '{"data": ["\\ud800"]}',
    f'{{"acts": [{{"do": "parts", "side": "a", "parts": [{", ".join(["1" + "0" * 400] * 11)}]}}]}}',
    '{"value": "\\udfff"}', "{}",
)  # fmt: skip
"""What a program may say was clicked."""


def test_what_was_clicked_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    """Each is a traceback in the log else, as many as a stranger wants."""
    sections = [section for place in PLACES for section in place.SECTIONS] + [bar.bar((), PLACE, {})]
    acting = [(functions_of(section)["act"], section) for section in sections if section.acts]
    for act, section in acting:
        for name, what in itertools.product(section.acts, CLICKED):
            said = act({"act": name, "what": what})
            assert DEFECT not in str(said) and not caplog.records, (section.name, name, what)
            assert json.dumps(said, ensure_ascii=False).encode()


def test_an_act_changes_its_own_keys_alone() -> None:
    """Others may have been set while it was computed. What becomes usual leaves the address."""
    held = {"scheme": "nvfp4", "second": "int8_row", "sample": "mlp_down", "row": "3", "column": "4"}
    for act, keys in (
        ({"do": "scheme", "side": "b", "text": "mxfp4"}, {"second": "mxfp4"}),
        ({"do": "clear"}, {"second": ""}),
        ({"do": "sample", "name": "mlp_up"}, {"sample": ""}),
    ):
        assert bar.choose(Query(held), {"acts": [act]}) == keys
    usual = {"scheme": "int4_group128_asym", "second": bar.Record.fresh().second}
    assert bar.choose(Query(usual), {"acts": [{"do": "clear"}]}) == {"second": ""}


def test_a_view_does_not_quantize_in_blocks_of_one_element() -> None:
    """Of the built-in tensors that takes seconds: the first screen's run does, and the view waits for it."""
    of = {"sample": "mlp_down", "second": ""}
    assert analyses.at_hand(Query({**of, "scheme": "int5_group64"}).record)
    assert not analyses.at_hand(Query({**of, "scheme": "int4~1x1~symmetric~float32~minmax"}).record)


def test_how_far_the_ranges_are_stands_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    report = SimpleNamespace(sqnr_db=1.0, clipped=0.0, max_error=0.0, codes_used=1)
    choice = SimpleNamespace(label="min-max", scheme=ranges._base(Query({}).record), report=report, share=1.0)
    monkeypatch.setattr(ranges, "block_ranges", lambda *_: iter([choice]))
    monkeypatch.setattr(ranges, "share_curve", lambda *_: iter([]))
    steps = list(ranges.run(Query({"sample": "outlier_channels"})))
    assert all("status" in step for step in steps) and not any(step.get("said") for step in steps[:-1])
