"""Steps of large models, as they were recorded: what a token costs by scheme, model and number of texts."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from app.parts import html
from app.parts.page import Page
from app.parts.views import Shown, View, listen, shows
from app.parts.widgets import QUIET, block, card, plot
from app.theme import plot_data
from explorer.figures.steps import steps_figure
from explorer.recordings.steps import StepTiming, recorded_steps

COMMAND = "explorer bench steps --shapes Llama-3-8B --schemes int4_group128,nvfp4 --batches 1,16"


@dataclass(frozen=True)
class StepsView(View):
    """The numbers of texts that the shape was recorded with, the step's parts, and in words what was
    measured."""

    texts: Shown
    figure: Shown
    sentence: Shown


@shows(StepsView)
def steps(shape: str, texts: str) -> StepsView:
    """The recorded steps of the model ``shape`` for ``texts`` texts side by side ("1", "8" …); for another
    number than it was recorded with, those of the nearest."""
    counts = _counts(shape)
    if not counts:
        raise ValueError(f"no steps of {shape} are recorded")
    count = min(counts, key=lambda known: abs(known - int(texts)))
    rows = _rows(shape, count)
    return StepsView(
        texts=gr.Radio([str(known) for known in counts], value=str(count)),
        figure=plot_data(steps_figure(rows, f"{shape} step")),
        sentence=_sentence(rows),
    )


def _counts(shape: str) -> list[int]:
    return sorted({row.batch for row in recorded_steps().rows if row.shape == shape})


def _rows(shape: str, texts: int) -> list[StepTiming]:
    return [row for row in recorded_steps().rows if row.shape == shape and row.batch == texts]


def _sentence(rows: list[StepTiming]) -> str:
    recording, first = recorded_steps(), rows[0]
    best = max(rows, key=lambda row: row.speedup)
    said = (
        f"The fastest here is {best.label}, {best.speedup:.2f} times as fast as BF16 with weights "
        f"{best.smaller:.1f} times smaller. "
        if best.speedup > 1
        else ""
    )
    return html.sentence(
        f"{said}Random weights in the shape of {first.shape}, {first.context} tokens before the step, "
        f"one CUDA graph, {recording.source}."
    )


def build(page: Page) -> None:
    """Lay the card out; it is filled when it is seen."""
    shapes = list(dict.fromkeys(row.shape for row in recorded_steps().rows))
    first = shapes[0] if shapes else ""
    counts = [str(count) for count in _counts(first)]
    with card(
        "A step of a large model",
        "one token for each text, by scheme of the linear layers, with the speed against BF16, which is "
        "compiled and captured the same way, and tokens a second",
    ):
        with gr.Row():
            shape = gr.Radio(shapes, value=first or None, label="Shape", elem_id="step-shape")
            texts = gr.Radio(counts, value=counts[0] if counts else None, label="Texts", elem_id="step-texts")
        view = StepsView(texts, plot("steps"), block(elem_id="steps-sentence"))
        block(html.commands([COMMAND]))
    page.when_seen(steps, [shape, texts], view, api_name="steps")
    for control, name in ((shape, "shape"), (texts, "texts")):
        listen(control.input, steps, [shape, texts], view, api_name=f"steps_{name}", **QUIET)
