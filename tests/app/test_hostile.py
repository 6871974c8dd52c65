"""What a program may send to any function of the page: refused in words, or answered, never a defect.

If this fails, a request of a stranger writes a traceback to the log, and its sender learns nothing.
"""

from __future__ import annotations

import inspect
import logging
import random
import re
from contextlib import suppress
from typing import Any

import gradio as gr
import pytest

from app.sections import bar
from app.serving.values import DEFECT, CheckedBlocks
from app.state.query import Query
from app.state.record import ACTS
from tests.app import asked

FEW = 2
"""Requests to a function whose handler another has too."""


@pytest.mark.parametrize("draws", [3, pytest.param(20, marks=pytest.mark.thorough)])
def test_no_values_of_a_program_are_a_defect(draws: int) -> None:
    """Wrong types, numbers that are none, long texts, too few and too many values, for every function."""
    failed, refused, count, met = {}, 0, 0, set()
    with asked.quick() as said:
        for function in asked.functions():
            rng = random.Random(f"{function.api_name} values")
            handler = inspect.unwrap(function.fn)
            times, _ = (FEW if handler in met else draws), met.add(handler)
            for _ in range(times if function.inputs else 1):
                values, count = asked.hostile_values(rng, function), count + 1
                before = len(said)
                try:
                    asked.ask(function, values)
                except gr.Error:
                    refused += 1
                except Exception as error:
                    failed.setdefault(_told(function, error), values)
                else:
                    refused += len(said) > before
    assert not failed, "\n".join(f"{name} {str(values)[:300]}" for name, values in failed.items())
    assert refused > count / 2


@pytest.mark.parametrize("draws", [3, pytest.param(20, marks=pytest.mark.thorough)])
def test_no_texts_of_a_program_are_a_defect(draws: int) -> None:
    """For every server function of the page: a record of any keys and texts, and an act on anything."""
    texts = [
        text for text in asked.HOSTILE if isinstance(text, str) and text.isascii() and len(text) <= 65_536
    ]
    good = ("nvfp4", "int8", "3", "mlp_up", "model", "file", "1,2", "a", "all", "4.5", '{"path": "/etc/x"}')
    sections = [
        part for part in asked.page().blocks.values() if isinstance(part, gr.HTML) and part.server_fns
    ]
    known = sorted({key for part in sections for key in re.findall(r'"(\w+)"', str(part.js_on_load))})
    failed = []
    with asked.quick():
        for section, function in [(part, one) for part in sections for one in part.server_fns]:
            rng = random.Random(f"{section.elem_id} {function.__name__}")
            for _ in range(draws if function.__name__ != "build" else 0):
                keys = [*rng.sample(known, rng.randint(0, min(len(known), 12))), rng.choice(("act", "what"))]
                query = {key: rng.choice(texts if rng.random() < 0.5 else good) for key in keys}
                answer = function(dict(query))
                if answer.get("refused") == DEFECT:
                    failed.append((section.elem_id, function.__name__, str(query)[:500]))
    assert len(sections) > 10 and len(known) > 20
    assert not failed, failed


@pytest.mark.parametrize("draws", [20, pytest.param(80, marks=pytest.mark.thorough)])
def test_no_event_of_a_program_is_a_defect(draws: int) -> None:
    """Fields that are missing or of another type, for every function that reads an event."""
    failed: dict[str, Any] = {}
    with asked.quick():
        reading = [f for f in asked.functions() if "event" in inspect.signature(f.fn).parameters]
        for function in reading:
            rng = random.Random(f"{function.api_name} event")
            for _ in range(draws):
                event = asked.hostile_event(rng)
                try:
                    with suppress(gr.Error):
                        asked.ask(function, asked.usual(function), event)
                except Exception as error:
                    failed.setdefault(_told(function, error), event)
    assert reading
    assert not failed, "\n".join(f"{name} {str(event)[:300]}" for name, event in failed.items())


@pytest.mark.parametrize("draws", [1, pytest.param(5, marks=pytest.mark.thorough)])
def test_no_act_of_a_program_is_a_defect(draws: int) -> None:
    """Acts with fields that are missing or of another type: refused in words, or done."""
    failed: dict[str, Any] = {}
    fields = ["side", "text", "parts", "name", "model", "revision", "layer", "row", "column", "path", "texts"]
    good = ("a", "nvfp4", "mlp_down", 3, ["nvfp4"], None)
    rng = random.Random("acts")
    with asked.quick():
        for name in (*ACTS, "file", "what"):
            for _ in range(draws):
                picked = rng.sample(fields, rng.randint(0, len(fields)))
                values = {key: rng.choice(asked.HOSTILE if rng.random() < 0.5 else good) for key in picked}
                try:
                    with suppress(ValueError, OSError):
                        bar.choose(Query({}), {"acts": [{"do": name, **values}]})
                except Exception as error:
                    failed.setdefault(f"{name} {type(error).__name__}: {error}"[:300], values)
    assert not failed, "\n".join(f"{name} {str(values)[:300]}" for name, values in failed.items())


def _function(name: str) -> Any:
    return next(f for f in asked.functions() if f.api_name == name)


SENT: list[tuple[str, list[Any], str]] = [
    ("explain", ["int8", {"a": 1}], "text"),
    ("explain", ["int8"], "2 .* 1 "),
    ("explain", ["int8", "x" * 70_000], "70,000 .* 65,536"),
    ("sizes", [["x"]], "object"),
    ("sizes", [{"sized": 1}], "text"),
]


def test_a_refusal_says_what_is_wrong() -> None:
    """By the label of the control that the value is for, and as text."""
    for name, values, words in SENT:
        with asked.quick(), pytest.raises(gr.Error) as refused:
            asked.ask(_function(name), values)
        assert re.search(words, refused.value.message), refused.value.message
        assert len(refused.value.message) < 500


def test_a_refusal_is_one_short_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Else a stranger fills the disk with what he sends."""
    for value in ("y" * 10**5, {"secret": 1}):
        caplog.clear()
        with asked.quick(), caplog.at_level(logging.INFO, "explorer"), pytest.raises(gr.Error):
            asked.ask(_function("explain"), ["int8", value])
        (line,) = caplog.messages
        assert line.startswith("explain") and len(line) < 80 and "secret" not in line


def test_a_defect_is_logged_with_its_values_cut(caplog: pytest.LogCaptureFixture) -> None:
    """The traceback says where it is."""

    def broken(text: str) -> str:
        raise KeyError(text * 1000)

    with CheckedBlocks() as page:
        box = gr.Textbox(label="Text")
        box.change(broken, box, box, api_name="broken")
    function = next(iter(page.fns.values()))
    with pytest.raises(KeyError):
        asked.ask(function, ["secret"], on=page)
    (record,) = caplog.records
    lines = record.getMessage().splitlines()
    assert "KeyError" in lines[-1] and "in broken" in record.getMessage() and max(map(len, lines)) <= 201


def _told(function: Any, error: Exception) -> str:
    trace, cause = error.__traceback__, error.__cause__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
    return f"{function.api_name}: {type(error).__name__} at {where}: {str(error)[:200]} ({cause!r:.100})"
