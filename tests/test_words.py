"""Numbers as people read them, and names that are text and nothing else.

If these fail, the page says "2.11e+03 µs" or "1.024k", or rounds a number into the wrong unit, or a name of
a stranger's file clears the terminal.
"""

from __future__ import annotations

import math

import pytest

from explorer import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1520.4, "1,520"),
        (2110, "2,110"),
        (0.03517, "0.0352"),
        (999.6, "1,000"),
        (99.96, "100"),
        (-0.5, "−0.5"),
        (1e6, "1,000,000"),
        (1.2e-7, "1.2 × 10⁻⁷"),
        (-9.996e-7, "−1 × 10⁻⁶"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "not a number"),
    ],
)
def test_numbers_have_three_digits_and_no_exponents(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.2e-10, "0.32 ns"),
        (35.47e-6, "35.5 µs"),
        (2.11e-3, "2.11 ms"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1 ms"),
        (0.99951, "1 s"),
        (1.2, "1.2 s"),
        (59.4, "59.4 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (math.inf, "∞ s"),
    ],
)
def test_durations_stand_in_the_unit_that_they_are_read_in(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999, "999 B"),
        (8_388_608, "8.39 MB"),
        (999_999, "1 MB"),
        (141e9, "141 GB"),
    ],
)
def test_sizes_are_powers_of_1000(size: float, text: str) -> None:
    assert words.bytes_(size) == text


def test_counts_and_factors_have_separators() -> None:
    assert words.count(1024) == "1,024" and words.count(-5) == "−5"
    assert words.times(1520.3) == "1,520×" and words.times(1.0712) == "1.07×"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blk.0.attn_q.weight", "blk.0.attn_q.weight"),
        ("größe 重み", "größe 重み"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("a\u202eb\u2066\u200b", r"a\u202eb\u2066\u200b"),
        ("\ud800\u2028\U000e0001", r"\ud800\u2028\U000e0001"),
    ],
)
def test_names_are_text(name: str, text: str) -> None:
    assert words.plain(name) == text and text.isprintable()


def test_long_names_are_cut() -> None:
    assert words.plain("abc", 3) == "abc" and words.plain("abcd", 3) == "abc…"
    assert words.plain("\n\n\n", 3) == r"\n\…" and len(words.plain("\n" * 9999, 80)) == 81


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tiny-llama_v1", "`tiny-llama_v1`"),
        ("a`b", "``a`b``"),
        ("`a``", "``` `a`` ```"),
        ("", "` `"),
        (" a ", "`  a  `"),
        ("<b>[a](b)|", "`<b>[a](b)|`"),
        ("a\n\n# b", r"`a\n\n# b`"),
    ],
)
def test_names_in_markdown_are_code(name: str, text: str) -> None:
    """Inside a span nothing else begins: no link, no tag, no heading."""
    assert words.code(name) == text


def test_a_part_is_neither_nothing_nor_all() -> None:
    shares = {
        0.37: "37 %",
        0.9951: "99.5 %",
        0.9996: "more than 99.9 %",
        0.001: "0.1 %",
        0: "0 %",
        1: "100 %",
    }
    assert {share: words.percent(share) for share in shares} == shares
