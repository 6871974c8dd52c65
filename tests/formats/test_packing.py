"""Codes to bytes: if this breaks, stored tensors decode to other numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer import FORMATS
from explorer.formats.packing import pack, pack_bits, packed_row_bytes, unpack, unpack_bits
from tests.new_rows import ROWS


@pytest.mark.parametrize("name", ROWS)
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(0, 4), columns=st.integers(0, 70), seed=st.integers(0, 2**31))
def test_round_trip(name: str, rows: int, columns: int, seed: int) -> None:
    """Any width, any shape: unpack(pack(codes)) is codes, in exactly the bytes promised."""
    fmt = ROWS[name]
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, min(fmt.code_count, 2**31 - 1), (rows, columns), generator=draw).to(
        fmt.code_dtype
    )
    packed = pack(codes, fmt)
    assert packed.shape == (rows, packed_row_bytes(fmt, columns))
    assert torch.equal(unpack(packed, fmt, columns), codes)


def test_layout() -> None:
    """The bytes other tools expect: first code in the low bits, little-endian. Two bits a code for ternary
    are the dense alternative of kernels."""
    for name, codes, want in (
        ("float4_e2m1fn", [2, 7], "72"),
        ("float6_e2m3fn", [8, 31, 40, 1], "C8 87 06"),
        ("int2", [2, 3, 0, 1], "4E"),
        ("binary", [1, 0, 0, 0, 0, 0, 0, 0, 1], "01 01"),
        ("ternary", [2, 1, 0, 2, 1], f"{2 + 3 * 1 + 9 * 0 + 27 * 2 + 81 * 1:02X}"),
        ("int4", [8, 9, 10], "98 0A"),
    ):
        packed = pack(torch.tensor([codes], dtype=torch.uint8), FORMATS[name])
        assert packed[0].numpy().tobytes().hex(" ").upper() == want
    codes = torch.tensor([[0, 1, 2, 1, 2]], dtype=torch.uint8)
    packed = pack_bits(codes, 2)
    assert packed.tolist() == [[0b01100100, 0b10]] and torch.equal(unpack_bits(packed, 2, 5), codes)


def test_all_243_ternary_bytes() -> None:
    """Every combination of five ternary codes has a byte of its own."""
    digits = torch.cartesian_prod(*[torch.arange(3, dtype=torch.uint8)] * 5)
    assert torch.equal(unpack(pack(digits, FORMATS["ternary"]), FORMATS["ternary"], 5), digits)


def test_wrong_width_is_refused() -> None:
    """A file whose rows have another width is refused, not shifted by a few codes."""
    with pytest.raises(ValueError, match="2 bytes a row, got 3"):
        unpack(torch.zeros(1, 3, dtype=torch.uint8), FORMATS["int4"], 4)
