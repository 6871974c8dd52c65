"""The rules of a scheme: mapping of a range to codes, storage of a scale, rounding of a code."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

from explorer.formats import E4M3, E8M0, FLOAT32, FloatFormat, Format
from explorer.formats.rounding import Rounding


class MappingType(enum.Enum):
    """Mapping of a range to codes. All but SYMMETRIC need an integer format; SIGNED_MAX also takes a codebook
    whose level of largest magnitude is the least one (IQ4_NL)."""

    SYMMETRIC = "symmetric: scale = amax / max, for integers the codes -Q ... Q (restricted range)"
    FULL = "symmetric, full range: scale = amax / (2^(b-1) - 1/2), codes -2^(b-1) ... 2^(b-1)-1"
    POWER = "symmetric, scale = amax / 2^(b-1): the largest positive value is clipped by one code"
    NO_CLIP = "symmetric, scale = max(-min / 2^(b-1), max / (2^(b-1)-1)): full range, nothing clipped"
    ASYMMETRIC = "asymmetric: scale = (max - min) / (2^b - 1), integer zero point, 0 stays exact"
    SIGNED_MAX = (
        "symmetric, scale = m / least code for the first value m of largest magnitude, of either sign"
    )
    MINIMUM = "asymmetric: x = scale · (code + 2^(b-1)) + minimum, both stored in the scale's format"
    MIDPOINT = "asymmetric: x = scale · code + (minimum + 2^(b-1) scale), both stored in the scale's format"

    @property
    def has_offset(self) -> bool:
        """True if a floating-point number is added to scale · code, in place of an integer zero point."""
        return self in (MappingType.MINIMUM, MappingType.MIDPOINT)

    @property
    def word(self) -> str:
        """The mapping in a scheme's text: ``asymmetric``."""
        return self.name.lower()


class ExponentRule(enum.Enum):
    """The rule that turns a block's largest magnitude into a power-of-two scale (OCP MX v1.0 and its
    variants)."""

    FLOOR = "OCP: 2^(floor(log2 amax) - emax); elements above the format's maximum saturate"
    RCEIL = "NVIDIA: 2^ceil(log2(amax / max)); never saturates"
    CEIL = "2^(ceil(log2 amax) - emax); never saturates, loses a bit unless amax is a power of two"
    EVEN = "floor after rounding amax to the element's mantissa width"


class Convention(enum.Enum):
    """The library whose rules apply to stored scales; the value is its word.

    OWN                  scales of at least the format's smallest positive number; 1 for a block of zeros
    COMPRESSED_TENSORS   a scale that rounds to 0 becomes the format's epsilon (E4M3: 1/8); EVEN rounds amax
                         to one mantissa bit (E2M3: three); the scale over an NVFP4 tensor is stored as its
                         reciprocal, 6 · 448 / amax (compressed-tensors 0.20, llm-compressor);
                         a block of zeros has the zero point 0
    TORCHAO              scales of at least the format's smallest normal number, also for a block of zeros
                         (torchao 0.18)
    ZERO                 a scale may be 0, and is 0 for a block of zeros (GGUF, bitsandbytes, torchao's
                         Float8Tensor)
    GGML                 scales from llama.cpp's search (``schemes.k_search``), with weights and candidates
                         for each type of K-quant and for the two with the codebook IQ4_NL. A given range is
                         treated as by ZERO
    """

    OWN = ""
    COMPRESSED_TENSORS = "ct"
    TORCHAO = "torchao"
    ZERO = "zero"
    GGML = "ggml"

    @property
    def words(self) -> str:
        """The words in brackets after "scale" in a sentence about this convention."""
        return _CONVENTION_WORDS.get(self.value, "")


_CONVENTION_WORDS = {
    "ct": "by compressed-tensors' rules",
    "torchao": "by torchao's rules",
    "zero": "which may be 0",
    "ggml": "found by llama.cpp's search",
}


SUPER_BLOCK = 256
"""Elements of a super-block, along the row; a row's last one may be shorter."""
SUPER_BITS = (4, 6, 8)
"""The widths of block scales under a super-block: those of GGUF's K-quants."""
K_QUANTS = (
    (2, 16, 4, MappingType.MINIMUM),
    (3, 16, 6, MappingType.SIGNED_MAX),
    (4, 32, 6, MappingType.MINIMUM),
    (5, 32, 6, MappingType.MINIMUM),
    (6, 16, 8, MappingType.SIGNED_MAX),
)
"""GGUF's Q2_K … Q6_K: bits of a code, length of a block, bits of its scale, mapping."""
IQ4_FORMAT, IQ4_BLOCK = "iq4_nl", 32
IQ4_SCALES: dict[int | None, str] = {None: "IQ4_NL", 6: "IQ4_XS"}
"""GGUF's types with that codebook, by the bits of a block's scale under a super-block; None: a float16 scale
of its own."""
TQ1_FORMAT = "ternary_run256"
"""The codes of GGUF's TQ1_0."""
NESTED_BLOCK = 256
"""Scales, counted row by row, under one scale in double quantization (QLoRA)."""


@dataclass(frozen=True)
class ScaleRule:
    """The storage of scales. ``exponent`` is given exactly when the format is E8M0.

    ``per_tensor`` adds one float32 scale over the whole tensor above the block scales (NVFP4). ``super_bits``
    stores block scales as integers of this many bits under one float16 scale for each ``SUPER_BLOCK``, and
    minimums likewise (GGUF's K-quants). ``nested`` stores them less their mean in 8 bits under one float32
    scale for each ``NESTED_BLOCK`` (bitsandbytes). Scales of the last two kinds may be 0.
    """

    format: FloatFormat = FLOAT32
    exponent: ExponentRule | None = None
    per_tensor: bool = False
    convention: Convention = Convention.OWN
    super_bits: int | None = None
    nested: bool = False

    def __post_init__(self) -> None:
        if (self.format is E8M0) != (self.exponent is not None):
            raise ValueError("an E8M0 scale needs an ExponentRule, and no other scale format takes one")
        if self.per_tensor and self.format is not E4M3:
            raise ValueError("two-level scaling is defined for E4M3 block scales (NVFP4)")
        if not self.format.holds_scales:
            raise ValueError(f"scales have 8, 16 or 32 bits, not {self.format.label}'s {self.format.bits}")
        if self.convention is Convention.GGML and self.super_bits is None and self.format.name != "float16":
            raise ValueError(
                "llama.cpp's search finds float16 scales, or scales under super-blocks: super4, super6 "
                "or super8"
            )
        if self.convention is Convention.ZERO and not self.format.has_zero:
            raise ValueError(f"{self.format.label} has no zero, so that scales of it cannot be 0")
        if self.super_bits is not None:
            self._check_super_blocks()
        if self.nested and (self.format is not FLOAT32 or self.convention is not Convention.ZERO):
            raise ValueError("double quantization is of float32 scales, which may be 0")
        if self.nested and self.super_bits is not None:
            raise ValueError("scales are quantized in super-blocks or doubly, not both")

    def _check_super_blocks(self) -> None:
        if self.super_bits not in SUPER_BITS:
            raise ValueError(f"scales under super-blocks have 4, 6 or 8 bits, not {self.super_bits}")
        if self.format.name != "float16" or self.convention not in (Convention.ZERO, Convention.GGML):
            raise ValueError("super-blocks have float16 scales, and their blocks' scales may be 0")

    @property
    def has_upper_level(self) -> bool:
        """True if block scales are themselves quantized, so that no block is restored alone."""
        return self.nested or self.super_bits is not None

    @property
    def is_searched(self) -> bool:
        """True if llama.cpp's search finds the scales instead of a calibrator's range."""
        return self.convention is Convention.GGML

    @property
    def of_ranges(self) -> ScaleRule:
        """The same rule with scales from ranges instead of llama.cpp's search."""
        return dataclasses.replace(self, convention=Convention.ZERO) if self.is_searched else self

    @property
    def spans_tensor(self) -> bool:
        """True if the scale of a block depends on the whole tensor."""
        return self.per_tensor or self.nested

    @property
    def of_a_block_alone(self) -> ScaleRule:
        """The rule without the level above, which a search for one block's range assumes."""
        return ScaleRule(convention=Convention.ZERO) if self.has_upper_level else self

    @property
    def bits(self) -> int:
        """Bits of one block's stored scale."""
        return 8 if self.nested else self.super_bits or self.format.bits

    @property
    def smallest(self) -> float:
        """The least scale of a nonzero block; smaller ones are raised to it.

        By OWN the format's smallest positive number (E8M0: 2^-127): the values of a block with a smaller
        scale are less than a step apart, and those below half a step become 0.
        """
        if self.convention is Convention.OWN or self.format is E8M0:
            return self.format.smallest_subnormal
        if self.convention is Convention.TORCHAO:
            return self.format.smallest_normal
        return 0.0

    def empty(self, fmt: Format) -> float:
        """The scale of a block of zeros. By OWN it is 1, so that codes of 0 restore zeros; for element
        formats without a zero it is 0, or the smallest scale (E8M0)."""
        if self.convention is Convention.OWN and fmt.has_zero:
            return 1.0
        if self.convention is Convention.COMPRESSED_TENSORS and self.format is not E8M0:
            return self.format.eps
        return 0.0 if self.format.has_zero and self.convention is not Convention.TORCHAO else self.smallest

    @property
    def divides_by_tensor_scale(self) -> bool:
        """True if the scale over the tensor is stored as its reciprocal."""
        return self.per_tensor and self.convention is Convention.COMPRESSED_TENSORS

    @property
    def word(self) -> str:
        """Name of the rule: ``float16``, ``RCEIL`` (E8M0 by that rule), ``nvfp4`` (two levels), each with its
        convention: ``nvfp4-ct``; ``super6`` (6 bits under super-blocks), ``super6-ggml`` and ``float16-ggml``
        (found by llama.cpp's search); ``nested``. A scheme's text has it in lower case."""
        if self.super_bits is not None:
            return f"super{self.super_bits}{'-ggml' if self.is_searched else ''}"
        if self.nested:
            return "nested"
        word = "nvfp4" if self.per_tensor else self.exponent.name if self.exponent else self.format.name
        return f"{word}-{self.convention.value}" if self.convention.value else word


class Ties(enum.Enum):
    """The direction of values halfway between two codes. UP: toward +Inf, by adding 1/2 and rounding down."""

    EVEN = ""
    AWAY = "away"
    UP = "up"


@dataclass(frozen=True)
class CodeRule:
    """The computation of a code from x and its block's scale, where quantization libraries differ.

    reciprocal   x · (1 / scale) instead of x / scale (torchao, bitsandbytes, GGUF)
    zero_first   the zero point is added before rounding instead of after (compressed-tensors)
    unrounded    the scale is taken before it is rounded to its stored format (GGUF)
    bfloat16     every operation is rounded to BF16 (compressed-tensors and torchao on BF16 weights). Under
                 compressed-tensors' scale over the tensor only scales are; x / scale is a float32 number
    ties         rounding of halves (microxcaling, GGUF Q8_0: away; GGUF's other types: up)
    """

    reciprocal: bool = False
    zero_first: bool = False
    unrounded: bool = False
    bfloat16: bool = False
    ties: Ties = Ties.EVEN

    @property
    def words(self) -> list[str]:
        """The rule in a scheme's text: one word for each active switch."""
        return [word for word, (name, on) in CODE_WORDS.items() if getattr(self, name) == on]

    def rounding(self, seed: int | None) -> Rounding:
        if seed is not None:
            return Rounding.STOCHASTIC
        return Rounding.AWAY if self.ties is Ties.AWAY else Rounding.NEAREST


OWN_CODES = CodeRule()
"""The default rule: x / scale, ties to even, then the zero point."""
IQ4_CODES = CodeRule(reciprocal=True, unrounded=True)
"""The rule of IQ4_NL and IQ4_XS with scales from llama.cpp's search."""
CODE_WORDS: dict[str, tuple[str, bool | Ties]] = {
    "reciprocal": ("reciprocal", True),
    "zerofirst": ("zero_first", True),
    "unrounded": ("unrounded", True),
    "bf16": ("bfloat16", True),
    "away": ("ties", Ties.AWAY),
    "up": ("ties", Ties.UP),
}
"""The words of a ``CodeRule`` in a scheme's text: each sets a field to a value."""

CODE_SENTENCES: dict[str, str] = {
    "reciprocal": "values are multiplied by the reciprocal of the scale",
    "zerofirst": "the zero point is added before rounding",
    "unrounded": "codes come from the scale before it is rounded",
    "bf16": "computed in BF16",
    "away": "ties go away from zero",
    "up": "ties go up",
}
