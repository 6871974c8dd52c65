"""The engine that runs transformers' network on torch: under a recipe the one that `explorer check`
measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from explorer.models.capture import Model
from explorer.models.texts import AnyTexts, positions
from explorer.progress import Progress
from explorer.running.detokenize import Detokenizer
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

UNROUNDED = "; their inputs stay as they are, though the checkpoint asks for quantized ones"
_WARM_UP = 8
"""Tokens of the run that is not measured: memory is touched, and kernels are chosen, at the first call."""


class TorchEngine(Engine):
    """A network and its tokenizer; greedy text is that of transformers' ``generate`` without a
    configuration of its own (penalties and the like)."""

    name = "torch"

    def __init__(self, subject: Subject, model: Model, placed: Placed) -> None:
        self.subject, self.model = subject, model
        self.network, self.kernels, self._lock = placed.network, placed.kernels, placed.lock
        self._decoder: Callable[[nn.Module, int], Decoder] = placed.decoder
        self.held_bytes, self.stored_bytes = _held(placed.network), subject.stored_bytes
        self._ends = _ends(placed.network)
        self._positions = positions(placed.network)
        warm = placed.decoder(placed.network, _WARM_UP + 1)
        for ids in ([0] * min(_WARM_UP, self._positions or _WARM_UP), [0]):
            warm(ids)

    @classmethod
    def load(
        cls,
        subject: Subject,
        device: torch.device,
        calibration: AnyTexts = (),
        progress: Progress | None = None,
        room: int | None = None,
    ) -> Self:
        """``SourceError`` and ``ValueError`` as ``Subject.load`` and ``place_linears`` raise them;
        ``progress`` counts layers. ``room``: tokens of prompt and text together that a GPU's steps are
        compiled for; for a longer text they are compiled again."""
        model = subject.load(device)
        placed = place_linears(model, subject.recipe, device, calibration, progress, room)
        engine = cls(subject, model, placed)
        if subject.kind is SubjectKind.CODED:
            what = RESTORED if device.type == "cpu" else engine.kernels
            engine.kernels = f"{what}{UNROUNDED if subject.asks_for_inputs else ''}"
        return engine

    def close(self) -> None:
        """The engine holds memory alone, which is freed with it."""

    def encode(self, prompt: str) -> list[int]:
        """The prompt's tokens, with those that the tokenizer adds to a text; ``ValueError`` if there are
        none."""
        ids: list[int] = self.model.tokenizer(prompt)["input_ids"]
        if not ids:
            raise ValueError(f"the prompt {prompt[:80]!r} has no token of {self.model.name}")
        return ids

    def logits(self, ids: Sequence[int], last: int) -> Tensor:
        """float32 [last, vocabulary]: of the token after each of the last ``last`` of ``ids``, in one run."""
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
            yield Token(chosen, text, top_of(log_probabilities, words.alone), seconds)
            if ended:
                return
            given = [chosen]


def top_of(log_probabilities: Tensor, text_of: Callable[[int], str]) -> tuple[TokenCandidate, ...]:
    """The most probable tokens of float32 [vocabulary]."""
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
    """The tokens that end a text."""
    settings = (getattr(network, name, None) for name in ("generation_config", "config"))
    found = (getattr(one, "eos_token_id", None) for one in settings if one is not None)
    ends = next((one for one in found if one is not None), ())
    return frozenset([ends] if isinstance(ends, int) else ends)


def _held(network: nn.Module) -> int:
    """Bytes of all parameters and buffers; one that is used twice counts once."""
    tensors = {id(t): t for t in (*network.parameters(), *network.buffers())}
    return sum(t.numel() * t.element_size() for t in tensors.values())
