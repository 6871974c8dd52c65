"""What the page says of one code: its formula, its neighbours, its flipped bits, for every format.

If these fail, the playground and the inspector explain a value that the code does not have.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from explorer import FORMATS
from explorer.formats.code import code_facts, flip_bit, parse_code

SMALL = [name for name, fmt in FORMATS.items() if fmt.bits <= 8]
WIDE = {"float16": np.float16, "float32": np.float32}
NUMBERS = (1.0, -1.0, 1.5, 2.0, -0.1, 3e-5, -3e-5, 6e4, 0.0)


def calculated(words: str) -> float:
    """The left side of a formula, as Python calculates it."""
    left = words.split(":")[-1].split(" = ")[0]
    for typed, meant in (("\u2212", "-"), ("\u00d7", "*"), ("\u00b7", "*"), ("^", "**")):
        left = left.replace(typed, meant)
    return float(eval(left))


@pytest.mark.parametrize("name", SMALL)
def test_the_formula_gives_the_value(name: str) -> None:
    """For every code: the sum or product that is shown, calculated; its neighbours are the next levels."""
    fmt = FORMATS[name]
    for code in range(fmt.code_count):
        facts = code_facts(fmt, code)
        if not math.isfinite(facts.value):
            assert "special" in facts.words
            continue
        if facts.words.startswith("level"):
            assert facts.words == f"level {code} of {fmt.code_count}: {facts.value:.9g}"
        else:
            assert calculated(facts.words) == facts.value, facts.words
        place = fmt.levels.index(facts.value)
        assert facts.below == (fmt.levels[place - 1] if place else None)
        assert facts.above == (fmt.levels[place + 1] if place + 1 < len(fmt.levels) else None)


@pytest.mark.parametrize("name", WIDE)
def test_neighbours_of_wide_formats_are_numpys(name: str) -> None:
    """The next numbers up and down, across powers of two, through zero and among subnormals; at the ends
    there is one."""
    kind, fmt = WIDE[name], FORMATS[name]
    for number in NUMBERS:
        facts = code_facts(fmt, parse_code(str(number), fmt))
        want = (np.nextafter(kind(number), kind(-math.inf)), np.nextafter(kind(number), kind(math.inf)))
        assert (facts.below, facts.above) == tuple(map(float, want)), number
        assert calculated(facts.words) == pytest.approx(float(kind(number)), rel=1e-6)
    top, bottom = (code_facts(fmt, parse_code(str(end), fmt)) for end in (fmt.max, -fmt.max))
    assert (top.above, bottom.below) == (None, None) and top.below == -bottom.above < fmt.max


def test_bits_are_flipped_one_at_a_time() -> None:
    """Bit 0 is the lowest; of ternary's two bits the code 3 is none."""
    assert [flip_bit(FORMATS["int4"], 0b1010, bit) for bit in range(4)] == [0b1011, 0b1000, 0b1110, 0b0010]
    assert [flip_bit(FORMATS["ternary"], 0, bit) for bit in (0, 1)] == [1, 2]
    with pytest.raises(ValueError, match="uses only codes 0 to 2"):
        flip_bit(FORMATS["ternary"], 1, 1)
    for bit in (4, -1, 0.5, True):
        with pytest.raises(ValueError, match="has bits 0 to 3"):
            flip_bit(FORMATS["int4"], 0, bit)
