"""Changes to bytes and texts that make the files and words of an adversary out of good ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

NUMBERS = (0, 1, -1, 2, 127, 128, 255, 256, 4095, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**40,
           2**63 - 1, 2**63, 2**64 - 1, 10**30, -(2**63), 10**400)  # fmt: skip
ODDITIES: tuple[Any, ...] = (
    None, True, False, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "²", "٣", "\ud800", "\0", "a\nb",
    "../x", "<b>", "x" * 2000, [], [[]], {}, {"a": {}}, "F32", "<f4", *NUMBERS,
)  # fmt: skip


def mutated(rng: random.Random, data: bytes) -> bytes:
    """``data`` after one to six changes of a few bytes each."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        if not out:
            break
        rng.choice((_flip, _number, _cut, _insert, _repeat, _zero, _swap))(rng, out)
    return bytes(out)


def _place(rng: random.Random, out: bytearray) -> int:
    """Mostly near the start or the end, where headers and lists of members are."""
    where = rng.random()
    if where < 0.6:
        return min(rng.randrange(len(out)), int(rng.expovariate(1 / 100)))
    return rng.randrange(len(out)) if where < 0.8 else max(0, len(out) - 1 - int(rng.expovariate(1 / 60)))


def _flip(rng: random.Random, out: bytearray) -> None:
    out[_place(rng, out)] ^= 1 << rng.randrange(8)


def _number(rng: random.Random, out: bytearray) -> None:
    at, value = _place(rng, out), rng.choice(NUMBERS)
    kind = rng.choice(("B", "<H", "<I", "<Q"))
    width = struct.calcsize(kind)
    out[at : at + width] = struct.pack(kind, value & (2 ** (8 * width) - 1))


def _cut(rng: random.Random, out: bytearray) -> None:
    at = _place(rng, out)
    del out[at : at + rng.randint(1, 40) if rng.random() < 0.7 else len(out)]


def _insert(rng: random.Random, out: bytearray) -> None:
    at = _place(rng, out)
    out[at:at] = rng.choice(
        (rng.randbytes(rng.randint(1, 30)), b"[" * 500, b"9" * 40, b"\xff" * 8, b"'", b'"', b"-")
    )


def _repeat(rng: random.Random, out: bytearray) -> None:
    at = _place(rng, out)
    out[at:at] = bytes(out[at : at + rng.randint(1, 60)]) * rng.randint(1, 20)


def _zero(rng: random.Random, out: bytearray) -> None:
    at = _place(rng, out)
    out[at : at + 20] = bytes(len(out[at : at + 20]))


def _swap(rng: random.Random, out: bytearray) -> None:
    one, other = _place(rng, out), _place(rng, out)
    out[one], out[other] = out[other], out[one]


def odd(rng: random.Random, value: Any) -> Any:
    """``value``, or one of its parts, replaced by something that should not be there."""
    if rng.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return rng.choice(ODDITIES)
    if isinstance(value, dict):
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key} | {str(rng.choice(ODDITIES)): value[key]}
        return value | {key: odd(rng, value[key])}
    at = rng.randrange(len(value))
    return [*value[:at], odd(rng, value[at]), *value[at + 1 :]]


def words(rng: random.Random, known: Sequence[str]) -> str:
    """A text of one to eight pieces: known words, numbers, signs and letters of other scripts."""

    def piece() -> str:
        if rng.random() < 0.4:
            return rng.choice(known)
        if rng.random() < 0.3:
            return rng.choice(" ~_-+*.,:=@/\\|()[]{}%&?#\t\n\0")
        if rng.random() < 0.2:
            return chr(rng.randrange(1, 0x3000))
        return str(rng.choice(NUMBERS if rng.random() < 0.5 else ODDITIES))

    pieces = [piece() for _ in range(rng.randint(1, 8))]
    return rng.choice(("", "", "~", "_", " ")).join(pieces)
