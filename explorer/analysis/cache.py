"""Storage of a cache of keys and values, and its memory at a context length.

``CachePlan`` is the storage, ``CacheShape`` the numbers that a model keeps per token. Bytes are computed from
both, without running a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from explorer.schemes import Scheme

PIECE = 32
"""Number of tokens in the highest block. The heights of all blocks divide it, so that they end together."""
KEYS, VALUES, BOTH = "keys", "values", "both"
EXACT_BITS = 16
"""Bits of a number that is not quantized."""
CONTEXT = 32768
"""Number of tokens for which memory is stated."""
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
"""Labels and texts of common plans."""


@dataclass(frozen=True)
class CachePlan:
    """Storage of a cache. ``ValueError`` for schemes whose blocks no token can be appended to.

    keys, values  their schemes; None for exact storage
    recent        number of last tokens that stay exact
    rotated       True: a Hadamard matrix multiplies keys and values within each head before quantization
    """

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
        """Parse "KEYS/VALUES", two schemes of which one may be empty: that part stays exact. ``ValueError``
        for other texts."""
        keys, slash, values = (part.strip() for part in text.partition("/"))
        if not slash or not (keys or values):
            raise ValueError(f"{text}: two schemes are needed, KEYS/VALUES; an empty one stays exact")
        first, second = (Scheme.parse(part) if part else None for part in (keys, values))
        return cls(first, second, recent, rotated)

    @property
    def parts(self) -> tuple[tuple[str, Scheme | None], tuple[str, Scheme | None]]:
        """Schemes of "keys" and of "values"."""
        return (KEYS, self.keys), (VALUES, self.values)

    @property
    def text(self) -> str:
        """The plan as text: "KEYS/VALUES", the inverse of ``parse``."""
        return "/".join("" if scheme is None else str(scheme) for _, scheme in self.parts)

    @property
    def is_fixed(self) -> bool:
        """True if the scheme of a part has a fixed scale."""
        return any(scheme is not None and is_fixed(scheme) for _, scheme in self.parts)

    @property
    def described(self) -> str:
        """Description: "keys FP8 E4M3 per tensor, values exact, the last 64 tokens exact"."""
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
    """True if ``scheme`` has one scale, which a cache needs before its first token: it is fixed for each
    layer by running texts."""
    return scheme.scale is not None and scheme.block == (None, None)


def as_they_come(scheme: Scheme) -> bool:
    """True if no scale depends on the stored numbers, so that each is rounded by itself."""
    return scheme.scale is None or is_fixed(scheme)


def check_scheme(scheme: Scheme) -> None:
    """``ValueError`` unless tokens can be appended to blocks of ``scheme``."""
    height = scheme.block[0]
    if as_they_come(scheme):
        if is_fixed(scheme) and (scheme.format.bits != 8 or scheme.asymmetric):
            raise ValueError(f"{scheme}: fixed scales are for symmetric formats of 8 bits (fp8_e4m3_tensor)")
    elif height is None or scheme.flat or PIECE % height:
        raise ValueError(
            f"{scheme}: a cache grows token by token. Its scheme must have blocks that are 1, 2, 4, 8, 16 or "
            f"{PIECE} tokens high (int4~{PIECE}x1~asymmetric~float16~minmax, int8_row), no scale "
            "(fp8_e4m3_cast) or a fixed one (fp8_e4m3_tensor)"
        )


def height_of(scheme: Scheme) -> int:
    """Number of tokens in a block."""
    return 1 if as_they_come(scheme) else scheme.block[0] or 1


def piece_of(scheme: Scheme) -> int:
    """Number of tokens that are rounded at once: they stay exact until the piece is complete."""
    return 1 if as_they_come(scheme) else PIECE


PLAIN = ("llama", "olmo2", "granite")
WINDOWED = ("mistral", "mixtral", "phi3")
OWN_HEADS = ("qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt_oss")
STATED = (*PLAIN, *WINDOWED, *OWN_HEADS, "qwen2", "qwen2_moe", "smollm3")
"""Model types, by transformers' names, whose config.json states what each layer keeps: ``PLAIN`` know no
window, ``WINDOWED`` have it in all layers, ``OWN_HEADS`` name their channels of a head."""
SLIDING = "sliding_attention"
MOST, MOST_LAYERS = 1 << 24, 1 << 12
"""The largest number of a config that is taken for one, and the most layers."""

Heads = tuple[int, int]
"""Number of heads, and channels of each."""


def matrix_of(scheme: Scheme, tokens: int, heads: Heads) -> tuple[int, int]:
    """Shape in which ``scheme`` quantizes ``tokens`` tokens: [heads · tokens, channels], so that no block
    crosses heads, or [tokens, heads · channels] for scales of a whole token."""
    count, channels = heads
    return (tokens, count * channels) if scheme.block[1] is None else (count * tokens, channels)


def bits_of(scheme: Scheme | None, heads: Heads) -> float:
    """Bits of a number, scales included; 16 if it is exact. Fixed scales are stored with the weights."""
    if scheme is None:
        return EXACT_BITS
    if as_they_come(scheme):
        return scheme.format.bits
    return scheme.bits_per_element(matrix_of(scheme, PIECE, heads)).total


@dataclass(frozen=True)
class CacheLayer:
    """Heads of ``keys`` and of ``values`` that a layer keeps per token; ``window``: number of last tokens
    that it attends to, None for all."""

    keys: Heads
    values: Heads
    window: int | None = None

    def part(self, name: str) -> Heads:
        return self.keys if name == KEYS else self.values


@dataclass(frozen=True)
class CacheShape:
    """The layers that keep keys and values."""

    layers: tuple[CacheLayer, ...]

    @classmethod
    def uniform(cls, layers: int, heads: int, channels: int, windows: Sequence[int | None] = ()) -> Self:
        """Create ``layers`` layers with the same heads of keys and values; ``windows`` repeat along them."""
        every = [windows[i % len(windows)] if windows else None for i in range(layers)]
        return cls(tuple(CacheLayer((heads, channels), (heads, channels), window) for window in every))

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Create the shape that the content of a config.json states, or its ``text_config``. None for model
        types beside ``STATED``, for invalid numbers, and if it does not say which layers have a window."""
        text = config.get("text_config") or config
        if not isinstance(text, Mapping) or (kind := text.get("model_type")) not in STATED:
            return None
        names = ("num_hidden_layers", "num_key_value_heads", "num_attention_heads", "hidden_size")
        numbers: list[Any] = [text.get(name) for name in names]
        layers, kept, heads, hidden = numbers
        channels, window = text.get("head_dim"), text.get("sliding_window")
        numbers += [channels or kind not in OWN_HEADS, window or (kind in PLAIN or "sliding_window" in text)]
        if not all(isinstance(number, int) and 0 < number < MOST for number in numbers):
            return None
        if layers > MOST_LAYERS or hidden < heads:
            return None
        types = text.get("layer_types") or [SLIDING] * (kind in WINDOWED)
        if not window or text.get("use_sliding_window") is False:
            types = ["full_attention"]
        named = isinstance(types, list) and all(one in (SLIDING, "full_attention") for one in types)
        if not named or len(types) not in (1, layers):
            return None
        windows = [window if one == SLIDING else None for one in types]
        return cls.uniform(layers, kept, channels or hidden // heads, windows)

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(layer.window for layer in self.layers if layer.window is not None)

    def numbers(self, part: str) -> int:
        """Count the numbers per token in "keys" or "values"."""
        return sum(count * channels for count, channels in (layer.part(part) for layer in self.layers))

    def bits(self, part: str, scheme: Scheme | None) -> float:
        """Bits of a number of "keys" or "values", scales included, over all layers."""
        each = [layer.part(part) for layer in self.layers]
        return sum(bits_of(scheme, one) * one[0] * one[1] for one in each) / self.numbers(part)

    def bytes_a_token(self, plan: CachePlan) -> float:
        """Bytes of one more stored token; windows of layers are not full yet."""
        return sum(self.bits(part, scheme) * self.numbers(part) for part, scheme in plan.parts) / 8

    def bytes_of(self, plan: CachePlan, tokens: int) -> float:
        """Compute the size of the whole cache after ``tokens`` tokens.

        The last ``plan.recent`` take 16 bits per number, and so do up to 31 of an incomplete piece, unless
        scales do not depend on the stored numbers. A layer with a window keeps the tokens of the window, and
        all of the block with the first of them.
        """
        total = 0.0
        for layer in self.layers:
            for part, scheme in plan.parts:
                coded, exact = _held(scheme, tokens, layer.window, plan.recent)
                count, channels = layer.part(part)
                bits = coded * bits_of(scheme, (count, channels)) + exact * EXACT_BITS
                total += bits * count * channels / 8
        return total


def _held(scheme: Scheme | None, tokens: int, window: int | None, recent: int) -> tuple[int, int]:
    """Numbers of tokens that a layer stores as codes, and exactly."""
    first = 0 if window is None else max(0, tokens - window)
    if scheme is None:
        return 0, tokens - first
    height, piece = height_of(scheme), piece_of(scheme)
    coded = max(0, tokens - recent) // piece * piece
    return max(0, coded - first // height * height), tokens - max(coded, first)
