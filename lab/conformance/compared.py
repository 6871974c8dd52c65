"""``ROWS``: every scheme and outside implementation that are compared."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.schemes import SCHEMES
from lab.conformance import with_bitsandbytes, with_casts, with_compressed_tensors, with_gguf, with_torchao
from lab.conformance.compare import Row
from lab.conformance.outside import PACKAGES

ROWS: tuple[Row, ...] = (
    *with_torchao.ROWS,
    *with_compressed_tensors.ROWS,
    *with_bitsandbytes.ROWS,
    *with_gguf.ROWS,
    *with_casts.ROWS,
)


def rows_of(packages: Sequence[str]) -> list[Row]:
    """The rows of some packages; ``ValueError`` names those there are."""
    if unknown := [name for name in packages if name not in PACKAGES]:
        raise ValueError(f"no rows compare with {', '.join(unknown)}; there are {', '.join(PACKAGES)}")
    return [row for row in ROWS if row.package in packages]


def uncompared() -> list[str]:
    """Names of ``SCHEMES`` that no row compares."""
    compared = {row.name for row in ROWS} | {_in_float32(row.scheme.text) for row in ROWS}
    return [name for name, s in SCHEMES.items() if not {name, _in_float32(s.text)} & compared]


def _in_float32(text: str) -> str:
    """A scheme's text with scales in float32, where they are in float16."""
    return text.replace("~float16~", "~float32~")
