"""Which products are timed at which shapes: what a user asks for, or everything that ships as recorded."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from explorer.bench.gemm.advice import nearest
from explorer.bench.gemm.table import GEMMS, Gemm
from explorer.bench.gemm.timing import GemmTiming, Shape, recorded_gemms, time_gemm
from explorer.bench.gemm.variants import Variant
from explorer.bench.machine import Limits

TOKENS = tuple(1 << i for i in range(14))
"""M of a sweep: 1 … 8192."""
SQUARE, LARGE = (4096, 4096, 4096), (8192, 8192, 8192)
SERVED = 64
"""Tokens of a batch that a server decodes together."""
DECODE, SERVING = (1, 8192, 8192), (SERVED, 8192, 8192)
LAYERS: dict[str, tuple[tuple[int, int], ...]] = {
    "Llama-2-7B": ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)),
    "Llama-3-70B": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
}
"""(N, K) of a block's products: Q, K and V in one; attention's output; gate and up in one; down."""
SWEPT = (
    "bf16", "fp8_e4m3_tensor", "fp8_e4m3_row", "fp8_blockwise", "int8", "int8_dynamic", "w8a16",
    "w4a16_group128", "w4a16_group128_asym", "nf4", "w3a16", "w2a16", "w1.58a16", "w_fp8", "w_mxfp8",
    "w_mxfp4", "w_nvfp4", "w_fp6_e3m2",
    "w4a8_int", "w4a8_fp8", "ternary", "binary",
)  # fmt: skip
"""Products that are recorded over M."""
LAYER_ROWS = (
    "bf16", "fp8_e4m3_row", "fp8_blockwise", "int8", "w8a16", "w4a16_group128", "w2a16", "w_nvfp4",
    "w4a8_int", "binary",
)  # fmt: skip
"""Products that are recorded at the shapes of models."""
LATEST = {"registers": 8, "swap A/B": 512, "quantize + swap A/B": 512}
EARLIEST = {
    "swap A/B, scaled weights": 256,
    "wgmma": 64,
    "quantize + wgmma": 64,
    "widen + wgmma": 128,
    "dequantize + wgmma": 512,
}
"""Tokens up to which, and from which on, a kernel has been the fastest of a product or near it."""


@dataclass(frozen=True)
class Job:
    """Some kernels of one product at one shape."""

    gemm: Gemm
    variants: tuple[Variant, ...]
    shape: Shape
    flush: bool


def variants_for(gemm: Gemm, shape: Shape, capability: tuple[int, int], which: str) -> tuple[Variant, ...]:
    """``all`` kernels the chip can run, the one called ``which``, those that may be the ``fastest`` for so
    many tokens, or ``auto``: the one of them that was, at the nearest shape of the recording."""
    variants = gemm.variants_on(capability)
    if which == "all" or not variants:
        return variants
    if which not in ("fastest", "auto"):
        return tuple(v for v in variants if v.name == which)
    likely = _likely(variants, shape[0])
    if which == "fastest" or len(likely) == 1:
        return likely
    return (_recorded_fastest(gemm, shape, likely) or likely[0],)


def _likely(variants: Sequence[Variant], m: int) -> tuple[Variant, ...]:
    """Those that can be the fastest for M tokens; of products without a kernel for few tokens the last
    one."""
    names = {v.name for v in variants}
    if not names & set(LATEST):
        return (variants[-1],)
    latest = dict(LATEST)
    if "swap A/B, scaled weights" not in names:
        latest["swap A/B"] = TOKENS[-1]
    likely = [v for v in variants if m <= latest.get(v.name, 0) or m >= EARLIEST.get(v.name, TOKENS[-1] + 1)]
    return tuple(likely) or (variants[-1],)


def _recorded_fastest(gemm: Gemm, shape: Shape, likely: Sequence[Variant]) -> Variant | None:
    """The kernel with the least recorded time at the shape nearest to ``shape``, of those within twice or
    half its M; of a product that was not recorded there, the one that won for its nearest relative (the same
    tensor cores and kernels, W of about as many bits). None if there is none."""
    by_name = {v.name: v for v in likely}
    relatives = [
        other
        for other in GEMMS.values()
        if (other.core, other.dynamic) == (gemm.core, gemm.dynamic)
        and by_name.keys() <= {v.name for v in other.variants}
    ]
    bits = gemm.w.format.bits
    for relative in sorted(relatives, key=lambda g: (g is not gemm, abs(g.w.format.bits - bits))):
        rows = [
            t
            for t in recorded_gemms().rows
            if t.gemm == relative.name and t.variant in by_name and shape[0] / 2 <= t.shape[0] <= 2 * shape[0]
        ]
        near = nearest([t.shape for t in rows], shape)
        here = [t for t in rows if t.shape == near]
        if {t.variant for t in here} == by_name.keys():
            return by_name[min(here, key=lambda t: t.seconds).variant]
    return None


def plan(
    names: Sequence[str] | None, shapes: Sequence[tuple[int, ...]], which: str, sweep_m: bool
) -> list[Job]:
    """The products asked for (all of them by default) at the shapes asked for; ``sweep_m``: at each N and K
    over M."""
    tokens = TOKENS if sweep_m else None
    wanted: list[Shape] = [(m, n, k) for first, n, k in shapes for m in tokens or (first,)]
    return _jobs(names or GEMMS, wanted, which)


def plan_of_records(names: Sequence[str] | None = None) -> list[Job]:
    """Everything that ships as ``assets/measurements/gemm.json``, of all products or of some."""
    rows = list(names or GEMMS)
    swept, layers = ([n for n in some if n in rows] for some in (SWEPT, LAYER_ROWS))
    jobs = [
        *_jobs(swept, [DECODE, SERVING], "fastest"),
        *_jobs(rows, [LARGE], "fastest"),
        *_jobs(swept, [(m, *DECODE[1:]) for m in TOKENS[1:]], "fastest", flush=False),
        *_jobs(rows, [SQUARE], "all"),
    ]
    for blocks in LAYERS.values():
        jobs += _jobs(
            layers, [(m, n, k) for n, k in blocks for m in (1, SERVED, 4096)], "fastest", flush=False
        )
    once: dict[tuple[str, Shape], Job] = {}
    for job in jobs:  # a layer's shape may be one that is measured already
        once.setdefault((job.gemm.name, job.shape), job)
    return list(once.values())


def _jobs(names: Iterable[str], shapes: Iterable[Shape], which: str, flush: bool = True) -> list[Job]:
    chip = torch.cuda.get_device_capability()
    jobs = [
        Job(GEMMS[name], variants_for(GEMMS[name], shape, chip, which), shape, flush)
        for shape in shapes
        for name in names
    ]
    return [job for job in jobs if job.variants]


def run_jobs(
    jobs: Sequence[Job], device: torch.device, limits: Limits, seconds: float | None = None
) -> Iterator[GemmTiming]:
    """Every timing of the plan, stopped after ``seconds``; what fails is named on standard error, and the
    rest goes on."""
    end = time.monotonic() + seconds if seconds else math.inf
    for job in jobs:
        if time.monotonic() > end:
            return
        try:
            yield from time_gemm(job.gemm, job.variants, job.shape, device, limits, job.flush)
        except (RuntimeError, ValueError) as error:
            shape = "x".join(map(str, job.shape))
            print(f"\n{job.gemm.name} at {shape} failed: {error}", file=sys.stderr)
            torch.cuda.synchronize()
