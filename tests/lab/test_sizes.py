"""The benchmark of small and large tensors, and its table."""

from __future__ import annotations

import sys

import pytest

from explorer import SCHEMES
from lab.sizes import time_sizes


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of one call is counted on Linux alone")
def test_each_scheme_is_measured_at_each_size() -> None:
    """If this fails, the page on large tensors cannot be recorded anew."""
    shapes = [(8, 256), (32, 256)]
    rows = list(time_sizes([SCHEMES["nvfp4"], SCHEMES["int8_row"]], shapes))
    assert [(row.scheme, row.shape) for row in rows] == [
        (name, shape) for shape in shapes for name in ("nvfp4", "int8_row")
    ]
    assert all(row.quantize_ns > 0 and row.compare_ns > 0 and row.beside_bytes >= 0 for row in rows)
