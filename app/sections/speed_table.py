"""The Speed section's table and words: a timing as a line, a product's facts and sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from app.parts import html
from app.parts.views import shows
from app.sections.speed_live import Own
from app.sections.speed_machines import RECORDED, OpenedRecordings, is_of_cpu
from explorer import words
from explorer.bench.cpu_gemm import not_installed
from explorer.cpu.products import CPU_PRODUCTS
from explorer.paths import KERNELS
from explorer.products.gemms import GEMMS, Product
from explorer.products.variants import Variant
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.gemm import GemmTiming

COLUMNS = {
    "product": "str",
    "kernel": "str",
    "on this chip": "str",
    "M×N×K": "str",
    "µs": "number",
    "µs flushed": "number",
    "quantize X µs": "number",
    "TFLOP/s": "number",
    "of the limit %": "number",
    "× baseline": "number",
    "baseline": "str",
    "SQNR dB": "number",
    "W MB": "number",
}
Line = list[Any]


def lines(here: Sequence[GemmTiming], everything: Iterable[GemmTiming], recorded: bool) -> list[Line]:
    """A line for each timing at a shape; of what is recorded also one for each product that has no timing at
    all, and of a CPU measured here one for each kernel whose library is not installed."""
    every = list(everything)
    known, on_cpu = {timing.gemm for timing in every}, any(timing.on_cpu for timing in every)
    table: Iterable[Product] = CPU_PRODUCTS.values() if on_cpu else GEMMS.values()
    missing = [missing_line(row.label, NOT_RECORDED) for row in table if recorded and row.name not in known]
    if on_cpu and not recorded:
        missing = [missing_line(row.label, f"{row.kernel}: {row.reason}") for row in not_installed()]
    return [*(line(timing) for timing in here), *missing]


def line(timing: GemmTiming) -> Line:
    """One kernel of one product, in the order of ``COLUMNS``."""
    numbers = [
        timing.seconds * 1e6,
        timing.flush.median_s * 1e6 if timing.flush else None,
        timing.activation_s * 1e6 if timing.activation_s else None,
        timing.tflops,
        100 * timing.share if timing.share else None,
        timing.speedup,
    ]
    note = f": {timing.baseline_note}" if timing.baseline_note else ""
    return [
        timing.label,
        words.kernel_name(timing.variant),
        timing.on_chip,
        timing.shape_text,
        *(None if number is None else float(f"{number:.4g}") for number in numbers),
        timing.baseline + note,
        round(timing.sqnr_db, 2),
        float(f"{timing.weight_bytes / 1e6:.4g}"),
    ]


def missing_line(label: str, why: str) -> Line:
    """A product or kernel without a time."""
    return [label, why, *[None] * (len(COLUMNS) - 2)]


def csv_row(timing: GemmTiming) -> dict[str, Any]:
    """``line`` with its headers as keys."""
    return dict(zip(COLUMNS, line(timing), strict=True))


@shows()
def source_of(
    product: str | None, view: str = RECORDED, own: Own | None = None, opened: OpenedRecordings = ()
) -> str:
    """The CUDA files behind a product's kernels, with their text; of a CPU's the packages that have them.
    ``view`` names the machine (``machine_of``)."""
    if is_of_cpu(view, own, opened):
        kernels = CPU_PRODUCTS[product].kernels if product in CPU_PRODUCTS else ()
        packages = ", ".join(dict.fromkeys(kernel.library.label for kernel in kernels))
        return f"computed by {packages or 'other packages'}: their sources are theirs"
    gemm = GEMMS.get(product or "")
    if gemm is None:
        return "choose a product"
    files = dict.fromkeys(variant.file for variant in gemm.variants)
    return "\n\n".join(
        f"// ---- kernels/{name}\n{(KERNELS / name).read_text(encoding='utf-8')}" for name in files
    )


@shows()
def facts_of(
    product: str | None, view: str = RECORDED, own: Own | None = None, opened: OpenedRecordings = ()
) -> str:
    """Facts of the product on the machine that ``view`` names: operands, where scales apply, accumulator
    type, and kernels, on a GPU with the chips that run them."""
    gemm = GEMMS.get(product or "")
    if is_of_cpu(view, own, opened) or gemm is None:
        return _facts_on_cpu(product or "")
    return html.status(
        f"X: {gemm.x.label}. W: {gemm.w.label}. Scales {gemm.scales}; sums in {gemm.accumulator}. "
        f"Kernels: {', '.join(_kernel(v) for v in gemm.variants)}. Baseline: {gemm.baseline.label}."
    )


def _facts_on_cpu(product: str) -> str:
    row = CPU_PRODUCTS.get(product)
    if row is None:
        return ""
    kernels = ", ".join(kernel.name for kernel in row.kernels)
    return html.status(
        f"W: {row.w.label}. Scales {row.scales}; sums in {row.accumulator}. Kernels: {kernels}."
    )


def _kernel(variant: Variant) -> str:
    run = "" if variant.tested else ", compiled, not run"
    return f"{words.kernel_name(variant.name)} ({variant.chips}{run})"
