"""Products and shapes to be timed: a user's selection, or everything that is recorded and shipped."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from explorer.bench.gemm import time_gemm
from explorer.bench.steps import SHAPES, products_of
from explorer.products.auto import LATEST, variants_for
from explorer.products.gemms import GEMMS, Gemm
from explorer.products.shapes import (
    DECODE,
    LARGE,
    LAYERS,
    SERVED,
    SERVING,
    SMALL_LAYERS,
    SQUARE,
    TOKENS,
)
from explorer.products.variants import Variant
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.machine import MachineLimits

SWEPT = (
    "bf16", "fp8_e4m3_tensor", "fp8_e4m3_row", "fp8_blockwise", "int8", "int8_dynamic", "w8a16",
    "w4a16_group128", "w4a16_group128_asym", "nf4", "w3a16", "w2a16", "w1.58a16", "w_fp8", "w_mxfp8",
    "w_mxfp4", "w_nvfp4", "w_fp6_e3m2",
    "w4a8_int", "w4a8_fp8", "ternary", "binary",
)  # fmt: skip
"""Products that are recorded over a sweep of M."""
SMALL_ROWS = (
    "bf16", "w4a16_group128_asym", "w_nvfp4", "w_mxfp4", "w4a16_group128", "nf4", "w8a16", "w_fp8",
    "fp8_e4m3_row", "int8", "w3a16", "w2a16",
)  # fmt: skip
"""Products that are recorded at the shapes of small layers."""
MODEL_ROWS, MODEL_TOKENS = ("bf16", "w4a16_group128", "w_nvfp4", "w8a16", "w_fp8"), (1, 4, 16, 64)
"""Products that are recorded at the shapes of the models whose steps are timed, and their values of M."""
LAYER_ROWS = (
    "bf16", "fp8_e4m3_row", "fp8_blockwise", "int8", "w8a16", "w4a16_group128", "w2a16", "w_nvfp4",
    "w4a8_int", "binary",
)  # fmt: skip
"""Products that are recorded at the shapes of models."""


@dataclass(frozen=True)
class TimingJob:
    """Some kernels of one product at one shape."""

    gemm: Gemm
    variants: tuple[Variant, ...]
    shape: Shape
    flush: bool


def plan(
    names: Sequence[str] | None, shapes: Sequence[tuple[int, ...]], which: str, sweep_m: bool
) -> list[TimingJob]:
    """Plan the requested products (all by default) at the requested shapes; ``sweep_m``: a sweep of M at each
    N and K."""
    tokens = TOKENS if sweep_m else None
    wanted: list[Shape] = [(m, n, k) for first, n, k in shapes for m in tokens or (first,)]
    return _jobs(names or GEMMS, wanted, which)


def plan_of_records(names: Sequence[str] | None = None) -> list[TimingJob]:
    """Plan all timings of ``assets/measurements/gemm.json``, for all or some products. Few tokens and several
    weights of the other products come last."""
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
    return _each_once(jobs + _other_jobs(rows))


def _each_once(jobs: Iterable[TimingJob]) -> list[TimingJob]:
    """Drop repeated jobs, as a layer's shape may be planned already: the first stays."""
    once: dict[tuple[str, Shape], TimingJob] = {}
    for job in jobs:
        once.setdefault((job.gemm.name, job.shape), job)
    return list(once.values())


def plan_of_layers(names: Sequence[str] | None = None) -> list[TimingJob]:
    """Plan all timings of ``assets/measurements/gemm-layers.json``: products of the models whose steps are
    timed, and small layers; all products at one shape before the next shape."""
    of_models, small = ([n for n in rows if n in (names or GEMMS)] for rows in (MODEL_ROWS, SMALL_ROWS))
    sides = dict.fromkeys(side for shape in SHAPES for side in products_of(shape).values())
    served = [(m, n, k) for n, k in sides for m in MODEL_TOKENS]
    shapes = [(m, n, k) for n, k in SMALL_LAYERS for m in (1, SERVED, 4096)]
    jobs = _jobs(of_models, served, "auto", flush=False)
    return _each_once(jobs + _jobs(small, shapes, "fastest", flush=False))


def _other_jobs(rows: Sequence[str]) -> list[TimingJob]:
    """Plan few tokens for products that are recorded with many only, and more sizes of W for products that
    are swept at one."""
    swept, few, all_m = [name for name in SWEPT if name in rows], (1, SERVED), (1, SERVED, 4096)
    others = [name for name in rows if name not in SWEPT and LATEST.keys() & _kernels(name)]
    one_size = [name for name in swept if name not in LAYER_ROWS]
    sides = LAYERS["Llama-2-7B"]
    return [
        *_jobs(others, [(m, *DECODE[1:]) for m in few], "fastest", flush=False),
        *_jobs(one_size, [(m, n, k) for n, k in sides for m in all_m], "fastest", flush=False),
    ]


def _kernels(name: str) -> set[str]:
    return {variant.name for variant in GEMMS[name].variants}


def _jobs(names: Iterable[str], shapes: Iterable[Shape], which: str, flush: bool = True) -> list[TimingJob]:
    chip = torch.cuda.get_device_capability()
    jobs = [
        TimingJob(GEMMS[name], variants_for(GEMMS[name], shape, chip, which), shape, flush)
        for shape in shapes
        for name in names
    ]
    return [job for job in jobs if job.variants]


def run_jobs(
    jobs: Sequence[TimingJob], device: torch.device, limits: MachineLimits, seconds: float | None = None
) -> Iterator[GemmTiming]:
    """Yield every timing of the plan, and stop after ``seconds``. Failures are reported on standard error,
    and the rest goes on."""
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
