"""The named schemes, as rows of parts, for pickers, the comparison, the tests and the command line.

A name is format, then block: ``tensor``, ``row`` (a weight's output channel, an activation's token),
``column``, ``groupN`` along the row, or rows x columns. ``ALIASES`` holds names of older links, files and
recordings.
"""

from __future__ import annotations

from explorer.formats import E4M3, E8M0, FORMATS, Format, float_format
from explorer.schemes.calibrators import ABSMEAN, CALIBRATORS, TWN
from explorer.schemes.parts import Block
from explorer.schemes.parts import SchemeParts as Row
from explorer.schemes.rules import (
    IQ4_BLOCK,
    IQ4_CODES,
    IQ4_FORMAT,
    IQ4_SCALES,
    K_QUANTS,
    SUPER_BLOCK,
    TQ1_FORMAT,
    CodeRule,
    Convention,
    ExponentRule,
    MappingType,
    ScaleRule,
    Ties,
)

_F16_SCALE, _E4M3_TWO_LEVEL = ScaleRule(float_format("float16")), ScaleRule(E4M3, per_tensor=True)
_FLOOR, _RCEIL = ScaleRule(E8M0, ExponentRule.FLOOR), ScaleRule(E8M0, ExponentRule.RCEIL)
_TENSOR, _ROW, _COLUMN, _TILE = (None, None), (1, None), (None, 1), (128, 128)
_ASYM, _FULL = MappingType.ASYMMETRIC, MappingType.FULL


def _casts() -> list[Row]:
    names = {"fp32": "float32", "tf32": "tfloat32", "bf16": "bfloat16", "fp16": "float16"}
    return [Row(short, FORMATS[name].label, FORMATS[name], scale=None) for short, name in names.items()]


def _fp8() -> list[Row]:
    rows = []
    for short, name in (("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")):
        fmt = FORMATS[name]
        rows += [
            Row(f"fp8_{short}_cast", f"{fmt.label} cast, no scale", fmt, scale=None),
            Row(f"fp8_{short}_tensor", f"{fmt.label} per tensor", fmt, _TENSOR),
            Row(f"fp8_{short}_row", f"{fmt.label} per row", fmt, _ROW),
            Row(f"fp8_{short}_1x128", f"{fmt.label} 1×128", fmt, (1, 128)),
            Row(f"fp8_{short}_128x128", f"{fmt.label} 128×128", fmt, _TILE),
        ]
    rows.append(Row("fp8_e4m3fnuz_row", "FP8 E4M3 FNUZ per row", FORMATS["float8_e4m3fnuz"], _ROW))
    rows.append(Row("fp8_e5m2fnuz_row", "FP8 E5M2 FNUZ per row", FORMATS["float8_e5m2fnuz"], _ROW))
    return rows


def _with_asymmetric(name: str, label: str, fmt: Format, block: Block, scale: ScaleRule) -> list[Row]:
    """Return the symmetric scheme and its variant with zero points."""
    return [
        Row(name, label, fmt, block, scale),
        Row(f"{name}_asym", f"{label}, asymmetric", fmt, block, scale, _ASYM),
    ]


def _integers() -> list[Row]:
    int8, int6, int5, int4, int3, int2 = (FORMATS[f"int{b}"] for b in (8, 6, 5, 4, 3, 2))
    rows = [
        *_with_asymmetric("int8_tensor", "INT8 per tensor", int8, _TENSOR, ScaleRule()),
        *_with_asymmetric("int8_row", "INT8 per row", int8, _ROW, ScaleRule()),
        *_with_asymmetric("int8_column", "INT8 per column (input channel)", int8, _COLUMN, ScaleRule()),
        Row("int8_row_full", "INT8 per row, full range", int8, _ROW, mapping=_FULL),
        Row("int8_group32", "INT8 group 32", int8, (1, 32), _F16_SCALE),
        Row("int8_group128", "INT8 group 128", int8, (1, 128), _F16_SCALE),
    ]
    for fmt in (int6, int5):
        label = f"{fmt.label} group 128"
        rows += _with_asymmetric(f"{fmt.name}_group128", label, fmt, (1, 128), _F16_SCALE)
    for fmt, sizes in ((int4, (32, 64, 128)), (int3, (64, 128))):
        rows += _with_asymmetric(f"{fmt.name}_row", f"{fmt.label} per row", fmt, _ROW, _F16_SCALE)
        for n in sizes:
            rows += _with_asymmetric(
                f"{fmt.name}_group{n}", f"{fmt.label} group {n}", fmt, (1, n), _F16_SCALE
            )
    # With two bits the restricted range would leave one code in four unused: symmetric INT2 uses all four.
    for n in (32, 64, 128):
        name, label, block = f"int2_group{n}", f"INT2 group {n}", (1, n)
        rows += [
            Row(name, f"{label}, amax/2", int2, block, _F16_SCALE, MappingType.POWER),
            Row(f"{name}_full", f"{label}, amax/1.5", int2, block, _F16_SCALE, _FULL),
            Row(f"{name}_asym", f"{label}, asymmetric", int2, block, _F16_SCALE, _ASYM),
        ]
    rows.append(Row("int4_group128_full", "INT4 group 128, full range", int4, (1, 128), _F16_SCALE, _FULL))
    return rows


def _microscaling() -> list[Row]:
    f = FORMATS
    return [
        Row("mxfp8_e4m3", "MXFP8 E4M3 (NVIDIA, RCEIL)", f["float8_e4m3fn"], (1, 32), _RCEIL),
        Row("mxfp8_e4m3_floor", "MXFP8 E4M3 (OCP, FLOOR)", f["float8_e4m3fn"], (1, 32), _FLOOR),
        Row("mxfp8_e5m2", "MXFP8 E5M2 (NVIDIA, RCEIL)", f["float8_e5m2"], (1, 32), _RCEIL),
        Row("mxfp6_e2m3", "MXFP6 E2M3 (OCP, FLOOR)", f["float6_e2m3fn"], (1, 32), _FLOOR),
        Row("mxfp6_e3m2", "MXFP6 E3M2 (OCP, FLOOR)", f["float6_e3m2fn"], (1, 32), _FLOOR),
        Row("mxfp4", "MXFP4 (OCP, FLOOR)", f["float4_e2m1fn"], (1, 32), _FLOOR),
        Row("mxfp4_rceil", "MXFP4 (RCEIL)", f["float4_e2m1fn"], (1, 32), _RCEIL),
        Row("mxfp4_even", "MXFP4 (EVEN)", f["float4_e2m1fn"], (1, 32), ScaleRule(E8M0, ExponentRule.EVEN)),
        Row("mxint8", "MXINT8 (OCP, FLOOR)", f["ocp_int8"], (1, 32), _FLOOR),
        Row("nvfp4", "NVFP4 (E4M3 block 16, FP32 tensor)", f["float4_e2m1fn"], (1, 16), _E4M3_TWO_LEVEL),
        Row("nvfp4_four_over_six", "NVFP4, four over six", f["float4_e2m1fn"], (1, 16), _E4M3_TWO_LEVEL,
            calibrator=CALIBRATORS["four_over_six"]),
    ]  # fmt: skip


def _codebooks() -> list[Row]:
    f, ternary = FORMATS, FORMATS["ternary"]
    return [
        Row("nf4_block64", "NF4 block 64", f["nf4"], (1, 64)),
        Row("af4_block64", "AF4 block 64", f["af4"], (1, 64)),
        Row("ternary_absmean", "Ternary absmean (BitNet b1.58)", ternary, _TENSOR, calibrator=ABSMEAN),
        Row("ternary_absmean_ls", "Ternary absmean, least-squares scale", ternary, _TENSOR,
            calibrator=ABSMEAN, least_squares_scale=True),
        Row("ternary_twn", "Ternary TWN", ternary, _TENSOR, calibrator=TWN, least_squares_scale=True),
        Row("binary_row", "Binary per row (XNOR-Net)", f["binary"], _ROW, calibrator=ABSMEAN),
    ]  # fmt: skip


_CT, _ZERO = Convention.COMPRESSED_TENSORS, Convention.ZERO
_UP = CodeRule(reciprocal=True, unrounded=True, ties=Ties.UP)


def _of_other_libraries() -> list[Row]:
    """List schemes that equal other libraries' bit for bit: docs/conformance.md."""
    f, bf16_ct = FORMATS, ScaleRule(float_format("bfloat16"), convention=_CT)
    in_bf16, bnb = CodeRule(bfloat16=True), ScaleRule(convention=_ZERO)
    return [
        Row("int8_row_vllm", "INT8 per row, as vLLM", f["int8"], _ROW, bf16_ct, _FULL, codes=in_bf16),
        Row("int4_group128_vllm", "INT4 group 128, as vLLM", f["int4"], (1, 128), bf16_ct, _FULL,
            codes=in_bf16),
        Row("int4_group128_asym_vllm", "INT4 group 128, asymmetric, as vLLM", f["int4"], (1, 128), bf16_ct,
            _ASYM, codes=CodeRule(zero_first=True, bfloat16=True)),
        Row("nvfp4_vllm", "NVFP4, as vLLM", f["float4_e2m1fn"], (1, 16),
            ScaleRule(E4M3, per_tensor=True, convention=_CT), codes=in_bf16),
        Row("nf4_block64_bnb", "NF4 block 64, as bitsandbytes", f["nf4"], (1, 64), bnb,
            codes=CodeRule(reciprocal=True)),
        Row("nf4_block64_double", "NF4 block 64, doubly quantized (QLoRA)", f["nf4"], (1, 64),
            ScaleRule(convention=_ZERO, nested=True), codes=CodeRule(reciprocal=True, unrounded=True)),
        Row("fp4_block64_bnb", "FP4 block 64, as bitsandbytes", f["bnb_fp4"], (1, 64), bnb,
            codes=CodeRule(reciprocal=True)),
    ]  # fmt: skip


def _gguf_blocks() -> list[Row]:
    """List GGUF's blocks of 32, of 256 for the ternary types, and of 16 for NVFP4, with scales of their own.

    Bit for bit, but for NVFP4: llama.cpp rounds ties of its codes toward zero and those of its scales up, and
    has 448 for scales from 256 on. It has no scale over the tensor.
    """
    gguf = ScaleRule(float_format("float16"), convention=_ZERO)
    away = CodeRule(reciprocal=True, unrounded=True, ties=Ties.AWAY)
    rows = [Row("q8_0", "GGUF Q8_0", FORMATS["int8"], (1, 32), gguf, codes=away)]
    for bits in (4, 5):
        fmt = FORMATS[f"int{bits}"]
        rows += [
            Row(f"q{bits}_0", f"GGUF Q{bits}_0", fmt, (1, 32), gguf, MappingType.SIGNED_MAX, codes=_UP),
            Row(f"q{bits}_1", f"GGUF Q{bits}_1", fmt, (1, 32), gguf, MappingType.MINIMUM, codes=_UP),
        ]
    # TQ2_0's codes are -1, 0 and 1 in two bits: the restricted range of INT2, whose scale is amax.
    rows.append(Row("tq2_0", "GGUF TQ2_0 (ternary)", FORMATS["int2"], (1, SUPER_BLOCK), gguf, codes=away))
    # TQ1_0's are the same, packed by fives; of codebooks the format says where ties go.
    trits = CodeRule(reciprocal=True, unrounded=True)
    rows.append(
        Row("tq1_0", "GGUF TQ1_0 (ternary)", FORMATS[TQ1_FORMAT], (1, SUPER_BLOCK), gguf, codes=trits)
    )
    e4m3 = ScaleRule(E4M3, convention=_ZERO)
    rows.append(Row("nvfp4_gguf", "GGUF NVFP4", FORMATS["float4_e2m1fn"], (1, 16), e4m3))
    return rows


def _of_llama_cpps_search() -> list[Row]:
    """GGUF's K-quants, IQ4_NL and IQ4_XS, by llama.cpp's search: the same bytes as llama.cpp's.

    K-quants by our own search are spelled, such as ``int4~1x32~minimum~super6~mse~fit`` for Q4_K:
    ranges of least squared error without weights, and scales refitted to the codes. On a 384 x 384 layer of
    all-MiniLM-L6-v2 that gives 11.48, 16.59, 22.75, 28.64 and 34.63 dB, llama.cpp's search 10.45, 16.32,
    22.83, 28.76 and 34.90.
    """
    f16, rows = float_format("float16"), []
    for bits, length, scale_bits, mapping in K_QUANTS:
        rule = ScaleRule(f16, convention=Convention.GGML, super_bits=scale_bits)
        rows.append(Row(f"q{bits}_k", f"GGUF Q{bits}_K", FORMATS[f"int{bits}"], (1, length), rule, mapping))
    levels, signed, block = FORMATS[IQ4_FORMAT], MappingType.SIGNED_MAX, (1, IQ4_BLOCK)
    for bits_of_scale, name in IQ4_SCALES.items():
        rule = ScaleRule(f16, convention=Convention.GGML, super_bits=bits_of_scale)
        rows.append(Row(name.lower(), f"GGUF {name}", levels, block, rule, signed, codes=IQ4_CODES))
    return rows


_ROWS = (
    *_casts(),
    *_fp8(),
    *_integers(),
    *_microscaling(),
    *_codebooks(),
    *_of_other_libraries(),
    *_gguf_blocks(),
    *_of_llama_cpps_search(),
)
ROWS: dict[str, Row] = {row.name: row for row in _ROWS}
NAMES = {row.text: row.name for row in _ROWS}
"""Text of a scheme -> the name of its row."""

_STORED_BY = {
    "int8_row_vllm": "llm-compressor's and vLLM's W8A8 weights of a BF16 checkpoint",
    "int4_group128_vllm": "llm-compressor's and vLLM's W4A16 of a BF16 checkpoint",
    "int4_group128_asym_vllm": "llm-compressor's and vLLM's W4A16, asymmetric, of a BF16 checkpoint",
    "nvfp4_vllm": "llm-compressor's and vLLM's NVFP4 of a BF16 checkpoint",
    "nf4_block64_bnb": "bitsandbytes' NF4",
    "nf4_block64_double": "bitsandbytes' NF4 with double quantization (QLoRA)",
    "fp4_block64_bnb": "bitsandbytes' FP4",
    **{f"q{kind}": f"GGUF's Q{kind}" for kind in ("8_0", "4_0", "4_1", "5_0", "5_1")},
    **{f"tq{kind}": f"GGUF's TQ{kind}" for kind in ("1_0", "2_0")},
    **{f"q{bits}_k": f"GGUF's Q{bits}_K by llama.cpp's own quantizer" for bits, *_ in K_QUANTS},
    **{name.lower(): f"GGUF's {name} by llama.cpp's own quantizer" for name in IQ4_SCALES.values()},
}
STORED_BY: dict[str, str] = {ROWS[name].text: who for name, who in _STORED_BY.items()}
"""The library whose quantization gives the same bits, by scheme text; docs/conformance.md lists
exceptions."""

ALIASES: dict[str, str] = {
    **{f"fp8_{short}_channel": f"fp8_{short}_row" for short in ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")},
    **{f"fp8_{short}_block": f"fp8_{short}_1x128" for short in ("e4m3", "e5m2")},
    **{f"fp8_{short}_tile": f"fp8_{short}_128x128" for short in ("e4m3", "e5m2")},
    **{f"int8_{role}{kind}": f"int8_row{kind}" for role in ("channel", "token") for kind in ("", "_asym")},
    "int8_channel_full": "int8_row_full",
    **{f"{name}_channel{kind}": f"{name}_row{kind}" for name in ("int4", "int3") for kind in ("", "_asym")},
    "binary_channel": "binary_row",
}
"""Earlier names and the names that replaced them. ``Scheme.parse`` accepts both and writes the new one."""
