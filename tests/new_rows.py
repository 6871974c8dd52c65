"""Formats that the table does not have, as new rows would stand in it. Tests of every row meet them too."""

from __future__ import annotations

from explorer.formats import FORMATS, FloatFormat, Format, Specials

E3M4 = FloatFormat(
    name="float8_e3m4", label="FP8 E3M4", bits=8, exponent=3, mantissa=4, bias=3, specials=Specials.IEEE
)
E2M2 = FloatFormat(
    name="float5_e2m2fn", label="FP5 E2M2", bits=5, exponent=2, mantissa=2, bias=1, specials=Specials.NONE
)
UE5M3 = FloatFormat(
    name="float8_ue5m3fn", label="UE5M3", bits=8, exponent=5, mantissa=3, bias=15, specials=Specials.FN,
    signed=False,
)  # fmt: skip
"""A format of scales that torch has no dtype for."""
NEW_ROWS: dict[str, Format] = {row.name: row for row in (E3M4, E2M2, UE5M3)}
ROWS: dict[str, Format] = {**NEW_ROWS, **FORMATS}
"""All of them; where the table has a row of a name, that one."""
CODECS = {name: row for name, row in ROWS.items() if row.has_codec}
"""Those that kernels encode and decode."""
