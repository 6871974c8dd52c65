"""The section Run's handlers, with a tiny model. If these fail, a visitor reads another model's text, loses
what was written, or takes more of a public page than its limits."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator
from html import unescape
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import gradio as gr
import pytest
import torch

from app import limits
from app.link import visited
from app.parts import texts as text_columns
from app.parts import views
from app.sections import run, survey
from app.state.record import Record
from explorer.methods.recipe import Recipe
from explorer.progress import StoppedError
from explorer.running import ENGINES, compare, open_engine, subject_of
from explorer.running.torch_engine import TorchEngine
from explorer.running.transcript import recorded_texts
from explorer.sources import SourceError, source_limits
from tests.running.conftest import PROMPT

(RECORDED,) = survey.recorded()
BUDGET = (RECORDED, None, None, "any", "", False, 4.5, "none", survey.BITS, survey.BATCHES[0])
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
    assert compared.parting is not None and f"Parts at token {compared.parting.index + 1}:" in shown["a"]
    assert shown["a"].count('<mark class="parting">') == 1 and "A part" in shown["original"]
    numbers = re.findall(r'aria-label="token \d+, .*?: ([\d.e−-]+|0) nats"', shown["a"])
    assert len(numbers) == 12
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


def test_the_time_limit_keeps_what_was_written(
    llama: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that the visitor is not told to choose a smaller tensor."""
    monkeypatch.setattr(run, "SHOWN_EVERY_S", 0)
    late = False

    def check() -> None:
        if late:
            raise StoppedError("stopped after 30 s")

    monkeypatch.setattr(views, "check_of_this_run", lambda *_: check)
    before = ""
    for view in write(llama, tokens=100, which=["original", "a"]):
        late = late or bool(text(columns(view).get("original", "")))
        before, last = max(before, text(columns(view).get("original", "")), key=len), view
    assert before and text(columns(last)["original"]).startswith(before)
    assert "time limit of a run" in last.status and not said
    states = re.findall(r'<p class="source-note state">(.*?)</p>', last.texts)
    assert states == ["stopped", "not run"]


def test_a_column_that_is_stopped_is_compared_as_far_as_it_came(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both texts and candidates are there: a stopped run shows where they part, and says what was not run."""
    monkeypatch.setattr(run, "SHOWN_EVERY_S", 0)
    steps = write(llama, tokens=12)
    for view in steps:
        if text(columns(view).get("a", "")) and "Parts at token" in columns(view)["a"]:
            break
    steps.close()  # type: ignore[attr-defined]
    shown = columns(view)
    assert '<mark class="parting">' in shown["a"] and "candidates" in shown["a"]
    assert '<mark class="parting">' in shown["original"] and "has ended" not in shown["a"]
    after = [re.findall(r'<p class="source-note after">(.*?)</p>', shown[name]) for name in ALL]
    assert after == [[], ["stopped"], ["not run"]]


@pytest.mark.parametrize("which", [["original", "a"], ["a"]])
def test_a_run_that_fails_leaves_the_texts_of_the_run_before(
    which: list[str], llama: Path, said: list[str]
) -> None:
    """Texts, where they come from and their command; only the line says what was wrong."""
    for view in write(llama, prompt="word " * 600, which=which):
        assert [view.source, view.texts, view.command, view.live] == [gr.skip()] * 4
    assert "positions: shorten the prompt or the text" in view.status and len(said) == 1


def without(name: str, llama: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(llama, folder, ignore=shutil.ignore_patterns(name))
    return folder


def columns_left(*shown: Any) -> list[str]:
    """The texts that a page holds after these views."""
    return [view.texts for view in shown if isinstance(view.texts, str)][-1:]


ERRORS = [
    ({"prompt": "  "}, "the prompt is empty"),
    ({"which": []}, "choose at least one column"),
    ({"which": ["b"], "second": ""}, "choose at least one column"),
    ({"tokens": 0}, "at least 1 token"),
    ({"prompt": "word " * 600}, "positions: shorten the prompt or the text"),
    ({"prompt": "x" * 30_000}, "at most 20,000 are taken here"),
    ({"where": ""}, "name a causal language model"),
    ({"where": "/nowhere"}, "/nowhere"),
]


@pytest.mark.parametrize(("asked", "words"), ERRORS, ids=[words for _, words in ERRORS])
def test_what_cannot_be_run_is_said(asked: dict[str, Any], words: str, llama: Path, said: list[str]) -> None:
    """In the section's own line and as a message; no column claims a text."""
    *left, last = write(**({"where": llama} | asked))
    # A box that is still empty is no error: the line alone says so.
    told = [] if asked.get("where") == "" else [words]
    assert words in unescape(last.status) and len(said) == len(told)
    assert all(one in other for one, other in zip(told, said, strict=True))
    assert all("writes" not in shown for shown in columns_left(*left, last))


@pytest.mark.parametrize(("missing", "words"), [("tokenizer*", "has no tokenizer"), ("*.safetensors", "")])
def test_a_folder_that_lacks_something(
    missing: str, words: str, llama: Path, said: list[str], tmp_path: Path
) -> None:
    *_, last = write(without(missing, llama, tmp_path))
    assert len(said) == 1 and words in last.status and isinstance(last.texts, dict)


def test_a_column_that_cannot_be_made_says_so_at_its_place(llama: Path, said: list[str]) -> None:
    """The recorded survey's recipe is another model's: the other column is written all the same."""
    *_, last = write(llama, tokens=3, which=["original", "recipe"])
    shown = columns(last)
    assert 'class="text-error"' in shown["recipe"] and text(shown["original"]) and not said


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"tokens": 65}, "at most 64 are written here"),
        ({"prompt": "x" * 2_001}, "at most 2,000 are taken here"),
        ({}, "folders of this server cannot be opened"),
    ],
)
def test_a_public_page_has_its_limits(
    asked: dict[str, Any], words: str, llama: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    *_, last = write(**({"where": llama} | asked))
    assert words in last.status and len(said) == 1


def test_a_public_page_runs_torch_alone(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp would listen at a port and write the model to the disk. The model is one that the limits on
    sources allow, also where the page has not looked before."""
    with pytest.raises(SourceError, match="cannot be opened"):
        subject_of(str(llama), limits=source_limits.HOSTED)
    allowed = dataclasses.replace(limits.HOSTED, sources=source_limits.LOCAL)
    monkeypatch.setattr(limits, "current", lambda: allowed)
    *_, last = write(llama, tokens=2, which=["b"], second="q8_0")
    assert run.HOSTED_ENGINE in columns(last)["b"] and "<b>torch</b>" in columns(last)["b"]


def test_two_visitors_read_their_own_text(llama: Path) -> None:
    """Two runs at the same time share nothing."""
    prompts = ("Every layer", "A budget of bits")
    lasts: dict[str, Any] = {}
    for pair in zip_longest(*(write(llama, prompt, 3, ["original"]) for prompt in prompts)):
        lasts |= {prompt: view for prompt, view in zip(prompts, pair, strict=True) if view}
    for prompt, other in (prompts, prompts[::-1]):
        assert prompt in lasts[prompt].texts and other not in lasts[prompt].texts


def test_the_recorded_run_is_shown_until_there_is_one_of_the_visitors() -> None:
    """With its machine and date, and how to get a model; never over a visitor's own."""
    view = run.recorded_run(False)
    recording = recorded_texts()
    assert recording.machine.date in view.source and "recorded run" in view.source
    assert view.texts.count("<mark") >= 3 and view.texts.count('class="kl"') == len(recording.rows) - 1
    assert "hf download" in view.command and "quantization-explorer[run]" in unescape(view.command)
    assert run.recorded_run(True).texts == gr.skip()
    assert {row.engine for row in recording.rows} <= set(ENGINES)


def test_speeds_that_say_nothing_of_the_scheme_say_so(views_of_a_run: list[Any]) -> None:
    """Of restored weights and of two engines; each has its engine, and two digits."""
    different, same = "Speeds of different engines are not comparable", "does not depend on the scheme"
    record = run.recorded_run(False).texts
    rates = re.findall(r"<td>([\d.,]+)\xa0tokens/s <span class=\"source-note\">by (torch|llama.cpp)", record)
    assert len(rates) == 2 * len(recorded_texts().rows) == 2 * record.count(different)
    assert all(len(rate.replace(".", "").strip("0")) <= 2 for rate, _ in rates)
    shown = columns(views_of_a_run[-1])
    assert all(same in shown[name] and different not in shown[name] for name in ALL)
    by_llama = [row for row in recorded_texts().rows if row.engine == "llama.cpp"]
    one_engine = text_columns.texts(
        "", [text_columns.TextColumn(r.scheme, "", transcript=r) for r in by_llama]
    )
    assert same not in one_engine and different not in one_engine


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


@pytest.mark.parametrize(("query", "hosted", "chosen", "prompt"), LINKS)
def test_a_link_holds_the_choice_and_a_short_prompt(
    query: str, hosted: bool, chosen: list[str], prompt: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a public page no prompt; what is not read is said and leaves the address."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1" if hosted else "0")
    there = visited(query, Record.fresh(), None, True)
    assert there.kept.columns == chosen
    assert there.kept.prompt == (gr.skip() if prompt is None else prompt)
    refused = (prompt is None and "prompt" in query) or "nonsense" in query
    assert bool(there.missing) == refused and len(there.dropped) == refused
