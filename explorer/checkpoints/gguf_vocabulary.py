"""A Hugging Face tokenizer as GGUF's metadata, so that llama.cpp tokenizes texts like the original.
tokenizer.json tells the kind: byte-level BPE ("gpt2", with a pre-tokenizer that llama.cpp knows by name), BPE
of SentencePiece ("llama"), or WordPiece ("bert")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""llama.cpp's ``llama_token_type``."""
_SPACE = "\u2581"
_NEVER_MERGED = -1e6
_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CUTS = {
    _ANY_CASE + r"\p{N}{1,3}" + _REST: "llama-bpe",
    _ANY_CASE + r"\p{N}" + _REST: "qwen2",
    "": "gpt-2",
    "Digits": "smollm",
}
"""Pre-tokenizer, by its regular expression or the name of its step -> its name in llama.cpp."""


def vocabulary(folder: Path, size: int) -> dict[str, Any]:
    """``tokenizer.ggml.*`` without this prefix, for a model with ``size`` rows of embeddings.

    ``ValueError`` for a tokenizer that llama.cpp cannot reproduce.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{folder.name} has no tokenizer.json, which GGUF files hold the tokens of")
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    kind = str(tokenizer["model"].get("type") or "BPE")
    if kind == "WordPiece":
        return _word_piece(tokenizer, size)
    if kind != "BPE":
        raise ValueError(f"its tokenizer is {kind}; carried are BPE, BPE of SentencePiece and WordPiece")
    make = _sentence_piece if tokenizer["model"].get("byte_fallback") else _bytes
    return make(tokenizer, size)


def _tokens(tokenizer: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Return the text and the type of every token; rows of embeddings without a token are unused."""
    known, added_tokens = tokenizer["model"]["vocab"], tokenizer.get("added_tokens", [])
    highest = max([*known.values(), *(added["id"] for added in added_tokens)])
    if highest >= size:
        raise ValueError(f"its tokenizer has a token {highest}, but the embedding only {size} rows")
    texts, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for text, index in known.items():
        texts[index], types[index] = text, NORMAL
    for added in added_tokens:
        texts[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    return texts, types


def _merges(tokenizer: dict[str, Any]) -> list[str]:
    return [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]


def _bytes(tokenizer: dict[str, Any], size: int) -> dict[str, Any]:
    texts, types = _tokens(tokenizer, size)
    found = {"model": "gpt2", "pre": _cut(tokenizer), "tokens": texts, "token_type": types}
    return found | {"merges": _merges(tokenizer)}


def _cut(tokenizer: dict[str, Any]) -> str:
    step = tokenizer.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    names = [s.get("type") for s in steps]
    patterns = [s["pattern"].get("Regex") or "" for s in steps if s.get("type") == "Split"]
    found = patterns[0] if patterns else "Digits" if "Digits" in names else ""
    if found not in CUTS or names[-1] != "ByteLevel" or len(patterns) > 1:
        raise ValueError(f"its tokenizer cuts texts in a way that has no name in llama.cpp here: {names}")
    return CUTS[found]


def _sentence_piece(tokenizer: dict[str, Any], size: int) -> dict[str, Any]:
    """Convert a BPE vocabulary of SentencePiece. Earlier merges get higher scores: llama.cpp merges the pair
    with the higher score first."""
    texts, types = _tokens(tokenizer, size)
    rank: dict[str, int] = {}
    for number, merge in enumerate(_merges(tokenizer)):
        rank.setdefault(merge.replace(" ", ""), number)
    scores = [-float(rank[text]) if text in rank else _NEVER_MERGED for text in texts]
    scores = [0.0 if type_ != NORMAL else score for score, type_ in zip(scores, types, strict=True)]
    unknown = tokenizer["model"].get("unk_token")
    for index, text in enumerate(texts):
        if text == unknown:
            types[index] = UNKNOWN
        elif len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            types[index] = BYTE
    found = {"model": "llama", "pre": "default", "tokens": texts, "scores": scores, "token_type": types}
    return found | {"space_prefix": _space_prefix(tokenizer)}


def _space_prefix(tokenizer: dict[str, Any]) -> bool:
    """True if a space is prepended to a text before it is split."""
    normalizer, cut = tokenizer.get("normalizer") or {}, tokenizer.get("pre_tokenizer") or {}
    prepended = [n for n in normalizer.get("normalizers", [normalizer]) if n.get("type") == "Prepend"]
    spaces = [c for c in cut.get("pretokenizers", [cut]) if c.get("type") == "Metaspace"]
    spaced = (
        s.get("prepend_scheme", "always" if s.get("add_prefix_space", True) else "never") for s in spaces
    )
    return bool(prepended) or any(scheme != "never" for scheme in spaced)


def _word_piece(tokenizer: dict[str, Any], size: int) -> dict[str, Any]:
    """Convert a WordPiece vocabulary: llama.cpp marks the beginnings of words, WordPiece their
    continuations."""
    texts, types = _tokens(tokenizer, size)
    prefix = tokenizer["model"].get("continuing_subword_prefix", "##")

    def marked(text: str, type_: int) -> str:
        if type_ != NORMAL or (text.startswith("[") and text.endswith("]")):
            return text
        return text.removeprefix(prefix) if text.startswith(prefix) else _SPACE + text

    words = list(map(marked, texts, types))
    found = {"model": "bert", "pre": "default", "tokens": words, "token_type": types}
    return found | {"scores": [-1000.0] * size}
