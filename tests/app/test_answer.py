"""The first screen and the acts of the bar: one record is shown by all parts, and nothing is lost.

If these fail, the screen shows the wrong tensor, or a visitor's mistake changes what was chosen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from app.parts import html
from app.sections import answer, bar
from app.serving import work
from app.serving.sessions import CurrentRequest, answering
from app.state import analyses, known, rows, selection
from app.state.analyses import analyses_of
from app.state.memo import Memo
from app.state.record import Record, goal_now, next_record
from app.state.selection import Selection, matrix_of
from explorer import SCHEMES, compare_schemes
from explorer.analysis.schemes import ComparisonRow
from explorer.progress import checkpoint
from explorer.schemes import Scheme
from tests.app.acting import did, query_of, ran, shown, traces
from tests.covering import FEW, sampled


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are uploads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path.parent))


@pytest.mark.parametrize("name", sampled(SCHEMES, FEW[:6]))
def test_the_first_screen_shows_every_scheme(name: str) -> None:
    """One answer has all of it, alone and beside another; the figure is small: else each click sends
    megabytes."""
    for second in ("", "nvfp4"):
        slots = shown(scheme=name, second=second)
        assert all(slots[part] for part in ("samples", "picture", "goals", "said", "head", "listed"))
        assert len(slots["frontier"]) < 100_000
        chips = bar.view(query_of(scheme=name, second=second))["chips"]
        assert SCHEMES[name].label in unescape(str(chips))


ACTS: list[tuple[list[dict[str, Any]], tuple[str, str]]] = [
    ([{"do": "swap"}], ("nvfp4", "int4_row")),
    ([{"do": "clear"}], ("int4_row", "")),
    ([{"do": "scheme", "side": "b", "text": " int8_row "}], ("int4_row", "int8_row")),
    ([{"do": "scheme", "side": "b", "text": None}], ("int4_row", "")),
    ([{"do": "swap"}, {"do": "scheme", "text": "mxfp4"}, {"do": "swap"}], ("int4_row", "mxfp4")),
]


def test_acts_on_the_schemes_one_after_another() -> None:
    """What is pressed while an answer is awaited is done when it has come."""
    for acts, wanted in ACTS:
        record = did(*acts, scheme="int4_row", second="nvfp4")
        assert (record.scheme, record.second) == wanted, acts
    there = did({"do": "next"}, {"do": "previous"}, scheme="nvfp4")
    assert there.scheme == "nvfp4" != did({"do": "next"}, scheme="nvfp4").scheme
    alone = Record(sample="mlp_down", scheme="nvfp4", second="nvfp4", shortlist="nvfp4")
    assert next_record(alone, {"do": "next"}, None) == alone, "where there is no other"


NO_ACTS: list[tuple[Any, str]] = [
    (None, "1 to 100 "),
    ([], "1 to 100 "),
    ([1], "1 to 100 "),
    ([{"do": "next"}] * 101, "1 to 100 "),
    ([{"do": "what"}], "'what'"),
    ([{"do": ["x"]}], "no act"),
    ([{"do": "next", "side": "c"}], "side"),
    ([{"do": "scheme", "text": 5}], "text"),
    ([{"do": "scheme", "text": ""}], "scheme"),
    ([{"do": "scheme", "text": "nope"}], "'nope'"),
    ([{"do": "parts", "parts": [1]}], "parts"),
    ([{"do": "list", "texts": ["nope"]}], "'nope'"),
    ([{"do": "sample", "name": "nope"}], "nope"),
    ([{"do": "file", "path": "/etc/passwd"}], "drop it in again"),
    ([{"do": "layer", "model": "/nonexistent/x y", "layer": "w"}], "x y"),
]


@pytest.mark.parametrize(("acts", "words"), NO_ACTS, ids=lambda one: str(one)[:30])
def test_what_is_no_act_is_refused(acts: Any, words: str) -> None:
    """If this fails, a typing error empties the page, or a part of it names what is not shown."""
    with pytest.raises((ValueError, OSError), match=re.escape(words)):
        bar.choose(query_of(), {"acts": acts})


def test_a_refused_file_is_named_with_the_scheme(tmp_path: Path) -> None:
    """Else nobody knows whether another file or another scheme would do."""
    values = np.ones((8, 16), np.float32)
    values[0, 0] = np.nan
    np.save(path := tmp_path / "hole.npy", values)
    with pytest.raises(ValueError, match=r"hole\.npy: .*INT4 group 32.* 1 of 128 .*"):
        did({"do": "file", "path": str(path)}, scheme="int4_group32")
    (bad := tmp_path / "bad.npy").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"bad\.npy") as refused:
        did({"do": "file", "path": str(bad)})
    assert "scheme" not in str(refused.value)
    good = str(tmp_path / "good.npz")
    np.savez(good, c=np.ones(3, np.int64), a=np.full((2, 2), np.nan), w=np.ones((4, 8), np.float32))
    record = next_record(Record(), {"do": "file"}, good)
    assert (record.source, record.file, record.file_tensor) == ("file", good, "w")
    said = str(answer.view(query_of(source="file", file=good, file_tensor="a"))["said"])
    assert "1 of 3 tensors" in said and "choose another" in said and "Try again" not in said
    pickers = str(bar.tensor_panel(query_of(source="file", file=good, file_tensor="w"))["pickers"])
    assert pickers.count("<option value=") >= 3 and 'value="w"' in pickers


def test_codes_of_a_restored_weight_are_one_more_choice(tmp_path: Path) -> None:
    """The weight is what codes and scale mean; who wants to see the codes themselves chooses those."""
    path = str(tmp_path / "fp8.safetensors")
    codes = torch.full((4, 16), 96.0).to(torch.float8_e4m3fn)
    save_file({"a.weight": codes, "a.weight_scale": torch.tensor(2.0**-7)}, path)
    pickers = str(bar.tensor_panel(query_of(source="file", file=path, file_tensor="a.weight"))["pickers"])
    assert [name in pickers for name in ('"a.weight"', '"a.weight:codes"', "F8_E4M3")] == [True] * 3
    for name, value in zip(("a.weight", "a.weight:codes"), (0.75, 96), strict=True):
        chosen = next_record(Record(), {"do": "tensor", "name": name}, path)
        assert matrix_of(chosen).values.max() == value


def test_what_is_overtaken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work itself ends too, and another visitor's goes on; else a visitor waits for what was left."""
    ended: list[str] = []

    def slow(*_: Any) -> Any:
        try:
            while True:
                checkpoint()
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    monkeypatch.setattr(analyses, "analyse_anywhere", slow)
    monkeypatch.setattr(analyses, "SAID_AGAIN_S", 0.01)
    query = dict(query_of(scheme="int3~1x24~asymmetric~float32~minmax"))  # no other test's
    with answering(CurrentRequest("mine")):
        steps = answer.SECTION._runner()(_Event({"run": "filling", "number": "1", "query": query}))
        assert "INT3" in next(steps)
        work.overtake("another's", work.FILLING)
        assert "INT3" in next(steps) and not ended
        work.overtake("mine", work.FILLING)
        (*_, end) = steps
    assert json.loads(end) == {"ended": True, "number": "1"}


class _Event:
    """What Gradio gives to a listener of a custom event."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data


def test_the_frontier_is_kept_for_its_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A left one is continued, and a second visit has it at once. A scheme without a name is ringed too. The
    tensor is this test's own: a page that another test has left may still compute the rows of a built-in."""
    path = tmp_path / "own.safetensors"
    save_file({"w": torch.randn(32, 96, generator=torch.manual_seed(9))}, path)
    own_file = {"source": "file", "file": str(path), "file_tensor": "w"}
    asked: list[int] = []
    whole = rows.survey

    def counted(x: Any, schemes: Iterable[Scheme]) -> Iterator[ComparisonRow]:
        every = list(schemes)
        asked.append(len(every))
        return whole(x, every)

    monkeypatch.setattr(rows, "survey", counted)
    own = "int4~1x48~symmetric~float16~minmax"
    pair = own_file | {"second": own}
    early, chosen = shown(**pair), Record(**pair)
    left = rows.filling(chosen)
    while len(known.surveyed(chosen)) < 16:
        next(left)
    left.close()
    end = ran(answer.fill(query_of(**pair)))
    assert asked[:2] == [len(SCHEMES), len(SCHEMES) - 16]
    assert early["tick"] != end["tick"] == answer.COMPLETE
    late = shown(**pair)
    assert late["tick"] == answer.COMPLETE
    assert "…" in early["listed"] and "…" not in late["listed"]
    assert f"{len(SCHEMES) + 1} schemes" in late["of-rows"], "the caption counts what the figure has"
    for slots in (late, shown(**own_file, second="nvfp4")):
        assert {"A", "B"} <= {trace.get("name") for trace in traces(slots["frontier"])}


def test_what_is_seen_is_at_hand_when_its_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a crowded page others' tensors push it out meanwhile: the view would wait for run after run."""
    path = tmp_path / "own.npy"
    np.save(path, np.random.default_rng(0).standard_normal((1056, 1024), np.float32))
    query = query_of(source="file", file=str(path), file_tensor="own", shortlist="int8_row")
    chosen = query.record
    caches = ((selection, "_MATRICES"), (analyses, "_ANALYSES"))
    for module, name in caches:
        monkeypatch.setattr(module, name, Memo[Any](1 << 24))

    def crowded(x: Any, _: object) -> Iterator[ComparisonRow]:
        assert analyses.at_hand(chosen)
        for module, name in caches:
            getattr(module, name).keep("another's", np.zeros(1 << 24, np.uint8))
            assert not analyses.at_hand(chosen)
        yield from compare_schemes(x[:64], [SCHEMES["int8_row"]])

    monkeypatch.setattr(rows, "survey", crowded)
    ran(answer.fill(query))
    assert analyses.at_hand(chosen)


GOAL_ACTS: list[tuple[dict[str, str], str, tuple[str, ...]]] = [
    ({}, "8-bit", ("int8_row", "fp8_e4m3_row", "", "")),
    ({"second": "nvfp4"}, "fp8-inputs", ("fp8_e4m3_row", "fp8_e4m3_tensor", "fp8-inputs", "")),
    ({"scheme": "bf16"}, "3-bit", ("bf16", "", "3-bit", "")),
    ({"shortlist": "int4_group128_asym,mxfp4"}, "6-bit", ("int6_group128_asym", "mxfp6_e2m3", "", "")),
]


def test_a_goal_takes_its_schemes() -> None:
    """What is asked for becomes A and B, unless the visitor has chosen others; the list becomes its own."""
    for held, goal, wanted in GOAL_ACTS:
        out = did({"do": "goal", "name": goal}, **held)
        assert (out.scheme, out.second, out.goal, out.shortlist) == wanted
    out = did({"do": "goal", "name": "at-most-3MB"}, goal="8-bit", scheme="int8_row")
    assert out.goal == "at-most-3MB" and out.scheme != "int8_row"


def test_bar_table_and_figure_agree() -> None:
    """B is in all three, with the same numbers."""
    for second in ("nvfp4", "int4~1x48~symmetric~float16~minmax", "q6_k"):
        slots, chips = shown(second=second), bar.view(query_of(second=second))["chips"]
        label = unescape(html.short_name(Scheme.parse(second).label))
        assert label.split(",")[0] in unescape(str(chips)).replace("GGUF ", "")
        assert f'data-scheme="{second}" class="is-b"' in slots["listed"]
        analysis = analyses_of(Selection(second=second))[1][1][1].report
        assert f"{analysis.sqnr_db:.1f}</td>" in slots["listed"]
        (ring,) = [t for t in traces(slots["frontier"]) if t.get("name") == "B" and "text" in t]
        assert ring["customdata"][0][1] == second and f"{analysis.sqnr_db:.2f} dB" in ring["text"][0]


def filled(chosen: Record) -> dict[str, Any]:
    """The rows of the table, by their text, when all is computed."""
    for _ in rows.filling(chosen):
        pass
    matrix = matrix_of(chosen)
    goal = goal_now(chosen, (matrix.values.shape[0], matrix.values.shape[1]))
    return {row.text: row for row in rows.candidates(chosen, tuple(matrix.values.shape), goal)}


def test_a_method_and_its_scheme_are_two_points() -> None:
    """Else a scheme by a method is drawn and told with the error of the plain one, or the other way round."""
    plain, repaired = "int4_group128_asym", "int4_group128_asym+hqq"
    chosen = Record(sample="attention_query", scheme=plain, second=repaired)
    by_text = filled(chosen)
    found = analyses_of(chosen)
    wanted = [analysis.report.sqnr_db for _, analysis in found[1]]
    assert wanted[1] - wanted[0] > 0.1
    assert [by_text[text].report.sqnr_db for text in (plain, repaired)] == wanted
    drawn = traces(answer.answered(chosen, found)["frontier"])
    rings = [t["y"] for t in drawn if t.get("name") in ("A", "B") or len(t.get("y") or []) == 1]
    heights = {round(float(y), 2) for ys in rings if isinstance(ys, list) for y in ys}
    assert {round(db, 2) for db in wanted} <= heights
