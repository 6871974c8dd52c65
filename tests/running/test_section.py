"""The section Run's handlers, with a tiny model. If these fail, a visitor reads another model's text, loses
what was written, or takes more of a public page than its limits."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import gradio as gr
import pytest
import torch
from app.link import visited

from app import limits
from app.parts import texts as text_columns
from app.sections import run, survey
from app.state.record import Record
from explorer.methods.recipe import Recipe
from explorer.running import compare, open_engine, subject_of
from explorer.running.torch_engine import TorchEngine
from explorer.running.transcript import recorded_texts
from explorer.sources import SourceError, source_limits
from tests.running.conftest import PROMPT

(RECORDED,) = survey.recorded()
BUDGET = (RECORDED, None, "any", "", 4.5, "none", survey.BITS, survey.BATCHES[0])
ALL = ["original", "a", "b"]
A, B = "int3_group64", "nvfp4"
CPU = torch.device("cpu")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages shown to the visitor."""
    messages: list[str] = []
    monkeypatch.setattr(limits, "notify", messages.append)
    return messages


def write(
    where: Path | str, prompt: str = PROMPT, tokens: int = 6, which: list[str] = ALL, second: str = B
) -> Iterator[Any]:
    return run.write(str(where), prompt, tokens, which, A, second, "", *BUDGET)


def columns(view: Any) -> dict[str, str]:
    """The columns' HTML by their names; none while those of the run before stay."""
    if isinstance(view.texts, dict):
        return {}
    parts = re.split(r'<section class="text-column card"[^>]*data-name="(\w+)">', view.texts)
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
        assert list(new) == ALL and after.live is True
        grown = [name for name in ALL if text(new[name]) != text(old.get(name, ""))]
        assert len(grown) <= 1 and all(text(new[name]).startswith(text(old.get(name, ""))) for name in ALL)
        begun += [name for name in grown if name not in begun]
    assert begun == ALL and "3 texts of tiny-llama" in views_of_a_run[-1].status


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


def test_stop_keeps_what_is_there_and_run_works_again(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed run closes its engine, whose memory (and temporary file) would stay else."""
    monkeypatch.setattr(run, "SHOWN_EVERY_S", 0)
    closed: list[str] = []
    monkeypatch.setattr(TorchEngine, "close", lambda engine: closed.append(engine.subject.name))
    steps = write(llama, tokens=100, which=["original"])
    for view in steps:
        if len(text(columns(view).get("original", ""))) > 3:
            break
    assert "\u00a0tokens/s" in view.texts and not closed
    steps.close()  # type: ignore[attr-defined]
    assert closed == ["tiny-llama"]
    *_, last = write(llama, tokens=2, which=["original"])
    assert "1 text of tiny-llama" in last.status


def without(name: str, llama: Path, tmp_path: Path) -> Path:
    folder = tmp_path / f"without {name.strip('*.')}"
    shutil.copytree(llama, folder, ignore=shutil.ignore_patterns(name))
    return folder


def columns_left(*shown: Any) -> list[str]:
    """The texts that a page holds after these views."""
    return [view.texts for view in shown if isinstance(view.texts, str)][-1:]


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "  "}, "empty"),
    ({"which": []}, "column"),
    ({"which": ["b"], "second": ""}, "column"),
    ({"tokens": 0}, "at least 1 token"),
    ({"prompt": "word " * 600}, "positions"),
    ({"prompt": "x" * 30_000}, "20,000"),
    ({"where": "/nowhere"}, "/nowhere"),
]


def test_what_cannot_be_run_is_said(llama: Path, tmp_path: Path, said: list[str]) -> None:
    """In the section's own line and as a message; no column claims a text."""
    bare, weightless = without("tokenizer*", llama, tmp_path), without("*.safetensors", llama, tmp_path)
    lacking = [({"where": bare}, "no tokenizer"), ({"where": weightless}, "")]
    for asked, words in [*ERRORS, *lacking]:
        *left, last = write(**({"where": llama} | asked))
        assert words in unescape(last.status) and words in said.pop() and not said
        assert all("writes" not in shown for shown in columns_left(*left, last))
    *_, empty = write("")
    assert empty.status and not said, "a box that is still empty is no error"


def test_a_public_page_has_its_limits(llama: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    for asked, words in (({"tokens": 65}, "64"), ({"prompt": "x" * 2_001}, "2,000"), ({}, "folders")):
        *_, last = write(**({"where": llama} | asked))
        assert words in last.status and words in said.pop() and not said


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


LINKS = [
    ("", False, ALL, None),
    ("columns=original,recipe&prompt=Once", False, ["original", "recipe"], "Once"),
    ("columns=original,recipe&prompt=Once", True, ["original", "recipe"], None),
    (urlencode({"prompt": "x" * 201}), False, ALL, None),
    ("columns=nonsense", False, ALL, None),
]


def test_a_link_holds_the_choice_and_a_short_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a public page no prompt; what is not read is said and leaves the address."""
    for query, hosted, chosen, prompt in LINKS:
        monkeypatch.setenv("EXPLORER_HOSTED", "1" if hosted else "0")
        there = visited(query, Record.fresh(), None, True)
        assert there.kept.columns == chosen
        assert there.kept.prompt == (gr.skip() if prompt is None else prompt)
        refused = (prompt is None and "prompt" in query) or "nonsense" in query
        assert bool(there.missing) == refused and len(there.dropped) == refused
