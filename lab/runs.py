"""The table of docs/running.md: models that write, by scheme and engine."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.runs import RunTiming
from explorer.schemes.scheme import label_of_text
from explorer.words import bytes_, number
from lab.tables import markdown

TITLES = [
    "linear layers", "engine", "prompt, tokens/s", "written, tokens/s", "by the engine's own clock",
    "in files", "in memory", "KL, nats a token",
]  # fmt: skip


def runs_table(runs: Sequence[RunTiming]) -> str:
    """Tokens a second, bytes and KL of each scheme by each engine."""
    rows = [
        [
            label_of_text(run.scheme) if run.scheme else "original",
            run.engine,
            number(run.prompt_per_second),
            number(run.tokens_per_second),
            "–" if run.told_tokens_per_second is None else number(run.told_tokens_per_second),
            bytes_(run.stored_bytes),
            bytes_(run.held_bytes),
            "–" if run.kl is None else number(run.kl),
        ]
        for run in runs
    ]
    return markdown(TITLES, rows) if rows else f"({NOT_RECORDED})"
