"""The operations of ``Backend`` by the kernels of ``kernels/``, with the same bits as the reference.

Work without a kernel (least-squares scales per block, calibrators that search, other libraries' conventions,
other dtypes, views) runs through the reference, as torch operations on the GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from explorer.core.encode import as_float32, beyond_bfloat16
from explorer.core.lowering import (
    Lowered,
    config_of,
    has_kernels,
    layout_of,
    lowered,
    raw_scales,
    scales_from,
)
from explorer.core.ranges import check_finite, find_ranges
from explorer.core.reference import Reference
from explorer.error_sums import ErrorSums
from explorer.formats import Format
from explorer.formats.integers import FixedPointFormat
from explorer.gpu import fake_quantize as fake_kernels
from explorer.gpu import runtime, statistics
from explorer.gpu.config import ELEMENTS, Config, Layout
from explorer.gpu.dequantize import dequantize as dequantize_kernel
from explorer.gpu.host_flag import abandon_flag, flag_of_thread
from explorer.gpu.quantize import Output
from explorer.gpu.quantize import quantize as quantize_kernel
from explorer.schemes import Scales, Scheme, fit_scales


class Cuda(Reference):
    """See ``Backend`` for what each operation takes and gives."""

    @runtime.on_device_of("x")
    def quantize(self, x: Tensor, scheme: Scheme, check: bool = True) -> tuple[Tensor, Scales, Tensor | None]:
        capturing, kept = runtime.is_capturing(x.device), lowered(scheme)  # asked once: each time takes µs
        if kept is None:
            if capturing:
                raise ValueError(
                    f"{scheme} is not quantized by kernels but by torch operations that the host waits for: "
                    "a CUDA graph cannot capture it"
                )
            return super().quantize(x, scheme, check)
        if capturing or not check:
            packed, scales, output = _by_plan(x, kept, None, capturing)
            return packed, scales, output.bad
        flag = flag_of_thread()
        try:
            packed, scales, _ = _by_plan(x, kept, flag.address, False)
            runtime.wait(x.get_device())
        except BaseException:
            abandon_flag()
            raise
        if flag.lower():
            check_finite(x)
            find_ranges(x.to(torch.float32), scheme)  # says which ranges are too large
            raise ValueError("values were NaN or Inf when they were quantized, and are others now")
        return packed, scales, None

    @runtime.on_device_of("x")
    def encode(self, x: Tensor, scales: Scales, scheme: Scheme) -> tuple[Tensor, Scales]:
        if scheme.least_squares_scale or not has_kernels(scheme) or not bool(torch.isfinite(x).all()):
            return super().encode(x, scales, scheme)
        return quantize_on_device(x, scheme, scales)[:2]

    @runtime.on_device_of("packed")
    def dequantize(
        self, packed: Tensor, scales: Scales, scheme: Scheme, shape: tuple[int, int], dtype: torch.dtype
    ) -> Tensor:
        if not has_kernels(scheme) or beyond_bfloat16(scheme, dtype):  # the kernel does not saturate there
            return super().dequantize(packed, scales, scheme, shape, dtype)
        config, layout, raw = _config(scheme), layout_of(shape, scheme), raw_scales(scales, scheme)
        zeros, tensor_scale = scales.zero_points, scales.tensor_scale
        return dequantize_kernel(packed, raw, zeros, tensor_scale, config, layout, dtype)[0]

    @runtime.on_device_of("x")
    def fake_quantize(self, x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
        # The kernel's mask has one threshold for both signs; fixed-point numbers reach farther below zero.
        two_ends = isinstance(scheme.format, FixedPointFormat)
        if x.dtype not in ELEMENTS or scheme.least_squares_scale or two_ends or not has_kernels(scheme):
            return super().fake_quantize(x, scheme)
        return fake_quantize_on_device(x.contiguous(), self.quantize(x, scheme)[1], scheme)

    @runtime.on_device_of("x")
    def learned_quantize(self, x: Tensor, step_size: Tensor, scheme: Scheme) -> Tensor:
        if x.dtype not in ELEMENTS or not has_kernels(scheme):
            return super().learned_quantize(x, step_size, scheme)
        return fake_kernels.learned_forward(
            x.contiguous(), step_size.contiguous(), _config(scheme), _layout(x, scheme)
        )

    @runtime.on_device_of("x")
    def learned_gradients(
        self, x: Tensor, upstream: Tensor, step_size: Tensor, scheme: Scheme
    ) -> tuple[Tensor, Tensor]:
        if x.dtype not in ELEMENTS or not has_kernels(scheme):
            return super().learned_gradients(x, upstream, step_size, scheme)
        return fake_kernels.learned_backward(
            x.contiguous(), upstream, step_size.contiguous(), _config(scheme), _layout(x, scheme)
        )

    def error_sums(self, x: Tensor, restored: Tensor, low: Tensor, high: Tensor, scheme: Scheme) -> ErrorSums:
        if scheme.flat or not x.numel():
            return super().error_sums(x, restored, low, high, scheme)
        return statistics.error_sums(
            x.contiguous(), restored.contiguous(), low.contiguous(), high.contiguous(), _layout(x, scheme)
        )

    def histogram(
        self, x: Tensor, low: float, per_width: float, bins: int, minus: Tensor | None = None
    ) -> Tensor:
        if not _plain_float32(x, minus):
            return super().histogram(x, low, per_width, bins, minus)
        return statistics.histogram(x, low, per_width, bins, minus).cpu()

    def byte_counts(self, packed: Tensor) -> Tensor:
        if not packed.is_contiguous():
            return super().byte_counts(packed)
        return statistics.byte_counts(packed).cpu()

    def code_counts(self, packed: Tensor, fmt: Format, columns: int) -> Tensor:
        if not packed.is_contiguous():
            return super().code_counts(packed, fmt, columns)
        return statistics.code_counts(packed, fmt.bits, columns).cpu()

    def tile_maximum(self, x: Tensor, tall: int, wide: int) -> Tensor:
        if not _plain_float32(x, None):
            return super().tile_maximum(x, tall, wide)
        return statistics.tile_maximum(x, tall, wide)


@runtime.on_device_of("x")
def quantize_on_device(
    x: Tensor, scheme: Scheme, scales: Scales | None = None
) -> tuple[Tensor, Scales, Output]:
    """Quantize a CUDA matrix without waiting for the GPU; given ``scales`` are used unchanged.

    float32, bfloat16 and float16 are read directly; other dtypes are converted to float32 first.
    ``Output.bad`` reports NaN and Inf; the caller must read it.
    """
    kept = lowered(scheme)
    if scales is None and kept is not None:
        return _by_plan(x, kept, None, runtime.is_capturing(x.device))
    x = _readable(x, scheme)
    if scales is None:
        output = quantize_kernel(x, _config(scheme), _layout(x, scheme), scheme.seed or 0)
        scales = scales_from(output, scheme, runtime.is_capturing(x.device))
    else:
        per_cell, zeros = scales.scale.contiguous().view(-1), scales.zero_points
        config, layout = _config(scheme), _layout(x, scheme)
        output = quantize_kernel(x, config, layout, scheme.seed or 0, per_cell, zeros)
    return output.packed, _fitted(scales, output, scheme), output


def _by_plan(x: Tensor, kept: Lowered, flag: int | None, capturing: bool) -> tuple[Tensor, Scales, Output]:
    """Quantize on torch's current device by kernels that find the scales. ``flag``: the address that reports
    non-finite values in place of ``Output.bad``."""
    x = _readable(x, kept.scheme)
    output = kept.plan(x).start(x, flag, capturing=capturing)
    scales = scales_from(output, kept.scheme, capturing)
    return output.packed, scales if output.sums is None else _fitted(scales, output, kept.scheme), output


def _readable(x: Tensor, scheme: Scheme) -> Tensor:
    """Convert ``x`` to a dtype and a layout that kernels read."""
    return (x if x.dtype in ELEMENTS else as_float32(x, scheme)).contiguous()


def fake_quantize_on_device(x: Tensor, scales: Scales, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Restore a contiguous CUDA matrix from its codes under ``scales``; also bool [rows, cols]: True where
    not clipped."""
    return fake_kernels.fake_quantize(
        x,
        scales.scale.contiguous(),
        scales.zero_points,
        _config(scheme),
        _layout(x, scheme),
        scheme.format.saturation_threshold,
        scheme.seed or 0,
    )


def _fitted(scales: Scales, output: Output, scheme: Scheme) -> Scales:
    """The least-squares scale of the whole tensor, from the kernel's sums."""
    if output.sums is None or scheme.scale is None:
        return scales
    return fit_scales(output.sums[0].view(1, 1), output.sums[1].view(1, 1), scales, scheme.scale)


def _config(scheme: Scheme) -> Config:
    """Translate the scheme to the kernels' terms; cached if kernels find its scales."""
    kept = lowered(scheme)
    return config_of(scheme) if kept is None else kept.config


def _layout(x: Tensor, scheme: Scheme) -> Layout:
    return layout_of((x.shape[0], x.shape[1]), scheme)


def _plain_float32(x: Tensor, other: Tensor | None) -> bool:
    """True if the statistics kernels can read the tensors without conversion."""
    contiguous = x.is_contiguous() and (other is None or other.is_contiguous())
    return contiguous and x.dtype == torch.float32
