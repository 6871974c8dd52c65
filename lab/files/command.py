"""The rows that are measured of files, and the line of each."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.bench.commands import CPU, Benchmark, Line
from explorer.models.texts import AnyTexts
from explorer.recordings.machine import this_machine
from explorer.recordings.quality import NAME as QUALITY
from explorer.recordings.quality import QualityRow
from lab.files.measure import candidates, measure_quality

QUALITY_PACKAGES = ("transformers", "xllamacpp", "gguf", "bitsandbytes", "compressed-tensors")


def bench_files(
    model: str,
    rows: Sequence[str] = (),
    held_out: AnyTexts = (),
    calibration: AnyTexts = (),
    texts: int = 16,
) -> Benchmark[QualityRow]:
    """Files of ``model`` by recipes and by other programs, judged by their readers: ``rows``, all if none is
    named, on ``held_out``, by ``calibration`` (``texts`` built-in sequences each if empty)."""
    chosen = candidates(rows)
    machine = this_machine(CPU, QUALITY_PACKAGES)
    found = measure_quality(model, chosen, held_out, calibration, texts)
    return Benchmark(QUALITY, machine, found, len(chosen), quality_line, of_gpu=False)


def quality_line(row: QualityRow) -> Line:
    """One file, or why there is none."""
    return {
        "row": row.name,
        "by": row.by,
        "format": row.format,
        "MB": row.bytes / 1e6 or None,
        "bits per weight": row.bits or None,
        "KL, nats a token": row.kl,
        "same top token, %": None if row.same_top is None else 100 * row.same_top,
        "seconds": row.seconds,
        "note": row.missing or row.note,
    }
