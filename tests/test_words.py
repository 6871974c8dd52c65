"""Numbers as people read them.

If these fail, the page says "2.11e+03 µs" or "1.024k", or rounds a number into the wrong unit.
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
