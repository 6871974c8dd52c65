"""Operations and their two backends, and the placement of work: the only module that knows whether there is a
GPU.

``backend_for(x)`` returns the kernels for a tensor on a GPU that can run them, otherwise the reference; both
give the same bits. ``place(x)`` decides where a tensor is analysed. ``EXPLORER_DEVICE`` or ``use_device``
(``--device`` of the commands) selects ``auto``, ``cpu`` or ``cuda``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from explorer import gpu
from explorer.core.cuda import Cuda
from explorer.core.reference import Reference
from explorer.error_sums import ErrorSums
from explorer.formats import Format
from explorer.gpu.runtime import Availability, arch_of
from explorer.schemes import Scales, Scheme

DEVICES = ("auto", "cpu", "cuda")
CPU = torch.device("cpu")
BYTES_AN_ELEMENT = 4 + 4 + 4 + 2
"""GPU memory of an analysis per element: the tensor, its restored values, one temporary, and codes."""


class Backend(Protocol):
    """The operations of each kind of device. Matrices are [rows, cols], grids [grid rows, grid columns]."""

    def quantize(self, x: Tensor, scheme: Scheme, check: bool = True) -> tuple[Tensor, Scales, Tensor | None]:
        """Return packed codes uint8 [rows, row bytes], scales, and a flag, for floating ``x``; ``ValueError``
        for NaN or Inf.

        The flag is None where the values were checked. Without ``check``, and while a CUDA graph is captured,
        nothing waits for the GPU: the flag is int32 [1] on the device, and nonzero once the GPU has met NaN
        or Inf.
        """
        ...

    def encode(self, x: Tensor, scales: Scales, scheme: Scheme) -> tuple[Tensor, Scales]:
        """Return packed codes of float32 ``x`` under given scales, and the scales that restore them."""
        ...

    def dequantize(
        self, packed: Tensor, scales: Scales, scheme: Scheme, shape: tuple[int, int], dtype: torch.dtype
    ) -> Tensor:
        """Restore the matrix of ``shape``: scale · (value of the code - zero point) in float32, then
        ``dtype``."""
        ...

    def fake_quantize(self, x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
        """Return ``x`` quantized and restored in its own dtype, and bool [rows, cols]: True where not
        clipped."""
        ...

    def learned_quantize(self, x: Tensor, step_size: Tensor, scheme: Scheme) -> Tensor:
        """Compute s · round(clip(x / s)) under float32 step sizes s [grid], in x's dtype; symmetric
        integers."""
        ...

    def learned_gradients(
        self, x: Tensor, upstream: Tensor, step_size: Tensor, scheme: Scheme
    ) -> tuple[Tensor, Tensor]:
        """Compute dL/dx in x's dtype, and dL/ds float32 [grid] without LSQ's gradient scale."""
        ...

    def error_sums(self, x: Tensor, restored: Tensor, low: Tensor, high: Tensor, scheme: Scheme) -> ErrorSums:
        """Sum errors over float32 matrices in float64; x outside ``low`` ... ``high`` [grid] counts as
        clipped."""
        ...

    def histogram(
        self, x: Tensor, low: float, per_width: float, bins: int, minus: Tensor | None = None
    ) -> Tensor:
        """Count finite v = x (or x - minus) by bin ⌊(v - low) · per_width⌋: int64 [bins] on the host."""
        ...

    def byte_counts(self, packed: Tensor) -> Tensor:
        """Count each byte: int64 [256] on the host."""
        ...

    def code_counts(self, packed: Tensor, fmt: Format, columns: int) -> Tensor:
        """Count each code of up to 16 bits in packed rows: int64 [codes] on the host."""
        ...

    def tile_maximum(self, x: Tensor, tall: int, wide: int) -> Tensor:
        """Reduce each tile to its maximum: float32 [⌈rows/tall⌉, ⌈cols/wide⌉]."""
        ...


REFERENCE: Backend = Reference()
CUDA: Backend = Cuda()


def backend_for(x: Tensor) -> Backend:
    """Return the backend for ``x``: the kernels if it is on a GPU that they support, otherwise the
    reference."""
    return CUDA if x.is_cuda and gpu.available().ok else REFERENCE


def kernel_capability(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of a GPU that kernels run on, None for other devices."""
    if device.type != "cuda" or not gpu.available().ok:
        return None
    return torch.cuda.get_device_capability(device)


DEVICE = "EXPLORER_DEVICE"
"""The environment variable that selects the device of this process and of those that it starts."""


def use_device(choice: str) -> AbstractContextManager[object]:
    """Place work by ``auto``, ``cpu`` or ``cuda`` from now on: sets the environment variable EXPLORER_DEVICE.

    In a ``with`` statement, leaving it restores the earlier choice. ``ValueError`` for another choice.
    """
    before, undo = os.environ.get(DEVICE), ExitStack()
    os.environ[DEVICE] = _checked(choice, "--device")
    if before is None:
        undo.callback(os.environ.pop, DEVICE, None)
    else:
        undo.callback(os.environ.update, {DEVICE: before})
    return undo


def gpu_status() -> Availability:
    """Return the GPU that work is placed on, or the reason why none is used. ``ValueError``: ``cuda``
    chosen without one."""
    choice = _checked(os.environ.get(DEVICE, "auto"), DEVICE)
    status = gpu.available()
    if choice == "cpu":
        return Availability(False, "the CPU was chosen")
    if choice == "cuda" and not status.ok:
        raise ValueError(f"the device cuda was chosen, but: {status.reason}")
    return status


def gpu_device() -> torch.device | None:
    """The GPU that work is placed on, None without one."""
    return torch.device("cuda", torch.cuda.current_device()) if gpu_status().ok else None


def work_device() -> torch.device:
    """The GPU that work is placed on, else the CPU."""
    return gpu_device() or CPU


def require_gpu() -> torch.device:
    """The GPU that work is placed on; ``ValueError`` with the reason if there is none."""
    device = gpu_device()
    if device is None:
        raise ValueError(f"these kernels need a GPU: {gpu_status().reason}")
    return device


def gpu_arch() -> str | None:
    """The compilation target of this machine's GPU (``sm_90a``), even if kernels cannot run on it yet."""
    if not torch.cuda.is_available():
        return None
    return arch_of(torch.device("cuda", torch.cuda.current_device()))


def native_formats() -> tuple[str, ...]:
    """Formats that the tensor cores of the current GPU multiply natively; empty without a GPU."""
    device = gpu_device()
    return () if device is None else gpu.native_formats(torch.cuda.get_device_capability(device))


def free_bytes(device: torch.device) -> int:
    """The GPU memory that is free now."""
    return torch.cuda.mem_get_info(device)[0]


def synchronize(device: torch.device) -> None:
    """Wait until everything queued on ``device`` has run, so that a clock on the host can be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Placement:
    """The device on which one tensor is analysed.

    ``whole`` is False if the tensor exceeds the device's free memory. It then stays in host memory, and runs
    of rows of ``slice_bytes`` each are copied to the device.
    """

    device: torch.device
    whole: bool = True
    slice_bytes: int = 0

    def move(self, x: Tensor) -> Tensor:
        """Move ``x`` to the device if it fits there as a whole; otherwise return it unchanged."""
        return x.to(self.device) if self.whole else x


def place(x: Tensor) -> Placement:
    """Choose the device for the analysis of ``x``: the GPU, with the whole tensor if it fits. A tensor that
    is on a GPU already stays there."""
    device = gpu_device()
    if device is None or x.is_cuda:
        return Placement(x.device)
    free = free_bytes(device)
    fits = x.numel() * BYTES_AN_ELEMENT < 0.9 * free
    return Placement(device, fits, int(0.8 * free))


def _checked(choice: str, source: str) -> str:
    if choice not in DEVICES:
        raise ValueError(f"{source} is auto, cpu or cuda, not {choice!r}")
    return choice


CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files in which Linux reports a container's memory limit."""


def memory_bytes() -> float:
    """The memory of this machine in bytes, or its container's limit; infinite if the system does not report
    it."""
    if not hasattr(os, "sysconf"):
        return math.inf
    own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([own, *container_limits()])


def container_limits(files: Sequence[Path] = CONTAINER_LIMITS) -> list[int]:
    """The memory limits in bytes set by control groups (versions 1 and 2); empty without a limit."""
    texts = [path.read_text().strip() for path in files if path.is_file()]
    return [int(text) for text in texts if text.isdecimal()]
