"""Quantization as torch operators: ``torch.ops.explorer.quantize``, ``.dequantize``, ``.fake_quantize``,
``.static_quantize`` and ``.learned_quantize``.

One name for every device: the kernels run on a GPU, the reference elsewhere. The operators know the shapes of
fake tensors, so ``torch.compile`` does not break on them, and fake quantization has a gradient. They take a
scheme as its text: anything that ``Scheme.parse`` reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from explorer.core.backend import backend_for
from explorer.core.encode import not_clipped
from explorer.core.quantize import QuantizedTensor, check_matrix, quantize
from explorer.formats import IntegerFormat
from explorer.formats.packing import packed_row_bytes
from explorer.schemes import Scales, Scheme
from explorer.schemes.calibrators import Range
from explorer.schemes.text import checked_text


@torch.library.custom_op("explorer::quantize", mutates_args=())
def quantize_op(x: Tensor, scheme: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return packed codes uint8 [rows, bytes], scales float32 [grid], zero points int8 [grid] and tensor
    scale float32 [1].

    Symmetric schemes have zero points [0, 0]; schemes with offsets have float32 offsets [grid] there. The
    tensor scale is [0] without two levels. Scales that are themselves quantized are returned dequantized.
    """
    q = quantize(x, Scheme.parse(scheme))
    zero, top = q.scales.zero_points, q.scales.tensor_scale
    zero = q.scales.offsets if zero is None else zero
    return (
        q.packed.clone(),
        _stored(q.scales).clone(),
        zero.clone() if zero is not None else x.new_empty((0, 0), dtype=torch.int8),
        top.reshape(1).clone() if top is not None else x.new_empty(0, dtype=torch.float32),
    )


def _stored(scales: Scales) -> Tensor:
    """Return stored scales float32 [grid] that the tensor scale multiplies, or both levels multiplied."""
    return scales.stored if scales.upper is None else scales.scale


@quantize_op.register_fake
def _(x: Tensor, scheme: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    row = Scheme.parse(scheme)
    grid = row.grid((x.shape[0], x.shape[1]))
    two_level = row.scale is not None and row.scale.per_tensor
    return (
        x.new_empty((x.shape[0], packed_row_bytes(row.format, x.shape[1])), dtype=torch.uint8),
        x.new_empty(grid, dtype=torch.float32),
        x.new_empty(
            grid if row.asymmetric or row.mapping.has_offset else (0, 0),
            dtype=torch.float32 if row.mapping.has_offset else torch.int8,
        ),
        x.new_empty(1 if two_level else 0, dtype=torch.float32),
    )


@torch.library.custom_op("explorer::dequantize", mutates_args=())
def dequantize_op(
    packed: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    tensor_scale: Tensor,
    scheme: str,
    columns: int,
    dtype: torch.dtype,
) -> Tensor:
    """Dequantize the four results of ``quantize`` to a matrix [rows, columns]."""
    row, zero = Scheme.parse(scheme), zero_points if zero_points.numel() else None
    stored = Scales.of(
        row,
        scales,
        None if row.mapping.has_offset else zero,
        tensor_scale.reshape(()) if tensor_scale.numel() else None,
        zero if row.mapping.has_offset else None,
    )
    return QuantizedTensor(packed, stored, row, (packed.shape[0], columns)).dequantize(dtype)


@dequantize_op.register_fake
def _(
    packed: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    tensor_scale: Tensor,
    scheme: str,
    columns: int,
    dtype: torch.dtype,
) -> Tensor:
    return packed.new_empty((packed.shape[0], columns), dtype=dtype)


@torch.library.custom_op("explorer::fake_quantize", mutates_args=())
def fake_quantize_op(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Quantize ``x`` [rows, cols] and restore it in its own dtype; also bool [rows, cols]: True where not
    clipped."""
    check_matrix(x)
    return backend_for(x).fake_quantize(x.detach(), Scheme.parse(scheme))


@fake_quantize_op.register_fake
def _(x: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape, dtype=torch.bool)


@torch.library.custom_op("explorer::static_quantize", mutates_args=())
def static_quantize_op(x: Tensor, low: Tensor, high: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Quantize ``x`` [rows, cols] under the ranges ``low`` ... ``high`` (float32 [grid]) and restore it in
    its own dtype; also bool [rows, cols]: True where not clipped."""
    q = quantize(x, Scheme.parse(scheme), clip_range=Range(low, high))
    return q.dequantize(x.dtype), inside_range(x.float(), q)


@static_quantize_op.register_fake
def _(x: Tensor, low: Tensor, high: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(x.shape, dtype=torch.bool)


def _keep_mask(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]
) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.others = len(inputs) - 1  # type: ignore[attr-defined]


def _masked_gradient(
    ctx: torch.autograd.function.FunctionCtx, gradient: Tensor, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradient: dL/dx = dL/dx̂ where the code was inside its range, 0 where it was clipped."""
    (mask,) = ctx.saved_tensors  # type: ignore[attr-defined]
    return gradient * mask, *(None,) * ctx.others  # type: ignore[attr-defined]


fake_quantize_op.register_autograd(_masked_gradient, setup_context=_keep_mask)
static_quantize_op.register_autograd(_masked_gradient, setup_context=_keep_mask)


class _Unchanged(torch.autograd.Function):
    """Autograd function that returns ``restored`` exactly, and passes the gradient to ``x`` unchanged."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, restored: Tensor) -> Tensor:
        return restored.view_as(restored)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@torch.library.custom_op("explorer::learned_quantize", mutates_args=())
def learned_quantize_op(x: Tensor, step: Tensor, scheme: str) -> Tensor:
    """Compute step · round(clip(x / step)) of ``x`` [rows, cols] under float32 step sizes [grid], in x's
    dtype."""
    return backend_for(x).learned_quantize(x, step, _learnable(Scheme.parse(scheme), x, step))


@learned_quantize_op.register_fake
def _(x: Tensor, step: Tensor, scheme: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("explorer::learned_quantize_backward", mutates_args=())
def learned_quantize_backward_op(
    x: Tensor, upstream: Tensor, step: Tensor, scheme: str
) -> tuple[Tensor, Tensor]:
    """Compute dL/dx, and dL/dstep [grid] with LSQ's gradient scale 1/√(elements of a block · largest
    code)."""
    row = _learnable(Scheme.parse(scheme), x, step)
    gradient, sums = backend_for(x).learned_gradients(x, upstream, step, row)
    elements = (row.block[0] or x.shape[0]) * (row.block[1] or x.shape[1])
    return gradient, sums / (max(elements, 1) * row.code_limits[1]) ** 0.5


@learned_quantize_backward_op.register_fake
def _(x: Tensor, upstream: Tensor, step: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(step)


def check_learnable(scheme: Scheme) -> None:
    """Raise ``ValueError`` unless step sizes alone restore a weight under ``scheme``: integers without zero
    points or offsets, with one scale for each block."""
    shifted = scheme.asymmetric or scheme.mapping.has_offset
    if not isinstance(scheme.format, IntegerFormat) or shifted:
        raise ValueError(f"step sizes are learned for symmetric integer schemes, not for {str(scheme)!r}")
    if scheme.flat or (scheme.scale is not None and scheme.scale.has_upper_level):
        raise ValueError(
            f"step sizes are learned for blocks that have one scale each, not for {str(scheme)!r}"
        )


def _learnable(scheme: Scheme, x: Tensor, step: Tensor) -> Scheme:
    check_learnable(scheme)
    grid = scheme.grid((x.shape[0], x.shape[1]))
    if tuple(step.shape) != grid or step.dtype != torch.float32:
        raise ValueError(
            f"expected float32 steps {list(grid)} for this tensor, got {step.dtype} {list(step.shape)}"
        )
    return scheme


def _keep_learned(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor, str], output: Tensor
) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.scheme = inputs[2]  # type: ignore[attr-defined]


def _learned_step(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, step = ctx.saved_tensors  # type: ignore[attr-defined]
    dx, ds = torch.ops.explorer.learned_quantize_backward(x, gradient, step, ctx.scheme)  # type: ignore[attr-defined]
    return dx, ds, None


learned_quantize_op.register_autograd(_learned_step, setup_context=_keep_learned)


def _check_readable(scheme: Scheme) -> None:
    checked_text(scheme)


# torch.compile does not trace the comparison of table rows. torch.compiler.assume_constant_result sets this
# mark, but imports torch._dynamo for it: that takes as long as torch itself, at every start.
_check_readable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def learned_quantize(x: Tensor, step: Tensor, scheme: Scheme) -> Tensor:
    """Quantize and restore ``x`` of any rank by LSQ (Esser et al., arXiv 1902.08153) under learned positive
    step sizes [grid].

    dL/dx passes where x / step lies strictly inside the codes; dL/dstep is scaled by 1/√(elements of a block
    · largest code). Symmetric integer schemes only (``ValueError``).
    """
    _check_readable(scheme)
    return torch.ops.explorer.learned_quantize(_as_matrix(x), step, scheme.text).reshape(x.shape)


def fake_quantize(x: Tensor, scheme: Scheme) -> Tensor:
    """Quantize and dequantize ``x`` of any rank, with a straight-through gradient that is zero for clipped
    values.

    The last axis is the row; leading axes are merged for quantization and restored.
    """
    _check_readable(scheme)
    restored, _ = torch.ops.explorer.fake_quantize(_as_matrix(x), scheme.text)
    return restored.reshape(x.shape)


def parts(q: QuantizedTensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four results of the operator ``quantize`` that ``dequantize`` restores ``q`` from."""
    empty = q.packed.new_empty(0)
    zero = q.scales.zero_points if q.scales.offsets is None else q.scales.offsets
    return (
        q.packed,
        _stored(q.scales),
        empty.view(0, 0) if zero is None else zero,
        empty if q.scales.tensor_scale is None else q.scales.tensor_scale.reshape(1),
    )


def restored(q: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    """Apply ``q.dequantize(dtype)`` as an operator that ``torch.compile`` traces."""
    return torch.ops.explorer.dequantize(*parts(q), q.scheme.text, q.shape[1], dtype)


def static_quantize(x: Tensor, clip_range: Range, scheme: Scheme) -> Tensor:
    """Apply ``fake_quantize`` under a given range: ``clip_range`` float32 [grid]."""
    restored, _ = torch.ops.explorer.static_quantize(
        _as_matrix(x), clip_range.low, clip_range.high, scheme.text
    )
    return restored.reshape(x.shape)


def straight_through(x: Tensor, scheme: Scheme) -> Tensor:
    """Quantize and dequantize ``x`` of any rank; the gradient passes unchanged."""
    return _Unchanged.apply(x, fake_quantize(x.detach(), scheme))


def inside_range(x: Tensor, q: QuantizedTensor) -> Tensor:
    """Return bool [rows, cols]: True where rounding alone keeps float32 ``x`` among the codes of ``q``, so
    nothing is clipped."""
    return not_clipped(x, q.scales, q.scheme)


def _as_matrix(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]) if x.dim() != 1 else x.reshape(1, -1)
