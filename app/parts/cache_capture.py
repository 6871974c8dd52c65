"""Capture keys and values of a model's attention while it reads a text, as a file that opens in the bar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import gradio as gr

from app.parts import html
from app.parts.views import Control, Shown, StatusView, listen, shows
from app.parts.widgets import PRIVATE, block
from app.state.files import fresh_folder
from app.state.layers import TOKENS, documents, tokens_to_keep
from app.state.models import runnable_model
from explorer import SourceError
from explorer.export.files import write_tensors
from explorer.figures.style import file_name
from explorer.survey.cache import CacheSurvey, captured_cache, labelled_cache

ABOUT = (
    "What each layer's attention caches while the model reads a text: keys, also before rotary embedding, "
    "and values, each [tokens, channels of all heads]. They open as a file, whose tensors are listed there."
)


@dataclass(frozen=True)
class CacheCaptureView(StatusView):
    """A capture: status, the file for the bar, and the act that opens it, as JSON."""

    file: Shown
    act: Shown

    @classmethod
    def refused(cls, message: str) -> CacheCaptureView:
        return cls.unchanged(status=html.status(message), act="")


@shows(CacheCaptureView)
def capture_keys_and_values(
    where: str, revision: str, layer: str, text: str, tokens: float | None
) -> Iterator[CacheCaptureView]:
    """Run a causal model on ``text``, on built-in texts if empty; the file has all layers' keys and values,
    and those of ``layer`` are opened first."""
    if revision.strip():
        raise SourceError("a model runs at its default revision: leave Revision empty")
    if not where.strip():
        raise SourceError("name a model: its folder or Hub id")
    lines, most = documents(text), tokens_to_keep(tokens)
    yield CacheCaptureView.unchanged(status=html.status(f"Loading {where} …"), act="")
    found = CacheSurvey(runnable_model(where, head=True), lines)
    on = f"{len(lines)} texts" if lines else "the built-in texts"
    yield CacheCaptureView.unchanged(status=html.status(f"Running {found.model.name} on {on} …"))
    tensors = labelled_cache(captured_cache(found.model, found.texts, most))
    path = fresh_folder() / f"{file_name(found.model.name)}-keys-and-values.safetensors"
    write_tensors(tensors, path, {"model": found.model.name})
    first = _first_tensor(tensors, layer)
    rows, columns = tensors[first].shape
    yield CacheCaptureView(
        status=html.status(f"{len(tensors)} tensors of {rows} tokens; opened: {first}, {columns} channels."),
        file=str(path),
        act=json.dumps([{"do": "tensor", "name": first}]),
    )


def _first_tensor(tensors: Mapping[str, object], layer: str) -> str:
    """The cached keys of the layer that the name ``layer`` is of, or of the middle one."""
    keys = [name for name in tensors if name.startswith("keys") and not name.endswith("before rotary")]
    number = re.search(r"\d+", layer)
    at = int(number.group()) if number else len(keys) // 2
    return keys[min(at, len(keys) - 1)]


def build_cache_capture(model: Control, revision: Control, layer: Control, file: Control) -> None:
    """Lay out the capture below the pickers of a ``model``; it opens what it writes in ``file``."""
    with gr.Accordion("Keys and values of its attention", open=False, elem_id="cache-capture"):
        block(html.note(ABOUT))
        text = gr.Textbox(
            label="Text",
            placeholder="empty: built-in texts; else one document per line",
            lines=2,
            max_lines=8,
            elem_id="cache-text",
        )
        with gr.Row():
            tokens = gr.Number(TOKENS, label="Tokens to keep", precision=0, minimum=2, min_width=110)
            take = gr.Button("Capture and open", min_width=140)
        status = block(elem_id="cache-status")
    act = gr.Textbox(visible=False, label="act")
    made = listen(
        take.click,
        capture_keys_and_values,
        [model, revision, layer, text, tokens],
        CacheCaptureView(status=status, file=file, act=act),
        api_name="keys_and_values",
        show_progress="minimal",
        concurrency_id="compute",
    )
    made.then(None, act, None, js="act => act && explorer.choose(...JSON.parse(act))", **PRIVATE)
