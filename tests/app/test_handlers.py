"""Handlers with their defaults and with bad input: figures small enough, errors as messages, nothing lost.

If these fail, a section shows the wrong tensor or nothing at all, or a visitor's mistake wipes what was on
the screen.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from app.chosen import ChosenView, choose
from safetensors.torch import save_file

from app import limits
from app.parts import html, tensor_controls
from app.sections import answer, compare, overview, sizes, take_away
from app.serving import sessions, work
from app.state import analyses, record
from app.state import selection as selections
from app.state.analyses import analyses_of
from app.state.memo import Memo
from app.state.query import Query
from app.state.record import Record, next_record
from app.state.selection import Selection, matrix_of
from explorer import SCHEMES, SourceError, load_matrix, quantize
from explorer import compare as library_compare
from explorer.analysis.element import inspect_element
from explorer.analysis.memory import estimate
from explorer.analysis.schemes import ComparisonRow
from explorer.checkpoints import EXPORTS, write_one
from explorer.core.file import load as load_quantized
from explorer.figures.style import file_name
from explorer.progress import checkpoint
from explorer.recordings.quantize import recorded_kernel
from explorer.schemes import Scheme
from explorer.sources import open_tensors
from tests.app.acting import did, last, plots_of, selection, shown, unchanged, views_of
from tests.covering import FEW, sampled
from tests.records import read_record


def below(chosen: dict[str, Any]) -> dict[str, Any]:
    """What follows below the first screen when it is seen: the figures of values and of the error."""
    record = dataclasses.astuple(Record(**chosen))
    return {**vars(overview.values(*record)), **vars(overview.maps(*record))}


@pytest.mark.parametrize("name", sampled(SCHEMES, FEW[:6]))
def test_the_tensor_place_shows_every_scheme(name: str) -> None:
    """All outputs, alone and beside another; plots are binned: else every click sends megabytes."""
    for second, figures, most in (("", 5, 300_000), ("nvfp4", 7, 600_000)):
        out = shown(scheme=name, second=second).shown
        assert type(out) is overview.TensorView and not plots_of(out)
        plots = [value for value in below({"scheme": name, "second": second}).values() if value[:2] == '{"']
        assert len(plots) == figures and sum(map(len, plots)) < most
        assert SCHEMES[name].label in unescape(out.chips) and SCHEMES[name].label in unescape(out.verdict)


def test_one_answer_has_the_whole_first_screen() -> None:
    """Else bar, sentence, table and figure name different schemes for a while."""
    (only,) = views_of({"do": "visit", "query": ""}, whole=True)
    assert not any(unchanged(value) for value in only.answered.in_order())
    assert plots_of(only) == [only.answered.figure], "figures further down come when they are seen"
    assert unchanged(only.shown.values) and not unchanged(only.shown.inspector)


def test_an_element_is_picked_and_walked_from() -> None:
    """A click gives an element, an arrow key the next one, "largest" the worst: none leaves the matrix."""
    followed, stayed = shown().shown, shown((3, 4)).shown
    assert followed.follow and not stayed.follow and (stayed.row, stayed.column) == (3, 4)
    out = did({"do": "element", "row": 5, "column": 7}, scheme="nvfp4")
    assert (out.shown.row, out.shown.column, out.shown.follow) == (5, 7, False)
    assert unchanged(out.shown.chips) and "(5, 7)" in out.shown.inspector
    for row, (down, right), wanted in ((5, (-1, 0), "4,7"), (0, (-1, 0), "0,7"), (5, (3, -2), "8,5")):
        move = {"do": "move", "down": down, "right": right}
        assert did(move, element=f"{row},7").record.element == wanted
    pair = {"scheme": "int4_row", "second": "nvfp4"}
    worst = analyses_of(Selection(**pair))[1][1][1].report.max_error_at
    assert did({"do": "largest", "side": "b"}, **pair).record.element == f"{worst[0]},{worst[1]}"
    followed = did({"do": "largest", "side": "a"}, element="1,1", **pair)
    assert followed.record.element == "" and followed.shown.follow


ACTS: list[tuple[list[dict[str, Any]], tuple[Any, Any]]] = [
    ([], ("int4_row", "nvfp4")),
    ([{"do": "swap"}], ("nvfp4", "int4_row")),
    ([{"do": "clear"}], ("int4_row", "")),
    ([{"do": "next"}, {"do": "next", "side": "a"}, {"do": "previous"}, {"do": "next", "side": "b"}], (1, 1)),
    ([{"do": "swap"}, {"do": "next"}, {"do": "swap"}], (0, 1)),
    ([{"do": "scheme", "side": "b", "text": " int8_row "}], ("int4_row", "int8_row")),
    ([{"do": "scheme", "side": "b", "text": None}], ("int4_row", "")),
]


def test_acts_on_the_schemes_one_after_another() -> None:
    """What is pressed while an answer is awaited is done when it has come."""
    names = list(SCHEMES)
    for acts, wanted in ACTS:
        places = zip(("int4_row", "nvfp4"), wanted, strict=True)
        pair = tuple(
            names[names.index(first) + end] if isinstance(end, int) else end for first, end in places
        )
        record = Record(scheme="int4_row", second="nvfp4")
        for act in acts:
            record = next_record(record, act, None)
        assert (record.scheme, record.second) == pair, acts
    (act,) = json.loads(compare.clicked("b", SimpleNamespace(row_value=["nvfp4", 4.5])))
    assert next_record(Record(scheme="bf16"), act, None).second == "nvfp4", "a row of the table"


NO_ACTS = [
    ("", "JSON"),
    ("[" * 60_000, "JSON"),
    ('{"number": 1}', "JSON"),
    ('{"number": 1, "acts": []}', "1 to 1,000"),
    ('{"number": 1, "acts": [1]}', "1 to 1,000"),
    ('{"number": 1, "acts": [{"do": "what"}]}', "'what'"),
    ('{"number": 1, "acts": [{"do": ["x"]}]}', "no act"),
    ('{"number": 1, "acts": [{"do": "next", "side": "c"}]}', "side"),
    ('{"number": 1, "acts": [{"do": "scheme", "text": 5}]}', "text"),
    ('{"number": 1, "acts": [{"do": "scheme", "text": ""}]}', "scheme"),
    ('{"number": 1, "acts": [{"do": "scheme", "text": "nope"}]}', "'nope'"),
    ('{"number": 1, "acts": [{"do": "move", "down": "x", "right": 0}]}', "whole numbers"),
    ('{"number": 1, "acts": [{"do": "element", "row": null, "column": 1}]}', "whole numbers"),
    ('{"number": 1, "acts": [{"do": "element", "row": 1e400, "column": 1}]}', "whole numbers"),
    ('{"number": 1, "acts": [{"do": "parts", "parts": [1]}]}', "parts"),
    ('{"number": 1, "acts": [{"do": "list", "texts": ["nope"]}]}', "'nope'"),
    ('{"number": 1, "acts": [{"do": "sample", "name": "nope"}]}', "nope"),
    ('{"number": 1, "acts": [{"do": "layer", "model": "/nonexistent/x y", "layer": "w"}]}', "x y"),
]


def test_what_is_no_act_changes_nothing(said: list[str]) -> None:
    """If this fails, a typing error empties the page, or a part of it names what is not shown."""
    for text, words in NO_ACTS:
        *_, out = choose(text, None, *dataclasses.astuple(Record()))
        assert words in said.pop() and out.notice and "refused" in json.loads(out.answer), text
        parts = (out.record, out.tensor, out.first, out.kept, out.answered, out.shown)
        assert all(unchanged(value) for part in parts for value in part.in_order()), text


def test_a_refused_file_is_named_with_the_scheme(tmp_path: Path, said: list[str]) -> None:
    """Else nobody knows whether another file or another scheme would do. What is shown stays."""
    values = np.ones((8, 16), np.float32)
    values[0, 0] = np.nan
    np.save(path := tmp_path / "hole.npy", values)
    out = did({"do": "file"}, upload=str(path), scheme="int4_group32")
    why = json.loads(out.answer)["why"]
    assert re.fullmatch(r"hole\.npy: .*INT4 group 32.* 1 of 128 .*", why)
    assert why in unescape(out.notice) and unchanged(out.record.source) and not said, "it is told once"
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    assert "scheme" not in json.loads(did({"do": "file"}, upload=str(tmp_path / "bad.npy")).answer)["why"]
    good = str(tmp_path / "good.npz")
    np.savez(good, c=np.ones(3, np.int64), a=np.full((2, 2), np.nan), w=np.ones((4, 8), np.float32))
    assert next(views_of({"do": "file"}, upload=good)).notice == "", "the reason before goes at once"
    out = did({"do": "file"}, upload=good)
    assert (out.record.source, out.record.file, out.record.file_tensor) == ("file", good, "w")
    assert out.notice == "" and len(out.tensor.file_tensor["choices"]) == 3


def test_loading_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a model's list of layers, one of its layers: else a page that reads for a minute looks dead."""
    monkeypatch.setattr(analyses, "SAID_AGAIN_S", 0.01)
    monkeypatch.setattr(analyses, "REPORTED_EVERY_S", -1.0)
    np.save(path := tmp_path / "slow.npy", np.random.default_rng(0).standard_normal((8, 16)).astype("f4"))
    source, heard = open_tensors(path), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        assert heard.wait(60), "nothing is said before it is there"
        return source

    def in_parts(info: Any, rows: Any, progress: Any, read: Any = source.read_rows) -> Any:
        for done in (1, 2, 3) if progress else ():
            progress(done, 4)
        return read(info, rows, None)

    def told(act: dict[str, Any], upload: str | None) -> str:
        heard.clear()
        said = ""
        for view in views_of(act, upload=upload, scheme="int8_row"):
            if view.notice and not unchanged(view.notice):
                said += view.notice
                heard.set()
        return said

    monkeypatch.setattr(source, "read_rows", in_parts)
    monkeypatch.setattr(selections, "open_tensors", slow)
    assert "slow.npy" in told({"do": "file"}, str(path))
    monkeypatch.setattr(record, "model_source", slow)
    monkeypatch.setattr(tensor_controls, "model_source", lambda *_: source)
    monkeypatch.setattr(selections, "model_source", lambda *_: source)
    said = told({"do": "model", "model": "owner/name", "revision": ""}, None)
    assert "owner/name" in said and "50 %" in said and "75 %" in said


def test_codes_of_a_restored_weight_are_one_more_choice(tmp_path: Path) -> None:
    """The weight is what codes and scale mean; who wants to see the codes themselves chooses those."""
    path = tmp_path / "fp8.safetensors"
    codes = torch.full((4, 16), 96.0).to(torch.float8_e4m3fn)
    save_file({"a.weight": codes, "a.weight_scale": torch.tensor(2.0**-7)}, path)
    view = did({"do": "file"}, upload=str(path))
    choices = view.tensor.file_tensor["choices"]
    assert [name for _, name in choices] == ["a.weight", "a.weight:codes"] and "F8_E4M3" in choices[1][0]
    for name, value in zip(("a.weight", "a.weight:codes"), (0.75, 96), strict=True):
        chosen = next_record(Record(), {"do": "tensor", "name": name}, str(path))
        assert matrix_of(chosen).values.max() == value


def test_what_is_overtaken_ends(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    """The work itself ends too, and another visitor's goes on; else a visitor waits for what was left."""
    ended: list[str] = []
    begun, over = threading.Event(), threading.Event()

    def slow(*_: Any) -> Any:
        begun.set()
        try:
            while True:
                checkpoint()
        except BaseException as error:
            ended.append(type(error).__name__)
            over.set()
            raise

    monkeypatch.setattr(analyses, "analyse_anywhere", slow)
    monkeypatch.setattr(analyses, "SAID_AGAIN_S", 0.01)
    monkeypatch.setattr(work, "current_request", lambda: sessions.CurrentRequest("mine"))
    views = views_of({"do": "scheme", "text": "int3~1x24~asymmetric~float32~minmax"})  # no other test's
    assert "INT3" in unescape(next(views).notice) and begun.wait(60)
    work.overtake("another's", "choosing")
    assert "INT3" in next(views).notice and not ended
    work.overtake("mine", "choosing")
    (*_, end) = views
    assert json.loads(end.answer) == {"number": 7, "overtaken": True, "sampled": False}
    assert unchanged(end.record.scheme) and over.wait(60) and ended == ["OvertakenError"] and not said


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


def test_the_cache_of_a_model_by_its_context() -> None:
    """Llama-3-8B keeps 128 KiB of a token in 16 bits, and half of that in FP8; Mistral-7B 4,096 tokens."""
    names = list(sizes.USUAL)

    def shown(model: str, stored: str = names[0]) -> tuple[list[Any], str]:
        said = sizes.view(Query({"sized": model, "stored": stored}))
        return said["cache-size"].data, said["said"]  # type: ignore[union-attr, return-value]

    (exact, stored), sentence = shown("Llama-3-8B")
    assert list(exact["y"]) == [128 * 1024 * tokens / 1e9 for tokens in exact["x"]]
    assert stored["name"] == names[0] and list(stored["y"]) == [size / 2 for size in exact["y"]]
    assert "4.29 GB" in sentence and "2.15 GB" in sentence
    windowed = shown("Mistral-7B 0.1", "NVFP4")[0][1]
    assert windowed["y"][windowed["x"].index(4096) :] == (windowed["y"][-1],) * 6
    assert all(shown("Llama-2-7B", name)[1] for name in names)


def test_comparison_comes_row_by_row(said: list[str]) -> None:
    """A row after each scheme; the files hold all of them; the table goes with its tensor."""
    names = ["bf16", "nvfp4", "fp32"]
    steps = list(compare.run(*selection(), names))
    assert [len(s.table) for s in steps] == [1, 2, 3]
    end = steps[-1]
    assert "3 of 3" in end.status and [r[0] for r in end.table] == names
    assert all(len(row) == len(compare.COLUMNS) for row in end.table)
    records = json.loads(Path(end.json_file["value"]).read_text())
    assert [r["scheme"] for r in records] == names and records[1]["bits"]["scales"] == 0.5
    assert len(Path(end.csv_file["value"]).read_text().splitlines()) == 4
    assert unchanged(compare.cleared(*selection(), end.tensor).table)
    assert compare.cleared(*selection(sample="mlp_down"), end.tensor).table == []
    (only,) = compare.run(*selection(), [])
    assert said[0] in only.status and unchanged(only.table)


def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any tensor, whatever ran before."""
    for kept in ("_ROWS", "_WHOLE", "_DRAWN"):
        monkeypatch.setattr(answer, kept, Memo[Any](4096))


def test_the_frontier_is_kept_for_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A left one is continued, and a second visit has it at once. A scheme without a name is ringed too."""
    nothing_known(monkeypatch)
    asked: list[int] = []
    whole = answer.survey

    def counted(x: Any, schemes: Iterable[Scheme]) -> Iterator[ComparisonRow]:
        known = list(schemes)
        asked.append(len(known))
        return whole(x, known)

    monkeypatch.setattr(answer, "survey", counted)
    own = "int4~1x48~symmetric~float16~minmax"
    pair = {"sample": "attention_query", "second": own}
    early, chosen = shown(**pair), Record(**pair)
    left = answer.filling(chosen)
    while len(answer.known_rows(chosen)) < 16:
        next(left)
    left.close()
    end = list(answer.fill(*dataclasses.astuple(chosen)))[-1]
    assert asked[:2] == [len(SCHEMES), len(SCHEMES) - 16] and str(len(SCHEMES)) in end.status
    again = list(answer.fill(*dataclasses.astuple(chosen)))

    def known(view: ChosenView) -> Any:
        return re.findall(r'data-known="([^"]+)"', view.answered.listed)[0]

    late = did({"do": "look"}, **pair)
    assert unchanged(late.record.scheme) and unchanged(late.notice)
    assert "…" in early.answered.listed and 'strong">…' not in late.answered.listed
    assert end.tick.split(" ")[0] == again[-1].tick.split(" ")[0] == known(late) != known(early)
    assert len(again) == 1 and end.tick != again[-1].tick, "a text that stands there already says nothing"
    for out in (late, did({"do": "look"}, sample="attention_query", second="nvfp4")):
        assert {"A", "B"} <= {trace.get("name") for trace in json.loads(out.answered.figure)["data"]}
    other = did({"do": "scheme", "text": "int5_row"}, **pair)
    assert known(other) != known(late), "the report on all of the tensor is new"


GOAL_ACTS: list[tuple[dict[str, str], str, tuple[str, ...]]] = [
    ({}, "8-bit", ("int8_row", "fp8_e4m3_row", "", "")),
    ({"second": "nvfp4"}, "fp8-inputs", ("fp8_e4m3_row", "fp8_e4m3_tensor", "fp8-inputs", "")),
    ({"scheme": "bf16"}, "3-bit", ("bf16", "", "3-bit", "")),
    ({"shortlist": "int4_group128_asym,mxfp4"}, "6-bit", ("int6_group128_asym", "mxfp6_e2m3", "", "")),
]


def test_a_goal_takes_its_schemes() -> None:
    """What is asked for becomes A and B, unless the visitor has chosen others; the list becomes its own."""
    for held, goal, wanted in GOAL_ACTS:
        out = did({"do": "goal", "name": goal}, **held).record
        assert (out.scheme, out.second, out.goal, out.shortlist) == wanted
    out = did({"do": "goal", "name": "at-most-3MB"}, goal="8-bit", scheme="int8_row").record
    assert out.goal == "at-most-3MB" and out.scheme != "int8_row"


def test_bar_table_and_figure_agree() -> None:
    """B is in all three, with the same numbers."""
    for second in ("nvfp4", "int4~1x48~symmetric~float16~minmax", "q6_k"):
        out = shown(second=second)
        label = unescape(html.short_name(Scheme.parse(second).label))
        assert label.split(",")[0] in unescape(out.shown.chips).replace("GGUF ", "")
        assert f'data-scheme="{second}" class="is-b"' in out.answered.listed
        analysis = analyses_of(Selection(second=second))[1][1][1].report
        assert f"{analysis.sqnr_db:.1f}</td>" in out.answered.listed
        drawn = json.loads(out.answered.figure)["data"]
        (ring,) = [t for t in drawn if t.get("name") == "B" and "text" in t]
        assert ring["customdata"][0][1] == second and f"{analysis.sqnr_db:.2f} dB" in ring["text"][0]


def test_the_quantized_tensor_and_its_report_are_taken_away() -> None:
    """The files hold the codes that the page showed, and what the command writes of the same tensor."""
    chosen = selection(scheme="nvfp4", second="int8_row")
    paths = [Path(p) for p in last(take_away.make(*chosen, ["tensor", "report", "page"])).files["value"]]
    assert sorted(p.suffix for p in paths) == [".html", ".json", ".json", ".safetensors", ".safetensors"]
    x = load_matrix("sample:mlp_up").values
    first = next(path for path in paths if path.suffix == ".safetensors")
    q = quantize(x, SCHEMES["nvfp4"])
    assert torch.equal(load_quantized(first).packed, q.packed)
    assert "explorer quantize sample:mlp_up --scheme nvfp4" in take_away.command(*selection(scheme="nvfp4"))
    record = read_record(next(path for path in paths if path.suffix == ".html"))
    assert record["recipe"]["file"] == "sample:mlp_up"
    assert record["recipe"]["schemes"] == ["nvfp4", "int8_row"]
    assert record["numbers"]["A.sqnr_db"] == library_compare(x, q).sqnr_db


@pytest.mark.parametrize("layout", sampled(EXPORTS, ("gguf", "gptq")))
def test_the_tensor_in_a_checkpoints_layout(layout: str) -> None:
    """The page writes what ``write_one`` writes, whose readers are tried in tests/checkpoints."""
    x = load_matrix("sample:mlp_up")
    refusal = EXPORTS[layout].refusal
    scheme = next(name for name, row in SCHEMES.items() if row.scale and not refusal(row, x.shape))
    out = last(take_away.make(*selection(scheme=scheme), ["tensor"], layout))
    (path,) = (Path(p) for p in out.files["value"])
    q = quantize(x.values, SCHEMES[scheme])
    same = write_one(layout, q, path.with_name(f"same{path.suffix}"), f"{file_name(x.name)}.weight")
    assert path.suffix == EXPORTS[layout].suffix and path.read_bytes() == same.read_bytes()
    typed = unescape(take_away.command(*selection(scheme=scheme), layout))
    assert f"--scheme {scheme} --layout {layout} --out Q{EXPORTS[layout].suffix}" in typed


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
    cache = Memo[object](100)
    for i in range(50):
        cache.get(i, lambda i=i: i, lambda _: 30)
    assert cache._used <= 100 and cache.get(49, lambda: "new", lambda _: 1) == 49


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
