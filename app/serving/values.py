"""Validation of requests: every value is checked against its parameter, before Gradio or a handler reads it.

A program may send any JSON. A parameter says by ``api_info`` what it takes. Whatever else is sent, and
whatever Gradio does not take from it, is refused with a sentence; the log has one line for it.
"""

from __future__ import annotations

import html
import json
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.queueing import Event, Queue

from app.serving.measure import REFUSED
from app.serving.sessions import CurrentRequest, Waited, answering
from app.serving.visitors import address_of
from app.serving.work import while_heard

LOG = logging.getLogger("explorer")
MOST_LINE, MOST_TEXT = 1 << 16, 1 << 12
"""Characters of a text, and of one of an address."""
LONG = ("what", "prompt", "of_text", "cachetext")
"""Keys of texts that may be longer."""
MOST_ITEMS = 1000
"""Entries of one list or object."""
MOST_KEYS, MOST_KEY = 100, 64
"""Texts of one object, and characters of their keys."""
MOST_LOGGED = 200
"""Characters of a value in a line of the log."""
KINDS = {"string": (str, "a text"), "number": (int | float, "a number"), "object": (dict, "an object")}
"""Values of a type of JSON that a parameter states, and their description."""
DEFECT = "This failed because of a defect of the page; see its log."
_WAITED, _FAILED = "explorer.waited", "_explorer_failed"
_LARGEST = sys.float_info.max


class CheckedBlocks(gr.Blocks):
    """A page that refuses in words what its functions cannot take."""

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], state: Any, explicit_call: bool = False
    ) -> list[Any]:
        """Gradio's values for a handler; ``gr.Error`` where one does not belong to its component."""
        try:
            check_values(block_fn, inputs)
            found: list[Any] = await super().preprocess_data(block_fn, inputs, state, explicit_call)
        except gr.Error as error:
            raise _refusal(block_fn, error.message) from error
        except (ValueError, OSError) as error:
            raise _refusal(block_fn, str(error)) from error
        return found

    async def process_api(self, block_fn: Any, inputs: list[Any], *others: Any, **options: Any) -> Any:
        """Gradio's answer; what a browser is said to have seen is checked first. A defect is logged with its
        values cut, and its visitor told that it is one."""
        function = self.fns[block_fn] if isinstance(block_fn, int) else block_fn
        try:
            if options.get("event_data") is not None:
                check_sizes("the event", options["event_data"]._data)
        except ValueError as error:
            raise _refusal(function, str(error)) from error
        event = self._queue.event_ids_to_events.get(str(options.get("event_id")))
        scope = {} if event is None else event.request.scope
        address = "" if event is None else address_of(scope)
        ended = while_heard(self._queue, event)
        waited = scope.setdefault(_WAITED, Waited())  # of all steps of a run
        try:
            with answering(CurrentRequest(options.get("session_hash"), ended, address, waited)):
                return await super().process_api(block_fn, inputs, *others, **options)
        except gr.Error as error:
            _keep_error(event, error)
            raise
        except Exception as error:
            LOG.error("%s failed: %s", function.api_name, logged(error))
            failed = gr.Error(DEFECT, print_exception=False)
            _keep_error(event, failed)
            raise failed from error


def _keep_error(event: Event | None, error: gr.Error) -> None:
    """Keep the error of a request of the queue until that is over (``forget_errors``)."""
    if event is not None:
        setattr(event, _FAILED, error)


def forget_errors(queue: Queue) -> None:
    """Let what a request that failed held be free once it is over. Gradio and anyio keep its error in frames
    that the error keeps, and these hold its values until Python looks for cycles."""
    process = queue.process_events

    async def process_events(events: list[Event], *others: Any, **options: Any) -> None:
        try:
            await process(events, *others, **options)
        except BaseException as error:  # it was stopped
            _clear_frames(error)
            raise
        finally:
            for event in events:
                _clear_frames(vars(event).pop(_FAILED, None))

    queue.process_events = process_events  # type: ignore[method-assign]


def _clear_frames(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def checked_texts(given: Any) -> dict[str, str]:
    """An object of at most ``MOST_KEYS`` texts by key; ``ValueError`` for anything else."""
    if not isinstance(given, Mapping):
        raise ValueError(f"what is asked for is one object of texts, not {shortened(given)}")
    if len(given) > MOST_KEYS or any(len(str(key)) > MOST_KEY for key in given):
        raise ValueError(f"at most {MOST_KEYS} texts are taken, whose keys have {MOST_KEY} characters")
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"{shortened(key)} is a text, not {shortened(value)}")
        check_sizes(shortened(key), value, MOST_LINE if key in LONG else MOST_TEXT)
    return dict(given)


def check_values(function: Any, values: Sequence[Any]) -> None:
    """``ValueError`` in words unless ``values`` are as many as the parameters of ``function`` (a
    ``BlockFunction``), each of its type. What has none may be null: its endpoint says whether it has to be
    there."""
    parts = function.inputs
    if len(values) != len(parts):
        raise ValueError(f"{len(parts)} values are taken here, and {len(values)} were sent")
    for part, value in zip(parts, values, strict=True):
        kind, words = KINDS.get(part.api_info().get("type"), (object, ""))
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ValueError(f"{part.label} is {words}, not {shortened(value)}")
        check_sizes(part.label, value)


def check_sizes(name: str, value: Any, most: int = MOST_LINE) -> None:
    """``ValueError`` for a text of more than ``most`` characters, a list or an object that is too long, and
    a number that no float can be, anywhere in ``value``."""
    for part in _parts(value):
        if isinstance(part, str) and len(part) > most:
            raise ValueError(f"{name} has {len(part):,} characters; at most {most:,} are taken")
        if isinstance(part, dict | list) and len(part) > MOST_ITEMS:
            raise ValueError(f"{name} has {len(part):,} entries; at most {MOST_ITEMS:,} are taken")
        if isinstance(part, int) and not -_LARGEST <= part <= _LARGEST:
            raise ValueError(f"{name} has a number of more digits than are taken")


def _parts(value: Any) -> Iterator[Any]:
    """``value`` and everything in it."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, list):
            waiting += part


def shortened(value: Any, most: int = 40) -> str:
    """``value`` as JSON writes it, cut to ``most`` characters."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= most else f"{text[:most]}…"


def logged(error: BaseException) -> str:
    """The traceback of ``error``, each line cut to ``MOST_LOGGED`` characters."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(line if len(line) <= MOST_LOGGED else f"{line[:MOST_LOGGED]}…" for line in lines)


def _refusal(function: Any, message: str) -> gr.Error:
    """Error for the sender with the truncated ``message`` as text; counted, and logged in one line without
    values."""
    REFUSED.labels("values").inc()
    LOG.info("%s refused: values that it does not take", function.api_name)
    first = message.strip().partition("\n")[0]
    text = first if len(first) <= 2 * MOST_LOGGED else f"{first[: 2 * MOST_LOGGED]}…"
    return gr.Error(html.escape(text, quote=False), print_exception=False)
