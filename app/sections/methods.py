"""Rounding by methods that use a layer's inputs, on one layer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go
from torch import Tensor

from app import limits
from app.parts import html
from app.parts.controls import IntegerInput, MultiSelect, Select, TextInput
from app.parts.section import SELECTION, Section, Shown
from app.serving import uploads
from app.state.analyses import keep_layer
from app.state.choices import INPUT_SCHEMES, MOST_SCHEMES, bytes_of, check_cost, schemes_of
from app.state.files import fresh_folder, write_table
from app.state.gpu_lock import locked_steps, room
from app.state.layers import (
    BUILTIN,
    FILE,
    LAYERS,
    TEXT,
    THIS,
    chosen_layer,
    documents,
    layers_in,
    tokens_to_keep,
)
from app.state.models import runnable_model
from app.state.query import Query
from app.state.record import Record
from app.state.selection import Selection, tensor_key
from app.state.visits import Owner, visit
from explorer import Scheme, SourceError
from explorer.figures.methods import (
    before_after_figure,
    channel_error_figure,
    channels_figure,
    objective_figure,
    output_figure,
    snapshots_figure,
)
from explorer.methods import USUAL, choices, label_of, names_in, transforms_label
from explorer.methods.evaluate import (
    MOST_TOKENS,
    Outcome,
    evaluate_all,
    halves,
    most_telling_transform,
    summary,
)
from explorer.methods.llm_int8 import outlier_columns
from explorer.methods.recipe import Recipe
from explorer.models.capture import capture, linear_layers, save_captured
from explorer.models.evaluate import MODEL, calibration_texts

OF = Select(
    key="of",
    label="Layer and its inputs",
    usual=THIS,
    chips=True,
    options={THIS: "this tensor", BUILTIN: "built in", FILE: "my file", TEXT: "a model on my text"},
)
SAMPLE = Select(
    key="of_sample",
    label="Built-in layer of all-MiniLM-L6-v2",
    usual="mlp_up",
    options={name: label for name, (label, _) in LAYERS.items()},
)
MODEL_PLACE = TextInput(key="of_model", label="Model: folder or Hub id", usual=MODEL)
TOKENS = IntegerInput(key="of_tokens", label="Tokens to keep", usual="512", low=2, high=MOST_TOKENS)
TEXTS = TextInput(
    key="of_text",
    label="Text, one document per line; the model reads them in order until enough tokens are kept",
    usual="\n".join(calibration_texts()),
    most=60_000,
    lines=4,
    linked=False,
)
METHODS = MultiSelect(key="methods", label="Methods", usual=",".join(USUAL), options=choices())
UNDER = TextInput(
    key="under", label="Schemes, separated by commas", hint="A and B", most=2000, about="Empty: A and B"
)
INPUTS = Select(
    key="inputs_as", label="Inputs", options={name: label for label, name in INPUT_SCHEMES.items()}
)
LAYER = Select(key="of_layer", label="Layer", options={})
LINEAR = Select(key="of_linear", label="Linear layer", options={})
"""Layers of the uploaded file and of the model: they are offered once those are known."""

HEADS = ("method", "scheme", "output SQNR dB", "output error %", "weight SQNR dB", "bits", "seconds",
         "what it does")  # fmt: skip
FIGURES = ("bars", "objectives", "channels", "film", "columns", "inputs-map", "weights-map")
MOST_COLUMNS_NAMED = 8


def view(query: Query) -> Shown:
    """Show the visitor's results of methods for this tensor."""
    shown = dict.fromkeys(("layers", "table", "sentence", "files"), "")
    if OF.of(query) == FILE and query.get("of_file"):
        names = layers_in(_file(query))
        shown["layers"] = LAYER.markup(query.get("of_layer"), usual=names[0], options={n: n for n in names})
    owner = visit().method_results
    if owner is None or owner.tensor not in (None, tensor_key(query.record)):
        return shown | {f"methods-{name}": "" for name in FIGURES}
    for name in ("sentence", "files"):  # these stay as the run has left them
        del shown[name]
    return shown | {"table": _table(owner, query.record)}


def _file(query: Query) -> str:
    """The path of the visitor's file with a layer."""
    if not query.get("of_file"):
        raise SourceError("upload a file with a layer first")
    return str(uploads.of_visitor(query["of_file"]))


# --- a layer of a model -------------------------------------------------------------------------------------


def list_linear(query: Query) -> Iterator[Shown]:
    """List the linear layers of the model."""
    names = linear_layers(runnable_model(MODEL_PLACE.of(query)))
    if not names:
        raise SourceError(f"{MODEL_PLACE.of(query)} has no linear layers")
    usual, offered = names[len(names) // 2], {name: name for name in names}
    yield {
        "linear": LINEAR.markup(query.get("of_linear"), usual=usual, options=offered),
        "status": html.status(f"{len(names)} linear layers"),
    }


def run_capture(query: Query) -> Iterator[Shown]:
    """Run the model on the text and keep the layer's inputs: the file of the visitor, for the methods and to
    download."""
    lines, most, place = documents(TEXTS.of(query)), tokens_to_keep(TOKENS.of(query)), MODEL_PLACE.of(query)
    yield {"status": html.status(f"Loading {place} …")}
    model = runnable_model(place)
    names = linear_layers(model)
    layer = query.get("of_linear") or names[len(names) // 2]
    if layer not in names:
        raise SourceError(f"{place} has no linear layer {layer!r}: list its layers and choose one")
    yield {"status": html.status(f"Running {len(lines)} texts through {model.name} …")}
    (captured,) = capture(model, lines, [layer], most)
    path = fresh_folder() / "captured.safetensors"
    save_captured([captured], path)
    visit().captured = path
    shape, kept = "×".join(map(str, captured.weight.shape)), len(captured.activations)
    yield {
        "status": html.status(f"{layer}: weight {shape}, {kept} tokens kept. Run the methods."),
        "captured": html.downloads([path]),
    }


# --- methods ------------------------------------------------------------------------------------------------


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


def run(query: Query) -> Iterator[Shown]:
    """Round the layer by every method under every scheme, A and B if none is named; half of its inputs
    calibrate, the other half measures the error of its output. Stopping keeps what is there."""
    here, kind, methods = query.record, OF.of(query), METHODS.of(query)
    if not methods:
        raise ValueError("choose at least one method")
    texts = [text.strip() for text in UNDER.of(query).split(",") if text.strip()]
    schemes = schemes_of(texts) if texts else [recipe.scheme for recipe in here.recipes]
    own = kind == THIS or (kind == BUILTIN and (here.source, here.sample) == ("builtin", SAMPLE.of(query)))
    file = _file(query) if kind == FILE else None
    captured = visit().captured
    found = chosen_layer(
        kind, SAMPLE.of(query), file, str(captured) if captured else None, query.get("of_layer"), here
    )
    layer = LayerData(*found, here if own else None)
    check_cost(methods, layer.weight)
    of_inputs = Scheme.parse(INPUTS.of(query)) if INPUTS.of(query) else None
    with room(bytes_of(layer.weight, methods=methods)):
        yield from _outcomes(layer, methods, list(dict.fromkeys(schemes))[:MOST_SCHEMES], of_inputs, here)


def _outcomes(
    layer: LayerData, methods: list[str], schemes: list[Scheme], of_inputs: Scheme | None, chosen: Record
) -> Iterator[Shown]:
    total, longest = len(methods) * len(schemes), limits.current().run_seconds
    end, outcomes = time.monotonic() + longest, list[Outcome]()
    yield {"status": html.status(f"0 of {total} · now {label_of(methods[0])} on {layer.label}")}
    for outcome in locked_steps(evaluate_all(methods, schemes, layer.weight, layer.inputs, of_inputs)):
        outcomes.append(outcome)
        if layer.here and outcome.layer and of_inputs is None:
            keep_layer(layer.here, Recipe.parse(recipe_text(outcome)), outcome.layer)
        last, late = len(outcomes) == total, time.monotonic() > end
        words = f"{len(outcomes)} of {total} · {layer.label}: {outcome.label}, {outcome.scheme_label}"
        words += f": {outcome.refused}" if outcome.refused else ""
        if late and not last:
            words = f"Stopped after {longest:.0f} s, the time limit of a run here. {words}"
        visit().method_results = owner = layer.owner(outcomes)
        shown = {"status": html.status(words), "table": _table(owner, chosen)}
        yield {**shown, **_shown(layer, outcomes, last or late)}
        if late:
            return


def _shown(layer: LayerData, outcomes: list[Outcome], finished: bool) -> Shown:
    """Figures and files of the methods so far. The figures of one outcome alone, which are large, are sent
    when it comes, and all of them at the end."""
    x, label, before = layer.inputs, layer.label, outcomes[:-1]
    fresh = finished or not before
    lines = [dict(zip(HEADS, (cell.text for cell in _line(o)), strict=True)) for o in outcomes]
    film, transformed = _with_snapshots(outcomes), most_telling_transform(outcomes)
    shown: dict[str, str | go.Figure] = {
        "sentence": html.sentence(_summary(outcomes, x)),
        "methods-bars": output_figure(outcomes, label),
        "methods-objectives": objective_figure(outcomes, label),
        "methods-channels": channel_error_figure(outcomes, label),
        "files": html.downloads(write_table(f"methods {label}", lines, [o.record() for o in outcomes])),
    }
    if fresh or film is not _with_snapshots(before):
        shown["methods-film"] = snapshots_figure(film, layer.weight, label)
    if fresh or transformed is not most_telling_transform(before):
        shown |= _before_and_after(layer, transformed)
    return shown


def _before_and_after(layer: LayerData, transformed: Outcome | None) -> dict[str, go.Figure]:
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
        "methods-columns": channels_figure(held, w, held_after, w_after, label),
        "methods-inputs-map": before_after_figure(held, held_after, "token", how, label),
        "methods-weights-map": before_after_figure(w, w_after, "output channel", how, label),
    }


def recipe_text(outcome: Outcome) -> str:
    """Text form of an outcome as scheme A or B."""
    return str(Recipe.parse(f"{outcome.scheme}+{outcome.method}"))


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


def _table(owner: Owner, chosen: Record) -> str:
    """The results as a table; those of the selected tensor can be taken over as A or B."""
    rows = [("" if o.refused else recipe_text(o), _line(o)) for o in owner.outcomes]
    pair = None if owner.tensor is None else (chosen.scheme, chosen.second)
    of = "" if pair else f"These results are of {owner.label}: run this tensor’s to take one over."
    return html.scheme_table("methods", HEADS, rows, pair) + html.note(of)


def _line(o: Outcome) -> list[html.Cell]:
    """One line of the table, in the order of ``HEADS``; a refusal has no numbers, and says why."""
    numbers = (o.output_sqnr_db, 100 * o.output_error, o.weight_sqnr_db, o.bits, o.seconds)
    words = f"refused: {o.refused}" if o.refused else " and ".join(row.why for row in names_in(o.method))
    cells = (html.Cell.of(None if o.refused else number) for number in numbers)
    return [html.Cell(o.label), html.Cell(o.scheme_label), *cells, html.Cell(words)]


SECTION = Section(
    name="methods",
    title="Rounding",
    follows=(*SELECTION, "of_file", "of_layer", "of_linear"),
    controls=(OF, SAMPLE, MODEL_PLACE, TOKENS, TEXTS, METHODS, UNDER, INPUTS),
    view=view,
    runs={"methods": run, "linear": list_linear, "capture": run_capture},
)
