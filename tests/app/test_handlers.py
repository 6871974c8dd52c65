"""Handlers with their defaults and with bad input: figures small enough, errors as messages, nothing lost.

If these fail, a section shows the wrong tensor or nothing at all, or a visitor's mistake wipes what was on
the screen.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import gradio as gr
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from app import limits
from app.chosen import ChosenView, choose
from app.learn import playground
from app.link import KEYS, NO_FILE, Visited
from app.link import visited as read_address
from app.parts import html, tensor_controls
from app.parts.views import View
from app.sections import answer, compare, overview, sizes, take_away
from app.sections.speed_machines import OpenedRecording
from app.serving import work
from app.state import analyses, record
from app.state import selection as selections
from app.state.analyses import analyses_of
from app.state.cache import BoundedCache
from app.state.record import Record, listing, next_record
from app.state.selection import Selection, matrix_of
from app.theme import ASSETS
from explorer import FORMATS, SCHEMES, SourceError, load_matrix, quantize
from explorer import compare as library_compare
from explorer.analysis.element import inspect_element
from explorer.analysis.memory import estimate
from explorer.analysis.schemes import ComparisonRow
from explorer.checkpoints import EXPORTS, write_one
from explorer.core.file import load as load_quantized
from explorer.figures.style import file_name
from explorer.formats.code import code_facts
from explorer.paths import KERNELS
from explorer.progress import checkpoint
from explorer.recordings.gemm import recorded_cpu
from explorer.recordings.quantize import recorded_kernel
from explorer.reports.check import read_record
from explorer.schemes import Scheme
from explorer.sources import open_tensors
from tests.covering import sampled


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages shown to the visitor."""
    messages: list[str] = []
    monkeypatch.setattr(limits, "notify", messages.append)
    return messages


def selection(**changes: Any) -> tuple[Any, ...]:
    """A selection's values as Gradio passes them; what is not in ``changes`` is as on a fresh page."""
    return dataclasses.astuple(Selection(**changes))


def did(*acts: dict[str, Any], upload: str | None = None, whole: bool = False, **held: Any) -> ChosenView:
    """All that the page shows after ``acts`` on a page that shows ``held``, as one view: of the views of a
    run each leaves what it does not say as the one before has it."""
    text = json.dumps({"number": 7, "whole": whole, "acts": acts})
    seen = ChosenView.unchanged()
    for view in choose(text, upload, *dataclasses.astuple(Record(**held))):
        seen = _over(seen, view)
    return seen


def _over(before: View, after: View) -> Any:
    values = {
        f.name: _over(old, new) if isinstance(new, View) else old if unchanged(new) else new
        for f in dataclasses.fields(after)
        for old, new in [(getattr(before, f.name), getattr(after, f.name))]
    }
    return type(after)(**values)


def shown(position: tuple[int, int] | None = None, **held: Any) -> ChosenView:
    """What the page shows of a record from its beginning."""
    element = "" if position is None else f"{position[0]},{position[1]}"
    return did(
        {"do": "scheme", "text": held.get("scheme", Record().scheme)}, whole=True, element=element, **held
    )


def below(chosen: dict[str, Any]) -> dict[str, Any]:
    """What follows below the first screen when it is seen: the figures of values and of the error."""
    record = dataclasses.astuple(Record(**chosen))
    return {**vars(overview.values(*record)), **vars(overview.maps(*record))}


def visited(query: str, upload: str | None = None, first: bool = False) -> Visited:
    """What an address says, on a page that shows what a fresh one does."""
    return read_address(query, Record(), upload, first)


def taken(*values: Any) -> take_away.FilesView:
    """The last view of Take it away."""
    *_, files = take_away.make(*values)
    return files


def plots_of(view: View) -> list[str]:
    """The figures among a view's outputs, as they go over the wire."""
    return [output for output in view.in_order() if isinstance(output, str) and output.startswith('{"data"')]


def unchanged(output: Any) -> bool:
    """Whether an output leaves its component as it is."""
    return isinstance(output, dict) and output == gr.skip()


@pytest.mark.parametrize("name", sampled(SCHEMES, {*list(SCHEMES)[::5], "nvfp4", "q4_k", "nf4_block64"}))
def test_the_tensor_place_shows_every_scheme(name: str) -> None:
    """All outputs for every scheme, alone and beside another; plots are binned and reduced: else every click
    sends megabytes."""
    for second, figures, most in (("", 5, 300_000), ("nvfp4", 7, 600_000)):
        out = shown(scheme=name, second=second).shown
        assert type(out) is overview.TensorView and not plots_of(out)
        plots = [value for value in below({"scheme": name, "second": second}).values() if value[:2] == '{"']
        assert len(plots) == figures and sum(map(len, plots)) < most
        for plot in map(json.loads, plots):
            assert plot["layout"]["meta"]["filename"].startswith("MLP-up-projection"), (
                "a saved figure says what it shows"
            )
            assert "title" not in plot["layout"]
        assert SCHEMES[name].label in unescape(out.chips) and SCHEMES[name].label in unescape(out.verdict)
        assert ("no GGUF file" in unescape(out.verdict)) == bool(SCHEMES[name].shortened((1536, 384)))


def test_a_large_tensor_stays_small_on_the_wire() -> None:
    """16 million elements are binned and reduced on the server: if not, every click sends megabytes."""
    chosen = {"sample": "normal_4096", "scheme": "nvfp4"}
    sent = [*shown(**chosen).in_order(), *below(chosen).values()]
    assert sum(len(o) for o in sent if isinstance(o, str)) < 300_000


def test_one_answer_has_the_whole_first_screen() -> None:
    """Else bar, sentence, table and figure name different schemes for a while, or wait for figures that
    nobody sees."""
    text = json.dumps({"number": 1, "whole": True, "acts": [{"do": "visit", "query": ""}]})
    (only,) = choose(text, None, *dataclasses.astuple(Record()))
    assert not any(unchanged(value) for value in only.answered.in_order())
    assert plots_of(only) == [only.answered.figure], "figures further down come when they are seen"
    assert unchanged(only.shown.values) and not unchanged(only.shown.inspector)


def test_two_schemes_are_compared_in_their_numbers() -> None:
    """B's numbers stand beside A's with their differences: the question that two schemes are chosen for."""
    first, second = (shown(scheme=name).shown.kpis for name in ("int4_group128", "nvfp4"))
    both = shown(scheme="int4_group128", second="nvfp4").shown.kpis
    for one in (first, second):
        assert (number := re.search(r'class="v"[^>]*>([^<]+)', one)) and number[1] in both
    assert both.count('class="difference"') == 6 and 'class="difference"' not in first
    told = re.findall(r'class="difference">([^<]+)<', both)
    assert [text.split(" ")[1:] for text in told] == [["dB"], ["bits"], ["%"], ["%"], ["points"], []], told


def test_the_inspector_follows_or_stays() -> None:
    """An element chosen by hand stays chosen; otherwise the one with the largest error is inspected."""
    followed, stayed = shown().shown, shown((3, 4)).shown
    assert followed.follow and not stayed.follow
    assert (followed.row, followed.column) != (3, 4) and (stayed.row, stayed.column) == (3, 4)
    assert "Element (3, 4)" in stayed.inspector


def test_an_element_is_picked_and_walked_from() -> None:
    """A click gives an element, an arrow key the next one, "largest" the worst of A or B: none leaves the
    matrix, and the figures of the tensor are not sent again."""
    out = did({"do": "element", "row": 5, "column": 7}, scheme="nvfp4")
    assert (out.shown.row, out.shown.column, out.shown.follow) == (5, 7, False)
    assert unchanged(out.shown.chips) and "Element (5, 7)" in out.shown.inspector
    for row, (down, right), wanted in ((5, (-1, 0), "4,7"), (0, (-1, 0), "0,7"), (5, (3, -2), "8,5")):
        move = {"do": "move", "down": down, "right": right}
        assert did(move, element=f"{row},7").record.element == wanted
    pair = {"scheme": "int4_row", "second": "nvfp4"}
    worst = analyses_of(Selection(**pair))[1][1][1].report.max_error_at
    assert did({"do": "largest", "side": "b"}, **pair).record.element == f"{worst[0]},{worst[1]}"
    followed = did({"do": "largest", "side": "a"}, element="1,1", **pair)
    assert followed.record.element == "" and followed.shown.follow


ACTS = [
    ([], ("int4_row", "nvfp4")),
    ([{"do": "swap"}], ("nvfp4", "int4_row")),
    ([{"do": "clear"}], ("int4_row", "")),
    ([{"do": "next"}, {"do": "next", "side": "a"}, {"do": "previous"}, {"do": "next", "side": "b"}], (1, 1)),
    ([{"do": "swap"}, {"do": "next"}, {"do": "swap"}], (0, 1)),
    ([{"do": "scheme", "side": "b", "text": " int8_row "}], ("int4_row", "int8_row")),
    ([{"do": "scheme", "side": "b", "text": None}], ("int4_row", "")),
]


@pytest.mark.parametrize(("acts", "wanted"), ACTS)
def test_acts_on_the_schemes_one_after_another(acts: list[dict[str, Any]], wanted: tuple[Any, Any]) -> None:
    """What is pressed while an answer is awaited is done when it has come."""
    names = list(SCHEMES)
    places = zip(("int4_row", "nvfp4"), wanted, strict=True)
    pair = tuple(names[names.index(first) + end] if isinstance(end, int) else end for first, end in places)
    record = Record(scheme="int4_row", second="nvfp4")
    for act in acts:
        record = next_record(record, act, None)
    assert (record.scheme, record.second) == pair


NO_ACTS = [
    ("", "acts are JSON"),
    ("[" * 60_000, "acts are JSON"),
    ('{"number": 1}', "acts are JSON"),
    ('{"number": 1, "acts": []}', "1 to 1,000"),
    ('{"number": 1, "acts": [1]}', "1 to 1,000"),
    ('{"number": 1, "acts": [{"do": "what"}]}', "no act 'what'"),
    ('{"number": 1, "acts": [{"do": ["x"]}]}', "no act"),
    ('{"number": 1, "acts": [{"do": "next", "side": "c"}]}', "side is a or b"),
    ('{"number": 1, "acts": [{"do": "scheme", "text": 5}]}', "text is a text"),
    ('{"number": 1, "acts": [{"do": "scheme", "text": ""}]}', "choose a scheme"),
    ('{"number": 1, "acts": [{"do": "move", "down": "x", "right": 0}]}', "whole numbers"),
    ('{"number": 1, "acts": [{"do": "element", "row": null, "column": 1}]}', "whole numbers"),
    ('{"number": 1, "acts": [{"do": "element", "row": 1e400, "column": 1}]}', "whole numbers"),
    ('{"number": 1, "acts": [{"do": "parts", "parts": [1]}]}', "13|12 parts|parts"),
    ('{"number": 1, "acts": [{"do": "list", "texts": ["nope"]}]}', "no scheme"),
]


@pytest.mark.parametrize(("text", "words"), NO_ACTS)
def test_what_is_no_act_changes_nothing(text: str, words: str, said: list[str]) -> None:
    """A program may send anything; the page says in words what is taken, and shows what it showed."""
    (out,) = choose(text, None, *dataclasses.astuple(Record()))
    assert re.search(words, said[0]) and "Still shown" in out.notice
    assert unchanged(out.record.scheme) and unchanged(out.shown.chips) and "refused" in json.loads(out.answer)


LISTS = [
    ("", "nvfp4", "mxfp4", ""),
    ("int4_row,nvfp4,mxfp4", "int4_row", "nvfp4", "int4_row,nvfp4,mxfp4"),
    ("int4_row,nvfp4", "int4_row", "mxfp4", "int4_row,nvfp4,mxfp4"),
    ("int4_row,nvfp4,mxfp4,bf16,int8_row", "int4_row", "int2_group64_asym",
     "int4_row,nvfp4,mxfp4,bf16,int2_group64_asym"),
    ("a,b,c,d,nvfp4", "int4_row", "nvfp4", "a,b,c,int4_row,nvfp4"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "first", "second", "after"), LISTS)
def test_a_and_b_are_in_the_shortlist(before: str, first: str, second: str, after: str) -> None:
    """The last that is neither makes room; else a scheme that is looked at is missing from the table."""
    assert listing(Record(scheme=first, second=second, shortlist=before)).shortlist == after


BAD = [
    ({"do": "scheme", "text": "nope"}, "no scheme 'nope'"),
    ({"do": "layer", "model": "/nonexistent/x y", "layer": "w"}, "no Hub id"),
    ({"do": "sample", "name": "nope"}, "no sample"),
]


@pytest.mark.parametrize("act, words", BAD)
def test_bad_input_is_a_message_and_nothing_is_lost(act: dict[str, Any], words: str, said: list[str]) -> None:
    """If this fails, a typing error empties the page, or a part of it names what is not shown."""
    out = did(act)
    assert words in said[0] and words in unescape(out.notice) and "Still shown" in out.notice
    kept = [
        value
        for part in (out.record, out.tensor, out.first, out.kept, out.answered, out.shown)
        for value in part.in_order()
    ]
    assert all(unchanged(value) for value in kept), "outputs must stay as they are"


def test_a_refused_file_is_named_with_the_scheme(tmp_path: Path, said: list[str]) -> None:
    """The script keeps the reason at the place of the file: without the file's name and the scheme nobody
    knows whether another file or another scheme would do."""
    values = np.ones((8, 16), np.float32)
    values[0, 0] = np.nan
    np.save(path := tmp_path / "hole.npy", values)
    out = did({"do": "file"}, upload=str(path), scheme="int4_group32")
    why = json.loads(out.answer)["why"]
    assert re.fullmatch(r"hole\.npy: scheme A \(INT4 group 32\) cannot be computed: 1 of 128 .*", why)
    assert why in unescape(out.notice) and "allow_nonfinite" not in why and unchanged(out.record.file)
    assert not said, "it stands at the place of the file and in the line over the page"
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    assert "scheme" not in json.loads(did({"do": "file"}, upload=str(tmp_path / "bad.npy")).answer)["why"]
    np.save(tmp_path / "plain.npy", np.ones((8, 16), np.float32))
    needs = did({"do": "file"}, upload=str(tmp_path / "plain.npy"), scheme="int4_row+gptq")
    assert json.loads(needs.answer)["why"].startswith("plain.npy: ")


def test_a_refused_tensor_of_several_is_named(tmp_path: Path, said: list[str]) -> None:
    """Else the message says what is wrong with a value and not in which tensor of which file."""
    good, bad = torch.ones(8, 16), torch.full((8, 16), math.nan)
    save_file({"good": good, "bad.weight": bad}, path := tmp_path / "two.safetensors")
    held = {"source": "file", "file": str(path), "file_tensor": "good", "scheme": "int8_row"}
    out = did({"do": "tensor", "name": "bad.weight"}, upload=str(path), **held)
    assert said[0].startswith("two.safetensors, bad.weight: 128 of 128") and said[0] in unescape(out.notice)
    (tmp_path / "bad").mkdir()
    save_file({"w": bad, "v": bad.clone()}, path := tmp_path / "bad" / "all.safetensors")
    why = json.loads(did({"do": "file"}, upload=str(path), scheme="int8_row").answer)["why"]
    assert re.match(r"all\.safetensors, [vw]: scheme A \(INT8 per row\) cannot be computed", why)


def test_a_new_attempt_clears_the_reason_of_the_one_before(tmp_path: Path) -> None:
    """Else one file's reason stands beside another's name while that is opened."""
    np.save(path := tmp_path / "good.npy", np.ones((8, 16), np.float32))
    text = json.dumps({"number": 7, "whole": False, "acts": [{"do": "file"}]})
    first = next(choose(text, str(path), *dataclasses.astuple(Record())))
    assert first.notice == ""


def test_a_time_that_is_not_there_has_a_reason() -> None:
    """Else a dash reads as a time of nothing, and a phone has no mouse for its title."""
    listed = did({"do": "goal", "name": "int8-inputs"}, sample="mlp_up").answered.listed
    assert ">–</td>" in listed and "–: " in listed
    dashes = re.findall(r'<td class="num time"([^>]*)>–</td>', listed)
    assert dashes and all('title="' in dash for dash in dashes)


def test_loading_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a model's list of layers, one of its layers: else a page that reads for a minute looks dead."""
    monkeypatch.setattr(analyses, "SAID_AGAIN_S", 0.02)
    monkeypatch.setattr(analyses, "REPORTED_EVERY_S", -1.0)
    np.save(path := tmp_path / "slow.npy", np.random.default_rng(0).standard_normal((8, 16)).astype("f4"))
    source = open_tensors(path)

    def slow(*_: Any, **__: Any) -> Any:
        time.sleep(0.2)
        return source

    read = source.read_rows

    def in_parts(info: Any, rows: Any, progress: Any) -> Any:
        for done in (1, 2, 3) if progress else ():
            progress(done, 4)
        return read(info, rows, None)

    monkeypatch.setattr(source, "read_rows", in_parts)
    monkeypatch.setattr(selections, "open_tensors", slow)
    assert "Opening slow.npy …" in heard({"do": "file"}, str(path))
    monkeypatch.setattr(record, "model_source", slow)
    monkeypatch.setattr(tensor_controls, "model_source", lambda *_: source)
    monkeypatch.setattr(selections, "model_source", lambda *_: source)
    said = heard({"do": "model", "model": "owner/name", "revision": ""}, None)
    assert "Listing the layers of owner/name …" in said
    assert "Reading slow: 50 %" in said and "Reading slow: 75 %" in said


def test_what_is_overtaken_ends(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    """Else a visitor who has typed another size waits for minutes until the search of the one before has
    ended, on all of a large tensor. The work itself ends too, and another visitor's goes on."""
    ended: list[str] = []
    begun = threading.Event()

    def slow(*_: Any) -> Any:
        begun.set()
        try:
            while True:
                checkpoint()
                time.sleep(0.01)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    monkeypatch.setattr(analyses, "analyse_anywhere", slow)
    monkeypatch.setattr(analyses, "SAID_AGAIN_S", 0.05)
    monkeypatch.setattr(work, "session_now", lambda: "mine")
    text = json.dumps({"number": 7, "whole": False, "acts": [{"do": "scheme", "text": "int3_row_asym"}]})
    views = choose(text, None, *dataclasses.astuple(Record()))
    assert "Quantizing to INT3 " in unescape(next(views).notice) and begun.wait(20)
    work.overtake("another's", "choosing")
    assert "INT3" in next(views).notice and not ended
    work.overtake("mine", "choosing")
    (*_, last) = views
    assert json.loads(last.answer) == {"number": 7, "overtaken": True, "sampled": False}
    assert unchanged(last.record.scheme)
    end = time.monotonic() + 20
    while not ended and time.monotonic() < end:
        time.sleep(0.01)
    assert ended == ["OvertakenError"] and not said


@pytest.mark.thorough
def test_another_goal_ends_the_rows_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio asks for the rows of the new goal only when those of the old one are done; what shows the same
    rows ends nothing."""
    monkeypatch.setattr(work, "session_now", lambda: "mine")
    monkeypatch.setattr("app.chosen.session_now", lambda: "mine")
    monkeypatch.setattr(answer, "filling", lambda chosen: iter([(1, 90)] * 10**9))
    monkeypatch.setattr(answer, "LOOKED_EVERY_S", -1.0)
    rows = answer.fill(*dataclasses.astuple(Record.fresh()))
    next(rows)
    did({"do": "element", "row": 1, "column": 1}, **vars(Record.fresh()))
    next(rows)
    did({"do": "goal", "name": "8-bit"}, **vars(Record.fresh()))
    assert not list(itertools.islice(rows, 3))


def test_a_goal_that_cannot_be_loses_nothing_before_it(said: list[str]) -> None:
    """Acts that were done while an answer was awaited come in one request: a size that nothing fits would
    take the goal that was chosen before it along."""
    out = did({"do": "goal", "name": "8-bit"}, {"do": "goal", "name": "at-most-0.1"})
    assert out.record.goal in ("8-bit", "") and out.record.scheme == "int8_row" and "0.1" in said[0]


def heard(act: dict[str, Any], upload: str | None) -> list[str]:
    """What the line over the page says while ``act`` is done."""
    text = json.dumps({"number": 7, "whole": False, "acts": [act]})
    views = choose(text, upload, *dataclasses.astuple(Record(scheme="int8_row")))
    said = [view.notice for view in views if not unchanged(view.notice)]
    return [unescape(re.sub(r"<button.*?</button>|<[^>]*>", "", words)) for words in said]


def test_a_links_recipe() -> None:
    """The survey, its signal, the budget and what it is kept to, as Back shows them too; the usual ones for
    what is not said. A survey of one's own stays open."""
    query = {"survey": "all-MiniLM-L6-v2", "ranked": "fisher", "budget": "4.25", "for": "gguf"}
    seen = visited(urlencode(query | {"keep": "layer.0.", "fuse": "true"}))
    assert (seen.kept.survey, seen.kept.ranked) == ("all-MiniLM-L6-v2", "fisher")
    # Of the slider's ends, which the recipe before has narrowed, only the next one's are true.
    label = {"step": 0.01, "label": "Budget, bits per weight"}
    ends = {"minimum": 0, "maximum": 32, "interactive": True, "__type__": "update"} | label
    assert seen.kept.budget == ends | {"value": 4.25}
    assert (seen.kept.target["value"], seen.kept.keep, seen.kept.fuse) == ("gguf", "layer.0.", True)
    assert seen.kept.inputs == "none" and visited("inputs=int8_row").kept.inputs == "int8_row"
    assert visited("inputs=int8_row&for=gguf").kept.target["value"] == "compressed-tensors"
    back = visited("")
    assert (back.kept.survey, back.kept.ranked) == ("all-MiniLM-L6-v2", None)
    assert back.kept.budget == ends | {"value": 4.5}
    assert (back.kept.target["value"], back.kept.keep, back.kept.fuse) == ("compressed-tensors", "", False)
    assert visited("for=any").kept.target["value"] == "any"
    assert (back.kept.by, back.kept.batch) == ("bits", 1)
    timed = visited("by=time&batch=16&budget=150.5&for=any")
    assert (timed.kept.by, timed.kept.batch, timed.kept.budget["value"]) == ("time", 16, 150.5)
    assert "µs" in timed.kept.budget["label"] and timed.kept.budget["maximum"] > 1e6
    assert visited("by=time&batch=16").kept.budget["value"] == 0, "the middle"
    own = visited("survey=own", first=True)
    assert unchanged(own.kept.survey) and "open its file again" in own.missing


def test_a_link_that_cannot_be_shown_shows_something() -> None:
    """A model that cannot be reached: the page of a fresh visit and the reason, not an empty page."""
    out = did({"do": "visit", "query": "?source=model&model=/nonexistent/x&layer=w&scheme=nvfp4"}, whole=True)
    assert "cannot be shown" in out.notice and out.record.source == "builtin"
    assert (out.record.scheme, out.record.second) == Record.fresh().schemes, "as a page without a link"
    assert json.loads(out.answer)["number"] == 7, "it is no refusal"
    assert plots_of(out)


LINKS = [
    ({}, []),
    ({"scheme": "nvfp4", "sample": "mlp_down", "tab": "speed"}, []),
    ({"tab": "what"}, ["tab 'what' is unknown; showing tensor"]),
    ({"sample": "zzz"}, ["sample 'zzz' is unknown; showing mlp_up"]),
    ({"source": "moon"}, ["source 'moon' is unknown; showing builtin"]),
    ({"source": "file"}, []),
    ({"scheme": "zzz"}, ["scheme is not usable"]),
    ({"second": "zzz"}, ["scheme is not usable"]),
    ({"second": "nvfp4", "row": "3", "column": "4", "tab": "learn"}, []),
    ({"range": "0.31", "shape": "1x8192x8192", "k": "640"}, []),
    ({"range": "abc"}, ["range 'abc' is not valid"]),
    ({"range": "7", "shape": "<b>", "m": "-3"}, ["range '7'", "shape '<b>'", "m '-3'"]),
    ({"row": "x", "column": "4"}, ["row 'x'"]),
    ({"budget": "4.5", "for": "awq", "ranked": "weight"}, []),
    ({"budget": "1e3", "for": "tar", "survey": "x"}, ["budget '1e3'", "survey 'x'", "for 'tar'"]),
    ({"inputs": "int4_row"}, ["inputs 'int4_row'"]),
    ({"by": "time", "batch": "16", "budget": "150", "for": "any"}, []),
    ({"by": "weight", "batch": "3"}, ["by 'weight'", "batch '3'"]),
    (
        {"by": "time", "batch": "16", "budget": "4.5", "for": "any"},
        ["budget '4.5' is not valid; using the default. Accepted: µs of all linear layers, 145.95 to 164.56"],
    ),
    ({"budget": "32"}, ["budget '32'"]),
    (
        {"budget": "20"},
        ["budget '20' is not valid; using the default. Accepted: bits per weight, 2.53 to 8.07"],
    ),
    ({"budget": "2.4"}, ["budget '2.4'"]),
    ({"budget": "99"}, ["2.53 to 8.07, for the survey's budget (Model and hardware)"]),
    ({"scheme": "nonsense"}, ["choose one at A or B in the bar, such as int4_group128_asym or nvfp4"]),
    ({"scheme": "nvfp4", "second": "nvfp4"}, ["one scheme as A and as B; it is shown as A alone"]),
    ({"budget": "20", "for": "gguf"}, ["Accepted: bits per weight, 4.25, for the survey's budget"]),
    ({"budget": "2.4", "for": "any"}, []),
    ({"budget": "8.06", "keep": "encoder.layer.0.*"}, []),
    (
        {"pear": "1", "__theme": "dark", "utm_source": "x", "view": "api", "opened": "x", "step": "2"},
        ["'pear'"],
    ),
    ({"pear": ""}, ["key 'pear' means nothing here"]),
    ({"sized": "Llama-2-7B", "stored": "NVFP4", "billions": "0.5"}, []),
    ({"sized": "GPT-9", "stored": "zip", "billions": "0"}, ["sized 'GPT-9'", "stored 'zip'", "billions '0'"]),
]


@pytest.mark.parametrize("query, words", LINKS)
def test_what_a_link_cannot_show_is_said(query: dict[str, str], words: list[str], said: list[str]) -> None:
    """Else its receiver takes the defaults for what the sender saw. It stays in the page, as a message that
    goes is missed, and the address loses what means nothing: else the next copy of the link has it."""
    seen = visited(urlencode(query), first=True)
    assert isinstance(seen, Visited) and not said
    told = [NO_FILE] if query.get("source") == "file" else words
    assert bool(seen.missing) == bool(told) and all(part in seen.missing for part in told)
    assert len(seen.dropped) == len(words) and set(seen.dropped) <= set(query)


def test_the_keys_of_the_pages_own_address_are_known() -> None:
    """If this fails, a part of the page writes a key that the next visit takes for an unknown one."""
    scripts = "".join(path.read_text() for path in ASSETS.glob("*.js"))
    read = set(re.findall(r"query\.get\('(\w+)'\)", scripts))
    assert {"tab", "section", "step", "format"} <= read <= KEYS
    record = {f.name for f in dataclasses.fields(Selection)} - {"file"}  # no address carries a file
    assert record <= KEYS and {"for", "row", "list", "opened", "goal"} <= KEYS


KEPT = [
    ({}, (0.5, None, 512, 1536, 384)),
    ({"range": "0.31", "shape": "1x8192x8192", "k": "640"}, (0.31, "1×8192×8192", 512, 1536, 640)),
    ({"shape": "layer-decode", "m": "1", "range": "1"}, (1.0, "layer-decode", 1, 1536, 384)),
    ({"range": "7", "shape": "<b>", "m": "-3", "n": "1.5", "k": "0"}, (0.5, None, 512, 1536, 384)),
    ({"range": "nan", "shape": "0x1x1", "m": "", "n": "9" * 20}, (0.5, None, 512, 1536, 384)),
]


SHAPES = ("4096x4096x4096", "7x64x64")
"""One that the machine whose recordings ship has timed, and one that it has not."""


def test_a_link_keeps_two_machines() -> None:
    """Recorded ones by name; a recording that is not open is asked for; what is no machine is said."""
    seen = visited("machine=gemm-layers&beside=recorded")
    assert (seen.kept.machine, seen.kept.beside["value"]) == ("gemm-layers", "recorded")
    assert "gemm-layers" not in {value for _, value in seen.kept.beside["choices"]}
    assert (visited("").kept.machine, visited("").kept.beside["value"]) == ("recorded", "")
    for first in (True, False):  # in another window, and after it was removed
        own = visited("machine=opened-1&beside=opened-2", first=first)
        assert own.kept.machine == "recorded" and own.kept.beside["value"] == ""
        assert own.missing.count("names a recording that is not open here") == 1
        assert {"machine", "beside"} <= set(own.dropped), "the address is that of what is shown"
        timed, lacking = (visited(f"machine=opened-1&shape={shape}", first=first) for shape in SHAPES)
        assert timed.kept.shape["value"] == "4096×4096×4096" and lacking.kept.shape["value"] is None
        assert "shape" in lacking.dropped and "shape" not in timed.dropped, "no time is extrapolated"
    wrong = visited("machine=x&beside=recorded")
    assert wrong.kept.machine == "recorded" and wrong.kept.beside["value"] == ""
    assert "The link's machine 'x' is not valid" in wrong.missing and "gemm-layers" in wrong.missing


def test_back_leads_to_an_opened_recording() -> None:
    """Within the visit in which it was opened, as the first machine or as the second."""
    mine = OpenedRecording("opened-1", "mine.json", recorded_cpu())
    for query, pair in (
        ("machine=opened-1&beside=recorded", ("opened-1", "recorded")),
        ("machine=recorded&beside=opened-1", ("recorded", "opened-1")),
    ):
        seen = read_address(query, Record(), None, False, (mine,))
        assert (seen.kept.machine, seen.kept.beside["value"]) == pair
        assert not seen.missing and not seen.dropped
    acts = json.dumps({"number": 1, "whole": False, "acts": [{"do": "visit", "query": "machine=opened-1"}]})
    *_, view = choose(acts, None, *dataclasses.astuple(Record()), (mine,))
    assert view.kept.machine == "opened-1"


@pytest.mark.parametrize("query, kept", KEPT)
def test_what_sections_keep_in_the_address(query: dict[str, str], kept: tuple[Any, ...]) -> None:
    """The own range, the shape that is shown and the one to measure; the usual ones for nonsense."""
    seen = visited(urlencode(query))
    shape = seen.kept.shape["value"]
    assert (seen.kept.range, shape, seen.kept.m, seen.kept.n, seen.kept.k) == kept
    assert shape is None or shape in seen.kept.shape["choices"][0]


def test_back_leads_to_a_tensor_of_the_file() -> None:
    """A link from outside cannot carry the file, Back within the page can."""
    back = visited("?source=file&file_tensor=b", upload="f.npz")
    assert (back.record.source, back.record.file, back.record.file_tensor) == ("file", "f.npz", "b")
    outside = visited("?source=file&file_tensor=b", first=True)
    assert outside.record.source == "builtin" and outside.missing == NO_FILE


def test_back_to_a_file_that_another_replaced_is_said(tmp_path: Path) -> None:
    """Else the address names one file's tensor, and the page shows the other's numbers."""
    path = tmp_path / "second.npy"
    np.save(path, np.ones((4, 4), np.float32))
    back = visited("?source=file&file_tensor=first", upload=str(path))
    assert (back.record.source, back.record.file_tensor) == ("file", "second")
    assert "'first' is of a file that is not open any more" in back.missing and "second.npy" in back.missing
    assert not visited("?source=file&file_tensor=second", upload=str(path)).missing


@pytest.mark.parametrize("act", [{"do": "file"}, {"do": "tensor", "name": "w"}, {"do": "layer"}])
def test_nothing_chosen_yet_is_no_warning(act: dict[str, Any], said: list[str]) -> None:
    """A form that was just opened gets no warning. The notice says what to choose; the results stay."""
    out = did(act)
    assert not said and re.search("choose", out.notice) and unchanged(out.shown.chips)


def test_the_same_scheme_twice_is_said() -> None:
    """Else the page compares a scheme with itself as if that were something."""
    assert "A and B are the same scheme" in shown(second=Selection().scheme).shown.verdict


def test_a_refused_file_is_told_once(tmp_path: Path, said: list[str]) -> None:
    """The notice says why; what is shown stays, and the next choice takes the notice away."""
    bad, good = str(tmp_path / "bad.npy"), str(tmp_path / "good.npz")
    Path(bad).write_bytes(b"nonsense")
    np.savez(good, c=np.ones(3, np.int64), a=np.full((2, 2), np.nan), w=np.ones((4, 8), np.float32))
    out = did({"do": "file"}, upload=bad)
    why = json.loads(out.answer)["why"]  # for the place of the file
    assert not said and "no valid .npy header" in why and why in unescape(out.notice)
    assert unchanged(out.record.source)
    out = did({"do": "file"}, upload=good)
    assert (out.record.source, out.record.file, out.record.file_tensor) == ("file", good, "w")
    assert out.notice == "" and len(out.tensor.file_tensor["choices"]) == 3


def test_an_element_outside_is_a_message(said: list[str]) -> None:
    """The rows that there are are said, and the nearest is shown: else an element of another tensor in the
    boxes keeps this one from being shown."""
    out = shown((10**6, 0))
    assert "rows 0 to 1535" in said[0] and (out.shown.row, out.shown.column) == (1535, 0)
    assert out.record.element == "1535,0", "the address has what is shown"
    typed = did({"do": "element", "row": 3, "column": -5})
    assert typed.record.element == "3,0" and len(said) == 2


def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    """A tensor called like a script shows as text (gr.HTML would run it)."""
    evil = "<img src=x onerror=alert(1)>${alert(2)}"
    save_file({evil: torch.randn(4, 32)}, tmp_path / "x.safetensors")
    out = shown(source="file", file=str(tmp_path / "x.safetensors"), file_tensor=evil)
    for part in (out.shown.chips, out.shown.verdict, out.answered.picture):
        assert "&lt;img" in part
    drawn = (out.answered.figure, out.record.file_tensor, out.answer)
    assert not any(evil[:15] in o for o in out.in_order() if isinstance(o, str) and o not in drawn)


def test_every_template_escapes_what_it_is_given() -> None:
    """Every piece of HTML with words from outside: if one forgets, a layer's name runs as a script."""
    evil = "<img src=x onerror=alert(1)>"
    scheme = dataclasses.replace(SCHEMES["nvfp4"], name=evil, label=evil)
    timing, _ = recorded_kernel("int8_row")
    assert timing is not None
    timing = dataclasses.replace(timing, dtype=evil)
    x = torch.randn(4, 32)
    element = inspect_element(x, quantize(x, SCHEMES["nvfp4"]), 0, 0)
    element = dataclasses.replace(element, packed_hex=evil, arithmetic=((evil, evil),))
    for piece in (
        html.header(evil, True, (evil,), [(evil, evil)], {evil: evil}),
        html.chips(evil, [scheme, scheme]),
        html.verdict(evil, [scheme], evil, evil),
        html.inspector([element], [evil]),
        html.packed([element], [scheme]),
        html.commands([evil]),
        html.heading(evil, evil),
        html.kernel(timing, evil),
        html.memory([estimate(scheme, None, 1000)], evil),
        html.figure_title(evil, evil),
        html.sentence(evil),
        html.status(evil),
    ):
        assert "<img" not in piece and "&lt;img" in piece


def test_templates_leave_no_blanks_between_tags() -> None:
    """Their indentation is for reading; on the page blanks between inline elements would show."""
    assert not re.search(r">\s+<", html.format_table() + playground.playground())


def test_neighbours_are_the_next_values() -> None:
    """Below and above each code lie the values of the adjacent codes, in 16 bits too."""
    for name in ("float16", "bfloat16", "float8_e5m2"):
        fmt = FORMATS[name]
        for code in range(0, 2 ** (fmt.bits - 1) - 1, 37 if fmt.bits > 8 else 1):
            here, there = fmt.value(code), fmt.value(code + 1)
            if math.isfinite(here) and math.isfinite(there):
                assert code_facts(fmt, code).above == there and code_facts(fmt, code + 1).below == here


def test_sizes_of_models(said: list[str]) -> None:
    """Bits per weight and sizes are those of the scheme, and a count of nothing is refused."""
    assert "3.47" in sizes.sizes("Llama-2-7B", 0, "int4_group128")
    assert "13.48" in sizes.sizes("Llama-2-7B", 0, "fp16")
    assert sizes.sizes(sizes.BY_COUNT, 70, "nvfp4") and not said
    for count in (0, -5, 2e6):
        sizes.sizes(sizes.BY_COUNT, count, "nvfp4")
        assert said.pop() == f"parameters are more than 0 and at most 1,000,000 billions, not {count:,g}"


def test_the_cache_of_a_model_by_its_context() -> None:
    """If this fails, Sizes shows the cache of another model or storage, or one that grows beyond a window:
    Llama-3-8B keeps 128 KiB of a token in 16 bits, and half of that in FP8; Mistral-7B 4,096 tokens."""
    names = list(sizes.USUAL)
    view = sizes.cache("Llama-3-8B", names[0])
    exact, stored = json.loads(view.figure)["data"]
    assert exact["y"] == [128 * 1024 * tokens / 1e9 for tokens in exact["x"]]
    assert stored["name"] == names[0] and stored["y"] == [size / 2 for size in exact["y"]]
    assert "4.29 GB in 16 bits and 2.15 GB as chosen, 2.00 times less" in view.sentence
    windowed = json.loads(sizes.cache("Mistral-7B 0.1", "NVFP4").figure)["data"][1]
    assert windowed["y"][windowed["x"].index(4096) :] == [windowed["y"][-1]] * 6
    for name in names:
        assert "times less" in sizes.cache("Llama-2-7B", name).sentence
    assert "choose a model" in sizes.cache(sizes.BY_COUNT, names[0]).figure


def test_the_kernel_drawer_names_its_machine() -> None:
    """Without a GPU the figures are recorded ones, and say so."""
    shown = overview.kernel(*selection(scheme="int8_row"))
    assert "recorded on NVIDIA H100" in shown and "of a device-to-device copy" in shown
    assert "tensor_range" in overview.kernel(*selection(scheme="fp8_e4m3_tensor"))
    named = re.findall(r"kernels/\w+\.cu", shown)
    assert named and all((KERNELS.parent / name).exists() for name in named)
    assert "No recording for this scheme" in overview.kernel(
        *selection(scheme="int4~1x48~symmetric~float16~minmax")
    )


def test_comparison_comes_row_by_row() -> None:
    """A row after each scheme shows that a long comparison works; the files hold all of them."""
    names = ["bf16", "nvfp4", "fp32"]
    steps = list(compare.run(*selection(), names))
    assert [len(s.table) for s in steps] == [1, 2, 3]
    end = steps[-1]
    assert "3 of 3" in end.status and [r[0] for r in end.table] == names
    assert all(len(row) == len(compare.COLUMNS) for row in end.table)
    records = json.loads(Path(end.json_file["value"]).read_text())
    assert [r["scheme"] for r in records] == names and records[1]["bits"]["scales"] == 0.5
    assert len(Path(end.csv_file["value"]).read_text().splitlines()) == 4


def test_the_frontier_is_kept_for_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows while it computes; a second visit has it at once. A scheme without a name is ringed too."""
    for kept in ("_ROWS", "_WHOLE", "_DRAWN"):  # nothing is known of the tensor yet, whatever ran before
        monkeypatch.setattr(answer, kept, BoundedCache[Any](4096))
    own = "int4~1x48~symmetric~float16~minmax"
    pair = {"sample": "attention_query", "second": own}
    early, chosen = shown(**pair).answered, dataclasses.astuple(Record(**pair))
    assert "…" in early.listed and len(early.figure) < 20_000
    end = list(answer.fill(*chosen))[-1]
    assert f"{len(SCHEMES)} schemes" in end.status and len(list(answer.fill(*chosen))) == 1
    for out in (did({"do": "look"}, **pair), did({"do": "look"}, sample="attention_query", second="nvfp4")):
        assert {"A", "B"} <= {trace.get("name") for trace in json.loads(out.answered.figure)["data"]}
        assert 'strong">…' not in out.answered.listed
        assert unchanged(out.record.scheme) and unchanged(out.notice)


def test_a_view_is_looked_at_again_where_more_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says what was known when it was made, and each step of what fills it what is known then. If
    this fails, each change of a scheme draws the first screen twice, or a table keeps its gaps."""
    for kept in ("_ROWS", "_WHOLE", "_DRAWN"):
        monkeypatch.setattr(answer, kept, BoundedCache[Any](4096))
    pair = {"sample": "attention_query", "second": "nvfp4"}

    def known(view: ChosenView) -> str:
        return re.findall(r'data-known="([^"]+)"', view.answered.listed)[0]

    early, filled = known(shown(**pair)), list(answer.fill(*dataclasses.astuple(Record(**pair))))[-1]
    late = known(did({"do": "look"}, **pair))
    again = list(answer.fill(*dataclasses.astuple(Record(**pair))))[-1]
    assert filled.tick.split(" ")[0] == again.tick.split(" ")[0] == late != early
    assert filled.tick != again.tick, "a text that stands there already says nothing"
    other = known(did({"do": "scheme", "text": "int5_row"}, **pair))
    assert other != late, "the report on all of the tensor is new"


def test_a_left_frontier_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visitor who leaves early would make the next one compute every scheme again."""
    asked: list[int] = []
    whole = answer.survey

    def counted(x: Any, schemes: Iterable[Scheme]) -> Iterator[ComparisonRow]:
        known = list(schemes)
        asked.append(len(known))
        return whole(x, known)

    monkeypatch.setattr(answer, "survey", counted)
    chosen = Record(sample="mlp_down")
    left = answer.filling(chosen)
    while len(answer.known_rows(chosen)) < 16:
        next(left)
    left.close()
    end = list(answer.fill(*dataclasses.astuple(chosen)))[-1]
    assert asked[:2] == [len(SCHEMES), len(SCHEMES) - 16]
    assert f"{len(SCHEMES)} schemes" in end.status


GOAL_ACTS = [
    ({}, "8-bit", ("int8_row", "fp8_e4m3_row", "", "")),
    ({"second": "nvfp4"}, "fp8-inputs", ("fp8_e4m3_row", "fp8_e4m3_tensor", "fp8-inputs", "")),
    ({"scheme": "bf16"}, "3-bit", ("bf16", "", "3-bit", "")),
    ({"shortlist": "int4_group128_asym,mxfp4"}, "6-bit", ("int6_group128_asym", "mxfp6_e2m3", "", "")),
    ({"goal": "8-bit", "scheme": "int8_row"}, "at-most-3MB", ("fp32", "mxfp8_e4m3", "at-most-3MB", "")),
]


@pytest.mark.parametrize(("held", "goal", "wanted"), GOAL_ACTS)
def test_a_goal_takes_its_schemes(held: dict[str, str], goal: str, wanted: tuple[str, ...]) -> None:
    """What is asked for becomes A and B, unless the visitor has chosen others; the list becomes its own."""
    out = did({"do": "goal", "name": goal}, **held).record
    if goal.startswith("at-most"):
        assert out.goal == goal and out.scheme != held["scheme"]
    else:
        assert (out.scheme, out.second, out.goal, out.shortlist) == wanted


def test_a_goal_that_cannot_be_is_refused(said: list[str]) -> None:
    """The line names what there is; a size that another tensor cannot have is taken away with words."""
    refusals = ("9-bit", "no goal"), ("at-most-0.1", "nothing fits"), ("at-most-abc", "a number of bits")
    for name, words in refusals:
        assert words in did({"do": "goal", "name": name}).notice
    out = did({"do": "sample", "name": "normal_4096"}, goal="at-most-100kB")
    assert out.record.goal == "" and out.record.sample == "normal_4096" and "nothing fits" in said[-1]
    link = visited("goal=nonsense")
    assert link.record.goal == "" and "not valid" in link.missing and link.dropped == ("goal",)


def test_the_goal_stays_while_schemes_are_tried() -> None:
    """Else the figure's axes jump with every scheme that is looked at. One that A alone means is not named:
    else every step leaves it in the address."""
    assert did({"do": "scheme", "text": "int8_row"}).record.goal == "4-bit"
    assert did({"do": "scheme", "text": "nvfp4"}).record.goal == ""
    away = vars(did({"do": "next"}).record)
    assert away["goal"] == "4-bit" and did({"do": "previous"}, **away).record.goal == ""
    assert shown(goal="4-bit").record.goal == "" and shown(goal="all").record.goal == "all"
    assert visited("scheme=int8_row").record.goal == ""
    assert "8-bit weights</button>" in shown(scheme="int8_row").answered.goals


def test_a_page_without_a_link_compares_two() -> None:
    """The first question is which of two; a link that names one scheme has one."""
    fresh = visited("").record
    assert (fresh.scheme, fresh.second) == ("int4_group128_asym", "nvfp4")
    assert visited("scheme=nvfp4").record.second == "" and visited("second=mxfp4").record.second == "mxfp4"


@pytest.mark.parametrize("second", ["nvfp4", "int4~1x48~symmetric~float16~minmax", "q6_k"])
def test_bar_sentence_table_and_figure_agree(second: str) -> None:
    """A and B are in all four, with the same numbers."""
    out = shown(second=second)
    label = unescape(html.short_name(Scheme.parse(second).label))
    assert label.split(",")[0] in unescape(out.shown.chips).replace("GGUF ", "")
    assert f'data-scheme="{second}" class="is-b"' in out.answered.listed
    analysis = analyses_of(Selection(second=second))[1][1][1].report
    assert f"{analysis.sqnr_db:.1f}</td>" in out.answered.listed
    (ring,) = [t for t in json.loads(out.answered.figure)["data"] if t.get("name") == "B" and "text" in t]
    assert ring["customdata"][0][1] == second and f"{analysis.sqnr_db:.2f} dB" in ring["text"][0]


def test_a_row_becomes_a_or_b() -> None:
    """A click on the table: if it fails, the table only looks as if it could be asked."""
    (act,) = json.loads(compare.clicked("b", SimpleNamespace(row_value=["nvfp4", 4.5])))
    assert next_record(Record(scheme="bf16"), act, None).second == "nvfp4"


def test_a_table_of_another_tensor_is_cleared() -> None:
    """Its numbers must not stand beside the new tensor's name."""
    (step,) = compare.run(*selection(), ["bf16"])
    assert unchanged(compare.cleared(*selection(), step.tensor).table)
    assert compare.cleared(*selection(sample="mlp_down"), step.tensor).table == []


def test_the_quantized_tensor_is_taken_away() -> None:
    """The file that was made holds the codes that the page showed."""
    out = taken(*selection(scheme="nvfp4", second="int8_row"), ["tensor", "report"])
    paths = [Path(p) for p in out.files["value"]]
    assert [p.suffix for p in paths] == [".safetensors", ".json"] * 2
    x = load_matrix("sample:mlp_up").values
    assert torch.equal(load_quantized(paths[0]).packed, quantize(x, SCHEMES["nvfp4"]).packed)
    assert "explorer quantize sample:mlp_up --scheme nvfp4" in take_away.command(*selection(scheme="nvfp4"))


@pytest.mark.parametrize("layout", EXPORTS)
def test_the_tensor_in_a_checkpoints_layout(layout: str) -> None:
    """The page writes what ``write_one`` writes, whose readers are tried in tests/checkpoints."""
    shape = load_matrix("sample:mlp_up").shape
    scheme = next(
        name for name, row in SCHEMES.items() if row.scale and not EXPORTS[layout].refusal(row, shape)
    )
    out = taken(*selection(scheme=scheme), ["tensor"], layout)
    (path,) = (Path(p) for p in out.files["value"])
    q = quantize(load_matrix("sample:mlp_up").values, SCHEMES[scheme])
    tensor = file_name(load_matrix("sample:mlp_up").name)
    same = write_one(layout, q, path.with_name(f"same{path.suffix}"), f"{tensor}.weight")
    assert path.suffix == EXPORTS[layout].suffix and path.read_bytes() == same.read_bytes()
    typed = unescape(take_away.command(*selection(scheme=scheme), layout))
    assert f"--scheme {scheme} --layout {layout} --out Q{EXPORTS[layout].suffix}" in typed


def test_the_report_is_taken_away() -> None:
    """The file that the command writes of the same tensor and schemes."""
    out = taken(*selection(scheme="nvfp4", second="int8_row"), ["page"])
    (path,) = (Path(p) for p in out.files["value"])
    record = read_record(path)
    assert record["recipe"]["file"] == "sample:mlp_up" and record["recipe"]["schemes"] == [
        "nvfp4",
        "int8_row",
    ]
    x = load_matrix("sample:mlp_up").values
    assert record["numbers"]["A.sqnr_db"] == library_compare(x, quantize(x, SCHEMES["nvfp4"])).sqnr_db


def test_a_layout_that_cannot_carry_it_is_named(said: list[str]) -> None:
    """A scheme that the layout does not know, and a method that stores more than codes; no file is shown."""
    out = taken(*selection(scheme="nvfp4"), ["tensor"], "gguf")
    assert unchanged(out.files) and "GGUF cannot carry" in said.pop()
    values = selection(sample="attention_query", scheme="int4_group64+lqer")
    out = taken(*values, ["tensor"], "gptq")
    assert unchanged(out.files) and "only this project's layout" in said.pop()


def test_comparing_nothing_is_a_message(said: list[str]) -> None:
    """The reason stands in the status line as well; table and figure stay."""
    (only,) = list(compare.run(*selection(), []))
    assert "at least one scheme" in said[0] and "at least one scheme" in only.status
    assert unchanged(only.table)


def test_a_hosted_page_opens_no_folders_and_reads_less(monkeypatch: pytest.MonkeyPatch, minilm: Path) -> None:
    """If this fails, a public page reads its server's disk."""
    monkeypatch.setenv("SPACE_ID", "someone/explorer")
    assert limits.current() is limits.HOSTED
    with pytest.raises(SourceError, match="folders of this server"):
        matrix_of(Selection(source="model", model=str(minilm), layer="x"))
    monkeypatch.delenv("SPACE_ID")
    assert limits.current() is limits.LOCAL


def test_the_cache_is_bounded() -> None:
    """If this fails, the page's memory grows with every tensor that anyone looks at."""
    cache = BoundedCache[object](100)
    for i in range(50):
        cache.get(i, lambda i=i: i, lambda _: 30)
    assert cache._used <= 100 and cache.get(49, lambda: "new", lambda _: 1) == 49


def test_the_shortlist_side_by_side() -> None:
    """A panel for A, B and each other scheme of the list: else the third has to be remembered."""
    chosen = Record(scheme="nvfp4", second="int4_row", shortlist="mxfp4,nvfp4,int4_row")
    *_, last = answer.multiples(*dataclasses.astuple(chosen))
    titles = [note["text"] for note in json.loads(last)["layout"]["annotations"]]
    labels = ("NVFP4", "INT4 per row", "MXFP4")
    assert all(label in title for label, title in zip(labels, titles, strict=True)), "A and B come first"


def filled(chosen: Record) -> dict[str, Any]:
    """The rows of the table, by their text, when all is computed."""
    for _ in answer.filling(chosen):
        pass
    matrix = matrix_of(chosen)
    goal = answer.goal_now(chosen, (matrix.values.shape[0], matrix.values.shape[1]))
    return {row.text: row for row in answer.candidates(chosen, tuple(matrix.values.shape), goal)}


def test_a_method_and_its_scheme_are_two_points() -> None:
    """Else a scheme by a method is drawn and told with the error of the plain one, or the other way round."""
    plain, repaired = "int4_group128_asym", "int4_group128_asym+hqq"
    chosen = Record(sample="attention_query", scheme=plain, second=repaired)
    rows = filled(chosen)
    found = analyses_of(chosen)
    wanted = [analysis.report.sqnr_db for _, analysis in found[1]]
    assert wanted[1] - wanted[0] > 0.1
    assert [rows[text].report.sqnr_db for text in (plain, repaired)] == wanted
    figure = json.loads(answer.answered(chosen, found)["figure"])
    rings = [t["y"] for t in figure["data"] if t.get("name") in ("A", "B") or len(t.get("y") or []) == 1]
    heights = {round(float(y), 2) for ys in rings if isinstance(ys, list) for y in ys}
    assert {round(db, 2) for db in wanted} <= heights


def test_one_row_that_cannot_be_computed_stops_no_other() -> None:
    """A shortlist with a method of another layer, on a tensor without inputs: its row says why."""
    chosen = Record(sample="outlier_channels", shortlist="int4_group128_asym,nvfp4,int4_group128_asym+gptq")
    rows = filled(chosen)
    assert "is no layer" in rows["int4_group128_asym+gptq"].refused
    assert rows["nvfp4"].report.sqnr_db > 10
    assert len(answer.known_rows(chosen)) == len(SCHEMES)


def test_times_are_of_the_goals_inputs() -> None:
    """FP8 weights with X in BF16 and with X in FP8 are two products: the goal says which."""
    kept, both = (answer.times_of("fp8_e4m3_row", 4096, 4096, flag)[2].seconds for flag in (False, True))
    assert both is not None and kept is not None and both < 0.7 * kept


def test_what_is_prepared_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share one interpreter: one of a low priority that holds it on a busy machine holds up the page,
    and its end. It rests instead, as long as it worked."""
    rested: list[float] = []
    monkeypatch.setattr(answer, "filling", lambda chosen: iter([(1, 2), (2, 2)]))
    monkeypatch.setattr(answer.time, "sleep", rested.append)
    priorities: list[int] = []

    def run() -> None:
        answer.prepare()
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert priorities == [os.getpriority(os.PRIO_PROCESS, 0)] and len(rested) == 2
