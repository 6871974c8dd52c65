"""``explorer bench``: time the library on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli.device import Device, use_device
from explorer.cli.options import (
    AllSchemes,
    Json,
    Shapes,
    examples,
    gemm_shapes,
    matrix_shapes,
    parse_scheme,
    parse_schemes,
    split,
    whole_numbers,
)
from explorer.cli.output import PrintedTable, counted, hide_bars_of_transformers, print_json, print_table, say
from explorer.paths import checkout

if TYPE_CHECKING:
    from explorer.bench.commands import Benchmark

app = typer.Typer(help="Time the library on this machine.")

Repeats = Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")]


def _in_a_checkout(record: bool) -> bool:
    """``--record``, refused before anything else in an installed package."""
    if record:
        checkout()
    return record


Record = Annotated[
    bool,
    typer.Option("--record", callback=_in_a_checkout, help="Write the results to assets/measurements/."),
]


@app.command(epilog=examples("bench cpu", "bench cpu --shape 1024x1024 --schemes nvfp4,int8_row"))
def cpu(
    shape: Shapes = None, schemes: AllSchemes = None, repeats: Repeats = 3, as_json: Json = False
) -> None:
    """The CPU reference: quantize, dequantize and report."""
    from explorer.bench.commands import bench_cpu

    run(bench_cpu(parse_schemes(schemes), matrix_shapes(shape), repeats), False, as_json)


@app.command(epilog=examples("bench model path/to/model --device cpu", "bench model path/to/model --record"))
def model(
    model: Annotated[str, typer.Argument(help="A folder of a causal language model, or a Hub id.")],
    schemes: Annotated[
        str | None, typer.Option("--schemes", help="Comma-separated schemes.", show_default="q8_0,q4_0")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="The beginning of the text.", show_default="a built-in text of 660 characters"),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens that are written.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; the fastest counts.")] = 3,
    record: Record = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """A model that writes, as it is and by each scheme, by each engine: tokens a second, bytes, KL."""
    hide_bars_of_transformers(as_json)
    from explorer.bench.commands import bench_model

    use_device(device)
    chosen = None if schemes is None else split(schemes)
    run(bench_model(model, chosen, tokens, repeats, prompt), record, as_json)


@app.command(epilog=examples("bench quantize --schemes nvfp4 --dtypes bfloat16", "bench quantize --record"))
def quantize(
    shape: Shapes = None,
    schemes: Annotated[
        str | None,
        typer.Option("--schemes", help="Comma-separated schemes.", show_default="all with kernels"),
    ] = None,
    dtypes: Annotated[str, typer.Option(help="Input types of the kernels.")] = "float32,bfloat16",
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", "--no-peers", help="Leave torch's cast and torch.compile out.")
    ] = False,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """The quantize and dequantize kernels, against a copy and torch's own. Calls from Python and
    torch.compile are timed at the first shape."""
    from explorer.bench.commands import bench_quantize

    chosen, shapes = None if schemes is None else parse_schemes(schemes), matrix_shapes(shape)
    run(bench_quantize(chosen, shapes, split(dtypes), not no_baselines), record, as_json)


@app.command(
    epilog=examples(
        "bench gemm --shape 4096x4096x4096 --gemms bf16,int8,w4a16_group128 --variants all",
        "bench gemm --shape 1x8192x8192 --sweep-m",
        "bench gemm --device cpu --record-to mine.json",
        "bench gemm --record",
    )
)
def gemm(
    shape: Annotated[
        list[str] | None, typer.Option(help="M x N x K, e.g. 4096x4096x4096; may be repeated.")
    ] = None,
    gemms: Annotated[
        str | None, typer.Option("--gemms", "--rows", help="Comma-separated GEMMs.", show_default="all")
    ] = None,
    variants: Annotated[
        str,
        typer.Option(
            "--variants",
            "--steps",
            help="auto (the recorded fastest at the nearest shape), fastest (those that may be), all, "
            "or the name of one; on a CPU all, or a library such as llama.cpp.",
        ),
    ] = "auto",
    sweep_m: Annotated[
        bool, typer.Option("--sweep-m", help="M = 1, 2, 4 … 8192 at the shape's N and K.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after so long and keep what was measured.")
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Layers of known models and small ones instead of --shape.")
    ] = False,
    record: Record = False,
    record_to: Annotated[
        Path | None,
        typer.Option("--record-to", help="Write the results to this file, which the page's Speed opens."),
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Matrix products on the GPU; on the CPU (--device cpu, or without a GPU) by torch, ONNX Runtime and
    llama.cpp, at one token and at 256."""
    from explorer.bench.commands import bench_gemm
    from explorer.core.backend import gpu_status

    use_device(device)
    names, shapes = split(gemms) if gemms is not None else None, gemm_shapes(shape)
    recorded = bool(record or record_to) and not shapes
    benchmark = bench_gemm(names, shapes, variants, sweep_m, recorded, seconds, layers)
    if not benchmark.machine.gpu:
        say(f"products on this CPU, none on a GPU ({gpu_status().reason})", error=True)
    run(benchmark, record, as_json, record_to)


@app.command(
    epilog=examples(
        "bench steps --shapes Llama-3-8B --schemes int4_group128,nvfp4 --batches 1,16",
        "bench steps --record",
    )
)
def steps(
    shapes: Annotated[
        str | None, typer.Option(help="Comma-separated shapes of models.", show_default="all")
    ] = None,
    schemes: Annotated[
        str | None,
        typer.Option(help="Comma-separated schemes; weights+inputs quantizes inputs.", show_default="five"),
    ] = None,
    batches: Annotated[str, typer.Option(help="Comma-separated numbers of texts.")] = "1,8,16,32,64",
    head: Annotated[
        str | None, typer.Option(help="Scheme of the output head.", show_default="bfloat16")
    ] = None,
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Decoding and prefill of models' shapes with random weights on the GPU, against bfloat16."""
    from explorer.bench.commands import bench_steps

    sizes = whole_numbers(batches, "--batches")
    chosen = None if schemes is None else split(schemes)
    names = None if shapes is None else split(shapes)
    run(bench_steps(names, chosen, sizes, parse_scheme(head) if head else None), record, as_json)


@app.command(
    epilog=examples(
        'bench grouped --products fp8_blockwise_masked --cases "64 experts, 4 tokens each"',
        "bench grouped --record",
    )
)
def grouped(
    products: Annotated[
        str | None, typer.Option(help="Comma-separated grouped products.", show_default="all")
    ] = None,
    cases: Annotated[
        list[str] | None, typer.Option(help="A case by its name; may be repeated.", show_default="all")
    ] = None,
    record: Record = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Products of a mixture of experts, each row of X times the W of its group, on a Hopper GPU."""
    from explorer.bench.commands import bench_grouped

    use_device(device)
    run(bench_grouped(split(products) if products is not None else None, cases), record, as_json)


def run(benchmark: Benchmark[Any], record: bool, as_json: bool, to: Path | None = None) -> None:
    """Measure; write the rows to the recordings, or to a file, if asked to; print them with what is to be
    said of them."""
    from explorer.recordings.files import kept_each, recording_json

    if record:
        benchmark.check_recordable()
    measured_rows = benchmark.rows
    if to is not None:  # a run that is cut off keeps what it has
        measured_rows = kept_each(measured_rows, lambda done: benchmark.record(done, to))
    rows = counted("timings", measured_rows, benchmark.total, as_json)
    if record:
        say(f"written: {benchmark.record(rows)}", error=True)
    if to is not None:
        say(f"written: {to}", error=True)
    for note in benchmark.notes if as_json else ():
        say(note, error=True)
    if as_json:
        measured = recording_json(benchmark.machine, rows)
        print_json(measured["rows"] if benchmark.name == "cpu" else measured)
        return
    say(benchmark.machine.describe())
    print_table(_table(benchmark.line(row) for row in rows))
    for note in benchmark.notes:
        say(note)


def _table(lines: Iterable[dict[str, Any]]) -> PrintedTable:
    rows = list(lines)
    return PrintedTable(tuple(rows[0]) if rows else (), [list(row.values()) for row in rows])
