"""The answer and the shortlist. If these fail, the first sentence says another thing than the table below."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from explorer import SCHEMES, ComparisonRow, compare, quantize
from explorer.analysis.answer import answer
from explorer.analysis.goals import goal_of
from explorer.analysis.report import Report
from explorer.analysis.shortlist import Candidate, RowTime, storage
from explorer.schemes import BitBudget
from tests.covering import EACH_SCHEME

BASE = compare(torch.ones(2, 64), quantize(torch.ones(2, 64), SCHEMES["int4_group32"]))


def report(sqnr_db: float, bits: float) -> Report:
    return dataclasses.replace(BASE, sqnr_db=sqnr_db, bits=BitBudget(bits, 0, 0, 0, 0), zeroed=0.0)


def candidate(name: str, sqnr_db: float, bits: float, *seconds: float) -> Candidate:
    times = tuple(RowTime(t, s) for t, s in zip((1, 4096), seconds, strict=False))
    return Candidate(name, SCHEMES[name].label, report(sqnr_db, bits), times=times)


INT4 = ("int4_group128_asym", 19.47, 4.156)
PAIRS = [
    (("nvfp4", 20.5, 4.5), ("NVFP4 has an SQNR 1.0 dB higher than", "with 0.34 more bits")),
    (("mxfp4", 18.6, 4.25), ("MXFP4 has an SQNR 0.9 dB lower than", "with 0.09 more bits")),
    (("q3_k", 16.5, 3.46), ("GGUF Q3_K has an SQNR 3.0 dB lower than", "with 0.70 fewer bits")),
    (("nf4_block64", 19.5, 4.5), ("NF4 block 64 has the same SQNR as", "with 0.34 more bits")),
    (("nvfp4_four_over_six", 20.1, 4.156), ("an SQNR 0.6 dB higher than", "at the same size")),
    (("fp32", math.inf, 32.0), ("19.5 dB at 4.16 bits", "FP32: exact, at 32.00 bits")),
]


def test_b_against_a() -> None:
    """Differences in decibels and bits, and the scheme that they are compared with."""
    for b, facts in PAIRS:
        said = str(answer(candidate(*INT4), candidate(*b)))
        assert [fact for fact in (*facts, "INT4 group 128, asymmetric") if fact not in said] == [], said
    slow, fast = candidate(*INT4, 3e-6, 1.01e-4), candidate("nvfp4", 20.5, 4.5, 2e-6, 1e-4)
    said = str(answer(slow, fast))
    assert "1.5× faster at 1 token" in said and "as fast at 4,096 tokens" in said


def test_what_beats_both_is_named() -> None:
    """A sentence on A and B alone reads as advice to take one of them, where a third is better than both."""
    better, worse = ("nf4_block64_double", 20.6, 4.13), ("int4_group64", 20.57, 4.25)
    rows = [ComparisonRow(SCHEMES[n], report(db, bits)) for n, db, bits in (INT4, better, worse)]
    said = answer(candidate(*INT4), candidate("nvfp4", 20.5, 4.5), rows)
    assert "doubly quantized" in said.better and "0.1 dB higher" in said.better
    assert not answer(candidate(*INT4), candidate("nvfp4", 20.7, 4.5), rows).better


def test_a_alone_among_the_others() -> None:
    """The best within its bits, or within the goal's, and by how much."""
    rows = [
        ComparisonRow(SCHEMES[n], report(db, bits)) for n, db, bits in (INT4, ("int4_group64", 20.57, 4.15))
    ]
    for others, goal, facts in (
        (rows, "", ("at most 4.16 bits is INT4 group 64, 1.1 dB higher",)),
        (rows[:1], "", ("the highest SQNR of schemes with at most 4.16 bits",)),
        (rows, "at-most-4.25", ("at most 4.25 bits is INT4 group 64, 1.1 dB higher",)),
        ([], "", ("19.5 dB at 4.16 bits.",)),
    ):
        given = goal_of(goal, (1536, 384)) if goal else None
        said = str(answer(candidate(*INT4), None, others, given))
        assert [fact for fact in ("19.5 dB at 4.16 bits", *facts) if fact not in said] == [], said


def test_what_was_measured_elsewhere_is_a_footnote_that_says_where() -> None:
    said = answer(candidate(*INT4), candidate("nvfp4", 20.5, 4.5)).footnote
    assert "all-MiniLM-L6-v2" in said and "0.96 to 0.97 (A) and 0.97 to 0.98 (B)" in said
    assert "(A)" not in answer(candidate(*INT4)).footnote
    assert answer(candidate("fp32", math.inf, 32)).footnote == ""


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_storage_is_known_before_anything_is_quantized(name: str) -> None:
    """What a row says while its error is computed is what it says afterwards."""
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(0))
    report = compare(x, quantize(x, SCHEMES[name]))
    assert storage(SCHEMES[name], (40, 512)) == (report.bits.total, report.nbytes)
