"""Choice of a product: the Pareto frontier of timings and errors at one shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer import words
from explorer.analysis.report import sqnr_of
from explorer.analysis.schemes import on_frontier
from explorer.products.gemms import GEMMS, Gemm, Product
from explorer.products.layouts import folded_weights
from explorer.products.operands import Operands
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.schemes import SCHEMES, Scheme

ENOUGH_DB, MARGIN_DB = 20.0, 0.5
"""SQNR that is enough: an error of a tenth of the signal, which one layer can usually afford. The advice
takes the fastest product that has it, and says so if it takes one that lacks less than the margin: the error
on other weights differs by as much."""


@dataclass(frozen=True)
class Point:
    """One product at one shape: its fastest kernel's seconds with X's quantization, the output's SQNR, W's
    bytes."""

    gemm: str
    label: str
    variant: str
    seconds: float
    sqnr_db: float
    weight_bytes: int
    native: bool
    on_frontier: bool = False


def at_shape(timings: Iterable[GemmTiming], shape: Sequence[int]) -> list[GemmTiming]:
    """Select the timings at the shape (M, N, K), the first of each kernel."""
    first: dict[tuple[str, str], GemmTiming] = {}
    for timing in timings:
        if timing.shape == tuple(shape):
            first.setdefault((timing.gemm, timing.variant), timing)
    return list(first.values())


def fastest(timings: Iterable[GemmTiming]) -> list[GemmTiming]:
    """Select the timing of each product's fastest kernel, in the table's order; unknown products last."""
    best: dict[str, GemmTiming] = {}
    for timing in timings:
        if timing.gemm not in best or timing.seconds < best[timing.gemm].seconds:
            best[timing.gemm] = timing
    return [best[name] for name in dict.fromkeys([*GEMMS, *best]) if name in best]


def usual_of(timings: Iterable[GemmTiming]) -> tuple[str, str]:
    """Name and label of the product that others are compared with: BF16 on a GPU, float32 on a CPU."""
    on_cpu = any(timing.on_cpu for timing in timings)
    return ("fp32", "torch's float32") if on_cpu else ("bf16", "torch's BF16")


def points(timings: Iterable[GemmTiming], errors: Mapping[str, float] | None = None) -> list[Point]:
    """Make a point of time and error for each product's fastest kernel; the Pareto frontier is marked.

    ``errors`` gives SQNRs of a layer in place of the measured run's own, as ``output_errors`` does; products
    without one are left out.
    """
    every = []
    for t in fastest(timings):
        sqnr = t.sqnr_db if errors is None else errors.get(of_kernel(t.gemm, t.variant), errors.get(t.gemm))
        if sqnr is not None and math.isfinite(sqnr):
            every.append(Point(t.gemm, t.label, t.variant, t.total_seconds, sqnr, t.weight_bytes, t.native))
    marks = on_frontier(every, lambda p: p.seconds, lambda p: p.sqnr_db)
    return [dataclasses.replace(p, on_frontier=mark) for p, mark in zip(every, marks, strict=True)]


def choice(every: Sequence[Point]) -> Point | None:
    """Choose the fastest point whose SQNR is enough, or lacks less than ``MARGIN_DB``; without any, the most
    exact."""
    enough = [p for p in every if p.sqnr_db > ENOUGH_DB - MARGIN_DB]
    if enough:
        return min(enough, key=lambda p: p.seconds)
    return max(every, key=lambda p: p.sqnr_db) if every else None


def summary(every: Sequence[Point], timings: Sequence[GemmTiming], what: str) -> str:
    """State in one sentence the choice at a shape, its speed against the usual product, and the reason."""
    chosen = choice(every)
    if chosen is None:
        return f"Nothing was measured for {what}."
    how = "native" if chosen.native else "emulated"
    measured = f"{words.duration(chosen.seconds)} at {chosen.sqnr_db:.1f} dB"
    (usual, named), (faster, smaller) = usual_of(timings), _against_usual(chosen, timings)
    against = ""
    if faster is not None and smaller is not None and chosen.gemm != usual:
        times, size = words.number(faster, 2), words.number(smaller, 2)
        against = f", {times} times as fast as {named} with weights {size} times smaller"
    kernel = words.kernel_name(chosen.variant)
    return f"For {what} take {chosen.label} ({kernel}, {how}): {measured}{against}; {_why(chosen)}."


def _why(chosen: Point) -> str:
    if chosen.sqnr_db >= ENOUGH_DB:
        return f"no faster product reaches {ENOUGH_DB:.0f} dB"
    if chosen.sqnr_db > ENOUGH_DB - MARGIN_DB:
        return f"within {MARGIN_DB:.1f} dB of the {ENOUGH_DB:.0f} dB aimed at"
    return f"no product reaches {ENOUGH_DB:.0f} dB here"


@dataclass(frozen=True)
class Advice:
    """The product to take at one shape.

    ``faster``: its speed over the usual product's (``usual_of``); ``smaller``: the usual product's bytes of W
    over its own; None if the usual product was not timed. ``why``: comparison of its SQNR with ``ENOUGH_DB``.
    """

    what: str
    shape: str
    point: Point
    faster: float | None
    smaller: float | None
    why: str


def advise(every: Sequence[Point], timings: Sequence[GemmTiming], what: str, shape: str) -> Advice | None:
    """Compare the ``choice`` with the usual product; None without points."""
    chosen = choice(every)
    if chosen is None:
        return None
    return Advice(what, shape, chosen, *_against_usual(chosen, timings), _why(chosen))


def _against_usual(chosen: Point, timings: Sequence[GemmTiming]) -> tuple[float | None, float | None]:
    """Ratios of the usual product by torch to the chosen one: seconds, and bytes of W; None if unknown.

    If the usual product was not timed, as in a run that was stopped, its time is that of the chosen kernel's
    baseline, if that is the same product.
    """
    usual, _ = usual_of(timings)
    base = next((t for t in timings if t.gemm == usual), None)
    if base is not None:
        timed, nbytes = base.baseline_graph, base.weight_bytes
    else:
        own = next(t for t in timings if (t.gemm, t.variant) == (chosen.gemm, chosen.variant))
        if not own.on_cpu and own.baseline != GEMMS[usual].baseline.label:
            return None, None
        timed, (_, n, k) = own.baseline_graph, own.shape
        if timed is None:
            return None, None
        nbytes = n * k * SCHEMES[usual].format.bits // 8
    return timed.median_s / chosen.seconds if timed else None, nbytes / chosen.weight_bytes


def products_of(scheme: Scheme, table: Iterable[Product] = GEMMS.values()) -> list[str]:
    """Name the products of a table whose weights are stored as by ``scheme``; empty without any. Calibration
    and rounding do not matter: neither changes the layout."""
    return [row.name for row in table if stored_as(row.w) == stored_as(scheme)]


def stored_as(scheme: Scheme) -> tuple[object, ...]:
    """Key of a scheme's layout in memory: equal for schemes that one kernel reads."""
    return scheme.format, scheme.block, scheme.scale, scheme.mapping, scheme.flat


def nearest(shapes: Iterable[Shape], wanted: Shape) -> Shape | None:
    """Return the first shape of ``by_distance``; None without shapes."""
    return next(iter(by_distance(shapes, wanted)), None)


def by_distance(shapes: Iterable[Shape], wanted: Shape) -> list[Shape]:
    """Sort shapes by the distance of their M from ``wanted``, then by the ratios of the other sides."""

    def distance(shape: Shape) -> tuple[float, float]:
        m, n, k = (abs(math.log(side / other)) for side, other in zip(shape, wanted, strict=True))
        return m, n + k

    return sorted(sorted(shapes), key=distance)


FEWEST_OF_A_CURVE = 4
"""Minimum number of recorded token counts for a shape's curve over M. Layers of models have three in
``gemm.json``, too few for a curve, and four in ``gemm-layers.json``."""


def swept(timings: Iterable[GemmTiming], shape: Shape) -> list[GemmTiming]:
    """Select timings at one N and K over M: those of the shape, or, if they are few, of the N and K measured
    at the most M."""
    by_sides: dict[tuple[int, int], list[GemmTiming]] = {}
    for timing in timings:
        by_sides.setdefault(timing.shape[1:], []).append(timing)
    own = by_sides.get(shape[1:], [])
    most = max(by_sides.values(), key=_count_of_m, default=[])
    return own if _count_of_m(own) >= min(FEWEST_OF_A_CURVE, max(_count_of_m(most), 1)) else most


def _count_of_m(timings: Iterable[GemmTiming]) -> int:
    return len({timing.shape[0] for timing in timings})


def of_kernel(gemm: str, variant: str) -> str:
    """Name in ``output_errors`` of a kernel with an error of its own."""
    return f"{gemm}, {variant}"


def output_errors(x: Tensor, w: Tensor, gemms: Iterable[Product]) -> dict[str, float]:
    """Measure the SQNR in dB of each product's output X·Wᵀ against float64 of the unquantized X [M, K] and W
    [N, K], on their device.

    Kernels that round W once more have a separate entry under ``of_kernel``. Products without error, and
    those whose blocks do not fit W, are left out.
    """
    truth, errors = x.double() @ w.double().t(), {}
    for gemm in gemms:
        out = gemm.out if isinstance(gemm, Gemm) else torch.float32
        try:
            operands = Operands.of(x, w, (gemm.x, gemm.w), out)
        except ValueError:
            continue
        output = operands.exact()[0].to(out).double()
        sqnr = sqnr_of(truth, output)
        if math.isfinite(sqnr):
            errors[gemm.name] = sqnr
        for variant in gemm.variants if isinstance(gemm, Gemm) else ():
            if variant.folds:
                output = operands.exact(folded_weights(operands.w.q, variant.folds))[0].to(out).double()
                errors[of_kernel(gemm.name, variant.name)] = sqnr_of(truth, output)
    return errors


MEASURED_TOKENS = 128
"""Number of tokens on which the error of an output is measured."""


def tokens_for(k: int, count: int = MEASURED_TOKENS) -> Tensor:
    """Draw seeded normal activations [count, k] for a layer that has none."""
    return torch.randn(count, k, generator=torch.Generator().manual_seed(0))
