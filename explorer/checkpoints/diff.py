"""Two checkpoints of one model, layer by layer: what the other one stores, in how many bits, how far its
weights are from the original's, and which layers stand out.

    found = open_pair("model", "model-awq")      # names, from the headers alone
    result = diff(found)                         # .layers, .missing, .extra
    result.layers[0].kind, .bits, .sqnr_db       # "INT4 group 128, asymmetric", 4.16, 21.3

One layer is in memory at a time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from explorer.analysis.report import Sums, measure, sqnr_db
from explorer.analysis.tensor import Analysis, differences
from explorer.checkpoints.pairs import Pair, Pairs, find_pairs
from explorer.checkpoints.rescaled import Factors, find_factors, noise, whole_factor
from explorer.checkpoints.stored import Checkpoint, GgufCheckpoint, in_old_order, open_checkpoint
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.models.kinds import depth_of
from explorer.models.kinds import kind_of as role_of
from explorer.models.skeleton import TRANSPOSED
from explorer.progress import Progress, checkpoint
from explorer.schemes import SCHEMES
from explorer.sources.base import SourceError
from explorer.sources.matrix import as_matrix
from explorer.sources.quantized_forms import Restored
from explorer.sources.source_limits import LOCAL, SourceLimits
from explorer.words import number, plain

SORTS = ("name", "db", "bits")
LEAST_LAYERS = 3
"""Layers of one scheme, below which none can stand out among them."""
LEAST_Z, LEAST_DB = 3.5, 1.0
"""A layer stands out that is so many robust standard deviations and so many dB below the median of the layers
of its scheme."""
FEW_LAYERS, FEW_DB = 5, 6.0
"""Of fewer layers than that the deviation says little: it has to be twice the error, 6 dB, too."""
_OF_A_NORMAL = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
_SUSPECT_DB, _STRANGE = 20.0, 0.5
"""Below this SQNR factors are looked for; below this cosine a layer hardly is the original's."""
_FLOAT32 = SCHEMES["fp32"]


@dataclass(frozen=True)
class LayerDiff:
    """One weight of both checkpoints.

    name, stored_as   in the original, and in the other one
    shape             of the original
    kind, scheme      what is stored, in words, and by this project's scheme, empty without one
    coded             whether codes are stored
    bits              a weight in the files, all scales and tables counted
    equal             whether every value is the original's
    sqnr_db, relative_error, cosine, max_error, max_error_at   as in ``Report``; where factors were folded,
                      after undoing them
    max_error_steps   the largest |error| in units of its block's scale; None without scales
    stored_sqnr_db    as the weight is stored; other than ``sqnr_db`` only where factors were folded
    note              what else there is to say; empty if nothing
    z, outlier        robust z score of ``sqnr_db`` among the layers of its kind, None where that has no
                      meaning, and in words that it stands out
    """

    name: str
    stored_as: str
    shape: tuple[int, ...]
    kind: str
    scheme: str
    coded: bool
    bits: float
    equal: bool
    sqnr_db: float
    relative_error: float
    cosine: float
    max_error: float
    max_error_at: tuple[int, int]
    max_error_steps: float | None
    stored_sqnr_db: float
    note: str = ""
    z: float | None = None
    outlier: str = ""

    @property
    def changed(self) -> bool:
        """Whether it is a matrix with an error: of codes, or of a plain type with other values."""
        return self.coded or (not self.equal and len(self.shape) > 1)

    @property
    def depth(self) -> int | None:
        """Which of the model's blocks it is in; None outside of them."""
        return depth_of(self.name.removesuffix(".weight"))


@dataclass(frozen=True)
class Reshaped:
    """A weight that has another shape in the other checkpoint, or cannot be read there, and why."""

    name: str
    why: str


Row = LayerDiff | Reshaped


@dataclass(frozen=True)
class Diff:
    """The layers in the original's order; ``missing`` and ``extra`` names, ``unread`` weights that could not
    be compared; ``left_out``: unreadable files of either checkpoint."""

    original: str
    quantized: str
    layers: tuple[LayerDiff, ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    unread: tuple[Reshaped, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def outliers(self) -> tuple[LayerDiff, ...]:
        """The layers that stand out."""
        return tuple(layer for layer in self.layers if layer.outlier)

    @property
    def coded(self) -> tuple[LayerDiff, ...]:
        """The layers of codes."""
        return tuple(layer for layer in self.layers if layer.coded)

    @property
    def changed(self) -> tuple[LayerDiff, ...]:
        """The layers of codes, and those of plain types whose values are not the original's."""
        return tuple(layer for layer in self.layers if layer.changed)


@dataclass(frozen=True)
class Opened:
    """Two checkpoints, and which weights of them belong together."""

    original: Checkpoint
    quantized: Checkpoint
    pairs: Pairs

    def pair(self, name: str) -> Pair:
        """The pair of a weight by either name, with or without ".weight"; ``SourceError`` if there is
        none."""
        for pair in self.pairs.pairs:
            known = {pair.name, *pair.original, *pair.quantized}
            if name in known or f"{name}.weight" in known:
                return pair
        some = ", ".join(plain(pair.name, 80) for pair in self.pairs.pairs[:3])
        raise SourceError(f"no weight {plain(name, 80)!r} is in both checkpoints; there are {some}, …")


@dataclass
class _Seen:
    """What earlier layers told: of norms that differ, the original's over the other's, by block."""

    norms: dict[int | None, dict[str, Tensor]] = field(default_factory=dict)

    def near(self, name: str) -> Mapping[str, Tensor]:
        """The norms of the block of a weight that differ."""
        return self.norms.get(depth_of(name.removesuffix(".weight")), {})


def open_pair(
    original: str,
    quantized: str,
    limits: SourceLimits = LOCAL,
    revision: str | None = None,
) -> Opened:
    """Open both, and pair their weights. Each is a folder, a .gguf or .safetensors file, or a Hub id;
    ``revision`` is that of the other one.

    ``SourceError`` for what cannot be read, and checkpoints without a common name.
    """
    first, second = open_checkpoint(original, limits=limits), open_checkpoint(quantized, revision, limits)
    return Opened(first, second, find_pairs(first, second))


def diff(opened: Opened, only: str = "", progress: Progress | None = None) -> Diff:
    """Compare all weights, or those whose name contains ``only``. ``progress`` counts weights.

    ``SourceError`` if no weight has ``only`` in its name.
    """
    chosen, rows = chosen_pairs(opened, only), list[Row]()
    for row in compared(opened, chosen):
        rows.append(row)
        if progress is not None:
            progress(len(rows), len(chosen))
    return assembled(opened, chosen, rows)


def chosen_pairs(opened: Opened, only: str = "") -> list[Pair]:
    """The pairs with ``only`` in one of their names; ``SourceError`` if there are none."""
    chosen = [pair for pair in opened.pairs.pairs if only in " ".join((*pair.original, *pair.quantized))]
    return chosen or [opened.pair(only)]


def compared(opened: Opened, pairs: Sequence[Pair], most: int | None = None) -> Iterator[Row]:
    """A row for each of ``pairs``, as they are done: vectors first, because norms tell of factors. Weights of
    more than ``most`` elements are not read."""
    seen = _Seen()
    for pair in sorted(pairs, key=lambda pair: _is_matrix(opened, pair)):
        checkpoint()
        try:
            size = _most_elements(opened, pair)
            if most is not None and size > most:
                raise SourceError(f"it has {size:,} elements; up to {most:,} are compared here")
            yield _compared(opened, pair, seen)
        except (ValueError, OverflowError) as error:
            yield Reshaped(pair.name, plain(str(error), 300))


def assembled(opened: Opened, pairs: Sequence[Pair], rows: Sequence[Row]) -> Diff:
    """What ``compared`` has given of ``pairs`` so far, in the order of the pairs, with outliers; of all pairs
    also what has no partner."""
    layers = {row.name: row for row in rows if isinstance(row, LayerDiff)}
    whole = len(pairs) == len(opened.pairs.pairs)
    return Diff(
        opened.original.origin,
        opened.quantized.origin,
        tuple(with_outliers([layers[pair.name] for pair in pairs if pair.name in layers])),
        opened.pairs.missing if whole else (),
        opened.pairs.extra if whole else (),
        tuple(row for row in rows if isinstance(row, Reshaped)),
        (*opened.original.broken, *opened.quantized.broken),
    )


def analysis_of(opened: Opened, name: str, most: int | None = None) -> tuple[Tensor, Analysis, LayerDiff]:
    """The original weight as float32 [rows, cols], what became of it, as figures of a tensor take it, and its
    row. The analysis holds the restored values, without codes and scales; folded factors are undone.

    ``SourceError`` for a weight of more than ``most`` elements, or one that cannot be compared.
    """
    pair, seen = opened.pair(name), _Seen()
    size = _most_elements(opened, pair)
    if most is not None and size > most:
        raise SourceError(f"{pair.name} has {size:,} elements; up to {most:,} are shown here")
    for other in opened.pairs.pairs:
        if not _is_matrix(opened, other) and depth_of(other.name) == depth_of(pair.name):
            checkpoint()
            _both(opened, other, seen)
    x, restored, factors = _both(opened, pair, seen)
    values = restored.values if factors is None else factors.undo(restored.values)
    q = _as_float32(values)
    try:
        analysis = Analysis(q, *differences(x, values, measure(x, q, values)))
    except (ValueError, OverflowError) as error:
        if bool((x.isfinite() & values.isfinite()).all()):
            raise
        raise SourceError(f"{pair.name} holds infinities of both signs, which have no sum") from error
    return x, analysis, _row_of(opened, pair, (x, restored, factors))


def ordered(layers: Sequence[LayerDiff], by: str) -> list[LayerDiff]:
    """``layers`` by one of ``SORTS``: as they are, the worst first, or the most bits first."""
    if by not in SORTS:
        raise ValueError(f"no order {by!r}; there are {', '.join(SORTS)}")
    if by == "name":
        return list(layers)
    key: Callable[[LayerDiff], float] = (
        (lambda layer: -math.inf if math.isnan(layer.sqnr_db) else layer.sqnr_db)
        if by == "db"
        else lambda layer: -layer.bits
    )
    return sorted(layers, key=key)


def with_outliers(layers: Sequence[LayerDiff]) -> Iterator[LayerDiff]:
    """``layers`` with their robust z scores: of each that was changed, its distance from the median of those
    of its kind, in 1.4826 median absolute deviations."""
    groups: dict[str, list[float]] = {}
    for layer in layers:
        if layer.changed and math.isfinite(layer.sqnr_db):
            groups.setdefault(layer.kind, []).append(layer.sqnr_db)
    for layer in layers:
        values = groups.get(layer.kind, ())
        if layer.changed and len(values) >= LEAST_LAYERS:
            yield _judged(layer, values)
        else:
            yield layer


def _judged(layer: LayerDiff, values: Sequence[float]) -> LayerDiff:
    if math.isnan(layer.sqnr_db):
        return replace(layer, outlier="its error is no number: NaN or infinity is stored")
    middle = statistics.median(values)
    deviation = _OF_A_NORMAL * statistics.median(abs(value - middle) for value in values)
    below = middle - layer.sqnr_db
    if not math.isfinite(below):
        return layer
    z = -below / deviation if deviation else None if below else 0.0
    least = LEAST_DB if len(values) >= FEW_LAYERS else FEW_DB
    if below < least or (z is not None and z > -LEAST_Z):
        return replace(layer, z=z)
    score = "" if z is None else f" (robust z {number(z, 2)})"
    words = f"{number(below, 2)} dB below the median of the {len(values)} layers of {layer.kind}{score}"
    return replace(layer, z=z, outlier=words)


def _is_matrix(opened: Opened, pair: Pair) -> bool:
    return (
        len(opened.original.weights[pair.original[0]].shape) > 1
        or opened.original.weights[pair.original[0]].coded
    )


def _compared(opened: Opened, pair: Pair, seen: _Seen) -> LayerDiff:
    """One row; ``SourceError`` if the weight cannot be read or has another shape."""
    return _row_of(opened, pair, _both(opened, pair, seen))


def _row_of(opened: Opened, pair: Pair, both: tuple[Tensor, Restored, Factors | None]) -> LayerDiff:
    """The row of what ``_both`` gives."""
    x, restored, factors = both
    values, steps = restored.values, restored.steps
    if factors is not None:
        values, steps = factors.undo(values), None if steps is None else factors.undo(steps)
    sums = _sums(x, values)
    decibels = sqnr_db(sums.signal, sums.noise) if math.isfinite(sums.noise) else math.nan
    as_stored = decibels if factors is None else sqnr_db(sums.signal, noise(x, restored.values))
    coded, cosine = any(opened.quantized.weights[name].coded for name in pair.quantized), _cosine(sums)
    if factors is None:
        note = _note(opened, pair, decibels, cosine, coded)
        if coded and not note and decibels < _SUSPECT_DB and (factor := whole_factor(x, values)):
            note = f"as a whole it is {number(factor)} times the original's"
    else:
        note = f"{factors.why}: {number(as_stored, 3)} dB as it is stored"
    size = sum(opened.quantized.weights[name].bytes for name in pair.quantized)
    return LayerDiff(
        pair.name,
        " + ".join(pair.quantized),
        _shape(opened, pair),
        restored.kind,
        restored.scheme,
        coded,
        8 * size / max(x.numel(), 1),
        sums.noise == 0,
        decibels,
        math.sqrt(sums.noise / sums.signal) if sums.signal else (0.0 if sums.noise == 0 else math.inf),
        cosine,
        max(sums.max_error, 0.0),
        sums.max_error_at,
        _in_steps(x, values, steps),
        as_stored,
        note,
    )


def _sums(x: Tensor, values: Tensor) -> Sums:
    """Of both float32 [rows, cols]; NaN where infinities of both signs are added, which have no sum."""
    sums = Sums()
    try:
        sums.add_part(x, values, _as_float32(values))
    except (ValueError, OverflowError):
        infinite = ~(x.isfinite() & values.isfinite())
        if not bool(infinite.any()):
            raise
        row, column = divmod(int(infinite.reshape(-1).byte().argmax()), x.shape[1])
        return Sums(math.nan, math.nan, math.nan, math.nan, max_error=math.nan, max_error_at=(row, column))
    return sums


def _most_elements(opened: Opened, pair: Pair) -> int:
    """The elements of the larger side, from the headers of both."""
    sides = ((opened.original, pair.original), (opened.quantized, pair.quantized))
    return max(sum(map(side.elements, names)) for side, names in sides)


def _shape(opened: Opened, pair: Pair) -> tuple[int, ...]:
    shapes = [opened.original.weights[name].shape for name in pair.original]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]


def _note(opened: Opened, pair: Pair, decibels: float, cosine: float, coded: bool) -> str:
    """What is to be said of a weight whose difference no factors explain."""
    if math.isnan(decibels):
        return "it holds NaN or infinity"
    if decibels == math.inf:
        return ""
    if coded and cosine < _STRANGE:
        return (
            f"it hardly resembles the original (cosine {number(cosine, 2)}): another model's layer, one that "
            "was rotated before, or codes in another order"
        )
    if not coded and _is_matrix(opened, pair):
        return "kept in its format, but with other values than the original's"
    return "" if coded else "differs from the original's"


def _both(opened: Opened, pair: Pair, seen: _Seen) -> tuple[Tensor, Restored, Factors | None]:
    """The original [rows, cols], the other one in its shape and order, and the factors between them."""
    _check_shapes(opened, pair)
    x = _original(opened, pair)
    parts = [opened.quantized.restore(name) for name in pair.quantized]
    restored = _joined(parts)
    if opened.original.config.get("model_type") in TRANSPOSED and _turned(opened, pair, x, restored):
        x = x.t().contiguous()
    if x.numel() != restored.values.numel() or _widths_differ(x, restored.values):
        raise _unlike(opened, pair, tuple(restored.values.shape))
    restored = _matrices(restored, x.shape)
    restored = _rows_in_order(opened, pair, x, restored)
    return x, restored, _factors(opened, pair, x, restored, seen)


def _check_shapes(opened: Opened, pair: Pair) -> None:
    """``SourceError`` for a weight that has another number of elements than the original; nothing of it is
    read."""
    first, *more = pair.quantized
    if not more and opened.quantized.elements(first) != sum(map(opened.original.elements, pair.original)):
        raise _unlike(opened, pair, opened.quantized.weights[first].shape)


def _unlike(opened: Opened, pair: Pair, shape: tuple[int, ...]) -> SourceError:
    return SourceError(
        f"its shape is {list(_shape(opened, pair))} in {opened.original.origin}, and "
        f"{list(shape)} in {opened.quantized.origin}"
    )


def _original(opened: Opened, pair: Pair) -> Tensor:
    parts = [opened.original.restore(name).values for name in pair.original]
    if len(parts) == 1:
        return as_matrix(parts[0])
    widths = {part.shape[1:] for part in parts}
    if len(widths) > 1:
        raise SourceError(
            f"{' and '.join(pair.original)} have rows of several lengths: they are no one matrix"
        )
    return as_matrix(torch.cat(parts))


def _joined(parts: Sequence[Restored]) -> Restored:
    """The rows of several weights as one; what they are stored as is that of the first, and of others that
    differ."""
    if len(parts) == 1:
        return parts[0]
    steps = [part.steps for part in parts if part.steps is not None]
    kinds = " and ".join(dict.fromkeys(part.kind for part in parts))
    schemes = {part.scheme for part in parts}
    return Restored(
        torch.cat([part.values for part in parts]),
        kinds,
        schemes.pop() if len(schemes) == 1 else "",
        torch.cat(steps) if len(steps) == len(parts) else None,
    )


def _turned(opened: Opened, pair: Pair, x: Tensor, restored: Restored) -> bool:
    """Whether the other checkpoint has the layer, which the original stores [K, N], as [N, K]."""
    if isinstance(opened.original, GgufCheckpoint) or not isinstance(opened.quantized, GgufCheckpoint):
        return False
    return x.shape[0] > 1 and role_of(pair.name.removesuffix(".weight")) != "other"


def _widths_differ(x: Tensor, values: Tensor) -> bool:
    """Whether rows have other lengths; vectors and experts are compared as matrices."""
    return values.dim() > 1 and as_matrix(values).shape != x.shape


def _matrices(restored: Restored, shape: torch.Size) -> Restored:
    steps = restored.steps
    return replace(
        restored,
        values=restored.values.reshape(shape),
        steps=None if steps is None else steps.reshape(shape),
    )


def _rows_in_order(opened: Opened, pair: Pair, x: Tensor, restored: Restored) -> Restored:
    """``restored`` with rows in the order of the original, where llama.cpp has them in pairs: of both orders
    the nearer one."""
    if isinstance(opened.original, GgufCheckpoint) or not isinstance(opened.quantized, GgufCheckpoint):
        return restored
    heads = opened.quantized.heads_of(pair.quantized[0])
    if not heads:
        return restored
    vector = x.shape[0] == 1
    turn = (lambda t: in_old_order(t.t(), heads).t()) if vector else (lambda t: in_old_order(t, heads))
    other = turn(restored.values)
    if noise(x, other) >= noise(x, restored.values):
        return restored
    steps = None if restored.steps is None else turn(restored.steps)
    return replace(restored, values=other, steps=steps)


def _factors(opened: Opened, pair: Pair, x: Tensor, restored: Restored, seen: _Seen) -> Factors | None:
    """Factors that were folded into the weight, or None; of a norm that differs, what it was divided by is
    kept in ``seen``."""
    name, values = pair.original[0], restored.values
    if not _is_matrix(opened, pair):
        offset = 1.0 if _counts_from_one(opened, pair) else 0.0
        if offset:
            values -= offset
        if name.endswith("weight") and not torch.equal(x, values):
            ratio = ((x + offset) / (values + offset)).reshape(-1)
            if bool(ratio.isfinite().all()):
                seen.norms.setdefault(depth_of(name.removesuffix(".weight")), {})[name] = ratio
        return None
    if x.shape[0] < 2 or torch.equal(x, values) or not bool(values.isfinite().all()):
        return None
    near = seen.near(name)
    if not near and sqnr_db(float(x.double().square().sum()), noise(x, values)) >= _SUSPECT_DB:
        return None
    return find_factors(x, values, near)


def _counts_from_one(opened: Opened, pair: Pair) -> bool:
    """Whether a norm of the other checkpoint is that of the original plus 1: Gemma's in GGUF files."""
    if isinstance(opened.original, GgufCheckpoint) or not isinstance(opened.quantized, GgufCheckpoint):
        return False
    return opened.quantized.model.architecture.startswith("gemma") and pair.original[0].endswith(
        "norm.weight"
    )


def _as_float32(values: Tensor) -> QuantizedTensor:
    """``values`` float32 [rows, cols] as a tensor of float32 codes, in the same memory."""
    scales = quantize(torch.zeros(1, 1), _FLOAT32).scales
    whole = values.contiguous()
    return QuantizedTensor(whole.view(torch.uint8), scales, _FLOAT32, (whole.shape[0], whole.shape[1]))


def _in_steps(x: Tensor, values: Tensor, steps: Tensor | None) -> float | None:
    """The largest |error| in units of its element's scale."""
    if steps is None:
        return None
    shares = (values - x).abs() / steps.abs()
    return float(torch.where(steps == 0, 0.0, shares).max())


def _cosine(sums: Sums) -> float:
    """As ``Report.cosine``."""
    if sums.signal == 0 or sums.output == 0:
        return 1.0 if sums.signal == sums.output else 0.0
    return sums.inner / math.sqrt(sums.signal) / math.sqrt(sums.output)
