"""How much is computed, and held at once, for each element of a matrix: as much of a large one as of a small.

Elements of results are counted, not time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from explorer import SCHEMES, Scheme
from explorer.analysis import report, sliced
from explorer.analysis.report import compare
from explorer.analysis.sliced import analyse_anywhere
from explorer.core import blocks, k_quants
from explorer.core.quantize import quantize
from explorer.schemes import calibrators
from tests.covering import sampled

COLUMNS, ROWS, LARGER = 256, 128, 8
CHUNK = 1 << 14
"""Elements worked on at a time here, so that the small matrix has several runs as well."""
TABLES = 600_000
"""Bytes of the largest table that does not grow with a matrix: counts of all 65,536 codes of 16 bits, errors
of all candidates of a run of blocks. A second matrix would be 1 MB of float32."""
OTHERS = (
    "int4~tensor~symmetric~float32~percentile", "int4~tensor~symmetric~float32~entropy",
    "int4~tensor~symmetric~float32~mse", "float4_e2m1fn~1x16~symmetric~nvfp4~mse",
    "int4~128x128~asymmetric~float16~mse", "int8~1x128~symmetric~float16~minmax~s7",
)  # fmt: skip
KINDS = (
    "fp32", "fp8_e4m3_128x128", "int8_column", "int4_row", "mxfp4_even", "nvfp4", "ternary_twn",
    "nf4_block64_double", "q4_0", *OTHERS[:2],
)  # fmt: skip
"""One scheme of each kind of block, scale and range. (A search of a K-quant takes seconds.)"""


class Counting(TorchDispatchMode):
    """Counts the elements of what operations make, and the bytes of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.largest = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for x in tree_leaves(made):
            if isinstance(x, Tensor) and not (func.is_view and x.untyped_storage().data_ptr() in given):
                self.elements += x.numel()
                if x.untyped_storage().data_ptr() not in given:
                    self.largest = max(self.largest, x.numel() * x.element_size())
        return made


def counted(work: Callable[[], object]) -> Counting:
    with Counting() as count:
        work()
    return count


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocks.CHUNK_ELEMENTS, "cpu", CHUNK)
    monkeypatch.setitem(k_quants.AT_ONCE, "cpu", CHUNK)
    monkeypatch.setitem(calibrators.PIECE, "cpu", CHUNK)
    monkeypatch.setattr(calibrators, "TILE", CHUNK // 2)
    for module in (report, sliced):
        monkeypatch.setattr(module, "RUN_ELEMENTS", CHUNK)
        monkeypatch.setattr(module, "MOST_AT_ONCE", CHUNK)


@pytest.mark.usefixtures("small_runs", "one_thread")
@pytest.mark.parametrize("text", sampled([*SCHEMES, *OTHERS], KINDS))
def test_work_grows_with_the_size_and_memory_with_the_results(text: str) -> None:
    """If this fails, a scheme or the report computes something of the whole tensor for each of its parts, and
    a large tensor takes longer for each element; or it makes a second tensor of the whole one's size."""
    scheme = Scheme.parse(text)
    whole = torch.randn(ROWS * LARGER, COLUMNS)
    work = []
    for x in (whole[:ROWS].clone(), whole):
        q = quantize(x, scheme)
        steps = [
            counted(step) for step in (partial(quantize, x, scheme), q.dequantize, partial(compare, x, q))
        ]
        work.append([step.elements / x.numel() for step in steps])
    for small, large in zip(*work, strict=True):
        assert large <= 1.1 * small
    results = max(part.numel() * part.element_size() for part in (q.packed, q.scales.stored))
    assert steps[0].largest <= max(results, TABLES)
    assert steps[2].largest <= TABLES


@pytest.mark.usefixtures("small_runs", "one_thread")
def test_an_analysis_in_runs_makes_no_second_tensor() -> None:
    """If this fails, ``explorer quantize`` and the page need several times the memory of a large tensor."""
    x = torch.randn(ROWS * LARGER, COLUMNS)
    for name in ("nvfp4", "ternary_twn"):
        assert counted(partial(analyse_anywhere, x, SCHEMES[name])).largest <= TABLES


def test_scales_hold_no_grid_that_nothing_reads() -> None:
    """Codes are counted from a block's least value only under an offset. If this fails, small blocks of a
    large tensor take 4 bytes each beside their scales."""
    x = torch.randn(4, 256)
    assert quantize(x, SCHEMES["q4_0"]).scales.minimum is None
    assert quantize(x, SCHEMES["q4_1"]).scales.minimum is not None
