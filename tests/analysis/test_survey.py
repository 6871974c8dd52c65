"""All schemes on a sample of rows. If these fail, the frontier waits, or shows another matrix's errors."""

from __future__ import annotations

import pytest
import torch

from explorer import SCHEMES, Scheme, compare, load_matrix, quantize
from explorer.analysis.schemes import searches
from explorer.analysis.survey import survey


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
