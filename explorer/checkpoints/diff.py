"""Compare a quantized checkpoint with its original layer by layer: the stored form, the bits, the distance of
the weights from the original's, and outliers.

    found = open_pair("model", "model-awq")      # names, from the headers alone
    result = diff(found)                         # .layers, .missing, .extra
    result.layers[0].kind, .bits, .sqnr_db       # "INT4 group 128, asymmetric", 4.16, 21.3

One layer is in memory at a time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from explorer.analysis.report import Sums, cosine_of, measure, sqnr_db
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

LEAST_LAYERS = 3
"""Fewest layers of one scheme among which one can be an outlier."""
LEAST_Z, LEAST_DB = 3.5, 1.0
"""Least distance of an outlier below the median of its scheme, in robust deviations and in dB."""
FEW_LAYERS, FEW_DB = 5, 6.0
"""Number of layers below which the deviation is unreliable; an outlier then needs twice the error (6 dB)."""
_OF_A_NORMAL = 1.4826
"""Standard deviation of a normal distribution, over its median absolute deviation."""
_SUSPECT_DB, _STRANGE = 20.0, 0.5
"""SQNR below which folded factors are searched for, and cosine below which a layer is hardly the
original's."""
_FLOAT32 = SCHEMES["fp32"]


@dataclass(frozen=True)
class LayerDiff:
    """One weight of both checkpoints.

    name, stored_as   its names in the original and in the quantized checkpoint
    shape             in the original
    kind, scheme      the stored form in words, and as a scheme of this project (empty without one)
    coded             True for codes
    bits              per weight in the files, with all scales and tables
    equal             True if every value is the original's
    sqnr_db, relative_error, cosine, max_error, max_error_at   as in ``Report``, after folded factors are
    undone
    max_error_steps   the largest |error| in units of its block's scale; None without scales
    stored_sqnr_db    before folded factors are undone
    note              a further remark, or empty
    z, outlier        robust z score of ``sqnr_db`` among the layers of one kind (None where it has no
                      meaning), and in words that the layer stands out
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
        """True for codes, and for a matrix of a plain type with other values than the original's."""
        return self.coded or (not self.equal and len(self.shape) > 1)

    @property
    def depth(self) -> int | None:
        """The number of the weight's block in the model; None outside of blocks."""
        return depth_of(self.name.removesuffix(".weight"))


@dataclass(frozen=True)
class Reshaped:
    """A weight that cannot be compared: another shape, or unreadable."""

    name: str
    why: str


Row = LayerDiff | Reshaped


@dataclass(frozen=True)
class Diff:
    """Result of a comparison: ``layers`` in the original's order; names that only one checkpoint has
    (``missing``, ``extra``); weights that could not be compared (``unread``); unreadable files of both
    (``left_out``)."""

    original: str
    quantized: str
    layers: tuple[LayerDiff, ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    unread: tuple[Reshaped, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def outliers(self) -> tuple[LayerDiff, ...]:
        return tuple(layer for layer in self.layers if layer.outlier)

    @property
    def coded(self) -> tuple[LayerDiff, ...]:
        return tuple(layer for layer in self.layers if layer.coded)

    @property
    def changed(self) -> tuple[LayerDiff, ...]:
        return tuple(layer for layer in self.layers if layer.changed)


Norms = dict[int | None, dict[str, Tensor]]
"""The original's weight over the other's, by block and name, of the norms that differ."""


@dataclass(frozen=True)
class Opened:
    """Two opened checkpoints, and the pairs of their weights."""

    original: Checkpoint
    quantized: Checkpoint
    pairs: Pairs

    def pair(self, name: str) -> Pair:
        """The pair of a weight by either name, with or without ".weight"; ``SourceError`` if there is
        none."""
        for pair in self.pairs.pairs:
            if {name, f"{name}.weight"} & {pair.name, *pair.original, *pair.quantized}:
                return pair
        some = ", ".join(plain(pair.name, 80) for pair in self.pairs.pairs[:3])
        raise SourceError(f"no weight {plain(name, 80)!r} is in both checkpoints; there are {some}, …")

    @property
    def into_gguf(self) -> bool:
        """True for a pair of a transformers folder and a GGUF file, which orders rows and counts norms
        differently."""
        return isinstance(self.quantized, GgufCheckpoint) and not isinstance(self.original, GgufCheckpoint)

    def is_matrix(self, pair: Pair) -> bool:
        weight = self.original.weights[pair.original[0]]
        return len(weight.shape) > 1 or weight.coded

    def shape(self, pair: Pair) -> tuple[int, ...]:
        """The original's shape; several weights are joined along their rows."""
        shapes = [self.original.weights[name].shape for name in pair.original]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]

    def check_size(self, pair: Pair, most: int | None) -> None:
        """``SourceError``, by the headers, for a weight of more than ``most`` elements on either side."""
        sides = ((self.original, pair.original), (self.quantized, pair.quantized))
        size = max(sum(map(side.elements, names)) for side, names in sides)
        if most is not None and size > most:
            raise SourceError(f"it has {size:,} elements; up to {most:,} are compared here")

    def unlike(self, pair: Pair, shape: tuple[int, ...]) -> SourceError:
        return SourceError(
            f"its shape is {list(self.shape(pair))} in {self.original.origin}, and "
            f"{list(shape)} in {self.quantized.origin}"
        )


def open_pair(
    original: str,
    quantized: str,
    limits: SourceLimits = LOCAL,
    revision: str | None = None,
    original_revision: str | None = None,
) -> Opened:
    """Open two checkpoints and pair their weights. Each is a folder, a .gguf or .safetensors file, or a Hub
    id; ``revision`` is that of ``quantized``.

    ``SourceError`` for one that cannot be read, and for two without a common name.
    """
    first = open_checkpoint(original, original_revision, limits)
    second = open_checkpoint(quantized, revision, limits)
    return Opened(first, second, find_pairs(first, second))


def diff(opened: Opened, only: str = "", progress: Progress | None = None) -> Diff:
    """Compare all weights, or those with ``only`` in their name. ``progress`` counts weights.

    ``SourceError`` if there are none.
    """
    chosen = [pair for pair in opened.pairs.pairs if only in " ".join((*pair.original, *pair.quantized))]
    chosen, rows = chosen or [opened.pair(only)], list[Row]()
    for row in compared(opened, chosen):
        rows.append(row)
        if progress is not None:
            progress(len(rows), len(chosen))
    return assembled(opened, chosen, rows)


def compared(opened: Opened, pairs: Sequence[Pair], most: int | None = None) -> Iterator[Row]:
    """Yield a row for each of ``pairs``. Vectors come first, because norms show folded factors. Weights of
    more than ``most`` elements are not read."""
    norms, before = Norms(), 0
    for pair in sorted(pairs, key=opened.is_matrix):
        checkpoint()
        try:
            before = _checked(opened, pair, most, before)
            yield _row(opened, pair, *_both(opened, pair, norms))
        except (ValueError, OverflowError) as error:
            yield Reshaped(pair.name, plain(str(error), 300))


def _checked(opened: Opened, pair: Pair, most: int | None, before: int) -> int:
    """``check_size`` of a pair, and of a vector with the elements ``before`` it: those that differ are kept.
    Returns the elements before the next."""
    opened.check_size(pair, most)
    if opened.is_matrix(pair):
        return before
    size = before + math.prod(opened.shape(pair))
    if most is not None and size > most:
        raise SourceError(f"{pair.name} and the vectors before it have more than {most:,} elements together")
    return size


def assembled(opened: Opened, pairs: Sequence[Pair], rows: Sequence[Row]) -> Diff:
    """Put the rows so far in the order of ``pairs``, with outliers; of all pairs also the names without a
    partner."""
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
    """Analyse one weight for the figures of a tensor: the original as float32 [rows, cols], the analysis of
    the other one, and its row.

    The analysis holds the restored values without codes and scales; folded factors are undone.
    ``SourceError`` for a weight of more than ``most`` elements, or one that cannot be compared.
    """
    pair, norms, before = opened.pair(name), Norms(), 0
    opened.check_size(pair, most)
    for other in opened.pairs.pairs:
        if not opened.is_matrix(other) and depth_of(other.name) == depth_of(pair.name):
            checkpoint()
            before = _checked(opened, other, most, before)
            _both(opened, other, norms)
    x, restored, factors = _both(opened, pair, norms)
    values = restored.values if factors is None else factors.undo(restored.values)
    q = _as_float32(values)
    try:
        analysis = Analysis(q, *differences(x, values, measure(x, q, values)))
    except (ValueError, OverflowError) as error:
        if bool((x.isfinite() & values.isfinite()).all()):
            raise
        raise SourceError(f"{pair.name} holds infinities of both signs, which have no sum") from error
    return x, analysis, _row(opened, pair, x, restored, factors)


def ordered(layers: Sequence[LayerDiff], by: str) -> list[LayerDiff]:
    """Order layers by "name" (as they are), "db" (the worst first) or "bits" (the most first)."""
    keys: dict[str, Callable[[LayerDiff], float]] = {
        "name": lambda layer: 0.0,
        "db": lambda layer: -math.inf if math.isnan(layer.sqnr_db) else layer.sqnr_db,
        "bits": lambda layer: -layer.bits,
    }
    return sorted(layers, key=keys[by])


def with_outliers(layers: Sequence[LayerDiff]) -> Iterator[LayerDiff]:
    """Add robust z scores to layers: the distance of each changed layer from the median of its kind, in units
    of 1.4826 median absolute deviations."""
    groups: dict[str, list[float]] = {}
    for layer in layers:
        if layer.changed and math.isfinite(layer.sqnr_db):
            groups.setdefault(layer.kind, []).append(layer.sqnr_db)
    spreads = {kind: _spread(values) for kind, values in groups.items() if len(values) >= LEAST_LAYERS}
    for layer in layers:
        spread = spreads.get(layer.kind)
        yield _judged(layer, *spread) if layer.changed and spread else layer


def _spread(values: Sequence[float]) -> tuple[float, float, int]:
    """The median, the deviation that a normal distribution would have, and the number of ``values``."""
    middle = statistics.median(values)
    return middle, _OF_A_NORMAL * statistics.median(abs(value - middle) for value in values), len(values)


def _judged(layer: LayerDiff, middle: float, deviation: float, many: int) -> LayerDiff:
    if math.isnan(layer.sqnr_db):
        return replace(layer, outlier="its error is no number: NaN or infinity is stored")
    below = middle - layer.sqnr_db
    if not math.isfinite(below):
        return layer
    z = -below / deviation if deviation else None if below else 0.0
    least = LEAST_DB if many >= FEW_LAYERS else FEW_DB
    if below < least or (z is not None and z > -LEAST_Z):
        return replace(layer, z=z)
    score = "" if z is None else f" (robust z {number(z, 2)})"
    words = f"{number(below, 2)} dB below the median of the {many} layers of {layer.kind}{score}"
    return replace(layer, z=z, outlier=words)


def _row(opened: Opened, pair: Pair, x: Tensor, restored: Restored, factors: Factors | None) -> LayerDiff:
    """Make the row of a pair from the result of ``_both``."""
    values, steps = restored.values, restored.steps
    if factors is not None:
        values, steps = factors.undo(values), None if steps is None else factors.undo(steps)
    sums, stored = _sums(x, values), [opened.quantized.weights[name] for name in pair.quantized]
    decibels = sqnr_db(sums.signal, sums.noise) if math.isfinite(sums.noise) else math.nan
    as_stored = decibels if factors is None else sqnr_db(sums.signal, noise(x, restored.values))
    coded, cosine = any(weight.coded for weight in stored), cosine_of(sums)
    if factors is None:
        note = _note(opened.is_matrix(pair), decibels, cosine, coded)
        if coded and not note and decibels < _SUSPECT_DB and (factor := whole_factor(x, values)):
            note = f"as a whole it is {number(factor)} times the original's"
    else:
        note = f"{factors.why}: {number(as_stored, 3)} dB as it is stored"
    return LayerDiff(
        pair.name,
        " + ".join(pair.quantized),
        opened.shape(pair),
        restored.kind,
        restored.scheme,
        coded,
        8 * sum(weight.bytes for weight in stored) / max(x.numel(), 1),
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
    """Sum the errors of two float32 [rows, cols]; NaN if infinities of both signs have no sum."""
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


def _note(matrix: bool, decibels: float, cosine: float, coded: bool) -> str:
    """Describe a difference that no factors explain."""
    if math.isnan(decibels):
        return "it holds NaN or infinity"
    if decibels == math.inf or (coded and cosine >= _STRANGE):
        return ""
    if coded:
        return (
            f"it hardly resembles the original (cosine {number(cosine, 2)}): another model's layer, one that "
            "was rotated before, or codes in another order"
        )
    return (
        "kept in its format, but with other values than the original's"
        if matrix
        else "differs from the original's"
    )


def _both(opened: Opened, pair: Pair, norms: Norms) -> tuple[Tensor, Restored, Factors | None]:
    """Read a pair: the original [rows, cols], the other weight in the same shape and order, and the factors
    between them. ``SourceError`` if a side cannot be read or the shapes differ."""
    first, *more = pair.quantized
    if not more and opened.quantized.elements(first) != sum(map(opened.original.elements, pair.original)):
        raise opened.unlike(pair, opened.quantized.weights[first].shape)  # by the headers alone
    x = as_matrix(_whole(opened.original, pair.original).values)
    restored = _whole(opened.quantized, pair.quantized)
    turned = opened.into_gguf and opened.original.config.get("model_type") in TRANSPOSED
    if turned and x.shape[0] > 1 and role_of(pair.name.removesuffix(".weight")) != "other":
        x = x.t().contiguous()
    values = restored.values  # vectors and experts are compared as matrices
    if x.numel() != values.numel() or (values.dim() > 1 and as_matrix(values).shape != x.shape):
        raise opened.unlike(pair, tuple(values.shape))
    restored = _rows_in_order(opened, pair, x, _changed(restored, lambda t: t.reshape(x.shape)))
    return x, restored, _factors(opened, pair, x, restored, norms)


def _whole(side: Checkpoint, names: Sequence[str]) -> Restored:
    """Join the rows of several weights into one, with their stored forms."""
    parts = [side.restore(name) for name in names]
    if len(parts) == 1:
        return parts[0]
    if len({part.values.shape[1:] for part in parts}) > 1:
        raise SourceError(f"{' and '.join(names)} have rows of several lengths: they are no one matrix")
    steps = [part.steps for part in parts if part.steps is not None]
    schemes = {part.scheme for part in parts}
    return Restored(
        torch.cat([part.values for part in parts]),
        " and ".join(dict.fromkeys(part.kind for part in parts)),
        schemes.pop() if len(schemes) == 1 else "",
        torch.cat(steps) if len(steps) == len(parts) else None,
    )


def _changed(restored: Restored, change: Callable[[Tensor], Tensor]) -> Restored:
    steps = restored.steps
    return replace(restored, values=change(restored.values), steps=None if steps is None else change(steps))


def _rows_in_order(opened: Opened, pair: Pair, x: Tensor, restored: Restored) -> Restored:
    """Put the rows of ``restored`` into the original's order. llama.cpp may store them in pairs: of both
    orders, the one nearer to the original is taken."""
    if not opened.into_gguf or not isinstance(opened.quantized, GgufCheckpoint):
        return restored
    if not (heads := opened.quantized.heads_of(pair.quantized[0])):
        return restored
    vector = x.shape[0] == 1
    other = _changed(restored, lambda t: in_old_order(t.t(), heads).t() if vector else in_old_order(t, heads))
    return restored if noise(x, other.values) >= noise(x, restored.values) else other


def _factors(opened: Opened, pair: Pair, x: Tensor, restored: Restored, norms: Norms) -> Factors | None:
    """Find factors that were folded into the weight; None without any. A norm that differs is added to
    ``norms``."""
    name, values = pair.original[0], restored.values
    depth = depth_of(name.removesuffix(".weight"))
    if not opened.is_matrix(pair):
        offset = 1.0 if _counts_from_one(opened, name) else 0.0
        if offset:
            values -= offset
        if name.endswith("weight") and not torch.equal(x, values):
            ratio = ((x + offset) / (values + offset)).reshape(-1)
            if bool(ratio.isfinite().all()):
                norms.setdefault(depth, {})[name] = ratio
        return None
    if x.shape[0] < 2 or torch.equal(x, values) or not bool(values.isfinite().all()):
        return None
    near = norms.get(depth, {})
    if not near and sqnr_db(float(x.double().square().sum()), noise(x, values)) >= _SUSPECT_DB:
        return None
    return find_factors(x, values, near)


def _counts_from_one(opened: Opened, name: str) -> bool:
    """True for Gemma's norms, which GGUF files store plus 1."""
    return (
        opened.into_gguf
        and isinstance(opened.quantized, GgufCheckpoint)
        and opened.quantized.model.architecture.startswith("gemma")
        and name.endswith("norm.weight")
    )


def _as_float32(values: Tensor) -> QuantizedTensor:
    """Wrap ``values`` float32 [rows, cols] as a tensor of float32 codes, in the same memory."""
    scales = quantize(torch.zeros(1, 1), _FLOAT32).scales
    whole = values.contiguous()
    return QuantizedTensor(whole.view(torch.uint8), scales, _FLOAT32, (whole.shape[0], whole.shape[1]))


def _in_steps(x: Tensor, values: Tensor, steps: Tensor | None) -> float | None:
    """The largest |error| in units of its element's scale."""
    if steps is None:
        return None
    shares = (values - x).abs() / steps.abs()
    return float(torch.where(steps == 0, 0.0, shares).max())
