"""One scheme and one outside implementation: on which cases codes and scales are the same, bit for bit, and
how far they are apart where a difference is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor, quantize
from explorer.schemes import Scheme
from lab.conformance.differences import Difference, Distance, codes_apart, numbers_apart, steps_apart
from lab.conformance.outside import Outside, Quantizer, version_of

EVERYWHERE = "everywhere"
EQUAL = Difference("")
"""The bound of a case that no difference is named for: nothing differs."""


@dataclass(frozen=True)
class Row:
    """A scheme (``name``: a row of ``SCHEMES`` or a text) and ``function`` of an outside ``package``.

    ``text``: the scheme compared, where that is not ``name`` but follows a ``convention`` of theirs.
    ``differs``: the cases in which they do not agree, why, and by how much at most; under ``EVERYWHERE`` a
    difference that shows in some of the other cases, by which values fall close to ties. ``halves``: the
    schemes compared for values of BF16 and FP16, where the package computes in the dtype of its values.
    ``row_length``: matrices are compared as rows of so many values, where the package asks for that.
    """

    name: str
    package: str
    function: str
    quantize: Quantizer
    text: str = ""
    convention: str = ""
    differs: Mapping[str, Difference] = field(default_factory=dict)
    halves: Mapping[torch.dtype, str] = field(default_factory=dict)
    row_length: int | None = None

    def __post_init__(self) -> None:
        if bool(self.text) != bool(self.convention):
            raise ValueError(f"{self.name}, {self.function}: a text other than the name has a convention")

    @property
    def scheme(self) -> Scheme:
        return Scheme.parse(self.text or self.name)

    def bound_of(self, case: str) -> Difference:
        """Return the bound for ``case``, or the one for all unnamed cases."""
        return self.differs.get(case, self.differs.get(EVERYWHERE, EQUAL))

    def both(self, x: Tensor) -> tuple[QuantizedTensor, Outside]:
        """``x`` quantized here and there, in rows of the length that the package asks for."""
        x = x if self.row_length is None else x.reshape(-1, self.row_length)
        text = self.halves.get(x.dtype)
        return quantize(x, Scheme.parse(text) if text else self.scheme), self.quantize(x)


@dataclass(frozen=True)
class Count:
    """Counts of one case, and how many of each differ.

    codes    compared codes
    values   values that the package restored from our codes: nothing of its own rounding is compared
    scales   with zero points (``zero_points`` of them), minimums and tensor scales
    outside  codes that differ in other blocks than those that a difference is named for

    ``apart`` says how far what differs is apart, codes or values, and scales; None where nothing differs.
    """

    case: str
    codes: int
    different_codes: int
    scales: int
    different_scales: int
    values: int = 0
    different_values: int = 0
    zero_points: int = 0
    apart: Distance | None = None
    outside: int = 0

    @property
    def equal(self) -> bool:
        return not (self.different_codes or self.different_values or self.different_scales)

    def __add__(self, other: Count) -> Count:
        return Count(
            self.case,
            self.codes + other.codes,
            self.different_codes + other.different_codes,
            self.scales + other.scales,
            self.different_scales + other.different_scales,
            self.values + other.values,
            self.different_values + other.different_values,
            self.zero_points + other.zero_points,
            other.apart
            if self.apart is None
            else self.apart
            if other.apart is None
            else self.apart + other.apart,
            self.outside + other.outside,
        )

    def beyond(self, bound: Difference) -> list[str]:
        """Describe the excess over ``bound`` and the expected values; empty if there is none."""
        apart = self.apart or Distance()
        counts = (
            ("codes", self.different_codes, self.codes, bound.codes),
            ("restored values", self.different_values, self.values, bound.codes),
            (
                "scales",
                self.different_scales - apart.moved,
                self.scales - self.zero_points,
                bound.scales,
            ),
            ("zero points", apart.moved, self.zero_points, bound.moved),
        )
        found = [
            f"{different:,} of {of:,} {what} differ, {_at_most(share, of)} expected"
            for what, different, of, share in counts
            if different > _limit(share, of)
        ]
        if self.outside:
            found.append(f"{self.outside:,} codes differ in blocks that the reason does not hold for")
        return found + apart.beyond(bound)


def _limit(share: float, of: int) -> int:
    return int(share * of + 1e-9)


def _at_most(share: float, of: int) -> str:
    return f"at most {_limit(share, of):,}" if share else "none"


@dataclass(frozen=True)
class Conformance:
    """A row of the table with what was counted. ``scheme`` is the text that was compared, ``name`` the scheme
    that it stands for; ``halves`` holds the texts compared for values of other dtypes than float32."""

    name: str
    scheme: str
    halves: dict[str, str]
    package: str
    version: str
    function: str
    convention: str
    differs: dict[str, Difference]
    counts: tuple[Count, ...]

    @property
    def total(self) -> Count:
        return sum(self.counts[1:], self.counts[0])

    @property
    def decodes(self) -> bool:
        """True if the package only restores values from our codes."""
        return self.total.values > 0

    @property
    def verdict(self) -> str:
        """ "equal", "equal but for zeros", "differs"; "decoded" in place of "equal" where the package only
        restores values from our codes."""
        word = "decoded" if self.decodes else "equal"
        if self.total.equal:
            return word
        if EVERYWHERE in self.differs:
            return "differs"
        return f"{word} but for {'; '.join(count.case for count in self.counts if not count.equal)}"

    @property
    def surprises(self) -> list[str]:
        """Deviations from the table; empty if there are none."""
        named = [count for count in self.counts if count.case in self.differs]
        others = [count for count in self.counts if count.case not in self.differs]
        surprises = [f"{count.case}: equal, stated to differ" for count in named if count.equal]
        if EVERYWHERE in self.differs and others and all(count.equal for count in others):
            surprises.append("equal in every case that is not named, stated to differ")
        rest = self.differs.get(EVERYWHERE, EQUAL)
        for count in self.counts:
            surprises += [
                f"{count.case}: {text}" for text in count.beyond(self.differs.get(count.case, rest))
            ]
        return surprises


def conformance(row: Row, cases: Iterable[tuple[str, Tensor]]) -> Conformance:
    """Compare on every case; cases of one name are counted together. ``ValueError`` without the package."""
    version, counts = version_of(row.package), dict[str, Count]()
    for case, x in cases:
        count = compare_codes(*row.both(x), case, row.bound_of(case).under)
        counts[case] = counts[case] + count if case in counts else count
    return result_of(row, version, counts.values())


def result_of(row: Row, version: str, counts: Iterable[Count]) -> Conformance:
    """``row`` with what was counted against ``version`` of its package."""
    return Conformance(
        row.name,
        str(row.scheme),
        {str(dtype).removeprefix("torch."): text for dtype, text in row.halves.items()},
        row.package,
        version,
        row.function,
        row.convention,
        dict(row.differs),
        tuple(counts),
    )


def run(rows: Iterable[Row], cases: Iterable[tuple[str, Tensor]]) -> Iterator[Conformance]:
    """Yield each row's result as soon as it is counted; the caller may show progress, and stop."""
    cases = list(cases)
    for row in rows:
        yield conformance(row, cases)


def compare_codes(
    ours: QuantizedTensor, theirs: Outside, case: str = "", under: tuple[float, float] | None = None
) -> Count:
    """Count what differs, and measure by how much; ``under`` as a ``Difference`` has it. ``ValueError`` where
    shapes do not match, or only one side has scales or zero points: a row of the table is wrong then."""
    if theirs.restored is not None:
        mine = ours.dequantize()
        _check_shapes(mine, theirs.restored)
        differ = int((mine != theirs.restored).sum())
        apart = numbers_apart(mine, theirs.restored) if differ else None
        return Count(case, 0, 0, 0, 0, mine.numel(), differ, 0, apart)
    if theirs.codes is None:
        raise ValueError(f"there is nothing to compare {ours.scheme.text} with")
    mask = 2**ours.scheme.format.bits - 1
    mine, other = ours.codes.long() & mask, theirs.codes.long() & mask
    _check_shapes(mine, other)
    scales, apart = list(_scale_pairs(ours, theirs)), codes_apart(mine, other, ours.scheme.format)
    for one, another in scales:
        _check_shapes(one, another)
        apart += numbers_apart(one, another) if one.is_floating_point() else steps_apart(one, another)
    count = Count(
        case,
        mine.numel(),
        int((mine != other).sum()),
        sum(one.numel() for one, _ in scales),
        sum(int((one != another).sum()) for one, another in scales),
        zero_points=sum(one.numel() for one, _ in scales if not one.is_floating_point()),
        outside=0 if under is None else _outside(ours, mine != other, under),
    )
    return count if count.equal else replace(count, apart=apart)


def _outside(ours: QuantizedTensor, differ: Tensor, under: tuple[float, float]) -> int:
    """Count the codes marked in ``differ``, bool [rows, columns], in blocks with a scale outside
    ``under``."""
    least, most = under
    scale = ours.scales.scale if ours.scales.unrounded is None else ours.scales.unrounded
    beyond = (scale.abs() < least) | (scale.abs() > most)
    rows, columns = differ.shape
    tall, wide = (-(-side // cells) for side, cells in zip(differ.shape, beyond.shape, strict=True))
    if not ours.scheme.flat:
        tall, wide = (side or whole for side, whole in zip(ours.scheme.block, differ.shape, strict=True))
    spread = beyond.repeat_interleave(tall, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
    return int((differ & spread).sum())


def _check_shapes(mine: Tensor, other: Tensor) -> None:
    if mine.shape != other.shape:
        raise ValueError(f"shapes {tuple(mine.shape)} and {tuple(other.shape)} cannot be compared")


def _scale_pairs(ours: QuantizedTensor, theirs: Outside) -> Iterator[tuple[Tensor, Tensor]]:
    """Our tensor and theirs: scales, zero points or minimums, and the tensor scale. ``ValueError`` where one
    side has scales, zero points or minimums and the other has none."""
    mine, scheme = ours.scales, ours.scheme
    pairs = (
        (scheme.scale is not None, theirs.scales),
        (mine.zero_points is not None, theirs.zero_points),
        (mine.offsets is not None, theirs.minimums),
    )
    if any(here != (there is not None) for here, there in pairs):
        raise ValueError(
            f"{scheme.text} and what it is compared with do not both have scales, zero points or minimums"
        )
    if theirs.scales is not None:
        yield mine.stored if mine.upper is None else mine.scale, theirs.scales.float()
    if theirs.zero_points is not None and mine.zero_points is not None:
        yield mine.zero_points.long(), theirs.zero_points.long()
    if theirs.minimums is not None and mine.offsets is not None:
        yield mine.offsets, theirs.minimums
    if theirs.tensor_scale is not None or mine.tensor_scale is not None:
        one = torch.ones(1)
        yield _or(mine.tensor_scale, one), _or(theirs.tensor_scale, one)


def _or(scale: Tensor | None, otherwise: Tensor) -> Tensor:
    return otherwise if scale is None else scale.float().reshape(1)
