"""The page: header, bar and places, and the wiring that keeps one tensor and its schemes in all of them."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app import api, chosen, first_look, limits
from app.parts import html
from app.parts.bar import build_bar
from app.parts.page import Page, build_record
from app.parts.widgets import block, hidden
from app.places import NAMES, PLACES
from app.sections.overview import first_sight
from app.serving.values import CheckedBlocks
from app.theme import ASSETS
from explorer.core.backend import gpu_status, native_formats


def build() -> gr.Blocks:
    """The whole page, not yet launched."""
    gr.set_static_paths([ASSETS])
    keep = limits.current().keep_seconds
    with CheckedBlocks(
        title="Quantization Explorer",
        analytics_enabled=False,
        fill_width=True,
        delete_cache=(min(keep, 600), keep),
    ) as blocks:
        header = _header()
        block(header, js_on_load="explorer.header(element)", elem_id="header")
        left = hidden("explorer.onTensor(() => trigger('left'))").left
        bar = build_bar(first_sight()["chips"])
        kept: dict[str, Any] = {name: gr.State(None) for name in ("method_results", "gemm_timings")}
        kept["opened_recordings"] = gr.State(())
        page = Page(bar, block(elem_id="notice"), left, record=build_record(), **kept)
        built: dict[str, Any] = {}
        titles: dict[str, list[tuple[str, str]]] = {}
        for place in PLACES:
            before = len(page.titles)
            with gr.Column(elem_id=f"place-{place.NAME}", elem_classes="place"):
                built[place.NAME] = place.build(page)
            titles[place.NAME] = page.titles[before:]
        chosen.build(page, blocks, *built["tensor"])
        api.register()
        first_look.prepare(header, titles["tensor"])
    return blocks


def _header() -> str:
    state = gpu_status()
    badge = state.reason if state.ok else f"CPU reference · {state.reason}"
    return html.header(badge, state.ok, native_formats(), [(p.NAME, p.TITLE) for p in PLACES], NAMES)
