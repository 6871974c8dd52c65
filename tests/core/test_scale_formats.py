"""Every format that can hold scales: quantized, saved and loaded, bit for bit.

If these fail, a scheme whose scales have that format can be chosen but not saved, or comes back changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from explorer import FORMATS, Scheme, compare, quantize
from explorer.core.file import load as load_quantized
from explorer.core.file import save_quantized
from explorer.core.lowering import config_of, raw_scales
from explorer.formats import E8M0, FloatFormat
from explorer.schemes import ExponentRule, ScaleRule, text
from tests.new_rows import ROWS, UE5M3

SCALE_FORMATS: dict[str, FloatFormat] = {
    fmt.name: fmt for fmt in ROWS.values() if isinstance(fmt, FloatFormat) and fmt.holds_scales
}


def scheme_with(name: str) -> Scheme:
    """FP8 codes in blocks of 32 under scales of the format called ``name``."""
    fmt = SCALE_FORMATS[name]
    rule = ScaleRule(fmt, ExponentRule.FLOOR if fmt is E8M0 else None)
    return Scheme(f"scales_{name}", "t", FORMATS["float8_e4m3fn"], (1, 32), rule)


@pytest.mark.parametrize("name", SCALE_FORMATS)
def test_scales_survive_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file holds their codes, and loading gives the same codes, scales and values."""
    scheme = scheme_with(name)
    assert scheme.scale is not None
    monkeypatch.setitem(text.SCALE_RULES, scheme.scale.word, scheme.scale)
    x = torch.randn(7, 100, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 7)[:, None]
    q = quantize(x, scheme)
    save_quantized(q, tmp_path / "t.safetensors")
    with safe_open(tmp_path / "t.safetensors", framework="pt") as file:
        assert file.get_tensor("tensor.scale").dtype == SCALE_FORMATS[name].stored_dtype
    loaded = load_quantized(tmp_path / "t.safetensors")
    assert torch.equal(loaded.packed, q.packed)
    assert torch.equal(loaded.scales.stored.view(torch.int32), q.scales.stored.view(torch.int32))
    assert torch.equal(loaded.dequantize().view(torch.int32), q.dequantize().view(torch.int32))


@pytest.mark.parametrize("name", SCALE_FORMATS)
def test_stored_scales_are_the_formats_codes(name: str) -> None:
    """What is stored are the format's own codes: kernels and files hold the same bytes."""
    scheme, fmt = scheme_with(name), SCALE_FORMATS[name]
    q = quantize(torch.randn(64, 320, generator=torch.Generator().manual_seed(1)).exp(), scheme)
    raw = raw_scales(q.scales, scheme)
    codes = fmt.encode(q.scales.stored).contiguous()
    assert torch.equal(raw.view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(fmt.from_stored(raw), fmt.decode(codes))
    assert config_of(scheme).scale_dtype == raw.dtype


def test_what_fills_no_bytes_is_no_scale() -> None:
    """Scales of 4 or 6 bits are refused where the scheme is made, not when its file is written."""
    for fmt in (row for row in FORMATS.values() if isinstance(row, FloatFormat)):
        rule = ExponentRule.FLOOR if fmt is E8M0 else None
        if fmt.holds_scales:
            assert ScaleRule(fmt, rule).format.stored_dtype.itemsize * 8 == fmt.bits
        else:
            with pytest.raises(ValueError, match=f"{fmt.label}'s {fmt.bits}"):
                ScaleRule(fmt, rule)


def test_a_format_for_scales_only_is_no_element() -> None:
    """By its row, whichever format it is; its range and mantissa decide what FP4 loses by its scales."""
    with pytest.raises(ValueError, match="UE5M3"):
        Scheme("t", "t", UE5M3, (1, 16))
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(3))
    usual = quantize(x, Scheme("t", "t", FORMATS["float4_e2m1fn"], (1, 16), ScaleRule(FORMATS["float16"])))
    stored = quantize(x, Scheme("t", "t", FORMATS["float4_e2m1fn"], (1, 16), ScaleRule(UE5M3)))
    assert 20 < compare(x, stored).sqnr_db < compare(x, usual).sqnr_db + 0.2
