"""Times at any shape: as recorded there, else as recorded at the nearest shape, else a reason.

If these fail, the page names a time that is another product's, or hides that it is another shape's.
"""

from __future__ import annotations

import pytest

from explorer.products.gemms import GEMMS
from explorer.products.shape_times import ShapeTime, limit_of, product_for, product_time, scaled, shape_times
from explorer.recordings.gemm import recorded_gemms
from explorer.schemes import Scheme


def times(scheme: str, n: int, k: int) -> list[ShapeTime]:
    return shape_times(Scheme.parse(scheme), n, k)


def test_a_recorded_shape_has_its_recorded_time() -> None:
    for row in times("nvfp4", 8192, 8192):
        fastest = min(t.seconds for t in recorded_gemms().rows if (t.gemm, t.shape) == ("w_nvfp4", row.shape))
        assert (row.kind, row.seconds, row.at, row.gpu) == ("measured", fastest, row.shape, "NVIDIA H200")
        assert row.limit_s is not None and row.limit_s < fastest and scaled(row) == row


def test_another_shape_has_the_time_of_the_nearest_by_name() -> None:
    """Weights under a scheme are timed by the product that reads them, X left as it is."""
    for scheme, product in {
        "nvfp4": "w_nvfp4", "mxfp4": "w_mxfp4", "int4_group128_asym": "w4a16_group128_asym",
        "int8_row": "w8a16", "fp8_e4m3_row": "w_fp8", "bf16": "bf16",
    }.items():  # fmt: skip
        rows = times(scheme, 14336, 4096)
        assert product_for(Scheme.parse(scheme)) == (product, "")
        for row in rows:
            assert row.at is not None and row.at[0] == row.shape[0] and row.at[1:] != (14336, 4096)
            assert (row.product, row.kind, row.seconds) == (
                product,
                "nearest",
                product_time(product, row.at).seconds,
            )
            assert "×".join(map(str, row.at)) in row.how and "nearest" in row.how


def test_a_budget_of_time_scales_by_the_limit() -> None:
    """Otherwise a wide layer takes as long as a narrow one; or a tiny one takes less than a launch."""
    near = product_time("int8", (4096, 5000, 12000), quantize_x=True)
    assert near.at == (4096, 4096, 11008) and near.seconds and near.quantize_x_s and near.limit_s
    there, made, x = limit_of(GEMMS["int8"], near.at), scaled(near), near.quantize_x_s * 12000 / 11008
    assert (made.kind, made.at) == ("scaled", near.at) and "scaled by the limit" in made.how
    assert made.quantize_x_s == pytest.approx(x) and there
    assert made.seconds == pytest.approx((near.seconds - near.quantize_x_s) * near.limit_s / there + x)
    rows = [t for t in recorded_gemms().rows if t.gemm == "int8"]
    tiny = scaled(product_time("int8", (1, 64, 64), quantize_x=True)).seconds
    assert tiny == pytest.approx(min(t.seconds for t in rows) + min(t.activation_s or 1 for t in rows))
    assert scaled(product_time("fp32", (4096, 8192, 8192))).seconds, "by bytes where no peak is recorded"


def test_quantizing_x_is_in_the_time_where_x_is_quantized() -> None:
    """If this fails, a format looks faster than it is by what its inputs cost: at 4,096 tokens a third."""
    scheme = Scheme.parse("int8_row")
    recorded = {t.shape: t for t in recorded_gemms().rows if t.gemm == "int8"}
    for n, k in ((8192, 8192), (1536, 384)):
        for row in shape_times(scheme, n, k, quantized_inputs=True):
            assert row.at is not None
            alone, timed = product_time("int8", row.shape), recorded[row.at]
            assert (row.product, row.quantize_x_s) == ("int8", timed.activation_s)
            assert row.seconds == alone.seconds + timed.activation_s and "to quantize X" in row.how
    assert times("int8_row", 8192, 8192)[0].quantize_x_s is None, "X as it is"
    for name in ("int8_dynamic", "bf16"):  # X is quantized inside, or not at all
        assert product_time(name, (64, 4096, 4096), quantize_x=True).quantize_x_s is None


def test_no_time_has_a_reason() -> None:
    """Few tokens take other kernels than many: a time at 4,096 says nothing of one."""
    recorded = "4,096 to 8,192"
    for scheme, reason in (("int8_tensor", ""), ("int4_group64", recorded), ("fp32", recorded)):
        row = times(scheme, 1536, 384)[0]
        assert (row.kind, row.seconds) == ("none", None) and row.reason and reason in row.reason
    with pytest.raises(ValueError, match="at least 1"):
        product_time("bf16", (0, 8, 8))
    with pytest.raises(ValueError, match="w_nvfp4"):
        product_time("bf17", (1, 8, 8))
