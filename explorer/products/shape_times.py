"""Time of a product, by name, at any shape: the recorded time there, else at the nearest recorded shape.

No time is extrapolated. Shapes are compared by the limit (``ShapeTime.limit_s``), which is computed and not
measured. A budget of time needs a number for every layer: ``scaled`` takes the nearest recording's share of
its limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from explorer import words
from explorer.analysis.shortlist import TOKENS, UNEVEN, Race, RowTime
from explorer.products.advice import nearest, products_of
from explorer.products.gemms import GEMMS, Gemm
from explorer.recordings.gemm import GemmTiming, Shape, recorded_gemms, recorded_layers
from explorer.recordings.machine import Machine
from explorer.schemes import Scheme

Kind = Literal["measured", "nearest", "scaled", "none"]
NEAR = 1.0
"""Largest binary logarithm of the ratio of a layer's side and a recorded one, up to which the recorded times
are said of the layer."""
REACH = 2
"""Largest factor by which a number of tokens may lie outside the recorded ones: beyond it other kernels are
the fastest."""


@dataclass(frozen=True)
class ShapeTime:
    """Time of X [M, K] · W [N, K]ᵀ.

    shape          M, N, K that were requested
    kind           "measured" at that shape, "nearest": measured at the shape ``at``, "scaled" from ``at`` to
                   ``shape`` (``scaled``), or "none" (with the ``reason``)
    seconds        of the product, with ``quantize_x_s``; None for "none"
    product        name among ``GEMMS``, "" if there is none
    kernel         the fastest kernel in the recording
    gpu, date      of the recording
    limit_s        least time at ``shape``: bytes over the GPU's bandwidth or operations over its peak,
                   whichever is longer; None if the GPU's limits are not recorded
    quantize_x_s   the part of ``seconds`` that quantizes X from bfloat16 before the product; None if X is
                   not quantized, is quantized within the product, or is given quantized
    """

    shape: Shape
    kind: Kind
    seconds: float | None = None
    product: str = ""
    kernel: str = ""
    gpu: str = ""
    date: str = ""
    at: Shape | None = None
    limit_s: float | None = None
    reason: str = ""
    quantize_x_s: float | None = None

    @property
    def how(self) -> str:
        """Source of the time: "measured", "recorded at 64×8192×8192, the nearest shape", "scaled by the limit
        from 64×8192×8192", or the reason for no time; and the part that quantizes X."""
        at = "×".join(map(str, self.at or ()))
        how = {
            "measured": "measured",
            "nearest": f"recorded at {at}, the nearest shape",
            "scaled": f"scaled by the limit from {at}",
            "none": self.reason,
        }[self.kind]
        x = "" if self.quantize_x_s is None else f", {words.duration(self.quantize_x_s)} of it to quantize X"
        return how + x


def shape_times(
    scheme: Scheme, n: int, k: int, tokens: Sequence[int] = TOKENS, *, quantized_inputs: bool = False
) -> list[ShapeTime]:
    """Find times of products with a weight [n, k] under ``scheme`` on the recorded GPU, for each number of
    tokens.

    The product has quantized weights and, if possible, unquantized X; with ``quantized_inputs`` its X is
    quantized too, and the time includes that. Without a product every time is "none" with a reason.
    ``ValueError`` if a side is below 1.
    """
    name, reason = product_for(scheme, quantized_inputs)
    shapes = [_checked((m, n, k)) for m in tokens]
    if not name:
        return [ShapeTime(shape, "none", reason=reason) for shape in shapes]
    return [product_time(name, shape, quantize_x=quantized_inputs) for shape in shapes]


def race(
    schemes: Sequence[Scheme],
    n: int,
    k: int,
    tokens: Sequence[int] = TOKENS,
    *,
    quantized_inputs: bool = False,
) -> Race | None:
    """Find times of products with weights [n, k] by ``schemes``, and of BF16, that can be ranked: all at one
    recorded shape, that at which most of them were timed with ``TOKENS``, of several the nearest. None if
    BF16 was not timed."""
    shape = _checked((1, n, k))
    names = {str(scheme): product_for(scheme, quantized_inputs) for scheme in schemes}
    timed = {text: _recorded(name) for text, (name, _) in names.items() if name}
    plain = _recorded("bf16")
    places = {(cols, rows) for _, cols, rows in plain}
    if not places:
        return None

    def fits(place: tuple[int, int]) -> tuple[int, float]:
        there = sum((m, *place) in one for one in (plain, *timed.values()) for m in TOKENS)
        return -there, _distance(place, (n, k))

    at = min(places, key=fits)
    how: Literal["measured", "nearest"] = "measured" if at == (n, k) else "nearest"

    def times(text: str, recorded: Mapping[Shape, tuple[GemmTiming, Machine]]) -> tuple[RowTime, ...]:
        name, reason = names.get(text, ("bf16", ""))
        found = []
        for m in tokens:
            if (m, *at) not in recorded:
                why = (
                    reason or f"{GEMMS[name].label}: not recorded with {m:,} tokens at {at[0]:,} × {at[1]:,}"
                )
                found.append(RowTime(m, None, note=why))
                continue
            row, machine = recorded[m, *at]
            apart = quantized_inputs and GEMMS[name].x.scale is not None and not row.dynamic
            x = (row.activation_s or 0.0) if apart else 0.0
            median, low, high = (each + x for each in (row.graph.median_s, row.graph.low_s, row.graph.high_s))
            if high - low > 2 * UNEVEN * median:
                between = f"{words.duration(low)} and {words.duration(high)}"
                why = f"times between {between} rank nothing"
                found.append(RowTime(m, None, note=why))
                continue
            of_x = f", {words.duration(x)} of it to quantize X" if x else ""
            note = f"recorded at {m:,} × {at[0]:,} × {at[1]:,}{of_x}; {name} on {machine.gpu}"
            found.append(RowTime(m, median, how, note, low, high))
        return tuple(found)

    near = _distance(at, shape[1:]) <= NEAR
    by_text = {text: times(text, timed.get(text, {})) for text in names}
    gpu = next(iter(plain.values()))[1].gpu
    return Race(at, near, gpu, tuple(tokens), by_text, times("", plain))


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Distance of two weights' shapes: the larger logarithm of the ratios of their sides."""
    return max(abs(math.log2(a / b)) for a, b in zip(one, other, strict=True))


def product_for(scheme: Scheme, quantized_inputs: bool = False) -> tuple[str, str]:
    """Choose the product whose time stands for weights under ``scheme``; without one "" and the reason.

    Products with unquantized X are preferred, or those with quantized X if requested; then those with the
    most recorded shapes.
    """
    names = products_of(scheme)
    if not names:
        return "", "no kernel here multiplies weights stored like this"
    counts = {name: len(_recorded(name)) for name in names}
    timed = [name for name in names if counts[name]]
    if not timed:
        return "", f"{GEMMS[names[0]].label}: not recorded yet"
    return max(timed, key=lambda n: ((GEMMS[n].x.scale is not None) == quantized_inputs, counts[n])), ""


def product_time(name: str, shape: Shape, *, quantize_x: bool = False) -> ShapeTime:
    """Find the time of one product at ``shape``, or at the nearest recorded shape.

    With ``quantize_x`` it includes the quantization of X before the product. ``ValueError`` for an unknown
    product or a side below 1.
    """
    if name not in GEMMS:
        raise ValueError(f"no product is called {name!r}; there are {', '.join(GEMMS)}")
    gemm, own = GEMMS[name], _recorded(name)
    time = ShapeTime(_checked(shape), "none", product=name, limit_s=limit_of(gemm, shape))
    at = nearest(own, time.shape)
    if at is None:
        return replace(time, reason=f"{gemm.label}: not recorded yet")
    tokens = sorted(m for m, _, _ in own)
    if not tokens[0] / REACH <= shape[0] <= tokens[-1] * REACH:
        reason = f"{gemm.label}: recorded with {tokens[0]:,} to {tokens[-1]:,} tokens only"
        return replace(time, reason=reason)
    timing, machine = own[at]
    x = timing.activation_s if quantize_x and gemm.x.scale is not None and not gemm.dynamic else None
    return replace(
        time,
        kind="measured" if at == time.shape else "nearest",
        seconds=timing.seconds + (x or 0.0),
        kernel=timing.variant,
        gpu=machine.gpu,
        date=machine.date,
        at=at,
        quantize_x_s=x,
    )


def scaled(time: ShapeTime) -> ShapeTime:
    """Scale the time of the nearest shape to the requested shape; times of other kinds are returned as they
    are.

    The product is scaled by the ratio of both shapes' limits, quantizing X by elements. Neither falls below
    its shortest recorded time, which is mostly the launch. The accuracy of the result is unknown.
    """
    if time.kind != "nearest" or time.seconds is None or time.at is None:
        return time
    gemm, x = GEMMS[time.product], time.quantize_x_s
    timings = [row for row, _ in _recorded(time.product).values()]
    limit, limit_there = time.limit_s, limit_of(gemm, time.at)
    if limit is None or limit_there is None:
        limit, limit_there = _bytes(gemm, time.shape), _bytes(gemm, time.at)
    (m, _, k), (m_there, _, k_there) = time.shape, time.at
    alone = (time.seconds - (x or 0.0)) * limit / limit_there
    alone = max(alone, min(row.seconds for row in timings))
    if x is not None:
        x = max(x * m * k / (m_there * k_there), min(row.activation_s or x for row in timings))
    return replace(time, kind="scaled", seconds=alone + (x or 0.0), quantize_x_s=x)


def limit_of(gemm: Gemm, shape: Shape) -> float | None:
    """Least seconds of a product at ``shape`` by the recorded GPU's limits; None if its bandwidth or the peak
    of the product's cores is not recorded."""
    limits, (m, n, k) = recorded_gemms().limits, shape
    return limits.least_seconds(gemm.core, _bytes(gemm, shape), 2 * m * n * k) if limits else None


def _bytes(gemm: Gemm, shape: Shape) -> float:
    """Bytes of X and W as stored, and of Y."""
    m, n, k = shape
    x, w = gemm.x.bits_per_element((m, k)).total, gemm.w.bits_per_element((n, k)).total
    return (x * m * k + w * n * k) / 8 + m * n * gemm.out.itemsize


def _recorded(name: str) -> dict[Shape, tuple[GemmTiming, Machine]]:
    """Find the fastest kernel's timing of a product at each shape, and the machine. The recording of small
    layers is used too if it is of the same GPU."""
    found: dict[Shape, tuple[GemmTiming, Machine]] = {}
    for recording in (recorded_gemms(), recorded_layers()):
        if recording.machine.gpu == recorded_gemms().machine.gpu:
            for row in recording.rows:
                if row.gemm == name and (row.shape not in found or row.seconds < found[row.shape][0].seconds):
                    found[row.shape] = row, recording.machine
    return found


def _checked(shape: Sequence[int]) -> Shape:
    m, n, k = shape
    if min(m, n, k) < 1:
        raise ValueError(f"M, N and K are whole numbers of at least 1, not {m} × {n} × {k}")
    return int(m), int(n), int(k)
