"""Texts that models are run on, and their sequences of tokens.

    Texts (documents, kinds, sequence_length, samples)  ->  token_sequences  ->  TokenSequence

Surveys, checks, methods and captured inputs all get their tokens from ``token_sequences``.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import TYPE_CHECKING

from torch import nn

from explorer.progress import checkpoint
from explorer.sources.base import SourceError, first_line

if TYPE_CHECKING:
    from explorer.models.capture import Model

Chat = tuple[tuple[str, str], ...]
"""Turns of a dialogue: (role, text)."""
Document = str | Chat
SEED = 42
"""Seed of the order in which ``samples`` are drawn."""
_POSITIONS = ("max_position_embeddings", "max_seq_len")


@dataclass(frozen=True)
class Texts:
    """Documents, and the way they become sequences.

    ``kinds`` of the documents (prose, code, chat), or none. With ``sequence_length`` N, documents of a kind
    are joined by the tokenizer's end token and cut into sequences of N tokens; without it each document is a
    sequence, cut at the model's last position. ``samples``: number of sequences, of documents in random order
    (seed ``SEED``); None for all, in their own order.
    """

    documents: tuple[Document, ...]
    kinds: tuple[str, ...] = ()
    sequence_length: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.kinds and len(self.kinds) != len(self.documents):
            raise ValueError(f"{len(self.documents)} documents have {len(self.kinds)} kinds")
        if self.sequence_length is not None and self.sequence_length < 2:
            raise ValueError(f"a sequence has at least 2 tokens, not {self.sequence_length}")
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"at least 1 sample is drawn, not {self.samples}")

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def plain(self) -> bool:
        """True if all documents are plain texts, run as they are."""
        as_they_are = self.sequence_length is None and self.samples is None
        return as_they_are and all(isinstance(one, str) for one in self.documents)

    @property
    def sha256(self) -> str:
        """SHA-256 of the texts: ``plain`` ones as lines, others as JSON; kinds are ignored."""
        if self.plain:
            found = "\n".join(one for one in self.documents if isinstance(one, str))
        else:
            found = json.dumps([self.documents, self.sequence_length, self.samples], ensure_ascii=False)
        return hashlib.sha256(found.encode()).hexdigest()

    def sampled(self) -> list[tuple[Document, str]]:
        """Documents with their kinds, in their own order or in the random order of ``samples``."""
        kinds = self.kinds or ("",) * len(self.documents)
        found = list(zip(self.documents, kinds, strict=True))
        if self.samples is not None:
            random.Random(SEED).shuffle(found)
        return found


AnyTexts = Texts | Sequence[str]
"""Texts, or plain strings, a document each."""


def texts_of(given: AnyTexts) -> Texts:
    """Convert ``given`` to ``Texts``, without blank documents."""
    texts = given if isinstance(given, Texts) else Texts(tuple(given))
    said = (one if isinstance(one, str) else "".join(text for _, text in one) for one in texts.documents)
    filled = [bool(text.strip()) for text in said]
    if all(filled):
        return texts
    documents, kinds = compress(texts.documents, filled), compress(texts.kinds, filled)
    return replace(texts, documents=tuple(documents), kinds=tuple(kinds))


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """One sequence of tokens: the network's ``inputs`` by name, from the tokenizer, and the ``kind`` of its
    text."""

    inputs: Mapping[str, list[int]]
    kind: str = ""

    @property
    def ids(self) -> list[int]:
        return self.inputs["input_ids"]


def token_sequences(model: Model, texts: AnyTexts, longest: int) -> list[TokenSequence]:
    """Tokenize ``texts`` for ``model``. Sequences have at most ``longest`` tokens if the texts set no length
    of their own, and never more than the model has positions.

    ``SourceError`` for a sequence length beyond the model's positions, for a tokenizer without an end token
    if documents are joined, and for a dialogue that its chat template refuses.
    """
    texts, most = texts_of(texts), positions(model.network)
    wanted = texts.sequence_length
    if wanted is None:
        cut = min(longest, most or longest)
        found: Iterator[TokenSequence] = (
            _of_document(model, one, kind, cut) for one, kind in texts.sampled()
        )
    elif most is not None and wanted > most:
        raise SourceError(
            f"sequences of {wanted:,} tokens are longer than the {most:,} positions of {model.name}"
        )
    else:
        found = _packed(model, texts, wanted)
    sequences = []
    for sequence in islice(found, texts.samples):
        checkpoint()
        sequences.append(sequence)
    return sequences


def positions(network: nn.Module) -> int | None:
    """The number of positions of ``network``, by its config; None if unknown.

    RoBERTa's networks begin to count positions behind the padding token's index, and have so many fewer.
    """
    for name, module in network.named_modules():
        own = name.rpartition(".")[2] == "position_embeddings"
        if own and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.num_embeddings - module.padding_idx - 1
    config = getattr(network, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        config = config.get_text_config()
    said = (getattr(config, name, None) for name in _POSITIONS)
    return next((number for number in said if isinstance(number, int) and number > 0), None)


def _of_document(model: Model, document: Document, kind: str, longest: int) -> TokenSequence:
    text, special = _text_of(model, document)
    inputs = model.tokenizer(text, truncation=True, max_length=longest, add_special_tokens=special)
    return TokenSequence(dict(inputs), kind)


def _text_of(model: Model, document: Document) -> tuple[str, bool]:
    """A document as text; second, True if the tokenizer adds its special tokens, which a chat template holds
    already. Without a template a dialogue becomes paragraphs, a turn each, which begin with the role."""
    if isinstance(document, str):
        return document, True
    if not getattr(model.tokenizer, "chat_template", None):
        return "\n\n".join(f"{role}: {said}" for role, said in document), True
    turns = [{"role": role, "content": said} for role, said in document]
    try:
        return model.tokenizer.apply_chat_template(turns, tokenize=False), False
    except Exception as error:  # a template is a program of the model's, and raises what it likes
        raise SourceError(f"the chat template of {model.name} refuses a text: {first_line(error)}") from error


def _packed(model: Model, texts: Texts, length: int) -> Iterator[TokenSequence]:
    """Join the documents of each kind and cut them to ``length``. A shorter rest is kept only if its kind
    filled no sequence."""
    tokenizer, end = model.tokenizer, model.tokenizer.eos_token_id
    if end is None:
        raise SourceError(
            f"the tokenizer of {model.name} has no end token to join documents by: leave the "
            "sequence length out"
        )
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    if tokenizer("a")["input_ids"][:1] != begin:  # only models whose tokenizer puts it before a text need it
        begin = []
    open_: dict[str, list[int]] = {}
    filled = set()
    for document, kind in texts.sampled():
        text, _ = _text_of(model, document)
        ids = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        rest = [*open_.get(kind, []), *ids, end]
        room = length - len(begin)
        while len(rest) >= room:
            filled.add(kind)
            yield _joined([*begin, *rest[:room]], kind)
            rest = rest[room:]
        open_[kind] = rest
    for kind, rest in open_.items():
        if kind not in filled:
            yield _joined([*begin, *rest], kind)


def _joined(ids: list[int], kind: str) -> TokenSequence:
    return TokenSequence({"input_ids": ids, "attention_mask": [1] * len(ids)}, kind)
