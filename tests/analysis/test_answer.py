"""The answer and the shortlist. If these fail, the first sentence says another thing than the table below."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from explorer import SCHEMES, ComparisonRow, compare, quantize
from explorer.analysis.answer import answer
from explorer.analysis.goals import GOALS, goal_of
from explorer.analysis.report import Report
from explorer.analysis.shortlist import TOKENS, Candidate, Race, RowTime, storage
from explorer.schemes import BitBudget
from tests.covering import EACH_SCHEME

BASE = compare(torch.ones(2, 64), quantize(torch.ones(2, 64), SCHEMES["int4_group32"]))


def report(sqnr_db: float, bits: float) -> Report:
    return dataclasses.replace(BASE, sqnr_db=sqnr_db, bits=BitBudget(bits, 0, 0, 0, 0), zeroed=0.0)


def candidate(name: str, sqnr_db: float, bits: float, **more: Any) -> Candidate:
    return Candidate(name, SCHEMES[name].label, report(sqnr_db, bits), **more)


INT4 = ("int4_group128_asym", 19.47, 4.156)
VLLM = {"held": ("compressed-tensors (vLLM)",)}
PAIRS = [
    (
        ("nvfp4", 20.5, 4.5),
        "NVFP4: +1.0 dB for 8.3 % more bytes than INT4 group 128, asymmetric; opens in vLLM.",
    ),
    (
        ("mxfp4", 18.6, 4.25),
        "INT4 group 128, asymmetric: +0.9 dB in 2.2 % fewer bytes than MXFP4; opens in vLLM.",
    ),
    (
        ("nf4_block64", 19.5, 4.5),
        "INT4 group 128, asymmetric: the same dB in 7.6 % fewer bytes than NF4 block 64; o",
    ),
    (("nvfp4_four_over_six", 20.1, 4.156), "+0.6 dB in as many bytes as INT4 group 128"),
    (("int8_row", 40.0, 8.5), "INT8 per row: +20.5 dB for 2 times the bytes of INT4"),
    (("fp32", math.inf, 32.0), "asymmetric: 19.5 dB at 4.16 bits; FP32: exact, at 32.00 bits."),
]


def test_the_better_one_is_named_with_what_it_costs() -> None:
    """Decibels, bytes, and where it opens: by whichever side, and by the output where that is measured."""
    for b, said in PAIRS:
        pair = candidate(*INT4, **VLLM), candidate(*b, **VLLM)
        assert said in str(answer(*pair)) and (b[0] == "fp32" or said in str(answer(*pair[::-1])))
    near = dataclasses.replace(candidate("nvfp4", 20.5, 4.5), share=0.1, unheld="777 is not a multiple of 16")
    said = str(answer(candidate(*INT4, **VLLM), near))
    assert "≈ +1.0 dB" in said and said.endswith(
        "; no engine loads it (777 is not a multiple of 16), INT4 group 128, asymmetric opens in vLLM."
    )
    said = str(answer(candidate(*INT4), candidate("nvfp4", 20.5, 4.5), outputs=(30.0, 28.0)))
    assert said.startswith(
        "INT4 group 128, asymmetric: +2.0 dB in the layer’s output, on held-out inputs, in 7.6 %"
    )
    assert "30.0 dB in the layer’s output" in str(answer(candidate(*INT4), outputs=(30.0,)))


def raced(at: tuple[int, int] = (4096, 4096), near: bool = True, **microseconds: tuple[float, ...]) -> Race:
    """Times at 1, 64 and 4,096 tokens, each within 1 %."""

    def times(all_of: tuple[float, ...]) -> tuple[RowTime, ...]:
        pairs = zip(TOKENS, all_of, strict=True)
        return tuple(RowTime(n, s or None, "nearest", "", 0.99 * s, 1.01 * s) for n, s in pairs)

    bf16 = times(microseconds.pop("bf16"))
    return Race(at, near, "H200", TOKENS, {name: times(s) for name, s in microseconds.items()}, bf16)


def test_times_are_compared_where_they_rank() -> None:
    """With each other at one token, and with BF16 up to where neither is faster: what is within their spread
    is no difference, and times of a much larger weight say nothing."""
    pair = candidate(INT4[0], 19.5, 4.16), candidate("nvfp4", 20.5, 4.5)
    bf16 = (40.0, 40.0, 700.0)
    first, at_4096 = "At one token INT4 is 1.1 times as fast", "from 4,096 tokens on"
    for a, b, words in (
        (
            (10, 20, 720),
            (11, 22, 710),
            f"{first}; {at_4096} neither beats BF16 (times of 4,096\xa0×\xa04,096).",
        ),
        (
            (11, 20, 720),
            (11.1, 41, 600),
            "they are about as fast; at 4,096 tokens the faster one is 1.2 times",
        ),
        ((50, 41, 720), (50, 41, 720), "from one token on neither beats BF16"),
        (
            (0, 0, 0),
            (20, 41, 720),
            "token NVFP4 is 2 times as fast as BF16; from 64 tokens on it is no faster",
        ),
        ((0, 0, 0), (0, 0, 0), ""),
    ):
        race = raced(bf16=bf16, int4_group128_asym=a, nvfp4=b)
        assert words in (said := str(answer(*pair, race=race))), said
    assert "token" not in said
    far = raced(near=False, bf16=bf16, int4_group128_asym=(1, 2, 3), nvfp4=(3, 2, 1))
    assert "token" not in str(answer(*pair, race=far)) and "token" not in str(answer(pair[0], race=far))
    alone = str(answer(pair[0], race=raced(bf16=bf16, int4_group128_asym=(10, 20, 720))))
    assert "it is 4 times as fast as BF16; from 4,096 tokens on it is no faster" in alone


def test_what_beats_both_is_named() -> None:
    """A sentence on A and B alone reads as advice to take one of them, where a third is better than both."""
    better, worse = ("nf4_block64_double", 20.6, 4.13), ("int4_group64", 20.57, 4.25)
    rows = [ComparisonRow(SCHEMES[n], report(db, bits)) for n, db, bits in (INT4, better, worse)]
    said = answer(candidate(*INT4), candidate("nvfp4", 20.5, 4.5), rows)
    assert "doubly quantized" in said.better and "0.1 dB higher" in said.better
    assert not answer(candidate(*INT4), candidate("nvfp4", 20.7, 4.5), rows).better
    fp8 = candidate("fp8_e4m3_row", 31.7, 8.03), candidate("fp8_e5m2_row", 25.0, 8.03)
    rows = [ComparisonRow(SCHEMES["int8_row"], report(40.0, 8.03))]
    assert answer(*fp8, rows).better and not answer(*fp8, rows, GOALS["fp8-inputs"]).better, "no FP8 product"


def test_a_alone_among_the_others() -> None:
    """The best within its bits, or within the goal's, and by how much."""
    rows = [
        ComparisonRow(SCHEMES[n], report(db, bits)) for n, db, bits in (INT4, ("int4_group64", 20.57, 4.15))
    ]
    for others, goal, facts in (
        (rows, "", ("at most 4.16 bits is INT4 group 64, 1.1 dB higher",)),
        (rows[:1], "", ("the highest SQNR of schemes with at most 4.16 bits",)),
        (rows, "at-most-4.25", ("at most 4.25 bits is INT4 group 64, 1.1 dB higher",)),
        ([], "", ("19.5 dB at 4.16 bits;",)),
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
