"""The chapter on training: accuracy against bits on real images, before and after training through
the rounding.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import gradio as gr

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.report_files import ReportView, build_report, report_steps
from app.parts.views import Control, Shown, StatusView, View, listen, shows
from app.parts.widgets import (
    QUIET,
    RunButtons,
    block,
    download_buttons,
    plot_card,
    results_column,
    stop_button,
    table,
)
from app.state.choices import input_scheme
from app.state.files import NOTHING_YET, downloads
from app.theme import plot_data
from explorer import Scheme
from explorer.core.serialize import to_json
from explorer.figures.training import accuracy_figure, curves_figure, steps_figure, underflow_figure
from explorer.reports import training_report
from explorer.reports.training import Settings
from explorer.training.digits import (
    WIDTHS,
    Trained,
    Underflow,
    accuracy_rows,
    count,
    gradient_magnitudes,
    progress_words,
    summary,
    train,
    underflow,
    underflow_summary,
)
from explorer.words import duration

USUAL = ("8", "6", "4", "3", "2", "ternary", "binary")
USUAL_SEEDS = 3
MOST_SEEDS, MOST_EPOCHS = 10, 60
DRAWN_EVERY_S = 1.0
"""Seconds between updates of the figures, which are large compared with a table."""
COLUMNS = {
    "weights": "str",
    "how": "str",
    "mean %": "number",
    "least %": "number",
    "most %": "number",
    "seeds": "number",
}
INPUTS = ("float32", "INT8 per token", "FP8 E4M3 per token", "INT8, one scale")
ABOUT = (
    "1,797 real 8×8 images of digits (scikit-learn's), 1,347 to learn from and 450 to test on: one image is "
    "0.22 %. A network with two hidden layers of 32 is trained in float32 for each seed; its weights are "
    "then rounded (<i>post-training</i>, one scale per row), or trained further with quantization: "
    "straight-through gradients, for ternary and binary weights BitNet's rule, and with LSQ's learned "
    "steps. <i>float32, trained on</i> is the fair comparison: as many epochs, no rounding."
)


@dataclass(frozen=True)
class TrainingView(StatusView):
    """A run: status, conclusion, three figures, table, and the files of a finished one."""

    sentence: Shown
    accuracy: Shown
    curves: Shown
    steps: Shown
    table: Shown
    csv_file: Shown
    json_file: Shown
    done: Shown


@dataclass(frozen=True)
class Done:
    """The networks of a run so far, and what the run was asked for."""

    settings: Settings
    results: tuple[Trained, ...]


@dataclass(frozen=True)
class LossScalingView(View):
    """Gradients that float16 loses: a figure and its conclusion."""

    figure: Shown
    conclusion: Shown


@shows(TrainingView)
def run(widths: list[str], seeds: float, epochs: float, again: float, inputs: str) -> Iterator[TrainingView]:
    """Train every width, yielding after each network; stopping keeps what is there.

    Yields status, sentence, three figures, table, and at the end the CSV and JSON files.
    """
    if not widths:
        raise ValueError("choose at least one width")
    if not (1 <= seeds <= MOST_SEEDS and 1 <= epochs <= MOST_EPOCHS and 1 <= again <= MOST_EPOCHS):
        raise ValueError(f"seeds are 1 … {MOST_SEEDS}, epochs 1 … {MOST_EPOCHS}")
    chosen, of_inputs = tuple(w for w in WIDTHS if w in widths), input_scheme(inputs)
    settings = Settings(chosen, int(seeds), int(epochs), int(again), str(of_inputs) if of_inputs else "")
    yield from _networks(settings, of_inputs)


def _networks(settings: Settings, inputs: Scheme | None) -> Iterator[TrainingView]:
    widths, seeds, epochs, again = settings.widths, settings.seeds, settings.epochs, settings.again
    total, longest = count(widths, seeds), limits.current().run_seconds
    results: list[Trained] = []
    start, drawn_at = time.monotonic(), 0.0
    end = start + longest
    yield TrainingView.unchanged(status=html.status(f"0 of {total} networks · training in float32 first"))
    for trained in train(widths, seeds, epochs, again, inputs):
        results.append(trained)
        last, late = len(results) == total, time.monotonic() > end
        words = progress_words(trained, len(results), total)
        if not last:
            left = (time.monotonic() - start) / len(results) * (total - len(results))
            words = f"{words} · about {duration(left, 2)} left"
        if late and not last:
            words = f"Stopped after {longest:.0f} s, the time limit of a run here: {words}"
        drawn = last or late or time.monotonic() - drawn_at > DRAWN_EVERY_S
        drawn_at = time.monotonic() if drawn else drawn_at
        done = Done(settings, tuple(results))
        yield _shown(html.status(words), done, drawn, last or late)
        if late:
            return


def _shown(status: str, done: Done, drawn: bool, finished: bool) -> TrainingView:
    results = done.results
    lines = [
        [r.width, r.stage, *(_percent(share) for share in (r.mean, r.least, r.most)), r.seeds]
        for r in accuracy_rows(results)
    ]
    files = NOTHING_YET
    if finished:
        named = [dict(zip(COLUMNS, line, strict=True)) for line in lines]
        files = downloads("digits", named, [to_json(r) for r in results])
    return TrainingView(
        status=status,
        sentence=html.sentence(summary(results)),
        accuracy=plot_data(accuracy_figure(results)) if drawn else gr.skip(),
        curves=plot_data(curves_figure(results)) if drawn else gr.skip(),
        steps=plot_data(steps_figure(results)) if drawn else gr.skip(),
        table=lines,
        csv_file=files.csv,
        json_file=files.json,
        done=done,
    )


@shows(ReportView)
def report(done: Done | None, kinds: list[str]) -> Iterator[ReportView]:
    """The visitor's run as a report; ``kinds``: of ``report_files.KINDS``."""
    if done is None:
        raise ValueError("nothing is trained yet: Train first")
    yield from report_steps(lambda progress: training_report(done.settings, done.results), kinds)


def _percent(share: Any) -> float:
    return round(100 * float(share), 2)


@cache
def _underflow() -> tuple[Underflow, ...]:
    return tuple(underflow(gradient_magnitudes()))


@shows(LossScalingView)
def loss_scaling() -> LossScalingView:
    """Show the gradients of one batch that float16 loses, by loss scale: the figure and its conclusion."""
    rows = _underflow()
    return LossScalingView(
        figure=plot_data(underflow_figure(rows)), conclusion=html.status(underflow_summary(rows))
    )


def build(page: Page) -> None:
    """Lay the chapter out."""
    widths = gr.CheckboxGroup(
        list(WIDTHS), value=list(USUAL), label="Bits per weight", elem_id="training-widths"
    )
    with gr.Row():
        seeds = gr.Slider(1, MOST_SEEDS, value=USUAL_SEEDS, step=1, label="Seeds", min_width=120)
        epochs = gr.Slider(1, MOST_EPOCHS, value=20, step=1, label="Epochs in float32", min_width=120)
        again = gr.Slider(1, MOST_EPOCHS, value=8, step=1, label="Epochs of training on", min_width=120)
        inputs = gr.Dropdown(list(INPUTS), value="float32", label="Inputs of hidden layers", min_width=160)
    with gr.Row():
        start = gr.Button("Train", variant="primary", min_width=120, scale=0)
        stop = stop_button()
    status = block(
        html.status("Not trained yet. The time that is left is shown after the first network."),
        elem_id="training-status",
    )
    stopped = block(elem_id="training-stopped")
    with results_column():
        outputs = _build_results(status)
    _build_loss_scaling(page)
    block(html.note(ABOUT))

    buttons = RunButtons((start,), stop, stopped)
    buttons.begin_on(start.click)
    running = listen(
        start.click,
        run,
        [widths, seeds, epochs, again, inputs],
        outputs,
        api_name="train",
        concurrency_id="compute",
        **QUIET,
    )
    buttons.end_with(running)


def _build_results(status: Control) -> TrainingView:
    sentence = block(elem_id="training-sentence")
    accuracy = plot_card("Accuracy against bits", "mean over seeds, bars from minimum to maximum", "accuracy")
    with gr.Row():
        curves = plot_card("Training on", "accuracy after each epoch, first seed; dotted: LSQ", "curves")
        steps = plot_card(
            "LSQ's step sizes", "mean step size of each layer after training, relative to before", "steps"
        )
    rows = table(COLUMNS, "training-table", max_height=480, buttons=["copy"])
    csv_file, json_file = download_buttons()
    done = gr.State(None)
    build_report(report, [done], "report_training", "Report of this run")
    return TrainingView(
        status=status,
        sentence=sentence,
        accuracy=accuracy,
        curves=curves,
        steps=steps,
        table=rows,
        csv_file=csv_file,
        json_file=json_file,
        done=done,
    )


def _build_loss_scaling(page: Page) -> None:
    outputs = LossScalingView(
        figure=plot_card(
            "Why FP16 needs loss scaling and BF16 does not",
            "gradients of one batch after 12 epochs, weights and hidden values",
            "loss-scaling",
        ),
        conclusion=block(elem_id="loss-scaling-words"),
    )
    listen(page.seen["training"].seen, loss_scaling, None, outputs, api_name="loss_scaling", **QUIET)
