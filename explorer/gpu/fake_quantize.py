"""Launchers of fake_quantize.cu (quantize and restore in one pass) and learned_step.cu (LSQ and gradient)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explorer.gpu.config import BLOCKS, ELEMENTS, Config, Launch, Layout, multiprocessors
from explorer.gpu.runtime import Build, on_device_of

THREADS = 256


def fake_quantize(
    x: Tensor,
    steps: Tensor,
    zeros: Tensor | None,
    config: Config,
    layout: Layout,
    overflow: float,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Quantize ``x`` [rows, cols] and restore it in its own dtype; also bool [rows, cols]: True where not
    clipped.

    ``steps`` float32, ``zeros`` int8, both [grid]; float formats clip where |x / step| exceeds ``overflow``.
    """
    _check(x, steps)
    out, inside = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    if x.numel():
        build, (grid, fours) = config.build("fake_quantize.cu", x.dtype), _grid(x, layout)
        arguments = (x, out, inside, steps, zeros, *layout.blocks, fours, overflow, seed)
        _start(Launch(build, "fake_quantize", grid, THREADS, f"PPPPP{BLOCKS}ifQ", arguments), x)
    return out, inside


def learned_forward(x: Tensor, steps: Tensor, config: Config, layout: Layout) -> Tensor:
    """LSQ's forward pass: ``x`` [rows, cols] under learned ``steps`` float32 [grid], in its own dtype;
    integer codes."""
    _check(x, steps)
    out = torch.empty_like(x)
    if x.numel():
        build, (grid, fours) = config.build("learned_step.cu", x.dtype), _grid(x, layout)
        arguments = (x, out, steps, *layout.blocks, fours)
        _start(Launch(build, "learned_forward", grid, THREADS, f"PPP{BLOCKS}i", arguments), x)
    return out


def learned_backward(
    x: Tensor, upstream: Tensor, steps: Tensor, config: Config, layout: Layout
) -> tuple[Tensor, Tensor]:
    """LSQ's backward pass: dL/dx in x's dtype, and Σ dL/dx̂ · ∂x̂/∂step, float32 [grid], unscaled."""
    _check(x, steps)
    upstream = upstream.to(x.dtype).contiguous()
    gradient = torch.empty_like(x)
    each, full = layout.height * layout.width, multiprocessors(x.device) * 8
    shares = max(1, min(math.ceil(each / 2048), math.ceil(full / max(layout.cells, 1)), 65535))
    sums = x.new_zeros((layout.cells, shares), dtype=torch.float64)
    if x.numel():
        build = config.build("learned_step.cu", x.dtype)
        arguments = (x, upstream, gradient, steps, sums, *layout.blocks)
        grid = (layout.cells, shares)
        _start(Launch(build, "learned_backward", grid, THREADS, f"PPPPP{BLOCKS}", arguments), x)
    return gradient, sums.sum(1).to(torch.float32).view(layout.grid)


def builds(config: Config, dtype: torch.dtype) -> list[Build]:
    """The builds of these launchers for a scheme; steps are learned for symmetric integer codes."""
    files = ["fake_quantize.cu"]
    if config.codec.startswith("IntegerCodec") and not config.asymmetric:
        files.append("learned_step.cu")
    return [config.build(file, dtype) for file in files]


def _grid(x: Tensor, layout: Layout) -> tuple[tuple[int], int]:
    """Thread blocks for the whole matrix, and 1 if a thread reads four elements at once, else 0."""
    fours = layout.columns % 4 == 0 and x.data_ptr() % 16 == 0
    blocks = min(math.ceil(x.numel() / (THREADS * (4 if fours else 1))), 2**31 - 1)
    return (blocks,), int(fours)


def _check(x: Tensor, steps: Tensor) -> None:
    if x.dtype not in ELEMENTS or not x.is_cuda or not x.is_contiguous():
        raise ValueError("expected a contiguous CUDA tensor of float32, bfloat16 or float16")
    if steps.dtype != torch.float32 or not steps.is_contiguous() or steps.device != x.device:
        raise ValueError("expected contiguous float32 steps on the tensor's device")


@on_device_of("x")
def _start(launch: Launch, x: Tensor) -> None:
    launch.start(x.device)
