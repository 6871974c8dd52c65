"""The page: header, bar and places, each section of which is one component."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app import api, limits
from app.parts import html
from app.places import MOVED, NAMES, PLACES
from app.sections.bar import PANELS, bar
from app.serving.values import CheckedBlocks
from app.theme import ASSETS, PLOTLY
from explorer.core.backend import gpu_status, native_formats


def build() -> gr.Blocks:
    """The whole page, not yet launched."""
    gr.set_static_paths([ASSETS, PLOTLY])
    keep = limits.current().keep_seconds
    known = {key for place in PLACES for section in place.SECTIONS for key in section.keys}
    by_place = {place.NAME: [section.name for section in place.SECTIONS] for place in PLACES}
    sections = {tab: by_place[name] for tab, (name, _) in NAMES.items()}
    with CheckedBlocks(
        title="Quantization Explorer",
        analytics_enabled=False,
        fill_width=True,
        delete_cache=(min(keep, 600), keep),
    ) as blocks:
        block(_header(), js_on_load="explorer.header(element)", elem_id="header")
        with gr.Column(elem_id="bar"):
            for section in (bar(known, sections, MOVED), *PANELS):
                section.build()
        block(elem_id="notice")
        for place in PLACES:
            with gr.Column(elem_id=f"place-{place.NAME}", elem_classes="place"):
                for section in place.SECTIONS:
                    section.build()
        api.register()
    return blocks


def block(value: str | None = None, **options: Any) -> gr.HTML:
    """HTML under the page's own style sheet instead of Gradio's."""
    return gr.HTML(value, apply_default_css=False, padding=False, **options)


def _header() -> str:
    state = gpu_status()
    badge = state.reason if state.ok else f"CPU reference · {state.reason}"
    places = [(place.NAME, place.TITLE) for place in PLACES]
    return html.header(badge, state.ok, native_formats(), places, NAMES, MOVED)
