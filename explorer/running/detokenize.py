"""Text of tokens as they come: a token's text depends on those before it, and a character may take
several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BEFORE = 6
"""Tokens of the prompt that the first token's text is decoded behind: blanks between words depend on them."""
_PARTIAL = "\ufffd"
"""What a tokenizer decodes part of a character to."""


class Detokenizer:
    """What each token adds to the text behind the tokens ``ids`` of a prompt."""

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(ids[-_BEFORE:])
        self._read = len(self._ids)

    def add(self, token: int, last: bool = False) -> str:
        """The text that becomes whole with ``token``; with ``last`` all that is left, whole or not."""
        self._ids.append(token)
        before, now = self._decoded(self._ids[: self._read]), self._decoded(self._ids)
        if now.endswith(_PARTIAL) and not last:
            return ""
        self._ids, self._read = self._ids[-_BEFORE:], min(len(self._ids), _BEFORE)
        return now[len(before) :]

    def alone(self, token: int) -> str:
        """The text of a token by itself: of one among several candidates."""
        return self._decoded([token])

    def _decoded(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
