"""How a cache of keys and values is stored, and the memory that it takes at a context length.

``CachePlan`` is the storage, ``CacheShape`` the numbers that a model keeps of a token. Bytes are computed
from both: nothing is run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from explorer.schemes import Scheme

PIECE = 32
"""Tokens of the highest block: the heights of blocks divide it, so that they end together."""
KEYS, VALUES, BOTH = "keys", "values", "both"
EXACT_BITS = 16
"""Of a number that stays exact."""
CONTEXT = 32768
"""Tokens at which memory is given."""


USUAL = {
    "FP8, one fixed scale a layer": "fp8_e4m3_tensor/fp8_e4m3_tensor",
    "INT8 per token": "int8_row/int8_row",
    "INT4, keys by channel, values by token": (
        "int4~32x1~asymmetric~float16~minmax/int4~1x64~asymmetric~float16~minmax"
    ),
    "INT2, keys by channel, values by token": (
        "int2~32x1~asymmetric~float16~minmax/int2~1x64~asymmetric~float16~minmax"
    ),
    "NVFP4": "nvfp4/nvfp4",
    "MXFP4": "mxfp4/mxfp4",
}
"""Names of storages -> their plans."""


@dataclass(frozen=True)
class CachePlan:
    """How a cache is stored: the schemes of keys and of values, None for those that stay exact; the last
    ``recent`` tokens stay exact; ``rotated``: keys and values are multiplied by a Hadamard matrix within each
    head before they are quantized. ``ValueError`` for blocks that tokens cannot be appended to."""

    keys: Scheme | None = None
    values: Scheme | None = None
    recent: int = 0
    rotated: bool = False

    def __post_init__(self) -> None:
        if self.recent < 0:
            raise ValueError(f"0 tokens or more stay exact, not {self.recent}")
        for _, scheme in self.parts:
            if scheme is not None:
                check_scheme(scheme)

    @classmethod
    def parse(cls, text: str, recent: int = 0, rotated: bool = False) -> Self:
        """The plan of "KEYS/VALUES", two schemes of which one may be empty: that part stays exact.
        ``ValueError`` for other texts."""
        keys, slash, values = (part.strip() for part in text.partition("/"))
        if not slash or not (keys or values):
            raise ValueError(f"{text}: two schemes are needed, KEYS/VALUES; an empty one stays exact")
        first, second = (Scheme.parse(part) if part else None for part in (keys, values))
        return cls(first, second, recent, rotated)

    @property
    def parts(self) -> tuple[tuple[str, Scheme | None], tuple[str, Scheme | None]]:
        """Keys and values, each with its scheme."""
        return (KEYS, self.keys), (VALUES, self.values)

    @property
    def text(self) -> str:
        """The inverse of ``parse``: "KEYS/VALUES"."""
        return "/".join("" if scheme is None else str(scheme) for _, scheme in self.parts)

    @property
    def is_fixed(self) -> bool:
        """Whether a part has scales that texts are run for before anything is stored."""
        return any(scheme is not None and is_fixed(scheme) for _, scheme in self.parts)

    @property
    def described(self) -> str:
        """The plan in words: "keys FP8 E4M3 per tensor, values exact, the last 64 tokens exact"."""
        schemes = {part: _words(scheme) for part, scheme in self.parts}
        same = len(set(schemes.values())) == 1
        words = [f"keys and values {schemes[KEYS]}"] if same else [f"{p} {s}" for p, s in schemes.items()]
        words += ["multiplied by a Hadamard matrix within each head"] if self.rotated else []
        words += [f"the last {self.recent} tokens exact"] if self.recent else []
        return ", ".join(words)


def _words(scheme: Scheme | None) -> str:
    if scheme is None:
        return "exact"
    return f"{scheme.format.label}, one fixed scale a layer" if is_fixed(scheme) else scheme.label


def is_fixed(scheme: Scheme) -> bool:
    """Whether ``scheme`` has one scale, which a cache must know before its first token: it is fixed for each
    layer, by texts that are run."""
    return scheme.scale is not None and scheme.block == (None, None)


def as_they_come(scheme: Scheme) -> bool:
    """Whether no scale is found from what is stored, so that each number is rounded by itself."""
    return scheme.scale is None or is_fixed(scheme)


def check_scheme(scheme: Scheme) -> None:
    """``ValueError`` unless tokens can be appended to what ``scheme`` has quantized."""
    height = scheme.block[0]
    if as_they_come(scheme):
        if is_fixed(scheme) and (scheme.format.bits != 8 or scheme.asymmetric):
            raise ValueError(f"{scheme}: fixed scales are for symmetric formats of 8 bits (fp8_e4m3_tensor)")
    elif height is None or scheme.flat or PIECE % height:
        raise ValueError(
            f"{scheme}: a cache grows token by token, so that the blocks of its scheme are 1, 2, 4, 8, 16 or "
            f"{PIECE} tokens high (int4~{PIECE}x1~asymmetric~float16~minmax, int8_row), or it has no scale "
            "(fp8_e4m3_cast) or a fixed one (fp8_e4m3_tensor)"
        )


def height_of(scheme: Scheme) -> int:
    """Tokens of one block."""
    return 1 if as_they_come(scheme) else scheme.block[0] or 1


def piece_of(scheme: Scheme) -> int:
    """Tokens that are rounded at once: fewer than these wait, exact, until the piece is complete."""
    return 1 if as_they_come(scheme) else PIECE


Heads = tuple[int, int]
"""(heads, channels of each)."""


def matrix_of(scheme: Scheme, tokens: int, heads: Heads) -> tuple[int, int]:
    """The shape in which ``scheme`` quantizes ``tokens`` tokens: [heads · tokens, channels], where no block
    crosses heads, or [tokens, heads · channels] for scales of a whole token."""
    count, channels = heads
    return (tokens, count * channels) if scheme.block[1] is None else (count * tokens, channels)


def bits_of(scheme: Scheme | None, heads: Heads) -> float:
    """Bits of a number, scales included; 16 for what stays exact. A fixed scale lies with the weights."""
    if scheme is None:
        return EXACT_BITS
    if as_they_come(scheme):
        return scheme.format.bits
    return scheme.bits_per_element(matrix_of(scheme, PIECE, heads)).total


@dataclass(frozen=True)
class CacheLayer:
    """What a layer keeps of a token: heads of ``keys`` and of ``values``; ``window``: the last tokens that it
    attends to, None for all."""

    keys: Heads
    values: Heads
    window: int | None = None

    def part(self, name: str) -> Heads:
        """The heads of "keys" or of "values"."""
        return self.keys if name == KEYS else self.values


@dataclass(frozen=True)
class CacheShape:
    """The layers that keep keys and values."""

    layers: tuple[CacheLayer, ...]

    @classmethod
    def uniform(cls, layers: int, heads: int, channels: int, windows: Sequence[int | None] = ()) -> Self:
        """``layers`` layers whose keys and values have the same heads; ``windows`` repeat along them."""
        every = [windows[i % len(windows)] if windows else None for i in range(layers)]
        return cls(tuple(CacheLayer((heads, channels), (heads, channels), window) for window in every))

    @property
    def windows(self) -> tuple[int, ...]:
        """Of the layers that have one."""
        return tuple(layer.window for layer in self.layers if layer.window is not None)

    def numbers(self, part: str) -> int:
        """Numbers of a token that are "keys" or "values"."""
        return sum(count * channels for count, channels in (layer.part(part) for layer in self.layers))

    def bits(self, part: str, scheme: Scheme | None) -> float:
        """Bits of a number of "keys" or "values", scales included, over all layers."""
        each = [layer.part(part) for layer in self.layers]
        return sum(bits_of(scheme, one) * one[0] * one[1] for one in each) / self.numbers(part)

    def bytes_a_token(self, plan: CachePlan) -> float:
        """What one more token takes once it is stored, in layers whose window is not full."""
        return sum(self.bits(part, scheme) * self.numbers(part) for part, scheme in plan.parts) / 8

    def bytes_of(self, plan: CachePlan, tokens: int) -> float:
        """The whole cache after ``tokens`` tokens. In 16 bits are the last ``plan.recent``, and, where scales
        are found from what is stored, those of a piece that is not complete: up to 31. A layer with a window
        keeps the tokens of its window, and of the block that the first of them lies in."""
        total = 0.0
        for layer in self.layers:
            for part, scheme in plan.parts:
                coded, exact = _held(scheme, tokens, layer.window, plan.recent)
                count, channels = layer.part(part)
                bits = coded * bits_of(scheme, (count, channels)) + exact * EXACT_BITS
                total += bits * count * channels / 8
        return total


def _held(scheme: Scheme | None, tokens: int, window: int | None, recent: int) -> tuple[int, int]:
    """How many of ``tokens`` tokens a layer holds as codes, and how many exactly."""
    first = 0 if window is None else max(0, tokens - window)
    if scheme is None:
        return 0, tokens - first
    height = height_of(scheme)
    piece = piece_of(scheme)
    coded = max(0, tokens - recent) // piece * piece
    return max(0, coded - first // height * height), tokens - max(coded, first)
