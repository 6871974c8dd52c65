"""One scheme and one outside implementation: on which cases codes and scales are the same, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor, quantize
from explorer.schemes import Scheme
from lab.conformance.outside import Outside, Quantizer, version_of

EVERYWHERE = "everywhere"


@dataclass(frozen=True)
class Row:
    """A scheme (``name``: a row of ``SCHEMES`` or a text) and ``function`` of an outside ``package``.

    ``text``: the scheme compared, where that is not ``name`` but follows a ``convention`` of theirs.
    ``differs``: the cases in which they do not agree, and why; under ``EVERYWHERE`` a reason that shows in
    some of the other cases, by which values fall close to ties. ``row_length``: matrices are compared as rows
    of so many values, where the package asks for that.
    """

    name: str
    package: str
    function: str
    quantize: Quantizer
    text: str = ""
    convention: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)
    row_length: int | None = None

    def __post_init__(self) -> None:
        if bool(self.text) != bool(self.convention):
            raise ValueError(f"{self.name}, {self.function}: a text other than the name has a convention")

    @property
    def scheme(self) -> Scheme:
        return Scheme.parse(self.text or self.name)


@dataclass(frozen=True)
class Count:
    """Counts of one case: compared codes (or dequantized values) and scales, including zero points and
    tensor scales, and the differences in each."""

    case: str
    codes: int
    different_codes: int
    scales: int
    different_scales: int

    @property
    def equal(self) -> bool:
        return not self.different_codes and not self.different_scales

    def __add__(self, other: Count) -> Count:
        return Count(
            self.case,
            self.codes + other.codes,
            self.different_codes + other.different_codes,
            self.scales + other.scales,
            self.different_scales + other.different_scales,
        )


@dataclass(frozen=True)
class Conformance:
    """A row of the table with what was counted. ``scheme`` is the text that was compared, ``name`` the scheme
    that it stands for."""

    name: str
    scheme: str
    package: str
    version: str
    function: str
    convention: str
    differs: dict[str, str]
    counts: tuple[Count, ...]

    @property
    def total(self) -> Count:
        return sum(self.counts[1:], self.counts[0])

    @property
    def verdict(self) -> str:
        """ "equal", "equal but for zeros", "differs"."""
        if self.total.equal:
            return "equal"
        if EVERYWHERE in self.differs:
            return "differs"
        return f"equal but for {', '.join(count.case for count in self.counts if not count.equal)}"

    @property
    def surprises(self) -> list[str]:
        """Deviations from the table; empty if there are none."""
        named = [count for count in self.counts if count.case in self.differs]
        others = [count for count in self.counts if count.case not in self.differs]
        surprises = [f"{count.case}: equal, stated to differ" for count in named if count.equal]
        if EVERYWHERE not in self.differs:
            return surprises + [
                f"{count.case}: {count.different_codes} codes and {count.different_scales} scales differ, "
                "stated to be equal"
                for count in others
                if not count.equal
            ]
        if others and all(count.equal for count in others):
            surprises.append("equal in every case that is not named, stated to differ")
        return surprises


def conformance(row: Row, cases: Iterable[tuple[str, Tensor]]) -> Conformance:
    """Compare on every case; cases of one name are counted together. ``ValueError`` without the package."""
    version, counts = version_of(row.package), dict[str, Count]()
    for case, x in cases:
        x = x if row.row_length is None else x.reshape(-1, row.row_length)
        count = compare_codes(quantize(x, row.scheme), row.quantize(x), case)
        counts[case] = counts[case] + count if case in counts else count
    return Conformance(
        row.name,
        str(row.scheme),
        row.package,
        version,
        row.function,
        row.convention,
        dict(row.differs),
        tuple(counts.values()),
    )


def run(rows: Iterable[Row], cases: Iterable[tuple[str, Tensor]]) -> Iterator[Conformance]:
    """Yield each row's result as soon as it is counted; the caller may show progress, and stop."""
    cases = list(cases)
    for row in rows:
        yield conformance(row, cases)


def compare_codes(ours: QuantizedTensor, theirs: Outside, case: str = "") -> Count:
    """Count what differs. ``ValueError`` where shapes do not match, or only one side has scales or zero
    points: a row of the table is wrong then."""
    codes = _code_pair(ours, theirs)
    scales = list(_scale_pairs(ours, theirs)) if theirs.restored is None else []
    for mine, other in (codes, *scales):
        if mine.shape != other.shape:
            raise ValueError(f"shapes {tuple(mine.shape)} and {tuple(other.shape)} cannot be compared")
    return Count(
        case,
        codes[0].numel(),
        int((codes[0] != codes[1]).sum()),
        sum(mine.numel() for mine, _ in scales),
        sum(int((mine != other).sum()) for mine, other in scales),
    )


def _code_pair(ours: QuantizedTensor, theirs: Outside) -> tuple[Tensor, Tensor]:
    """Our codes and theirs, or restored values; ``ValueError`` without either."""
    if theirs.restored is not None:
        return ours.dequantize(), theirs.restored
    if theirs.codes is None:
        raise ValueError(f"there is nothing to compare {ours.scheme.text} with")
    mask = 2**ours.scheme.format.bits - 1
    return ours.codes.long() & mask, theirs.codes.long() & mask


def _scale_pairs(ours: QuantizedTensor, theirs: Outside) -> Iterator[tuple[Tensor, Tensor]]:
    """Our tensor and theirs: scales, zero points or minimums, and the tensor scale. ``ValueError`` where one
    side has scales or zero points and the other has none."""
    mine, scheme = ours.scales, ours.scheme
    offsets = theirs.zero_points if theirs.zero_points is not None else theirs.minimums
    asymmetric = scheme.asymmetric or scheme.mapping.has_offset
    if (scheme.scale is None) != (theirs.scales is None) or (offsets is None) == asymmetric:
        raise ValueError(f"{scheme.text} and what it is compared with do not both have scales or zero points")
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
