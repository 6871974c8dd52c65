"""The bits of a sum that FP8 tensor cores keep, and their cost over long sums.

Two measurements of products with float32 output. A probe adds one small product to a large one and finds the
smallest that still counts. Then random FP8 operands are multiplied over K from 128 to 131,072 and compared
with the float64 product of the same operands, so that rounding of the operands is not in the error.

DeepSeek-V3 (arXiv 2412.19437, section 3.3.2) reports about 14 bits on an H800, and adds sums up in float32
registers every 128 elements of K.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import plotly.graph_objects as go
import torch
from torch import Tensor

from explorer.core.backend import kernel_capability, require_gpu
from explorer.figures import style
from explorer.gpu.gemm import ScaleK, gemm_mma, gemm_wgmma
from explorer.gpu.gemm.epilogue import Epilogue
from explorer.recordings.files import NOT_RECORDED, Recording, record, recorded
from explorer.recordings.machine import this_machine
from lab.tables import fixed, markdown

NAME = "accumulation"
SIDE = 128
"""M and N of every product."""
INSTRUCTION, PROMOTED = 32, 128
"""Elements of K that one FP8 instruction of the tensor cores adds up, and after which block-scaled products
add their sums up in float32."""
LENGTHS = tuple(128 << i for i in range(11))
POSITIVE, NORMAL = "positive", "normal"
DATA: Mapping[str, str] = {POSITIVE: "absolute values of normal numbers", NORMAL: "normal numbers"}
PLACES: Mapping[int, str] = {
    1: "1 element later",
    INSTRUCTION: "32 elements later",
    PROMOTED: "128 elements later",
}
"""The positions of the small product when the large one is the first."""
PROBE = "probe"
PROBES: Mapping[str, tuple[float, float]] = {
    PROBE: (16.0, 16.0),
    "probe_24": (24.0, 24.0),
    "probe_minus_24": (-24.0, 24.0),
}
"""The factors of the large product of each probe. 24 · 24 has its first bit one place above the sum of the
factors' exponents; a negative sum tells a cut towards zero from one downwards."""
LEAST_POWER = -9
"""E4M3's least value is 2^-9."""
MOST_BITS = 23
"""Bits after the first that a float32 sum has."""
CUT, ROUNDED, UNCLEAR = "cut off", "rounded", ""

Product = Callable[[Tensor, Tensor], Tensor]
"""float32 [M, N] of X [M, K] and W [N, K], both E4M3."""


@dataclass(frozen=True)
class Kernel:
    """A product under test; ``dashed`` in the figure where it is not this project's."""

    label: str
    run: Product
    dashed: bool = False


@dataclass(frozen=True)
class SumRow:
    """One kernel's sums. A probe has ``data`` of ``PROBES``, ``k`` as in ``PLACES``, and ``bits``: how many
    bits below the large product's first the small one can stand and still count in full; ``rest``: what
    happens to three quarters of that last bit. Random data have the root of the mean squared ``error`` over
    the root of the mean squared product, and ``bias``, the mean of error over product."""

    kernel: str
    data: str
    k: int
    bits: int = 0
    rest: str = UNCLEAR
    error: float = 0.0
    bias: float = 0.0


_FLOAT = Epilogue(dtype=torch.float32)


def _bytes(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(torch.uint8), w.view(torch.uint8)


def _promoted(x: Tensor, w: Tensor) -> Tensor:
    tiles = math.ceil(x.shape[1] / PROMOTED)
    x_scale = torch.ones(tiles, len(x), device=x.device)
    w_scale = torch.ones(math.ceil(len(w) / PROMOTED), tiles, device=x.device)
    return gemm_wgmma(*_bytes(x, w), "e4m3", _FLOAT, ScaleK.BLOCK, x_scale, w_scale)


def _torch(x: Tensor, w: Tensor, fast: bool) -> Tensor:
    one = torch.ones((), device=x.device)
    return torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast)


def _bf16(x: Tensor, w: Tensor) -> Tensor:
    return gemm_wgmma(*_bytes(x.bfloat16(), w.bfloat16()), "bf16", _FLOAT)


KERNELS: Mapping[str, Kernel] = {
    "wgmma": Kernel("FP8, wgmma over all of K", lambda x, w: gemm_wgmma(*_bytes(x, w), "e4m3", _FLOAT)),
    "promoted": Kernel("FP8, wgmma, float32 every 128", _promoted),
    "mma": Kernel("FP8, mma.sync", lambda x, w: gemm_mma(*_bytes(x, w), "e4m3", _FLOAT)),
    "torch_fast": Kernel("torch FP8, fast sums", lambda x, w: _torch(x, w, True), dashed=True),
    "torch_exact": Kernel("torch FP8, exact sums", lambda x, w: _torch(x, w, False), dashed=True),
    "bf16": Kernel("the same values as BF16, wgmma", _bf16),
}


def run_sums(
    kernels: Mapping[str, Kernel] = KERNELS,
    lengths: Sequence[int] = LENGTHS,
    device: torch.device | None = None,
) -> Iterator[SumRow]:
    """Every kernel's probes, then its random sums; ``ValueError`` without a Hopper GPU where no device is
    given."""
    if device is None:
        device = require_gpu()
        if (capability := kernel_capability(device)) != (9, 0):
            raise ValueError(f"sums of Hopper's tensor cores are measured on sm_90; this GPU is {capability}")
    for name, kernel in kernels.items():
        for data, factors in PROBES.items():
            for place in PLACES:
                yield SumRow(name, data, place, *probe(kernel.run, place, device, factors))
    for data in DATA:
        for k in lengths:
            x, w = operands(data, k, device)
            exact = x.double() @ w.double().t()
            for name, kernel in kernels.items():
                error = kernel.run(x, w).double() - exact
                relative = float((error.square().mean() / exact.square().mean()).sqrt())
                bias = float((error / exact).mean()) if data == POSITIVE else 0.0
                yield SumRow(name, data, k, error=relative, bias=bias)


def operands(data: str, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """X and W [``SIDE``, k] in E4M3, with the same seed for each k."""
    x, w = (values.to(device).to(torch.float8_e4m3fn) for values in _drawn(data, k, SIDE))
    return x, w


def _drawn(data: str, k: int, side: int) -> list[Tensor]:
    """float32 X and W [side, k]."""
    generator = torch.Generator().manual_seed(k)
    drawn = [torch.randn(side, k, generator=generator) for _ in range(2)]
    return [values.abs() for values in drawn] if data == POSITIVE else drawn


def probe(
    run: Product, place: int, device: torch.device, factors: tuple[float, float] = PROBES[PROBE]
) -> tuple[int, str]:
    """``bits`` and ``rest`` of ``SumRow``, for a small product at ``place`` of K. The large one, of the same
    sign, is that of ``factors`` in the first place."""
    large = math.prod(factors)
    first_bit = math.copysign(2.0 ** (math.frexp(large)[1] - 1), large)

    def total(small: float) -> float:
        x, w = (torch.zeros(SIDE, 2 * PROMOTED, device=device) for _ in range(2))
        x[:, 0], w[:, 0] = factors
        power = 2.0 ** min(max(math.frexp(small)[1] - 1, LEAST_POWER), 8)
        x[:, place], w[:, place] = small / power, power
        return float(run(x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn))[0, 0])

    def counts(bits: int) -> bool:
        small = first_bit * 2.0**-bits
        return total(small) == large + small

    bits = 0
    while bits < MOST_BITS and counts(bits + 1):
        bits += 1
    last = first_bit * 2.0**-bits
    return bits, {large: CUT, large + last: ROUNDED}.get(total(0.75 * last), UNCLEAR)


def record_sums() -> Path:
    """Run ``run_sums`` and write ``assets/measurements/accumulation.json``."""
    device = require_gpu()
    return record(NAME, Recording(this_machine(device), tuple(run_sums())))


def recorded_sums() -> Recording[SumRow]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, SumRow)


def probes_table(rows: Sequence[SumRow]) -> str:
    """Bits that each kernel's sums keep, by the large product and the place of the small one."""
    if not rows:
        return NOT_RECORDED
    places = {(row.kernel, row.data, row.k): row for row in rows if row.data in PROBES}
    lines = []
    for name, kernel in KERNELS.items():
        for data in PROBES:
            found = [places[key] for place in PLACES if (key := (name, data, place)) in places]
            if found:
                lines.append([kernel.label, _product(data), *map(_bits, found)])
    return markdown(("kernel", "large product", *PLACES.values()), lines)


def unrecorded_probes(rows: Sequence[SumRow]) -> str:
    """A sentence, after a space, that names the large products that no recorded probe has; "" without any."""
    missing = [_product(data) for data in PROBES if all(row.data != data for row in rows)]
    return f" Probes with {' and '.join(missing)}: {NOT_RECORDED}." if missing else ""


def _product(data: str) -> str:
    """ "−24 · 24"."""
    return " · ".join(fixed(factor, 0) for factor in PROBES[data])


def _bits(row: SumRow) -> str:
    return f"{row.bits} bits" + (f", the rest {row.rest}" if row.rest else "")


def error_at(rows: Sequence[SumRow], kernel: str, data: str, k: int) -> SumRow | None:
    """The row of random sums, if it is there."""
    return next((r for r in rows if (r.kernel, r.data, r.k) == (kernel, data, k)), None)


def sums_table(rows: Sequence[SumRow], lengths: Sequence[int] = (128, 4096, 16384, 131072)) -> str:
    """Error over product of each kernel by K, for both kinds of data."""
    if not rows:
        return NOT_RECORDED
    lines = []
    for data, words in DATA.items():
        for name, kernel in KERNELS.items():
            found = [error_at(rows, name, data, k) for k in lengths]
            lines.append([words, kernel.label, *("" if row is None else f"{row.error:.1e}" for row in found)])
    return markdown(("X and W", "kernel", *(f"K = {k:,}" for k in lengths)), lines)


@cache
def operand_error(data: str, k: int = 4096, side: int = SIDE) -> float:
    """Error over product that rounding X and W to E4M3 makes, with sums in float64."""
    x, w = _drawn(data, k, side)
    exact = x.double() @ w.double().t()
    rounded = x.to(torch.float8_e4m3fn).double() @ w.to(torch.float8_e4m3fn).double().t()
    return float(((rounded - exact).square().mean() / exact.square().mean()).sqrt())


def in_words(rows: Sequence[SumRow], k: int = 4096) -> str:
    """Describe the figure at one K in sentences."""
    found = {name: error_at(rows, name, POSITIVE, k) for name in KERNELS}
    whole, promoted, fast = (found[name] for name in ("wgmma", "promoted", "torch_fast"))
    if whole is None or promoted is None or fast is None:
        return NOT_RECORDED.capitalize() + "."
    return (
        f"At K = {k:,} the product over all of K is {_percent(-whole.bias)} too small, torch's with fast sums"
        f" {_percent(-fast.bias)}, and that with float32 sums every {PROMOTED} elements"
        f" {_percent(-promoted.bias)}. Rounding these X and W to E4M3 has an error of"
        f" {_percent(operand_error(POSITIVE, k))}; between normal numbers, whose products have both signs, of"
        f" {_percent(operand_error(NORMAL, k))}, and there the sums hardly count."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


FIGURE_TITLE = "Error of long FP8 sums of one sign, by number of products K"
TITLE_HEIGHT = 44
"""Pixels above the plot."""


def sums_figure(rows: Sequence[SumRow]) -> go.Figure:
    """Error over product by K, of positive data."""
    fig = style.figure("K", "error ÷ product", NAME, 410)
    fig.update_layout(title={"text": FIGURE_TITLE, "font": {"size": 14}, "x": 0, "xref": "paper"})
    fig.update_layout(margin={"t": TITLE_HEIGHT})
    shown = [row for row in rows if row.data == POSITIVE]
    for name, kernel in KERNELS.items():
        mine = [row for row in shown if row.kernel == name]
        line = {"dash": "dash" if kernel.dashed else "solid", "width": 2}
        fig.add_scatter(x=[r.k for r in mine], y=[r.error for r in mine], name=kernel.label, line=line)
    if shown:
        style.log_axis(fig, "x", min(r.k for r in shown) / 1.2, max(r.k for r in shown) * 1.2, base=4)
        lengths = sorted({r.k for r in shown})
        ticks = [*lengths[:-1:2], lengths[-1]]
        fig.update_xaxes(tickvals=ticks, ticktext=[f"{k:,}" for k in ticks], dtick=None)
        errors = [r.error for r in shown if r.error > 0]
        decades = range(math.floor(math.log10(min(errors))), math.ceil(math.log10(max(errors))) + 1)
        style.log_axis(fig, "y", 10.0 ** decades[0], 10.0 ** decades[-1])
        fig.update_yaxes(
            tickvals=[10.0**n for n in decades], ticktext=[f"10<sup>{fixed(n, 0)}</sup>" for n in decades]
        )
    return style.legend_below(fig, 2)
