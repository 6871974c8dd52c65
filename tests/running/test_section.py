"""The section Run's handlers, with a tiny model. If these fail, a visitor reads another model's text, loses
what was written, or takes more of a public page than its limits."""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from app import limits
from app.parts import texts as text_columns
from app.sections import run
from app.serving.sessions import CurrentRequest, answering
from app.state import gpu_lock, visits
from app.state.places import Places
from app.state.query import Query
from explorer.methods.recipe import Recipe
from explorer.running import compare, open_engine, subject_of
from explorer.running.compare import Parting
from explorer.running.engine import Token
from explorer.running.torch_engine import TorchEngine
from explorer.running.transcript import recorded_texts
from explorer.sources import SourceError, open_source, source_limits
from tests.app.servers import until
from tests.running.conftest import PROMPT

ALL = ["original", "a", "b"]
A, B = "int3_group64", "nvfp4"
CPU = torch.device("cpu")


def write(where: Path | str, which: list[str] = ALL, second: str = B, **changed: object) -> Iterator[Any]:
    record = {"model": str(where), "columns": ",".join(which), "scheme": A, "second": second}
    usual = {"prompt": PROMPT, "tokens": "6"}
    return run.write(Query(record | usual | {key: str(value) for key, value in changed.items()}))


def columns(view: Any) -> dict[str, str]:
    """The columns' HTML by their names; none while those of the run before stay."""
    parts = re.split(r'<section class="text-column card"[^>]*data-name="(\w+)">', view.get("texts", ""))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def text(column: str) -> str:
    """What is written in a column so far, without labels, and blanks for the signs of marked blanks."""
    found = re.search(r'<p class="written">(.*?)</p>', column, re.DOTALL)
    plain = re.sub(r'<span class="who">.*?</span>|<[^>]*>', "", found[1] if found else "")
    return unescape(plain).removeprefix(PROMPT).translate({ord("␣"): " ", ord("⏎"): "\n"})


@pytest.fixture(scope="module")
def views_of_a_run(llama: Path) -> list[Any]:
    return list(write(llama, tokens=12))


def test_columns_fill_one_after_another(views_of_a_run: list[Any]) -> None:
    """Token by token, each from its beginning, none while another writes."""
    begun: list[str] = []
    for before, after in pairwise(views_of_a_run):
        old, new = columns(before), columns(after)
        if not new:
            assert not old, "texts that were shown stay"
            continue
        assert list(new) == ALL
        grown = [name for name in ALL if text(new[name]) != text(old.get(name, ""))]
        assert len(grown) <= 1 and all(text(new[name]).startswith(text(old.get(name, ""))) for name in ALL)
        begun += [name for name in grown if name not in begun]
    assert begun == ALL and "3 texts of tiny-llama" in views_of_a_run[-1]["status"]


def test_texts_and_numbers_are_the_librarys(views_of_a_run: list[Any], llama: Path) -> None:
    """The text, the token in which it parts, both models' candidates there, and KL at each token."""
    shown = columns(views_of_a_run[-1])
    with (
        open_engine(subject_of(str(llama)), device=CPU) as first,
        open_engine(subject_of(str(llama), Recipe.parse(A)), device=CPU) as second,
        first.write(PROMPT, 12) as original,
        second.write(PROMPT, 12) as changed,
    ):
        assert list(original) and list(changed)
        compared = compare(original, changed, CPU)
    assert text(shown["original"]) == original.text and text(shown["a"]) == changed.text
    assert compared.parting is not None and f"token {compared.parting.index + 1}:" in shown["a"]
    assert shown["a"].count('<mark class="parting">') == 1
    numbers = re.findall(r'aria-label="token \d+, .*?: ([\d.e−-]+|0) nats"', shown["a"])
    assert [float(n.replace("−", "-")) for n in numbers] == pytest.approx(
        [step.kl for step in compared.steps], rel=5e-3, abs=1e-9
    )
    top = compared.steps[compared.parting.index].changed[0]
    assert f"{100 * top.probability:.1f}</span>" in shown["a"]
    assert "torch" in shown["original"] and "tokens/s" in shown["original"]


def test_a_part_of_a_character_is_no_end() -> None:
    """A token may add no text and end nothing; of two that look alike the numbers are said."""
    part, other, end = Token(5, "", (), 0), Token(6, "", (), 0), Token(2, "", (), 0, ends=True)
    letter, same = Token(7, "a", (), 0), Token(8, "a", (), 0)
    for original, changed, said in (
        (part, letter, 'has "a", where the original has part of a character.'),
        (
            part,
            other,
            "has part of a character (token 6), where the original has part of a character (token 5).",
        ),
        (letter, same, 'has "a" (token 8), where the original has "a" (token 7).'),
        (end, letter, 'has "a", where the original ends.'),
        (letter, end, 'ends, where the original has "a".'),
        (letter, None, 'has ended, where the original has "a".'),
    ):
        words = text_columns._parting_words(Parting(3, original, changed), 9)
        assert words == f"Parts at token 4: {said}"
    pieces = text_columns._pieces([letter, part, end], {1: ("a",), 2: ("b",)})
    assert [piece.text for piece in pieces] == ["a", text_columns.PART, text_columns.END]


def test_stop_keeps_what_is_there_and_run_works_again(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed run closes its engine, whose memory (and temporary file) would stay else."""
    monkeypatch.setattr(run, "SHOWN_EVERY_S", 0)
    closed: list[str] = []
    monkeypatch.setattr(TorchEngine, "close", lambda engine: closed.append(engine.subject.name))
    steps = write(llama, tokens=100, which=["original"])
    for view in steps:
        if len(text(columns(view).get("original", ""))) > 3:
            break
    assert "\u00a0tokens/s" in view["texts"] and not closed
    steps.close()  # type: ignore[attr-defined]
    assert closed == ["tiny-llama"]
    *_, last = write(llama, tokens=2, which=["original"])
    assert "1 text of tiny-llama" in last["status"]


def test_a_run_has_memory_for_what_it_loads_until_its_threads_end(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a model of a public page's size took 5.6 GB beside other large work, and with GPTQ 11 GB. Who
    stopped runs again and again had as many loads at once."""
    room, loads, go_on = Places(1, 1), threading.Event(), threading.Event()
    monkeypatch.setattr(gpu_lock, "_ROOM", room)
    monkeypatch.setattr(gpu_lock, "SMALL", 0)
    asked = ({"where": llama}, {"where": llama, "second": f"{A}+gptq"})
    with answering(CurrentRequest(address="other")), gpu_lock.room(1):
        assert [gpu_lock.WAITS in unescape(next(write(**one))["status"]) for one in asked] == [True, True]

    def opened(*args: Any, **options: Any) -> Any:
        loads.set()
        assert go_on.wait(60)
        return open_engine(*args, **options)

    monkeypatch.setattr(run, "open_engine", opened)
    copies = 4 * sum(info.elements for info in open_source(str(llama)).infos)
    steps = write(llama)
    assert any(loads.is_set() for _ in steps) and room.held.total() == 2 * copies
    steps.close()  # type: ignore[attr-defined]
    assert room.held.total() == 2 * copies, "its thread goes on"
    go_on.set()
    until(lambda: not room.held)
    held = {room.held.total() for _ in write(**asked[1])}
    assert max(held) > 3 * copies and not room.held
    few = dataclasses.replace(limits.LOCAL, solved_columns=8)
    monkeypatch.setattr(limits, "current", lambda: few)
    *_, last = write(**asked[1])
    assert "GPTQ factors a matrix" in columns(last)["b"] and "2 texts" in last["status"]


def without(name: str, llama: Path, tmp_path: Path) -> Path:
    folder = tmp_path / f"without {name.strip('*.')}"
    shutil.copytree(llama, folder, ignore=shutil.ignore_patterns(name))
    return folder


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "  "}, "empty"),
    ({"which": ["nonsense"]}, "original, a, b, recipe"),
    ({"which": ["b"], "second": ""}, "column"),
    ({"tokens": 0}, "from 1 to 512"),
    ({"tokens": "many"}, "a number"),
    ({"prompt": "word " * 600}, "positions"),
    ({"prompt": "x" * 30_000}, "20,000"),
    ({"where": "/nowhere"}, "/nowhere"),
    ({"where": ""}, "open a causal language model"),
]


def refused(*steps: Any, **asked: Any) -> str:
    """Why a run is refused; no column has claimed a text until then."""
    with pytest.raises(ValueError) as told:
        for shown in write(**asked):
            assert "texts" not in shown
    return str(told.value)


def test_what_cannot_be_run_is_said(llama: Path, tmp_path: Path) -> None:
    """Before the texts of the run before are taken away."""
    bare, weightless = without("tokenizer*", llama, tmp_path), without("*.safetensors", llama, tmp_path)
    lacking = [({"where": bare}, "no tokenizer"), ({"where": weightless}, "")]
    for asked, words in [*ERRORS, *lacking]:
        assert words in refused(**({"where": llama} | asked))


def test_a_public_page_has_its_limits(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    assert run.EXAMPLE in str(run.view(Query({}))["source"]), "what it runs"
    for asked, words in (({"tokens": 65}, "64"), ({"prompt": "x" * 2_001}, "2,000"), ({}, "folders")):
        assert words in refused(**({"where": llama} | asked))


def test_a_public_page_runs_torch_alone(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp would listen at a port and write the model to the disk."""
    with pytest.raises(SourceError, match="cannot be opened"):
        subject_of(str(llama), limits=source_limits.HOSTED)
    allowed = dataclasses.replace(limits.HOSTED, sources=source_limits.LOCAL)
    monkeypatch.setattr(limits, "current", lambda: allowed)
    *_, last = write(llama, tokens=2, which=["b"], second="q8_0")
    assert run.HOSTED_ENGINE in columns(last)["b"] and "<b>torch</b>" in columns(last)["b"]


def test_names_and_prompts_are_text() -> None:
    """Markup in a prompt or a token is shown, not run."""
    evil = "<img src=x onerror=alert(1)>"
    one = recorded_texts().rows[1]
    html = text_columns.texts(evil, [text_columns.TextColumn("a", evil, evil, evil, evil, one)])
    assert "<img" not in html and html.count("&lt;img") >= 4


def test_a_visitors_texts_stay_in_place_of_the_recorded_ones(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when another scheme was chosen meanwhile, but no other model; and by Stop what was there."""
    kept = visits.VisitData()
    monkeypatch.setattr(run, "visit", lambda: kept)
    assert "recorded run" in run.view(Query({}))["source"]
    steps = write(llama, tokens=50)
    shown = next(one for one in steps if "texts" in one)
    steps.close()  # type: ignore[attr-defined]
    assert run.view(Query({"model": str(llama), "scheme": "int8_row"}))["texts"] == shown["texts"]
    for other in ({}, {"model": "owner/name"}, {"model": str(llama), "revision": "main"}):
        assert "recorded run" in run.view(Query(other))["source"]


def test_a_link_holds_a_short_prompt_and_none_on_a_public_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are logged, and sent to others: what is longer is sent with the record alone."""
    for hosted, most in (("0", run.MOST_LINKED), ("1", 0)):
        monkeypatch.setenv("EXPLORER_HOSTED", hosted)
        prompt = run.SECTION.markup().partition("<textarea")[2].partition(">")[0]
        assert 'data-key="prompt"' in prompt and f'data-local="{most}"' in prompt
