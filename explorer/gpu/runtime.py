"""Access to the GPU: availability, context, compiled kernels, launches.

pycuda is imported here and nowhere else, and only when a GPU is used. Everything runs in torch's primary
context. If that is not current, it is pushed before a call and popped after it, so that any worker thread may
launch and none ends with a context on its stack. torch owns all memory. Launches go to torch's current stream
(``driver.Kernel``), which a CUDA graph may be capturing.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from explorer.gpu import driver as cuda
from explorer.gpu.compile import (
    Build,
    KernelError,
    Resources,
    built_folder,
    cache_folder,
    capability_of,
    compile_all,
    compile_cubin,
    compile_jobs,
    resources,
)

__all__ = [
    "Availability",
    "Build",
    "KernelError",
    "Resources",
    "arch_of",
    "available",
    "capability_of",
    "compile_all",
    "compile_cubin",
    "compile_jobs",
    "context",
    "is_capturing",
    "is_current",
    "launch",
    "multiprocessors",
    "native_formats",
    "occupancy",
    "on_device_of",
    "resources",
    "wait",
]

P = ParamSpec("P")
R = TypeVar("R")

ACCELERATED = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a", (12, 0): "sm_120a"}
"""Chips with instructions that need the architecture-specific target."""

NATIVE = (
    ((7, 5), ("FP16", "INT8", "INT4", "binary")),
    ((8, 0), ("FP16", "BF16", "TF32", "INT8", "INT4", "binary")),
    ((8, 9), ("FP16", "BF16", "TF32", "FP8", "INT8", "INT4", "binary")),
    ((9, 0), ("FP16", "BF16", "TF32", "FP8", "INT8", "binary")),
    ((10, 0), ("FP16", "BF16", "TF32", "FP8", "FP6", "FP4", "MX", "NVFP4", "INT8")),
)
"""Formats that tensor cores multiply, by the compute capability that introduced them (PTX ISA, mma, wgmma and
tcgen05). From 9.0 on INT4 is accepted but emulated (measured there: 50 of INT8's 1939 TOPS)."""


@dataclass(frozen=True)
class Availability:
    """Availability of the kernels; ``reason`` says why they cannot run, or on which GPU they run."""

    ok: bool
    reason: str


@functools.cache
def available() -> Availability:
    """Check for a GPU with a driver, pycuda, and nvcc or compiled kernels."""
    if not torch.cuda.is_available():
        return Availability(False, "no GPU found")
    name = f"{torch.cuda.get_device_name()} · {arch_of(torch.device('cuda', 0))}"
    try:
        import pycuda.driver  # noqa: F401
    except ImportError as error:
        return Availability(False, f"{name}, but pycuda cannot be imported ({error})")
    folders = [folder for folder in (built_folder(), cache_folder()) if folder]
    if shutil.which("nvcc") is None and not any(any(folder.glob("*.cubin")) for folder in folders):
        return Availability(
            False, f"{name}, but no nvcc on the PATH and no compiled kernels in {cache_folder()}"
        )
    return Availability(True, name)


def arch_of(device: torch.device) -> str:
    """The compilation target of a GPU: ``sm_90a`` for an H200."""
    major, minor = torch.cuda.get_device_capability(device)
    return ACCELERATED.get((major, minor), f"sm_{major}{minor}")


def native_formats(capability: tuple[int, int]) -> tuple[str, ...]:
    """The formats that a chip's tensor cores multiply natively; all others are emulated."""
    return next((formats for least, formats in reversed(NATIVE) if capability >= least), ())


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 1 for other devices, where launches are planned but not
    started."""
    if device.type != "cuda":
        return 1
    return _multiprocessors(torch.cuda.current_device() if device.index is None else device.index)


def cache_bytes(device: torch.device) -> int:
    """Bytes of a GPU's L2 cache; 0 for other devices."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


@functools.cache
def _multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


@contextmanager
def context(index: int) -> Iterator[None]:
    """Make torch's primary context of a device current in this thread for the block."""
    pushed = entered(index)
    try:
        yield
    finally:
        if pushed is not None:
            pushed.pop()


def entered(index: int) -> Any | None:
    """Make torch's primary context of a device current. Returns the context to pop afterwards, or None if it
    was current."""
    held, handle = _CONTEXTS.get(index) or _primary_context(index)
    if cuda.current_context(cuda.library()) == handle:
        return None
    held.push()
    return held


def is_current(index: int) -> bool:
    """True if a device is torch's current GPU, or none (-1)."""
    return index < 0 or index == torch._C._cuda_getDevice()


def on_device_of(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to run with the device of its argument ``name`` as torch's current one. The
    argument is a tensor, a list of tensors or a ``QuantizedTensor``.

    Streams, captures, and some torch operations belong to the current device, wherever tensors lie.
    """

    def decorate(called: Callable[P, R]) -> Callable[P, R]:
        at = list(inspect.signature(called).parameters).index(name)

        @functools.wraps(called)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            given: Any = args[at] if len(args) > at else kwargs.get(name)
            if not isinstance(given, torch.Tensor):
                given = given[0] if isinstance(given, list) else getattr(given, "packed", None)
            if given is None or is_current(given.get_device()):
                return called(*args, **kwargs)
            with torch.cuda.device(given.device):
                return called(*args, **kwargs)

        return guarded

    return decorate


def is_capturing(device: torch.device) -> bool:
    """True while torch's current stream of a GPU is being captured into a CUDA graph, when nothing may wait
    for it. False for other devices."""
    if device.type != "cuda":
        return False
    if device.index is None or is_current(device.index):
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def stream_of(index: int) -> int:
    """The handle of torch's current stream, without creating an object, as in torch's own compiled code."""
    return int(torch._C._cuda_getCurrentRawStream(index))


_LOCK = threading.RLock()
"""Guards the loaded kernels; nvcc may run while it is held."""
_CONTEXTS: dict[int, tuple[Any, int | None]] = {}
"""pycuda's object of a primary context and the driver's handle, by device."""
_KERNELS: dict[tuple[int, Build, str, str], cuda.Kernel] = {}
_MODULES: dict[tuple[int, Build], int] = {}


def _primary_context(index: int) -> tuple[Any, int | None]:
    import pycuda.driver

    with _LOCK:
        if index not in _CONTEXTS:
            torch.cuda.init()
            torch.zeros(1, device=torch.device("cuda", index))  # makes torch create the primary context
            pycuda.driver.init()
            held = pycuda.driver.Device(index).retain_primary_context()
            held.push()
            _CONTEXTS[index] = held, cuda.current_context(cuda.library())
            held.pop()
        return _CONTEXTS[index]


def loaded_kernel(index: int, build: Build, name: str, types: str) -> cuda.Kernel:
    """Return a kernel, loaded into the current context at its first call."""
    key = (index, build, name, types)
    kernel = _KERNELS.get(key)
    if kernel is None:
        with _LOCK:
            if key not in _KERNELS:
                if (index, build) not in _MODULES:
                    cubin = compile_cubin(build, arch_of(torch.device("cuda", index))).read_bytes()
                    _MODULES[index, build] = cuda.load_module(cuda.library(), cubin, build.file)
                _KERNELS[key] = cuda.Kernel(cuda.library(), _MODULES[index, build], name, types)
            kernel = _KERNELS[key]
    return kernel


_NUMBERS = frozenset((int, float, bytes))


def launch(
    build: Build,
    name: str,
    device: torch.device,
    grid: Sequence[int],
    block: int,
    types: str,
    arguments: Sequence[Any],
    shared: int = 0,
    cluster: int = 1,
    early: bool = False,
) -> None:
    """Launch kernel ``name`` of ``build`` on torch's current stream.

    ``types`` has one letter for each argument (``driver.LETTERS``), those of a struct's members in
    parentheses; tensors become their addresses. ``shared`` bytes of dynamic shared memory; ``cluster`` CTAs
    along x in a cluster, for a kernel that does not declare them itself. ``early``: from Hopper on the kernel
    may begin while the one before it on the stream ends, and itself waits for that one's writes (CUDA
    programming guide, programmatic dependent launch). ``KernelError`` if it cannot be compiled or launched.
    """
    index = device.index if device.index is not None else torch.cuda.current_device()
    # Numbers first: to ask whether they are tensors would take longer than all the rest.
    values = [
        0 if a is None else a if type(a) in _NUMBERS else a.data_ptr() if isinstance(a, torch.Tensor) else a
        for a in arguments
    ]
    with context(index):
        kernel = loaded_kernel(index, build, name, types)
        early = early and launches_early(index)
        kernel.launch(values, (*grid, 1, 1)[:3], block, stream_of(index), shared, cluster, early)


def wait(index: int) -> None:
    """Wait for all work on torch's current stream of a device; ``KernelError`` if some of it failed."""
    pushed = entered(index)
    try:
        cuda.synchronize(cuda.library(), stream_of(index))
    finally:
        if pushed is not None:
            pushed.pop()


@functools.cache
def launches_early(index: int) -> bool:
    """True from Hopper on."""
    return torch.cuda.get_device_capability(index) >= (9, 0)


def occupancy(build: Build, name: str, device: torch.device, block: int) -> float:
    """The share (0 ... 1) of a multiprocessor's warps that are resident with ``block`` threads per block."""
    properties = torch.cuda.get_device_properties(device)
    used = resources(build, arch_of(device))[name]
    warps = -(-block // 32)
    by_registers = 65536 // (-(-used.registers // 8) * 8 * 32 * warps) if used.registers else 32
    by_threads = properties.max_threads_per_multi_processor // (warps * 32)
    by_shared = 10**6 if not used.shared_bytes else 227 * 1024 // (used.shared_bytes + 1024)
    blocks = min(by_registers, by_threads, by_shared, 32)
    return blocks * warps * 32 / properties.max_threads_per_multi_processor
