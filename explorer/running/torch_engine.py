"""The engine that runs transformers' network on torch; under a recipe, the network that `explorer check`
measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from explorer.models.capture import Model
from explorer.models.texts import AnyTexts, positions
from explorer.progress import Progress
from explorer.running.engine import (
    CANDIDATES,
    GREEDY,
    Engine,
    Sampling,
    Token,
    TokenCandidate,
    Told,
    check_room,
)
from explorer.running.placing import RESTORED, Decoder, Placed, place_linears
from explorer.running.subject import Subject, SubjectKind
from explorer.sources.base import SourceError, first_line

UNROUNDED = "; their inputs stay as they are, though the checkpoint asks for quantized ones"
_WARM_UP = 8
"""Number of tokens of an unmeasured first run, which touches memory and chooses kernels."""
_BEFORE = 6
"""Number of the prompt's last tokens that the first token is decoded with: blanks between words depend on
them."""
_PARTIAL = "\ufffd"
"""Character that the tokenizer decodes for part of a character."""


class TorchEngine(Engine):
    """Network and tokenizer that write the text of transformers' ``generate``, without the model's own
    settings for it (penalties and the like)."""

    name = "torch"

    def __init__(self, subject: Subject, model: Model, placed: Placed) -> None:
        self.subject, self.model = subject, replace(model, network=placed.network)  # the given one is freed
        self.network, self.kernels, self._lock = placed.network, placed.kernels, placed.lock
        self._decoder: Callable[[nn.Module, int], Decoder] = placed.decoder
        tensors = {id(one): one.nbytes for one in (*self.network.parameters(), *self.network.buffers())}
        self.held_bytes, self.stored_bytes = sum(tensors.values()), subject.stored_bytes
        self._ends = _ends(placed.network)
        self._positions = positions(placed.network)
        warm = placed.decoder(placed.network, _WARM_UP + 1)
        try:
            for ids in ([0] * min(_WARM_UP, self._positions or _WARM_UP), [0]):
                warm(ids)
        except (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise SourceError(
                f"{subject.name} cannot be run: its network fails at the first token "
                f"({type(error).__name__}: {first_line(error)})"
            ) from error

    @classmethod
    def load(
        cls,
        subject: Subject,
        device: torch.device,
        calibration: AnyTexts = (),
        progress: Progress | None = None,
        room: int | None = None,
    ) -> Self:
        """Load ``subject``; ``progress`` counts layers.

        A GPU's steps are compiled for ``room`` tokens of prompt and text together, and again for a longer
        text. Errors as ``Subject.load`` and ``place_linears``.
        """
        model = subject.load(device)
        placed = place_linears(model, subject.recipe, device, calibration, progress, room)
        engine = cls(subject, model, placed)
        if subject.kind is SubjectKind.CODED:
            what = RESTORED if device.type == "cpu" else engine.kernels
            engine.kernels = f"{what}{UNROUNDED if subject.asks_for_inputs else ''}"
        return engine

    def close(self) -> None:
        """Nothing to do: the memory is freed with the engine."""

    def encode(self, prompt: str) -> list[int]:
        """Tokenize the prompt, with the tokenizer's special tokens; ``ValueError`` if that gives no token."""
        ids: list[int] = self.model.tokenizer(prompt)["input_ids"]
        if not ids:
            raise ValueError(f"the prompt {prompt[:80]!r} has no token of {self.model.name}")
        return ids

    def logits(self, ids: Sequence[int], last: int) -> Tensor:
        """Run ``ids`` once; float32 [last, vocabulary], the logits of the token after each of the last
        ``last`` ids."""
        with torch.no_grad():
            given = torch.tensor([list(ids)], device=self.model.device)
            with self._lock:
                found = self.network(input_ids=given, use_cache=False).logits[0]
        return found[-last:].float()

    def generate(
        self, prompt: str, tokens: int, sampling: Sampling = GREEDY
    ) -> Generator[Token | Told, None, None]:
        ids = self.encode(prompt)
        check_room(len(ids), tokens, self._positions, self.model.name)
        yield Told(len(ids))
        decoder = self._decoder(self.network, len(ids) + tokens)
        words = Detokenizer(self.model.tokenizer, ids)
        draws = torch.Generator().manual_seed(sampling.seed)
        given = ids
        for index in range(tokens):
            start = time.perf_counter()
            logits = decoder(given).cpu()
            log_probabilities = logits.log_softmax(-1)
            chosen = _chosen(logits, sampling, draws)
            seconds = time.perf_counter() - start
            ended = chosen in self._ends
            text = words.add(chosen, last=ended or index == tokens - 1)
            top = top_of(log_probabilities, lambda one: words.decode([one]))
            yield Token(chosen, text, top, seconds, ended)
            if ended:
                return
            given = [chosen]


def top_of(log_probabilities: Tensor, text_of: Callable[[int], str]) -> tuple[TokenCandidate, ...]:
    """Return the most probable tokens by logits, float32 [vocabulary]."""
    best = log_probabilities.topk(min(CANDIDATES, len(log_probabilities)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(TokenCandidate(index, text_of(index), value) for index, value in pairs)


def _chosen(logits: Tensor, sampling: Sampling, draws: torch.Generator) -> int:
    if sampling.temperature == 0:
        return int(logits.argmax())
    logits = logits.double()
    weights = ((logits - logits.max()) / sampling.temperature).softmax(-1)
    return int(torch.multinomial(weights, 1, generator=draws))


def _ends(network: nn.Module) -> frozenset[int]:
    """Return the tokens that end a text."""
    settings = (getattr(network, name, None) for name in ("generation_config", "config"))
    found = (getattr(one, "eos_token_id", None) for one in settings if one is not None)
    ends = next((one for one in found if one is not None), ())
    return frozenset([ends] if isinstance(ends, int) else ends)


class Detokenizer:
    """Convert tokens to text one by one after a prompt with the tokens ``ids``.

    The text of a token depends on the tokens before, and a character may take several tokens.
    """

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(ids[-_BEFORE:])
        self._read = len(self._ids)

    def add(self, token: int, last: bool = False) -> str:
        """Return the text that ``token`` completes; with ``last`` all remaining text, complete or not."""
        self._ids.append(token)
        before, now = self.decode(self._ids[: self._read]), self.decode(self._ids)
        if now.endswith(_PARTIAL) and not last:
            return ""
        self._ids, self._read = self._ids[-_BEFORE:], min(len(self._ids), _BEFORE)
        return now[len(before) :]

    def decode(self, ids: Sequence[int]) -> str:
        """Convert ``ids`` to text, without the tokens before."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
