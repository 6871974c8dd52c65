"""The conformance table, run on its sample: every row is as equal, or as different, as it says, and would
be noticed if it were not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.formats import FORMATS
from lab.cli import main
from lab.conformance import compared
from lab.conformance.cases import (
    ONE,
    sample_cases,
)
from lab.conformance.compare import (
    EVERYWHERE,
    Row,
    compare_codes,
    conformance,
    result_of,
)
from lab.conformance.compared import ROWS
from lab.conformance.differences import Difference, Distance, codes_apart
from lab.conformance.outside import Outside, load
from tests.covering import THOROUGH, covering, parts_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def cases() -> dict[str, Tensor]:
    return sample_cases()


def of_package(index: int) -> set[object]:
    """A row's function, and its package with each part of its scheme."""
    row = ROWS[index]
    return {row.function, *((row.package, i, part) for i, part in enumerate(parts_of(row.scheme)))}


FEW = covering(range(len(ROWS)), of_package)
EACH = [
    pytest.param(row, id=f"{row.package}-{row.function}-{row.name}", marks=() if i in FEW else THOROUGH)
    for i, row in enumerate(ROWS)
]


def broken(theirs: Outside) -> Iterator[tuple[str, Outside]]:
    """``theirs`` with one thing wrong: every code's lowest bit, or the scales, zero points, minimums, tensor
    scale or restored values twice as large. What a comparison that works reports, whatever it excuses."""
    if theirs.codes is not None:
        yield "codes", dataclasses.replace(theirs, codes=theirs.codes.long() ^ 1)
    for name in ("scales", "minimums", "tensor_scale", "restored"):
        part = getattr(theirs, name)
        if part is not None:
            yield name, dataclasses.replace(theirs, **{name: part.float() * 2})
    if theirs.zero_points is not None:
        yield "zero points", dataclasses.replace(theirs, zero_points=theirs.zero_points.long() + 1)


@pytest.mark.parametrize("row", EACH)
def test_a_row_is_as_equal_as_it_says(row: Row, cases: dict[str, Tensor]) -> None:
    """Equal where nothing is said, and within bounds where something is. What is ``broken`` is reported in
    every case with a named difference, which excuses none of it, and in one without."""
    counts, noticed = [], 0
    for case, x in cases.items():
        ours, theirs = row.both(x)
        under = row.bound_of(case).under
        counts.append(compare_codes(ours, theirs, case, under))
        if case in row.differs or case == ONE:
            for part, wrong in broken(theirs):
                result = result_of(row, "", [compare_codes(ours, wrong, case, under)])
                assert result.surprises, f"{case}: wrong {part} are excused"
                noticed += 1
    surprises = result_of(row, "", counts).surprises
    assert not surprises, "; ".join(surprises)
    assert noticed
    for named in row.differs.values():
        assert named.codes < 0.7 and (named.scales < 0.7 or named.factor < 2), f"{named.why}: anything goes"


@pytest.mark.parametrize(("shape", "nested"), [((77, 333), False), ((5, 77), True)])
def test_blocks_across_rows_are_those_of_bitsandbytes(shape: tuple[int, int], nested: bool) -> None:
    """It counts 64 elements after another, wherever rows end; its shorter last block is divided by its scale,
    ours multiplied by the reciprocal, which may move a value that lies on a midpoint."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    words = "nested~minmax~reciprocal~unrounded" if nested else "float32-zero~minmax~reciprocal"
    ours = quantize(x, Scheme.parse(f"nf4~flat64~symmetric~{words}"))
    functional = load("bitsandbytes.functional", "bitsandbytes")
    packed, state = functional.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=nested)
    pairs, absmax = packed.reshape(-1), state.absmax
    codes = torch.stack((pairs >> 4, pairs & 15), 1).view(-1)[: x.numel()].view(shape)
    if nested:
        absmax = functional.dequantize_blockwise(absmax, state.state2) + state.offset
    assert torch.equal(ours.codes, codes) and torch.equal(ours.scales.scale.view(-1), absmax)


def as_here(x: Tensor) -> Outside:
    q = quantize(x, SCHEMES["int8_row"])
    return Outside(q.codes, q.scales.stored)


def one_code_off(x: Tensor) -> Outside:
    codes = as_here(x).codes.clone()
    codes[0, 0] ^= 1
    return dataclasses.replace(as_here(x), codes=codes)


def zeros_off(x: Tensor) -> Outside:
    return one_code_off(x) if (x == 0).all(1).any() else as_here(x)


def one_scale_off(x: Tensor) -> Outside:
    scales = quantize(x, SCHEMES["int8_row"]).scales.stored.clone()
    scales[3, 0] = torch.nextafter(scales[3, 0], torch.tensor(1e9))
    return dataclasses.replace(as_here(x), scales=scales)


WHY = Difference("why", codes=1e-4, steps=1, scales=0.01, factor=1 + 1e-6)
"""Allows what ``one_code_off`` and ``one_scale_off`` do, and little else."""
OTHER = dataclasses.replace(WHY, why="other")


@pytest.mark.parametrize(
    ("quantizer", "differs", "verdict", "surprised"),
    [
        (as_here, {}, "equal", False),
        (one_code_off, {}, "equal but for ties; zeros", True),
        (one_scale_off, {}, "equal but for ties; zeros", True),
        (one_code_off, {EVERYWHERE: WHY}, "differs", False),
        (zeros_off, {EVERYWHERE: WHY, "zeros": OTHER}, "differs", True),
        (zeros_off, {"zeros": WHY}, "equal but for zeros", False),
        (one_code_off, {"ties": WHY, "zeros": WHY}, "equal but for ties; zeros", False),
        (one_code_off, {"ties": WHY}, "equal but for ties; zeros", True),
        (as_here, {EVERYWHERE: WHY}, "equal", True),
        (as_here, {"ties": WHY}, "equal", True),
    ],
)
def test_a_row_that_is_wrong_is_noticed(
    quantizer: object, differs: dict[str, Difference], verdict: str, surprised: bool, cases: dict[str, Tensor]
) -> None:
    """One code or the last bit of one scale is enough, either way; garbage is beyond every bound."""
    row = Row("int8_row", "gguf", "f", quantizer, differs=differs)  # type: ignore[arg-type]
    result = conformance(row, [(name, cases[name]) for name in ("ties", "zeros")])
    assert (result.verdict, bool(result.surprises)) == (verdict, surprised)


INT8, E4M3FN, BNB_FP4, HALF = (FORMATS[name] for name in ("int8", "float8_e4m3fn", "bnb_fp4", "float16"))


def test_codes_are_apart_by_steps_of_their_format() -> None:
    """In the order of values; zeros of both signs are one value, and NaN and Inf are counted alone."""
    for fmt, mine, theirs, apart in (
        (INT8, [0, 255, 5], [0, 1, 5], Distance(steps=2)),
        (E4M3FN, [0x00, 0x80, 0x38], [0x80, 0x00, 0x38], Distance()),
        (E4M3FN, [0x01, 0x38], [0x81, 0x37], Distance(steps=2)),
        (E4M3FN, [0x7E, 0x38], [0x7F, 0x3A], Distance(steps=2, special_codes=1)),
        (HALF, [0x8001, 0x3C00], [0x0001, 0x3C00], Distance(steps=2)),
        (HALF, [0x7BFF], [0x7C00], Distance(special_codes=1)),
        (FORMATS["nf4"], [0, 7], [15, 7], Distance(steps=15)),
    ):
        assert codes_apart(torch.tensor(mine), torch.tensor(theirs), fmt) == apart


WIDE: dict[str, Any] = {
    "codes": 0.05, "steps": 3, "scales": 0.1, "factor": 1.5, "moved": 0.2, "zero_points": 2, "special": True,
    "signs": True,
}  # fmt: skip
"""A bound that is just wide enough for the count below."""


def test_a_difference_excuses_only_the_blocks_that_it_is_named_for() -> None:
    """Two codes differ, one under a scale of 0: the other is reported, though the share allows both."""
    x = torch.stack([torch.full((32,), 1e-20), torch.linspace(-1, 1, 32)])
    ours = quantize(x, Scheme.parse("int8~row~symmetric~float16-zero~minmax"))
    assert ours.scales.scale.flatten().tolist()[0] == 0
    codes = ours.codes.clone()
    codes[0, 3] ^= 1
    codes[1, 4] ^= 1
    theirs = Outside(codes, ours.scales.scale)
    named = Difference("why", codes=0.5, steps=1, under=(0.0, 0.0))
    count = compare_codes(ours, theirs, "a", named.under)
    assert (count.different_codes, count.outside) == (2, 1)
    (said,) = count.beyond(named)
    assert said.startswith("1 codes")
    assert not compare_codes(ours, theirs, "a").beyond(dataclasses.replace(named, under=None))


def test_the_command_fails_where_a_row_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and the row is named."""
    monkeypatch.setattr(compared, "ROWS", (Row("int8_row", "gguf", "off by one", one_code_off),))
    assert main(["conformance", "--packages", "gguf"]) == 1
    out, err = capsys.readouterr()
    assert "equal but for" in out and "int8_row, gguf off by one: ties: 1 of 32,768" in err
    monkeypatch.setattr(compared, "ROWS", (Row("int8_row", "gguf", "the same", as_here),))
    assert main(["conformance", "--packages", "gguf"]) == 0
