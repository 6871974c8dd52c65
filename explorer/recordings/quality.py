"""Recorded quality of quantized files by this project and by others: ``assets/measurements/quality.json``."""

from __future__ import annotations

from dataclasses import dataclass

from explorer.recordings.files import Recording, recorded

NAME = "quality"


@dataclass(frozen=True)
class QualityRow:
    """One file, or why there is none.

    name            of the row (``python -m lab files --rows``); ``label``: in words
    by              the program that made the file, with its version; ``ours``: it is this project
    format          of the file; ``importances``: the rounding is weighed by an importance file
    bytes           of all files of weights; of a GGUF file with metadata and vocabulary; 0 without a file
    bits            8 · bytes ÷ weights of the model, a tied head counted once
    kl              nats a token against the source model's file, by the reader of this format
    losses          mean KL of each text, in the texts' order
    same_top        share of tokens with the same most probable successor
    seconds         taken to make the file; surveys and importances, which serve many files, not counted
    judged_by       the reader, with its version
    note            what else is to be known, such as types that were replaced
    missing         why there is no file; empty if there is one
    """

    name: str
    label: str
    by: str
    ours: bool
    format: str
    importances: bool = False
    bytes: int = 0
    bits: float = 0.0
    kl: float | None = None
    losses: tuple[float, ...] = ()
    same_top: float | None = None
    tokens: int = 0
    seconds: float | None = None
    judged_by: str = ""
    note: str = ""
    missing: str = ""
    model: str = ""


def recorded_quality() -> Recording[QualityRow]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, QualityRow)
