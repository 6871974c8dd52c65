"""Recordings as Markdown tables: the measured part of docs/.

Every function takes recordings and gives a table. Missing recordings are marked in their cells.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from explorer import words
from explorer.bench.plan import SWEPT
from explorer.checkpoints import EXPORTS
from explorer.core.lowering import has_kernels, with_kernels
from explorer.cpu.products import CPU_PRODUCTS
from explorer.cpu.sentences import TERNARY, library
from explorer.gpu.quantize import RANGES
from explorer.methods import METHODS, label_of
from explorer.models.evaluate import SAMPLES, EmbeddingDrift, sentences
from explorer.products.advice import at_shape, fastest
from explorer.products.gemms import GEMMS
from explorer.products.grouped import GROUPED_HEADERS, grouped_rows, times
from explorer.products.shapes import DECODE, LARGE, SQUARE
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.grouped import GroupedTiming
from explorer.recordings.quantize import QuantizeTiming
from explorer.schemes import SCHEMES
from explorer.schemes.scheme import label_of_text
from explorer.training.digits import LSQ, POST, STRAIGHT, WIDTHS
from lab.analysis import AnalysisTiming
from lab.embeddings import METHODS_COMPARED, METHODS_SCHEMES, WEIGHTS, EmbeddingRun
from lab.first_numbers import FirstNumbers
from lab.intervals import half_interval_of_share, interval
from lab.methods import MethodTiming
from lab.page import PageTiming
from lab.sizes import SizeTiming
from lab.training import TrainingResult

Cells = Sequence[str]
BIG, FITS_A_CACHE = (16384, 16384), (4096, 4096)
QUANTIZE_COLUMNS = (
    ("quantize", "float32", "quantize fp32"),
    ("quantize", "bfloat16", "quantize bf16"),
    ("dequantize", "float32", "dequantize to fp32"),
    ("dequantize", "bfloat16", "to bf16"),
)
STAGES = (
    (POST, "rounded as they are"),
    (STRAIGHT, "trained through the rounding"),
    (LSQ, "trained, with learned step sizes (LSQ)"),
)


def fixed(value: float, digits: int = 2) -> str:
    """ "0.12" or "−0.12"; never "−0.00"."""
    return f"{'−' if round(value, digits) < 0 else ''}{abs(value):.{digits}f}"


def signed(difference: float, digits: int = 4) -> str:
    """ "+0.0012" or "−0.0012"; "+0.0000" of what rounds to 0."""
    return f"{'' if round(difference, digits) < 0 else '+'}{fixed(difference, digits)}"


def markdown(headers: Cells, rows: Iterable[Cells]) -> str:
    """A Markdown table; columns of numbers are aligned right."""
    body = [list(row) for row in rows]
    align = ["---:" if _is_numeric([row[i] for row in body]) else "---" for i in range(len(headers))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headers, align, *body))


def _is_numeric(column: Cells) -> bool:
    numbers = [cell for cell in column if cell and cell not in (NOT_RECORDED, "–")]
    return bool(numbers) and all(cell[0].isdigit() for cell in numbers)


# --- exports ---------------------------------------------------------------------------------------

TYPICAL = (4096, 4096)
"""The shape for which ``carried_table`` asks."""


def exports_table() -> str:
    """The targets of exports: what each is for, what reads it back, and how near that is."""
    rows = [
        [f"`{row.name}`", row.label, row.why, row.reader, row.exact, f"`{row.suffix}`"]
        for row in EXPORTS.values()
    ]
    return markdown(["name", "target", "what it is", "read back by", "its weights", "one tensor"], rows)


def carried_table() -> str:
    """Named schemes, and which targets carry each of them."""
    coded = [scheme for scheme in SCHEMES.values() if scheme.plain_dtype is None]
    rows = []
    for scheme in coded:
        carried = [not row.refusal(scheme, TYPICAL) for row in EXPORTS.values()]
        if any(carried):
            rows.append([f"`{scheme.name}`", *("yes" if yes else "–" for yes in carried)])
    none = [s.name for s in coded if all(row.refusal(s, TYPICAL) for row in EXPORTS.values())]
    table = markdown(["scheme", *EXPORTS], rows)
    return f"{table}\n\nNo target carries {', '.join(f'`{name}`' for name in none)}."


# --- quantize --------------------------------------------------------------------------------------


def quantize_table(timings: Sequence[QuantizeTiming]) -> str:
    """Bytes that must move per second, and their share of a copy, for each recorded scheme at 16384×16384.
    Where the matrix is read twice, in brackets the share that counts it once."""
    cells = {(t.scheme, t.operation, t.dtype): _bandwidth(t) for t in timings if t.shape == BIG}
    rows = [
        [f"`{scheme}`", *(cells.get((scheme, *key[:2]), NOT_RECORDED) for key in QUANTIZE_COLUMNS)]
        for scheme in _schemes_of(timings)
    ]
    return markdown(["scheme", *(title for *_, title in QUANTIZE_COLUMNS)], rows)


def _schemes_of(timings: Sequence[QuantizeTiming]) -> Iterable[str]:
    """Every named scheme that kernels serve, then recordings under former names."""
    return dict.fromkeys([*(scheme.name for scheme in with_kernels()), *(t.scheme for t in timings)])


def without_kernels() -> str:
    """The named schemes that torch operations quantize on a GPU, too."""
    return ", ".join(f"`{scheme.name}`" for scheme in SCHEMES.values() if not has_kernels(scheme))


def ranged_by_torch() -> str:
    """Schemes with kernels whose ranges torch operations find, because no kernel has the calibrator."""
    names = [s.name for s in with_kernels() if s.scale and s.calibrator.name not in RANGES]
    return ", ".join(f"`{name}`" for name in names)


def read_twice_table(timings: Sequence[QuantizeTiming]) -> str:
    """Schemes at 4096×4096 whose range is found before the codes are made: the time, and the share of a copy
    by the bytes that move at least once."""
    cells = {
        (t.scheme, t.dtype): f"{_microseconds(t.time.median_s)} µs, {100 * t.least_share:.0f} %"
        for t in timings
        if t.shape == FITS_A_CACHE and t.operation == "quantize" and t.reads_twice
    }
    rows = [
        [f"`{name}`", cells.get((name, "float32"), NOT_RECORDED), cells.get((name, "bfloat16"), NOT_RECORDED)]
        for name in dict.fromkeys(name for name, _ in cells)
    ]
    return markdown(["scheme", "from fp32", "from bf16"], rows)


def _bandwidth(timing: QuantizeTiming) -> str:
    least = f" ({100 * timing.least_share:.0f} %)" if timing.reads_twice else ""
    return f"{timing.gigabytes_per_s / 1e3:.2f} TB/s, {100 * timing.share:.0f} %{least}"


def quantize_baselines_table(timings: Sequence[QuantizeTiming]) -> str:
    """Our kernel against torch's cast or torch.compile, where a scheme has such a baseline, at
    16384×16384."""
    rows = [
        [
            f"`{t.scheme}`",
            t.dtype,
            "torch's cast" if t.torch_cast_s else "torch.compile",
            _microseconds(t.torch_cast_s or t.torch_compile_s),
            _microseconds(t.time.median_s),
            times(t.speedup),
        ]
        for t in timings
        if t.speedup is not None and t.shape == BIG
    ]
    return markdown(["scheme", "from", "baseline", "its µs", "our µs", "times as fast"], rows)


def quantize_calls_table(timings: Sequence[QuantizeTiming]) -> str:
    """``explorer.quantize`` from BF16 as a program calls it: its share of a copy at 16384×16384, and the
    range of the time for 256×256 over repeats; a sentence where that was not recorded."""
    rows = [
        [
            f"`{t.scheme}`",
            f"{100 * t.call_share:.0f} %",
            f"{100 * t.call_share * t.call.checked.median_s / t.call.unchecked.median_s:.0f} %",
            f"{1e6 * t.small_call.checked.low_s:.0f} to {1e6 * t.small_call.checked.high_s:.0f}",
        ]
        for t in timings
        if (t.shape, t.dtype) == (BIG, "bfloat16") and t.call and t.small_call and t.call_share
    ]
    if not rows:
        return f"The calls are {NOT_RECORDED}: `explorer bench quantize --record`."
    headers = ["scheme", "of the copy", "unchecked", "µs for 256×256"]
    return markdown(headers, rows)


def analysis_table(timings: Sequence[AnalysisTiming]) -> str:
    """Milliseconds for everything that the Tensor place shows, by scheme and shape."""
    shapes = sorted({t.shape for t in timings})
    by = {(t.scheme, t.shape): f"{1e3 * t.median_s:.1f} ms" for t in timings}
    schemes = dict.fromkeys(t.scheme for t in timings)
    rows = [[f"`{s}`", *(by.get((s, shape), NOT_RECORDED) for shape in shapes)] for s in schemes]
    if others := [name for name in SCHEMES if name not in schemes]:
        rows.append([f"{len(others)} other schemes", *(NOT_RECORDED for _ in shapes)])
    return markdown(["scheme", *("×".join(map(str, shape)) for shape in shapes)], rows)


def first_numbers_table(rows: Sequence[FirstNumbers]) -> str:
    """Seconds to the first and to all numbers of large files on the page."""
    cells = [
        [
            f"{row.shape[0] * row.shape[1] / 1e6:.0f} M",
            row.act,
            words.duration(row.first_s),
            f"{words.duration(row.low_s)} to {words.duration(row.high_s)} ({row.repeats})",
            words.duration(row.whole_s),
        ]
        for row in rows
    ]
    headers = ["elements", "act", "first numbers", "least to most (repeats)", "all numbers"]
    return markdown(headers, cells or [[NOT_RECORDED, *[""] * (len(headers) - 1)]])


def _elements(count: int) -> str:
    """So many elements in units of 2^20, or of 2^30 from there on: "256 M", "1 G"."""
    million = count >> 20
    return f"{million >> 10} G" if million >= 1024 else f"{million} M"


def sizes_table(timings: Sequence[SizeTiming]) -> str:
    """CPU nanoseconds an element and memory by scheme, a row a size."""
    rows = [
        [
            f"`{t.scheme}`",
            _elements(t.shape[0] * t.shape[1]),
            *(f"{ns:.1f}" for ns in (t.quantize_ns, t.dequantize_ns, t.compare_ns)),
            words.bytes_(t.beside_bytes, 2),
        ]
        for t in sorted(timings, key=lambda t: [*dict.fromkeys(t.scheme for t in timings)].index(t.scheme))
    ]
    headers = ["scheme", "elements", "quantize, ns", "dequantize, ns", "compare, ns", "memory beside"]
    return markdown(headers, rows or [[NOT_RECORDED, *[""] * (len(headers) - 1)]])


# --- the page ----------------------------------------------------------------------------------------


def page_table(timings: Sequence[PageTiming]) -> str:
    """From a click or key to the painted answer, by action and tensor."""
    rows = [
        [
            t.action,
            f"`{t.tensor}`",
            words.duration(t.first_s),
            words.duration(t.median_s),
            words.duration(t.high_s),
            words.bytes_(t.received_bytes),
            words.number(t.layout_shift, 2),
            words.duration(t.longest_task_s) if t.longest_task_s else "below 50 ms",
            words.times(t.heap_growth) if t.heap_growth else "",
        ]
        for t in timings
    ]
    times = ["first change", "median", "longest"]
    headers = ["action", "tensor", *times, "received", "layout shift", "longest task", "memory"]
    return markdown(headers, rows or [[NOT_RECORDED, *[""] * (len(headers) - 1)]])


# --- products ----------------------------------------------------------------------------------------


def gemm_table(timings: Sequence[GemmTiming]) -> str:
    """Every product's fastest kernel at 4096³ and at 8192³, with its baseline and the output's error."""
    square, large = _fastest_at(timings, SQUARE), _fastest_at(timings, LARGE)
    rows = [_gemm_row(gemm.label, square.get(gemm.name), large.get(gemm.name)) for gemm in GEMMS.values()]
    headers = ["product", "kernel", "4096³ TFLOP/s", "× baseline", "8192³ TFLOP/s", "× baseline", "baseline"]
    return markdown([*headers, "SQNR of the output"], rows)


def _gemm_row(label: str, square: GemmTiming | None, large: GemmTiming | None) -> list[str]:
    if square is None:
        return [label, NOT_RECORDED, *[""] * 6]
    other = f"; at 8192³ {large.variant}" if large and large.variant != square.variant else ""
    return [
        label,
        square.variant + other,
        f"{square.tflops:.0f}",
        _graph_and_flushed(square),
        f"{large.tflops:.0f}" if large else NOT_RECORDED,
        _graph_and_flushed(large) if large else "",
        square.baseline,
        f"{square.sqnr_db:.1f} dB",
    ]


def decode_table(timings: Sequence[GemmTiming]) -> str:
    """One token, N = K = 8192: microseconds, against torch's BF16, and the share of the limit."""
    here = _fastest_at(timings, DECODE)
    torch_bf16 = here.get("bf16")
    rows = [_decode_row(GEMMS[name].label, here.get(name), torch_bf16) for name in SWEPT if name in GEMMS]
    headers = ["product", "kernel", "µs (graph / flushed)", "× torch BF16 (graph / flushed)", "of the limit"]
    return markdown([*headers, "SQNR of the output"], rows)


def cpu_table(timings: Sequence[GemmTiming], shape: Shape) -> str:
    """Every kernel of a CPU at one shape: time, threads, × float32, share of the limit, error, bytes."""
    here = {(t.gemm, t.variant): t for t in at_shape(timings, shape)}
    rows = [
        _cpu_row(row.label, kernel.name, here.get((row.name, kernel.name)))
        for row in CPU_PRODUCTS.values()
        for kernel in row.kernels
    ]
    headers = [
        "product",
        "kernel",
        "time (ms, 10 to 90 %)",
        "threads",
        "× float32",
        "of the limit",
        "SQNR of the output",
        "W",
    ]
    return markdown(headers, rows)


def _cpu_row(label: str, kernel: str, timing: GemmTiming | None) -> list[str]:
    if timing is None:
        return [label, kernel, NOT_RECORDED, *[""] * 5]
    spread = timing.graph
    return [
        label,
        kernel,
        f"{words.duration(timing.seconds)} ({1e3 * spread.low_s:.3g} to {1e3 * spread.high_s:.3g})",
        str(timing.threads),
        times(timing.speedup),
        f"{timing.share:.2f}" if timing.share else "–",
        f"{timing.sqnr_db:.1f} dB",
        words.bytes_(timing.weight_bytes),
    ]


def cpu_ternary_table(timings: Sequence[GemmTiming]) -> str:
    """Ternary weights and 2 bits on a CPU by the number of tokens, times as fast as float32 and as the same
    library's 4 bits."""
    tokens = sorted({t.shape[0] for t in timings})
    rows = []
    for name in (TERNARY, "w2_group32", "w2_group128", "q2_k"):
        for kernel in CPU_PRODUCTS[name].kernels:
            here = {t.shape[0]: t for t in timings if (t.gemm, t.variant) == (name, kernel.name)}
            gains = [times(here[m].speedup) if m in here else NOT_RECORDED for m in tokens]
            rows.append([CPU_PRODUCTS[name].label, kernel.name, *gains])
    return markdown(["product", "kernel", *(f"M = {m}" for m in tokens)], rows)


def cpu_sweep_table(timings: Sequence[GemmTiming]) -> str:
    """The fastest kernel of each product by the number of tokens, against the float32 timed in turns with
    it."""
    tokens = sorted({t.shape[0] for t in timings}) or [1]
    rows = []
    for name, row in CPU_PRODUCTS.items():
        gains = []
        for m in tokens:
            best = min((t for t in timings if (t.gemm, t.shape[0]) == (name, m)), key=_seconds, default=None)
            gains.append(f"{times(best.speedup)} {_library(best)}" if best else NOT_RECORDED)
        rows.append([row.label, *gains])
    return markdown(["product", *(f"M = {m}" for m in tokens)], rows)


def _seconds(timing: GemmTiming) -> float:
    return timing.seconds


def _library(timing: GemmTiming) -> str:
    name = library(timing)
    return "" if len({kernel.library.label for kernel in CPU_PRODUCTS[timing.gemm].kernels}) < 2 else name


SHOWN_TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096)


def sweep_table(timings: Sequence[GemmTiming]) -> str:
    """N = K = 8192: times as fast as torch's BF16 at the same M, by graph replay, of each product's fastest
    kernel; the first line is torch's BF16 in microseconds."""
    columns = [_fastest_at(timings, (m, *DECODE[1:])) for m in SHOWN_TOKENS]
    torch_s = [_bf16_seconds(column) for column in columns]
    first = [f"{1e6 * s:.1f}" if s else NOT_RECORDED for s in torch_s]
    rows = [["torch BF16, µs", *first]]
    for name in SWEPT:
        ratios = [
            s / column[name].seconds if s and name in column else None
            for s, column in zip(torch_s, columns, strict=True)
        ]
        rows.append([GEMMS[name].label, *map(times, ratios)])
    return markdown(["M", *map(words.count, SHOWN_TOKENS)], rows)


def _bf16_seconds(timings: dict[str, GemmTiming]) -> float | None:
    bf16 = timings.get("bf16")
    return bf16.baseline_graph.median_s if bf16 and bf16.baseline_graph else None


def _decode_row(label: str, t: GemmTiming | None, bf16: GemmTiming | None) -> list[str]:
    if t is None:
        return [label, NOT_RECORDED, "", "", "", ""]
    flushed = f"{1e6 * t.flush.median_s:.1f}" if t.flush else "–"
    graph, cold = None, None
    if bf16 and bf16.baseline_graph:
        graph = bf16.baseline_graph.median_s / t.seconds
    if bf16 and bf16.baseline_flush and t.flush:
        cold = bf16.baseline_flush.median_s / t.flush.median_s
    return [
        label,
        t.variant,
        f"{1e6 * t.seconds:.1f} / {flushed}",
        f"{times(graph)} / {times(cold)}",
        f"{100 * t.share:.0f} %" if t.share else "–",
        f"{t.sqnr_db:.1f} dB",
    ]


def grouped_table(timings: Sequence[GroupedTiming]) -> str:
    """``grouped_rows`` as Markdown."""
    rows = grouped_rows(timings)
    return markdown(GROUPED_HEADERS, rows or [[NOT_RECORDED, *[""] * (len(GROUPED_HEADERS) - 1)]])


def _fastest_at(timings: Sequence[GemmTiming], shape: Shape) -> dict[str, GemmTiming]:
    return {t.gemm: t for t in fastest(at_shape(timings, shape))}


def _graph_and_flushed(timing: GemmTiming) -> str:
    if timing.speedup is None:
        return "–"
    return f"{times(timing.speedup)} / {times(timing.flushed_speedup)}"


# --- methods -----------------------------------------------------------------------------------------


def method_table(timings: Sequence[MethodTiming]) -> str:
    """Time of each method for one layer."""
    rows = [
        [
            label_of(t.method),
            label_of_text(t.scheme),
            f"{'×'.join(map(str, t.shape))}, {t.tokens} tokens",
            words.duration(t.median_s),
            f"{words.duration(t.low_s)} to {words.duration(t.high_s)}",
        ]
        for t in timings
    ]
    recorded = {t.method for t in timings}
    rows += [[row.label, NOT_RECORDED, "", "", ""] for name, row in METHODS.items() if name not in recorded]
    return markdown(["method", "scheme", "layer", "median", "least to most"], rows)


# --- whole models --------------------------------------------------------------------------------------


def weights_table(drifts: Sequence[EmbeddingDrift]) -> str:
    """Weights alone, rounded to nearest."""
    by_run = by_embedding_run(drifts)
    rows = [_drift_row(label_of_text(run.scheme), by_run.get(run)) for run in WEIGHTS]
    return markdown(["weights, inputs in float32", "bits", "cosine", "rank", "neighbour"], rows)


def _drift_row(label: str, drift: EmbeddingDrift | None) -> list[str]:
    if drift is None:
        return [label, NOT_RECORDED, "", "", ""]
    shares = [f"{drift.cosine:.4f}", f"{drift.rank:.4f}", with_interval(drift.neighbours)]
    return [label, f"{drift.bits:.2f}", *shares]


def with_interval(share: float) -> str:
    """A share of the sentences compared, and half of its 95 % interval: how far it moves with the choice of
    them."""
    return f"{100 * share:.1f} ± {100 * half_interval_of_share(share, len(sentences())):.1f} %"


def methods_comparison_table(drifts: Sequence[EmbeddingDrift], timings: Sequence[MethodTiming]) -> str:
    """One method after another at the same bits, with what each costs for one layer on the GPU.

    Means over the samples of calibration texts, and in brackets the least and the most of them.
    """
    by_run = by_embedding_run(drifts)
    seconds = {t.method: t.median_s for t in timings}
    headers = ["method"]
    for scheme in METHODS_SCHEMES:
        headers += [f"{label_of_text(scheme)}: bits", "cosine", "rank"]
    rows = [
        [
            label_of(method),
            *(cell for s in METHODS_SCHEMES for cell in _quality(drifts_of(by_run, s, method))),
            words.duration(seconds[method]) if method in seconds else NOT_RECORDED,
        ]
        for method in METHODS_COMPARED
    ]
    return markdown([*headers, "one layer on the GPU"], rows)


def _quality(drifts: Sequence[EmbeddingDrift]) -> list[str]:
    if not drifts:
        return [NOT_RECORDED, "", ""]
    cosines, ranks = [d.cosine for d in drifts], [d.rank for d in drifts]
    return [f"{drifts[0].bits:.2f}", mean_and_spread(cosines), mean_and_spread(ranks)]


def mean_and_spread(values: Sequence[float]) -> str:
    """The mean to three digits, and in brackets the least and the most of several values."""
    mean, low, high = (f"{v:.3f}" for v in (sum(values) / len(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def drifts_of(
    by_run: Mapping[EmbeddingRun, EmbeddingDrift], scheme: str, method: str
) -> list[EmbeddingDrift]:
    """A method's drifts on weights alone, one for each sample of calibration texts that was recorded."""
    runs = [EmbeddingRun(scheme, method, sample=sample) for sample in range(SAMPLES)]
    return [by_run[run] for run in runs if run in by_run]


def by_embedding_run(drifts: Iterable[EmbeddingDrift]) -> dict[EmbeddingRun, EmbeddingDrift]:
    """Each drift by the run that it is the result of."""
    return {EmbeddingRun(d.scheme, d.method, d.activations, d.sample): d for d in drifts}


# --- training ----------------------------------------------------------------------------------------


def training_table(results: Sequence[TrainingResult]) -> str:
    """Mean accuracy and its 95 % interval over the seeds, by width of the weights and how the network was
    trained."""
    widths = [w for w in WIDTHS if any(r.width == w for r in results)]
    rows = [[label, *(_accuracy(results, w, stage) for w in widths)] for stage, label in STAGES]
    return markdown(["weights", *(f"{w} bits" if w.isdigit() else w for w in widths)], rows)


def _accuracy(results: Sequence[TrainingResult], width: str, stage: str) -> str:
    every = accuracies(results, width, stage)
    if len(every) < 2:
        return f"{100 * every[0]:.1f} %" if every else ""
    mean, half = interval(every)
    return f"{100 * mean:.1f} ± {100 * half:.1f} %"


def mean_accuracy(results: Iterable[TrainingResult], width: str, stage: str) -> float | None:
    """0 … 1 over all seeds; None if there are none."""
    every = accuracies(results, width, stage)
    return statistics.mean(every) if every else None


def accuracies(results: Iterable[TrainingResult], width: str, stage: str) -> list[float]:
    """0 … 1, one a seed."""
    return [r.accuracy for r in results if (r.width, r.stage) == (width, stage)]


def _microseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e6 * seconds:.0f}"
