"""Commands about recipes: choose a scheme for each layer of a surveyed model, run the model so, write it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from explorer.checkpoints.inputs import check_inputs, check_scheme, inputs_of, is_fixed
from explorer.checkpoints.targets import check_target
from explorer.cli.commands import add_command
from explorer.cli.options import (
    MODELS,
    Device,
    Json,
    RecipeLimits,
    TextOptions,
    check_readable,
    listed,
    parse_scheme,
    texts_option,
    use_device,
)
from explorer.cli.output import (
    PrintedTable,
    emit,
    hide_bars_of_transformers,
    reporting,
    say,
    written,
)
from explorer.cli.survey import loss_words
from explorer.paths import check_new_folder
from explorer.words import byte_size, bytes_

if TYPE_CHECKING:
    from explorer.checkpoints.write import Written
    from explorer.models.capture import Model
    from explorer.schemes import Scheme
    from explorer.survey import Choice, Constraints, Frontier, ModelRecipe, Survey
    from explorer.survey.check import Check
    from explorer.survey.export import Wanted
    from explorer.survey.times import StepTimes

app = typer.Typer()
command = partial(add_command, app, MODELS)
FEW_SCHEMES = 3
"""Number of schemes below which a survey leaves a recipe for a target little choice."""


@dataclass(frozen=True)
class RecipeOptions(RecipeLimits):
    """The budget of a recipe, and what it chooses from."""

    size: str | None = typer.Option(
        None,
        help="Or the size of the whole model, e.g. 3.2GB: with --for the size of the target's files, where "
        "the model is on this machine; else all other tensors count as they are stored.",
    )
    schemes: str | None = typer.Option(
        None, help="Only these schemes, comma-separated.", show_default="the survey's"
    )
    keep_inputs: str | None = typer.Option(
        None, help="With --inputs: layers that keep their inputs, and any scheme; named as for --keep."
    )
    method: str = typer.Option(
        "",
        help="One method for all layers, in place of those that the survey chooses by layer: {METHODS}.",
        show_default="the survey's (--methods), else round to nearest",
    )

    def __post_init__(self) -> None:
        """``ValueError`` before any work for options that do not go together."""
        if sum(budget is not None for budget in (self.bits, self.size, self.time)) != 1:
            raise ValueError("name one budget: --bits, --size or --time")
        RecipeLimits.__post_init__(self)
        if self.size is not None and not byte_size(self.size):
            raise ValueError("--size is the size of the whole model, more than 0 bytes")
        if self.target:
            check_target(self.target)
        if self.keep_inputs and not self.inputs:
            raise ValueError(
                "--keep-inputs names layers whose inputs --inputs does not quantize: give --inputs"
            )
        _inputs_scheme(self.inputs)

    def constraints(self, unplaced: Iterable[str]) -> Constraints:
        """Return the constraints of a choice; ``unplaced`` layers stay as they are."""
        from explorer.survey import Constraints
        from explorer.survey.carried import target_of

        return Constraints(
            schemes=listed(self.schemes),
            target=target_of(self.target),
            keep=(*listed(self.keep), *unplaced),
            inputs=_inputs_scheme(self.inputs),
            keep_inputs=listed(self.keep_inputs),
            times=_times(self.batch or 1) if self.time is not None else None,
            methods=() if self.method else None,
        )

    def choice(self, front: Frontier) -> tuple[Choice, str]:
        """Return the choice within the budget, and a line on a slightly larger budget if that is worth it."""
        from explorer.survey.sentences import slightly_more
        from explorer.survey.times import seconds_of

        if self.time is not None:
            return front.at_time(seconds_of(self.time)), ""
        bits = self.bits if self.size is None else front.bits_of(byte_size(self.size))
        choice = front.at(bits or 0.0)
        return choice, slightly_more(front, choice, bits or 0.0)


def _inputs_scheme(text: str) -> Scheme | None:
    """Return the scheme of inputs called ``text``, or spelled out; ``ValueError`` for another one."""
    if not text:
        return None
    if "~" not in text:
        check_inputs(text)
        return inputs_of(text)
    check_scheme(scheme := parse_scheme(text))
    return scheme


def _times(batch: int) -> StepTimes:
    """Return times of products on this machine's GPU, or without one those of the recorded GPU."""
    from explorer.core.backend import gpu_device
    from explorer.survey.times import recorded_times

    if gpu_device() is None:
        return recorded_times(batch)
    from explorer.bench.layers import times_here

    return times_here(batch)


@command(
    "recipe model.jsonl --bits 4.5 --out recipe.json",
    "recipe model.jsonl --size 3.2GB --keep down_proj --for compressed-tensors",
    "recipe model.jsonl --bits 8.1 --for vllm --inputs int8_row --keep-inputs down_proj --out w8a8.json",
    "recipe model.jsonl --time 12ms --batch 16 --for vllm --out fast.json",
)
def recipe(
    asked: RecipeOptions,
    survey: str = typer.Argument(metavar="SURVEY", help="A file that `explorer survey` wrote."),
    out: str | None = typer.Option(None, help="Write the recipe to this JSON file."),
    as_json: Json = False,
) -> None:
    """The best scheme for each layer within a budget, by a survey."""
    check_readable(survey)
    from explorer.survey import SENSITIVITIES, frontier, load_survey, recipe_of
    from explorer.survey.carried import unplaced
    from explorer.survey.sentences import kept_words

    found, target = load_survey(survey), asked.target
    left = unplaced(target, found) if target else {}
    constraints = asked.constraints(left)
    front = frontier(found, constraints=constraints)
    left |= front.left
    if target:
        say(*_hint_at_schemes(target, found, front), error=True)
    say(*kept_words(left), error=True)
    choice, more = asked.choice(front)
    chosen = recipe_of(found, choice, method=asked.method, constraints=constraints)
    if target:
        _check_together(target, chosen, constraints.schemes or found.head.schemes)
    if out:
        chosen.save(out)
    if not as_json:
        row = SENSITIVITIES[front.signal]
        say(*(f"left out: {name}: {why}" for name, why in front.refused.items()), error=True)
        say(*([] if row.is_loss else [f"{row.label}: {row.trust}"]), error=True)
    emit(
        as_json,
        {"recipe": _record(chosen), "choice": choice, "refused": front.refused, "left": left, "file": out},
        _layer_table(found, front, choice, chosen),
        *_recipe_words(found, front, choice, chosen),
        more,
        _methods_words(found, choice, asked.method),
        written(out) or "not written: name a file by --out",
    )


def _hint_at_schemes(target: str, found: Survey, front: Frontier) -> list[str]:
    """Warn that a survey has few schemes for ``target``, and name the target's usual ones."""
    from explorer.checkpoints.targets import export_of

    carried = [name for name in found.head.schemes if name not in front.refused]
    missing = [name for name in export_of(target).usual if name not in found.head.schemes]
    if len(carried) >= FEW_SCHEMES or not missing:
        return []
    return [
        f"{target} carries {len(carried)} of the {len(found.head.schemes)} surveyed schemes; a survey with "
        f"--schemes {','.join([*carried, *missing])} gives more to choose from"
    ]


def _check_together(target: str, chosen: ModelRecipe, schemes: Sequence[str]) -> None:
    """``ValueError`` if ``target`` cannot carry these layers in one model; checked if the model's files are
    on this machine. It suggests fewer of ``schemes`` if the target carries one of them alone."""
    from explorer.checkpoints import EXPORTS, Plan
    from explorer.checkpoints.model import ModelFolder
    from explorer.methods.recipe import Recipe
    from explorer.models.files import folder_of
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
        alone = (dict.fromkeys(chosen.layers, Recipe(parse_scheme(text))) for text in schemes)
        helped = any(not together(layers) for layers in alone)
        hint = " (--schemes names those to choose from)" if helped else ""
        raise ValueError(f"{target}: {why}{hint}")


def _record(chosen: ModelRecipe) -> dict[str, object]:
    kept = {name: value for name, value in vars(chosen).items() if name != "input_schemes"}
    return {
        **kept,
        "layers": {name: str(one) for name, one in chosen.layers.items()},
        "inputs": str(chosen.inputs or ""),
        "own_inputs": {name: str(inputs or "") for name, inputs in chosen.own_inputs.items()},
        "cache": chosen.cache.described if chosen.cache else "",
    }


def _layer_table(found: Survey, front: Frontier, choice: Choice, chosen: ModelRecipe) -> PrintedTable:
    """Return the layers with their schemes, and their shares of the predicted cost."""
    rows = []
    for name, one in chosen.layers.items():
        layer, scheme = found.layer(name), choice.schemes[name]
        cost = layer.cost(front.signal, scheme, choice.methods.get(name, ""))
        share = f"{100 * cost / max(choice.loss, 1e-300):.1f} %"
        inputs = [str(chosen.input_schemes.get(name, ""))] if chosen.own_inputs else []
        rows.append((name, str(one), *inputs, layer.bits[scheme], cost, share))
    columns = ["inputs"] if chosen.own_inputs else []
    return PrintedTable(("layer", "recipe", *columns, "bits of codes", "cost", "share"), rows)


def _recipe_words(found: Survey, front: Frontier, choice: Choice, chosen: ModelRecipe) -> list[str]:
    """Describe size, predicted loss, inputs and time of a recipe, a line each."""
    from explorer.survey import SENSITIVITIES
    from explorer.survey.apply import inputs_words, weights_alone
    from explorer.survey.sentences import between_words

    row = SENSITIVITIES[front.signal]
    files = f" in files for {chosen.target}" if chosen.target else ""
    grown = chosen.target and any(x.growth for x in found.layers if x.name not in chosen.layers)
    rest = "its codes restored to 16 bits" if grown else "the rest of it as it is stored"
    if front.in_files:
        other = f"{bytes_(front.kept_bytes)} are of other tensors and headers"
        rest = f"in files of at most that size: {other}{', its codes restored to 16 bits' if grown else ''}"
    between = between_words(chosen.predicted_interval)
    alone = weights_alone(bool(chosen.input_schemes), chosen.cache)
    lines = [
        f"{choice.bits:.4g} bits per weight{files}, {bytes_(choice.bytes)} of codes and scales; the model "
        f"{bytes_(front.kept_bytes + choice.bytes)}, {rest}",
        f"{loss_words(found, row.is_loss)} by {front.signal}: {choice.loss:.4g}{between}{alone}; "
        f"no choice of this size has less than {choice.loss - choice.gap:.4g}",
    ]
    if chosen.input_schemes:
        lines.append(f"inputs: {inputs_words(chosen)}")
    if chosen.predicted_time is not None:
        lines.append(chosen.predicted_time.described)
    return lines


def _methods_words(found: Survey, choice: Choice, method: str) -> str:
    """Describe the methods of a recipe: one for all layers, or by layer."""
    from explorer.methods import label_of
    from explorer.survey.sentences import methods_words

    if method:
        instead = ", not the survey's by layer" if found.head.methods else ""
        return f"method: {label_of(method)} for all layers{instead}; the prediction is of rounding to nearest"
    if found.head.methods:
        return methods_words(choice) or "methods: none loses less than round to nearest"
    advice = "a survey with --methods gptq_sequential gives recipes that choose a method for each layer"
    return f"rounded to nearest; {advice}" if found.head.loss else ""


@dataclass(frozen=True)
class WrittenRecipe:
    """Recipe in a file, and the options for running its model."""

    recipe: str = typer.Argument(metavar="RECIPE", help="A file that `explorer recipe` wrote.")
    place: str | None = typer.Option(
        None, "--model", help="Folder or Hub id.", show_default="the recipe's own"
    )
    calibration: str | None = texts_option("to run for the layers' inputs, which methods need")
    imatrix: str | None = typer.Option(
        None,
        metavar="FILE",
        help="Importances of columns that weigh the rounding of GGUF's types, from `explorer imatrix` or "
        "llama-imatrix (.gguf or .dat).",
        show_default="none",
    )
    cache: str | None = typer.Option(
        None,
        metavar="KEYS/VALUES",
        help="Store the cache of keys and values by these schemes when the model runs; an empty one stays "
        "exact. One scale a tensor (fp8_e4m3_tensor) is fixed for each layer, by calibration texts.",
        show_default="stored exactly, or as the recipe says",
    )
    recent: int = typer.Option(0, min=0, help="Last tokens of the cache that stay exact.")

    def __post_init__(self) -> None:
        """``ValueError`` before any work for a file that is not here, or options of a cache without one."""
        check_readable(self.recipe, self.calibration, self.imatrix)
        if self.cache is None and self.recent:
            raise ValueError("--recent says how --cache KEYS/VALUES stores: give that too")

    def load(self) -> ModelRecipe:
        """Return the recipe, with another cache if one is asked for."""
        from explorer.analysis.cache import CachePlan
        from explorer.survey import ModelRecipe

        found = ModelRecipe.load(self.recipe)
        if self.cache is None:
            return found
        return dataclasses.replace(found, cache=CachePlan.parse(self.cache, self.recent))

    def model(self, chosen: ModelRecipe, device: str | None) -> Model:
        """Return the model with its head; ``ValueError`` if its weights are not those of the recipe."""
        from explorer.models.capture import load_model
        from explorer.models.files import check_weights

        place = self.place or chosen.model
        check_weights(chosen, place)
        return load_model(place, chosen.revision, use_device(device), head=True)


@command("check recipe.json --text held-out.txt --survey model.jsonl")
def check(
    asked: WrittenRecipe,
    how: TextOptions,
    text: str | None = texts_option("to measure the loss on, others than those of calibration"),
    survey: str | None = typer.Option(
        None, help="The recipe's survey: the single schemes' predicted losses are read from it."
    ),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run the model quantized by a recipe: its true loss, the prediction, and single schemes.

    Of a recipe for a budget of time, on a GPU, also the time that its linear layers take.
    """
    check_readable(survey, text)
    texts, seen = how.read(text, asked.calibration)
    hide_bars_of_transformers(as_json)
    from explorer.survey import load_survey
    from explorer.survey.check import check_recipe, other_texts

    chosen = asked.load()
    of = load_survey(survey) if survey else None
    loaded = asked.model(chosen, device)
    with reporting("models", as_json) as progress:
        checked = check_recipe(chosen, loaded, texts, of, seen, progress, asked.imatrix)
    if unlike := other_texts(chosen, seen, loaded.causal):
        say(unlike, error=True)
    if chosen.predicted_time is not None:
        from explorer.bench.layers import checked_time

        checked = dataclasses.replace(checked, time=checked_time(chosen, loaded))
    kinds = _by_kind(checked) if checked.rows[0].loss.kinds else None
    emit(as_json, checked, _checked_table(checked), kinds, *_verdict(checked))


def _checked_table(checked: Check) -> PrintedTable:
    """Return the predicted and the true loss of each model, and its other scores."""
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
    predicted = "predicted, weights" if checked.weights_alone else "predicted"
    columns = ("", "by", "bits", predicted, "from", "to", "loss", "from", "to", *_scores(checked))
    return PrintedTable(columns, rows)


def _by_kind(checked: Check) -> PrintedTable:
    """Return the loss of each model on each kind of text."""
    rows = [
        (kind, row.what, row.name, loss.texts, loss.value, loss.low, loss.high, *loss.scores.values())
        for kind in checked.rows[0].loss.kinds
        for row in checked.rows
        for loss in (row.loss.kinds[kind],)
    ]
    return PrintedTable(("kind of text", "", "by", "texts", "loss", "from", "to", *_scores(checked)), rows)


def _scores(checked: Check) -> list[str]:
    return [name.replace("_", " ") for name in checked.rows[0].loss.scores]


def _verdict(checked: Check) -> tuple[str, str]:
    from explorer.survey.sentences import part_run, texts_run, truth

    loss = checked.rows[0].loss
    unit = "nats of KL a token" if loss.kind == "next token" else "mean of 1 − cosine of embeddings"
    return (
        f"loss: {unit}, over {texts_run(loss.texts, loss.left_out)}, {loss.tokens:,} tokens"
        f"{part_run(checked.part)}; 95 % interval over texts",
        truth(checked),
    )


@dataclass(frozen=True)
class CheckedFiles:
    """The checks of a checkpoint before it is put in place."""

    verify: bool | None = typer.Option(
        None,
        help="Open the folder as its card says and compare it, before it is put in place.",
        show_default="where the target's reader is installed and the model fits into memory",
    )
    measure: bool | None = typer.Option(
        None,
        help="Run the checkpoint and the original on held-out texts, and put the loss into the card.",
        show_default="with --verify",
    )
    text: str | None = texts_option("to measure on")

    def measured(self, base: str | None) -> bool:
        """True if the loss is measured; ``ValueError`` for options that exclude each other."""
        measured = bool(self.verify and base is None) if self.measure is None else self.measure
        if measured and base is not None:
            raise ValueError("--measure runs a model's folder; a .gguf file is not run here")
        if self.text is not None and not measured:
            raise ValueError("--text names the texts of --measure: add that, or --verify, which measures too")
        check_readable(self.text)
        return measured


@dataclass(frozen=True)
class PushOptions:
    """The repository of the Hub that a checkpoint is uploaded to."""

    push: str | None = typer.Option(
        None,
        metavar="OWNER/NAME",
        help="Upload the folder to this repository of the Hub, by the token of `hf auth login` or HF_TOKEN.",
    )
    private: bool = typer.Option(False, "--private", help="With --push: a new repository is private.")

    def check(self) -> None:
        """``ValueError`` before any work if the repository cannot be written to."""
        if self.push is not None:
            from explorer.checkpoints.push import check_push

            check_push(self.push)
        elif self.private:
            raise ValueError("--private is of the repository that --push names")


@command(
    "apply recipe.json --to compressed-tensors --out path/to/folder",
    "apply recipe.json --to gguf --imatrix model.imatrix.gguf --out path/to/folder",
    "apply recipe.json --to gguf --base model-BF16.gguf --out path/to/folder",
    "apply recipe.json --to vllm --cache fp8_e4m3_tensor/fp8_e4m3_tensor --out path/to/folder",
)
def apply(
    asked: WrittenRecipe,
    how: TextOptions,
    checks: CheckedFiles,
    upload: PushOptions,
    to: str = typer.Option(help="The checkpoint format: {EXPORTS}."),
    folder: str = typer.Option(..., "--out", help="The folder to write; there must be none yet."),
    base: str | None = typer.Option(
        None,
        help="For gguf: a .gguf file in 16 or 32 bits, of which all but the recipe's layers is copied.",
        show_default="metadata and tensors from the model's folder",
    ),
    shard_size: str | None = typer.Option(
        None,
        help="The most bytes of a file of tensors, e.g. 2GB; for formats of safetensors files.",
        show_default="5GB",
    ),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write the model that a recipe makes as a checkpoint that other programs load."""
    if base is not None and (to != "gguf" or asked.place is not None):
        raise ValueError(
            "--base is the .gguf file that --to gguf copies; it goes with no other format, nor --model"
        )
    if asked.imatrix is not None and to != "gguf":
        raise ValueError("--imatrix weighs the rounding of GGUF's types: it goes with --to gguf")
    shard_bytes = byte_size(shard_size) if shard_size is not None else None
    measured = checks.measured(base)
    check_readable(base)
    check_target(to)
    check_new_folder(folder)
    texts, seen = how.read(checks.text, asked.calibration)
    hide_bars_of_transformers(as_json)
    upload.check()
    chosen = asked.load()
    if base is not None:
        made = _from_base(chosen, base, folder, asked.imatrix, checks.verify, as_json)
    else:
        from explorer.models.files import folder_of
        from explorer.survey.apply import against_cache
        from explorer.survey.export import Wanted

        _say_unsaid(against_cache(chosen, to, folder_of(asked.place or chosen.model, chosen.revision)))
        wanted = Wanted(
            chosen,
            to,
            Path(folder),
            asked.place or "",
            partial(asked.model, chosen, device),
            seen,
            measured_on=texts if measured else None,
            required=bool(checks.measure or checks.text),
            verified=checks.verify,
            shard_bytes=shard_bytes,
            importances=Path(asked.imatrix) if asked.imatrix else {},
        )
        made = _exported(wanted, as_json)
    _print_written(made, upload, as_json)


def _exported(wanted: Wanted, as_json: bool) -> Written:
    """Write a checkpoint, with a progress bar for each phase."""
    from explorer.survey.export import export

    with ExitStack() as bars:

        def phases(what: str) -> Callable[[int, int], None]:
            if what != "texts":  # those are run last
                bars.close()
            return bars.enter_context(reporting(what, as_json, later=what == "texts"))

        return export(wanted, phases)


def _say_unsaid(why: str) -> None:
    """Warn that the files do not describe the recipe's storage of keys and values."""
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


def _print_written(made: Written, upload: PushOptions, as_json: bool) -> None:
    """Describe the written files, and upload them if requested."""
    from explorer.checkpoints.push import push

    if not as_json:
        say(f"written: {made.folder}, {bytes_(made.bytes)} in all")
        say(*map(str, filter(None, (*made.notes, made.verified))))
    url = push(made.folder, upload.push, upload.private) if upload.push else None
    record = {**vars(made), "folder": str(made.folder), "url": url}
    emit(as_json, record, f"uploaded: {url}" if url else None)
