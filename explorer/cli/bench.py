"""Commands on speed: ``bench`` times the library on this machine, ``speed`` reads recordings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli.commands import add_command
from explorer.cli.options import (
    MEASURING,
    AllSchemes,
    Device,
    Json,
    Shapes,
    listed,
    parse_scheme,
    parse_schemes,
    shapes_of,
    sizes,
    split,
    use_device,
    whole_numbers,
)
from explorer.cli.output import (
    PrintedTable,
    counted,
    emit,
    hide_bars_of_transformers,
    say,
    table_of,
    written,
)
from explorer.paths import checkout

if TYPE_CHECKING:
    from explorer.bench.commands import Benchmark
    from explorer.products.shape_times import ShapeTime

top = typer.Typer()
app = typer.Typer(help="Time the library on this machine.")
command, top_command = partial(add_command, app, None), partial(add_command, top, MEASURING)

Repeats = Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")]


def _in_a_checkout(record: bool) -> bool:
    """Refuse ``--record`` in an installed package, before any work."""
    if record:
        checkout()
    return record


Record = Annotated[
    bool,
    typer.Option("--record", callback=_in_a_checkout, help="Write the results to assets/measurements/."),
]


@command("bench cpu", "bench cpu --shape 1024x1024 --schemes nvfp4,int8_row")
def cpu(
    shape: Shapes = None, schemes: AllSchemes = None, repeats: Repeats = 3, as_json: Json = False
) -> None:
    """The CPU reference: quantize, dequantize and report."""
    from explorer.bench.commands import bench_cpu

    run(bench_cpu(parse_schemes(schemes), shapes_of(shape), repeats), False, as_json)


@command("bench model path/to/model --device cpu", "bench model path/to/model --record")
def model(
    model: str = typer.Argument(help="A folder of a causal language model, or a Hub id."),
    schemes: str | None = typer.Option(
        None, "--schemes", help="Comma-separated schemes.", show_default="q8_0,q4_0"
    ),
    prompt: str | None = typer.Option(
        None, help="The beginning of the text.", show_default="a built-in text of 660 characters"
    ),
    tokens: int = typer.Option(64, min=2, help="Tokens that are written."),
    repeats: int = typer.Option(3, min=1, help="Runs of each; the fastest counts."),
    record: Record = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """A model that writes, as it is and by each scheme, by each engine: tokens a second, bytes, KL."""
    hide_bars_of_transformers(as_json)
    from explorer.bench.commands import bench_model

    use_device(device)
    run(bench_model(model, listed(schemes) or None, tokens, repeats, prompt), record, as_json)


@command("bench quantize --schemes nvfp4 --dtypes bfloat16", "bench quantize --record")
def quantize(
    shape: Shapes = None,
    schemes: str | None = typer.Option(
        None, "--schemes", help="Comma-separated schemes.", show_default="all with kernels"
    ),
    dtypes: str = typer.Option("float32,bfloat16", help="Input types of the kernels."),
    no_baselines: bool = typer.Option(
        False, "--no-baselines", help="Leave torch's cast and torch.compile out."
    ),
    record: Record = False,
    as_json: Json = False,
) -> None:
    """The quantize and dequantize kernels, against a copy and torch's own. Calls from Python and
    torch.compile are timed at the first shape."""
    from explorer.bench.commands import bench_quantize

    chosen, shapes = None if schemes is None else parse_schemes(schemes), shapes_of(shape)
    run(bench_quantize(chosen, shapes, split(dtypes), not no_baselines), record, as_json)


@command(
    "bench gemm --shape 4096x4096x4096 --gemms bf16,int8,w4a16_group128 --variants all",
    "bench gemm --shape 1x8192x8192 --sweep-m",
    "bench gemm --device cpu --record-to mine.json",
    "bench gemm --record",
)
def gemm(
    shape: list[str] | None = typer.Option(None, help="M x N x K, e.g. 4096x4096x4096; may be repeated."),
    gemms: str | None = typer.Option(None, help="Comma-separated GEMMs.", show_default="all"),
    variants: str = typer.Option(
        "auto",
        help="auto (the recorded fastest at the nearest shape), fastest (those that may be), all, "
        "or the name of one; on a CPU all, or a library such as llama.cpp.",
    ),
    sweep_m: bool = typer.Option(False, "--sweep-m", help="M = 1, 2, 4 … 8192 at the shape's N and K."),
    seconds: float | None = typer.Option(None, help="Stop after so long and keep what was measured."),
    layers: bool = typer.Option(
        False, "--layers", help="Layers of known models and small ones instead of --shape."
    ),
    record: Record = False,
    record_to: Path | None = typer.Option(
        None, "--record-to", help="Write the results to this file, which the page's Speed opens."
    ),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Matrix products on the GPU; on the CPU (--device cpu, or without a GPU) by torch, ONNX Runtime and
    llama.cpp, at one token and at 256."""
    from explorer.bench.commands import bench_gemm
    from explorer.core.backend import gpu_status

    use_device(device)
    names, shapes = listed(gemms) or None, shapes_of(shape, "M x N x K")
    recorded = bool(record or record_to) and not shapes
    benchmark = bench_gemm(names, shapes, variants, sweep_m, recorded, seconds, layers)
    if not benchmark.machine.gpu:
        say(f"products on this CPU, none on a GPU ({gpu_status().reason})", error=True)
    run(benchmark, record, as_json, record_to)


@command(
    "bench steps --shapes Llama-3-8B --schemes int4_group128,nvfp4 --batches 1,16", "bench steps --record"
)
def steps(
    shapes: str | None = typer.Option(None, help="Comma-separated shapes of models.", show_default="all"),
    schemes: str | None = typer.Option(
        None, help="Comma-separated schemes; weights+inputs quantizes inputs.", show_default="five"
    ),
    batches: str = typer.Option("1,8,16,32,64", help="Comma-separated numbers of texts."),
    head: str | None = typer.Option(None, help="Scheme of the output head.", show_default="bfloat16"),
    record: Record = False,
    as_json: Json = False,
) -> None:
    """Decoding and prefill of models' shapes with random weights on the GPU, against bfloat16."""
    from explorer.bench.commands import bench_steps

    names, chosen, texts = (
        listed(shapes) or None,
        listed(schemes) or None,
        whole_numbers(batches, "--batches"),
    )
    run(bench_steps(names, chosen, texts, parse_scheme(head) if head else None), record, as_json)


@command(
    'bench grouped --products fp8_blockwise_masked --cases "64 experts, 4 tokens each"',
    "bench grouped --record",
)
def grouped(
    products: str | None = typer.Option(None, help="Comma-separated grouped products.", show_default="all"),
    cases: list[str] | None = typer.Option(
        None, help="A case by its name; may be repeated.", show_default="all"
    ),
    record: Record = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Products of a mixture of experts, each row of X times the W of its group, on a Hopper GPU."""
    from explorer.bench.commands import bench_grouped

    use_device(device)
    run(bench_grouped(listed(products) or None, cases), record, as_json)


def run(benchmark: Benchmark[Any], record: bool, as_json: bool, to: Path | None = None) -> None:
    """Measure, and print the rows and notes; write the rows to the recordings, or to the file ``to``."""
    from explorer.recordings.files import kept_each, recording_json

    if record:
        benchmark.check_recordable()
    measured_rows = benchmark.rows
    if to is not None:  # a run that is cut off keeps what it has
        measured_rows = kept_each(measured_rows, lambda done: benchmark.record(done, to))
    rows = counted("timings", measured_rows, benchmark.total, as_json)
    for path in (benchmark.record(rows) if record else None, to):
        say(*filter(None, [written(path)]), error=True)
    if as_json:
        say(*benchmark.notes, error=True)
    measured = recording_json(benchmark.machine, rows)
    records = measured["rows"] if benchmark.name == "cpu" else measured
    table = table_of(map(benchmark.line, rows))
    emit(as_json, records, benchmark.machine.describe(), table, *benchmark.notes)


@top_command("speed 14336x4096 --schemes nvfp4,mxfp4,int4_group128_asym", "speed 4096x4096 --tokens 1,8,256")
def speed(
    shape: str = typer.Argument(help="N x K of the weight, e.g. 4096x11008."),
    schemes: str = typer.Option(
        "bf16,int8_row,fp8_e4m3_row,nvfp4,mxfp4,int4_group128", help="Comma-separated schemes."
    ),
    tokens: str = typer.Option("1,64,4096", help="Comma-separated numbers of tokens (M)."),
    as_json: Json = False,
) -> None:
    """Time of a weight's product on the recorded GPU, by scheme, at the nearest recorded shape.

    Compare times of one shape only. The limit is of the shape asked for and not measured: bytes over the
    GPU's bandwidth or operations over its peak, whichever is longer.
    """
    from explorer.products.shape_times import shape_times
    from explorer.recordings.gemm import recorded_gemms

    n, k = sizes(shape, "N x K", "SHAPE")
    counts = whole_numbers(tokens, "--tokens")
    rows = [
        (scheme.name, time) for scheme in parse_schemes(schemes) for time in shape_times(scheme, n, k, counts)
    ]
    records = [_record(name, time) for name, time in rows]
    columns = ("scheme", "tokens", "µs", "limit (not measured), µs", "product", "kernel", "how")
    table = PrintedTable(columns, [list(record.values())[: len(columns)] for record in records])
    emit(as_json, records, f"{recorded_gemms().sentence}.", table)


def _record(scheme: str, time: ShapeTime) -> dict[str, object]:
    return {
        "scheme": scheme,
        "tokens": time.shape[0],
        "microseconds": _micro(time.seconds),
        "limit_microseconds": _micro(time.limit_s),
        "product": time.product,
        "kernel": time.kernel,
        "how": time.how,
        "kind": time.kind,
        "at": time.at,
        "gpu": time.gpu,
        "date": time.date,
    }


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e6 * seconds, 2)


@top_command("compile --arch sm_90a", "compile --arch sm_80 --workers 2")
def compile(
    arch: list[str] | None = typer.Option(
        None, help="E.g. sm_90a; may be repeated.", show_default="that of the GPU found"
    ),
    workers: int | None = typer.Option(
        None, min=1, help="How many nvcc at a time.", show_default="one a core"
    ),
    as_json: Json = False,
) -> None:
    """Compile the GPU kernels ahead of time (needs nvcc, no GPU)."""
    from explorer.core.backend import gpu_arch
    from explorer.core.builds import all_builds
    from explorer.core.serialize import to_json
    from explorer.gpu import runtime
    from explorer.gpu.attend import attend_builds
    from explorer.products.gemms import all_builds as gemm_builds
    from explorer.products.grouped import all_builds as grouped_builds

    arches = arch or [found for found in [gpu_arch()] if found]
    if not arches:
        raise ValueError("no GPU found to compile for; name one with --arch, e.g. --arch sm_90a")
    jobs = []
    for name in arches:
        chip = runtime.capability_of(name)
        attention = attend_builds(chip[0] == 9) if chip >= (8, 0) else []
        every = dict.fromkeys([*all_builds(), *gemm_builds(chip), *grouped_builds(chip), *attention])
        jobs += [(build, name) for build in every]
    records = [
        {
            "arch": name,
            "file": build.file,
            "options": " ".join(f"{key}={value}" for key, value in build.macros),
            "kernel": kernel,
            **to_json(used),
        }
        for build, name in counted("compiled", runtime.compile_jobs(jobs, workers), len(jobs), as_json)
        for kernel, used in runtime.resources(build, name).items()
    ]
    emit(as_json, records, table_of(records))
