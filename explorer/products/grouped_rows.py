"""Recorded grouped products as the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.products.grouped import CASES, is_chosen
from explorer.recordings.grouped import GroupedTiming

GROUPED_HEADERS = [
    "experts × tokens", "product", "kernel", "µs (graph / flushed)", "TFLOP/s", "× one dense product",
    "of the limit", "× baseline (graph / flushed)", "baseline", "SQNR of the output",
]  # fmt: skip


def grouped_rows(timings: Sequence[GroupedTiming]) -> list[list[str]]:
    """The kernel that is taken for each grouped product at each case, in the order of ``GROUPED_HEADERS``."""
    return [
        [
            CASES[t.case].short,
            t.label,
            t.variant,
            f"{1e6 * t.seconds:.1f} / {1e6 * t.flush.median_s:.1f}" if t.flush else f"{1e6 * t.seconds:.1f}",
            f"{t.tflops:.0f}",
            times(t.dense_s / t.seconds),
            f"{100 * t.share:.0f} %" if t.share else "–",
            f"{times(t.speedup)} / {times(t.flushed_speedup)}",
            _baseline_words(t),
            f"{t.sqnr_db:.1f} dB",
        ]
        for t in timings
        if is_chosen(t.product, t.case, t.variant)
    ]


def _baseline_words(t: GroupedTiming) -> str:
    """The baseline, with the beginning of its message where it refused."""
    return t.baseline if t.baseline_graph else f"{t.baseline}: {t.baseline_note.split(' when ')[0]}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
