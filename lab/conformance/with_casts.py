"""Rows of ml_dtypes and gfloat: casts to a number format, without a scale."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from explorer.schemes import Scheme
from lab.conformance.compare import Row
from lab.conformance.differences import Difference
from lab.conformance.outside import Outside, load

ML_DTYPES, GFLOAT = "ml_dtypes", "gfloat"


def ml_dtypes_cast(x: Tensor, name: str) -> Outside:
    """``astype`` of the dtype that has the format's name."""
    module = load("ml_dtypes", ML_DTYPES)
    with np.errstate(all="ignore"):
        out = x.float().numpy().astype(getattr(module, name))
    return Outside(_bits(out.view(np.dtype(f"u{out.itemsize}"))))


def gfloat_cast(x: Tensor, info: str) -> Outside:
    """``round_ndarray``, saturating, and ``encode_ndarray``."""
    module, formats = load("gfloat", GFLOAT), load("gfloat.formats", GFLOAT)
    fmt: Any = getattr(formats, f"format_info_{info}")
    rounded = module.round_ndarray(fmt, x.double().numpy(), module.RoundMode.TiesToEven, sat=True)
    return Outside(_bits(module.encode_ndarray(fmt, rounded)))


def gfloat_tf32(x: Tensor) -> Outside:
    """The same for TF32, which it has no row of: bfloat16 with ten mantissa bits, ties away as ``cvt.rna``
    has it. Our codes are the float32 words, whose lowest 13 bits are 0."""
    module, formats = load("gfloat", GFLOAT), load("gfloat.formats", GFLOAT)
    fmt = dataclasses.replace(formats.format_info_bfloat16, name="tf32", k=19, precision=11)
    rounded = module.round_ndarray(fmt, x.double().numpy(), module.RoundMode.TiesToAway, sat=True)
    return Outside(_bits(module.encode_ndarray(fmt, rounded)) << 13)


def _bits(codes: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(codes.astype(np.int64))


def _overflow(share: float) -> Difference:
    why = "values beyond the largest become NaN or Inf there; they saturate here"
    return Difference(why, codes=share, special=True)


OVERFLOWS = {"spreads": _overflow(0.45), "outliers": _overflow(4e-4)}
GFLOAT_NAMES = {
    "bfloat16": "bfloat16", "float16": "binary16", "float8_e4m3fn": "ocp_e4m3", "float8_e5m2": "ocp_e5m2",
    "float6_e2m3fn": "ocp_e2m3", "float6_e3m2fn": "ocp_e3m2", "float4_e2m1fn": "ocp_e2m1",
}  # fmt: skip
OVERFLOWING = {
    "bfloat16": (), "float8_e4m3fn": ("spreads",), "float8_e5m2": ("spreads",),
    "float8_e4m3fnuz": ("outliers", "spreads"), "float8_e5m2fnuz": ("spreads",), "float6_e2m3fn": (),
    "float6_e3m2fn": (), "float4_e2m1fn": (),
}  # fmt: skip
"""The dtypes of ml_dtypes, and the cases with values beyond the largest; FP6 and FP4 have neither NaN nor Inf
and saturate."""


def _name(fmt: str) -> str:
    return str(Scheme.parse(f"{fmt}~tensor~symmetric~none~minmax"))


def _ml_dtypes_row(fmt: str, overflowing: tuple[str, ...]) -> Row:
    call = partial(ml_dtypes_cast, name=fmt)
    return Row(
        _name(fmt), ML_DTYPES, f"astype({fmt})", call, differs={case: OVERFLOWS[case] for case in overflowing}
    )


ROWS = [
    *(_ml_dtypes_row(fmt, cases) for fmt, cases in OVERFLOWING.items()),
    *(
        Row(_name(fmt), GFLOAT, "round_ndarray, sat", partial(gfloat_cast, info=info))
        for fmt, info in GFLOAT_NAMES.items()
    ),
    Row("tf32", GFLOAT, "round_ndarray, sat, TiesToAway", gfloat_tf32),
]
