"""CPU kernels: a library, its layout of W, and the product of X by it with a number of threads."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata

import torch
from torch import Tensor

from explorer.products.gemms import Product
from explorer.schemes import Scheme

Call = Callable[[], Tensor]
"""Call that computes one product: Y [M, N] of any float dtype."""
F32, BF16, S8 = "f32", "bf16", "s8"
"""Types of arithmetic, for which ``explorer.bench.cpu_gemm`` measures the CPU's rates."""
BASELINE = "torch float32"
"""Baseline of every kernel: torch's product of float32 X and W."""


@dataclass(frozen=True)
class Library:
    """Package with kernels. ``modules``: needed to import it; ``install``: the way to get them."""

    label: str
    modules: tuple[str, ...]
    install: str

    @property
    def missing(self) -> str:
        """Reason why the library's kernels cannot run here, with the remedy; empty if they can."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        if not absent:
            return ""
        return f"{' and '.join(absent)} {'are' if len(absent) > 1 else 'is'} not installed: {self.install}"

    @property
    def version(self) -> str:
        """The package with the kernels, and its version."""
        return f"{self.modules[0]} {metadata.version(self.modules[0])}"


@dataclass(frozen=True, eq=False)
class Held:
    """W in the form that a kernel holds.

    nbytes   bytes of W with its scales, as they are read in every product
    bind     X [M, K] in float32 and a number of threads -> the product as a call. The call does not set
             torch's number of threads: ``torch_threads`` holds while it runs
    layout   the layout that the library chose for this CPU, in its own words; may be empty
    """

    nbytes: int
    bind: Callable[[Tensor, int], Call]
    layout: str = ""


@dataclass(frozen=True)
class CpuKernel:
    """Kernel that computes a product.

    hold    W [N, K] in float32 and its scheme -> W as it is held; ``ValueError`` or ``RuntimeError`` if the
            library refuses the shape
    core    type of its arithmetic: float32, bfloat16 or INT8
    """

    name: str
    library: Library
    hold: Callable[[Tensor, Scheme], Held]
    core: str


@dataclass(frozen=True)
class CpuProduct(Product):
    """One product on a CPU with its kernels, the simplest first. ``dynamic``: X is quantized in the call."""

    kernels: tuple[CpuKernel, ...]
    dynamic: bool = False

    @property
    def native(self) -> bool:
        """True if W is multiplied as it is held; narrower codes are widened to 8 bits or more first."""
        if self.w.format.name == "bfloat16":
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        if self.w.format.name == "float16":
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        return self.w.format.bits >= 8


def usable_threads() -> int:
    """Number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_counts() -> tuple[int, ...]:
    """Numbers of threads to try: powers of two, and all usable CPUs."""
    most = usable_threads()
    return tuple(sorted({1 << i for i in range(most.bit_length()) if 1 << i <= most} | {most}))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with ``count`` threads inside this context; the number is restored afterwards."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)
