"""``Scheme`` and the named ``SCHEMES``: a number format, the blocks that share a scale, and its choice and
storage."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from explorer.formats import IntegerFormat
from explorer.formats.packing import packed_row_bytes
from explorer.formats.rounding import Rounding
from explorer.schemes.calibrators import Calibrator
from explorer.schemes.labels import custom_label, sentence
from explorer.schemes.named import ALIASES, NAMES, ROWS, STORED_BY
from explorer.schemes.names import named
from explorer.schemes.parts import SEPARATOR, SchemeParts
from explorer.schemes.rules import NESTED_BLOCK, SUPER_BLOCK, Convention, MappingType
from explorer.schemes.text import LONGEST, check_ascii, read, unlisted

_PLAIN = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class BitBudget:
    """Storage bits per element by part. ``padding`` fills each row's last byte; ``added`` is a method's extra
    storage: transforms and residues."""

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
class Scheme(SchemeParts):
    """A quantization scheme. ``scale`` None casts without scaling.

    ``least_squares_scale`` replaces each scale, after the codes are chosen, by the one with the least squared
    error for them. ``seed`` (0 ... 2^64 - 1) switches to stochastic rounding. ``codes`` is the rule for
    rounding codes, where libraries differ. Wrong combinations raise ``ValueError``.

    ``flat``: blocks (None, n) are runs of n elements of the flattened tensor, across the ends of rows
    (bitsandbytes); only the last one of the tensor may be shorter.

    ``text`` spells the scheme out in the grammar of ``schemes.text``; ``str(scheme)`` is the name of the row
    of ``SCHEMES`` with the same parts where there is one, else ``text``. ``Scheme.parse`` reads both.
    """

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """Parse a scheme's name or text; the grammar is in ``schemes.text``.

        >>> Scheme.parse("int4~1x48~asymmetric~bfloat16~mse").block
        (1, 48)

        Raises ``ValueError`` that names the wrong part of the text and the accepted values.
        """
        text = text.strip()
        return _parse(text) if len(text) <= LONGEST else _parse.__wrapped__(text)  # an error is not kept

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as text, name and label where the text can be read back: a row of ``SCHEMES`` stays it."""
        if unlisted(self):
            return super().__reduce_ex__(protocol)
        return scheme_called, (self.text, self.name, self.label)

    def __str__(self) -> str:
        return self.text if unlisted(self) else NAMES.get(self.text, self.text)

    def with_ranges_by(self, calibrator: Calibrator) -> Scheme:
        """Replace the calibrator; scales from llama.cpp's search become those of ranges.

        ``ValueError`` if the calibrator does not go with the scheme.
        """
        scale = self.scale if self.scale is None or calibrator is self.calibrator else self.scale.of_ranges
        return dataclasses.replace(self, name="", calibrator=calibrator, scale=scale)

    @property
    def of_ranges(self) -> Scheme:
        """The same scheme with scales from ranges instead of llama.cpp's search."""
        return dataclasses.replace(self, name="", scale=self.scale and self.scale.of_ranges)

    @property
    def plain_dtype(self) -> torch.dtype | None:
        """The dtype of a cast to bfloat16, float16 or float32, which files store as it is; None for all other
        schemes."""
        return _PLAIN.get(self.format.name) if self.scale is None else None

    @property
    def rounding(self) -> Rounding:
        return self.codes.rounding(self.seed)

    @property
    def codes_in_bfloat16(self) -> bool:
        """True if codes, too, are computed in BF16 under ``codes.bfloat16``. Below a tensor scale that
        divides (compressed-tensors' NVFP4) a block's scale is a float32 number, and so is x divided by it."""
        return self.codes.bfloat16 and not (self.scale is not None and self.scale.divides_by_tensor_scale)

    @property
    def first_code(self) -> int:
        """The code value that an offset stands for: that of the block's minimum, or 0."""
        fmt = self.format
        return fmt.qmin if isinstance(fmt, IntegerFormat) and self.mapping is MappingType.MINIMUM else 0

    @property
    def code_limits(self) -> tuple[float, float]:
        """The smallest and largest code value that quantization may produce."""
        if isinstance(self.format, IntegerFormat) and self.mapping is not MappingType.SYMMETRIC:
            return self.format.qmin, self.format.qmax
        if isinstance(self.format, IntegerFormat):
            return -self.format.qmax, self.format.qmax
        return self.format.min, self.format.max

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """The numbers of blocks along the rows' axis and the columns' axis of a tensor of ``shape``."""
        rows, columns = shape
        height, width = self.block
        if self.flat and width:
            return 1, _ceil_div(rows * columns, width)
        return _ceil_div(rows, height or max(rows, 1)), _ceil_div(columns, width or max(columns, 1))

    def bits_per_element(self, shape: tuple[int, int]) -> BitBudget:
        """Storage bits per element of a tensor of ``shape``, itemised."""
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

    def shortened(self, shape: tuple[int, int]) -> str:
        """A note on tensors of ``shape`` with a shorter last super-block in each row, which no GGUF file has;
        otherwise empty."""
        if self.scale is None or shape[1] % SUPER_BLOCK == 0:
            return ""
        blocks = "super-blocks" if self.scale.super_bits is not None else ""
        if self.block == (1, SUPER_BLOCK) and self.scale.convention is Convention.ZERO:
            blocks = "blocks"
        if not blocks:
            return ""
        return (
            f"a row of {shape[1]} values is no whole number of {blocks} of {SUPER_BLOCK}: no GGUF file holds "
            "it, and the bits count a shorter last one"
        )

    def _bits_above(self, shape: tuple[int, int]) -> int:
        """Bits of the level above the block scales."""
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

    def describe(self) -> str:
        """Describe the scheme in one sentence: the stored value, the block that shares a scale, and the
        library that stores exactly this."""
        return sentence(self, STORED_BY.get(self.text, ""))


def _scheme_of(parts: SchemeParts) -> Scheme:
    given = {row.name: getattr(parts, row.name) for row in dataclasses.fields(parts) if row.init}
    return Scheme(**given)


SCHEMES: dict[str, Scheme] = {name: _scheme_of(row) for name, row in ROWS.items()}


@lru_cache(4096)
def _parse(text: str) -> Scheme:
    """Parse a text; parts equal to a row of ``SCHEMES`` give that row."""
    check_ascii(text)
    name = ALIASES.get(text.lower(), text.lower())
    if name in SCHEMES:
        return SCHEMES[name]
    parts = read(text) if SEPARATOR in text else named(name)
    if parts.text in NAMES:
        return SCHEMES[NAMES[parts.text]]
    return _scheme_of(dataclasses.replace(parts, name=parts.text, label=custom_label(parts)))


def scheme_called(text: str, name: str, label: str) -> Scheme:
    """Rebuild a pickled scheme from its text, name and label."""
    scheme = Scheme.parse(text)
    if (scheme.name, scheme.label) == (name, label):
        return scheme
    return dataclasses.replace(scheme, name=name, label=label)


def label_of_text(text: str) -> str:
    """The label of the scheme that ``text`` names or spells; ``text`` itself if it cannot be read (a
    recording of a removed row)."""
    try:
        return Scheme.parse(text).label
    except ValueError:
        return text


def todays_text(text: str) -> str:
    """Rewrite ``text``, perhaps from a file of an earlier version, as ``str(Scheme)`` writes it today;
    unchanged if it cannot be read."""
    try:
        return str(Scheme.parse(text))
    except ValueError:
        return text


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
