"""Two checkpoints in words: sentences, the lines of a table, and flat records."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from explorer.checkpoints.diff import Diff, LayerDiff
from explorer.words import count, number, plain

NAMED = 3
"""Largest number of names in a sentence."""
COLUMNS = (
    "layer", "stored as", "bits", "SQNR dB", "error %", "cosine", "largest error", "at", "in steps", "remark",
)  # fmt: skip


def sentences(found: Diff) -> list[str]:
    """The summary, a sentence a line: schemes and bits, kept tensors, outliers, missing names."""
    lines = [_coded(found), _kept(found)]
    lines += [f"Stands out: {layer.name}: {layer.outlier}." for layer in found.outliers]
    if folded := [layer for layer in found.coded if layer.stored_sqnr_db != layer.sqnr_db]:
        lines.append(
            f"Factors were folded into {_named(layer.name for layer in folded)}: SQNR and errors are after "
            "undoing them. Such factors lessen the error of the layer's output, not that of the weight."
        )
    lines += [f"Not compared: {one.name}: {one.why}." for one in found.unread]
    for names, words in (
        (found.missing, "only in the original"),
        (found.extra, f"only in {found.quantized}"),
    ):
        if names:
            lines.append(f"{words[0].upper()}{words[1:]}: {_named(names)}.")
    lines += [f"Left out: {reason}." for reason in found.left_out]
    return [plain(line) for line in lines if line]


def _coded(found: Diff) -> str:
    """Describe schemes, bits and errors. Without codes, weights that were rounded and stored in a plain type
    have an error too."""
    if layers := found.coded:
        kinds = Counter(layer.kind for layer in layers).most_common()
        weights = [math.prod(layer.shape) for layer in layers]
        bits = sum(layer.bits * n for layer, n in zip(layers, weights, strict=True)) / sum(weights)
        of = ", ".join(f"{count(n)} {kind}" for kind, n in kinds)
        words = f"{count(len(layers))} layers of codes ({of}), {number(bits, 4)} bits per weight"
        return f"{words}{_decibels(layers)}."
    words = f"{found.quantized} holds no layer of codes{' that could be compared' if found.unread else ''}"
    if not (many := len(found.changed)):
        return f"{words}."
    have = f"{count(many)} matrices have" if many > 1 else "one matrix has"
    return f"{words}; {have} other values than the original's{_decibels(found.changed)}."


def _decibels(layers: Sequence[LayerDiff]) -> str:
    found = [layer.sqnr_db for layer in layers if math.isfinite(layer.sqnr_db)]
    if not found:
        return ""
    low, high = number(min(found), 3), number(max(found), 3)
    return f": SQNR {low} to {high} dB, {number(statistics.median(found), 3)} dB in the median"


def _kept(found: Diff) -> str:
    kept = [layer for layer in found.layers if not layer.coded]
    if not kept:
        return ""
    kinds = " and ".join(dict.fromkeys(layer.kind for layer in kept))
    other = [layer.name for layer in kept if not layer.equal]
    if not other:
        plural = "" if len(kept) == 1 else "s"
        return f"Kept as stored: {count(len(kept))} tensor{plural} ({kinds}), equal to the original's."
    return (
        f"Kept in {kinds}: {count(len(kept))} tensors. Not equal to the original's: {count(len(other))} of "
        f"them, {_named(other)}."
    )


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {count(len(listed) - NAMED)} more" if len(listed) > NAMED else ""
    return f"{', '.join(plain(name, 100) for name in listed[:NAMED])}{more}"


def shown(layers: Sequence[LayerDiff]) -> list[LayerDiff]:
    """Select the layers for a table: all but tensors that were kept as they are."""
    return [layer for layer in layers if layer.coded or not layer.equal]


def line(layer: LayerDiff) -> list[Any]:
    """Make one line of a table, in the order of ``COLUMNS``; the SQNR of an exact copy is left empty."""
    row, column = layer.max_error_at
    numbers = (layer.bits, layer.sqnr_db, 100 * layer.relative_error, layer.cosine, layer.max_error)
    short = [float(f"{n:.5g}") if math.isfinite(n) else None for n in numbers]
    steps = layer.max_error_steps
    said = "; ".join(text for text in (layer.outlier, layer.note) if text)
    return [
        layer.name,
        layer.kind,
        *short,
        f"{row}, {column}" if layer.max_error else "",
        float(f"{steps:.4g}") if steps is not None and math.isfinite(steps) else None,
        said,
    ]


def flat(layer: LayerDiff) -> dict[str, Any]:
    """Make one record for a CSV file: the fields of ``LayerDiff``, with shapes as texts."""
    row, column = layer.max_error_at
    values = {key: value for key, value in vars(layer).items() if key != "max_error_at"}
    values |= {"shape": "x".join(map(str, layer.shape)), "depth": layer.depth}
    return values | {"max_error_row": row, "max_error_column": column}
