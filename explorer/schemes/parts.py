"""The parts of a scheme and the valid combinations.

One ``block`` gives every granularity of a matrix W [N, K] (rows are output channels, or tokens):

    (None, None)  the whole tensor            (1, 128)    groups of 128 along the row
    (1, None)     each row                    (128, 128)  tiles
    (None, 1)     each column                 (1, 16)     NVFP4; (1, 32) MX

The last block of a row or column may be shorter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from explorer.formats import CodebookFormat, FloatFormat, Format, IntegerFormat
from explorer.schemes.calibrators import MINMAX, Calibrator
from explorer.schemes.rules import (
    IQ4_BLOCK,
    IQ4_CODES,
    IQ4_FORMAT,
    IQ4_SCALES,
    K_QUANTS,
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


@dataclass(frozen=True)
class SchemeParts:
    """Checked name, label and parts of a scheme; ``Scheme`` explains the fields.

    Wrong combinations raise ``ValueError``.
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
        self._check_format()
        self._check_sides()
        self._check_mapping()
        self._check_width_and_seed()
        self._check_upper_level()
        self._check_flat()
        self._check_calibrator()
        self._check_codes()

    def _check_format(self) -> None:
        fmt = self.format
        if fmt.scale_only:
            raise ValueError(f"{fmt.label} is a format for scales only: it has no sign")
        if self.scale is None and not isinstance(fmt, FloatFormat):
            raise ValueError(
                f"{fmt.label} needs a scale; only floating-point formats can be cast without one"
            )

    def _check_sides(self) -> None:
        if any(size is not None and not _is_whole(size, 1, LONGEST_SIDE) for size in self.block):
            raise ValueError(
                f"block sizes are positive whole numbers up to {LONGEST_SIDE} or None, got {self.block}"
            )

    def _check_mapping(self) -> None:
        if self.mapping is MappingType.SYMMETRIC:
            return
        fmt = self.format
        signed = isinstance(fmt, CodebookFormat) and fmt.largest_is_negative
        if not isinstance(fmt, IntegerFormat) and not (signed and self.mapping is MappingType.SIGNED_MAX):
            raise ValueError(f"{self.mapping.word} scaling needs an integer format, not {fmt.label}")
        if self.scale is not None and self.scale.format.bits <= 8:
            raise ValueError(f"{self.scale.format.label} scales go with symmetric scaling only")

    def _check_width_and_seed(self) -> None:
        fmt = self.format
        if self.scale is not None and fmt.bits > 8:
            raise ValueError(f"{fmt.label} is cast without a scale; scales go with formats of up to 8 bits")
        if self.seed is not None and not _is_whole(self.seed, 0, 2**64 - 1):
            raise ValueError(f"a seed is a whole number from 0 to 2^64 - 1, not {self.seed}")

    def _check_upper_level(self) -> None:
        if self.scale is None:
            return
        if self.scale.super_bits is not None:
            self._check_super_blocks()
        if self.scale.is_searched:
            self._check_searched(self.scale)
        if self.scale.nested and self.mapping is not MappingType.SYMMETRIC:
            raise ValueError(f"double quantization goes with symmetric scaling, not {self.mapping.word}")

    def _check_flat(self) -> None:
        if self.flat and (self.block[0] is not None or self.block[1] is None):
            raise ValueError(f"blocks of the flattened tensor are (None, length), not {self.block}")

    def _check_calibrator(self) -> None:
        if self.mapping.has_offset and self.calibrator.of_magnitudes:
            raise ValueError(f"{self.calibrator.label} is a range of |x|, which says nothing about a minimum")
        if self.calibrator.name == "four_over_six" and self.format.name != "float4_e2m1fn":
            raise ValueError(f"four over six chooses between codes of FP4 E2M1, not of {self.format.label}")

    def _check_super_blocks(self) -> None:
        width = self.block[1]
        if self.block[0] != 1 or width is None or SUPER_BLOCK % width:
            raise ValueError(
                f"a super-block of {SUPER_BLOCK} along the row holds blocks of 1, 2, 4 … {SUPER_BLOCK} along "
                f"the row, not {block_word(self.block)}"
            )
        if self.mapping not in (MappingType.MINIMUM, MappingType.SIGNED_MAX):
            raise ValueError(
                "scales under super-blocks go with the mappings minimum and signed_max, "
                f"not {self.mapping.word}"
            )

    def _check_searched(self, rule: ScaleRule) -> None:
        """Raise ``ValueError`` unless llama.cpp has a search for this type, and nothing else finds its
        scales."""
        kind = self.format.bits, self.block[1], rule.super_bits, self.mapping
        codebook = (
            self.format.name == IQ4_FORMAT
            and self.block == (1, IQ4_BLOCK)
            and self.mapping is MappingType.SIGNED_MAX
            and rule.super_bits in IQ4_SCALES
        )
        if not codebook and (not isinstance(self.format, IntegerFormat) or kind not in K_QUANTS):
            raise ValueError(
                "llama.cpp's search is of Q2_K to Q6_K, IQ4_NL and IQ4_XS, and has none for "
                f"{self.format.label} in blocks {block_word(self.block)} with {rule.of_ranges.word} scales, "
                f"mapping {self.mapping.word}"
            )
        codes = IQ4_CODES if codebook else OWN_CODES
        if self.calibrator is not MINMAX or self.least_squares_scale or self.codes != codes:
            rules = f"the rules for codes {', '.join(codes.words)}" if codebook else "no rules for codes"
            raise ValueError(
                f"llama.cpp's search ({rule.word}) finds scales by itself: it goes with minmax and {rules}, "
                f"without fitted scales; {rule.of_ranges.word} takes those"
            )

    def _check_codes(self) -> None:
        codes, integer = self.codes, isinstance(self.format, IntegerFormat)
        if self.scale is None and (codes != OWN_CODES or self.least_squares_scale or self.block != _WHOLE):
            raise ValueError("a cast has no scale: no block, no fitted scale, and no rule for its codes")
        if codes.zero_first and not self.asymmetric:
            raise ValueError("zerofirst says when an integer zero point is added: the mapping is asymmetric")
        if codes.ties is Ties.UP and not integer:
            raise ValueError("ties go up in integer formats only")
        if codes.ties is not Ties.EVEN and self.seed is not None:
            raise ValueError("stochastic rounding has no ties")

    def _spell(self) -> str:
        parts = [
            self.format.name,
            f"{FLAT}{self.block[1]}" if self.flat else block_word(self.block),
            self.mapping.word,
            self.scale.word.lower() if self.scale else NO_SCALE,
            self.calibrator.name,
        ]
        parts += ["fit"] if self.least_squares_scale else []
        parts += [f"s{self.seed}"] if self.seed is not None else []
        parts += self.codes.words
        return SEPARATOR.join(parts)

    @property
    def asymmetric(self) -> bool:
        return self.mapping is MappingType.ASYMMETRIC

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


def block_word(block: Block) -> str:
    """Write a block: ``tensor``, ``row``, ``column``, or rows x columns such as ``1x128`` and ``4xall``."""
    return BLOCK_WORDS.get(block) or "x".join("all" if side is None else str(side) for side in block)


def _is_whole(number: object, low: int, high: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and low <= number <= high
