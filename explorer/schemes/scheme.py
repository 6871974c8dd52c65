"""A scheme: a number format, the blocks that share a scale, and how that scale is chosen and stored.

One ``block`` says every granularity of a matrix W [N, K] (rows are output channels, or tokens):

    (None, None)  the whole tensor            (1, 128)    groups of 128 along the row
    (1, None)     each row                    (128, 128)  tiles
    (None, 1)     each column                 (1, 16)     NVFP4; (1, 32) MX

The last block of a row or column may be shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from explorer.formats import FloatFormat, Format, IntegerFormat
from explorer.formats.packing import packed_row_bytes
from explorer.formats.rounding import Rounding
from explorer.schemes.calibrators import MINMAX, Calibrator
from explorer.schemes.rules import (
    CODE_SENTENCES,
    NESTED_BLOCK,
    OWN_CODES,
    SUPER_BLOCK,
    CodeRule,
    MappingType,
    ScaleRule,
    Ties,
)

Block = tuple[int | None, int | None]
LONGEST_SIDE = 10**9 - 1
_WHOLE: Block = (None, None)
BLOCK_WORDS: dict[Block, str] = {(None, None): "tensor", (1, None): "row", (None, 1): "column"}
SEPARATOR = "~"
NO_SCALE = "none"
FLAT = "flat"

_MAPPING_WORDS = {
    MappingType.FULL: "the full code range is used, so the largest magnitudes land on rounding ties",
    MappingType.POWER: "scale = amax / 2^(b-1), so the largest positive value is clipped by one code",
    MappingType.NO_CLIP: "the full code range is used and nothing is clipped",
    MappingType.SIGNED_MAX: "the value of largest magnitude takes the code -2^(b-1): a scale may be negative",
    MappingType.MINIMUM: "x = scale · (code + 2^(b-1)) + minimum, and 0 need not be exact",
    MappingType.MIDPOINT: "x = scale · code + the value of code 0, and 0 need not be exact",
}


@dataclass(frozen=True)
class BitBudget:
    """Bits of storage per element, itemised. ``padding`` fills each row's last byte; ``added`` is what a
    method stores beside the codes: transforms and residues."""

    codes: float
    scales: float
    zero_points: float
    tensor_scale: float
    padding: float
    added: float = 0.0

    @property
    def total(self) -> float:
        return self.codes + self.scales + self.zero_points + self.tensor_scale + self.padding + self.added


@dataclass(frozen=True)
class Scheme:
    """How a tensor is quantized. ``scale`` None casts without scaling.

    ``least_squares_scale`` replaces each scale, after the codes are chosen, by the one with the least squared
    error for them. ``seed`` (0 ... 2^64 - 1) switches to stochastic rounding. ``codes`` says how codes are
    rounded where libraries differ. Wrong combinations raise ``ValueError``.

    ``flat``: blocks (None, n) are runs of n elements of the flattened tensor, across the ends of
    rows (bitsandbytes); only the last one of the tensor may be shorter.

    ``text`` spells the scheme out in the grammar of ``schemes.text``; ``str(scheme)`` is the name of the row
    of ``SCHEMES`` with the same parts where there is one, else ``text``. ``Scheme.parse`` reads both.
    """

    name: str
    label: str
    format: Format
    block: Block = (None, None)
    scale: ScaleRule | None = field(default_factory=ScaleRule)
    mapping: MappingType = MappingType.SYMMETRIC
    calibrator: Calibrator = MINMAX
    least_squares_scale: bool = False
    seed: int | None = None
    codes: CodeRule = OWN_CODES
    flat: bool = False
    # Kept as a plain attribute, because torch.compile reads attributes and does not trace string building.
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "text", self._spell())

    def _check(self) -> None:
        fmt, scale = self.format, self.scale
        if fmt.scale_only:
            raise ValueError(f"{fmt.label} is a format for scales only: it has no sign")
        if scale is None and not isinstance(fmt, FloatFormat):
            raise ValueError(
                f"{fmt.label} needs a scale; only floating-point formats can be cast without one"
            )
        if any(size is not None and not _is_whole(size, 1, LONGEST_SIDE) for size in self.block):
            raise ValueError(
                f"block sizes are positive whole numbers up to {LONGEST_SIDE} or None, got {self.block}"
            )
        if self.mapping is not MappingType.SYMMETRIC:
            if not isinstance(fmt, IntegerFormat):
                raise ValueError(
                    f"{self.mapping.name.lower()} scaling needs an integer format, not {fmt.label}"
                )
            if scale is not None and scale.format.bits <= 8:
                raise ValueError(f"{scale.format.label} scales go with symmetric scaling only")
        if scale is not None and fmt.bits > 8:
            raise ValueError(f"{fmt.label} is cast without a scale; scales go with formats of up to 8 bits")
        if self.seed is not None and not _is_whole(self.seed, 0, 2**64 - 1):
            raise ValueError(f"a seed is a whole number from 0 to 2^64 - 1, not {self.seed}")
        if scale is not None and scale.super_bits is not None:
            self._check_super_blocks()
        if scale is not None and scale.nested and self.mapping is not MappingType.SYMMETRIC:
            raise ValueError(f"double quantization goes with symmetric scaling, not {self.mapping.name}")
        if self.flat and (self.block[0] is not None or self.block[1] is None):
            raise ValueError(f"blocks of the flattened tensor are (None, length), not {self.block}")
        if self.mapping.has_offset and self.calibrator.of_magnitudes:
            raise ValueError(f"{self.calibrator.label} is a range of |x|, which says nothing about a minimum")
        if self.calibrator.name == "four_over_six" and fmt.name != "float4_e2m1fn":
            raise ValueError(f"four over six chooses between codes of FP4 E2M1, not of {fmt.label}")
        self._check_codes()

    def _check_super_blocks(self) -> None:
        width = self.block[1]
        if self.block[0] != 1 or width is None or SUPER_BLOCK % width:
            raise ValueError(
                f"a super-block of {SUPER_BLOCK} along the row holds blocks of 1, 2, 4 … {SUPER_BLOCK} along "
                f"the row, not {block_word(self.block)}"
            )
        if self.mapping not in (MappingType.MINIMUM, MappingType.SIGNED_MAX):
            raise ValueError(
                "scales under super-blocks go with the mappings MINIMUM and SIGNED_MAX, "
                f"not {self.mapping.name}"
            )

    def _check_codes(self) -> None:
        codes, integer = self.codes, isinstance(self.format, IntegerFormat)
        if self.scale is None and (codes != OWN_CODES or self.least_squares_scale or self.block != _WHOLE):
            raise ValueError("a cast has no scale: no block, no fitted scale, and no rule for its codes")
        if codes.zero_first and not self.asymmetric:
            raise ValueError("zerofirst says when an integer zero point is added: the mapping is ASYMMETRIC")
        if codes.ties is Ties.UP and not integer:
            raise ValueError("ties go up in integer formats only")
        if codes.ties is not Ties.EVEN and self.seed is not None:
            raise ValueError("stochastic rounding has no ties")

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """The scheme that ``text`` names or spells out; the grammar is in ``schemes.text``.

        >>> Scheme.parse("int4~1x48~ASYMMETRIC~bfloat16~mse").block
        (1, 48)

        Raises ``ValueError`` that says which part of the text is wrong and what is accepted there.
        """
        from explorer.schemes.text import parse

        return parse(text)

    def __str__(self) -> str:
        from explorer.schemes.text import name_or_text

        return name_or_text(self)

    def _spell(self) -> str:
        parts = [
            self.format.name,
            f"{FLAT}{self.block[1]}" if self.flat else block_word(self.block),
            self.mapping.name,
            self.scale.word if self.scale else NO_SCALE,
            self.calibrator.name,
        ]
        parts += ["fit"] if self.least_squares_scale else []
        parts += [f"s{self.seed}"] if self.seed is not None else []
        parts += self.codes.words
        return SEPARATOR.join(parts)

    @property
    def rounding(self) -> Rounding:
        return self.codes.rounding(self.seed)

    @property
    def asymmetric(self) -> bool:
        return self.mapping is MappingType.ASYMMETRIC

    @property
    def first_code(self) -> int:
        """The code's value that an offset stands for: that of the block's minimum, or 0."""
        fmt = self.format
        return fmt.qmin if isinstance(fmt, IntegerFormat) and self.mapping is MappingType.MINIMUM else 0

    @property
    def code_limits(self) -> tuple[float, float]:
        """The smallest and largest code value that quantization may produce."""
        if isinstance(self.format, IntegerFormat) and self.mapping is not MappingType.SYMMETRIC:
            return self.format.qmin, self.format.qmax
        return -self.format.max, self.format.max

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """How many blocks stand below and beside each other in a tensor of ``shape``."""
        rows, columns = shape
        height, width = self.block
        if self.flat and width:
            return 1, _ceil_div(rows * columns, width)
        return _ceil_div(rows, height or max(rows, 1)), _ceil_div(columns, width or max(columns, 1))

    def bits_per_element(self, shape: tuple[int, int]) -> BitBudget:
        """Bits of storage per element of a tensor of ``shape``, itemised."""
        rows, columns = shape
        elements = max(rows * columns, 1)
        stored = packed_row_bytes(self.format, columns) * 8 * rows / elements
        codes = self.format.packed_bits
        if self.scale is None:
            return BitBudget(codes, 0.0, 0.0, 0.0, stored - codes)
        blocks, above = math.prod(self.grid(shape)), self._bits_above(shape)
        return BitBudget(
            codes=codes,
            scales=(blocks * self.scale.bits + above) / elements,
            zero_points=(blocks * self._bits_of_zero + (above if self.mapping.has_offset else 0)) / elements,
            tensor_scale=32 / elements if self.scale.spans_tensor else 0.0,
            padding=stored - codes,
        )

    def _bits_above(self, shape: tuple[int, int]) -> int:
        """Bits of the scales that scales of blocks are stored under."""
        if self.scale is not None and self.scale.nested:
            return _ceil_div(math.prod(self.grid(shape)), NESTED_BLOCK) * self.scale.format.bits
        if self.scale is None or self.scale.super_bits is None:
            return 0
        return shape[0] * _ceil_div(shape[1], SUPER_BLOCK) * self.scale.format.bits

    @property
    def _bits_of_zero(self) -> int:
        """Bits of a block's zero point: a code's, or those of an offset in the scale's format."""
        if self.scale is not None and self.mapping.has_offset:
            return self.scale.bits
        return self.format.bits if self.asymmetric else 0

    @property
    def granularity(self) -> str:
        """The block in words: "per row", "groups of 128"."""
        if self.scale is None:
            return "no scale"
        height, width = self.block
        if self.flat:
            return f"blocks of {width} across rows"
        if height is None:
            if width is None:
                return "per tensor"
            return "per column" if width == 1 else f"per {width} columns"
        if width is None:
            return "per row" if height == 1 else f"per {height} rows"
        return f"groups of {width}" if height == 1 else f"{height}×{width} tiles"

    def describe(self) -> str:
        """One English sentence: what is stored for each value, which block shares a scale, and which other
        library stores exactly this.
        """
        fmt = self.format
        if self.scale is None:
            return f"Each value is rounded to {fmt.label} ({fmt.bits} bits) as it is, without a scale."
        article = "an" if fmt.packed_bits == 8 else "a"
        text = f"Each value becomes {article} {fmt.packed_bits:g}-bit {fmt.label} code; {self._scale_words()}"
        text += f"; {_MAPPING_WORDS[self.mapping]}" if self.mapping in _MAPPING_WORDS else ""
        text += f"; ranges by {self.calibrator.label}" if self.calibrator is not MINMAX else ""
        text += ", scales refitted by least squares" if self.least_squares_scale else ""
        text += f"; rounded stochastically (seed {self.seed})" if self.seed is not None else ""
        text += "".join(f"; {CODE_SENTENCES[word]}" for word in self.codes.words)
        return f"{text}{self._stored_by()}."

    def _stored_by(self) -> str:
        from explorer.schemes.table import STORED_BY

        who = STORED_BY.get(self.text)
        return f": the same codes and scales as {who}" if who else ""

    def _scale_words(self) -> str:
        """ "every row shares an FP16 scale and an integer zero point, so 0 stays exact" """
        assert self.scale is not None
        if self.scale.super_bits is not None:
            text, both = f"{self._sharing_words()} a scale", self.mapping.has_offset
            text += " and a minimum" if both else ""
            text += f" of {self.scale.super_bits} bits{' each' if both else ''}"
            return f"{text} under FP16 scales of super-blocks of {SUPER_BLOCK}"
        if self.scale.nested:
            return (
                f"{self._sharing_words()} a scale, stored less the mean of all scales in 8 bits under FP32 "
                f"scales of {NESTED_BLOCK} blocks"
            )
        label = self.scale.format.label.split(" (")[0]
        text = f"{self._sharing_words()} {'an' if label[0] in 'EF' else 'a'} {label} scale"
        text += f" ({self.scale.convention.words})" if self.scale.convention.words else ""
        text += " and an integer zero point, so 0 stays exact" if self.asymmetric else ""
        text += " and an offset in the same format" if self.mapping.has_offset else ""
        text += f" ({self.scale.exponent.name} rule)" if self.scale.exponent else ""
        return text + (", and one FP32 scale lies over the whole tensor" if self.scale.per_tensor else "")

    def _sharing_words(self) -> str:
        height, width = self.block
        if self.flat:
            return f"every block of {width} of the flattened tensor shares"
        if self.block == (None, None):
            return "the whole tensor shares"
        if self.block in ((1, None), (None, 1)):
            return f"every {'row' if height == 1 else 'column'} shares"
        if height == 1:
            return f"every block of {width} along a row shares"
        return f"every block of {height or 'all'} rows × {width or 'all'} columns shares"


def block_word(block: Block) -> str:
    """``tensor``, ``row``, ``column``, or rows x columns such as ``1x128`` and ``4xall``."""
    return BLOCK_WORDS.get(block) or "x".join("all" if side is None else str(side) for side in block)


def _is_whole(number: object, low: int, high: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and low <= number <= high


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
