"""The page: header, bar and places, and the wiring that keeps one tensor and its schemes in all of them."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app import api, limits
from app.link import ANSWERED, CHANGED, SPELLED, VISITED, LinkView, read_link, visited
from app.parts import html, keys
from app.parts.bar import (
    FileView,
    SchemeView,
    build_bar,
    chosen_parts,
    chosen_preset,
    chosen_second,
    left_parts,
    opened_file,
    opened_model,
    spelled,
)
from app.parts.page import Page
from app.parts.views import listen
from app.parts.widgets import BEGAN, BROUGHT, LATEST, PRIVATE, block, hidden
from app.places import NAMES, PLACES
from app.sections.overview import first_sight
from app.serving.values import CheckedBlocks
from app.theme import ASSETS, PLOTLY
from explorer.core.backend import gpu_status, native_formats


def build() -> gr.Blocks:
    """The whole page, not yet launched."""
    gr.set_static_paths([ASSETS, PLOTLY])
    keep = limits.current().keep_seconds
    with CheckedBlocks(
        title="Quantization Explorer",
        analytics_enabled=False,
        fill_width=True,
        delete_cache=(min(keep, 600), keep),
    ) as blocks:
        block(_header(), js_on_load="explorer.header(element)", elem_id="header")
        left = hidden("explorer.onTensor(() => trigger('left'))").left
        bar = build_bar(first_sight()["chips"])
        held: dict[str, Any] = {name: gr.State(None) for name in ("shown", "tried", "timed")}
        page = Page(bar, block(elem_id="notice"), left, told=gr.State(""), **held)
        for place in PLACES:
            with gr.Column(elem_id=f"place-{place.NAME}", elem_classes="place"):
                place.build(page)
        keys.build(page)
        _wire_schemes(page)
        _wire_tensor(page)
        _wire_pairs(page)
        for event in page.events:
            _changed(page, event)
        _follow(page)
        _wire_link(blocks, page)
        api.register()
    return blocks


def _header() -> str:
    state = gpu_status()
    badge = state.reason if state.ok else f"CPU reference · {state.reason}"
    return html.header(badge, state.ok, native_formats(), [(p.NAME, p.TITLE) for p in PLACES], NAMES)


def _follow(page: Page) -> None:
    """After every change of the selection: put it into the address, show it where it has to be at once, then
    let the sections on the screen follow.

    All changes meet in one event, so that of several in a row the last one is shown last, whichever control
    it came from.
    """
    changes: Any = hidden("explorer.onChange(() => trigger('changed'))")
    event, name = changes.changed, "event"
    for follower in page.followers:
        event = listen(
            event if name == "event" else event.then,
            follower.handler,
            [*page.selection, *follower.inputs],
            follower.outputs,
            api_name=follower.api_name,
            **LATEST,
        )
        name = follower.api_name
    event.then(None, page.position, None, js=ANSWERED, api_visibility="private")


def _changed(page: Page, event: Any, js: str = CHANGED) -> Any:
    """``event`` has changed the selection."""
    return event.then(None, page.selection, None, js=js, api_visibility="private")


def _wire_schemes(page: Page) -> None:
    for view, preset, stem in (
        (page.bar.scheme, chosen_preset, "choose"),
        (page.bar.second, chosen_second, "choose_second"),
    ):
        by_name = listen(
            view.preset.input,
            preset,
            [view.preset, view.text],
            view,
            js=BEGAN,
            api_name=f"{stem}_scheme",
            **LATEST,
        )
        page.changed_by(by_name)
        for index, control in enumerate(view.parts()):
            shown = "public" if index == 0 else "undocumented"
            typed = isinstance(control, gr.Number | gr.Textbox)
            name = f"{stem}_parts_{index}" if index else f"{stem}_parts"
            _wire_part(page, view, control.submit if typed else control.input, name, shown)
            if typed:
                left = listen(
                    control.blur,
                    left_parts,
                    [view.text, *view.parts()],
                    view,
                    js=BEGAN,
                    api_name=f"{name}_blur",
                    api_visibility="undocumented",
                    **LATEST,
                )
                page.changed_by(left)


def _wire_part(page: Page, view: SchemeView, event: Any, api_name: str, visibility: str) -> None:
    chosen = listen(
        event,
        chosen_parts,
        [*view.parts(), view.text],
        view,
        js=BEGAN,
        api_name=api_name,
        api_visibility=visibility,
        **LATEST,
    )
    page.changed_by(chosen)


def _wire_tensor(page: Page) -> None:
    """The pickers of the tensor; a file or a model that is opened fills the picker of its tensors."""
    bar = page.bar
    for name in ("source", "sample", "file_tensor", "layer"):
        picker = getattr(bar, name)
        page.changed_by(picker.input(None, None, None, js="() => { explorer.began(); }", **PRIVATE))
    outputs = FileView(file=bar.file, file_tensor=bar.file_tensor, source=bar.source, told=page.told)
    opened = listen(
        bar.file.upload,
        opened_file,
        [bar.file, page.shown],
        outputs,
        js=BROUGHT,
        api_name="open_file",
        **LATEST,
    )
    page.changed_by(opened)
    for event, name, visibility in (
        (bar.list_layers.click, "list_layers", "public"),
        (bar.model.submit, "submit_model", "undocumented"),
        (bar.revision.submit, "submit_revision", "undocumented"),
    ):
        listed = listen(
            event,
            opened_model,
            [bar.model, bar.revision],
            bar.layer,
            js=BEGAN,
            api_name=name,
            api_visibility=visibility,
            show_progress="minimal",
        )
        page.changed_by(listed)


def _wire_pairs(page: Page) -> None:
    """Schemes that were chosen elsewhere than in their own controls: the page follows, and the controls."""
    for event, name in page.pairs:
        event = _changed(page, event)
        for view, which, key in ((page.bar.scheme, "a", "scheme"), (page.bar.second, "b", "second")):
            spelling = listen(
                event.then,
                spelled,
                view.text,
                view,
                js=SPELLED % key,
                api_name=f"spell_{name}_{which}",
                api_visibility="undocumented",
                **LATEST,
            )
            event = spelling.then(None, None, None, js="() => { explorer.outdated() }", **PRIVATE)


def _wire_link(blocks: gr.Blocks, page: Page) -> None:
    """Read the address when the page is opened and when the visitor goes back, and keep it up to date."""
    bar, (row, column, follow) = page.bar, page.position
    second = {f"second_{name}": control for name, control in vars(bar.second).items()}
    outputs = LinkView(
        **vars(bar.scheme),
        **second,
        source=bar.source,
        sample=bar.sample,
        file_tensor=bar.file_tensor,
        model=bar.model,
        revision=bar.revision,
        layer=bar.layer,
        row=row,
        column=column,
        follow=follow,
        **{f"of_{key}": control for key, control in page.kept.items()},
    )
    linked = listen(blocks.load, read_link, None, outputs, **PRIVATE)
    started = linked.then(None, None, None, js="() => explorer.start()", **PRIVATE)
    _changed(page, started, VISITED)
    history: Any = hidden("explorer.onVisit(() => trigger('visit'))")
    query = gr.Textbox(visible=False, label="address")
    again = listen(history.visit, visited, query, outputs, js="() => [location.search]", **LATEST | PRIVATE)
    _changed(page, again, VISITED)
