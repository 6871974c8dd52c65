"""The page: sidebar, header and tabs, and the wiring that keeps one tensor and one scheme in all of them."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app import api, html, limits
from app.link import WRITE_SELECTION, LinkView, read_link, write_tab
from app.page import Page
from app.sidebar import (
    FileView,
    Sidebar,
    build_sidebar,
    chosen_parts,
    chosen_preset,
    opened_file,
    opened_model,
)
from app.tabs import TABS
from app.theme import ASSETS, PLOTLY
from app.views import Control, listen
from app.widgets import PRIVATE, QUIET, block
from explorer.core.backend import gpu_status, native_formats

SIDEBAR_WIDTH = 312
LATEST: dict[str, Any] = {**QUIET, "trigger_mode": "always_last"}
"""For controls that may change faster than the page answers: only the latest change is answered."""


def build() -> gr.Blocks:
    """The whole page, not yet launched."""
    gr.set_static_paths([ASSETS, PLOTLY])
    keep = limits.current().keep_seconds
    with gr.Blocks(
        title="Quantization Explorer",
        analytics_enabled=False,
        fill_width=True,
        delete_cache=(min(keep, 600), keep),
    ) as blocks:
        with gr.Sidebar(width=SIDEBAR_WIDTH):
            sidebar = build_sidebar()
        block(_header())
        notice, summary = block(), block()
        items: dict[str, Control] = {}
        with gr.Tabs(selected=TABS[0].NAME) as tabs:
            for tab in TABS:
                items[tab.NAME] = gr.Tab(tab.TITLE, id=tab.NAME)
        # Before the tabs' own listeners: Gradio runs the listeners of one event in turn, each to its end.
        for name, item in items.items():
            item.select(None, None, None, js=write_tab(name), api_visibility="private")
        page = Page(sidebar, notice, summary, tabs, items)
        for tab in TABS:
            with items[tab.NAME]:
                tab.build(page)
        _wire_sidebar(page)
        _wire_link(blocks, page)
        api.register()
    return blocks


def _header() -> str:
    state = gpu_status()
    badge = state.reason if state.ok else f"CPU reference · {state.reason}"
    return html.header(badge, state.ok, native_formats())


def _follow(page: Page, event: Any, name: str) -> None:
    """After ``event``: show the selection in each tab, then put it into the address."""
    for follower in page.followers:
        opened = name == "load"
        event = listen(
            event.then,
            follower.handler,
            [*page.selection, *follower.inputs],
            follower.outputs,
            api_name=follower.api_name if opened else f"{follower.api_name}_{name}",
            api_visibility="public" if opened else "undocumented",
            **LATEST,
        )
    event.then(None, page.selection, None, js=WRITE_SELECTION, api_visibility="private")


def _wire_sidebar(page: Page) -> None:
    """Everything that changes the selection ends in ``_follow``."""
    _wire_scheme(page)
    _wire_tensor(page, page.sidebar)
    for event, name in page.events:
        _follow(page, event, name)
    _follow(page, page.sidebar.source.input(lambda: None, None, None, **LATEST | PRIVATE), "source")


def _wire_scheme(page: Page) -> None:
    scheme = page.sidebar.scheme
    by_name = listen(
        scheme.preset.input, chosen_preset, scheme.preset, scheme, api_name="choose_scheme", **LATEST
    )
    _follow(page, by_name, "preset")
    for index, control in enumerate(scheme.parts()):
        name, shown = f"choose_parts_{index}", "undocumented"
        if index == 0:
            name, shown = "choose_parts", "public"
        typed = isinstance(control, gr.Number | gr.Textbox)
        _wire_part(page, control.submit if typed else control.input, name, shown, f"part{index}")
        if typed:
            _wire_part(page, control.blur, f"{name}_blur", "undocumented", f"blur{index}")


def _wire_part(page: Page, event: Any, api_name: str, visibility: str, follows: str) -> None:
    scheme = page.sidebar.scheme
    chosen = listen(
        event,
        chosen_parts,
        scheme.parts(),
        scheme,
        api_name=api_name,
        api_visibility=visibility,
        **LATEST,
    )
    _follow(page, chosen, follows)


def _wire_tensor(page: Page, sidebar: Sidebar) -> None:
    for name in ("sample", "file_tensor", "layer"):
        picker = getattr(sidebar, name)
        _follow(page, picker.input(lambda: None, None, None, **LATEST | PRIVATE), name)
    outputs = FileView(file_tensor=sidebar.file_tensor, source=sidebar.source)
    _follow(
        page,
        listen(sidebar.file.upload, opened_file, sidebar.file, outputs, api_name="open_file", **LATEST),
        "upload",
    )
    for event, name, visibility in (
        (sidebar.list_layers.click, "list_layers", "public"),
        (sidebar.model.submit, "submit_model", "undocumented"),
        (sidebar.revision.submit, "submit_revision", "undocumented"),
    ):
        listed = listen(
            event,
            opened_model,
            [sidebar.model, sidebar.revision],
            sidebar.layer,
            api_name=name,
            api_visibility=visibility,
            show_progress="minimal",
        )
        _follow(page, listed, name)


def _wire_link(blocks: gr.Blocks, page: Page) -> None:
    """Read the address when the page is opened, and keep it up to date."""
    sidebar = page.sidebar
    outputs = LinkView(
        **vars(sidebar.scheme),
        source=sidebar.source,
        sample=sidebar.sample,
        model=sidebar.model,
        revision=sidebar.revision,
        layer=sidebar.layer,
        tabs=page.tabs,
    )
    linked = listen(blocks.load, read_link, None, outputs, **PRIVATE)
    shown = linked.then(None, None, None, js="() => { explorer.linkShown = true; }", api_visibility="private")
    _follow(page, shown, "load")
    for name in ("sortByHeadings", "closeSidebarOnPhones"):
        blocks.load(None, None, None, js=f"() => explorer.{name}()", api_visibility="private")
