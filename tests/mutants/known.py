"""Why mutants survive that change no result, or none that a test should state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """The reason in words, as the page of docs/ shows it. ``equivalent``: no input tells the mutant from the
    library, so that no test can; else it was left for its reason."""

    why: str
    equivalent: bool = False


WHY: dict[tuple[str, str], Reason] = {
    (
        "explorer/checkpoints/gguf_vocabulary.py",
        "`scores = [0.0 if type_ != NORMAL else score for score, type_ in zip(scores, types, strict=True)]` "
        "→ "
        "`scores = [0.0 if type_ != NORMAL else score for score, type_ in zip(scores, types, strict=False)]`",
    ): Reason("both lists have an entry for each token", equivalent=True),
    ("explorer/schemes/calibrators.py", "`best = (1.0, 1.0)` → `best = (1.0, 0.0)`"): Reason(
        "the first search moves both ends: nothing reads where it starts", equivalent=True
    ),
    (
        "explorer/schemes/parts.py",
        "`text: str = field(init=False, repr=False, compare=False)` → "
        "`text: str = field(init=False, repr=False, compare=True)`",
    ): Reason("the text is made of fields that are compared", equivalent=True),
}
"""By file and change."""
