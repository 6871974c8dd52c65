"""``python -m lab``: what measures and compares the explorer, and writes its measured pages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.app import run_command
from explorer.cli.bench import Record, Repeats, run
from explorer.cli.commands import add_command
from explorer.cli.options import (
    AllSchemes,
    Device,
    Json,
    Shapes,
    TextOptions,
    check_readable,
    parse_schemes,
    shapes_of,
    split,
    texts_option,
    use_device,
)
from explorer.cli.output import PrintedTable, emit, hide_bars_of_transformers, say, table_of
from lab.conformance import command as conformance

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
command = partial(add_command, app, None, program="python -m lab")


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


@command("docs", "docs --check")
def docs(
    check: bool = typer.Option(False, "--check", help="Write nothing; exit code 1 if a page would change."),
    record: bool = typer.Option(
        False, "--record", help="First run and record whole models and training (minutes)."
    ),
    model: str | None = typer.Option(
        None, help="Folder or Hub id, for --record.", show_default="sentence-transformers/all-MiniLM-L6-v2"
    ),
    causal: str | None = typer.Option(
        None, help="Folder or Hub id of a causal model to run recipes of, and record (minutes)."
    ),
    figures: bool = typer.Option(
        False, "--figures", help="Draw figures anew that are behind their recordings (Chromium)."
    ),
    written: bool = typer.Option(
        False, "--written", help="Record recipes for targets, of --model and --causal (minutes)."
    ),
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
        emit(as_json, {"written": list(map(str, changed))}, *(f"written: {path}" for path in changed))
        return
    stale = [path.name for path in (*check_docs(folder), *stale_figures(folder))]
    emit(as_json, {"stale": stale}, None if stale else "docs/ says what the recordings say")
    if stale:
        say(f"docs/ is behind its recordings: {', '.join(stale)}; run `make docs`", error=True)
        raise typer.Exit(1)


@command("files path/to/model --rows 'recipe-as-*,Q4_K_M*'", "files path/to/model --record")
def files(
    model: str = typer.Argument(help="A folder of a causal language model, or a Hub id."),
    rows: str | None = typer.Option(
        None, "--rows", help="Comma-separated names of rows, or patterns.", show_default="all"
    ),
    text: str | None = texts_option("to measure on"),
    calibration: str | None = texts_option("for surveys, importances and methods"),
    texts: int = typer.Option(16, min=2, help="Sequences of 128 tokens of the built-in texts."),
    record: Record = False,
    record_to: Path | None = typer.Option(None, "--record-to", help="Write the rows to this file."),
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


@command("methods --schemes int4_group128_asym --repeats 1")
def methods(
    shape: Shapes = None,
    schemes: str = typer.Option("int4_group128_asym", help="Comma-separated schemes."),
    repeats: Repeats = 3,
    record: Record = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """GPTQ, AWQ and the other methods on a random layer."""
    from lab.benchmarks import bench_methods

    use_device(device)
    run(bench_methods(parse_schemes(schemes), shapes_of(shape), repeats), record, as_json)


@command("analysis --schemes nvfp4,int8_row")
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


@command("sizes --schemes nvfp4 --shape 4096x4096", "sizes --record")
def sizes(
    shape: Shapes = None,
    schemes: str | None = typer.Option(
        None, help="Comma-separated schemes.", show_default="one of each kind"
    ),
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Time and memory for each element of tensors from 1 M to 1 G elements, on one thread of the CPU."""
    from lab.benchmarks import bench_sizes

    chosen = None if schemes is None else parse_schemes(schemes)
    run(bench_sizes(chosen, shapes_of(shape)), record, as_json)


@command("page", "page --tensors mlp_up --updates 0", "page --record")
def page(
    url: str | None = typer.Option(None, help="A page that runs already.", show_default="this checkout's"),
    tensors: str | None = typer.Option(None, help="Built-in tensors.", show_default="mlp_up,normal_4096"),
    actions: str | None = typer.Option(None, help="What a visitor does.", show_default="all"),
    repeats: Repeats = 5,
    updates: int = typer.Option(200, min=0, help="Updates over which the memory is watched."),
    record: Record = False,
    as_json: Json = False,
) -> None:
    """The page in a headless Chromium: from a click or key to the painted answer, bytes, shifts, memory."""
    from lab.benchmarks import bench_page

    chosen, acts = (None if names is None else split(names) for names in (tensors, actions))
    run(bench_page(chosen, acts, repeats, updates, url), record, as_json)


@command("first-numbers --record", "first-numbers --shape 8192x8192", name="first-numbers")
def first_numbers(
    shape: Shapes = None,
    url: str | None = typer.Option(None, help="A page that runs already.", show_default="this checkout's"),
    repeats: Repeats = 5,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """A large file on the page in a headless Chromium: its first numbers, and all of them."""
    from lab.benchmarks import bench_first_numbers

    run(bench_first_numbers(shapes_of(shape), repeats, url), record, as_json)


@command("exports path/to/model")
def exports(
    model: str = typer.Argument(help="Folder of a causal model."),
    record: Record = False,
    as_json: Json = False,
) -> None:
    """A recipe of 4.5 bits as files of every target, opened by its reader; vLLM by EXPLORER_VLLM_PYTHON."""
    from lab.exports import record_exports, run_exports

    if record:
        say(f"written: {record_exports(model)}", error=True)
        return
    rows = list(run_exports(model))
    emit(as_json, rows, table_of(map(vars, rows)))


@command("inputs", "inputs --record")
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


@command("ranking", "ranking --record")
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


@command("bias-correction --methods hqq", "bias-correction --record", name="bias-correction")
def bias_correction(
    model: Embedder = None,
    methods: str | None = typer.Option(
        None, help="Comma-separated methods, beside rtn.", show_default="hqq,awq,gptq,autoround"
    ),
    samples: int = typer.Option(3, min=1, max=3, help="Samples of calibration texts, of one each."),
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
    emit(as_json, rows, table_of(map(vars, rows)))


@command("nvfp4-training --seeds 2", "nvfp4-training --record", name="nvfp4-training")
def nvfp4_training(
    seeds: int = typer.Option(12, min=1, help="Networks of each kind."),
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Train a small network in NVFP4, without each of its rules, and in BF16 (about 15 minutes)."""
    from lab.training_precision import record_precisions, run_precisions

    if record:
        say(f"written: {record_precisions(seeds)}", error=True)
        return
    rows = list(run_precisions(seeds))
    emit(as_json, rows, table_of(map(vars, rows)))


@command("accumulation", "accumulation --record")
def accumulation(record: Record = False, as_json: Json = False) -> None:
    """Bits of a sum that a Hopper GPU's FP8 tensor cores keep, and their cost over long sums."""
    from lab.accumulation import record_sums, run_sums

    if record:
        say(f"written: {record_sums()}", error=True)
        return
    rows = list(run_sums())
    emit(as_json, rows, table_of(map(vars, rows)))


@command("vector-codes --codes e8p,1mad_12", "vector-codes --record", name="vector-codes")
def vector_codes(
    model: Embedder = None,
    codes: str | None = typer.Option(None, help="Comma-separated codes.", show_default="all"),
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
    emit(as_json, rows, table_of(map(vars, rows)))


@command("cache path/to/model", "cache path/to/model --record")
def cache(
    model: str = typer.Argument(help="Folder of a causal model."),
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


@command("large-model path/to/tokenizer --record", name="large-model")
def large_model(
    tokenizer: str = typer.Argument(help="Folder of a model with the tokenizer to take."),
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


@command("method-recipes --causal path/to/model --record", name="method-recipes")
def method_recipes(
    model: Embedder = None,
    causal: str | None = typer.Option(None, help="Folder of a causal model, run too."),
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


@command("dithered path/to/model path/to/folder")
def dithered(
    model: str = typer.Argument(help="The folder of a model that was restored from codes."),
    folder: str = typer.Argument(help="The folder to write; there must be none yet."),
    as_json: Json = False,
) -> None:
    """A model off the grid of the codes that it was restored from: noise within each weight's cell."""
    from lab.dithered import write_dithered

    written = write_dithered(Path(model), Path(folder))
    emit(as_json, {"written": str(written)}, f"written: {written}")


@command("texts path/to/model --record")
def texts(
    model: str = typer.Argument(help="Folder or Hub id of a causal model."),
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


@command("vllm", "vllm --record")
def vllm(record: Record = False, as_json: Json = False) -> None:
    """Open every scheme of compressed-tensors by vLLM, whose Python EXPLORER_VLLM_PYTHON names."""
    from lab.vllm import record_vllm, run_vllm

    if record:
        say(f"written: {record_vllm()}", error=True)
        return
    rows = list(run_vllm())
    emit(as_json, rows, table_of(map(vars, rows)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit codes are those of ``explorer``."""
    return run_command(app, sys.argv[1:] if argv is None else argv, "lab")
