"""Commands from a model to a smaller one: survey its layers, choose a scheme for each, check, write."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.checkpoints.inputs import INPUTS, check_inputs, check_scheme, inputs_of, is_fixed
from explorer.checkpoints.targets import check_target
from explorer.cli.commands import Command, examples_of
from explorer.cli.options import (
    MODELS,
    TEXT_FILE,
    Device,
    Json,
    Revision,
    TextOptions,
    check_model,
    check_readable,
    check_suffix,
    split,
    use_device,
)
from explorer.cli.output import (
    PrintedTable,
    emit,
    hide_bars_of_transformers,
    print_json,
    print_table,
    reporting,
    say,
)
from explorer.paths import check_new_folder
from explorer.words import byte_size

if TYPE_CHECKING:
    from explorer.analysis.cache import CachePlan
    from explorer.checkpoints.write import Written
    from explorer.models.capture import Model
    from explorer.schemes import Scheme
    from explorer.survey import Choice, Frontier, ModelRecipe, Survey
    from explorer.survey.check import Check
    from explorer.survey.times import StepTimes

app = typer.Typer()
examples = partial(examples_of, "explorer")
_HOW: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(TextOptions)}
Column, SequenceLength, Samples = _HOW["column"], _HOW["sequence_length"], _HOW["samples"]
SIGNALS = ("weight", "fisher_diagonal")
"""The rows of ``SENSITIVITIES``, whose module imports torch."""
RecipeFile = Annotated[str, typer.Argument(metavar="RECIPE", help="A file that `explorer recipe` wrote.")]
ImatrixFile = Annotated[
    str | None,
    typer.Option(
        "--imatrix",
        metavar="FILE",
        help="Importances of columns that weigh the rounding of GGUF's types, from `explorer imatrix` or "
        "llama-imatrix (.gguf or .dat).",
        show_default="none",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Folder or Hub id.", show_default="the recipe's own")
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        help=f"Texts that methods see layers' inputs of: {TEXT_FILE}.",
        show_default="built-in texts",
    ),
]


CacheOption = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="KEYS/VALUES",
        help="Store the cache of keys and values by these schemes when the model runs; an empty one stays "
        "exact. One scale a tensor (fp8_e4m3_tensor) is fixed for each layer, by calibration texts.",
        show_default="stored exactly, or as the recipe says",
    ),
]
Recent = Annotated[int, typer.Option("--recent", min=0, help="Last tokens of the cache that stay exact.")]
Rotated = Annotated[
    bool, typer.Option("--rotated", help="Multiply the cache by a Hadamard matrix within each head first.")
]


@app.command(
    rich_help_panel=MODELS,
    epilog=examples(
        "survey path/to/model --text text.txt --out model.jsonl",
        "survey path/to/model --methods gptq --out model.jsonl",
        "survey path/to/model --schemes nvfp4,mxfp4,int8_row --signal weight",
    ),
)
def survey(
    model: Annotated[str, typer.Argument(help="A model folder, a Hub id (owner/name) or a .gguf file.")],
    text: Annotated[
        str | None,
        typer.Option(help=f"Texts to calibrate by: {TEXT_FILE}.", show_default="built-in texts"),
    ] = None,
    column: str | None = Column,
    sequence_length: int | None = SequenceLength,
    samples: int | None = Samples,
    schemes: Annotated[
        str | None, typer.Option(help="Comma-separated schemes.", show_default="fourteen from 2.3 to 8 bits")
    ] = None,
    signal: Annotated[
        str | None,
        typer.Option(
            help=f"Comma-separated: {', '.join(SIGNALS)}.",
            show_default="fisher_diagonal, or weight where the model cannot be run",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="The file, a JSON line a layer.", show_default="MODEL.survey.jsonl")
    ] = None,
    include: Annotated[
        str | None,
        typer.Option(
            help="Linear layers beside the language part (vision, sound) that are surveyed too: parts of "
            "names or patterns, comma-separated."
        ),
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Layers that stay as they are: parts of names or patterns.")
    ] = None,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings/--no-embeddings",
            help="Survey the table of tokens' embeddings too, which is also the head where both are tied.",
        ),
    ] = True,
    methods: Annotated[
        str,
        typer.Option(
            help="Also predict what these methods leave of each layer's loss: then a recipe chooses a "
            "method for each layer. Comma-separated, of those that choose codes alone: gptq, gptq_order, "
            "gptq_sequential, autoround, …",
            show_default="round to nearest alone",
        ),
    ] = "",
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Layers as tasks of the Ray at this address; local starts one here, auto finds one.",
            show_default="layer after layer, here",
        ),
    ] = None,
    revision: Revision = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Survey every linear layer of a model, its head and its embeddings with every scheme: size and loss. A
    stopped survey continues when the same command is given again.
    """
    check_model(model)
    for name in split(signal) if signal is not None else ():
        if name not in SIGNALS:
            raise ValueError(f"no signal {name!r}; there are {', '.join(SIGNALS)}")
    path = _survey_file(model, out)
    check_readable(text)
    (texts,) = TextOptions(column, sequence_length, samples).read(text)
    hide_bars_of_transformers(as_json)
    from explorer.checkpoints.tiny import note_of
    from explorer.survey.cluster import on_ray
    from explorer.survey.run import SCHEMES, SurveyPlan, in_this_process, survey_model

    plan = SurveyPlan(
        model,
        revision,
        SCHEMES if schemes is None else tuple(split(schemes)),
        None if signal is None else tuple(split(signal)),
        texts,
        tuple(split(include)) if include else (),
        tuple(split(exclude)) if exclude else (),
        embeddings,
        tuple(split(methods)) if methods else (),
    )
    say(*note_of(model, revision), error=True)
    use_device(device)
    rows = on_ray(ray) if ray else in_this_process
    try:
        with reporting("running the model", as_json) as ran, reporting("layers", as_json, later=True) as done:
            found = survey_model(plan, path, progress=done, run_progress=ran, rows=rows)
    except KeyboardInterrupt:
        say(_kept_of(path), error=True)
        raise
    if as_json:
        print_json({"file": str(path), "head": found.head, "layers": found.layers})
        return
    _print_survey(found)
    say(f"written: {path}")


def _kept_of(path: Path) -> str:
    """What a stopped survey leaves in its file, and how to go on."""
    from explorer.survey import load_survey

    try:
        found = load_survey(path)
    except (ValueError, OSError):
        return "no layer was done yet: the same command begins anew"
    done, of = len(found.layers), found.head.layers
    return f"{path} keeps {done:,} of {of:,} layers: the same command runs the model again and does the rest"


def _survey_file(model: str, out: str | None) -> Path:
    """Return the path of the survey; ``ValueError`` before any work if it cannot be written."""
    path = Path(out) if out else Path(f"{Path(model).name or 'model'}.survey.jsonl")
    _check_out_file(path)
    return path


def _check_out_file(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise ValueError(f"--out {path} is no regular file; it is not replaced")


def _print_survey(found: Survey) -> None:
    """Single schemes for all layers, and where the damage is."""
    from explorer.survey import SENSITIVITIES, Constraints, frontier
    from explorer.survey.sentences import kept, rarely_reached

    row = SENSITIVITIES[found.head.default]
    if found.head.why:
        say(
            f"the model was not run: {found.head.why} (to try again, name another file by --out)",
            error=True,
        )
    if not row.is_loss:
        say(f"{row.label}: {row.trust}", error=True)
    if left := kept(found) + rarely_reached(found):
        say(left.strip(), error=True)
    front, rounded = frontier(found), frontier(found, constraints=Constraints(methods=()))
    columns = ["one scheme for all layers", "bits", _loss_words(found, row.is_loss)]
    rows = [[point.scheme, point.bits, point.loss] for point in rounded.uniform]
    if found.head.methods:
        columns.append("each layer by its best method")
        rows = [[*cells, point.loss] for cells, point in zip(rows, front.uniform, strict=True)]
    print_table(PrintedTable(tuple(columns), [tuple(cells) for cells in rows]))
    say(
        f"{len(found.linear)} layers of {found.head.model}; a recipe: `explorer recipe`, --bits from "
        f"{front.least:.2f} to {front.most:.2f}"
    )


def _loss_words(found: Survey, is_loss: bool) -> str:
    return f"predicted loss ({found.head.loss})" if is_loss else "error, not a loss"


@app.command(
    cls=Command,
    rich_help_panel=MODELS,
    epilog=examples(
        "recipe model.jsonl --bits 4.5 --out recipe.json",
        "recipe model.jsonl --size 3.2GB --keep down_proj --for compressed-tensors",
        "recipe model.jsonl --bits 8.1 --for vllm --inputs int8_row --keep-inputs down_proj --out w8a8.json",
        "recipe model.jsonl --time 12ms --batch 16 --for vllm --out fast.json",
    ),
)
def recipe(
    survey: Annotated[str, typer.Argument(metavar="SURVEY", help="A file that `explorer survey` wrote.")],
    bits: Annotated[
        float | None, typer.Option(help="The budget: mean bits per weight, scales counted.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Or the size of the whole model, e.g. 3.2GB: with --for the size of the target's files, "
            "where the model is on this machine; else all other tensors count as they are stored."
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="Or the time of all linear layers in one step, such as 12ms or 800us: measured on this "
            "machine's GPU, or without one as recorded on a named GPU. Attention, norms and sampling are not "
            "counted: they take the same time under every recipe."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="With --time: tokens of the step, one of each text.", show_default="1"),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--for", help="Only schemes that a checkpoint format carries together: {EXPORTS}."),
    ] = None,
    schemes: Annotated[
        str | None, typer.Option(help="Only these schemes, comma-separated.", show_default="the survey's")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Layers left as they are: parts of names or patterns, comma-separated.")
    ] = None,
    inputs: Annotated[
        str,
        typer.Option(
            help=f"Also quantize the layers' inputs, by {', '.join(INPUTS)}: then only schemes that are "
            "multiplied with such inputs are chosen. The last three have one fixed scale a layer, which "
            "texts are run for.",
            show_default="not quantized",
        ),
    ] = "",
    keep_inputs: Annotated[
        str | None,
        typer.Option(
            "--keep-inputs",
            help="With --inputs: layers that keep their inputs, and any scheme; named as for --keep.",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="One method for all layers, in place of those that the survey chooses by layer: {METHODS}.",
            show_default="the survey's (--methods), else round to nearest",
        ),
    ] = "",
    out: Annotated[str | None, typer.Option(help="Write the recipe to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """The best scheme for each layer within a budget, by a survey."""
    seconds = _check_budget(bits, size, time, batch)
    check_readable(survey)
    if target:
        check_target(target)
    if keep_inputs and not inputs:
        raise ValueError("--keep-inputs names layers whose inputs --inputs does not quantize: give --inputs")
    if out is not None:
        _check_out_file(Path(out))
    quantized = _inputs_scheme(inputs)
    from explorer.survey import Constraints, frontier, load_survey, recipe_of
    from explorer.survey.carried import target_of, unplaced
    from explorer.survey.sentences import kept_words, slightly_more

    found = load_survey(survey)
    left = unplaced(target, found) if target else {}
    constraints = Constraints(
        schemes=tuple(split(schemes)) if schemes else (),
        target=target_of(target or ""),
        keep=(*(split(keep) if keep else ()), *left),
        inputs=quantized,
        keep_inputs=tuple(split(keep_inputs)) if keep_inputs else (),
        times=_times(batch or 1) if seconds is not None else None,
        methods=() if method else None,
    )
    front = frontier(found, constraints=constraints)
    _hint_at_schemes(target, found, front)
    left |= front.left
    say(*kept_words(left), error=True)
    if size is not None:
        bits = front.bits_of(byte_size(size))
    choice = front.at(bits) if bits is not None else front.at_time(seconds or 0.0)
    chosen = recipe_of(found, choice, method=method, constraints=constraints)
    if target:
        _check_together(target, chosen, constraints.schemes or found.head.schemes)
    if out:
        chosen.save(out)
    if as_json:
        found_out = {"refused": front.refused, "left": left, "file": out}
        print_json({"recipe": _record(chosen), "choice": choice, **found_out})
        return
    _print_recipe(found, front, choice, chosen)
    if bits is not None and (more := slightly_more(front, choice, bits)):
        say(more)
    _say_methods(found, choice, method)
    say(f"written: {out}" if out else "not written: name a file by --out")


FEW_SCHEMES = 3
"""A survey with fewer that a target carries leaves a recipe little to choose from."""


def _hint_at_schemes(target: str | None, found: Survey, front: Frontier) -> None:
    """Say that a survey has few schemes for ``target``, and which its users take."""
    if not target:
        return
    from explorer.checkpoints.targets import export_of

    carried = [name for name in found.head.schemes if name not in front.refused]
    missing = [name for name in export_of(target).usual if name not in found.head.schemes]
    if len(carried) < FEW_SCHEMES and missing:
        say(
            f"{target} carries {len(carried)} of the {len(found.head.schemes)} surveyed schemes; a survey "
            f"with --schemes {','.join([*carried, *missing])} gives more to choose from",
            error=True,
        )


def _check_together(target: str, chosen: ModelRecipe, schemes: Sequence[str]) -> None:
    """``ValueError`` if ``target`` cannot carry these layers in one model; asked where its files are here. It
    advises fewer of ``schemes`` where one of them alone is carried."""
    from explorer.checkpoints import EXPORTS, Plan
    from explorer.checkpoints.model import ModelFolder
    from explorer.methods.recipe import Recipe
    from explorer.models.files import folder_of
    from explorer.schemes import Scheme
    from explorer.survey.check import asked_inputs

    try:
        folder = ModelFolder(folder_of(chosen.model, chosen.revision))
    except ValueError as error:
        say(f"not asked whether {target} carries these schemes together: {error}", error=True)
        return

    def together(layers: Mapping[str, Recipe]) -> str:
        asked = asked_inputs(chosen)
        coded = Plan(folder, layers, asked).input_schemes.items()
        unknown = {name: 1.0 for name, inputs in coded if is_fixed(inputs)}  # until texts are run
        return EXPORTS[target].together(Plan(folder, layers, asked, unknown))

    if why := together(chosen.layers):
        alone = (dict.fromkeys(chosen.layers, Recipe(Scheme.parse(text))) for text in schemes)
        helped = any(not together(layers) for layers in alone)
        hint = " (--schemes names those to choose from)" if helped else ""
        raise ValueError(f"{target}: {why}{hint}")


def _inputs_scheme(text: str) -> Scheme | None:
    """The scheme of inputs called ``text``, or written out in full; ``ValueError`` for another one."""
    if not text:
        return None
    if "~" not in text:
        check_inputs(text)
        return inputs_of(text)
    from explorer.schemes import Scheme

    check_scheme(scheme := Scheme.parse(text))
    return scheme


def _check_budget(bits: float | None, size: str | None, time: str | None, batch: int | None) -> float | None:
    """The seconds of a budget of time, None of another one; ``ValueError`` unless there is one budget."""
    if sum(budget is not None for budget in (bits, size, time)) != 1:
        raise ValueError("name one budget: --bits, --size or --time")
    if batch is not None and time is None:
        raise ValueError("--batch is of a budget of time: give --time")
    if size is not None and not byte_size(size):
        raise ValueError("--size is the size of the whole model, more than 0 bytes")
    if time is None:
        return None
    from explorer.survey.times import seconds_of

    return seconds_of(time)


def _times(batch: int) -> StepTimes:
    """Times of products on this machine's GPU, or without one those of the recorded GPU."""
    from explorer.core.backend import gpu_device
    from explorer.survey.times import recorded_times

    if gpu_device() is None:
        return recorded_times("", batch)
    from explorer.bench.layers import times_here

    return times_here(batch)


def _record(chosen: ModelRecipe) -> dict[str, object]:
    layers = {name: str(one) for name, one in chosen.layers.items()}
    cache = {"cache": chosen.cache.described if chosen.cache else ""}
    own = {name: str(inputs or "") for name, inputs in chosen.own_inputs.items()}
    inputs = {"inputs": str(chosen.inputs or ""), "own_inputs": own}
    kept = {name: value for name, value in vars(chosen).items() if name != "input_schemes"}
    return {**kept, "layers": layers, **inputs, **cache}


def _cache_plan(pair: str | None, recent: int, rotated: bool) -> CachePlan | None:
    """How --cache stores keys and values, None without it; ``ValueError`` for options of it alone."""
    if pair is None:
        if recent or rotated:
            raise ValueError("--recent and --rotated say how --cache KEYS/VALUES stores: give that too")
        return None
    from explorer.analysis.cache import CachePlan

    return CachePlan.parse(pair, recent, rotated)


def _print_recipe(found: Survey, front: Frontier, choice: Choice, chosen: ModelRecipe) -> None:
    from explorer.survey import SENSITIVITIES
    from explorer.survey.apply import inputs_words, weights_alone
    from explorer.survey.sentences import between_words
    from explorer.words import bytes_

    rows = []
    for name, one in chosen.layers.items():
        layer, scheme = found.layer(name), choice.schemes[name]
        cost = layer.cost(front.signal, scheme, choice.methods.get(name, ""))
        share = f"{100 * cost / max(choice.loss, 1e-300):.1f} %"
        inputs = [str(chosen.input_schemes.get(name, ""))] if chosen.own_inputs else []
        rows.append((name, str(one), *inputs, layer.bits[scheme], cost, share))
    row, columns = SENSITIVITIES[front.signal], ["inputs"] if chosen.own_inputs else []
    print_table(PrintedTable(("layer", "recipe", *columns, "bits of codes", "cost", "share"), rows))
    for name, why in front.refused.items():
        say(f"left out: {name}: {why}", error=True)
    total = bytes_(front.kept_bytes + choice.bytes)
    files = f" in files for {chosen.target}" if chosen.target else ""
    size = f"{choice.bits:.4g} bits per weight{files}, {bytes_(choice.bytes)} of codes and scales"
    grown = chosen.target and any(x.growth for x in found.layers if x.name not in chosen.layers)
    rest = "its codes restored to 16 bits" if grown else "the rest of it as it is stored"
    if front.in_files:
        other = f"{bytes_(front.kept_bytes)} are of other tensors and headers"
        rest = f"in files of at most that size: {other}{', its codes restored to 16 bits' if grown else ''}"
    say(f"{size}; the model {total}, {rest}")
    between = between_words(chosen.predicted_interval)
    alone = weights_alone(bool(chosen.input_schemes), chosen.cache)
    say(
        f"{_loss_words(found, row.is_loss)} by {front.signal}: {choice.loss:.4g}{between}{alone}; "
        f"no choice of this size has less than {choice.loss - choice.gap:.4g}"
    )
    if chosen.input_schemes:
        say(f"inputs: {inputs_words(chosen)}")
    if chosen.cache is not None:
        say(f"cache: {chosen.cache.described}")
    if chosen.predicted_time is not None:
        say(chosen.predicted_time.described)
    if not row.is_loss:
        say(f"{row.label}: {row.trust}", error=True)


def _say_methods(found: Survey, choice: Choice, method: str) -> None:
    """Say which methods a recipe has: one for all layers, or by layer."""
    from explorer.methods import label_of
    from explorer.survey.sentences import methods_words

    if method:
        instead = ", not the survey's by layer" if found.head.methods else ""
        said = f"method: {label_of(method)} for all layers{instead}; the prediction is of rounding to nearest"
    elif found.head.methods:
        said = methods_words(choice) or "methods: none loses less than round to nearest"
    else:
        advice = "a survey with --methods gptq_sequential gives recipes that choose a method for each layer"
        said = f"rounded to nearest; {advice}" if found.head.loss else ""
    if said:
        say(said)


@app.command(
    rich_help_panel=MODELS,
    epilog=examples("check recipe.json --text held-out.txt --survey model.jsonl"),
)
def check(
    recipe: RecipeFile,
    text: Annotated[
        str | None,
        typer.Option(help=f"Texts not calibrated by: {TEXT_FILE}.", show_default="built-in texts"),
    ] = None,
    survey: Annotated[
        str | None, typer.Option(help="The recipe's survey: predictions of what it stands beside.")
    ] = None,
    model: ModelOption = None,
    calibration: Calibration = None,
    imatrix: ImatrixFile = None,
    cache: CacheOption = None,
    recent: Recent = 0,
    rotated: Rotated = False,
    column: str | None = Column,
    sequence_length: int | None = SequenceLength,
    samples: int | None = Samples,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run the model quantized by a recipe: its true loss, the prediction, and single schemes.

    Of a recipe for a budget of time, on a GPU, also the time that its linear layers take.
    """
    for path in (recipe, survey, text, calibration, imatrix):
        check_readable(path)
    cached = _cache_plan(cache, recent, rotated)
    texts, seen = TextOptions(column, sequence_length, samples).read(text, calibration)
    hide_bars_of_transformers(as_json)
    from explorer.survey import load_survey
    from explorer.survey.check import check_recipe, other_texts

    chosen = _load(recipe, cached)
    of = load_survey(survey) if survey else None
    loaded = _model(chosen, model, device)
    with reporting("models", as_json) as progress:
        checked = check_recipe(chosen, loaded, texts, of, seen, progress, imatrix)
    if unlike := other_texts(chosen, seen, loaded.causal):
        say(unlike, error=True)
    if chosen.predicted_time is not None:
        from explorer.bench.layers import checked_time

        checked = dataclasses.replace(checked, time=checked_time(chosen, loaded))
    rows = [
        (
            row.what,
            row.name,
            row.bits,
            row.predicted,
            *(row.predicted_interval or (None, None)),
            row.loss.value,
            row.loss.low,
            row.loss.high,
            *row.loss.scores.values(),
        )
        for row in checked.rows
    ]
    scores = (name.replace("_", " ") for name in checked.rows[0].loss.scores)
    predicted = "predicted, weights" if checked.weights_alone else "predicted"
    columns = ("", "by", "bits", predicted, "from", "to", "loss", "from", "to", *scores)
    emit(as_json, checked, PrintedTable(columns, rows))
    if as_json:
        return
    if checked.rows[0].loss.kinds:
        print_table(_by_kind(checked))
    say(*_verdict(checked))


def _by_kind(checked: Check) -> PrintedTable:
    """The loss of each model on each kind of text."""
    rows = [
        (kind, row.what, row.name, loss.texts, loss.value, loss.low, loss.high, *loss.scores.values())
        for kind in checked.rows[0].loss.kinds
        for row in checked.rows
        for loss in (row.loss.kinds[kind],)
    ]
    scores = (name.replace("_", " ") for name in checked.rows[0].loss.scores)
    return PrintedTable(("kind of text", "", "by", "texts", "loss", "from", "to", *scores), rows)


def _verdict(checked: Check) -> tuple[str, str]:
    from explorer.survey.sentences import part_run, texts_run, truth

    loss = checked.rows[0].loss
    unit = "nats of KL a token" if loss.kind == "next token" else "mean of 1 − cosine of embeddings"
    return (
        f"loss: {unit}, over {texts_run(loss.texts, loss.left_out)}, {loss.tokens:,} tokens"
        f"{part_run(checked.part)}; 95 % interval over texts",
        truth(checked),
    )


def _load(path: str, cached: CachePlan | None = None) -> ModelRecipe:
    """The recipe of a file, with another cache if given."""
    from explorer.survey import ModelRecipe

    found = ModelRecipe.load(path)
    return found if cached is None else dataclasses.replace(found, cache=cached)


def _model(chosen: ModelRecipe, where: str | None, device: str | None) -> Model:
    """The recipe's model with its head; ``ValueError`` if its weights are not those of the recipe."""
    from explorer.models.capture import load_model
    from explorer.models.files import check_weights

    place = where or chosen.model
    check_weights(chosen, place)
    return load_model(place, chosen.revision, use_device(device), head=True)


@app.command(
    cls=Command,
    rich_help_panel=MODELS,
    epilog=examples(
        "apply recipe.json --to compressed-tensors --out path/to/folder",
        "apply recipe.json --to gguf --imatrix model.imatrix.gguf --out path/to/folder",
        "apply recipe.json --to gguf --base model-BF16.gguf --out path/to/folder",
        "apply recipe.json --to vllm --cache fp8_e4m3_tensor/fp8_e4m3_tensor --out path/to/folder",
    ),
)
def apply(
    recipe: RecipeFile,
    to: Annotated[str, typer.Option("--to", help="The checkpoint format: {EXPORTS}.")],
    out: Annotated[str, typer.Option(help="The folder to write; there must be none yet.")],
    base: Annotated[
        str | None,
        typer.Option(
            help="For gguf: a .gguf file in 16 or 32 bits, of which all but the recipe's layers is copied.",
            show_default="metadata and tensors from the model's folder",
        ),
    ] = None,
    model: ModelOption = None,
    calibration: Calibration = None,
    imatrix: ImatrixFile = None,
    cache: CacheOption = None,
    recent: Recent = 0,
    rotated: Rotated = False,
    shard_size: Annotated[
        str | None,
        typer.Option(
            help="The most bytes of a file of tensors, e.g. 2GB; for formats of safetensors files.",
            show_default="5GB",
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Upload the folder to this repository of the Hub, by the token of `hf auth login` or "
            "HF_TOKEN.",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With --push: a new repository is private.")
    ] = False,
    column: str | None = Column,
    sequence_length: int | None = SequenceLength,
    samples: int | None = Samples,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Open the folder as its card says and compare it, before it is put in place.",
            show_default="where the target's reader is installed and the model fits into memory",
        ),
    ] = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Run the checkpoint and the original on held-out texts, and put the loss into the card.",
            show_default="with --verify",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help=f"Texts to measure on: {TEXT_FILE}.", show_default="built-in texts"),
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write the model that a recipe makes as a checkpoint that other programs load."""
    if base is not None and (to != "gguf" or model is not None):
        raise ValueError(
            "--base is the .gguf file that --to gguf copies; it goes with no other format, nor --model"
        )
    if imatrix is not None and to != "gguf":
        raise ValueError("--imatrix weighs the rounding of GGUF's types: it goes with --to gguf")
    if private and push is None:
        raise ValueError("--private is of the repository that --push names")
    shard_bytes = byte_size(shard_size) if shard_size is not None else None
    required, measure = bool(measure), bool(verify and base is None) if measure is None else measure
    if measure and base is not None:
        raise ValueError("--measure runs a model's folder; a .gguf file is not run here")
    if text is not None and not measure:
        raise ValueError("--text names the texts of --measure: add that, or --verify, which measures too")
    for path in (recipe, base, calibration, imatrix, text):
        check_readable(path)
    check_target(to)
    check_new_folder(out)
    cached = _cache_plan(cache, recent, rotated)
    texts, seen = TextOptions(column, sequence_length, samples).read(text, calibration)
    hide_bars_of_transformers(as_json)
    if push is not None:
        from explorer.checkpoints.push import check_push

        check_push(push)
    chosen = _load(recipe, cached)
    if base is not None:
        written = _from_base(chosen, base, out, imatrix, verify, as_json)
    else:
        from explorer.models.files import folder_of
        from explorer.survey.apply import against_cache
        from explorer.survey.export import Wanted, export

        _say_unsaid(against_cache(chosen, to, folder_of(model or chosen.model, chosen.revision)))
        load, on = partial(_model, chosen, model, device), texts if measure else None
        first = Wanted(chosen, to, Path(out), model or "", load, seen, measured_on=on, verified=verify)
        wanted = dataclasses.replace(first, required=required or bool(text), shard_bytes=shard_bytes)
        wanted = dataclasses.replace(wanted, importances=Path(imatrix)) if imatrix else wanted
        with ExitStack() as bars:

            def phases(what: str) -> Callable[[int, int], None]:
                if what != "texts":  # those are run last
                    bars.close()
                return bars.enter_context(reporting(what, as_json, later=what == "texts"))

            written = export(wanted, phases)
    _print_written(written, push, private, as_json)


def _say_unsaid(why: str) -> None:
    """Say that the files do not say how the recipe stores keys and values."""
    if why:
        say(f"the cache of keys and values is not in these files: {why}", error=True)


def _from_base(
    chosen: ModelRecipe, base: str, out: str, imatrix: str | None, verify: bool | None, as_json: bool
) -> Written:
    """Write a recipe's layers into a copy of the GGUF file ``base``."""
    from explorer.checkpoints.gguf_base import write_from_gguf
    from explorer.survey.apply import against_cache, beside, card_of, check_target_inputs, surveyed_shapes

    check_target_inputs(chosen, "gguf")
    unsaid = against_cache(chosen, "gguf", None)
    _say_unsaid(unsaid)
    shapes = surveyed_shapes(chosen, base)
    with reporting("tensors", as_json) as progress:
        return write_from_gguf(
            Path(base),
            chosen.layers,
            Path(out),
            shapes=shapes,
            card=card_of(chosen, imatrix=Path(imatrix).name if imatrix else "", against_cache=unsaid),
            progress=progress,
            verified=verify,
            beside=beside(chosen),
            imatrix=Path(imatrix) if imatrix else None,
        )


def _print_written(written: Written, to: str | None, private: bool, as_json: bool) -> None:
    """Say what was written, and upload it to the repository ``to`` if there is one."""
    from explorer.checkpoints.push import push
    from explorer.words import bytes_

    if not as_json:
        say(f"written: {written.folder}, {bytes_(written.bytes)} in all")
        for said in (*written.notes, *([written.verified] if written.verified else [])):
            say(str(said))
    url = push(written.folder, to, private) if to else None
    if as_json:
        print_json({**vars(written), "folder": str(written.folder), "url": url})
    elif url:
        say(f"uploaded: {url}")


@app.command(
    "cache",
    rich_help_panel=MODELS,
    epilog=examples(
        "cache path/to/model --text text.txt --rotated",
        "cache path/to/model --pairs int4~32x1~asymmetric~float16~minmax/int4~1x64~asymmetric~float16~minmax",
        "cache path/to/model --schemes fp8_e4m3_cast --out cache.safetensors",
    ),
)
def cache_of(
    model: Annotated[str, typer.Argument(help="Folder or Hub id of a causal model.")],
    text: Annotated[
        str | None, typer.Option(help=f"Texts to measure on: {TEXT_FILE}.", show_default="built-in texts")
    ] = None,
    schemes: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated schemes, each for keys alone and for values alone.",
            show_default="eleven from 8 to 2 bits",
        ),
    ] = None,
    pairs: Annotated[
        str, typer.Option(help="Comma-separated KEYS/VALUES: schemes of both at the same time.")
    ] = "",
    recent: Annotated[int, typer.Option(min=0, help="Last tokens that stay exact.")] = 0,
    rotated: Annotated[
        bool, typer.Option("--rotated", help="Each also with a Hadamard matrix within each head.")
    ] = False,
    out: Annotated[
        str | None, typer.Option(help="Write keys and values of the texts to this .safetensors file.")
    ] = None,
    column: str | None = Column,
    sequence_length: int | None = SequenceLength,
    samples: int | None = Samples,
    revision: Revision = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """What a format of the cache of keys and values costs a causal model, and what it saves."""
    check_readable(text)
    check_suffix("--out", out)
    (texts,) = TextOptions(column, sequence_length, samples).read(text)
    hide_bars_of_transformers(as_json)
    from explorer.analysis.cache import CONTEXT, CachePlan
    from explorer.export.files import write_tensors
    from explorer.models.capture import load_model
    from explorer.schemes import Scheme
    from explorer.survey.cache import SCHEMES, CacheSurvey, captured_cache, each_alone
    from explorer.survey.sentences import texts_run
    from explorer.words import bytes_

    turns = (False, True) if rotated else (False,)
    alone = [Scheme.parse(name) for name in (SCHEMES if schemes is None else split(schemes))]
    plans = each_alone(alone, recent, turns)
    for pair in split(pairs) if pairs else ():
        plans += [CachePlan.parse(pair, recent, turned) for turned in turns]
    found = CacheSurvey(load_model(model, revision, use_device(device), head=True), texts)
    with reporting("caches", as_json) as progress:
        rows = list(found.rows(plans, progress))
    if out:
        write_tensors(captured_cache(found.model, found.run_on), out, {"model": found.model.name})
    exact = CachePlan()
    whole = found.shape.bytes_a_token(exact)
    ran = found.reference
    if as_json:
        run_on = {"texts": len(ran.sequences), "tokens": ran.tokens}
        print_json({"rows": rows, **run_on, "bytes_a_token": whole, "shape": found.shape})
        return
    at = f"at {CONTEXT:,} tokens"
    columns = ("of", "scheme", "rotated", "bits", "bytes a token", at, "KL (nats)", "95 %", "same token")
    lines = [
        (
            row.part,
            row.scheme,
            "yes" if row.rotated else "",
            row.bits,
            round(row.bytes_a_token),
            bytes_(row.context_bytes),
            row.kl,
            "" if row.low is None else f"{row.low:.3g} to {row.high:.3g}",
            f"{100 * row.same_top:.1f} %",
        )
        for row in rows
    ]
    print_table(PrintedTable(columns, lines))
    exactly = f"; the last {recent:,} tokens stay exact" if recent else ""
    say(
        f"KL: nats a token, over {texts_run(len(ran.sequences), ran.left_out)} of "
        f"{text or 'the built-in held-out ones'}, {ran.tokens:,} tokens; 95 % interval over texts{exactly}"
    )
    say(
        f"{len(found.shape.layers)} layers; a token takes {whole:,.0f} bytes in 16 bits, {CONTEXT:,} tokens "
        f"{bytes_(found.shape.bytes_of(exact, CONTEXT))}"
    )
    for window, count in sorted(Counter(found.shape.windows).items()):
        say(f"{count} layers keep the tokens of their sliding window alone: {window:,}")
    if out:
        say(f"written: {out}")
