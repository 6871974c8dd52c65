"""The methods on one layer: its output under GPTQ, AWQ and others, and a result as scheme A or B."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
from torch import Tensor

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.scheme_picker import build_scheme_picker
from app.parts.views import Control, Shown, StatusView, listen, shows
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
from app.sections.layer_inputs import build_layer_inputs
from app.state.analyses import keep_layer
from app.state.choices import (
    INPUT_SCHEMES,
    MOST_METHODS,
    MOST_SCHEMES,
    check_cost,
    input_scheme,
    method_choices,
)
from app.state.files import Downloads, downloads
from app.state.gpu_lock import locked_steps
from app.state.layers import BUILTIN, THIS, chosen_layer
from app.state.selection import Selection, tensor_key
from app.state.visits import Owner
from app.theme import plot_data
from explorer import Scheme
from explorer.figures.methods import (
    before_after_figure,
    channel_error_figure,
    channels_figure,
    objective_figure,
    output_figure,
    snapshots_figure,
)
from explorer.methods import USUAL, label_of, names_in, transforms_label
from explorer.methods.evaluate import Outcome, evaluate_all, halves, most_telling_transform, summary
from explorer.methods.llm_int8 import outlier_columns
from explorer.methods.recipe import Recipe

MOST_COLUMNS_NAMED = 8
COLUMNS = {
    "method": "str",
    "scheme": "str",
    "output SQNR dB": "number",
    "output error %": "number",
    "weight SQNR dB": "number",
    "bits": "number",
    "seconds": "number",
    "what it does": "str",
}
NOT_YET = "Not run yet: half of the inputs calibrate, the held-out other half measures the error."


USE = (
    "As A or B, the layer uses the weight computed by the method: its codes, with transforms and corrections "
    "applied in the original coordinates. It is computed for unquantized inputs. The weight error of a "
    "method may be larger than that of rounding, where this reduces the output error. Bias correction leaves "
    "the weight as it is; its bits are those of a layer without a bias, and a bias takes it in for nothing."
)


@dataclass(frozen=True)
class MethodsView(StatusView):
    """A run: status, conclusion, the results to take over, seven figures, table, its files, and whose results
    they are (``Owner``)."""

    sentence: Shown
    results: Shown
    bars: Shown
    objectives: Shown
    film: Shown
    channel: Shown
    columns: Shown
    inputs_map: Shown
    weights_map: Shown
    table: Shown
    csv_file: Shown
    json_file: Shown
    owner: Shown


@dataclass(frozen=True, eq=False)
class LayerData:
    """A layer by name: weight [N, K] and inputs [tokens, K]; ``here`` where it is the selection's own."""

    label: str
    weight: Tensor
    inputs: Tensor
    here: Selection | None

    def owner(self, outcomes: Sequence[Outcome]) -> Owner:
        """Data kept of a run so far."""
        kept = tuple(replace(outcome, layer=None) for outcome in outcomes)
        return Owner(self.label, tensor_key(self.here) if self.here else None, kept, outcomes[0].activations)


@shows(MethodsView)
def run(
    kind: str,
    sample: str,
    file: str | None,
    captured: str | None,
    name: str | None,
    methods: list[str],
    schemes: list[str],
    inputs: str,
    *selection: Any,
) -> Iterator[MethodsView]:
    """Every method under every scheme (none chosen: A and B), yielding after each; stopping keeps what is
    there. The layer is the selection's (``kind`` "this"), built in, of a file or captured.

    Yields status, sentence, bars, objectives, film, channel errors, input channels, maps of inputs and of
    weights, table, CSV and JSON, each as far as the run is.
    """
    here = Selection.of(*selection) if selection else Selection()
    if not methods:
        raise ValueError("choose at least one method")
    if len(methods) > MOST_METHODS or len(schemes) > MOST_SCHEMES:
        raise ValueError(f"at most {MOST_METHODS} methods and {MOST_SCHEMES} schemes are taken in one run")
    chosen = list(dict.fromkeys(Recipe.parse(s).scheme for s in schemes or here.schemes))
    of_inputs = input_scheme(inputs)
    own = kind == THIS or (kind == BUILTIN and (here.source, here.sample) == ("builtin", sample))
    layer = LayerData(*chosen_layer(kind, sample, file, captured, name, here), here if own else None)
    check_cost(methods, layer.weight)
    yield from _outcomes(layer, methods, chosen, of_inputs)


def _outcomes(
    layer: LayerData, methods: list[str], schemes: list[Scheme], of_inputs: Scheme | None
) -> Iterator[MethodsView]:
    total, longest = len(methods) * len(schemes), limits.current().run_seconds
    end, outcomes = time.monotonic() + longest, []
    now = f"0 of {total} · now {label_of(methods[0])} on {layer.label}"
    yield MethodsView.unchanged(status=html.status(now))
    for outcome in locked_steps(evaluate_all(methods, schemes, layer.weight, layer.inputs, of_inputs)):
        outcomes.append(outcome)
        if layer.here and outcome.layer and of_inputs is None:
            keep_layer(layer.here, Recipe.parse(recipe_text(outcome)), outcome.layer)
        last, late = len(outcomes) == total, time.monotonic() > end
        words = f"{len(outcomes)} of {total} · {layer.label}: {outcome.label}, {outcome.scheme_label}"
        words += f": {outcome.refused}" if outcome.refused else ""
        if late and not last:
            words = f"Stopped after {longest:.0f} s, the time limit of a run here. {words}"
        yield _shown(html.status(words), layer, outcomes, last or late)
        if late:
            return


def _shown(status: str, layer: LayerData, outcomes: list[Outcome], finished: bool) -> MethodsView:
    """All that the methods so far have to show. The figures of one outcome alone, which are large, are sent
    when it comes, and all of them at the end."""
    x, label, before = layer.inputs, layer.label, outcomes[:-1]
    fresh = finished or not before
    files = _files(outcomes, label)
    film, transformed = _with_snapshots(outcomes), most_telling_transform(outcomes)
    view = MethodsView.unchanged(
        status=status,
        sentence=html.sentence(_summary(outcomes, x)),
        bars=plot_data(output_figure(outcomes, label)),
        objectives=plot_data(objective_figure(outcomes, label)),
        channel=plot_data(channel_error_figure(outcomes, label)),
        table=[_line(o) for o in outcomes],
        csv_file=files.csv,
        json_file=files.json,
        results=_results(outcomes),
        owner=layer.owner(outcomes),
    )
    if fresh or film is not _with_snapshots(before):
        view = replace(view, film=plot_data(snapshots_figure(film, layer.weight, label)))
    if fresh or transformed is not most_telling_transform(before):
        view = replace(view, **_before_and_after(layer, transformed))
    return view


def _before_and_after(layer: LayerData, transformed: Outcome | None) -> dict[str, Any]:
    """The figures of held-out inputs and weights as they are, and as the most telling transform makes
    them."""
    w, label = layer.weight, layer.label
    _, held = halves(layer.inputs)
    held_after, w_after, how = None, None, ""
    if transformed is not None and transformed.layer is not None:
        held_after = transformed.layer.transform_inputs(held.float())
        w_after = transformed.layer.transform_weight(w)
        how = transforms_label(transformed.method)
    return {
        "columns": plot_data(channels_figure(held, w, held_after, w_after, label)),
        "inputs_map": plot_data(before_after_figure(held, held_after, "token", how, label)),
        "weights_map": plot_data(before_after_figure(w, w_after, "output channel", how, label)),
    }


def recipe_text(outcome: Outcome) -> str:
    """Text form of an outcome as scheme A or B."""
    return str(Recipe.parse(f"{outcome.scheme}+{outcome.method}"))


def _results(outcomes: Sequence[Outcome]) -> Any:
    """The results that can be taken over, the one with the least error of the output chosen."""
    served = sorted((o for o in outcomes if not o.refused), key=lambda o: o.output_error)
    choices = [(f"{o.label}, {o.scheme_label}: {o.output_sqnr_db:.2f} dB", recipe_text(o)) for o in served]
    return gr.update(choices=choices, value=choices[0][1] if choices else None)


@shows()
def written(chosen: Selection, result: str | None, side: str, owner: Owner | None) -> str:
    """The act that makes a result scheme A or B (``side`` "a" or "b"): its scheme, repaired by its method on
    the selected layer."""
    if not result or owner is None:
        raise ValueError("run the methods first")
    if owner.tensor != tensor_key(chosen):
        raise ValueError(
            f'these results are of {owner.label}: choose "this tensor" and run the methods on it'
        )
    return json.dumps([{"do": "scheme", "side": side, "text": result}])


@shows(MethodsView)
def cleared(chosen: Selection, owner: Owner | None) -> MethodsView:
    """Nothing, once another tensor is chosen than the one that the results are of; what is of a built-in
    layer, a file or a captured one stays, under its name."""
    if owner is None or owner.tensor is None or owner.tensor == tensor_key(chosen):
        return MethodsView.unchanged()
    waiting = gr.update(interactive=False)
    empty = dict.fromkeys((f.name for f in dataclasses.fields(MethodsView)), "")
    return MethodsView(
        **empty
        | {
            "status": html.status(NOT_YET),
            "results": gr.update(choices=[], value=None),
            "table": [],
            "csv_file": waiting,
            "json_file": waiting,
            "owner": None,
        }
    )


def _with_snapshots(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The first outcome with snapshots of its progress, on the weights as they are."""
    for o in outcomes:
        if o.layer is not None and o.layer.snapshots is not None and not o.layer.transforms:
            return o
    return None


def _summary(outcomes: Sequence[Outcome], x: Tensor) -> str:
    """Name the method with the least error, and the input columns with outliers."""
    words, columns = summary(outcomes, x), outlier_columns(x).tolist()
    if not columns:
        return words
    more = " …" if len(columns) > MOST_COLUMNS_NAMED else ""
    return f"{words} Their columns: {', '.join(map(str, columns[:MOST_COLUMNS_NAMED]))}{more}."


def _files(outcomes: Sequence[Outcome], label: str) -> Downloads:
    lines = [dict(zip(COLUMNS, _line(o), strict=True)) for o in outcomes]
    records = [o.record() for o in outcomes]
    return downloads(f"methods {label}", lines, records)


def _line(o: Outcome) -> list[Any]:
    """One line of the table, in the order of ``COLUMNS``; a refusal has no numbers, and says why."""
    numbers = (o.output_sqnr_db, 100 * o.output_error, o.weight_sqnr_db, o.bits, o.seconds)
    words = f"refused: {o.refused}" if o.refused else " and ".join(row.why for row in names_in(o.method))
    return [o.label, o.scheme, *(None if o.refused else float(f"{v:.5g}") for v in numbers), words]


def build(page: Page) -> None:
    """Lay the tab out; it runs when it is first opened and when asked to."""
    layer = build_layer_inputs()
    with gr.Row():
        methods = gr.Dropdown(
            method_choices(),
            value=list(USUAL),
            multiselect=True,
            label="Methods",
            min_width=260,
            elem_id="methods-methods",
        )
        schemes = build_scheme_picker(page, (), "Schemes (none: A and B)", "methods-schemes")
        inputs = gr.Dropdown(
            list(INPUT_SCHEMES), value="as they are", label="Inputs", min_width=150, elem_id="methods-inputs"
        )
    with gr.Row():
        start = gr.Button("Run", variant="primary", min_width=120)
        stop = stop_button()
    status = block(html.status(NOT_YET), elem_id="methods-status")
    stopped = block(elem_id="methods-stopped")
    with results_column():
        outputs = _build_results(page, status)
    # The selection comes last, so that a program may leave it out.
    inputs_of_run = [*layer.values(), methods, schemes, inputs, *page.selection]
    _wire(page, RunButtons((start,), stop, stopped), inputs_of_run, outputs)


def _build_use(page: Page, owner: Control) -> Control:
    """Write a result back into the schemes: into A, or as scheme B."""
    with gr.Row(elem_classes="tight", elem_id="use-method"):
        result = gr.Dropdown([], label="Result", min_width=440, elem_id="methods-result")
        for side, label in (("a", "Use it in A"), ("b", "Compare it as B")):
            button = gr.Button(label, min_width=120)
            inputs = [*page.selection, result, gr.State(side), owner]
            page.act_of(button.click, written, inputs, api_name=f"use_method_{side}")
    block(html.note(USE))
    return result


def _build_results(page: Page, status: Control) -> MethodsView:
    owner = page.method_results
    sentence = block(elem_id="methods-sentence")
    result = _build_use(page, owner)
    bars = plot_card(
        "Output SQNR",
        "on held-out inputs; longer is better",
        "methods-bars",
    )
    with gr.Row():
        objectives = plot_card(
            "Objectives",
            "what methods minimise: GPTQ's error over its damping, on tokens held out from its Hessian, "
            "errors over α, by iteration HQQ's norm and AutoRound's loss; a dot marks each minimum",
            "methods-objectives",
        )
        channel = plot_card(
            "Error by output channel",
            "under the first scheme, each method's channels sorted",
            "methods-channels",
        )
    film = plot_card(
        "GPTQ at work",
        "change of each weight: rounded left of the front, updated right of it to compensate",
        "methods-film",
    )
    columns = plot_card(
        "Input channels",
        "largest input and weight of each; those above the dashed line LLM.int8() keeps in float16",
        "methods-columns",
    )
    with gr.Row():
        inputs_map = plot_card(
            "Inputs before and after",
            "largest magnitude of each tile of tokens and channels, one scale for both",
            "methods-inputs-map",
        )
        weights_map = plot_card(
            "Weights before and after",
            "largest magnitude of each tile of output and input channels, one scale for both",
            "methods-weights-map",
        )
    rows = table(COLUMNS, "methods-table", pinned_columns=1, max_height=480, buttons=["copy"], wrap=True)
    csv_file, json_file = download_buttons()
    return MethodsView(
        status=status,
        sentence=sentence,
        bars=bars,
        objectives=objectives,
        film=film,
        channel=channel,
        columns=columns,
        inputs_map=inputs_map,
        weights_map=weights_map,
        table=rows,
        csv_file=csv_file,
        json_file=json_file,
        results=result,
        owner=owner,
    )


def _wire(page: Page, buttons: RunButtons, inputs: list[Control], outputs: MethodsView) -> None:
    slow = {**QUIET, "concurrency_id": "compute"}
    (start,) = buttons.starts
    buttons.begin_on(start.click)
    running = listen(start.click, run, inputs, outputs, api_name="methods", **slow)
    buttons.end_with(running)
    buttons.stop_on(page.tensor_left, running)
    page.follow(cleared, [outputs.owner], outputs, api_name="methods_cleared")
