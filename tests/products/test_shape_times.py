"""Times at any shape: measured where recorded, else modelled, else a reason.

If these fail, the page names a time that is another product's, or says less error than the model has.
"""

from __future__ import annotations

import pytest

from explorer.products import shape_times as module
from explorer.products.shape_times import (
    left_out,
    product_for,
    product_time,
    shape_times,
    typical_error,
)
from explorer.recordings.gemm import recorded_gemms
from explorer.schemes import Scheme
from tests.covering import sampled

MEDIAN, WORST = 0.10, 0.25
"""The aim for shapes left out."""


def times(scheme: str, n: int, k: int) -> list[module.ShapeTime]:
    return shape_times(Scheme.parse(scheme), n, k)


def test_a_recorded_shape_has_its_recorded_time() -> None:
    """A measured shape is not modelled."""
    for row in times("nvfp4", 8192, 8192):
        fastest = min(t.seconds for t in recorded_gemms().rows if (t.gemm, t.shape) == ("w_nvfp4", row.shape))
        assert (row.kind, row.seconds, row.error, row.gpu) == ("measured", fastest, None, "NVIDIA H200")


def test_the_product_is_the_schemes_own() -> None:
    """Weights under a scheme are timed by the product that reads them, X left as it is."""
    for scheme, product in {
        "nvfp4": "w_nvfp4", "mxfp4": "w_mxfp4", "int4_group128_asym": "w4a16_group128_asym",
        "int8_row": "w8a16", "fp8_e4m3_row": "w_fp8", "bf16": "bf16",
    }.items():  # fmt: skip
        rows = times(scheme, 14336, 4096)
        assert {row.product for row in rows} == {product}
        assert product_for(Scheme.parse(scheme)) == (product, "")
        assert all(row.kind == "modelled" and row.error and not row.extrapolated for row in rows)


def test_quantizing_x_is_in_the_time_where_x_is_quantized() -> None:
    """If this fails, a format looks faster than it is by what its inputs cost: at 4,096 tokens a third."""
    scheme, recorded = (
        Scheme.parse("int8_row"),
        {t.shape: t for t in recorded_gemms().rows if t.gemm == "int8"},
    )
    for row in shape_times(scheme, 8192, 8192, quantized_inputs=True):
        alone, timed = product_time("int8", row.shape), recorded[row.shape]
        assert (row.kind, row.product, row.quantize_x_s) == ("measured", "int8", timed.activation_s)
        assert row.seconds == alone.seconds + timed.activation_s and "to quantize X" in row.how
    for row in shape_times(scheme, 1536, 384, quantized_inputs=True):
        alone = product_time("int8", row.shape)
        assert alone.quantize_x_s is None and row.kind == "modelled"
        assert (
            row.seconds == pytest.approx(alone.seconds + row.quantize_x_s) and 1e-6 < row.quantize_x_s < 2e-5
        )
        assert 0 < row.error < max(alone.error, 0.1)
    assert shape_times(scheme, 8192, 8192)[0].quantize_x_s is None, "X as it is"
    for name in ("int8_dynamic", "bf16"):  # X is quantized inside, or not at all
        assert module.with_quantized_x(product_time(name, (64, 4096, 4096))).quantize_x_s is None


def test_quantizing_x_is_modelled_well_enough() -> None:
    """Each recorded (M, K) left out: the error that a time is said to have is that of shapes not seen."""
    for name in ("fp8_e4m3_row", "int8", "fp8_blockwise", "nvfp4"):
        error = module.quantize_x_error(name)
        assert error is not None and 0 < error < 0.2


def test_no_time_has_a_reason() -> None:
    """What no product of the scheme can tell is not made up from another product; nor does a tiny weight
    tell of itself."""
    recorded = "4,096 to 8,192"
    for scheme, reason in (("int8_tensor", ""), ("int4_group64", recorded), ("fp32", recorded)):
        row = times(scheme, 1536, 384)[0]
        assert (row.kind, row.seconds) == ("none", None) and row.reason and reason in row.reason
    for name in ("bf16", "w_nvfp4", "w_mxfp4", "binary"):
        row = product_time(name, (3, 5, 7))
        assert row.kind == "none" and row.reason


TIMED = sorted({t.gemm for t in recorded_gemms().rows})


@pytest.mark.parametrize("name", sampled(TIMED, ("w_nvfp4", "w_mxfp4", "int8", "bf16")))
def test_shapes_left_out_are_met(name: str) -> None:
    """Each weight left out at every number of tokens: 10 % in the median and 25 % at worst."""
    errors = left_out(name)
    typical = typical_error(errors)
    if typical is not None:
        assert typical <= MEDIAN
        assert max(abs(row.error) for row in errors) <= WORST
