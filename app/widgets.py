"""Components that several tabs are laid out with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from app import html
from app.theme import plot_data

QUIET: dict[str, Any] = {"show_progress": "hidden"}
"""For listeners whose outputs change in place, without the overlay that Gradio draws on what it waits for."""
PRIVATE: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""For listeners that only move the page's own parts and are no endpoints."""


def block(value: str | None = None, **options: Any) -> gr.HTML:
    """HTML under the page's own style sheet instead of Gradio's."""
    return gr.HTML(value, apply_default_css=False, **options)


@contextmanager
def card(title: str, about: str) -> Iterator[None]:
    """A framed column with a heading; what is built inside stands below it."""
    with gr.Column(min_width=380, elem_classes="plot-card"):
        block(html.figure_title(title, about))
        yield


def plot(elem_id: str, figure: go.Figure | None = None) -> gr.Plot:
    """A figure without Gradio's own label and frame."""
    value = plot_data(figure) if figure is not None else None
    return gr.Plot(value, show_label=False, container=False, elem_id=elem_id)


def plot_card(title: str, about: str, elem_id: str, figure: go.Figure | None = None) -> gr.Plot:
    """A figure in a card of its own."""
    with card(title, about):
        return plot(elem_id, figure)


def table(columns: Mapping[str, str], elem_id: str, **options: Any) -> gr.Dataframe:
    """A table to read. ``columns`` maps each heading to its type, "str" or "number"."""
    datatype: Any = list(columns.values())
    return gr.Dataframe(
        headers=list(columns),
        datatype=datatype,
        type="array",
        interactive=False,
        show_label=False,
        elem_id=elem_id,
        **options,
    )


def download_buttons() -> tuple[gr.DownloadButton, gr.DownloadButton]:
    """The buttons for a result's CSV and JSON, side by side; they wait for ``files.downloads``."""
    with gr.Row():
        return (
            gr.DownloadButton("Download CSV", interactive=False, min_width=140),
            gr.DownloadButton("Download JSON", interactive=False, min_width=140),
        )


def stop_button() -> gr.Button:
    """A Stop that waits for ``running_buttons`` to show it."""
    return gr.Button("Stop", min_width=100, visible=False)


def running_buttons(
    starts: Sequence[Any],
    stop: gr.Button,
    line: gr.HTML,
    running: Sequence[Any],
    message: str = "Stopped; what was finished is shown.",
    begun_by: Sequence[Any] = (),
) -> Any:
    """Show ``stop`` and hold ``starts`` back while one of ``running`` runs, until it ends, is refused or
    stopped; ``stop`` cancels it and writes ``message`` into ``line``, which a new run empties.

    ``begun_by``: events that begin a run beside clicks on ``starts``. Returns the event of stopping. The line
    is not the run's own status: an answer already on its way when the run was stopped would overwrite it.
    """
    buttons = [stop, *starts]
    for event in (*(start.click for start in starts), *begun_by):
        event(lambda: ["", *_buttons(True, len(starts))], None, [line, *buttons], queue=False, **PRIVATE)
    for run in running:
        run.then(lambda: _buttons(False, len(starts)), None, buttons, queue=False, **PRIVATE)
    return stop.click(
        lambda: [html.status(message), *_buttons(False, len(starts))],
        None,
        [line, *buttons],
        cancels=list(running),
        queue=False,
        **PRIVATE,
    )


def _buttons(running: bool, starts: int) -> list[Any]:
    """Updates of Stop and of so many buttons that start."""
    return [gr.update(visible=running), *(gr.update(interactive=not running) for _ in range(starts))]
