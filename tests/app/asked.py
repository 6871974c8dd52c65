"""What becomes of values that a program sends to a function of the page: Gradio's own way from the values to
the answer, without a server and a browser."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import gradio as gr
import orjson
from huggingface_hub import constants
from starlette.requests import Request

from app import limits, ui
from app.limits import HOSTED
from app.serving import guard
from app.serving.guard import TooMuchError
from app.serving.sessions import Session
from app.serving.values import DEFECT
from explorer.progress import StoppedError
from tests import loops
from tests.fuzz.mutate import ODDITIES

FILE = {"meta": {"_type": "gradio.FileData"}}
HOSTILE: tuple[Any, ...] = (
    *ODDITIES,
    "x" * 70_000,
    "9" * 60_000,
    "[" * 60_000,
    [None],
    ["x"],
    ["int8_row", ["int8_row"]],
    [{"a": 1}, 5],
    ["int8_row"] * 5_000,
    {"path": "/etc/passwd", **FILE},
    {"path": ["x"], **FILE},
    {"path": "x" * 5_000, **FILE},
    {"path": "a\0b", **FILE},
    {"path": None, "size": "x", **FILE},
    [{"path": "/etc/passwd", **FILE}],
    {"__type__": "update", "value": 1},
)
"""What stands where a text, a number, a choice, a list or a file is expected."""
FIELDS = ("data", "element", "from", "to", "index", "value", "row_value", "target")
"""Of what a browser says of events."""


@cache
def page() -> gr.Blocks:
    """The page as it is served."""
    built = ui.build()
    built.has_launched = True  # else Gradio takes any file of this machine for one of the page's own
    return built


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def functions() -> list[Any]:
    """Everything on the page that a request can name."""
    return [function for function in page().fns.values() if function.fn is not None]


def usual(function: Any) -> list[Any]:
    """What a page that was just opened sends to ``function``."""
    return [None if isinstance(part, gr.File) else getattr(part, "value", None) for part in function.inputs]


def hostile_values(rng: random.Random, function: Any) -> list[Any]:
    """The usual values with one to three hostile ones, or too few, or too many."""
    values = usual(function)
    for _ in range(rng.choice((1, 1, 1, 2, 3)) if values else 0):
        values[rng.randrange(len(values))] = rng.choice(HOSTILE)
    if rng.random() < 0.1:
        values = values[: rng.randrange(len(values) + 1)]
    return [*values, rng.choice(HOSTILE)] if rng.random() < 0.05 else values


def hostile_event(rng: random.Random) -> Any:
    """What a program may say that a browser has seen: no object, or one with any fields."""
    if rng.random() < 0.3:
        return rng.choice(HOSTILE)
    good = (["nvfp4", "nvfp4"], [3, 4], "nvfp4", 1, 0.5)
    names = rng.sample(FIELDS, rng.randint(0, len(FIELDS)))
    return {name: rng.choice(HOSTILE if rng.random() < 0.5 else good) for name in names}


@contextmanager
def quick() -> Iterator[list[str]]:
    """Work stops where it first asks whether it may go on, and asks no other machine; the messages that
    visitors get meanwhile."""
    said: list[str] = []

    def stop() -> None:
        raise StoppedError("stopped")

    with (
        patch("app.parts.refusals.check_of_this_run", lambda: stop),
        patch("app.parts.section.check_of_this_run", lambda *_: stop),
        patch.object(limits, "current", lambda: HOSTED),
        patch.object(limits, "notify", said.append),
        patch.object(constants, "HF_HUB_OFFLINE", True),
    ):
        yield said


def ask(function: Any, values: list[Any], event: Any = None, on: gr.Blocks | None = None) -> None:
    """Call ``function`` of the page (or of another one, ``on``) as a request would, up to its first answer,
    which has to go over the wire.

    ``gr.Error`` for a refusal. Every other exception is a defect, and so is a refusal that Gradio would print
    as a traceback.
    """
    try:
        guard._values(json.dumps([values, event]).encode())
    except TooMuchError as refused:
        raise gr.Error(refused.message, print_exception=False) from refused
    loops.run(_runner().run, _ask(on or page(), function, values, event))


async def _ask(on: gr.Blocks, function: Any, values: list[Any], event: Any) -> None:
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    try:
        answer = await on.process_api(
            function,
            list(values),
            state=Session(on),
            request=gr.Request(request=Request(scope)),
            event_data=gr.EventData(None, event),
        )
    except gr.Error as refused:
        assert not refused.print_exception, f"printed as a traceback: {str(refused)[:200]}"
        if refused.message == DEFECT:
            assert refused.__cause__ is not None
            raise refused.__cause__ from None
        orjson.dumps(refused.message)
        raise
    if answer["iterator"] is not None:
        await answer["iterator"].aclose()
    orjson.dumps(answer["data"], default=str)
