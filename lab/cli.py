"""``python -m lab``: what measures and compares the explorer, and writes its measured pages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.app import run_command
from explorer.cli.bench import Record, Repeats, run
from explorer.cli.commands import add_command
from explorer.cli.options import (
    TEXT_FILE,
    AllSchemes,
    Device,
    Json,
    Shapes,
    TextOptions,
    check_readable,
    parse_schemes,
    shapes_of,
    split,
    use_device,
)
from explorer.cli.output import PrintedTable, emit, hide_bars_of_transformers, print_json, say
from lab.conformance import command as conformance
from lab.conformance.command import examples

if TYPE_CHECKING:
    from explorer.models.capture import Model

app = typer.Typer(
    name="lab",
    help="Measure and compare the explorer, and write its measured pages, in a checkout.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(conformance.app)


Embedder = Annotated[
    str | None,
    typer.Option(help="Folder or Hub id.", show_default="sentence-transformers/all-MiniLM-L6-v2"),
]


def _loaded(model: str | None) -> Model:
    """The model in a folder or on the Hub, or the usual one, on the device that computes."""
    from explorer.core.backend import work_device
    from explorer.models.capture import load_model
    from explorer.models.evaluate import MODEL

    return load_model(model or MODEL, device=work_device())


def _table(rows: Iterable[object], titles: Sequence[str], fields: Sequence[str]) -> PrintedTable:
    """A line for each row, of its ``fields``."""
    return PrintedTable(tuple(titles), [tuple(getattr(row, field) for field in fields) for row in rows])


@app.command(epilog=examples("docs", "docs --check"))
def docs(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if a page would change.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="First run and record whole models and training (minutes).")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub id, for --record.", show_default="sentence-transformers/all-MiniLM-L6-v2"
        ),
    ] = None,
    causal: Annotated[
        str | None,
        typer.Option(help="Folder or Hub id of a causal model to run recipes of, and record (minutes)."),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Draw figures anew that are behind their recordings (Chromium).")
    ] = False,
    written: Annotated[
        bool,
        typer.Option("--written", help="Record recipes for targets, of --model and --causal (minutes)."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the measured pages of docs/ from the recordings in assets/measurements/."""
    from explorer.models.evaluate import MODEL
    from lab.docs import check_docs, docs_folder, record_runs, write_docs
    from lab.figures import stale_figures, write_figures
    from lab.recipes import record_causal
    from lab.vocabulary import record_vocabulary

    folder = docs_folder()
    if record:
        for path in record_runs(model or MODEL):
            say(f"written: {path}", error=True)
    if written:
        from lab.written import record_written

        say(f"written: {record_written(model or MODEL, causal)}", error=True)
    elif causal:
        for path in (record_causal(causal), record_vocabulary(causal)):
            say(f"written: {path}", error=True)
    if not check:
        changed = [*write_docs(folder), *(write_figures(folder) if figures else [])]
        if as_json:
            print_json({"written": [str(path) for path in changed]})
        for path in [] if as_json else changed:
            say(f"written: {path}")
        return
    stale = [path.name for path in (*check_docs(folder), *stale_figures(folder))]
    if as_json:
        print_json({"stale": stale})
    elif not stale:
        say("docs/ says what the recordings say")
    if stale:
        say(f"docs/ is behind its recordings: {', '.join(stale)}; run `make docs`", error=True)
        raise typer.Exit(1)


@add_command(
    app,
    None,
    "files path/to/model --rows 'recipe-as-*,Q4_K_M*'",
    "files path/to/model --record",
    program="python -m lab",
)
def files(
    model: Annotated[str, typer.Argument(help="A folder of a causal language model, or a Hub id.")],
    rows: Annotated[
        str | None,
        typer.Option("--rows", help="Comma-separated names of rows, or patterns.", show_default="all"),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help=f"Texts to measure on: {TEXT_FILE}.", show_default="built-in texts")
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help=f"Texts for surveys, importances and methods: {TEXT_FILE}.", show_default="built-in texts"
        ),
    ] = None,
    texts: Annotated[int, typer.Option(min=2, help="Sequences of 128 tokens of the built-in texts.")] = 16,
    record: Record = False,
    record_to: Annotated[
        Path | None, typer.Option("--record-to", help="Write the rows to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Files by recipes and by other programs, judged by their readers: KL against bytes of the file.

    The quantizer of llama.cpp is that of the shared library which EXPLORER_LLAMA_LIBRARY names."""
    check_readable(text, calibration)
    hide_bars_of_transformers(as_json)
    from lab.files.command import bench_files

    held_out, seen = TextOptions(None, None, None).read(text, calibration)
    names = split(rows) if rows is not None else []
    run(bench_files(model, names, held_out, seen, texts), record, as_json, record_to)


@app.command(epilog=examples("methods --schemes int4_group128_asym --repeats 1"))
def methods(
    shape: Shapes = None,
    schemes: Annotated[str, typer.Option(help="Comma-separated schemes.")] = "int4_group128_asym",
    repeats: Repeats = 3,
    record: Record = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """GPTQ, AWQ and the other methods on a random layer."""
    from lab.benchmarks import bench_methods

    use_device(device)
    run(bench_methods(parse_schemes(schemes), shapes_of(shape), repeats), record, as_json)


@app.command(epilog=examples("analysis --schemes nvfp4,int8_row"))
def analysis(
    shape: Shapes = None,
    schemes: AllSchemes = None,
    repeats: Repeats = 3,
    record: Record = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """All that the Tensor place shows of a random tensor."""
    from lab.benchmarks import bench_analysis

    use_device(device)
    run(bench_analysis(parse_schemes(schemes), shapes_of(shape), repeats), record, as_json)


@app.command(epilog=examples("sizes --schemes nvfp4 --shape 4096x4096", "sizes --record"))
def sizes(
    shape: Shapes = None,
    schemes: Annotated[
        str | None, typer.Option(help="Comma-separated schemes.", show_default="one of each kind")
    ] = None,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Time and memory for each element of tensors from 1 M to 1 G elements, on one thread of the CPU."""
    from lab.benchmarks import bench_sizes

    chosen = None if schemes is None else parse_schemes(schemes)
    run(bench_sizes(chosen, shapes_of(shape)), record, as_json)


@app.command(epilog=examples("page", "page --tensors mlp_up --updates 0", "page --record"))
def page(
    url: Annotated[
        str | None,
        typer.Option(help="A page that runs already.", show_default="this checkout's"),
    ] = None,
    tensors: Annotated[
        str | None, typer.Option(help="Built-in tensors.", show_default="mlp_up,normal_4096")
    ] = None,
    actions: Annotated[str | None, typer.Option(help="What a visitor does.", show_default="all")] = None,
    repeats: Repeats = 5,
    updates: Annotated[int, typer.Option(min=0, help="Updates over which the memory is watched.")] = 200,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """The page in a headless Chromium: from a click or key to the painted answer, bytes, shifts, memory."""
    from lab.benchmarks import bench_page

    chosen, acts = (None if names is None else split(names) for names in (tensors, actions))
    run(bench_page(chosen, acts, repeats, updates, url), record, as_json)


@app.command("first-numbers", epilog=examples("first-numbers --record", "first-numbers --shape 8192x8192"))
def first_numbers(
    shape: Shapes = None,
    url: Annotated[
        str | None,
        typer.Option(help="A page that runs already.", show_default="this checkout's"),
    ] = None,
    repeats: Repeats = 5,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """A large file on the page in a headless Chromium: its first numbers, and all of them."""
    from lab.benchmarks import bench_first_numbers

    run(bench_first_numbers(shapes_of(shape), repeats, url), record, as_json)


@app.command(epilog=examples("exports path/to/model"))
def exports(
    model: Annotated[str, typer.Argument(help="Folder of a causal model.")],
    record: Record = False,
    as_json: Json = False,
) -> None:
    """A recipe of 4.5 bits as files of every target, opened by its reader; vLLM by EXPLORER_VLLM_PYTHON."""
    from lab.exports import record_exports, run_exports

    if record:
        say(f"written: {record_exports(model)}", error=True)
        return
    rows = list(run_exports(model))
    emit(as_json, rows, PrintedTable(tuple(vars(rows[0])), [tuple(vars(row).values()) for row in rows]))


@app.command(epilog=examples("inputs", "inputs --record"))
def inputs(
    model: Embedder = None,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """A model with quantized weights and inputs, several times each: how far its embeddings move."""
    from lab.inputs import record_inputs, run_inputs

    loaded = _loaded(model)
    if record:
        say(f"written: {record_inputs(loaded)}", error=True)
        return
    rows = list(run_inputs(loaded))
    titles = ("weights", "method", "inputs", "order", "sample", "bits", "cosine", "rank", "neighbours")
    fields = ("scheme", "method", "activations", "order", "sample", "bits", "cosine", "rank", "neighbours")
    emit(as_json, rows, _table(rows, titles, fields))


@app.command(epilog=examples("ranking", "ranking --record"))
def ranking(
    model: Embedder = None,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Methods by the loss of a model and by the error of its layers, calibrated on 32 × 512 tokens."""
    from lab.ranking import record_ranking, run_ranking

    loaded = _loaded(model)
    if record:
        say(f"written: {record_ranking(loaded)}", error=True)
        return
    rows = list(run_ranking(loaded))
    titles = ("scheme", "method", "calibration", "tokens", "loss", "error", "of values", "but for token 1")
    fields = (
        "scheme",
        "method",
        "calibration",
        "tokens",
        "loss",
        "error",
        "value_loss",
        "value_loss_but_first",
    )
    emit(as_json, rows, _table(rows, titles, fields))


@app.command("bias-correction", epilog=examples("bias-correction --methods hqq", "bias-correction --record"))
def bias_correction(
    model: Embedder = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated methods, beside rtn.", show_default="hqq,awq,gptq,autoround"),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, max=3, help="Samples of calibration texts, of one each.")
    ] = 3,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """A model by several methods, without and with bias correction; the constant part of layers' errors."""
    from lab.bias_correction import METHODS, record_bias, run_bias

    chosen = METHODS if methods is None else split(methods)
    loaded = _loaded(model)
    if record:
        say(f"written: {record_bias(loaded, chosen, samples)}", error=True)
        return
    rows = list(run_bias(loaded, chosen, samples=samples))
    emit(as_json, rows, PrintedTable(tuple(vars(rows[0])), [tuple(vars(row).values()) for row in rows]))


@app.command("nvfp4-training", epilog=examples("nvfp4-training --seeds 2", "nvfp4-training --record"))
def nvfp4_training(
    seeds: Annotated[int, typer.Option(min=1, help="Networks of each kind.")] = 12,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Train a small network in NVFP4, without each of its rules, and in BF16 (about 15 minutes)."""
    from lab.training_precision import record_precisions, run_precisions

    if record:
        say(f"written: {record_precisions(seeds)}", error=True)
        return
    rows = list(run_precisions(seeds))
    emit(as_json, rows, PrintedTable(tuple(vars(rows[0])), [tuple(vars(row).values()) for row in rows]))


@app.command(epilog=examples("accumulation", "accumulation --record"))
def accumulation(record: Record = False, as_json: Json = False) -> None:
    """Bits of a sum that a Hopper GPU's FP8 tensor cores keep, and their cost over long sums."""
    from lab.accumulation import record_sums, run_sums

    if record:
        say(f"written: {record_sums()}", error=True)
        return
    rows = list(run_sums())
    emit(as_json, rows, _table(rows, tuple(vars(rows[0])), tuple(vars(rows[0]))))


@app.command("vector-codes", epilog=examples("vector-codes --codes e8p,1mad_12", "vector-codes --record"))
def vector_codes(
    model: Embedder = None,
    codes: Annotated[str | None, typer.Option(help="Comma-separated codes.", show_default="all")] = None,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Errors of lattice and trellis quantizers at two bits (about 20 minutes, nearly all of 2^16 states)."""
    from explorer.models.evaluate import MODEL
    from lab.vector_codes import CODES, record_vector_codes, run_vector_codes

    if record and codes:
        raise ValueError("--record writes the whole table: give no --codes")
    if record:
        say(f"written: {record_vector_codes(model or MODEL)}", error=True)
        return
    rows = list(run_vector_codes(model or MODEL, tuple(CODES) if codes is None else split(codes)))
    emit(as_json, rows, PrintedTable(tuple(vars(rows[0])), [tuple(vars(row).values()) for row in rows]))


@app.command(epilog=examples("cache path/to/model", "cache path/to/model --record"))
def cache(
    model: Annotated[str, typer.Argument(help="Folder of a causal model.")],
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Formats of keys and of values: what each costs a causal model."""
    from explorer.core.backend import work_device
    from explorer.models.capture import load_model
    from lab.cache import record_cache, run_cache

    loaded = load_model(model, device=work_device(), head=True)
    if record:
        say(f"written: {record_cache(loaded)}", error=True)
        return
    rows = list(run_cache(loaded))
    fields = ("keys", "values", "recent", "rotated", "bits", "kl", "low", "high", "same_top")
    emit(as_json, rows, _table(rows, fields, fields))


@app.command("large-model", epilog=examples("large-model path/to/tokenizer --record"))
def large_model(
    tokenizer: Annotated[str, typer.Argument(help="Folder of a model with the tokenizer to take.")],
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Time and memory of a survey, a recipe and a checkpoint of a model of 7 B random weights."""
    from lab.large_model import record_large_model, run_large_model

    if record:
        say(f"written: {record_large_model(Path(tokenizer))}", error=True)
        return
    rows = list(run_large_model(Path(tokenizer)))
    fields = ("step", "weights", "seconds", "memory", "gpu_memory", "file_bytes", "signal")
    emit(as_json, rows, _table(rows, fields, fields))


@app.command("method-recipes", epilog=examples("method-recipes --causal path/to/model --record"))
def method_recipes(
    model: Embedder = None,
    causal: Annotated[str | None, typer.Option(help="Folder of a causal model, run too.")] = None,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Recipes that choose a method for each layer, beside rounding and one method for all (minutes)."""
    from explorer.models.evaluate import MODEL
    from lab.method_recipes import measure_methods, record_methods

    if record:
        say(f"written: {record_methods(model or MODEL, causal)}", error=True)
        return
    every = measure_methods(model or MODEL, causal)
    fields = ("budget", "method", "by_layer", "layers", "bits", "predicted", "loss", "low", "high")
    emit(as_json, every, _table([run for one in every for run in one.runs], fields, fields))


@app.command(epilog=examples("dithered path/to/model path/to/folder"))
def dithered(
    model: Annotated[str, typer.Argument(help="The folder of a model that was restored from codes.")],
    out: Annotated[str, typer.Argument(help="The folder to write; there must be none yet.")],
    as_json: Json = False,
) -> None:
    """A model off the grid of the codes that it was restored from: noise within each weight's cell."""
    from lab.dithered import write_dithered

    written = write_dithered(Path(model), Path(out))
    if as_json:
        print_json({"written": str(written)})
    else:
        say(f"written: {written}")


@app.command(epilog=examples("texts path/to/model --record"))
def texts(
    model: Annotated[str, typer.Argument(help="Folder or Hub id of a causal model.")],
    record: Record = False,
    as_json: Json = False,
) -> None:
    """One prompt, continued by a model and by schemes of it: the run that the page shows without a model."""
    from explorer.core.backend import work_device
    from lab.texts import record_texts, write_texts

    if record:
        say(f"written: {record_texts(model)}", error=True)
        return
    rows = list(write_texts(model, work_device()))
    lines = [(one.scheme or "original", one.engine, one.text) for one in rows]
    emit(as_json, rows, PrintedTable(("linear layers", "engine", "text"), lines))


@app.command(epilog=examples("vllm", "vllm --record"))
def vllm(record: Record = False, as_json: Json = False) -> None:
    """Open every scheme of compressed-tensors by vLLM, whose Python EXPLORER_VLLM_PYTHON names."""
    from lab.vllm import record_vllm, run_vllm

    if record:
        say(f"written: {record_vllm()}", error=True)
        return
    rows = list(run_vllm())
    emit(as_json, rows, PrintedTable(tuple(vars(rows[0])), [tuple(vars(row).values()) for row in rows]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes are those of ``explorer``."""
    return run_command(app, sys.argv[1:] if argv is None else argv, "lab")
