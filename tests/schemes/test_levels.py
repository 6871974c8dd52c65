"""Scales that are themselves quantized, and blocks across the ends of rows: files, searches, blocks.

If these fail, GGUF's K-quants or QLoRA's scales are counted, saved or restored wrongly.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from explorer import CALIBRATORS, SCHEMES, Scheme, compare, quantize, quantize_with_scales
from explorer.analysis.report import Report
from explorer.core.file import load as load_quantized
from explorer.core.file import save_quantized
from explorer.export.ggml import row_bytes
from explorer.schemes import join_scales
from explorer.schemes.calibrators import MINMAX
from explorer.schemes.levels import DYNAMIC_MAP, round_scale
from explorer.sources.samples import SAMPLES

K_QUANTS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
DOUBLE = "nf4_block64_double"
FLAT_DOUBLE = "nf4~flat64~symmetric~nested~minmax~reciprocal~unrounded"
FLAT = "int4~flat64~asymmetric~float16~minmax"


@pytest.fixture(scope="module")
def layer() -> Tensor:
    return SAMPLES["attention_query"].load().values


def test_k_quants_restore_by_integers_under_float16(layer: Tensor) -> None:
    """Scales and minimums are whole numbers of their widths times one float16 number per 256 elements."""
    for name in (*K_QUANTS, "iq4_xs"):
        q = quantize(layer[:40], SCHEMES[name])
        upper, rule = q.scales.upper, SCHEMES[name].scale
        assert upper is not None and rule is not None and rule.super_bits is not None
        signed = q.scales.offsets is None
        whole = q.scales.stored
        assert torch.equal(whole, whole.round()) and int(whole.max() - whole.min()) < 2**rule.super_bits
        assert bool((whole >= 0).all()) != signed
        assert torch.equal(upper.scale.to(torch.float16).float(), upper.scale)
        blocks = 256 // (SCHEMES[name].block[1] or 1)
        assert torch.equal(upper.scale[:, :blocks], upper.scale[:, :1].expand(-1, blocks))
        assert signed or bool((q.scales.offsets <= 0).all())


SQNR = {
    "q2_k": (9.58, 11.48, 10.45), "q3_k": (16.09, 16.59, 16.32), "q4_k": (22.03, 22.75, 22.83),
    "q5_k": (28.27, 28.64, 28.76), "q6_k": (34.41, 34.63, 34.90),
    "iq4_nl": (21.86, 22.36, 22.27), "iq4_xs": (21.78, 22.24, 22.21),
}  # fmt: skip
"""dB on a layer of all-MiniLM-L6-v2: rounded to nearest on min-max ranges, by our search, by llama.cpp's."""


@pytest.mark.parametrize("name", SQNR)
def test_the_searches_of_llama_cpp_pay(name: str, layer: Tensor) -> None:
    """Ours minimizes the squared error. llama.cpp's weighs it, more for large values: the error is larger at
    two and three bits than ours, and smaller from four on, where it tries more ranges."""

    def sqnr(scheme: Scheme) -> float:
        report: Report = compare(layer, quantize(layer, scheme))
        return report.sqnr_db

    row = SCHEMES[name]
    ours = dataclasses.replace(row.with_ranges_by(CALIBRATORS["mse"]), least_squares_scale=True)
    plain = dataclasses.replace(ours, calibrator=MINMAX, least_squares_scale=False)
    assert (sqnr(plain), sqnr(ours), sqnr(row)) == pytest.approx(SQNR[name], abs=0.01)
    assert "~mse~fit" in str(ours) and "-ggml" not in str(ours)


@pytest.mark.parametrize(("bits", "least"), [(6, -32), (8, -128)])
def test_the_largest_signed_scale_is_the_least_integer(bits: int, least: int) -> None:
    """-2^(b-1) reaches one farther than 2^(b-1) - 1: GGUF's Q3_K and Q6_K store the largest magnitude so."""
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(0))
    q = quantize(x, Scheme.parse(f"int6~1x16~signed_max~super{bits}~minmax"))
    stored = q.scales.stored.view(4, 2, 16)
    first = stored.gather(2, stored.abs().argmax(2, keepdim=True))
    assert bool((first == least).all())
    raw = x.view(4, 2, 16, 16)
    largest = raw.flatten(2).abs().amax(2) / 32  # the largest |x| is -32 of the largest scale
    assert q.scales.upper is not None
    above = q.scales.upper.scale.view(4, 2, 16)[:, :, 0].abs()
    torch.testing.assert_close(above, (largest / -least).half().float(), rtol=2**-10, atol=2.0**-24)


def test_integers_of_scales_have_one_zero(tmp_path: Path) -> None:
    """A scale of -0.0 would be +0.0 once read back, and the values restored by it other bits."""
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    x[:, :128] *= -1e-6  # scales that round to no unit of the super-block
    for name in K_QUANTS:
        q, path = quantize(x, SCHEMES[name]), tmp_path / "q.safetensors"
        assert not bool((torch.signbit(q.scales.stored) & (q.scales.stored == 0)).any())
        save_quantized(q, path)
        loaded = load_quantized(path).dequantize()
        assert torch.equal(loaded.view(torch.int32), q.dequantize().view(torch.int32))


def test_ggml_has_whole_super_blocks_only() -> None:
    """What llama.cpp cannot read is refused, with what it asks for."""
    for name, columns, words in (
        ("q4_k", 384, "384.*256"),
        ("int4~1x16~minimum~super6~minmax", 256, "q2_k"),
    ):
        with pytest.raises(ValueError, match=words):
            row_bytes(quantize(torch.randn(2, columns), Scheme.parse(name)))


def test_doubly_quantized_scales_are_of_a_whole_tensor() -> None:
    """Scales found for one part after another have other means: joined they would not fit a file."""
    parts = [quantize(torch.randn(4, 128), SCHEMES[DOUBLE]).scales for _ in range(2)]
    with pytest.raises(ValueError, match="whole tensor"):
        join_scales(parts, 0)


@pytest.mark.parametrize("name", ["int4_group64", "int4_group64_asym", "nf4_block64_bnb", DOUBLE])
def test_flat_blocks_are_blocks_of_rows_where_rows_are_whole_blocks(name: str, layer: Tensor) -> None:
    row = SCHEMES[name]
    flat = dataclasses.replace(row, block=(None, 64), flat=True)
    q, want = quantize(layer, flat), quantize(layer, row)
    assert torch.equal(q.packed, want.packed) and torch.equal(q.dequantize(), want.dequantize())
    assert q.scales.stored.shape == (1, want.scales.stored.numel())
    assert q.nbytes == want.nbytes


@pytest.mark.parametrize("text", [FLAT, FLAT_DOUBLE, "int4~flat64~full~float16~mse~fit"])
@pytest.mark.parametrize("seed", [None, 3])
def test_flat_blocks_are_those_of_one_long_row(text: str, seed: int | None) -> None:
    """Across the ends of rows, stochastic rounding included: as if the tensor were one row."""
    scheme = dataclasses.replace(Scheme.parse(text), seed=seed)
    x = torch.randn(9, 77)
    one_row = dataclasses.replace(scheme, block=(1, 64), flat=False)
    q, want = quantize(x, scheme), quantize(x.view(1, -1), one_row)
    assert torch.equal(q.codes.reshape(1, -1), want.codes) and torch.equal(q.scales.scale, want.scales.scale)
    assert torch.equal(q.dequantize().view(1, -1), want.dequantize())
    assert compare(x, q).mse == pytest.approx(compare(x.view(1, -1), want).mse)
    with pytest.raises(ValueError, match="11 blocks"):
        quantize_with_scales(x, scheme, quantize(x[:3], scheme).scales)


@pytest.mark.parametrize("name", ["q4_k", "q6_k", DOUBLE])
def test_a_file_with_a_wrong_upper_level_is_refused(name: str, tmp_path: Path) -> None:
    """A missing or misshapen part of the level above is named."""
    q, path = quantize(torch.randn(3, 512), SCHEMES[name]), tmp_path / "q.safetensors"
    save_quantized(q, path)
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    part = tensors.pop("tensor.super_scale")
    save_file(tensors, path, about)
    with pytest.raises(ValueError, match="super_scale"):
        load_quantized(path)
    save_file({**tensors, "tensor.super_scale": part[:1, None].clone()}, path, about)
    with pytest.raises(ValueError, match=r"tensor\.super_scale"):
        load_quantized(path)


def test_the_map_of_doubly_quantized_scales_is_bitsandbytes(layer: Tensor) -> None:
    """256 ascending levels; the numbers of ``bitsandbytes.functional.create_dynamic_map`` where its parts
    begin and end. Stored scales are levels of it, near the scales that they stand for."""
    assert len(DYNAMIC_MAP) == 256 and bool((DYNAMIC_MAP.diff() > 0).all())
    assert DYNAMIC_MAP[-3:].tolist() == pytest.approx([0.97890625, 0.99296875, 1.0])
    least = DYNAMIC_MAP[DYNAMIC_MAP > 0]
    assert len(least) == 128 and least[:2].tolist() == pytest.approx([5.5e-7, 3.25e-6])
    scales = quantize(layer, SCHEMES[DOUBLE]).scales
    assert scales.unrounded is not None and bool(torch.isin(scales.stored, DYNAMIC_MAP).all())
    worst = (scales.scale - scales.unrounded).abs().max() / scales.unrounded.abs().max()
    assert 0 < float(worst) < 0.01


def test_a_scale_at_the_mean_lies_above_the_middle() -> None:
    """Of 65536 even steps none is 0: bitsandbytes rounds it up, to 1 / 65535."""
    x = torch.tensor([0.0, 1.0, 2.0]).repeat_interleave(64).view(1, -1)
    nearest = DYNAMIC_MAP[(DYNAMIC_MAP - 1 / 65535).abs().argmin()]
    assert float(quantize(x, SCHEMES[DOUBLE]).scales.stored.flatten()[1]) == float(nearest)


def test_a_scale_that_rounds_to_zero_is_the_format_s_eps() -> None:
    """compressed-tensors' rule: 0 alone is replaced, by eps; a 1 stays."""
    rule = SCHEMES["nvfp4_vllm"].scale
    assert rule is not None and rule.format.name == "float8_e4m3fn"
    stored = round_scale(torch.tensor([1e-9, 1.0, 3.0, -1e-9]), rule)
    assert stored.tolist() == [rule.format.eps, 1.0, 3.0, -rule.format.eps]
