"""Recorded runs of models: ``assets/measurements/runs.json``."""

from __future__ import annotations

from dataclasses import dataclass

from explorer.recordings.files import Recording, recorded

NAME = "runs"


@dataclass(frozen=True)
class RunTiming:
    """One model that wrote a text, by one engine.

    scheme             that of all linear layers but the head; "" for the original
    prompt_per_second  tokens a second by our clock, the fastest of the repeats, as other work on the machine
                       only slows one down; ``tokens_per_second`` of those after the first
    told_*             the same by the engine's own clock; None where it has none
    held_bytes         the weights as the engine holds them; ``stored_bytes`` as files do
    kl                 nats a token of the weights against the original's, over ``kl_tokens`` of the built-in
                       held-out texts, on torch; None of the original
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
    """The recorded runs; empty if there are none."""
    return recorded(NAME, RunTiming)
