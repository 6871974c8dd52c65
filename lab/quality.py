"""Files of this project beside those of other programs, as Markdown and in sentences: docs/models.md."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.quality import QualityRow
from explorer.words import duration
from lab.intervals import half_interval, paired
from lab.tables import markdown

EQUAL, OURS = "Q4_K_M-imatrix", "recipe-as-Q4_K_M-imatrix"
BY_GPTQ = f"{OURS}-gptq"
SLACK = 1.002
"""A file of so many times the bytes of another counts as one of equal bytes: headers differ by as much."""
FOUR_BITS = ("Q4_0", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M")
DASH = "–"


def quality_table(rows: Sequence[QualityRow]) -> str:
    """Measured files, the smallest first."""
    shown = sorted(measured(rows), key=lambda row: row.bytes)
    titles = ["file", "made by", "format", "importances", "MB", "bits per weight", "KL, nats a token"]
    titles += ["same top token", "seconds"]
    cells = [
        [
            f"**{row.label}**" if row.ours else row.label,
            row.by,
            row.format,
            "yes" if row.importances else "",
            f"{row.bytes / 1e6:.1f}",
            f"{row.bits:.2f}",
            f"{row.kl:.4f} ± {half_interval(row.losses):.4f}",
            f"{100 * (row.same_top or 0):.1f} %",
            DASH if row.seconds is None else duration(row.seconds),
        ]
        for row in shown
    ]
    return markdown(titles, cells) if cells else f"({NOT_RECORDED})"


def measured(rows: Sequence[QualityRow]) -> list[QualityRow]:
    """The rows that have a file."""
    return [row for row in rows if row.kl is not None]


def not_made(rows: Sequence[QualityRow]) -> str:
    """A line for each file that there is not, with the reason."""
    lines = [f"* {row.label}{_weighed(row)}: {row.missing}." for row in rows if row.missing]
    return "\n".join(lines) or "* none"


def less(ours: QualityRow, theirs: QualityRow) -> tuple[float, float]:
    """By how many per cent the KL of ``ours`` is less than that of ``theirs``, and half of the 95 % interval
    of that: of the paired difference over texts. Negative where it is more."""
    difference, half = paired(theirs.losses, ours.losses)
    whole = sum(theirs.losses) / len(theirs.losses)
    return -100 * difference / whole, 100 * half / whole


def at_equal_bytes(rows: Sequence[QualityRow]) -> str:
    """A sentence: the recipes of at most the bytes of Q4_K_M with importances, by GPTQ and rounded, beside
    that file."""
    by_gptq, rounded, theirs = row_of(rows, BY_GPTQ), row_of(rows, OURS), row_of(rows, EQUAL)
    if by_gptq is None or rounded is None or theirs is None:
        return f"({NOT_RECORDED})"
    return (
        f"With {by_gptq.bytes:,} bytes, at most the {theirs.bytes:,} of llama.cpp's Q4_K_M, and all with the "
        f"same importances, the KL of the recipe by GPTQ is {compared(by_gptq, theirs)} ({by_gptq.kl:.4f} "
        f"beside {theirs.kl:.4f} nats a token), and that of the recipe of rounding "
        f"{compared(rounded, theirs)}."
    )


def compared(ours: QualityRow, theirs: QualityRow) -> str:
    """ "12.0 ± 3.1 % less", or how much more; and that this is not told apart from nothing."""
    value, half = less(ours, theirs)
    unclear = " (not told apart)" if abs(value) < half else ""
    return f"{abs(value):.1f} ± {half:.1f} % {'less' if value >= 0 else 'more'}{unclear}"


def against_four_bits(rows: Sequence[QualityRow]) -> str:
    """For every other 4-bit file: this project's best file by the same reader that is no larger, and what its
    KL is."""
    cells = []
    for theirs in _other_four_bits(rows):
        best = best_within(rows, theirs)
        cells.append(
            [
                f"{theirs.label}{_weighed(theirs)}",
                f"{theirs.bytes / 1e6:.1f}",
                DASH if best is None else f"{best.label}{_weighed(best)}",
                DASH if best is None else f"{best.bytes / 1e6:.1f}",
                DASH if best is None else compared(best, theirs),
            ]
        )
    titles = ["other 4-bit file", "MB", "best of ours of no more bytes (+ 0.2 %)", "MB", "its KL is"]
    return markdown(titles, cells) if cells else f"({NOT_RECORDED})"


def verdict(rows: Sequence[QualityRow]) -> str:
    """Sentences: against how many of the other 4-bit files ours is better, not told apart, and worse, and
    which have no counterpart."""
    found: dict[str, list[str]] = {"better": [], "not told apart": [], "worse": [], "without": []}
    for theirs in _other_four_bits(rows):
        best, name = best_within(rows, theirs), f"{theirs.label}{_weighed(theirs)}"
        if best is None:
            found["without"].append(name)
            continue
        value, half = less(best, theirs)
        kind = "not told apart" if abs(value) <= half else "better" if value > 0 else "worse"
        found[kind].append(name)
    words = {
        "better": "Ours is better, by more than the interval, than",
        "not told apart": "Not told apart:",
        "worse": "Ours is worse than",
        "without": "No file of ours is as small as",
    }
    return " ".join(f"{words[kind]} {'; '.join(names)}." for kind, names in found.items() if names)


def against_nf4(rows: Sequence[QualityRow]) -> str:
    """Sentences: the same NF4 file with codes by GPTQ, and a recipe for compressed-tensors of its bytes,
    beside bitsandbytes' own."""
    return _nf4_and_integers(rows, "bitsandbytes-nf4", "Against bitsandbytes' own NF4")


def against_gptq(rows: Sequence[QualityRow]) -> str:
    """Sentences: llm-compressor's GPTQ beside the same files of this project."""
    return _nf4_and_integers(
        rows, "llmcompressor-gptq", "Against llm-compressor's GPTQ, INT4 in groups of 64"
    )


def _nf4_and_integers(rows: Sequence[QualityRow], other: str, words: str) -> str:
    theirs, nf4, integers = (
        row_of(rows, name) for name in (other, "bitsandbytes-nf4-gptq", f"compressed-tensors-as-{other}")
    )
    if theirs is None or nf4 is None or integers is None:
        return f"({NOT_RECORDED})"
    apart = 100 * (nf4.bytes / theirs.bytes - 1)
    bytes_ = f"{abs(apart):.2f} % {'more' if apart > 0 else 'fewer'} bytes"
    return (
        f"{words}, the KL of NF4 with codes by GPTQ is {compared(nf4, theirs)}, in {bytes_}; that of a "
        f"recipe of integers by GPTQ with its bytes is {compared(integers, theirs)}."
    )


def best_within(rows: Sequence[QualityRow], theirs: QualityRow) -> QualityRow | None:
    """This project's file of the least KL that ``_comparable`` allows; None without one."""
    fit = [row for row in rows if _comparable(row, theirs)]
    return min(fit, key=lambda row: row.kl or 0.0, default=None)


def _other_four_bits(rows: Sequence[QualityRow]) -> list[QualityRow]:
    return [row for row in measured(rows) if not row.ours and _four_bits(row)]


def _four_bits(row: QualityRow) -> bool:
    return row.label in FOUR_BITS or row.format != "GGUF"


def _comparable(ours: QualityRow, theirs: QualityRow) -> bool:
    """True if a file of ours is no larger (``SLACK``), judged by the same reader, and has importances where
    theirs has them."""
    gguf = theirs.format == "GGUF"
    fair = ours.importances == theirs.importances if gguf else True
    return bool(
        ours.ours
        and ours.kl is not None
        and ours.bytes <= SLACK * theirs.bytes
        and (ours.format == "GGUF") == gguf
        and fair
    )


def _weighed(row: QualityRow) -> str:
    return ", importances" if row.importances else ""


def row_of(rows: Sequence[QualityRow], name: str) -> QualityRow | None:
    """The measured row called ``name``; None without one."""
    return next((row for row in rows if row.name == name and row.kl is not None), None)


def replaced_types(rows: Sequence[QualityRow]) -> str:
    """List the types of llama.cpp that were replaced, a line for each mixture."""
    lines = [f"  * {row.label}: {row.note}" for row in rows if not row.ours and row.note and row.importances]
    return "\n".join(lines) or "* none"
