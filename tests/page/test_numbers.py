"""The arithmetic of the page's own scripts against the library: equal to the last bit."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch

from app.learn import story
from app.learn.playground import format_facts
from explorer import QuantizedTensor, Range, Scheme, compare, quantize
from explorer.formats import FORMATS
from explorer.formats.code import NoNaNError, code_facts, parse_code
from tests.page.scripts import run_scripts

random.seed(0)
DOUBLES = [
    *(random.choice((-1, 1)) * 2 ** random.uniform(-160, 160) for _ in range(250)),
    *(random.gauss(0, 4) for _ in range(250)),
]
EDGES = [
    *(0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1.7976931348623157e308, 1e300, -1e300),
    *(1.06250001, 1.0625, 2.5 + 1e-12, 2.5, -2.5, 3.5, 0.5, -0.5, 0.1, 448.0, 464.0, 464.1, 65504.0, 65520.0),
    *(2.0**-149, 2.0**-150, 3 * 2.0**-151, 2.0**-127, 1.01 * 2.0**-127, 2.0**-126, 2.0**127, 1.5 * 2.0**127),
    *(3.4028234663852886e38, 3.4028235677973366e38, 3.402823567797336e38, -127.5, -128.5, 126.5, 127.5),
]
WORDS = ["3.25", "-0", "1e-3", "0b1", "0X1", "+inf", "-Infinity", "nan", ".5", "5.", "−2", "1_000"]
BAD_WORDS = ["", "pear", "0b2", "0xZZ", "1e", "0x1FFFFFFFF", "--1", "1,5", "0o7", "-0x1"]


def interesting(name: str) -> list[float]:
    """Every level of up to 8 bits, halfway to the next one, and the doubles on both sides of that."""
    fmt = FORMATS[name]
    if fmt.bits > 8:
        facts = [code_facts(fmt, random.randrange(fmt.code_count)) for _ in range(300)]
        pairs = [(f.value, f.above) for f in facts if f.above is not None]
    else:
        pairs = list(itertools.pairwise(fmt.levels))
    middles = [a / 2 + b / 2 for a, b in pairs]
    beside = [math.nextafter(middle, end) for middle in middles for end in (-math.inf, math.inf)]
    return [*(a for a, _ in pairs), *(b for _, b in pairs), *middles, *beside]


def by_page(function: str, name: str, argument: Any) -> Any:
    """What the page's scripts answer to ``argument`` for a format, from the facts that Python writes for
    them."""
    facts = next(facts for facts in format_facts() if facts["name"] == name)
    return run_scripts(("numbers",), function, [facts, argument])


def same(a: Any, b: Any) -> bool:
    """Equal, NaN and the sign of zero included."""
    if a is None or b is None or math.isnan(a) or math.isnan(b):
        return (a is None) == (b is None) and (a is None or (math.isnan(a) and math.isnan(b)))
    return a == b and math.copysign(1, a) == math.copysign(1, b)


@pytest.mark.parametrize("name", FORMATS)
def test_every_number_and_code_is_the_librarys(name: str) -> None:
    """Codes of numbers; values and neighbours of all codes of up to 8 bits, and of a thousand of the wider
    formats. If this fails, the playground shows a number that the library would not store."""
    fmt, numbers = FORMATS[name], [*EDGES, *DOUBLES, *interesting(name)]
    codes = (
        list(range(fmt.code_count)) if fmt.bits <= 8 else [0, 1, 2, fmt.code_count - 1, fmt.code_count // 2]
    )
    if fmt.bits > 8:
        codes += [random.randrange(fmt.code_count) for _ in range(1000)]
    encoded, decoded = by_page(
        """([format, [numbers, codes]]) => [numbers.map(x => explorer.numbers.encode(format, x)),
             codes.map(code => [explorer.numbers.decode(format, code),
             ...explorer.numbers.neighbours(format, code)])]""",
        name,
        [numbers, codes],
    )
    for number, code in zip(numbers, encoded, strict=True):
        try:
            assert code == parse_code(repr(number), fmt), number
        except NoNaNError:
            assert code is None
    for code, shown in zip(codes, decoded, strict=True):
        # Whole numbers beyond 2^53 arrive as the digits that JavaScript prints, not as the double.
        value, below, above = (v if v is None else float(v) for v in shown)
        want = code_facts(fmt, code)
        assert same(value, want.value), (code, value, want.value)
        assert (below, above) == (want.below, want.above), code


@pytest.mark.parametrize("name", ["float6_e2m3fn", "int4", "float32", "ternary", "float8_e4m3fn"])
def test_what_is_typed_means_the_same_code(name: str) -> None:
    """Decimals, bits, hexadecimal and words; what the library refuses is refused with words."""
    fmt, wanted = FORMATS[name], list[int | None]()
    for text in [*WORDS, *BAD_WORDS]:
        try:
            wanted.append(parse_code(text, fmt))
        except NoNaNError:
            wanted.append(None)
        except ValueError:
            wanted.append(-1)
    got = by_page(
        """([format, texts]) => texts.map(text => {
             const typed = explorer.numbers.parse(text, format);
             if (typed.problem) return typed.problem.length > 20 ? -1 : -2;
             return typed.code ?? explorer.numbers.encode(format, typed.number);
           })""",
        name,
        [*WORDS, *BAD_WORDS],
    )
    assert got == wanted


def python_scheme(fields: dict[str, Any]) -> Scheme:
    """The library's scheme for the story's fields."""
    scale = (
        "FLOOR" if fields.get("exponent") else "nvfp4" if fields.get("perTensor") else fields["scaleFormat"]
    )
    mapping = "ASYMMETRIC" if fields["asymmetric"] else "SYMMETRIC"
    return Scheme.parse(f"{fields['format']}~1x{fields['block']}~{mapping}~{scale}~minmax")


def python_answer(row: torch.Tensor, fields: dict[str, Any]) -> QuantizedTensor:
    """``quantize``; a clipped range is min-max times the factor, block by block."""
    scheme = python_scheme(fields)
    if fields["clip"] == 1:
        return quantize(row, scheme)
    blocks = row.view(-1, fields["block"])
    factor = torch.tensor(fields["clip"], dtype=torch.float32)
    low, high = blocks.amin(1).clamp(max=0) * factor, blocks.amax(1).clamp(min=0) * factor
    return quantize(row, scheme, clip_range=Range(low.view(1, -1), high.view(1, -1)))


ROWS = [(6.0, 0.0), (0.58, 0.8), (1.8, 0.0), (-1.0, 0.0), (3.0, 1.2), (0.0, -2.0)]
STORED = [
    {**step.scheme, **choice.changes, "clip": clip}
    for step in story.STEPS
    for choice in step.choices or (story.StoryChoice("", {}),)
    for clip in ((1, 0.37) if "int" in str({**step.scheme, **choice.changes}["format"]) else (1,))
]


def test_the_storys_arithmetic_is_the_librarys() -> None:
    """Codes, restored values, SQNR and bits of each step's choices, for several outliers and shifts."""
    asked = []
    for fields in [dict(t) for t in {tuple(sorted(f.items())) for f in STORED}]:
        for outlier, shift in ROWS:
            row = torch.tensor([story.ROW])
            row[0, story.OUTLIER_AT] = outlier
            asked.append((row + shift, fields))
    answers = run_scripts(
        ("numbers", "story-arithmetic"),
        """([formats, asked]) => asked.map(([row, fields]) => {
             const scheme = {...fields, format: formats[fields.format],
               scaleFormat: formats[fields.scaleFormat]};
             const stored = explorer.row.quantize(row, scheme);
             return [stored.codes, stored.restored, explorer.row.sqnr(row, stored.restored),
               explorer.row.bits(row, scheme)];
           })""",
        [story.story_data()["formats"], [(row[0].tolist(), fields) for row, fields in asked]],
    )
    for (row, fields), (codes, restored, sqnr_db, bits) in zip(asked, answers, strict=True):
        want = python_answer(row, fields)
        assert [*map(float, codes)] == want.codes[0].tolist(), (fields, row)
        assert [*map(float, restored)] == want.dequantize()[0].tolist(), (fields, row)
        assert float(sqnr_db) == pytest.approx(compare(row, want).sqnr_db, abs=1e-6)
        assert float(bits) == pytest.approx(want.bits_per_element.total, abs=1e-12)
