"""The named schemes in groups of what they are, for the picker, and the words of their names that the
glossary explains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypedDict

from app import glossary
from explorer import SCHEMES, Scheme
from explorer.formats import FloatFormat
from explorer.formats.integers import IntegerFormat

EXPLAINED = (
    *("RCEIL", "FLOOR", "EVEN", "amax/2", "amax/1.5", "full range", "four over six", "FNUZ", "asymmetric"),
    *("least-squares", "doubly quantized", "absmean", "TWN", "GGUF"),
)
"""Words of schemes' names that say nothing to who meets them first; each is in the glossary."""
INTEGERS: Mapping[int, str] = {
    8: "Integers of 8 bits",
    6: "Integers of 5 and 6 bits",
    5: "Integers of 5 and 6 bits",
    4: "Integers of 4 bits",
    3: "Integers of 3 bits",
}


class Named(TypedDict):
    """One scheme: its text, its name, and the ids of glossary entries of words in it."""

    text: str
    label: str
    terms: list[str]


def group_of(scheme: Scheme) -> str:
    """What a named scheme is, in words."""
    fmt, rule = scheme.format, scheme.scale
    if fmt.bits >= 16:
        return "16 bits and wider"
    if scheme.label.startswith("GGUF"):
        return "GGUF (llama.cpp)"
    if scheme.label.startswith(("MX", "NVFP4")):
        return "Microscaling: small blocks, scales of 8 bits"
    if isinstance(fmt, IntegerFormat):
        return INTEGERS.get(fmt.bits, "2 bits and less")
    if fmt.bits < 3:
        return "2 bits and less"
    if isinstance(fmt, FloatFormat) and fmt.bits == 8:
        return "FP8"
    return "Codebooks of 4 bits" if rule is not None else "Other"


def scheme_groups() -> dict[str, list[Named]]:
    """The schemes by group; groups and schemes in the order of ``SCHEMES``."""
    groups: dict[str, list[Named]] = {}
    for name, scheme in SCHEMES.items():
        words = [glossary.find(word).id for word in EXPLAINED if word.lower() in scheme.label.lower()]
        groups.setdefault(group_of(scheme), []).append(Named(text=name, label=scheme.label, terms=words))
    return groups


def head() -> str:
    """The groups as JSON for the page's head, where ``assets/picker.js`` reads them."""
    text = json.dumps(list(scheme_groups().items()), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="schemes">{text}</script>'
