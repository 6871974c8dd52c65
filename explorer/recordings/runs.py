"""Recorded runs of models: ``assets/measurements/runs.json``."""

from __future__ import annotations

from dataclasses import dataclass

from explorer.recordings.files import Recording, recorded

NAME = "runs"


@dataclass(frozen=True)
class RunTiming:
    """One run: a model that wrote a text in one engine.

    scheme             of all linear layers but the head; "" for the original
    prompt_per_second  tokens a second by the explorer's clock, in the fastest of the repeats, as other work
                       on the machine only slows one down
    tokens_per_second  the same for the written tokens after the first
    told_*             the same by the engine's own clock; None if it has none
    held_bytes         size of the weights in the engine's memory; ``stored_bytes`` in files
    kl                 KL divergence from the original in nats a token, over ``kl_tokens`` tokens of the
                       built-in held-out texts, on torch; None for the original
    """

    model: str
    scheme: str
    engine: str
    prompt_tokens: int
    tokens: int
    prompt_per_second: float
    tokens_per_second: float
    told_prompt_per_second: float | None
    told_tokens_per_second: float | None
    held_bytes: int
    stored_bytes: int
    kl: float | None
    kl_tokens: int
    repeats: int


def recorded_runs() -> Recording[RunTiming]:
    """Load the recorded runs; empty if there are none."""
    return recorded(NAME, RunTiming)
