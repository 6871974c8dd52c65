"""Handlers with their defaults and with bad input: figures small enough, errors as messages, nothing lost.

If these fail, a section shows the wrong tensor or nothing at all, or a visitor's mistake wipes what was on
the screen.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
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
from app.learn import playground
from app.link import LinkView, read_link, visited
from app.parts import html
from app.parts.bar import PairView
from app.parts.keys import acted
from app.parts.tensor_controls import opened_file
from app.parts.views import View
from app.sections import compare, overview, sizes, take_away
from app.sections.element import moved, picked, typed
from app.state.cache import BoundedCache
from app.state.selection import Selection, matrix_of
from explorer import FORMATS, SCHEMES, SourceError, load_matrix, quantize
from explorer import compare as library_compare
from explorer.analysis.element import inspect_element
from explorer.analysis.memory import estimate
from explorer.analysis.schemes import ComparisonRow
from explorer.checkpoints import EXPORTS, write_one
from explorer.export.quantized import load_quantized
from explorer.figures.style import file_name
from explorer.formats.code import code_facts
from explorer.paths import KERNELS
from explorer.recordings.quantize import recorded_kernel
from explorer.reports.check import read_record
from explorer.schemes import Scheme


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages shown to the visitor."""
    messages: list[str] = []
    monkeypatch.setattr(limits, "notify", messages.append)
    return messages


def selection(**changes: Any) -> tuple[Any, ...]:
    """A selection's values as Gradio passes them; what is not in ``changes`` is as on a fresh page."""
    return dataclasses.astuple(Selection(**changes))


def shown(*values: Any) -> overview.TensorView:
    """The last view of the Tensor place's handler."""
    *_, last = overview.show(*values)
    return last


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


@pytest.mark.parametrize("name", SCHEMES)
def test_the_tensor_place_shows_every_scheme(name: str) -> None:
    """All outputs for every scheme, alone and beside another; plots are binned and reduced: else every click
    sends megabytes."""
    for second, figures, most in (("", 5, 250_000), ("nvfp4", 8, 450_000)):
        out = shown(*selection(scheme=name, second=second), None, None, True)
        assert type(out) is overview.TensorView
        assert len(plots_of(out)) == figures and sum(map(len, plots_of(out))) < most
        for plot in map(json.loads, plots_of(out)):
            assert plot["layout"]["meta"]["filename"].startswith("MLP-up-projection"), (
                "a saved figure says what it shows"
            )
            assert "title" not in plot["layout"]
        assert SCHEMES[name].label in unescape(out.chips) and SCHEMES[name].label in unescape(out.verdict)


def test_a_large_tensor_stays_small_on_the_wire() -> None:
    """16 million elements are binned and reduced on the server: if not, every click sends megabytes."""
    out = shown(*selection(sample="normal_4096", scheme="nvfp4"), None, None, True)
    assert sum(len(o) for o in out.in_order() if isinstance(o, str)) < 250_000


def test_numbers_come_before_figures() -> None:
    """Else the verdict waits for drawings."""
    first, last = overview.show(*selection(), None, None, True)
    assert (first.kpis, first.verdict, first.chips) == (last.kpis, last.verdict, last.chips)
    assert not plots_of(first) and unchanged(first.errors) and plots_of(last)


def test_two_schemes_are_compared_in_their_numbers() -> None:
    """B's numbers stand beside A's with their differences: the question that two schemes are chosen for."""
    first, second = (
        shown(*selection(scheme=name), None, None, True).kpis for name in ("int4_group128", "nvfp4")
    )
    both = shown(*selection(scheme="int4_group128", second="nvfp4"), None, None, True).kpis
    for one in (first, second):
        assert (number := re.search(r'class="v"[^>]*>([^<]+)', one)) and number[1] in both
    assert both.count('class="difference"') == 6 and 'class="difference"' not in first
    told = re.findall(r'class="difference">([^<]+)<', both)
    assert [text.split(" ")[1:] for text in told] == [["dB"], ["bits"], ["%"], ["%"], ["points"], []], told


def test_the_inspector_follows_or_stays() -> None:
    """An element chosen by hand stays chosen; otherwise the one with the largest error is inspected."""
    followed = shown(*selection(), 3, 4, True)
    stayed = shown(*selection(), 3, 4, False)
    assert (followed.row, followed.column) != (3, 4) and (stayed.row, stayed.column) == (3, 4)
    assert "Element (3, 4)" in stayed.inspector


def test_an_element_is_picked_and_walked_from() -> None:
    """A click gives the cell's largest error, an arrow key the next element; neither leaves the matrix."""
    chosen = selection(scheme="nvfp4")
    there = picked(SimpleNamespace(element=[5, 7]), *chosen)
    assert (there.row, there.column, there.follow) == (5, 7, False)
    for row, steps, wanted in ((5, "-1,0", (4, 7)), (0, "-1,0", (0, 7)), (5, "3,-2", (8, 5))):
        there = moved(*chosen, row, 7, False, steps)
        assert (there.row, there.column) == wanted


@pytest.mark.parametrize("steps", ["", "1", "1,2,3", "a,b", "1e9,0"])
def test_steps_are_two_whole_numbers(steps: str, said: list[str]) -> None:
    """What no script of the page sends moves nothing."""
    out = moved(*selection(), 5, 7, False, steps)
    assert "two whole numbers" in said[0] and unchanged(out.row)


ACTS = [
    ("", ("int4_row", "nvfp4")),
    ("swap a", ("nvfp4", "int4_row")),
    ("clear a", ("int4_row", "")),
    ("next a,next a,previous a,next b", (1, 1)),
    ("swap a,next a,swap a", (0, 1)),
    ("what a,next c,next,<b>", ("int4_row", "nvfp4")),
]


@pytest.mark.parametrize(("acts", "wanted"), ACTS)
def test_acts_on_the_schemes_one_after_another(acts: str, wanted: tuple[Any, Any]) -> None:
    """What is pressed while an answer is awaited is done when it has come; nonsense changes nothing."""
    names = list(SCHEMES)
    places = zip(("int4_row", "nvfp4"), wanted, strict=True)
    pair = [names[names.index(first) + end] if isinstance(end, int) else end for first, end in places]
    assert acted("int4_row", "nvfp4", acts) == PairView(*pair)


BAD = [
    ({"scheme": "nope"}, "no scheme 'nope'"),
    ({"source": "model", "model": "/nonexistent/x y", "layer": "w"}, "no Hub id"),
    ({"sample": "nope"}, "no sample"),
]


@pytest.mark.parametrize("changes, words", BAD)
def test_bad_input_is_a_message_and_nothing_is_lost(
    changes: dict[str, Any], words: str, said: list[str]
) -> None:
    """If this fails, a typing error empties the page."""
    out = shown(*selection(**changes), None, None, True)
    assert words in said[0] and words in unescape(out.notice) and "Still shown" in out.notice
    kept = [value for name, value in vars(out).items() if name not in ("notice", "upload_error")]
    assert all(unchanged(value) for value in kept), "outputs must stay as they are"


def test_a_links_recipe() -> None:
    """The survey, its signal, the budget and what it is kept to, as Back shows them too; the usual ones for
    what is not said. A survey of one's own stays open."""
    query = {"survey": "all-MiniLM-L6-v2", "ranked": "fisher", "budget": "4.16", "for": "gguf"}
    seen = visited(urlencode(query | {"keep": "layer.0.", "fuse": "true"}))
    assert (seen.kept.survey, seen.kept.ranked) == ("all-MiniLM-L6-v2", "fisher")
    # Of the slider's ends, which the recipe before has narrowed, only the next one's are true.
    ends = {"minimum": 0, "maximum": 32, "interactive": True, "__type__": "update"}
    assert seen.kept.budget == ends | {"value": 4.16}
    assert (seen.kept.target, seen.kept.keep, seen.kept.fuse) == ("gguf", "layer.0.", True)
    back = visited("")
    assert (back.kept.survey, back.kept.ranked) == ("all-MiniLM-L6-v2", None)
    assert back.kept.budget == ends | {"value": 4.5}
    assert (back.kept.target, back.kept.keep, back.kept.fuse) == ("any", "", False)
    assert unchanged(visited("survey=own").kept.survey)


LINKS = [
    ({}, []),
    ({"scheme": "nvfp4", "sample": "mlp_down", "tab": "speed"}, []),
    ({"tab": "what"}, ["tab 'what' is unknown; showing tensor"]),
    ({"sample": "zzz"}, ["sample 'zzz' is unknown; showing mlp_up"]),
    ({"source": "moon"}, ["source 'moon' is unknown; showing builtin"]),
    ({"source": "file"}, ["drop it in again"]),
    ({"scheme": "zzz"}, ["scheme is not usable"]),
    ({"second": "zzz"}, ["scheme is not usable"]),
    ({"second": "nvfp4", "row": "3", "column": "4", "tab": "learn"}, []),
    ({"range": "0.31", "shape": "1x8192x8192", "k": "640"}, []),
    ({"range": "abc"}, ["range 'abc' is not valid"]),
    ({"range": "7", "shape": "<b>", "m": "-3"}, ["range '7'", "shape '<b>'", "m '-3'"]),
    ({"row": "x", "column": "4"}, ["row 'x'"]),
    ({"budget": "4.5", "for": "awq", "ranked": "weight"}, []),
    ({"budget": "1e3", "for": "any", "survey": "x"}, ["budget '1e3'", "survey 'x'", "for 'any'"]),
    ({"survey": "own", "budget": "32"}, ["budget '32'", "cannot carry your survey"]),
]


@pytest.mark.parametrize("query, words", LINKS)
def test_what_a_link_cannot_show_is_said(query: dict[str, str], words: list[str], said: list[str]) -> None:
    """Else its receiver takes the defaults for what the sender saw."""
    shown = read_link(SimpleNamespace(query_params=query))  # type: ignore[arg-type]
    assert isinstance(shown, LinkView) and len(said) == len(words)
    assert all(part in message for part, message in zip(words, said, strict=True))


KEPT = [
    ({}, (0.5, None, 512, 1536, 384)),
    ({"range": "0.31", "shape": "1x8192x8192", "k": "640"}, (0.31, "1×8192×8192", 512, 1536, 640)),
    ({"shape": "layer-decode", "m": "1", "range": "1"}, (1.0, "layer-decode", 1, 1536, 384)),
    ({"range": "7", "shape": "<b>", "m": "-3", "n": "1.5", "k": "0"}, (0.5, None, 512, 1536, 384)),
    ({"range": "nan", "shape": "0x1x1", "m": "", "n": "9" * 20}, (0.5, None, 512, 1536, 384)),
]


@pytest.mark.parametrize("query, kept", KEPT)
def test_what_sections_keep_in_the_address(query: dict[str, str], kept: tuple[Any, ...]) -> None:
    """The own range, the shape that is shown and the one to measure; the usual ones for nonsense."""
    seen = visited(urlencode(query))
    shape = seen.kept.shape["value"]
    assert (seen.kept.range, shape, seen.kept.m, seen.kept.n, seen.kept.k) == kept
    assert shape is None or shape in seen.kept.shape["choices"][0]


def test_back_leads_to_a_tensor_of_the_file() -> None:
    """A link from outside cannot carry the file, Back within the page can; other sources keep its tensor."""
    assert visited("?source=file&file_tensor=b").tensor.file_tensor == "b"
    assert unchanged(visited("?sample=mlp_down").tensor.file_tensor)


@pytest.mark.parametrize("source", ["file", "model"])
def test_nothing_chosen_yet_is_no_warning(source: str, said: list[str]) -> None:
    """A form that was just opened gets no warning. The notice says what to choose; the results stay."""
    out = shown(*selection(source=source), None, None, True)
    assert not said and "choose" in out.notice and unchanged(out.chips) and unchanged(out.verdict)
    refused = shown(*selection(scheme="int9"), None, None, True)
    assert "Still shown" in refused.notice and unchanged(refused.chips)


def test_the_same_scheme_twice_is_said() -> None:
    """Else the page compares a scheme with itself as if that were something."""
    same = shown(*selection(second=Selection().scheme), None, None, True)
    assert "A and B are the same scheme" in same.verdict


def test_a_refused_file_is_told_once(tmp_path: Path, said: list[str]) -> None:
    """The controls go back to what is shown, and the notice above that says why."""
    path = str(tmp_path / "bad.npy")
    Path(path).write_bytes(b"nonsense")
    before = shown(*selection(), None, None, True)
    opened = opened_file(path, before.shown)
    assert (opened.source, opened.file) == ("builtin", None)
    assert opened.file_tensor == gr.update(choices=[], value=None)
    out = shown(*selection(), None, None, True, opened.upload_error)
    overview.kernel(*selection())
    assert len(said) == 1 and "no valid .npy header" in said[0] and said[0] in unescape(out.notice)
    assert out.upload_error == "" and shown(*selection(), None, None, True, out.upload_error).notice == ""


def test_after_a_refused_file_the_one_before_is_held(tmp_path: Path, said: list[str]) -> None:
    """Its box, its tensor and its source: else the bar names a file that nothing shows."""
    np.save(tmp_path / "good.npy", np.ones((4, 8), np.float32))
    (tmp_path / "bad.pt").write_bytes(b"nonsense")
    good = str(tmp_path / "good.npy")
    name = opened_file(good, None).file_tensor["value"]
    before = shown(*selection(source="file", file=good, file_tensor=name), None, None, True)
    opened = opened_file(str(tmp_path / "bad.pt"), before.shown)
    assert (opened.source, opened.file, opened.file_tensor["value"]) == ("file", good, name)
    assert said == [opened.upload_error]


def test_an_element_outside_is_a_message(said: list[str]) -> None:
    """The rows that there are are said, and the nearest is shown: else an element of another tensor in the
    boxes keeps this one from being shown."""
    out = shown(*selection(), 10**6, 0, False)
    assert "rows 0 to 1535" in said[0] and (out.row, out.column) == (1535, 0)
    assert typed(*selection(), 3, -5, True).column == 0 and len(said) == 2


def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    """A tensor called like a script shows as text (gr.HTML would run it)."""
    evil = "<img src=x onerror=alert(1)>${alert(2)}"
    save_file({evil: torch.randn(4, 32)}, tmp_path / "x.safetensors")
    out = shown(
        *selection(source="file", file=str(tmp_path / "x.safetensors"), file_tensor=evil), None, None, True
    )
    assert "&lt;img" in out.chips and "&lt;img" in out.verdict
    assert not any("<img" in o for o in out.in_order() if isinstance(o, str))


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
    sizes.sizes(sizes.BY_COUNT, 0, "nvfp4")
    assert "parameter count" in said[0]


def test_the_kernel_drawer_names_its_machine() -> None:
    """Without a GPU the figures are recorded ones, and say so."""
    shown = overview.kernel(*selection(scheme="int8_row"))
    assert "recorded on NVIDIA H200" in shown and "of a device-to-device copy" in shown
    assert "scales_of_ranges" in overview.kernel(*selection(scheme="fp8_e4m3_tensor"))
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


def test_the_frontier_is_kept_for_its_tensor() -> None:
    """It grows while it computes; a second visit has it at once. A scheme without a name is ringed too."""
    own = "int4~1x48~symmetric~float16~minmax"
    steps = list(compare.frontier(*selection(sample="attention_query", second=own)))
    assert len(steps) > 2 and f"{len(SCHEMES)} named schemes" in steps[-1].status
    (again,) = compare.frontier(*selection(sample="attention_query", second="nvfp4"))
    for figure in (steps[-1].figure, again.figure):
        assert {"A", "B"} <= {trace.get("name") for trace in json.loads(figure)["data"]}


def test_a_left_frontier_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visitor who leaves early would make the next one compute every scheme again."""
    asked: list[int] = []
    whole = compare.survey

    def counted(x: Any, schemes: Iterable[Scheme]) -> Iterator[ComparisonRow]:
        known = list(schemes)
        asked.append(len(known))
        return whole(x, known)

    monkeypatch.setattr(compare, "survey", counted)
    left = compare.frontier(*selection(sample="mlp_down"))
    next(left)
    next(left)
    left.close()
    end = list(compare.frontier(*selection(sample="mlp_down")))[-1]
    assert asked[:2] == [len(SCHEMES), len(SCHEMES) - compare.DRAWN_EVERY]
    assert f"{len(SCHEMES)} named schemes" in end.status


def test_a_point_becomes_a_or_b() -> None:
    """A click on the frontier: if it fails, the figure only looks as if it could be asked."""
    event = SimpleNamespace(data=["NVFP4", "nvfp4"])
    assert compare.taken("a", "bf16", "", event) == PairView("nvfp4", "")
    assert compare.taken("b", "bf16", "", event) == PairView("bf16", "nvfp4")


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
