"""Commands about layers and whole models."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from explorer.cli.commands import add_command
from explorer.cli.options import (
    MODELS,
    SOURCES,
    TEXT_FILE,
    Activations,
    Device,
    Json,
    Revision,
    Source,
    TextOptions,
    check_readable,
    check_suffix,
    listed,
    parse_scheme,
    parse_schemes,
    split,
    texts_option,
    use_device,
)
from explorer.cli.output import (
    PrintedTable,
    counted,
    emit,
    hide_bars_of_transformers,
    reporting,
    say,
    table_of,
    written,
)

if TYPE_CHECKING:
    from explorer.methods.evaluate import Outcome
    from explorer.models.capture import Captured

app = typer.Typer()
command = partial(add_command, app, MODELS)
TO_RUN = typer.Argument(help="A folder with safetensors and a tokenizer, or a Hub id (owner/name).")


@command("layers path/to/model --filter mlp", "layers owner/name --json")
def layers(
    model: str = typer.Argument(help=f"{SOURCES[0].upper()}{SOURCES[1:]}."),
    filter: str = typer.Option("", help="Only names that contain this."),
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """The layers of a model, from its headers alone."""
    from explorer.sources import open_source
    from explorer.sources.models import layers as layers_of

    source = open_source(model, revision)
    for reason in source.broken:
        say(f"left out: {reason}", error=True)
    infos = layers_of(source, filter)
    if not infos:
        raise ValueError(f"no tensor of {model} has {filter!r} in its name")
    rows = [(info.name, "×".join(map(str, info.shape)), info.dtype) for info in infos]
    emit(as_json, infos, PrintedTable(("name", "shape", "dtype"), rows))


@command("capture path/to/model --text text.txt --layers mlp --out layers.safetensors")
def capture(
    how: TextOptions,
    model: str = TO_RUN,
    text: str = typer.Option(help=f"{TEXT_FILE[0].upper()}{TEXT_FILE[1:]}."),
    layers: str = typer.Option("", help="Only linear layers whose name contains this."),
    tokens: int = typer.Option(512, min=1, help="Rows to keep of each layer."),
    revision: Revision = None,
    out: str | None = typer.Option(None, help="Write weights and activations to this .safetensors file."),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a transformers model on text and keep what flows into its linear layers."""
    hide_bars_of_transformers(as_json)
    from explorer.models.capture import capture as capture_inputs
    from explorer.models.capture import linear_layers, load_model, save_captured

    check_suffix("--out", out)
    (texts,) = how.read(text)
    loaded = load_model(model, revision, use_device(device))
    names = linear_layers(loaded, layers)
    if not names:
        raise ValueError(f"no linear layer of {loaded.name} has {layers!r} in its name")
    with reporting("texts", as_json) as progress:
        captured = capture_inputs(loaded, texts, names, tokens, progress)
    if out:
        save_captured(captured, out)
    rows = [_captured_row(layer) for layer in captured]
    columns = ("layer", "weight", "tokens", "largest", "columns with outliers")
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    emit(as_json, records, table_of(records), written(out))


def _captured_row(layer: Captured) -> tuple[str, str, int, float, int]:
    from explorer.methods.llm_int8 import THRESHOLD

    largest = layer.activations.abs().amax(0)
    outliers = int((largest >= THRESHOLD).sum())
    shape = "×".join(map(str, layer.weight.shape))
    return layer.name, shape, len(layer.activations), float(largest.max()), outliers


@command(
    "imatrix path/to/model --text text.txt --out model.imatrix.gguf",
    "imatrix owner/name --text text.jsonl --sequence-length 512 --out model.dat",
)
def imatrix(
    how: TextOptions,
    model: str = TO_RUN,
    text: str | None = texts_option("to run"),
    out: str | None = typer.Option(
        None, help="The file: .gguf, or .dat for llama.cpp's older form.", show_default="MODEL.imatrix.gguf"
    ),
    revision: Revision = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a model on text and write the mean squares of its layers' inputs: llama.cpp's importance file.

    `explorer apply --to gguf --imatrix` and llama.cpp's own quantizer read it.
    """
    path = Path(out) if out else Path(f"{Path(model).name or 'model'}.imatrix.gguf")
    check_readable(text)
    hide_bars_of_transformers(as_json)
    from explorer.checkpoints.imatrix import check_suffix as check_suffix_of_imatrix
    from explorer.checkpoints.imatrix import write_imatrix
    from explorer.models.capture import load_model
    from explorer.models.evaluate import built_in_texts
    from explorer.survey.importances import imatrix_of

    check_suffix_of_imatrix(path)
    (texts,) = how.read(text)
    loaded = load_model(model, revision, use_device(device), head=True)
    dataset = Path(text).name if text else "built-in texts"
    with reporting("texts", as_json) as progress:
        run_on = texts or built_in_texts(loaded.causal)
        found, left = imatrix_of(loaded, model, run_on, dataset, revision, progress)
    write_imatrix(found, path)
    rows = [
        (name, one.sums.shape[1], int(one.counts.max()), float(one.mean.mean()), float(one.mean.max()))
        for name, one in found.tensors.items()
    ]
    columns = ("tensor", "columns", "tokens", "mean square", "largest")
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        say(f"without importances, as no text reached them: {', '.join(left[:3])}{more}", error=True)
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    emit(as_json, records, table_of(records), written(path))


@command(
    "methods sample:mlp_up --inputs sample:mlp_up_in --schemes int4_group128_asym",
    "methods sample:mlp_up --inputs sample:mlp_up_in --methods rotation+gptq --out Q.safetensors",
)
def methods(
    source: Source,
    inputs: str = typer.Option(help=f"The layer's inputs [tokens, K]: {SOURCES}; half of them are held out."),
    inputs_tensor: str | None = typer.Option(None, help="Which tensor of the inputs, if there are several."),
    methods: str | None = typer.Option(
        None,
        help="Comma-separated: {METHODS}; also combinations such as rotation+gptq+lqer.",
        show_default="all",
    ),
    schemes: str = typer.Option("int4_group128_asym", help="Comma-separated schemes."),
    activations: Activations = None,
    out: str | None = typer.Option(
        None, help="Write codes, scales and what the method adds to this .safetensors file (one result)."
    ),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Quantize a weight by GPTQ, AWQ and others, and compare the layer's output on held-out inputs."""
    from explorer.methods import METHODS
    from explorer.methods.evaluate import evaluate_all, summary
    from explorer.methods.files import save_layer
    from explorer.sources import load_matrix

    names, chosen = split(methods) if methods is not None else list(METHODS), parse_schemes(schemes)
    if out and len(names) * len(chosen) != 1:
        raise ValueError("--out writes one result: name one method and one scheme")
    check_suffix("--out", out)
    of_inputs = parse_scheme(activations) if activations else None
    where = use_device(device)
    w = source.load(as_json).values.to(where)
    x = load_matrix(inputs, inputs_tensor).values.to(where)
    if w.shape[1] != x.shape[1]:
        raise ValueError(
            f"the weight {source.file} has {w.shape[1]} columns, the inputs {inputs} {x.shape[1]}: both must "
            "be the layer's input channels K of weight [N, K] and activations [tokens, K]"
        )
    runs = evaluate_all(names, chosen, w, x, of_inputs)
    outcomes = counted("methods", runs, len(names) * len(chosen), as_json)
    if all(outcome.refused for outcome in outcomes):
        raise ValueError(outcomes[0].refused)
    if out and (layer := outcomes[0].layer):
        save_layer(layer, out)
    columns = ("method", "scheme", "output SQNR dB", "output error", "weight SQNR dB", "bits", "seconds")
    table = PrintedTable(columns, [_outcome_row(outcome) for outcome in outcomes])
    emit(as_json, [outcome.record() for outcome in outcomes], table, summary(outcomes, x), written(out))


def _outcome_row(o: Outcome) -> tuple[object, ...]:
    if o.refused:
        return o.label, o.scheme, o.refused[:60], None, None, None, None
    return o.label, o.scheme, o.output_sqnr_db, o.output_error, o.weight_sqnr_db, o.bits, o.seconds


@command(
    "embed path/to/model --schemes nvfp4,int4_group128_asym --methods rtn,gptq,awq_clip",
    "embed path/to/model --keep '*.output.dense' --activations int8_row",
)
def embed(
    model: str | None = typer.Argument(
        None, help="A folder or a Hub id.", show_default="sentence-transformers/all-MiniLM-L6-v2"
    ),
    schemes: str = typer.Option(
        "int8_row,nvfp4,mxfp4,int4_group128,int3_group128,int2_group128,ternary_absmean",
        help="Comma-separated schemes.",
    ),
    activations: Activations = None,
    methods: str = typer.Option("rtn", help="Comma-separated: {METHODS}."),
    tokens: int = typer.Option(512, min=1, help="Inputs of each layer that methods see."),
    keep: str = typer.Option("", help="Layers left as they are: names or patterns, e.g. *.output.dense."),
    revision: Revision = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Sentence embeddings of a model before and after all its linear layers are quantized."""
    hide_bars_of_transformers(as_json)
    from explorer.methods import names_in
    from explorer.models.capture import load_model
    from explorer.models.evaluate import MODEL, OriginalModel, evaluate_embeddings

    chosen, names = parse_schemes(schemes), split(methods)
    of_inputs = parse_scheme(activations) if activations else None
    for name in names:
        names_in(name)
    loaded = load_model(model or MODEL, revision, use_device(device))
    original = OriginalModel(loaded, listed(keep), tokens)
    runs = (evaluate_embeddings(original, s, name, of_inputs) for s in chosen for name in names)
    drifts = counted("models", runs, len(chosen) * len(names), as_json)
    emit(as_json, drifts, table_of(map(dataclasses.asdict, drifts)))


@command(
    "diff path/to/model path/to/model-awq --sort db",
    "diff path/to/model model-Q4_K_M.gguf --csv layers.csv",
    "diff owner/name owner/name-GPTQ --layer layers.0. --json",
)
def diff(
    original: str = typer.Argument(help="The model: a folder, a file or a Hub id (owner/name)."),
    quantized: str = typer.Argument(
        help="The same model quantized: a folder or Hub id in the layout of compressed-tensors, GPTQ, "
        "AWQ, bitsandbytes, FP8 or MXFP4, a .gguf file, or files of this program."
    ),
    layer: str = typer.Option("", help="Only weights whose name contains this."),
    sort: Literal["name", "db", "bits"] = typer.Option(
        "name", help="By name, as in the files, by dB, the worst first, or by bits."
    ),
    csv: str | None = typer.Option(None, metavar="FILE", help="Write all weights to this .csv file."),
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Hold a quantized checkpoint against its original: layer by layer scheme, bits and error.

    Shown are layers of codes and all that differs; --csv and --json have every weight. --revision is that of
    QUANTIZED.
    """
    from explorer.checkpoints.diff import diff as compare_checkpoints
    from explorer.checkpoints.diff import open_pair, ordered
    from explorer.checkpoints.diff_words import COLUMNS, flat, line, sentences, shown
    from explorer.export.tables import write_records

    check_suffix("--csv", csv, ".csv")
    opened = open_pair(original, quantized, revision=revision)
    with reporting("weights", as_json) as progress:
        found = compare_checkpoints(opened, layer, progress)
    in_order = ordered(found.layers, sort)
    if csv:
        write_records(csv, [flat(layer) for layer in in_order])
    rows = [line(one) for one in shown(in_order)]
    table = PrintedTable(COLUMNS, rows) if rows else None
    emit(as_json, {**vars(found), "layers": in_order}, table, *sentences(found), written(csv))


@command("train --widths 4,ternary,binary --seeds 1", "train --loss-scaling")
def train(
    widths: str | None = typer.Option(
        None, help="Comma-separated: 8 … 2, ternary, binary.", show_default="all"
    ),
    seeds: int = typer.Option(3, help="Networks of each kind."),
    epochs: int = typer.Option(20, help="Epochs of the float32 network."),
    again: int = typer.Option(8, help="Epochs of training on."),
    activations: str | None = typer.Option(
        None, help="Also quantize the inputs of all layers but the first, e.g. int8_row."
    ),
    loss_scaling: bool = typer.Option(
        False, "--loss-scaling", help="Instead: which gradients float16 loses, by loss scale."
    ),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Accuracy against bits on scikit-learn's digits, before and after quantization-aware training."""
    from explorer.training.digits import WIDTHS, accuracy_rows, count, gradient_magnitudes, underflow
    from explorer.training.digits import train as train_networks

    use_device(device)
    if loss_scaling:
        losses = underflow(gradient_magnitudes())
        emit(as_json, losses, table_of(map(dataclasses.asdict, losses)))
        return
    names = split(widths) if widths is not None else list(WIDTHS)
    of_inputs = parse_scheme(activations) if activations else None
    runs = train_networks(names, seeds, epochs, again, of_inputs)
    results = counted("networks", runs, count(names, max(seeds, 0)), as_json)
    rows = [
        (row.width, row.stage, 100 * row.mean, 100 * row.least, 100 * row.most, row.seeds)
        for row in accuracy_rows(results)
    ]
    columns = ("width", "stage", "mean", "least", "most", "seeds", "unit")
    emit(as_json, results, PrintedTable(columns, [(*row, "% of 450 test images") for row in rows]))
