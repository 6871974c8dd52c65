"""Times of a product at any shape: measured where that shape was recorded, otherwise modelled.

The model is a roofline with an overhead (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009),
summed where the kernels overlap the terms only in part:

    seconds = a + b · bytes moved + c · K · waves of tiles + d · operations

with a, b, c, d ≥ 0 fitted to relative errors, the recorded shapes weighted by their distance in (log M,
log N, log K), and then corrected by what the product's own nearest shapes took more or less than the fit.
Waves: the kernels for few tokens give each of the GPU's 132 multiprocessors 64 rows of W.

A product that was recorded with weights of several sizes is fitted alone. One that was recorded at one or
two sizes cannot tell its overhead from its bandwidth: the fit then includes the products that run the same
kernels on the same tensor cores, and its own recordings weigh more and correct it. Where neither is enough
there is no number, but a reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from explorer import words
from explorer.products.advice import fastest, products_of
from explorer.products.gemms import GEMMS, Gemm
from explorer.products.variants import NAIVE, TILED
from explorer.recordings.files import Recording
from explorer.recordings.gemm import GemmTiming, Shape, recorded_gemms, recorded_layers
from explorer.recordings.times import TimeSpread
from explorer.schemes import Scheme

Kind = Literal["measured", "modelled", "none"]
Array = NDArray[np.float64]
Weight = tuple[int, int]
"""N and K."""
TOKENS = (1, 64, 4096)
MULTIPROCESSORS, TILE_ROWS = 132, 64
"""Of an H200 and H100 SXM; rows of W in a tile of the kernels for few tokens."""
FEWEST_WEIGHTS = 3
"""Sizes of W (N, K) from which on a product is fitted alone."""
REACH = math.log(2)
"""How far, in log M, tokens may lie outside the recorded ones. Other kernels are the fastest beyond."""
OWN = 3.0
"""Weight of a product's own recordings beside those of its relatives."""
USELESS, FARTHEST = 1.0, math.log(64)
"""Error, and distance in (log N, log K) to the nearest recorded weight, from which on there is no time."""
WIDTH, NEAR = 1.0, 0.05
"""Squared distances over which the fit, and in which the correction by neighbours, falls off."""


@dataclass(frozen=True)
class ShapeTime:
    """What X [M, K] · W [N, K]ᵀ takes.

    shape          M, N, K
    kind           "measured" (this shape was recorded), "modelled", or "none" (``reason`` says why)
    seconds        of the product, with ``quantize_x_s``; None for "none"
    quantize_x_s   the part that quantizes X from bfloat16 before the product; None where X is taken as it is,
                   is quantized inside the product, or is given quantized (``product_time``)
    product        name among ``GEMMS``, "" where there is none
    kernel         the kernel that was the fastest here, or at the nearest recorded shape
    gpu, date      of the recording
    error          for "modelled": the relative error to be expected, .04 for 4 %. Inside the recorded range
                   the median over recorded shapes left out; outside, the largest of those at the range's
                   end, and more the further outside
    extrapolated   N or K lies outside what was recorded
    """

    shape: Shape
    kind: Kind
    seconds: float | None = None
    product: str = ""
    kernel: str = ""
    gpu: str = ""
    date: str = ""
    error: float | None = None
    extrapolated: bool = False
    reason: str = ""
    quantize_x_s: float | None = None

    @property
    def microseconds(self) -> float | None:
        """``seconds`` in µs."""
        return None if self.seconds is None else 1e6 * self.seconds

    @property
    def how(self) -> str:
        """In words: "measured", "modelled, ± 5 %", "extrapolated, ± 40 %", or why there is no time; and how
        much of the time quantizes X."""
        x = "" if self.quantize_x_s is None else f", {words.duration(self.quantize_x_s)} of it to quantize X"
        if self.kind != "modelled":
            return (self.reason or self.kind) + x
        word = "extrapolated" if self.extrapolated else "modelled"
        error = "error unknown" if self.error is None else f"± {100 * self.error:.0f} %"
        return f"{word}, {error}{x}"


@dataclass(frozen=True)
class LeftOut:
    """A recorded shape whose W (N, K) was left out at every M: what the model then says, and ``error`` as
    modelled / measured − 1."""

    product: str
    kernel: str
    shape: Shape
    error: float


@dataclass(frozen=True)
class ModelledTiming(GemmTiming):
    """A ``ShapeTime`` with the fields of a recorded timing, for tables and figures; ``how`` and ``error`` as
    there."""

    how: str = ""
    error: float | None = None


def shape_times(
    scheme: Scheme, n: int, k: int, tokens: Sequence[int] = TOKENS, *, quantized_inputs: bool = False
) -> list[ShapeTime]:
    """What a weight [n, k] under ``scheme`` takes in a product with M tokens on the recorded GPU, for each M.

    The product is that of quantized weights with unquantized X where there is one; with ``quantized_inputs``
    one whose X is quantized, too, and the time includes that (``with_quantized_x``). Of a scheme without a
    product every time is "none" with a reason. ``ValueError`` if a side is below 1.
    """
    name, reason = product_for(scheme, quantized_inputs)
    shapes = [_checked((m, n, k)) for m in tokens]
    if not name:
        return [ShapeTime(shape, "none", reason=reason) for shape in shapes]
    times = [product_time(name, shape) for shape in shapes]
    return [with_quantized_x(time) for time in times] if quantized_inputs else times


def with_quantized_x(time: ShapeTime) -> ShapeTime:
    """``time`` with what quantizing X [M, K] takes before the product: as it was recorded with the same
    product, M and K, otherwise modelled. Unchanged where X needs no quantizing before the product."""
    own = _recorded().get(time.product, {})
    if time.seconds is None or GEMMS[time.product].x.scale is None or any(t.dynamic for t in own.values()):
        return time
    m, _, k = time.shape
    here = [t.activation_s for s, t in own.items() if (s[0], s[2]) == (m, k) and t.activation_s]
    of_shape = own[time.shape].activation_s if time.shape in own else None
    measured = of_shape or (float(np.median(here)) if here else None)
    seconds = measured or _activation_seconds(time.product, m, k)
    if seconds is None:
        reason = f"{GEMMS[time.product].label}: quantizing X was not recorded"
        return replace(time, kind="none", seconds=None, error=None, reason=reason)
    total = time.seconds + seconds
    error_of_x = 0.0 if measured else quantize_x_error(time.product)
    if time.kind == "measured" and measured:
        return replace(time, seconds=total, quantize_x_s=seconds)
    error = 0.0 if time.kind == "measured" else time.error
    return replace(
        time,
        kind="modelled",
        seconds=total,
        quantize_x_s=seconds,
        error=None
        if error is None or error_of_x is None
        else (error * time.seconds + error_of_x * seconds) / total,
    )


def quantize_x_error(name: str) -> float | None:
    """The relative error to be expected of a modelled time to quantize a product's X: the median over
    recorded (M, K), each left out; None where too few are recorded."""
    return _quantize_x_error(name, _key())


@lru_cache(maxsize=256)
def _quantize_x_error(name: str, _recording: int) -> float | None:
    timed = _activations(name)
    errors = []
    for m, k in {(m, k) for m, k, _ in timed}:
        rest = [row for row in timed if row[:2] != (m, k)]
        if not rest:
            return None
        errors += [abs(_activation_fit(rest, m, k) / row[2] - 1) for row in timed if row[:2] == (m, k)]
    return float(np.median(errors)) if errors else None


def product_for(scheme: Scheme, quantized_inputs: bool = False) -> tuple[str, str]:
    """The product whose time stands for weights under ``scheme``, and, if there is none (""), the reason.
    Products with X as it is come first, or those with quantized X where that is asked for, then those with
    the most recorded shapes."""
    return _product_for(scheme, quantized_inputs, _key())


@lru_cache(maxsize=1024)
def _product_for(scheme: Scheme, quantized_inputs: bool, _recording: int) -> tuple[str, str]:
    names = products_of(scheme)
    if not names:
        return "", "no kernel here multiplies weights stored like this"
    counts = {name: len(_recorded().get(name, {})) for name in names}
    timed = [name for name in names if counts[name]]
    if not timed:
        return "", f"{GEMMS[names[0]].label}: not recorded yet"
    return max(timed, key=lambda n: ((GEMMS[n].x.scale is not None) == quantized_inputs, counts[n])), ""


def product_time(name: str, shape: Shape) -> ShapeTime:
    """What one product takes at one shape. ``ValueError`` for an unknown product or a side below 1."""
    if name not in GEMMS:
        raise ValueError(f"no product is called {name!r}; there are {', '.join(GEMMS)}")
    return _product_time(name, _checked(shape), _key())


def modelled_timings(shape: Shape) -> list[ModelledTiming]:
    """A timing of each product that can be modelled at a shape that was not recorded; empty if the shape was.
    The SQNR is that at the nearest recorded shape; there is no baseline and no flushed time."""
    every = [(name, product_time(name, shape)) for name in _recorded() if name in GEMMS]
    if any(time.kind == "measured" for _, time in every):
        return []
    return [_as_timing(name, time) for name, time in every if time.seconds is not None]


def left_out(name: str) -> list[LeftOut]:
    """The model's errors for a product, each weight (N, K) left out at every M.

    For a product that was recorded at too few weights, those of its relatives: each is predicted from no
    more of its own shapes than this product has.
    """
    return list(_left_out(name, _key()))


def typical_error(errors: Iterable[LeftOut]) -> float | None:
    """The median of the absolute errors; None of none."""
    sizes = [abs(row.error) for row in errors]
    return float(np.median(sizes)) if sizes else None


# --- recordings ---------------------------------------------------------------------------------------


def _recordings() -> tuple[Recording[GemmTiming], ...]:
    """The recording of all products, and that of small layers if it is of the same GPU."""
    main, layers = recorded_gemms(), recorded_layers()
    return (main, layers) if layers and layers.machine.gpu == main.machine.gpu else (main,)


def _key() -> int:
    """What caches are keyed by: recordings that were read again are other objects."""
    return hash(tuple(id(recording.rows) for recording in _recordings()))


def _recorded() -> Mapping[str, Mapping[Shape, GemmTiming]]:
    """The fastest timing of each product at each shape."""
    return _by_product(_key())


@lru_cache(maxsize=2)
def _by_product(_recording: int) -> dict[str, dict[Shape, GemmTiming]]:
    by_shape: dict[Shape, list[GemmTiming]] = {}
    for row in (row for recording in _recordings() for row in recording.rows):
        by_shape.setdefault(row.shape, []).append(row)
    best: dict[str, dict[Shape, GemmTiming]] = {}
    for shape, here in by_shape.items():
        for timing in fastest(here):
            best.setdefault(timing.gemm, {})[shape] = timing
    return best


def _weights(shapes: Iterable[Shape]) -> set[Weight]:
    return {shape[1:] for shape in shapes}


def _fitted_alone(name: str) -> bool:
    return len(_weights(_recorded().get(name, {}))) >= FEWEST_WEIGHTS


def _relatives(gemm: Gemm) -> tuple[str, ...]:
    """Products recorded at several weights that use the same tensor cores and share a fast kernel."""
    kernels = _fast_kernels(gemm)
    return tuple(
        name
        for name in _recorded()
        if name != gemm.name
        and name in GEMMS
        and gemm.core
        and GEMMS[name].core == gemm.core
        and kernels & _fast_kernels(GEMMS[name])
        and _fitted_alone(name)
    )


def _fast_kernels(gemm: Gemm) -> set[str]:
    """All but those that every product has."""
    return {v.name for v in gemm.variants} - {NAIVE.name, TILED.name}


# --- model --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Rows:
    """Recorded shapes as arrays: log M, N, K [R, 3]; the model's terms [R, 4]; seconds [R]; whose they are
    [R]: of the product itself, or of relatives."""

    places: Array
    terms: Array
    seconds: Array
    own: NDArray[np.bool_]

    def where(self, keep: Sequence[bool]) -> _Rows:
        mask = np.array(keep, dtype=bool)
        return _Rows(self.places[mask], self.terms[mask], self.seconds[mask], self.own[mask])

    def with_relatives(self, names: Iterable[str]) -> _Rows:
        others = [_table(name, _key()) for name in names]
        return _Rows(
            np.concatenate([self.places, *(rows.places for rows in others)]),
            np.concatenate([self.terms, *(rows.terms for rows in others)]),
            np.concatenate([self.seconds, *(rows.seconds for rows in others)]),
            np.concatenate([self.own, *(~rows.own for rows in others)]),
        )


@lru_cache(maxsize=256)
def _table(name: str, _recording: int) -> _Rows:
    """A product's recorded shapes, in the order of ``_recorded()``."""
    timings = list(_recorded()[name].values())
    return _Rows(
        np.log(np.array([t.shape for t in timings], dtype=np.float64)),
        np.array([_terms(t.shape, t.bytes_moved) for t in timings]),
        np.array([t.seconds for t in timings]),
        np.ones(len(timings), dtype=bool),
    )


def _terms(shape: Shape, bytes_moved: float) -> list[float]:
    """What the four coefficients multiply, in units that make these of about one size."""
    m, n, k = shape
    tiles = n / TILE_ROWS
    if tiles > MULTIPROCESSORS / 2:
        waves = float(math.ceil(tiles / MULTIPROCESSORS))
    else:  # two thread blocks share a tile
        waves = math.ceil(2 * tiles / MULTIPROCESSORS) / 2
    return [1.0, bytes_moved / 1e6, k * waves / 1e3, 2 * m * n * k / 1e9]


def _predict(rows: _Rows, shape: Shape, bytes_moved: float) -> float:
    """Seconds at ``shape``."""
    from scipy.optimize import nnls

    distance = ((rows.places - np.log(np.array(shape, dtype=np.float64))) ** 2).sum(1)
    weight = np.sqrt(1 / (1 + distance / WIDTH)) * np.where(rows.own, OWN, 1.0)
    coefficients, _ = nnls(rows.terms / rows.seconds[:, None] * weight[:, None], weight)
    near = np.where(rows.own, (NEAR + distance) ** -2.0, 0.0)
    correction = near @ np.log(rows.seconds / (rows.terms @ coefficients)) / near.sum()
    return float(np.array(_terms(shape, bytes_moved)) @ coefficients * math.exp(correction))


@lru_cache(maxsize=256)
def _rows_of(name: str, recording: int) -> _Rows | None:
    """What a product is fitted to; None where that is too little."""
    if name not in _recorded() or name not in GEMMS:
        return None
    if _fitted_alone(name):
        return _table(name, recording)
    relatives = _relatives(GEMMS[name])
    return _table(name, recording).with_relatives(relatives) if relatives else None


@lru_cache(maxsize=256)
def _left_out(name: str, recording: int) -> tuple[LeftOut, ...]:
    if name not in _recorded() or name not in GEMMS:
        return ()
    if not _fitted_alone(name):
        return _left_out_of(_relatives(GEMMS[name]), tuple(_recorded()[name]), recording)
    own, rows = _recorded()[name], _table(name, recording)
    return tuple(
        _compare(rows.where([s[1:] != timing.shape[1:] for s in own]), timing)
        for timing in own.values()
        if timing.shape[0] in TOKENS
    )


@lru_cache(maxsize=64)
def _left_out_of(relatives: tuple[str, ...], known: tuple[Shape, ...], recording: int) -> tuple[LeftOut, ...]:
    """The errors of each relative, predicted from its own ``known`` shapes and all shapes of the others."""
    errors: list[LeftOut] = []
    for name in relatives:
        timings = _recorded()[name]
        own = _table(name, recording).where([shape in known for shape in timings])
        if not len(own.seconds):
            continue
        rows = own.with_relatives(other for other in relatives if other != name)
        errors += [
            _compare(rows, timing)
            for shape, timing in timings.items()
            if shape not in known and shape[0] in TOKENS and _tokens_reach(known, shape[0])
        ]
    return tuple(errors)


def _compare(rows: _Rows, timing: GemmTiming) -> LeftOut:
    error = _predict(rows, timing.shape, timing.bytes_moved) / timing.seconds - 1
    return LeftOut(timing.gemm, timing.variant, timing.shape, error)


def _tokens_reach(shapes: Iterable[Shape], m: int) -> bool:
    tokens = [shape[0] for shape in shapes]
    return math.log(min(tokens)) - REACH <= math.log(m) <= math.log(max(tokens)) + REACH


@lru_cache(maxsize=4096)
def _product_time(name: str, shape: Shape, recording: int) -> ShapeTime:
    own = _recorded().get(name, {})
    machine = next((r.machine for r in _recordings() if own.get(shape) in r.rows), recorded_gemms().machine)
    time = ShapeTime(shape, "none", product=name, gpu=machine.gpu or "", date=machine.date or "")
    label = GEMMS[name].label
    if shape in own:
        return replace(time, kind="measured", seconds=own[shape].seconds, kernel=own[shape].variant)
    if not own:
        return replace(time, reason=f"{label}: not recorded yet")
    if not _tokens_reach(own, shape[0]):
        tokens = [s[0] for s in own]
        return replace(time, reason=f"{label}: recorded with {min(tokens):,} to {max(tokens):,} tokens only")
    rows = _rows_of(name, recording)
    if rows is None:
        return replace(time, reason=f"{label}: recorded at {_sizes(own)} only: too few for a model")
    error, extrapolated = _error(name, shape, rows, recording)
    if error is None or error > USELESS or _gap(shape[1:], _weights_in(rows)) > FARTHEST:
        return replace(time, reason=f"{label}: no weight of nearly this size is recorded")
    return replace(
        time,
        kind="modelled",
        seconds=_predict(rows, shape, _bytes(GEMMS[name], shape)),
        kernel=own[_closest(own, shape)].variant,
        error=error,
        extrapolated=extrapolated,
    )


def _error(name: str, shape: Shape, rows: _Rows, recording: int) -> tuple[float | None, bool]:
    """The error to be expected at ``shape``, and whether N or K lies outside what was recorded."""
    errors, place = _left_out(name, recording), np.log(np.array(shape[1:], dtype=np.float64))
    sides = rows.places[:, 1:]
    below, above = place < sides.min(0) - 1e-9, place > sides.max(0) + 1e-9
    if not (below.any() or above.any()):
        return typical_error(errors), False
    weights = sorted({row.shape[1:] for row in errors})
    ends = [
        w
        for w in weights
        if any(w[i] == min(v[i] for v in weights) and below[i] for i in (0, 1))
        or any(w[i] == max(v[i] for v in weights) and above[i] for i in (0, 1))
    ]
    at_ends = [abs(row.error) for row in errors if row.shape[1:] in ends]
    if not at_ends:
        return None, True
    left = max(_gap(w, [v for v in weights if v != w]) for w in ends) or 1.0
    return max(at_ends) * max(1.0, _gap(shape[1:], _weights_in(rows)) / left), True


def _weights_in(rows: _Rows) -> list[Weight]:
    return [(round(math.exp(n)), round(math.exp(k))) for n, k in rows.places[:, 1:]]


def _gap(weight: Weight, others: Iterable[Weight]) -> float:
    """The distance in (log N, log K) to the nearest of ``others``; 0 without any."""
    n, k = weight
    return min((math.hypot(math.log(n / a), math.log(k / b)) for a, b in others), default=0.0)


def _sizes(shapes: Iterable[Shape]) -> str:
    count = len(_weights(shapes))
    return f"{count} size{'' if count == 1 else 's'} of W"


def _closest(shapes: Iterable[Shape], wanted: Shape) -> Shape:
    return min(
        shapes, key=lambda shape: sum(math.log(a / b) ** 2 for a, b in zip(shape, wanted, strict=True))
    )


def _bytes(gemm: Gemm, shape: Shape) -> float:
    """Bytes of X and W as stored and of Y."""
    m, n, k = shape
    x, w = gemm.x.bits_per_element((m, k)).total, gemm.w.bits_per_element((n, k)).total
    return (x * m * k + w * n * k) / 8 + m * n * gemm.out.itemsize


def _checked(shape: Sequence[int]) -> Shape:
    m, n, k = shape
    if min(m, n, k) < 1:
        raise ValueError(f"M, N and K are whole numbers of at least 1, not {m} × {n} × {k}")
    return int(m), int(n), int(k)


def _as_timing(name: str, time: ShapeTime) -> ModelledTiming:
    """A modelled time with the fields of a recorded one."""
    assert time.seconds is not None
    gemm, limits = GEMMS[name], recorded_gemms().limits
    like = _recorded()[name][_closest(_recorded()[name], time.shape)]
    m, n, k = time.shape
    size, operations = round(_bytes(gemm, time.shape)), 2 * m * n * k
    weight_bytes = round(n * k * gemm.w.bits_per_element((n, k)).total / 8)
    rate = limits.rates.get(gemm.core) if limits else None
    floor = max(size / limits.copy, operations / rate) if limits and rate else None
    fields = {
        "variant": time.kernel,
        "shape": time.shape,
        "graph": TimeSpread(time.seconds, time.seconds, time.seconds),
        "flush": None,
        "activation_s": _activation_seconds(name, m, k),
        "baseline_graph": None,
        "baseline_flush": None,
        "baseline_note": "",
        "operations": operations,
        "bytes_moved": size,
        "weight_bytes": weight_bytes,
        "tflops": operations / time.seconds / 1e12,
        "floor_s": floor,
        "share": floor / time.seconds if floor else None,
        "state": None,
    }
    return ModelledTiming(**(vars(like) | fields), how=time.how, error=time.error)


def _activation_seconds(name: str, m: int, k: int) -> float | None:
    """What quantizing X [m, k] takes, modelled; None where nothing of that was recorded."""
    timed = _activations(name)
    return _activation_fit(timed, m, k) if timed else None


def _activations(name: str) -> list[tuple[int, int, float]]:
    """M, K and seconds of each recorded quantization of a product's X."""
    rows = _recorded().get(name, {}).items()
    return [(shape[0], shape[2], timing.activation_s) for shape, timing in rows if timing.activation_s]


def _activation_fit(timed: Sequence[tuple[int, int, float]], m: int, k: int) -> float:
    """Seconds for X [m, k]: an overhead and a rate, fitted to recorded (M, K, seconds)."""
    from scipy.optimize import nnls

    seconds = np.array([s for _, _, s in timed], dtype=np.float64)
    terms = np.array([[1.0, rows * columns / 1e6] for rows, columns, _ in timed])
    coefficients, _ = nnls(terms / seconds[:, None], np.ones(len(timed)))
    return float(np.array([1.0, m * k / 1e6]) @ coefficients)
