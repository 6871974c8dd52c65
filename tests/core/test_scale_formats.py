"""Every format that can hold scales: quantized, saved and loaded, bit for bit.

If these fail, a scheme whose scales have that format can be chosen but not saved, or comes back changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from explorer import FORMATS, Scheme, quantize
from explorer.core.lowering import config_of, raw_scales
from explorer.export.quantized import load_quantized, save_quantized
from explorer.formats import E8M0, FloatFormat
from explorer.schemes import ExponentRule, ScaleRule

SCALE_FORMATS = [fmt.name for fmt in FORMATS.values() if fmt.torch_dtype is not None]


def scheme_with(name: str) -> Scheme:
    """FP8 codes in blocks of 32 under scales of the format called ``name``."""
    fmt = FORMATS[name]
    assert isinstance(fmt, FloatFormat)
    rule = ScaleRule(fmt, ExponentRule.FLOOR if fmt is E8M0 else None)
    return Scheme(f"scales_{name}", "t", FORMATS["float8_e4m3fn"], (1, 32), rule)


@pytest.mark.parametrize("name", SCALE_FORMATS)
def test_scales_survive_a_file(name: str, tmp_path: Path) -> None:
    """The file holds them in the format's own dtype, and loading gives the same codes, scales and values."""
    scheme = scheme_with(name)
    x = torch.randn(7, 100, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 7)[:, None]
    q = quantize(x, scheme)
    save_quantized(q, tmp_path / "t.safetensors")
    with safe_open(tmp_path / "t.safetensors", framework="pt") as file:
        assert file.get_tensor("tensor.scale").dtype == FORMATS[name].torch_dtype
    loaded = load_quantized(tmp_path / "t.safetensors")
    assert torch.equal(loaded.packed, q.packed)
    assert torch.equal(loaded.scales.stored.view(torch.int32), q.scales.stored.view(torch.int32))
    assert torch.equal(loaded.dequantize().view(torch.int32), q.dequantize().view(torch.int32))


@pytest.mark.parametrize("name", SCALE_FORMATS)
def test_stored_scales_are_the_formats_codes(name: str) -> None:
    """A cast to the stored dtype gives the format's own codes: kernels and files hold the same bytes."""
    scheme, fmt = scheme_with(name), FORMATS[name]
    q = quantize(torch.randn(64, 320, generator=torch.Generator().manual_seed(1)).exp(), scheme)
    raw = raw_scales(q.scales, scheme)
    codes = fmt.encode(q.scales.stored).contiguous()
    assert torch.equal(raw.view(torch.uint8), codes.view(torch.uint8))
    assert config_of(scheme).scale_dtype == raw.dtype


@pytest.mark.parametrize("name", [n for n, fmt in FORMATS.items() if isinstance(fmt, FloatFormat)])
def test_what_has_no_dtype_is_no_scale(name: str) -> None:
    """A format that torch cannot store is refused where the scheme is made, not when its file is written."""
    fmt = FORMATS[name]
    assert isinstance(fmt, FloatFormat)
    rule = ExponentRule.FLOOR if fmt is E8M0 else None
    if fmt.torch_dtype is None:
        with pytest.raises(ValueError, match=f"no dtype to store {fmt.label} scales in"):
            ScaleRule(fmt, rule)
    else:
        assert ScaleRule(fmt, rule).stored_dtype.itemsize * 8 == fmt.bits
