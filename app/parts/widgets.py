"""Components that several sections are laid out with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from app.parts import html
from app.parts.views import Control
from app.theme import plot_data

QUIET: dict[str, Any] = {"show_progress": "hidden"}
"""For listeners whose outputs change in place, without the overlay that Gradio draws on what it waits for."""
LATEST: dict[str, Any] = {**QUIET, "trigger_mode": "always_last"}
"""For controls that may change faster than the page answers: only the latest change is answered."""
TOGETHER: dict[str, Any] = {"concurrency_limit": 4}
"""For what every visitor waits for: so many are answered at once, as one may have a large tensor."""
PRIVATE: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""For listeners that only move the page's own parts and are no endpoints."""


def block(value: str | None = None, **options: Any) -> gr.HTML:
    """HTML under the page's own style sheet instead of Gradio's."""
    return gr.HTML(value, apply_default_css=False, padding=False, **options)


def hidden(script: str) -> Control:
    """A component that shows nothing: its ``script`` reports what happens in the browser, by ``trigger``."""
    return gr.HTML("", html_template="<span hidden></span>", js_on_load=script, elem_classes="script")


def heading(title: str, about: str) -> None:
    """The heading of a section, and its purpose."""
    block(html.heading(title, about))


@contextmanager
def card(title: str, about: str) -> Iterator[gr.HTML]:
    """A framed column with a heading, which is given; components built inside are placed below it."""
    with gr.Column(min_width=380, elem_classes="plot-card"):
        yield block(html.figure_title(title, about))


FIGURE = """<div class="figure-tools" hidden></div>\
<div class="figure" style="min-height:{height}px"{options}></div>"""
"""``assets/figure.js`` adds the buttons."""
DRAW = """explorer.figure(element, props, watch, (kind, what) =>
  kind === 'point' ? ({point})(what)
    : kind === 'brush' ? trigger('brush', what) : trigger('range', what))"""


def plot(
    elem_id: str,
    figure: go.Figure | None = None,
    height: int = 340,
    draggable: bool = False,
    point: str = "what => trigger('point', what)",
) -> Control:
    """A figure with buttons to save it; ``height`` in pixels is kept free until it is drawn.

    Its value is ``theme.plot_data``. Events: ``point`` with x, y, curve, at (the point's index) and data (its
    customdata) of what was clicked, on an error map also which ``element`` (row, column) has the value of the
    cell, and ``shift``, whether that key was down; ``range``, if shapes are ``draggable``, with where a line
    was dragged ``from`` and ``to``; ``brush``, if the figure's ``meta["brush"]`` is true, with the ends of
    the ``rows`` and ``columns`` it was zoomed to, null for all. ``point`` is the script that is called with
    that instead.
    """
    if figure is not None and figure.layout.height:
        height = int(figure.layout.height)
    return gr.HTML(
        plot_data(figure) if figure is not None else "",
        html_template=FIGURE.format(height=height, options=" data-draggable" if draggable else ""),
        js_on_load=DRAW.format(point=point),
        apply_default_css=False,
        padding=False,
        elem_id=elem_id,
        elem_classes="figure-box",
    )


def plot_card(
    title: str,
    about: str,
    elem_id: str,
    figure: go.Figure | None = None,
    height: int = 340,
    **options: Any,
) -> Control:
    """A figure in a separate card. ``options`` are those of ``plot``."""
    with card(title, about):
        return plot(elem_id, figure, height, **options)


def plot_pair(
    title: str, about: str, elem_id: str, height: int = 340, **options: Any
) -> tuple[Control, Control]:
    """A card with a figure for scheme A and below it one for scheme B; for ``figure_pair``. ``options`` are
    those of ``plot``."""
    with card(title, about):
        return plot(elem_id, height=height, **options), plot(f"{elem_id}-b", height=0, **options)


def figure_pair(figures: Sequence[go.Figure]) -> tuple[str, str]:
    """One or two figures as the values of a ``plot_pair``."""
    first, *others = (plot_data(figure) for figure in figures)
    return first, others[0] if others else ""


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


def results_column() -> gr.Column:
    """A column that is collapsed until it contains the conclusion (``html.sentence``) of a run."""
    return gr.Column(elem_classes="results")


def of_result() -> gr.Column:
    """A column that is collapsed where its section says why there is nothing to show (``html.refusal``)."""
    return gr.Column(elem_classes="of-result")


def download_buttons(of: str = "") -> tuple[gr.DownloadButton, gr.DownloadButton]:
    """The buttons for a result's CSV and JSON, side by side; they wait for ``files.downloads``. ``of``: what
    of several results, "both "."""
    with gr.Row():
        return (
            gr.DownloadButton(f"Download {of}CSV", interactive=False, min_width=140),
            gr.DownloadButton(f"Download {of}JSON", interactive=False, min_width=140),
        )


def stop_button() -> gr.Button:
    """A Stop that waits for ``RunButtons`` to show it."""
    return gr.Button("Stop", min_width=100, visible=False)


@dataclass(frozen=True)
class RunButtons:
    """The buttons that start a run, and the Stop that is there only while it runs.

    ``line`` says that a run was stopped. It is not the run's own status: an answer already on its way when
    the run was stopped would overwrite it.
    """

    starts: tuple[Any, ...]
    stop: gr.Button
    line: gr.HTML

    def begin_on(self, *events: Any) -> None:
        """Show Stop, hold the starts back and empty the line on ``events``.

        To be wired before the run itself: a page answers the listeners of one event one after another, and
        waits for the end of each.
        """
        for event in events:
            event(lambda: ["", *self._updates(True)], None, self._outputs, queue=False, **PRIVATE)

    def end_with(self, *running: Any, message: str = "Stopped; what was finished is shown.") -> Any:
        """Undo that when one of ``running`` has ended or was refused. A click on Stop cancels all of them and
        writes ``message``; returns that click's event."""
        for run in running:
            run.then(lambda: self._updates(False), None, self._outputs[1:], queue=False, **PRIVATE)
        said = json.dumps(html.status("Stopping …"))
        self.stop.click(None, None, self.line, js=f"() => {said}", **PRIVATE)
        return self.stop.click(
            lambda: [html.status(message), *self._updates(False)],
            None,
            self._outputs,
            cancels=list(running),
            queue=False,
            **PRIVATE,
        )

    def stop_on(self, event: Any, *running: Any) -> None:
        """Cancel what is running on ``event``, and show that nothing runs; what it had shown is for others to
        clear."""
        event(
            lambda: ["", *self._updates(False)],
            None,
            self._outputs,
            cancels=list(running),
            queue=False,
            **PRIVATE,
        )

    @property
    def _outputs(self) -> list[Any]:
        return [self.line, self.stop, *self.starts]

    def _updates(self, running: bool) -> list[Any]:
        """Updates of Stop and of each start button."""
        return [gr.update(visible=running), *(gr.update(interactive=not running) for _ in self.starts)]
