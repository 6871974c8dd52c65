"""One budget in the files of every target: the table of docs/exports.md.

If these fail, the page promises sizes that files do not have, or names a reader that computes something else.
"""

from __future__ import annotations

import pytest

from explorer.checkpoints import EXPORTS
from lab.exports import BITS, ExportRow, exports_measured, recorded_exports

ROWS = recorded_exports().rows
LARGEST = {"onnx": 1e-4, "onnx-nbits": 1e-4, "gguf": 1e-6}
"""Of readers that compute in float32. Others compute in 16 bits, where the order of sums counts:"""
IN_16_BITS = 5e-2


def test_every_target_is_there() -> None:
    """A target without a row was opened by nobody."""
    assert [row.target for row in ROWS] == list(EXPORTS)
    assert exports_measured(ROWS).count("\n") == len(ROWS) + 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.target)
def test_what_is_promised_is_stored(row: ExportRow) -> None:
    """To 1 %, in bits of the layers and in bytes of the model; and the reader computes what was rounded."""
    assert row.stored == pytest.approx(row.promised, rel=0.01)
    assert row.bytes_stored == pytest.approx(row.bytes_promised, rel=0.01)
    assert row.promised <= BITS + 0.01 and row.fused == EXPORTS[row.target].fused
    assert row.difference < LARGEST.get(row.target, IN_16_BITS)
    assert row.low < row.loss < row.high
