"""One budget in the files of every target: the recording behind docs/exports.md."""

from __future__ import annotations

import pytest

from explorer.checkpoints import EXPORTS
from lab.exports import BITS, recorded_exports

LARGEST = {"onnx": 1e-4, "onnx-nbits": 1e-4, "gguf": 1e-6}
"""Of readers that compute in float32. Others compute in 16 bits, where the order of sums counts:"""
IN_16_BITS = 5e-2


def test_what_is_promised_is_stored() -> None:
    """By every target, to 1 %, in bits of layers and bytes of the model; its reader computes what was
    rounded."""
    rows = recorded_exports().rows
    assert [row.target for row in rows] == list(EXPORTS)
    for row in rows:
        assert row.stored == pytest.approx(row.promised, rel=0.01), row.target
        assert row.bytes_stored == pytest.approx(row.bytes_promised, rel=0.01), row.target
        assert row.promised <= BITS + 0.01 and row.fused == EXPORTS[row.target].fused
        assert row.difference < LARGEST.get(row.target, IN_16_BITS) and row.low < row.loss < row.high
