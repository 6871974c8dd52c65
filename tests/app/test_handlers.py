"""Handlers with their defaults and with bad input: figures small enough, errors as messages, nothing lost.

If these fail, a section shows the wrong tensor or nothing at all, or a visitor's mistake wipes what was on
the screen.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app import limits, ui
from app.parts import html
from app.sections import methods, sizes, subject, take_away
from app.state import analyses, selection, visits
from app.state.memo import Memo, size_of
from app.state.query import Query
from app.state.record import Record, shape_of
from app.state.selection import Selection, matrix_of
from app.state.visits import Owner
from explorer import SCHEMES, SourceError, load_matrix, quantize
from explorer import compare as library_compare
from explorer.analysis.element import inspect_element
from explorer.analysis.memory import estimate
from explorer.checkpoints import EXPORTS, write_one
from explorer.core.file import load as load_quantized
from explorer.figures.style import file_name
from explorer.recordings.quantize import recorded_kernel
from explorer.survey import Layer, Role, Survey
from tests.app.servers import until
from tests.covering import sampled
from tests.records import read_record


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
        html.header(evil, True, (evil,), [(evil, evil)], {evil: evil}, {evil: evil}),
        html.select(evil, evil, [(evil, {evil: evil})], evil, evil),
        html.table([evil], [[evil]]),
        html.scheme_table(evil, [evil], [(evil, [html.Cell(evil)])], (evil, evil)),
        html.chips(evil, [scheme, scheme]),
        html.verdict(evil, [scheme], evil, evil),
        html.inspector([element], [evil], [(0, 0)], (4, 32)),
        html.packed([element], [scheme]),
        html.commands([evil]),
        html.heading(evil, evil),
        html.kernel(timing, evil),
        html.memory([estimate(scheme, None, 1000)], [evil]),
        html.figure_title(evil, evil),
        html.sentence(evil),
        html.status(evil),
        html.note(evil),
        methods._table(Owner(evil, None), Record()),
    ):
        assert "<img" not in piece and "&lt;img" in piece


def test_markup_is_the_projects_own() -> None:
    """Words that are marked as HTML are not escaped: each place was looked at, and templates do not do so."""
    found = Counter[str]()
    for path in Path(html.__file__).parents[1].rglob("*.py"):
        for one in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "Markup":
                found[path.stem] += not isinstance(one.args[0], ast.Constant)
    assert +found == {"html": 1, "section": 2, "speed_more": 1}
    for path in Path(html.__file__).parent.rglob("*.html"):
        assert not re.search(r"\|\s*safe\b|autoescape", path.read_text("utf-8")), path


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


def test_the_quantized_tensor_and_its_report_are_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files hold the codes that the page showed, and what the command writes of the same tensor."""
    kept = visits.VisitData()
    monkeypatch.setattr(take_away, "visit", lambda: kept)
    chosen = Query({"scheme": "nvfp4", "second": "int8_row", "take": "tensor,numbers,page"})
    *_, shown = take_away.make(chosen)
    assert kept.taken is not None and take_away.view(chosen)["files"] == shown["files"] != ""
    assert not take_away.view(Query({**chosen, "scheme": "int8_row"}))["files"], "they are of another scheme"
    paths = kept.taken[1]
    assert sorted(p.suffix for p in paths) == [".html", ".json", ".json", ".safetensors", ".safetensors"]
    x = load_matrix("sample:mlp_up").values
    first = next(path for path in paths if path.suffix == ".safetensors")
    q = quantize(x, SCHEMES["nvfp4"])
    assert torch.equal(load_quantized(first).packed, q.packed)
    assert "explorer quantize sample:mlp_up --scheme nvfp4" in take_away.view(chosen)["commands"]
    record = read_record(next(path for path in paths if path.suffix == ".html"))
    assert record["recipe"]["file"] == "sample:mlp_up"
    assert record["recipe"]["schemes"] == ["nvfp4", "int8_row"]
    assert record["numbers"]["A.sqnr_db"] == library_compare(x, q).sqnr_db


@pytest.mark.parametrize("layout", sampled(EXPORTS, ("gguf", "gptq")))
def test_the_tensor_in_a_checkpoints_layout(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page writes what ``write_one`` writes, whose readers are tried in tests/checkpoints."""
    x = load_matrix("sample:mlp_up")
    refusal = EXPORTS[layout].refusal
    scheme = next(name for name, row in SCHEMES.items() if row.scale and not refusal(row, x.shape))
    kept = visits.VisitData()
    monkeypatch.setattr(take_away, "visit", lambda: kept)
    chosen = Query({"scheme": scheme, "layout": layout})
    assert list(take_away.make(chosen)) and kept.taken is not None
    (path,) = kept.taken[1]
    q = quantize(x.values, SCHEMES[scheme])
    same = write_one(layout, q, path.with_name(f"same{path.suffix}"), f"{file_name(x.name)}.weight")
    assert path.suffix == EXPORTS[layout].suffix and path.read_bytes() == same.read_bytes()
    typed = unescape(str(take_away.view(chosen)["commands"]))
    assert f"--scheme {scheme} --layout {layout} --out Q{EXPORTS[layout].suffix}" in typed


def test_a_hosted_page_opens_no_folders_and_reads_less(monkeypatch: pytest.MonkeyPatch, minilm: Path) -> None:
    """If this fails, a public page reads its server's disk."""
    monkeypatch.setenv("SPACE_ID", "someone/explorer")
    assert limits.current() is limits.HOSTED
    with pytest.raises(SourceError, match="folders of this server"):
        matrix_of(Selection(source="model", model=str(minilm), layer="x"))
    monkeypatch.delenv("SPACE_ID")
    assert limits.current() is limits.LOCAL


LONG: dict[tuple[int, ...], tuple[int, int] | None] = {
    (65, 64): (64, 64),
    (1000, 2): (64, 2),
    (1000,): (1, 64),
    (20, 8, 4): (64, 4),
    (2, 65): None,
    (4, 65, 3): None,
}
"""Shapes of tensors, and the matrices that are read of them where a side may have 64; None: a refusal."""


@pytest.mark.parametrize("shape", LONG)
def test_a_narrow_tensor_has_no_more_rows_than_a_wide_one(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales are stored for each row, or each column: they can take more than the elements."""
    small = dataclasses.replace(limits.HOSTED, elements=1 << 12, side=1 << 6)
    monkeypatch.setattr(limits, "current", lambda: small)
    path = tmp_path / "w.npy"
    np.save(path, np.ones(shape, dtype=np.float32))
    chosen = Record(source="file", file=str(path))
    if (expected := LONG[shape]) is None:
        with pytest.raises(SourceError, match=r"one row of .* the limit here"):
            matrix_of(chosen)
        return
    assert shape_of(chosen) == expected, "by the header, before it is read"
    matrix = matrix_of(chosen)
    assert tuple(matrix.values.shape) == expected and "first rows of" in matrix.description


def test_the_cache_is_bounded() -> None:
    """If this fails, the page's memory grows with every tensor that anyone looks at."""
    cache = Memo[object](1000)
    for i in range(50):
        cache.get(i, lambda i=i: i, lambda _: 300)
    assert cache._used <= 1000 and cache.get(49, lambda: "new") == 49


def test_why_a_survey_is_refused_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of all who ask at once, too: else small requests have a large file parsed without end."""
    lines = subject.recorded()[next(iter(subject.recorded()))].read_text("utf-8").splitlines()
    path, loads = tmp_path / "short.jsonl", list[Any]()
    path.write_text("\n".join(lines[:-1]), "utf-8")
    load = subject.load_survey

    def loaded(where: Any) -> Survey:
        loads.append(where)
        until(lambda: len(loads) > 1 or bool(selection._OPENING.waiting))
        return load(where)

    monkeypatch.setattr(subject, "load_survey", loaded)
    with ThreadPoolExecutor(3) as pool:
        refused = [pool.submit(subject.survey_at, path) for _ in range(3)]
        said = {str(one.exception(60)) for one in refused}
    assert len(loads) == 1 and len(said) == 1 and "None" not in said
    path.write_text("\n".join(lines) + "\n", "utf-8")
    assert subject.survey_at(path).layers


def test_what_is_kept_of_files_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the keys: else a few files of many small parts fill the memory."""
    assert ui.build  # all sections are imported
    modules = [module for name, module in sys.modules.items() if name.startswith("app.")]
    memos = [one for module in modules for one in vars(module).values() if type(one) is Memo]
    assert len(memos) > 20 and all(memo._capacity >= 1 << 20 for memo in memos)
    layer = Layer("a" * 1000, (2, 2), "F32", Role.LINEAR, "other", 0, folds=tuple(map(float, range(1000))))
    assert 33_000 < size_of([layer, layer]) < 40_000 < size_of((layer, np.zeros(1000), torch.zeros(1000)))
    assert size_of(torch.zeros(100, 1000)[:1]) > 400_000, "a part keeps the whole"
    monkeypatch.setattr(subject, "_SURVEYS", kept := Memo[Survey](300_000))
    (recorded,) = subject.recorded().values()
    for i in range(4):
        subject.survey_at(shutil.copy(recorded, tmp_path / f"{i}.jsonl"))
    assert kept._used <= 300_000 and len(kept._entries) == 2
    monkeypatch.setattr(analyses, "_ANALYSES", of_tensors := Memo[Any](1 << 30))
    fine = Selection(sample="mlp_up", scheme="int4~1x2~symmetric~float16~minmax")
    ((_, found),) = analyses.analyses_of(fine)[1]
    parts = (found.q.packed, found.q.scales.scale, found.error_map, found.kept)
    assert of_tensors._used > sum(part.nbytes for part in parts if part is not None)
    cache = Memo[int](100_000)
    for i in range(20):
        cache.get((i, "k" * 10_000), lambda: 1)
    assert len(cache._entries) == 9
