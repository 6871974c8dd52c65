"""The conformance recordings as Markdown: tables with numbered reasons, and the facts between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from explorer.schemes import Scheme
from lab.conformance.cases import ALL, ALL_BF16
from lab.conformance.compare import EVERYWHERE, Conformance
from lab.conformance.records import Crossover
from lab.tables import markdown

COLUMNS = (
    "scheme", "under the convention", "their function", "verdict", "codes", "of them differ", "scales",
    "of them differ",
)  # fmt: skip
MODEL = (ALL, ALL_BF16)
"""The cases of real weights."""
DECODED = ("scheme", "their function", "verdict", "decoded values", "of them differ")


def packages(rows: Iterable[Conformance]) -> list[str]:
    """The packages compared with, and their versions: "torchao 0.18.0"."""
    return list(dict.fromkeys(f"{row.package} {row.version}" for row in rows))


def conformance_table(rows: Sequence[Conformance], package: str) -> str:
    """The rows of one of ``packages``, those that only decode in a table of their own, and below them the
    reasons that verdicts give by number, with their bounds."""
    own = [row for row in rows if f"{row.package} {row.version}" == package]
    reasons = {why: n for n, why in enumerate(dict.fromkeys(w for row in own for w in _shown(row)), 1)}
    encoded, decoded = ([row for row in own if row.decodes is kind] for kind in (False, True))
    parts = [markdown(COLUMNS, [_cells(row, reasons) for row in encoded])] if encoded else []
    if decoded:
        parts += ["Decoded only:", markdown(DECODED, [_decoded_cells(row, reasons) for row in decoded])]
    parts += ["\n".join(f"{n}. {why[0].upper()}{why[1:]}." for why, n in reasons.items())] if reasons else []
    return "\n\n".join(parts)


def _cells(row: Conformance, reasons: dict[str, int]) -> list[str]:
    total = row.total
    counts = (total.codes, total.different_codes, total.scales, total.different_scales)
    name, verdict = f"`{Scheme.parse(row.name)}`", _verdict(row, reasons)
    return [name, row.convention, row.function, verdict, *(f"{n:,}" for n in counts)]


def _decoded_cells(row: Conformance, reasons: dict[str, int]) -> list[str]:
    counts = (row.total.values, row.total.different_values)
    name, verdict = f"`{Scheme.parse(row.name)}`", _verdict(row, reasons)
    return [name, row.function, verdict, *(f"{n:,}" for n in counts)]


def _verdict(row: Conformance, reasons: dict[str, int]) -> str:
    numbers = ", ".join(str(reasons[why]) for why in _shown(row))
    return f"{row.verdict} ({numbers})" if numbers else row.verdict


def _shown(row: Conformance) -> list[str]:
    """The reasons that count, with their bounds: of the cases that were compared and differ."""
    cases = {count.case for count in row.counts if not count.equal} | {EVERYWHERE}
    shown = (named for case, named in row.differs.items() if case in cases)
    return list(dict.fromkeys(f"{named.why} ({named.words})" for named in shown))


@dataclass(frozen=True)
class Totals:
    """Number of rows, of rows equal in all cases, of rows that differ by a convention everywhere (the
    others are equal except in some cases), and of compared codes; of rows that are equal on real weights,
    in float32 and in BF16; of rows that only decode, and of the values that they compare."""

    rows: int
    equal: int
    differ: int
    codes: int
    on_model: int
    decoded: int
    values: int

    @property
    def encoded(self) -> int:
        """Rows that compare codes."""
        return self.rows - self.decoded

    @property
    def partly(self) -> int:
        """Rows of these that are equal except in named cases."""
        return self.encoded - self.equal - self.differ


def totals(rows: Sequence[Conformance]) -> Totals:
    """Counted over all rows by their verdicts."""
    differ = sum(row.verdict == "differs" for row in rows)
    equal = sum(row.verdict == "equal" for row in rows)
    codes, values = (sum(getattr(row.total, name) for row in rows) for name in ("codes", "values"))
    on_model = sum(all(c.equal for c in row.counts if c.case in MODEL) for row in rows if not row.decodes)
    return Totals(len(rows), equal, differ, codes, on_model, sum(row.decodes for row in rows), values)


def crossover_table(rows: Sequence[Crossover]) -> str:
    """A row a block size; the better SQNR is bold."""
    return markdown(
        ["block", "NF4, dB", "NF4, bits", "asymmetric INT4, dB", "asymmetric INT4, bits"],
        [
            [
                str(row.block),
                _bold(row.nf4_db, row.nf4_db > row.int4_db),
                f"{row.nf4_bits:.3f}",
                _bold(row.int4_db, row.int4_db > row.nf4_db),
                f"{row.int4_bits:.3f}",
            ]
            for row in rows
        ],
    )


def _bold(value: float, bold: bool) -> str:
    return f"**{value:.2f}**" if bold else f"{value:.2f}"


def first_block_of_nf4(rows: Sequence[Crossover]) -> int | None:
    """The smallest block from which on NF4 has the higher SQNR; None if there is none."""
    better = [row.block for row in rows if row.nf4_db > row.int4_db]
    return better[0] if better and better == [row.block for row in rows if row.block >= better[0]] else None
