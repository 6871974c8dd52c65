"""The search for the least squared error against the plain loop over all candidates, which it abridges."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from explorer import Scheme
from explorer.core import ranges
from explorer.core.blocks import rectangles
from explorer.core.encode import UnderScales
from explorer.core.ranges import find_ranges
from explorer.schemes import calibrators
from explorer.schemes.calibrators import CalibrationContext, Range, minmax_range
from tests.covering import covering, parts_of, sampled

SEARCHED = (
    "int2~1x16~minimum~super4~mse~fit",
    "int3~1x16~signed_max~super6~mse~fit",
    "int4~1x32~minimum~super6~mse~fit",
    "int5~1x32~minimum~super6~mse~fit",
    "int6~1x16~signed_max~super8~mse~fit",
    "int4~1x32~symmetric~float16~mse",
    "int3~1x16~asymmetric~float16~mse",
    "int4~1x32~midpoint~float16~mse",
    "int8~1x48~full~float32~mse",
    "int4~1x1~symmetric~float32~mse",
    "int4~1x32~signed_max~float16-zero~mse~up~reciprocal~unrounded",
    "float4_e2m1fn~1x16~symmetric~nvfp4~mse",
    "float4_e2m1fn~1x32~symmetric~floor~mse",
    "nf4~1x64~symmetric~float32~mse",
    "binary~1x64~symmetric~float32~mse",
    "float8_e4m3fn~1xall~symmetric~float32~mse",
)  # fmt: skip


def traits(text: str) -> set[object]:
    """Each kind of each part, and each mapping."""
    return {*parts_of(text), Scheme.parse(text).mapping}


def plain(blocks: Tensor, context: CalibrationContext) -> Range:
    """Every candidate of every block, summed in float64, in the order that decides between equals."""
    whole = minmax_range(blocks, context.zero_included)
    low = high = torch.ones_like(whole.high)
    least = torch.full_like(whole.high, math.inf, dtype=torch.float64)
    ends = (calibrators.BOTH_ENDS, calibrators.LOW_END, calibrators.HIGH_END)
    for moves_low, moves_high in ends if context.asymmetric else ends[:1]:
        for factor in calibrators._factors(context.scale):
            moved = torch.full_like(whole.high, factor)
            new_low, new_high = moved if moves_low else low, moved if moves_high else high
            tried = calibrators._moved(whole, new_low, new_high, context)
            error = (context.restored(blocks, tried) - blocks).double().square_().sum((1, 3))
            better = error < least
            least = torch.where(better, error, least)
            low, high = torch.where(better, new_low, low), torch.where(better, new_high, high)
    return calibrators._moved(whole, low, high, context)


def matrices() -> Iterator[tuple[str, Tensor]]:
    x = torch.randn(2, 144)
    kinds = (
        x,
        x * torch.where(torch.rand_like(x) < 0.05, 20.0, 1.0),  # outliers
        x.relu(),  # of one sign, half zeros
        torch.zeros(1, 144),
        torch.full((1, 144), -3.0),
        torch.randint(-4, 5, (2, 144)).float(),  # with ties
        torch.randint(-1, 2, (2, 144)).float() * 0.75,
    )
    values = torch.cat(kinds)
    yield "moderate", values
    yield "squares too small for float32", values * 1e-24
    yield "squares too large for float32", values * 1e24
    yield "subnormal", values * 1e-40


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("text", sampled(SEARCHED, covering(SEARCHED, traits)))
def test_the_search_finds_what_the_plain_loop_finds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, codes of every scheme with a searched range are others than they were."""
    scheme = Scheme.parse(text)
    monkeypatch.setattr(calibrators, "TILE", 1 << 9)  # several tiles, the last one shorter
    for name, x in matrices():
        found, context = find_ranges(x, scheme), ranges._context(x, scheme, None)
        for part in rectangles((x.shape[0], x.shape[1]), scheme.block):
            wanted = plain(part.blocks(x), context)
            here = part.grid_rows, part.grid_columns
            assert torch.equal(found.low[here], wanted.low), name
            assert torch.equal(found.high[here], wanted.high), name


def test_the_search_computes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the bounds rule nothing out, and a search takes as long as all its candidates."""
    x, scheme, restored = torch.randn(32, 512), Scheme.parse("int4~1x32~minimum~super6~mse~fit"), 0
    kept = UnderScales.rounded

    def counted(under: UnderScales, values: Tensor) -> Tensor:
        nonlocal restored
        restored += values.numel()
        return kept(under, values)

    monkeypatch.setattr(UnderScales, "rounded", counted)
    find_ranges(x, scheme)
    assert restored < 0.4 * 240 * x.numel()
