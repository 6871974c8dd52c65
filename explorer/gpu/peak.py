"""Launchers of the peak_*.cu files: arithmetic rates without memory loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from explorer.gpu.gemm import OperandType, WordOp
from explorer.gpu.gemm.names import macros
from explorer.gpu.runtime import Build, launch, multiprocessors

K_OF = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "b1": 256}
"""Elements of K in one instruction."""
ROUNDS = 4096
NOISE_BYTES = 384 * 128
"""Bytes of two warpgroups' operands in shared memory."""
_DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def builds(kinds: Iterable[str], names: Iterable[str]) -> list[Build]:
    """The builds of ``tensor_peak`` for ``kinds`` and of ``word_peak`` for ``names``."""
    tensor_cores = [Build("peak_tensor_core.cu", macros(TYPE=OperandType(kind))) for kind in kinds]
    return tensor_cores + [Build("peak_simt32.cu", macros(OP=WordOp(name))) for name in names]


def tensor_peak(kind: str, device: torch.device) -> tuple[Callable[[], None], float]:
    """Return a call that keeps every tensor core of a Hopper chip busy with an ``OperandType``, and its
    number of operations."""
    [build] = builds((kind,), ())
    blocks = multiprocessors(device)
    noise, out = _noise(kind, device), torch.empty(blocks * 256, device=device)

    def call() -> None:
        arguments = (noise, out, ROUNDS)
        launch(build, "peak_tensor_core", device, (blocks,), 256, "PPi", arguments, NOISE_BYTES + 1024)

    return call, 2.0 * 64 * 256 * K_OF[kind] * 4 * ROUNDS * 2 * blocks


def _noise(kind: str, device: torch.device) -> Tensor:
    """Random values of the type itself: random bits would include NaN and Inf, which draw less power."""
    dtype = _DTYPES.get(kind)
    if dtype is None:
        return torch.randint(0, 256, (NOISE_BYTES,), dtype=torch.uint8, device=device)
    return torch.randn(NOISE_BYTES // dtype.itemsize, device=device).to(dtype).view(torch.uint8)


def word_peak(name: str, device: torch.device) -> tuple[Callable[[], None], float]:
    """Return a call that runs a ``WordOp`` ("dp4a" or "popc") on every core, and its number of operations
    (two per element: multiply and add)."""
    op, [build] = WordOp(name), builds((), (name,))
    blocks = multiprocessors(device) * 8
    noise = torch.randint(-(2**31), 2**31 - 1, (1024,), device=device).to(torch.int32)
    out = torch.empty(blocks * 256, dtype=torch.int32, device=device)

    def call() -> None:
        launch(build, "peak_simt32", device, (blocks,), 256, "PPi", (noise, out, ROUNDS))

    return call, 2.0 * (4 if op is WordOp.DP4A else 32) * 16 * ROUNDS * 256 * blocks
