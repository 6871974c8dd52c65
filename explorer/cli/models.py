"""Commands about layers and whole models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.device import Device, use_device
from explorer.cli.options import (
    MODELS,
    SOURCES,
    TEXT_FILE,
    Activations,
    Column,
    File,
    Json,
    NamingRows,
    Revision,
    Samples,
    SequenceLength,
    TensorName,
    check_out,
    check_readable,
    examples,
    parse_scheme,
    parse_schemes,
    read_files,
    split,
)
from explorer.cli.output import PrintedTable, counted, emit, hide_bars_of_transformers, reporting, say

if TYPE_CHECKING:
    from explorer.methods.evaluate import Outcome
    from explorer.models.capture import Captured

app = typer.Typer()
ModelPlace = Annotated[
    str, typer.Argument(help="A folder with safetensors and a tokenizer, or a Hub id (owner/name).")
]


@app.command(
    rich_help_panel=MODELS, epilog=examples("layers path/to/model --filter mlp", "layers owner/name --json")
)
def layers(
    model: Annotated[str, typer.Argument(help=f"{SOURCES[0].upper()}{SOURCES[1:]}.")],
    filter: Annotated[str, typer.Option("--filter", help="Only names that contain this.")] = "",
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


@app.command(
    rich_help_panel=MODELS,
    epilog=examples("capture path/to/model --text text.txt --layers mlp --out layers.safetensors"),
)
def capture(
    model: ModelPlace,
    text: Annotated[str, typer.Option(help=f"{TEXT_FILE[0].upper()}{TEXT_FILE[1:]}.")],
    layers: Annotated[str, typer.Option(help="Only linear layers whose name contains this.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Rows to keep of each layer.")] = 512,
    column: Column = None,
    sequence_length: SequenceLength = None,
    samples: Samples = None,
    revision: Revision = None,
    out: Annotated[
        str | None, typer.Option(help="Write weights and activations to this .safetensors file.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a transformers model on text and keep what flows into its linear layers."""
    hide_bars_of_transformers(as_json)
    from explorer.models.capture import capture as capture_inputs
    from explorer.models.capture import linear_layers, load_model, save_captured

    check_out(out)
    (texts,) = read_files(text, column=column, sequence_length=sequence_length, samples=samples)
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
    emit(as_json, [dict(zip(columns, row, strict=True)) for row in rows], PrintedTable(columns, rows))
    if out and not as_json:
        say(f"written: {out}")


@app.command(
    rich_help_panel=MODELS,
    epilog=examples(
        "imatrix path/to/model --text text.txt --out model.imatrix.gguf",
        "imatrix owner/name --text text.jsonl --sequence-length 512 --out model.dat",
    ),
)
def imatrix(
    model: ModelPlace,
    text: Annotated[
        str | None,
        typer.Option(help=f"{TEXT_FILE[0].upper()}{TEXT_FILE[1:]}.", show_default="built-in texts"),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="The file: .gguf, or .dat for llama.cpp's older form.", show_default="MODEL.imatrix.gguf"
        ),
    ] = None,
    column: Column = None,
    sequence_length: SequenceLength = None,
    samples: Samples = None,
    revision: Revision = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a model on text and write the mean squares of its layers' inputs: llama.cpp's importance file.

    `explorer apply --to gguf --imatrix` and llama.cpp's own quantizer read it.
    """
    path = Path(out) if out else Path(f"{Path(model).name or 'model'}.imatrix.gguf")
    check_out(str(path), path.suffix.lower())
    check_readable(text)
    hide_bars_of_transformers(as_json)
    from explorer.checkpoints.imatrix import check_suffix, write_imatrix
    from explorer.models.capture import load_model
    from explorer.models.evaluate import built_in_texts
    from explorer.survey.importances import imatrix_of

    check_suffix(path)
    (texts,) = read_files(text, column=column, sequence_length=sequence_length, samples=samples)
    loaded = load_model(model, revision, use_device(device), head=True)
    dataset = Path(text).name if text else "built-in texts"
    with reporting("texts", as_json) as progress:
        found, left = imatrix_of(
            loaded, model, texts or built_in_texts(loaded.causal), dataset, revision, progress
        )
    write_imatrix(found, path)
    rows = [
        (name, one.sums.shape[1], int(one.counts.max()), float(one.mean.mean()), float(one.mean.max()))
        for name, one in found.tensors.items()
    ]
    columns = ("tensor", "columns", "tokens", "mean square", "largest")
    emit(as_json, [dict(zip(columns, row, strict=True)) for row in rows], PrintedTable(columns, rows))
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        say(f"without importances, as no text reached them: {', '.join(left[:3])}{more}", error=True)
    if not as_json:
        say(f"written: {path}")


def _captured_row(layer: Captured) -> tuple[str, str, int, float, int]:
    from explorer.methods.llm_int8 import THRESHOLD

    largest = layer.activations.abs().amax(0)
    outliers = int((largest >= THRESHOLD).sum())
    shape = "×".join(map(str, layer.weight.shape))
    return layer.name, shape, len(layer.activations), float(largest.max()), outliers


@app.command(
    cls=NamingRows,
    rich_help_panel=MODELS,
    epilog=examples(
        "methods sample:mlp_up --inputs sample:mlp_up_in --schemes int4_group128_asym",
        "methods sample:mlp_up --inputs sample:mlp_up_in --methods rotation+gptq --out Q.safetensors",
    ),
)
def methods(
    file: File,
    inputs: Annotated[
        str, typer.Option(help=f"The layer's inputs [tokens, K]: {SOURCES}; half of them are held out.")
    ],
    tensor: TensorName = None,
    revision: Revision = None,
    inputs_tensor: Annotated[
        str | None, typer.Option(help="Which tensor of the inputs, if there are several.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: {METHODS}; also combinations such as rotation+gptq+lqer.",
            show_default="all",
        ),
    ] = None,
    schemes: Annotated[str, typer.Option(help="Comma-separated schemes.")] = "int4_group128_asym",
    activations: Activations = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Write codes, scales and what the method adds to this .safetensors file (one result)."
        ),
    ] = None,
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
    check_out(out)
    of_inputs = parse_scheme(activations) if activations else None
    where = use_device(device)
    w = load_matrix(file, tensor, revision).values.to(where)
    x = load_matrix(inputs, inputs_tensor).values.to(where)
    if w.shape[1] != x.shape[1]:
        raise ValueError(
            f"the weight {file} has {w.shape[1]} columns, the inputs {inputs} {x.shape[1]}: both must be the "
            "layer's input channels K of weight [N, K] and activations [tokens, K]"
        )
    runs = evaluate_all(names, chosen, w, x, of_inputs)
    outcomes = counted("methods", runs, len(names) * len(chosen), as_json)
    if all(outcome.refused for outcome in outcomes):
        raise ValueError(outcomes[0].refused)
    if out and (layer := outcomes[0].layer):
        save_layer(layer, out)
    columns = ("method", "scheme", "output SQNR dB", "output error", "weight SQNR dB", "bits", "seconds")
    emit(as_json, [o.record() for o in outcomes], PrintedTable(columns, [_outcome_row(o) for o in outcomes]))
    if not as_json:
        say(summary(outcomes, x))


def _outcome_row(o: Outcome) -> tuple[object, ...]:
    if o.refused:
        return o.label, o.scheme, o.refused[:60], None, None, None, None
    return o.label, o.scheme, o.output_sqnr_db, o.output_error, o.weight_sqnr_db, o.bits, o.seconds


@app.command(
    cls=NamingRows,
    rich_help_panel=MODELS,
    epilog=examples(
        "embed path/to/model --schemes nvfp4,int4_group128_asym --methods rtn,gptq,awq_clip",
        "embed path/to/model --keep '*.output.dense' --activations int8_row",
    ),
)
def embed(
    model: Annotated[
        str | None,
        typer.Argument(help="A folder or a Hub id.", show_default="sentence-transformers/all-MiniLM-L6-v2"),
    ] = None,
    schemes: Annotated[
        str, typer.Option(help="Comma-separated schemes.")
    ] = "int8_row,nvfp4,mxfp4,int4_group128,int3_group128,int2_group128,ternary_absmean",
    activations: Activations = None,
    methods: Annotated[str, typer.Option(help="Comma-separated: {METHODS}.")] = "rtn",
    tokens: Annotated[int, typer.Option(min=1, help="Inputs of each layer that methods see.")] = 512,
    keep: Annotated[
        str, typer.Option(help="Layers left as they are: names or patterns, e.g. *.output.dense.")
    ] = "",
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
    original = OriginalModel(loaded, tuple(split(keep)) if keep else (), tokens)
    runs = (evaluate_embeddings(original, s, name, of_inputs) for s in chosen for name in names)
    drifts = counted("models", runs, len(chosen) * len(names), as_json)
    columns = tuple(field.name for field in dataclasses.fields(drifts[0]))
    emit(as_json, drifts, PrintedTable(columns, [dataclasses.astuple(drift) for drift in drifts]))
