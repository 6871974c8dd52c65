"""Layouts of an operand that kernels read: pure functions of a ``QuantizedTensor``.

Layouts of W are computed once, when a model is loaded; layouts of X are part of quantizing it.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from explorer.core.cuda import fake_quantize_on_device, quantize_on_device
from explorer.core.lowering import config_of, layout_of, raw_scales
from explorer.core.quantize import QuantizedTensor
from explorer.formats import FORMATS, CodebookFormat, FloatFormat, Format, IntegerFormat
from explorer.gpu.dequantize import builds as dequantize_builds
from explorer.gpu.dequantize import dequantize as dequantize_kernel
from explorer.gpu.gemm import (
    CPP_TYPES,
    Codes,
    OperandType,
    ScalePlace,
    Tiles,
    Weight,
    padded_columns,
    padded_rows,
    repack,
    two_bit_rows,
)
from explorer.gpu.quantize import builds as quantize_builds
from explorer.gpu.runtime import Build, on_device_of
from explorer.products.operands import Operand
from explorer.schemes import Scheme

TYPICAL_SHAPES = ((64, 2048), (64, 4096), (64, 8192))
"""Shapes of operands that are quantized or dequantized in the call, for which kernels are compiled ahead
of time. Other numbers of columns may need other builds, which are compiled at first use."""
ACTIVATION_ROWS = 16
"""Activations are padded to multiples of this, the kernels' smallest step along K."""


def byte_rows(q: QuantizedTensor) -> Tensor:
    """Packed codes, uint8 [rows, bytes], each row padded to whole reads of tensor cores."""
    return padded_rows(q.packed)


def code_sums(q: QuantizedTensor) -> Tensor:
    """Sum of each row's int8 codes, int32 [rows]."""
    return q.packed.view(torch.int8).sum(1, dtype=torch.int32)


def zero_points(q: QuantizedTensor) -> Tensor:
    """Zero points, int32 [rows]; 0 for symmetric schemes."""
    zeros, rows = q.scales.zero_points, q.shape[0]
    if zeros is None:
        return torch.zeros(rows, dtype=torch.int32, device=q.packed.device)
    return zeros.reshape(-1).to(torch.int32).expand(rows).contiguous()


def codes_on_grid(q: QuantizedTensor) -> Codes:
    """Codes with scales on their grid of blocks, for kernels that decode as they go; a cast has no scale."""
    layout, zeros = layout_of(q.shape, q.scheme), q.scales.zero_points
    return Codes(
        q.packed.contiguous(),
        q.scales.scale.contiguous() if q.scheme.scale is not None else None,
        None if zeros is None else zeros.contiguous(),
        layout.height,
        layout.width,
        layout.grid[1],
        q.scheme.format.cuda_codec,
        per_byte_of(q.scheme.format),
    )


# --- scales ----------------------------------------------------------------------------------------


def scale_vector(q: QuantizedTensor) -> Tensor | None:
    """Scales that are constant along K, float32 [rows] or [1]; None for a cast."""
    if q.scheme.scale is None:
        return None
    return q.scales.scale.reshape(-1).to(torch.float32).contiguous()


def tensor_scale(q: QuantizedTensor) -> Tensor | None:
    """Scale above the scales of blocks (NVFP4), float32 [1]; None without one."""
    scale = q.scales.tensor_scale
    if scale is None:
        return None
    scale = (scale.reciprocal() if q.scales.divided else scale).reshape(1).float()
    return scale if scale.data_ptr() % 16 == 0 else scale.clone()  # a part of what a kernel wrote


def x_block_scales(q: QuantizedTensor) -> Tensor:
    """Block scales of X, float32 [K/128, M], in rows of whole 16 bytes as bulk copies read them."""
    return padded_columns(q.scales.scale.t(), 4)


def w_block_scales(q: QuantizedTensor) -> Tensor:
    """Block scales of W, float32 [N/128, K/128]."""
    return q.scales.scale.contiguous()


def w_group_scales(q: QuantizedTensor, groups: int) -> Tensor:
    """Group scales of W, float32 [groups, N], zeros beyond K's own groups."""
    scales = q.scales.scale.t()
    return torch.nn.functional.pad(scales, (0, 0, 0, groups - scales.shape[0])).contiguous()


MOST_FOLDED = {OperandType.S8: 127.0, OperandType.E4M3: 448.0}
"""Largest 8-bit value of each row of W after folding."""


def folded_groups(q: QuantizedTensor, kind: OperandType) -> tuple[Tensor, Tensor]:
    """Split the group scales into factors of the codes, float32 [N, groups], and a scale of each row, float32
    [N].

    The largest code times factor of each row is ``MOST_FOLDED``.
    """
    (rows, columns), most = q.shape, MOST_FOLDED[kind]
    largest = q.dequantize().abs().amax(1) if columns else q.scales.scale.new_zeros(rows)
    of_row = torch.where(largest > 0, largest, 1.0).float() / most
    return (q.scales.scale.float() / of_row[:, None]).contiguous(), of_row


def folded_weights(q: QuantizedTensor, kind: OperandType) -> Tensor:
    """Values of W after its group scales were folded into bytes: float32 [N, K], on any device.

    Groups far below the largest of their row lose steps: INT8 leaves 127 / f steps to a group that is f times
    smaller.
    """
    ratios, of_row = folded_groups(q, kind)
    each = ratios.repeat_interleave(q.scheme.block[1] or q.shape[1], 1)[:, : q.shape[1]]
    values = q.scheme.format.decode(q.codes).float() * each
    values = values.round() if kind is OperandType.S8 else values.to(torch.float8_e4m3fn).float()
    return values * of_row[:, None]


def scale_bytes(q: QuantizedTensor) -> Tensor:
    """Scales in their own 8-bit format, uint8 [rows, blocks]."""
    return raw_scales(q.scales, q.scheme)


# --- weights that are decoded in registers -----------------------------------------------------------


def weight_of(scheme: Scheme) -> Weight:
    """Layout of W under ``scheme`` for the register kernel; ``ValueError`` for blocks that it does not
    support."""
    fmt, group = scheme.format, scheme.block[1]
    two_bit = 1 if per_byte_of(fmt) else 2 if fmt.bits == 2 else 0
    scale_first = has_byte_scales(scheme)
    read = _codes_read_at_once(fmt.bits, group is None)
    elements = read if scale_first or group is None else min(read, group // 4)
    if scheme.block[0] not in (1, None) or elements < (16 if two_bit else 8):
        raise ValueError(f"weights in blocks of {scheme.block} are not decoded in registers")
    return Weight(
        codec="IntegerCodec<2>" if two_bit else fmt.cuda_codec,
        bits=2 if two_bit else fmt.bits,
        elements=elements,
        scale=CPP_TYPES[_weight_scale_dtype(scheme)],
        grouped=not scale_first,
        zeros=scheme.asymmetric,
        two_bit=two_bit,
    )


def _codes_read_at_once(bits: int, one_scale_a_row: bool) -> int:
    """Number of codes of a row that a lane of the register kernel reads at once: 96 to 256 bits."""
    if bits >= 8:
        return 16
    return 64 if bits <= 2 and one_scale_a_row else 32


def has_byte_scales(scheme: Scheme) -> bool:
    """True if scales are 8-bit floats (E8M0, E4M3): weights are then multiplied by them, exactly, before the
    product."""
    return scheme.scale is not None and scheme.scale.format.bits == 8


def per_byte_of(fmt: Format) -> int:
    """Number of base-three digits in a byte; 0 for plain bits."""
    return fmt.per_byte if isinstance(fmt, CodebookFormat) else 0


def weight_rows(q: QuantizedTensor) -> Tensor:
    """W's packed rows, padded to whole reads of a quad; ternary digits become plain 2-bit codes."""
    how = weight_of(q.scheme)
    packed = two_bit_rows(q.codes.to(torch.uint8)) if how.two_bit == 1 else q.packed
    return padded_rows(packed, how.elements * how.bits // 2)


def tiles_of(scheme: Scheme, x_type: OperandType, on_weights: bool = False) -> Tiles:
    """Layout of W under ``scheme`` for ``gemm_swap_ab`` with an X of this type; ``ValueError`` for blocks
    that it does not support.

    ``on_weights``: weights times scales are rounded to bfloat16; otherwise the sums of groups are scaled.
    """
    fmt, (height, group) = scheme.format, scheme.block
    two_bit = 1 if per_byte_of(fmt) else 2 if fmt.bits == 2 else 0
    if height not in (1, None) or (height is None and group is not None):
        raise ValueError(f"weights in blocks of {scheme.block} are not multiplied from registers")
    if not _decoded(fmt, scheme.asymmetric, x_type):
        kind = "asymmetric " if scheme.asymmetric else ""
        known = ", ".join(f.label for f in FORMATS.values() if _decoded(f, scheme.asymmetric, x_type))
        raise ValueError(
            f"{kind}{fmt.label} weights are not decoded in registers for X of {x_type}; accepted: {known}"
        )
    scales = ScalePlace.SUM if group is not None or scheme.asymmetric else ScalePlace.ROW
    if has_byte_scales(scheme) or (on_weights and scales is ScalePlace.SUM):
        scales = ScalePlace.WEIGHT
    return Tiles(
        x_type,
        2 if two_bit else fmt.bits,
        "IntegerCodec<2>" if two_bit else fmt.cuda_codec,
        two_bit,
        scales,
        min(group or 128, 128),
        CPP_TYPES[_tile_scale_dtype(scheme, scales)],
        scheme.asymmetric,
    )


def _decoded(fmt: Format, asymmetric: bool, x_type: OperandType) -> bool:
    """True if fragments.cuh decodes ``fmt`` for an X of this type: a format with a codec, and an order of
    codes there for its bits and kind. Zero points need X in bfloat16, and fewer than 8 bits."""
    if not fmt.has_codec:
        return False
    whole = isinstance(fmt, IntegerFormat) or bool(per_byte_of(fmt))  # ternary digits are 2-bit integers
    if x_type is OperandType.S8:
        return whole and fmt.bits in (2, 4) and not asymmetric
    if x_type is OperandType.E4M3:
        return whole and fmt.bits == 4 and not asymmetric
    if x_type is not OperandType.BF16:
        return False
    if whole:
        return fmt.bits in (2, 3, 4) or (fmt.bits == 8 and not asymmetric)
    if fmt.bits == 4:  # by a table of values
        return isinstance(fmt, FloatFormat | CodebookFormat)
    return isinstance(fmt, FloatFormat) and fmt.bits in (6, 8)


def _tile_scale_dtype(scheme: Scheme, scales: ScalePlace) -> torch.dtype:
    if scales is ScalePlace.SUM:
        return _weight_scale_dtype(scheme)
    return torch.bfloat16 if scales is ScalePlace.WEIGHT else torch.float32


def tiled_weights(q: QuantizedTensor, tiles: Tiles) -> Tensor:
    """Lay W out as ``repack`` does; ternary digits become plain 2-bit codes. NaN codes are treated as
    numbers: ``quantize`` makes none of finite weights."""
    k, group = q.shape[1], q.scheme.block[1]
    packed = two_bit_rows(q.codes.to(torch.uint8)) if tiles.two_bit == 1 else q.packed
    if tiles.scales is ScalePlace.ROW:
        return repack(packed, None, None, tiles, k, k)
    scales = weight_scales(q).to(_tile_scale_dtype(q.scheme, tiles.scales))
    if isinstance(q.scheme.format, FloatFormat) and tiles.scales is ScalePlace.WEIGHT:
        scales = times_power(scales, folded_exponent(q))
    return repack(packed, scales, weight_zeros(q), tiles, k, group or k)


@on_device_of("x")
def times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """Multiply ``x`` by 2^``exponent``, an int32."""
    # With an integer exponent torch 2.11 launches on the current GPU, wherever the tensors lie:
    #   torch.cuda.set_device(0)
    #   x = torch.ones(4).to("cuda:1")
    #   torch.ldexp(x, x.to(torch.int32))
    #   torch.cuda.synchronize(0)  # an illegal memory access
    return torch.ldexp(x, exponent)


def folded_exponent(q: QuantizedTensor) -> Tensor:
    """Power of two for the scales that multiply weights, int32 [1].

    It brings the largest scale near bfloat16's largest number, as codes' bits stand for 2^(bias - 127) of
    their values. Scales some 2^130 times smaller than the largest of W lose bits.
    """
    largest = weight_scales(q).float().nan_to_num(0.0, 0.0, 0.0).amax().reshape(1)
    return (127 - torch.frexp(largest).exponent).clamp(max=200).to(torch.int32)


def folded_scale(q: QuantizedTensor) -> Tensor:
    """Remaining scale of a whole W, float32 [1]: its own (NVFP4), times the factor that ``folded_exponent``
    and the codes' bits leave."""
    fmt = q.scheme.format
    assert isinstance(fmt, FloatFormat)
    whole = tensor_scale(q)
    one = torch.ones(1, device=q.packed.device) if whole is None else whole
    return times_power(one, 127 - fmt.bias - folded_exponent(q))


def weight_scales(q: QuantizedTensor) -> Tensor:
    """Scales [N, groups]: those of 16 and 32 bits as they are stored, those of 8 bits in bfloat16, which
    holds them exactly."""
    return q.scales.stored.to(_weight_scale_dtype(q.scheme)).expand(q.shape[0], -1).contiguous()


def weight_zeros(q: QuantizedTensor) -> Tensor | None:
    """Zero points, int8 [N, groups]; None for symmetric schemes."""
    zeros = q.scales.zero_points
    return None if zeros is None else zeros.expand(q.shape[0], -1).contiguous()


def _weight_scale_dtype(scheme: Scheme) -> torch.dtype:
    if scheme.scale is None:
        return torch.float32
    return torch.bfloat16 if has_byte_scales(scheme) else scheme.scale.format.stored_dtype


def activation_rows(q: QuantizedTensor, multiple: int = ACTIVATION_ROWS) -> Tensor:
    """X [M, K padded with zeros to ``multiple``] for the register kernel: bfloat16, int8 or E4M3."""
    if q.scheme.format.bits == 16:
        return padded_rows(q.packed, 2 * multiple).view(torch.bfloat16)
    integer = isinstance(q.scheme.format, IntegerFormat)
    return padded_rows(q.packed, multiple).view(torch.int8 if integer else torch.float8_e4m3fn)


# --- both sides in bfloat16 --------------------------------------------------------------------------


def dequantized_rows(q: QuantizedTensor, one: Tensor) -> Tensor:
    """Dequantize to uint8 rows of bfloat16, without the scale of the whole tensor, which the epilogue
    applies: with MX and NVFP4 this is exact. ``one`` float32 [1] replaces that scale."""
    values = dequantize_kernel(
        q.packed,
        raw_scales(q.scales, q.scheme),
        q.scales.zero_points,
        one,
        config_of(q.scheme),
        layout_of(q.shape, q.scheme),
        torch.bfloat16,
    )[0]
    return padded_rows(values.view(torch.uint8))


def builds_of_dequantizing(*schemes: Scheme) -> list[Build]:
    """Builds of ``dequantized_rows`` for ``TYPICAL_SHAPES``."""
    pairs = [(scheme, shape) for scheme in schemes for shape in TYPICAL_SHAPES]
    every = (dequantize_builds(config_of(s), layout_of(shape, s), torch.bfloat16) for s, shape in pairs)
    return list(dict.fromkeys(chain.from_iterable(every)))


def builds_of_quantizing(*schemes: Scheme) -> list[Build]:
    """Builds for ``TYPICAL_SHAPES`` that quantize an operand in the call."""
    pairs = [(scheme, shape) for scheme in schemes for shape in TYPICAL_SHAPES]
    every = (quantize_builds(config_of(s), layout_of(shape, s), torch.bfloat16) for s, shape in pairs)
    return list(dict.fromkeys(chain.from_iterable(every)))


def builds_of_fake_quantizing(*schemes: Scheme) -> list[Build]:
    """Builds of ``fake_quantized_rows`` for ``TYPICAL_SHAPES``."""
    restoring = [config_of(scheme).build("fake_quantize.cu", torch.bfloat16) for scheme in schemes]
    return [*builds_of_quantizing(*schemes), *dict.fromkeys(restoring)]


def fake_quantized_rows(operand: Operand) -> Tensor:
    """Quantize and restore in bfloat16, as uint8 rows."""
    values = operand.values.contiguous()
    scales = quantize_on_device(values, operand.scheme)[1]
    restored = fake_quantize_on_device(values, scales, operand.scheme)[0]
    return padded_rows(restored.to(torch.bfloat16).view(torch.uint8))
