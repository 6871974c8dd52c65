"""Grouped products without a GPU: where rows lie, which kernel is chosen, what is recorded."""

from __future__ import annotations

import pytest
import torch

from explorer.products.grouped import (
    CASES,
    CONTIGUOUS,
    GROUPED,
    MASKED,
    Case,
    GroupedOperands,
    all_builds,
    is_chosen,
)
from explorer.products.layouts import byte_rows
from explorer.recordings.grouped import recorded_grouped

CPU = torch.device("cpu")
SMALL = Case("small", (3, 0, 2), 128, 256)


def test_rows_of_both_layouts_are_the_same() -> None:
    """If this fails, a masked product is checked against other rows than it multiplied."""
    gemm = GROUPED["fp8_blockwise_masked"].gemm
    contiguous = GroupedOperands.draw(gemm, SMALL, CONTIGUOUS, CPU)
    masked = GroupedOperands.draw(gemm, SMALL, MASKED, CPU)
    assert contiguous.ends.tolist() == [3, 3, 5] and masked.ends.tolist() == [3, 0, 2]
    assert masked.capacity == 3 and masked.rows.tolist() == [0, 1, 2, 6, 7]
    values = contiguous.of_x(lambda ops: ops.x.q.packed)
    spread = masked.of_x(lambda ops: ops.x.q.packed)
    assert spread.shape == (9, 256) and torch.equal(spread[masked.rows], values)
    product, size = masked.exact()
    assert product.shape == (5, 128) and bool((product.abs() <= size).all())


def test_blocks_of_w_do_not_straddle_groups() -> None:
    """If this fails, an expert's last rows are scaled by the next one's maximum."""
    odd = Case("odd", (1, 1), 100, 128)
    with pytest.raises(ValueError, match="multiple of 128"):
        GroupedOperands.draw(GROUPED["fp8_blockwise_contiguous"].gemm, odd, CONTIGUOUS, CPU)
    ops = GroupedOperands.draw(GROUPED["bf16_contiguous"].gemm, odd, CONTIGUOUS, CPU)
    assert ops.groups[0].w.q.packed.shape[0] == 100


def test_memory_counts_the_weights_of_groups_that_have_rows() -> None:
    """If this fails, the limit is that of another product."""
    gemm = GROUPED["bf16_contiguous"].gemm
    ops = GroupedOperands.draw(gemm, SMALL, CONTIGUOUS, CPU)
    assert ops.bytes_moved == 2 * (2 * 128 * 256) + 5 * (2 * 256 + 2 * 128)


def test_the_kernel_follows_the_rows_of_a_group() -> None:
    """If this fails, `bench grouped` marks another kernel than `gemm_grouped` launches."""
    for row in GROUPED.values():
        tiles = [v.tile for v in row.variants if v.tile]
        assert row.chosen(CASES["64 experts, 4 tokens each"]).tile == tiles[0]
        assert row.chosen(CASES["8 experts, 1,024 tokens each"]).tile == tiles[-1]
        assert row.variants[0].tile is None and len({v.name for v in row.variants}) == len(row.variants)


def test_the_kernels_are_compiled_ahead_for_hopper_alone() -> None:
    """If this fails, the first grouped product waits for nvcc, or nvcc is asked for a chip without wgmma."""
    builds = all_builds((9, 0))
    grouped = [b for b in builds if dict(b.macros)["GROUPED"] == "1"]
    assert len(grouped) == 5 and {b.file for b in builds} == {"gemm_wgmma.cu"}
    assert not all_builds((8, 0)) and not all_builds((12, 0))


def test_what_is_recorded_is_in_the_table_and_well_chosen() -> None:
    """If this fails, a row was renamed, or the rule that chooses a tile gives away more than a tenth of the
    speed at a recorded case."""
    rows = recorded_grouped().rows
    assert {t.product for t in rows} <= set(GROUPED) and {t.case for t in rows} <= set(CASES)
    for product, case in {(t.product, t.case) for t in rows}:
        here = [t for t in rows if (t.product, t.case) == (product, case)]
        chosen = [t for t in here if is_chosen(t.product, t.case, t.variant)]
        assert len(chosen) == 1, f"{product}, {case}"
        assert chosen[0].seconds <= 1.1 * min(t.seconds for t in here), f"{product}, {case}"


def test_operands_are_as_a_plain_product_reads_them() -> None:
    """If this fails, a group's rows differ from those of the product that it is checked against."""
    row = GROUPED["fp8_blockwise_contiguous"]
    ops = GroupedOperands.draw(row.gemm, Case("two", (2, 3), 128, 256), CONTIGUOUS, CPU)
    first = ops.groups[0]
    assert torch.equal(ops.of_x(lambda o: o.x.q.packed)[:2], first.x.q.packed)
    with pytest.raises(ValueError, match="CUDA"):
        byte_rows(first.x.q)
