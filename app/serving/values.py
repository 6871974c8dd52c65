"""Validation of requests: every value is checked against its component, before Gradio or a handler reads it.

The page's own script sends what its controls hold. A program may send any JSON. A component says by
``api_info`` what it takes. Whatever else is sent, and whatever Gradio does not take from it, is refused with
a sentence; the log has one line for it.
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
from gradio import processing_utils

from app.serving.measure import REFUSED
from app.serving.sessions import CurrentRequest, answering
from app.serving.work import while_heard

LOG = logging.getLogger("explorer")
MOST_LINE = 1 << 16
"""Characters of a text that stands in one line: a name, a list of schemes, an address."""
MOST_TEXT = 1 << 20
"""Characters of a text of several lines."""
MOST_ITEMS = 1000
"""Entries of one list."""
MOST_LOGGED = 200
"""Characters of a value in a line of the log."""
WORDS = {
    "string": "a text",
    "number": "a number",
    "integer": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
"""Description of the accepted values, by the JSON type that a component states."""
DEFECT = "This failed because of a defect of the page; see its log."
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
                check_event(options["event_data"])
        except (ValueError, OSError) as error:
            raise _refusal(function, str(error)) from error
        ended = while_heard(self._queue, options.get("event_id"))
        try:
            with answering(CurrentRequest(options.get("session_hash"), ended)):
                return await super().process_api(block_fn, inputs, *others, **options)
        except gr.Error:
            raise
        except Exception as error:
            LOG.error("%s failed: %s", function.api_name, logged(error))
            raise gr.Error(DEFECT, print_exception=False) from error


def check_values(function: Any, values: Sequence[Any]) -> None:
    """``ValueError`` in words unless ``values`` are as many as the inputs of ``function`` (a
    ``BlockFunction``), each of its component's kind."""
    parts = function.inputs
    # For a function that cancels others Gradio puts the session in place of the values.
    if len(values) != len(parts) and not function.cancels:
        raise ValueError(f"{len(parts)} values are taken here, and {len(values)} were sent")
    for part, value in zip(parts, values, strict=False):
        if isinstance(part, gr.State):  # it is kept on the server; what is sent for it is not read
            continue
        name = part.label or "a value"
        if value is None and _never_empty(part):
            raise ValueError(f"{name} is {WORDS[part.api_info()['type']]}, not null")
        if value is not None:
            check(name, value, part.api_info(), _most(part))


def _most(part: Any) -> int:
    """Characters of a text that a component takes."""
    usual = MOST_TEXT if getattr(part, "lines", 1) > 1 else MOST_LINE
    return getattr(part, "max_length", None) or usual


def _never_empty(part: Any) -> bool:
    """True if a component always has a value, so that null is invalid: a slider, a group of checkboxes,
    and a single choice with a default."""
    if isinstance(part, gr.Dropdown | gr.Radio):
        free = isinstance(part, gr.Dropdown) and (part.multiselect or part.allow_custom_value)
        return not free and part.value is not None
    return isinstance(part, gr.Slider | gr.CheckboxGroup)


def check(name: str, value: Any, schema: Mapping[str, Any], most: int = MOST_LINE) -> None:
    """``ValueError`` that calls the value ``name`` unless it is what the JSON ``schema`` of a component says:
    its type, and that of a list's entries. Numbers are finite, texts have at most ``most`` characters, and
    where a text is taken a number is, too, as it is written."""
    kind = schema.get("type")
    words = WORDS.get(kind, "") if isinstance(kind, str) else ""
    accepted = {
        "string": isinstance(value, str) or _is_number(value),
        "number": _is_number(value),
        "integer": _is_number(value),
        "boolean": isinstance(value, bool),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    if words and not accepted[str(kind)]:
        raise ValueError(f"{name} is {words}, not {shortened(value)}")
    check_sizes(name, value, most)
    if kind == "array":
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", MOST_ITEMS):
            raise ValueError(f"{name} has {len(value)} entries, and not as many as are taken here")
        for entry in value:
            check(f"An entry of {name}", entry, schema.get("items", {}), most)


def check_event(event: gr.EventData) -> None:
    """``ValueError`` unless what is said of an event can be read: which fields it has to have, its handler
    says."""
    check_sizes("the event", event._data, MOST_LINE)
    processing_utils.check_all_files_in_cache(event._data)


def check_sizes(name: str, value: Any, most: int) -> None:
    """``ValueError`` for a text that is too long or cannot be written, and a list that is too long, anywhere
    in ``value``."""
    for part in _parts(value):
        if isinstance(part, str):
            if len(part) > most:
                raise ValueError(f"{name} has {len(part):,} characters; at most {most:,} are taken")
            if not part.isascii() and any("\ud800" <= letter <= "\udfff" for letter in part):
                raise ValueError(f"{name} has half a character, which no text can have")
        elif isinstance(part, dict | list) and len(part) > MOST_ITEMS:
            raise ValueError(f"{name} has {len(part):,} entries; at most {MOST_ITEMS:,} are taken")


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


def _is_number(value: Any) -> bool:
    """True if ``value`` is a finite number that a float can represent; booleans are excluded."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


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
