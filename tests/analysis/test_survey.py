"""All schemes on a sample of rows. If these fail, the frontier waits, or shows another matrix's errors."""

from __future__ import annotations

import pytest
import torch

from explorer import SCHEMES, compare, load_matrix, quantize
from explorer.analysis.schemes import RUN, sample_rows, searches, survey

SHAPES = [
    (1, 1),
    (1536, 384),
    (4096, 4096),
    (3, 100_000),
    (1, 500_000),
    (100_000, 3),
    (130, 1024),
    (1000, 140),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sample_is_runs_of_whole_rows(shape: tuple[int, int]) -> None:
    """At most so many elements, each from its own row of the matrix, in order, from end to end."""
    x = torch.arange(shape[0] * shape[1], dtype=torch.float64).view(shape)
    sample = sample_rows(x, 1 << 17)
    values = sample.values
    assert 0 < values.numel() <= 1 << 17 and sample.share == values.numel() / x.numel()
    rows = (values[:, 0] / shape[1]).long()
    assert torch.equal(values, x[rows, : values.shape[1]]) and (rows.diff() > 0).all()
    assert values.shape[1] == shape[1] or len(rows) == 1
    if len(rows) > RUN:
        assert rows[0] == 0 and rows[-1] == shape[0] - 1 and (rows[:RUN].diff() == 1).all()


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
