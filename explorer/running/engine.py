"""Engines that write: tokens with their candidates, and the measured speed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from explorer.progress import checkpoint
from explorer.running.subject import Subject

CANDIDATES = 5
"""Number of most probable next tokens that come with each token."""


@dataclass(frozen=True)
class TokenCandidate:
    """A possible next token. ``log_probability``: natural logarithm, at temperature 1."""

    id: int
    text: str
    log_probability: float

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)


@dataclass(frozen=True)
class Token:
    """One written token.

    id       None for tokens that llama.cpp holds back until their character is whole
    text     the text that it adds; empty while a character is not whole, and for a token that ``ends``
    top      the most probable tokens in its place, in order; none if the engine does not give them
    seconds  time to compute it; for the first token, with the prompt
    ends     the model ends its text by it
    """

    id: int | None
    text: str
    top: tuple[TokenCandidate, ...]
    seconds: float
    ends: bool = False


@dataclass(frozen=True)
class Told:
    """Engine's own report of a writing: the prompt's tokens, and tokens a second by its clock."""

    prompt_tokens: int
    prompt_per_second: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Sampling:
    """The choice of tokens: the most probable at ``temperature`` 0, otherwise drawn with ``seed``."""

    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"a temperature is a number from 0, not {self.temperature}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"a seed is a whole number from 0 to {2**32 - 1}, not {self.seed}")


GREEDY = Sampling()


@dataclass(frozen=True)
class Figures:
    """Times of a writing by the explorer's clock, without loading and warming up; ``told``: the engine's
    report.

    ``prompt_seconds``: from the prompt to the first token, None before it; ``seconds`` of the ``tokens``
    after the first.
    """

    prompt_tokens: int | None
    prompt_seconds: float | None
    tokens: int
    seconds: float
    told: Told | None = None

    @property
    def prompt_per_second(self) -> float | None:
        """Tokens of the prompt a second."""
        if not self.prompt_tokens or not self.prompt_seconds:
            return None
        return self.prompt_tokens / self.prompt_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Written tokens a second; None before the second token."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else None


class Closing(ABC):
    """Context manager that calls ``close`` at its end."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Writing(Closing, Iterator[Token]):
    """Text that is being written: iterate for its tokens, ``close`` to end it early. The tokens and times so
    far are available at any time, also after an exception."""

    def __init__(self, engine: Engine, prompt: str, steps: Generator[Token | Told, None, None]) -> None:
        self.engine, self.prompt, self._steps = engine, prompt, steps
        self._told: Told | None = None
        self.tokens: list[Token] = []

    def __next__(self) -> Token:
        while True:
            checkpoint()
            step = next(self._steps)
            if isinstance(step, Token):
                self.tokens.append(step)
                return step
            self._told = step

    def close(self) -> None:
        """End the text; the engine stops at once, or after the token that it computes."""
        self._steps.close()

    @property
    def text(self) -> str:
        """The text so far, without the prompt."""
        return "".join(token.text for token in self.tokens)

    @property
    def ids(self) -> list[int | None]:
        return [token.id for token in self.tokens]

    @property
    def figures(self) -> Figures:
        """The times so far."""
        told, seconds = self._told, [token.seconds for token in self.tokens]
        return Figures(
            told.prompt_tokens if told else None,
            seconds[0] if seconds else None,
            len(seconds),
            sum(seconds[1:]),
            told if told and told.tokens_per_second is not None else None,
        )


class Engine(Closing):
    """Model that is ready to write, made by ``open_engine`` or by an engine's own ``load``.

    subject       the model that it runs
    why           reason for this engine, in words
    kernels       the kernels of products, in words
    held_bytes    size of the weights in memory
    stored_bytes  size of the same weights in files: layers of a recipe as codes and scales, others as
                  they are
    """

    name: ClassVar[str]
    subject: Subject
    why: str = ""
    kernels: str = ""
    held_bytes: int = 0
    stored_bytes: int = 0

    @abstractmethod
    def generate(
        self, prompt: str, tokens: int, sampling: Sampling = GREEDY
    ) -> Generator[Token | Told, None, None]:
        """Yield at most ``tokens`` tokens that continue ``prompt``, and the engine's own reports.

        Closing the generator stops the engine. ``ValueError`` for a prompt without tokens, and for one that
        leaves no room for ``tokens``.
        """

    def write(self, prompt: str, tokens: int, sampling: Sampling = GREEDY) -> Writing:
        """Start a text as ``generate`` does, and keep its tokens and times. ``ValueError`` for an empty
        prompt and ``tokens`` below 1."""
        check_prompt(prompt, tokens)
        return Writing(self, prompt, self.generate(prompt, tokens, sampling))

    @abstractmethod
    def close(self) -> None:
        """Free what the engine holds; it writes no more after that."""


def check_prompt(prompt: str, tokens: int) -> None:
    """``ValueError`` for an empty prompt and for fewer tokens than one."""
    if not prompt.strip():
        raise ValueError("the prompt is empty: give the beginning of a text")
    if tokens < 1:
        raise ValueError(f"at least 1 token is written, not {tokens}")


def check_room(prompt_tokens: int, tokens: int, positions: int | None, model: str) -> None:
    """``ValueError`` if prompt and text are longer than the ``positions`` of ``model`` (None: unknown)."""
    if positions is not None and prompt_tokens + tokens > positions:
        raise ValueError(
            f"prompt and text would have {prompt_tokens:,} + {tokens:,} tokens, {model} has {positions:,} "
            "positions: shorten the prompt or the text"
        )
