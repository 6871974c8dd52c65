"""A text that was written, with all that is told of it: what a page shows, and what a recording keeps.

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
"""Of the recording, and of a fresh page."""
USUAL_TOKENS = 48


@dataclass(frozen=True)
class Transcript:
    """One model's text.

    scheme      that of all linear layers but the head; "" for the original, and for a recipe
    engine      its name; ``why`` it and not another, ``products`` what multiplied, in words
    held_bytes  the weights as the engine holds them; ``stored_bytes`` as files do
    comparison  with the original's text; None of the original, and while there is none
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
        """A writing as it is now: it may still go on."""
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
        """Whether the original's products wrote it, whose speed does not depend on the scheme."""
        return same_products(self.products)

    @property
    def slim(self) -> Transcript:
        """Without the candidates of each written token: a comparison holds those that are read."""
        tokens = tuple(dataclasses.replace(token, top=()) for token in self.tokens)
        return dataclasses.replace(self, tokens=tokens)


def recorded_texts() -> Recording[Transcript]:
    """The recorded texts, all from one prompt, the original's first; empty if there are none."""
    return recorded(NAME, Transcript)
