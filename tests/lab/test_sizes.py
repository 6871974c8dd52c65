"""The benchmark of small and large tensors, and its table."""

from __future__ import annotations

import sys

import pytest

from explorer import SCHEMES
from lab.sizes import SizeTiming, recorded_sizes, time_sizes
from lab.tables import sizes_table


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of one call is counted on Linux alone")
def test_each_scheme_is_measured_at_each_size() -> None:
    """If this fails, the page on large tensors cannot be recorded anew."""
    shapes = [(8, 256), (32, 256)]
    rows = list(time_sizes([SCHEMES["nvfp4"], SCHEMES["int8_row"]], shapes))
    assert [(row.scheme, row.shape) for row in rows] == [
        (name, shape) for shape in shapes for name in ("nvfp4", "int8_row")
    ]
    assert all(row.quantize_ns > 0 and row.compare_ns > 0 and row.beside_bytes >= 0 for row in rows)


def test_a_table_has_one_scheme_after_another() -> None:
    """Sizes of one scheme stand below each other, in the order that they were measured in."""
    timed = [
        SizeTiming(name, (n, 1 << 20), 1.0, 2.0, 3.0, 10**6) for n in (1, 16, 1024) for name in ("b", "a")
    ]
    lines = sizes_table(timed).splitlines()[2:]
    wanted = [[f"| `{name}`", size] for name in "ba" for size in ("1 M", "16 M", "1 G")]
    assert [line.split(" | ")[:2] for line in lines] == wanted
    assert "not recorded yet" in sizes_table([])


def test_the_recording_took_little_memory() -> None:
    """If this fails, large tensors were recorded with a second one of their size beside them. At 1 G what
    malloc keeps of freed blocks alone is up to 0.8 GB."""
    rows = recorded_sizes().rows
    assert max(row.shape[0] * row.shape[1] for row in rows) >= 1 << 30
    for row in rows:
        assert row.beside_bytes <= (512e6 if row.shape[0] * row.shape[1] < 1 << 30 else 1 << 30)
