"""Commands from a model to a smaller one: survey its layers, choose a scheme for each, check, write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.device import Device, use_device
from explorer.cli.options import MODELS, Json, NamingRows, Revision, byte_size, examples, read_texts, split
from explorer.cli.output import (
    PrintedTable,
    emit,
    hide_bars_of_transformers,
    print_json,
    print_table,
    reporting,
    say,
)

if TYPE_CHECKING:
    from explorer.models.capture import Model
    from explorer.survey import Choice, Frontier, ModelRecipe, Survey
    from explorer.survey.check import Check

app = typer.Typer()
RecipeFile = Annotated[str, typer.Argument(metavar="RECIPE", help="A file that `explorer recipe` wrote.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Folder or Hub id.", show_default="the recipe's own")
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        help="A text file, a document a line, that methods see layers' inputs of.",
        show_default="built-in sentences",
    ),
]


@app.command(
    rich_help_panel=MODELS,
    epilog=examples(
        "survey path/to/model --text text.txt --out model.jsonl",
        "survey path/to/model --schemes nvfp4,mxfp4,int8_row --signal weight",
    ),
)
def survey(
    model: Annotated[str, typer.Argument(help="A model folder, a Hub id (owner/name) or a .gguf file.")],
    text: Annotated[
        str | None,
        typer.Option(
            help="A text file, a document a line, to calibrate by.", show_default="built-in sentences"
        ),
    ] = None,
    schemes: Annotated[
        str | None, typer.Option(help="Comma-separated schemes.", show_default="fourteen from 2.3 to 8 bits")
    ] = None,
    signal: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: weight, output, fisher, fisher_diagonal, measured.",
            show_default="fisher_diagonal, or weight where the model cannot be run",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="The file, a JSON line a layer.", show_default="MODEL.survey.jsonl")
    ] = None,
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
    """Survey every linear layer of a model with every scheme: size and loss. A stopped survey continues
    when the same command is given again.
    """
    hide_bars_of_transformers(as_json)
    from explorer.survey.cluster import on_ray
    from explorer.survey.run import SCHEMES, SurveyPlan, in_this_process, survey_model

    plan = SurveyPlan(
        model,
        revision,
        SCHEMES if schemes is None else tuple(split(schemes)),
        None if signal is None else tuple(split(signal)),
        () if text is None else tuple(read_texts(text)),
    )
    use_device(device)
    path, rows = _survey_file(model, out), on_ray(ray) if ray else in_this_process
    with reporting("running the model", as_json) as ran, reporting("layers", as_json) as done:
        found = survey_model(plan, path, progress=done, run_progress=ran, rows=rows)
    if as_json:
        print_json({"file": str(path), "head": found.head, "layers": found.layers})
        return
    _print_survey(found)
    say(f"written: {path}")


def _survey_file(model: str, out: str | None) -> Path:
    """Return the path of the survey; ``ValueError`` before any work if it cannot be written."""
    path = Path(out) if out else Path(f"{Path(model).name or 'model'}.survey.jsonl")
    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise ValueError(f"--out {path} is no regular file; it is not replaced")
    return path


def _print_survey(found: Survey) -> None:
    """Single schemes for all layers, and where the damage is."""
    from explorer.survey import SENSITIVITIES, frontier
    from explorer.survey.verdict import kept

    row = SENSITIVITIES[found.head.default]
    if found.head.why:
        say(
            f"the model was not run: {found.head.why} (once it can be: --out names another file)",
            error=True,
        )
    if not row.is_loss:
        say(f"{row.label}: {row.trust}", error=True)
    if left := kept(found):
        say(left.strip(), error=True)
    front = frontier(found)
    columns = ("one scheme for all layers", "bits", _loss_words(found, row.is_loss))
    print_table(PrintedTable(columns, [(point.scheme, point.bits, point.loss) for point in front.uniform]))
    say(
        f"{len(found.linear)} layers of {found.head.model}; a recipe: `explorer recipe`, --bits from "
        f"{front.least:.2f} to {front.most:.2f}"
    )


def _loss_words(found: Survey, is_loss: bool) -> str:
    return f"predicted loss ({found.head.loss})" if is_loss else "error, not a loss"


@app.command(
    cls=NamingRows,
    rich_help_panel=MODELS,
    epilog=examples(
        "recipe model.jsonl --bits 4.5 --out recipe.json",
        "recipe model.jsonl --size 3.2GB --keep down_proj --for compressed-tensors --fuse",
    ),
)
def recipe(
    survey: Annotated[str, typer.Argument(metavar="SURVEY", help="A file that `explorer survey` wrote.")],
    bits: Annotated[
        float | None, typer.Option(help="The budget: mean bits a weight, scales counted.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Or the whole model's size, the rest of it as it is stored, e.g. 3.2GB."),
    ] = None,
    loss: Annotated[float | None, typer.Option(help="Or the most predicted loss.")] = None,
    signal: Annotated[
        str, typer.Option(help="What to choose by.", show_default="the survey's best signal")
    ] = "",
    schemes: Annotated[
        str | None, typer.Option(help="Only these, comma-separated.", show_default="the survey's")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Layers left as they are: parts of names or patterns, comma-separated.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--for", help="Only schemes that a checkpoint format carries together: {EXPORTS}."),
    ] = None,
    fuse: Annotated[
        bool, typer.Option("--fuse", help="One scheme for query, key and value, and for gate and up.")
    ] = False,
    head: Annotated[bool, typer.Option("--head", help="Choose a scheme for the head too.")] = False,
    method: Annotated[str, typer.Option(help="What chooses the codes: {METHODS}.")] = "",
    out: Annotated[str | None, typer.Option(help="Write the recipe to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """The best scheme for each layer within a budget, by a survey."""
    from explorer.survey import frontier, load_survey, recipe_of
    from explorer.survey.apply import constraints_of, unplaced

    found = load_survey(survey)
    left = unplaced(target, found) if target else {}
    for why in dict.fromkeys(left.values()):
        names = [name for name, one in left.items() if one == why]
        say(f"kept as they are: {len(names)} layers, such as {names[0]}: {why}", error=True)
    constraints = constraints_of(
        target or "",
        schemes=tuple(split(schemes)) if schemes else (),
        keep=(*(split(keep) if keep else ()), *left),
        fuse=fuse,
        head=head,
    )
    front = frontier(found, signal, constraints)
    choice = _choice(front, bits, size, loss)
    chosen = recipe_of(found, choice, signal, method, constraints)
    if target:
        _check_together(target, chosen)
    if out:
        chosen.save(out)
    if as_json:
        print_json({"recipe": _record(chosen), "choice": choice, "refused": front.refused, "file": out})
        return
    _print_recipe(found, front, choice, chosen)
    say(f"written: {out}" if out else "not written: name a file by --out")


def _check_together(target: str, chosen: ModelRecipe) -> None:
    """``ValueError`` if ``target`` cannot carry these layers in one model; asked where its files are here."""
    from explorer.checkpoints import EXPORTS, Plan
    from explorer.checkpoints.model import ModelFolder
    from explorer.survey.apply import folder_of

    try:
        folder = ModelFolder(folder_of(chosen.model, chosen.revision))
    except ValueError as error:
        say(f"not asked whether {target} carries these schemes together: {error}", error=True)
        return
    if why := EXPORTS[target].together(Plan(folder, chosen.layers)):
        hint = " (--schemes names those to choose from)" if len(chosen.counts) > 1 else ""
        raise ValueError(f"{target}: {why}{hint}")


def _choice(front: Frontier, bits: float | None, size: str | None, loss: float | None) -> Choice:
    if sum(budget is not None for budget in (bits, size, loss)) != 1:
        raise ValueError("name one budget: --bits, --size or --loss")
    if bits is not None:
        return front.at(bits)
    return front.at_bytes(byte_size(size)) if size is not None else front.at_loss(loss or 0.0)


def _record(chosen: ModelRecipe) -> dict[str, object]:
    return {**vars(chosen), "layers": {name: str(one) for name, one in chosen.layers.items()}}


def _print_recipe(found: Survey, front: Frontier, choice: Choice, chosen: ModelRecipe) -> None:
    from explorer.survey import SENSITIVITIES
    from explorer.words import bytes_

    rows = []
    for name, one in chosen.layers.items():
        layer, scheme = found.layer(name), choice.schemes[name]
        cost = layer.costs[front.signal][scheme]
        rows.append(
            (name, str(one), layer.bits[scheme], cost, f"{100 * cost / max(choice.loss, 1e-300):.1f} %")
        )
    row = SENSITIVITIES[front.signal]
    print_table(PrintedTable(("layer", "recipe", "bits", "cost", "share"), rows))
    for name, why in front.refused.items():
        say(f"left out: {name}: {why}", error=True)
    total = bytes_(front.kept_bytes + choice.bytes)
    size = f"{choice.bits:.4g} bits a weight, {bytes_(choice.bytes)} of codes and scales"
    grown = chosen.target and any(x.growth for x in found.layers if x.name not in chosen.layers)
    rest = "its codes restored to 16 bits" if grown else "the rest of it as it is stored"
    say(f"{size}; the model {total}, {rest}")
    say(
        f"{_loss_words(found, row.is_loss)} by {front.signal}: {choice.loss:.4g}; no choice of this size has "
        f"less than {choice.loss - choice.gap:.4g}"
    )
    if not row.is_loss:
        say(f"{row.label}: {row.trust}", error=True)


@app.command(
    rich_help_panel=MODELS,
    epilog=examples("check recipe.json --text held-out.txt --survey model.jsonl"),
)
def check(
    recipe: RecipeFile,
    text: Annotated[
        str | None,
        typer.Option(
            help="A text file, a document a line, not calibrated by.", show_default="built-in sentences"
        ),
    ] = None,
    survey: Annotated[
        str | None, typer.Option(help="The recipe's survey: predictions of what it stands beside.")
    ] = None,
    model: ModelOption = None,
    calibration: Calibration = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run the model quantized by a recipe: its true loss, the prediction, and single schemes."""
    hide_bars_of_transformers(as_json)
    from explorer.survey import load_survey
    from explorer.survey.check import check_recipe

    chosen, texts, seen = _load(recipe), _texts(text), _texts(calibration)
    of = load_survey(survey) if survey else None
    loaded = _model(chosen, model, device)
    with reporting("models", as_json) as progress:
        checked = check_recipe(chosen, loaded, texts, of, seen, progress)
    rows = [
        (
            row.what,
            row.name,
            row.bits,
            row.predicted,
            row.loss.value,
            row.loss.low,
            row.loss.high,
            *row.loss.scores.values(),
        )
        for row in checked.rows
    ]
    scores = (name.replace("_", " ") for name in checked.rows[0].loss.scores)
    columns = ("", "by", "bits", "predicted", "loss", "from", "to", *scores)
    emit(as_json, checked, PrintedTable(columns, rows))
    if not as_json:
        say(*_verdict(checked))


def _verdict(checked: Check) -> tuple[str, str]:
    from explorer.survey.verdict import truth

    loss = checked.rows[0].loss
    unit = "nats of KL a token" if loss.kind == "next token" else "mean of 1 − cosine of embeddings"
    return (
        f"loss: {unit}, over {loss.texts} texts, {loss.tokens:,} tokens; 95 % interval over texts",
        truth(checked),
    )


def _load(path: str) -> ModelRecipe:
    from explorer.survey import ModelRecipe

    return ModelRecipe.load(path)


def _texts(path: str | None) -> tuple[str, ...]:
    return tuple(read_texts(path)) if path else ()


def _model(chosen: ModelRecipe, where: str | None, device: str | None) -> Model:
    """The recipe's model with its head; ``ValueError`` if its weights are not those of the recipe."""
    from explorer.models.capture import load_model
    from explorer.survey.apply import check_weights

    place = where or chosen.model
    check_weights(chosen, place)
    return load_model(place, chosen.revision, use_device(device), head=True)


@app.command(
    cls=NamingRows,
    rich_help_panel=MODELS,
    epilog=examples("apply recipe.json --to compressed-tensors --out path/to/folder"),
)
def apply(
    recipe: RecipeFile,
    to: Annotated[str, typer.Option("--to", help="The checkpoint format: {EXPORTS}.")],
    out: Annotated[str, typer.Option(help="The folder to write; there must be none yet.")],
    model: ModelOption = None,
    calibration: Calibration = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Open the folder as its card says and compare it, before it is put in place.",
            show_default="where the target's reader is installed and the model fits into memory",
        ),
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write the model that a recipe makes as a checkpoint that other programs load."""
    hide_bars_of_transformers(as_json)
    from explorer.checkpoints import write_checkpoint
    from explorer.checkpoints.write import export_of
    from explorer.survey.apply import card_of, check_weights, codes_of, folder_of
    from explorer.words import bytes_

    chosen, seen = _load(recipe), _texts(calibration)
    export_of(to)
    folder = folder_of(model or chosen.model, chosen.revision)
    check_weights(chosen, model or chosen.model)
    with reporting("layers by methods", as_json) as progress:
        codes = codes_of(chosen, lambda: _model(chosen, model, device), seen, progress, folder)
    with reporting("tensors", as_json) as progress:
        written = write_checkpoint(
            to,
            folder,
            chosen.layers,
            Path(out),
            quantized=codes,
            card=card_of(chosen),
            progress=progress,
            verified=verify,
        )
    if as_json:
        print_json(written)
    else:
        say(f"written: {out}, {bytes_(written.bytes)} in all")
        if written.verified:
            say(str(written.verified))
