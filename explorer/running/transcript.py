"""Written text with its times and comparison, as the page shows it and a recording keeps it.

``python -m lab texts`` writes ``assets/measurements/texts.json``; a page without a language model shows it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from explorer.recordings.files import Recording, recorded
from explorer.running.compare import Comparison
from explorer.running.engine import Figures, Token, Writing
from explorer.running.placing import same_products

NAME = "texts"
USUAL_PROMPT = "To make a cup of tea, first,"
"""The prompt of the recording, and of a fresh page."""
USUAL_TOKENS = 48


@dataclass(frozen=True)
class Transcript:
    """Text written by one model.

    scheme      of all linear layers but the head; "" for the original, and for a recipe
    engine      the engine's name; ``why``: the reason for it; ``products``: its kernels, in words
    held_bytes  size of the weights in memory; ``stored_bytes`` in files
    comparison  with the original's text; None for the original, and until it is made
    """

    model: str
    scheme: str
    prompt: str
    engine: str
    why: str
    products: str
    figures: Figures
    held_bytes: int
    stored_bytes: int
    tokens: tuple[Token, ...]
    comparison: Comparison | None = None

    @classmethod
    def of(cls, writing: Writing, scheme: str = "", comparison: Comparison | None = None) -> Transcript:
        """Make the transcript of a writing so far."""
        engine = writing.engine
        return cls(
            engine.subject.name,
            scheme,
            writing.prompt,
            engine.name,
            engine.why,
            engine.kernels,
            writing.figures,
            engine.held_bytes,
            engine.stored_bytes,
            tuple(writing.tokens),
            comparison,
        )

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def same_products(self) -> bool:
        """True if the original's products wrote the text: their speed does not depend on the scheme."""
        return same_products(self.products)

    @property
    def slim(self) -> Transcript:
        """The transcript without each token's candidates; the comparison has its own."""
        tokens = tuple(dataclasses.replace(token, top=()) for token in self.tokens)
        return dataclasses.replace(self, tokens=tokens)


def recorded_texts() -> Recording[Transcript]:
    """Load the recorded texts, all from one prompt, the original's first; empty if there are none."""
    return recorded(NAME, Transcript)
