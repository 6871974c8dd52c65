"""The way to the GPU: whether there is one, its context, loading a cubin, launching a kernel.

pycuda is imported here and nowhere else, and only when a GPU is used. Everything runs in torch's primary
context, pushed before and popped after every call, so that any worker thread may launch and none ends with
a context on its stack. torch owns all memory.

Launches follow torch's current stream. pycuda can only launch on streams of its own: on torch's default
stream that is the legacy stream both share; on any other the launch goes to a stream of ours that first
waits for torch's and that torch's then waits for, which CUDA graphs capture like any fork and join. Kernels
that start while the one before them ends (``launch(early=True)``) are launched on torch's own stream by
CUDA's bindings, as pycuda has no launch attributes.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

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
    "launch",
    "multiprocessors",
    "native_formats",
    "occupancy",
    "resources",
]

ACCELERATED = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a", (12, 0): "sm_120a"}
"""Chips whose own instructions need the architecture-specific target."""

NATIVE = (
    ((7, 5), ("FP16", "INT8", "INT4", "binary")),
    ((8, 0), ("FP16", "BF16", "TF32", "INT8", "INT4", "binary")),
    ((8, 9), ("FP16", "BF16", "TF32", "FP8", "INT8", "INT4", "binary")),
    ((9, 0), ("FP16", "BF16", "TF32", "FP8", "INT8", "binary")),
    ((10, 0), ("FP16", "BF16", "TF32", "FP8", "FP6", "FP4", "MX", "NVFP4", "INT8")),
)
"""What tensor cores multiply from each compute capability on (PTX ISA, mma, wgmma and tcgen05); from 9.0 on
INT4 is still accepted but emulated (measured there: 50 of INT8's 1939 TOPS)."""


@dataclass(frozen=True)
class Availability:
    """Whether kernels can run here; ``reason`` says why not, or on what they run."""

    ok: bool
    reason: str


@functools.cache
def available() -> Availability:
    """Whether there is a GPU with a driver, pycuda, and nvcc or a filled cache."""
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
    """What the tensor cores of a chip multiply themselves; everything else is emulated."""
    return next((formats for least, formats in reversed(NATIVE) if capability >= least), ())


def multiprocessors(device: torch.device) -> int:
    """How many a GPU has; 1 for other devices, where launches are planned but not started."""
    if device.type != "cuda":
        return 1
    return _multiprocessors(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


@contextmanager
def context(index: int) -> Iterator[Any]:
    """torch's primary context of a device, current in this thread while the block runs."""
    driver, context = _primary_context(index)
    context.push()
    try:
        yield driver
    finally:
        driver.Context.pop()


_LOCK, _ORDER = threading.RLock(), threading.Lock()
"""Of what is loaded, while nvcc may run; of a launch on a stream beside torch's."""
_CONTEXTS: dict[int, Any] = {}
_FUNCTIONS: dict[tuple[int, Build, str, int], Any] = {}
_MODULES: dict[tuple[int, Build, int], Any] = {}
_LARGE: set[tuple[int, Build, str, int]] = set()
"""Functions that may use more than 48 KiB of dynamic shared memory."""
_STREAMS = threading.local()


def _primary_context(index: int) -> tuple[Any, Any]:
    import pycuda.driver as driver

    with _LOCK:
        if index not in _CONTEXTS:
            torch.cuda.init()
            torch.zeros(1, device=torch.device("cuda", index))  # makes torch create the primary context
            driver.init()
            _CONTEXTS[index] = driver.Device(index).retain_primary_context()
    return driver, _CONTEXTS[index]


CLUSTER_SIDES = (11, 12, 13)
"""CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, HEIGHT and DEPTH (cuda.h), which pycuda has no names for."""


def _function(index: int, build: Build, name: str, cluster: int, driver: Any) -> Any:
    """A kernel; one of its own for each size of clusters, which is a property of the loaded function."""
    key = (index, build, name, cluster)
    function = _FUNCTIONS.get(key)
    if function is None:
        with _LOCK:
            module = _MODULES.get((index, build, cluster))
            if module is None:
                cubin = compile_cubin(build, arch_of(torch.device("cuda", index))).read_bytes()
                module = _MODULES[(index, build, cluster)] = driver.module_from_buffer(cubin)
            function = module.get_function(name)
            if cluster > 1:
                for side, size in zip(CLUSTER_SIDES, (cluster, 1, 1), strict=True):
                    function.set_attribute(driver.function_attribute(side), size)
            _FUNCTIONS[key] = function
    return function


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
    """Launch kernel ``name`` of ``build`` in the order of torch's current stream.

    ``types`` has one struct letter for each argument (P pointer, Q uint64, I uint32, i int32, f float);
    tensors become their addresses. ``shared`` bytes of dynamic shared memory; ``cluster`` CTAs along x in a
    cluster, of a kernel that does not say so itself. ``early``: it may begin while the kernel before it on
    the stream ends, and itself waits for what that writes (CUDA programming guide, programmatic dependent
    launch). ``KernelError`` if it cannot be compiled or launched.
    """
    index = device.index if device.index is not None else torch.cuda.current_device()
    values = [a.data_ptr() if isinstance(a, torch.Tensor) else 0 if a is None else a for a in arguments]
    with context(index) as driver:
        if early and _launches_early(index):
            _launch_early(index, build, name, (*grid, 1, 1)[:3], block, types, values, shared, cluster)
            return
        function = _function(index, build, name, cluster, driver)
        function.prepare(types)
        if shared > 48 * 1024 and (key := (index, build, name, cluster)) not in _LARGE:
            function.set_attribute(driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            _LARGE.add(key)
        shape = (*grid, 1, 1)[:3]
        current = torch.cuda.current_stream(index)
        if current.cuda_stream == 0:
            function.prepared_async_call(shape, (block, 1, 1), None, *values, shared_size=shared)
            return
        ours, seen_by_torch = _stream(index, driver)
        with _ORDER:  # what another thread launches on the same stream comes before or after, not beside
            seen_by_torch.wait_stream(current)
            function.prepared_async_call(shape, (block, 1, 1), ours, *values, shared_size=shared)
            current.wait_stream(seen_by_torch)


_EARLY_FUNCTIONS: dict[tuple[int, Build, str], Any] = {}
_EARLY_MODULES: dict[tuple[int, Build], Any] = {}
PARAMETER_END, PARAMETER_BUFFER, PARAMETER_SIZE = 0, 1, 2
"""CU_LAUNCH_PARAM_... (cuda.h)."""


@functools.cache
def _launches_early(index: int) -> bool:
    """From Hopper on, where CUDA's own bindings are, which torch brings: pycuda has no launch attributes."""
    try:
        from cuda.bindings import driver as cuda
    except ImportError:
        return False
    return hasattr(cuda, "cuLaunchKernelEx") and torch.cuda.get_device_capability(index) >= (9, 0)


def _launch_early(
    index: int,
    build: Build,
    name: str,
    grid: Sequence[int],
    block: int,
    types: str,
    values: Sequence[Any],
    shared: int,
    cluster: int,
) -> None:
    """On torch's current stream of the device."""
    from cuda.bindings import driver as cuda

    function = _early_function(index, build, name, shared)
    attribute = cuda.CUlaunchAttribute()
    attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    clusters = cuda.CUlaunchAttribute()
    clusters.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    clusters.value.clusterDim.x, clusters.value.clusterDim.y, clusters.value.clusterDim.z = cluster, 1, 1
    attributes = [attribute, clusters] if cluster > 1 else [attribute]
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes, config.hStream = shared, torch.cuda.current_stream(index).cuda_stream
    config.attrs, config.numAttrs = attributes, len(attributes)
    # As pycuda does: side by side in one buffer, where several may be the members of one parameter.
    packed = ctypes.create_string_buffer(struct.pack(types, *values))
    size = ctypes.c_size_t(struct.calcsize(types))
    addresses = (PARAMETER_BUFFER, ctypes.addressof(packed), PARAMETER_SIZE, ctypes.addressof(size))
    extra = (ctypes.c_void_p * 5)(*addresses, PARAMETER_END)
    _done(name, cuda.cuLaunchKernelEx(config, function, 0, ctypes.addressof(extra)))


def _early_function(index: int, build: Build, name: str, shared: int) -> Any:
    """A kernel as CUDA's bindings know it, which may use so much dynamic shared memory: a build always asks
    for the same."""
    from cuda.bindings import driver as cuda

    key = (index, build, name)
    if key not in _EARLY_FUNCTIONS:
        with _LOCK:
            if key in _EARLY_FUNCTIONS:
                return _EARLY_FUNCTIONS[key]
            module = _EARLY_MODULES.get((index, build))
            if module is None:
                cubin = compile_cubin(build, arch_of(torch.device("cuda", index))).read_bytes()
                module = _EARLY_MODULES[index, build] = _done(name, cuda.cuModuleLoadData(cubin))
            function = _done(name, cuda.cuModuleGetFunction(module, name.encode()))
            most = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _done(name, cuda.cuFuncSetAttribute(function, most, shared))
            _EARLY_FUNCTIONS[key] = function
    return _EARLY_FUNCTIONS[key]


def _done(name: str, result: tuple[Any, ...]) -> Any:
    """What a driver call about kernel ``name`` gives; ``KernelError`` if it failed."""
    if int(result[0]):
        raise KernelError(f"{name} could not be launched: {result[0].name}")
    return result[1] if len(result) > 1 else None


def _stream(index: int, driver: Any) -> tuple[Any, torch.cuda.Stream]:
    """This thread's own stream on a device, as pycuda's and as torch's object."""
    if not hasattr(_STREAMS, "by_device"):
        _STREAMS.by_device = {}
    if index not in _STREAMS.by_device:
        ours = driver.Stream(1)  # non-blocking: not ordered against the legacy stream
        _STREAMS.by_device[index] = (ours, torch.cuda.ExternalStream(ours.handle, device=index))
    return _STREAMS.by_device[index]


def occupancy(build: Build, name: str, device: torch.device, block: int) -> float:
    """The share of a multiprocessor's warps that fit at once with ``block`` threads a block, 0 ... 1."""
    properties = torch.cuda.get_device_properties(device)
    used = resources(build, arch_of(device))[name]
    warps = -(-block // 32)
    by_registers = 65536 // (-(-used.registers // 8) * 8 * 32 * warps) if used.registers else 32
    by_threads = properties.max_threads_per_multi_processor // (warps * 32)
    by_shared = 10**6 if not used.shared_bytes else 227 * 1024 // (used.shared_bytes + 1024)
    blocks = min(by_registers, by_threads, by_shared, 32)
    return blocks * warps * 32 / properties.max_threads_per_multi_processor
