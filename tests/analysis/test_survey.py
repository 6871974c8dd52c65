"""All schemes on a sample of rows. If these fail, the frontier waits, or shows another matrix's errors."""

from __future__ import annotations

import pytest
import torch

from explorer import SCHEMES, Scheme, compare, load_matrix, quantize
from explorer.analysis.schemes import RUN, sample_rows, searches, survey

SHAPES = [(1, 1), (1536, 384), (4096, 4096), (3, 100_000), (1, 500_000), (100_000, 3), (130, 1024),
          (1000, 140), (4096, 1024), (2000, 513), (700, 768)]  # fmt: skip


def test_a_sample_is_runs_of_whole_rows() -> None:
    """At most so many elements, each from its own row of the matrix, in order, in at least four runs from
    end to end: outliers of a part of the matrix are seen."""
    for shape in SHAPES:
        x = torch.arange(shape[0] * shape[1], dtype=torch.float64).view(shape)
        sample = sample_rows(x, 1 << 17)
        values = sample.values
        assert 0 < values.numel() <= 1 << 17 and sample.share == values.numel() / x.numel()
        rows = (values[:, 0] / shape[1]).long()
        assert torch.equal(values, x[rows, : values.shape[1]]) and (rows.diff() > 0).all()
        assert values.shape[1] == shape[1] or len(rows) == 1
        if len(rows) >= 4:
            assert rows[0] == 0 and rows[-1] == shape[0] - 1, "a sample reaches both ends"
            assert rows.diff().max() <= -(-shape[0] // 3), "more than a third lies between two runs"
            assert (rows[: min(RUN, len(rows) // 4)].diff() == 1).all()


@pytest.mark.parametrize("tall", [16, 128])
def test_a_sample_for_tiles_is_of_whole_tiles(tall: int) -> None:
    """Runs start at multiples of the tiles' height, and are cut to some columns where whole rows of tiles
    would be too many: a tile of the sample is a tile of the matrix."""
    for shape in (shape for shape in SHAPES if shape[0] >= 4):
        x = torch.arange(shape[0] * shape[1], dtype=torch.float64).view(shape)
        values = sample_rows(x, 1 << 17, tall).values
        assert values.numel() <= 1 << 17
        whole = x.numel() <= 1 << 17
        for start in range(0, len(values) if not whole else 0, tall):
            tile = values[start : start + tall]
            row, column = divmod(int(tile[0, 0]), shape[1])
            assert row % tall == 0 and column % 256 == 0 and len(tile) == tall
            assert torch.equal(tile, x[row : row + tall, column : column + tile.shape[1]])
        rows = (values[:, 0] / shape[1]).long()
        assert len(rows) < 4 * tall or rows.diff().max() <= -(-shape[0] // 3) + tall


def test_a_survey_has_each_scheme_once_and_the_slow_ones_last() -> None:
    names = ["q4_k", "int4_group128", "nvfp4", "int4_group128"]
    x = load_matrix("sample:mlp_up").values
    rows = list(survey(x, [SCHEMES[name] for name in names], 1 << 14))
    assert [r.scheme.name for r in rows] == ["int4_group128", "nvfp4", "q4_k"]
    assert [searches(r.scheme) for r in rows] == [False, False, True]
    for row in rows[:2]:
        whole = compare(x, quantize(x, row.scheme))
        assert row.report.bits == whole.bits, "bits are those of the whole matrix"
        assert row.report.sqnr_db == pytest.approx(whole.sqnr_db, abs=0.7)


def test_tiles_have_the_error_that_they_have_in_the_whole_matrix() -> None:
    """One row in 128 is large: each tile holds one; of tiles cut to eight rows, most would hold none."""
    x = torch.randn(1024, 2048, generator=torch.Generator().manual_seed(0))
    x[::128] *= 1000
    scheme = Scheme.parse("int8~128x128~symmetric~float32~minmax")
    (row,) = survey(x, [scheme])
    assert row.report.mae == pytest.approx(compare(x, quantize(x, scheme)).mae, rel=0.05)
