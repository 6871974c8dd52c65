"""The CUDA driver by ctypes: load cubins, encode tensor maps, launch kernels.

Every kernel is launched here, by ``cuLaunchKernelEx`` with a pointer to each argument, on torch's current
stream. pycuda launches on its own streams and the default one, without attributes (clusters, programmatic
dependent launch), passes no arguments of 128 bytes, and gives no handle of what it loads. The driver copies
arguments when it is called, also while a CUDA graph is captured, so their memory is needed until the call
returns and no longer. Calls act on the current context (``runtime.context``).
"""

from __future__ import annotations

import copy
import ctypes
import functools
import re
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from explorer.gpu.compile import KernelError

MAP_BYTES = 128
"""Size of a ``CUtensorMap``, which is also its alignment in cuda.h."""
LETTERS = {
    "P": ("Q", 8),
    "Q": ("Q", 8),
    "q": ("q", 8),
    "I": ("I", 4),
    "i": ("i", 4),
    "f": ("f", 4),
    "M": (f"{MAP_BYTES}s", MAP_BYTES),
}
"""Kinds of arguments: the letter of Python's struct, and the size and alignment in bytes. P pointer, Q
uint64, q int64, I uint32, i int32, f float, M tensor map."""
SHARED_WITHOUT_ASKING = 48 * 1024
"""Bytes of dynamic shared memory available to every function."""
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""CU_FUNC_ATTRIBUTE_... (cuda.h)."""
CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6
"""CU_LAUNCH_ATTRIBUTE_... (cuda.h)."""
UINT8, NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_L2_256B, ZERO_FILL = 0, 0, 3, 3, 0
"""CU_TENSOR_MAP_... (cuda.h)."""


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute`` of cuda.h: the value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig`` of cuda.h."""

    _fields_ = (
        ("gridDimX", ctypes.c_uint),
        ("gridDimY", ctypes.c_uint),
        ("gridDimZ", ctypes.c_uint),
        ("blockDimX", ctypes.c_uint),
        ("blockDimY", ctypes.c_uint),
        ("blockDimZ", ctypes.c_uint),
        ("sharedMemBytes", ctypes.c_uint),
        ("hStream", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("numAttrs", ctypes.c_uint),
    )


@functools.cache
def library() -> Any:
    """Load libcuda, which every process with a CUDA context has loaded."""
    return declared(ctypes.CDLL("libcuda.so.1"))


def declared(libcuda: Any) -> Any:
    """The library, with argument types declared for the functions called most."""
    pointer = ctypes.c_void_p
    libcuda.cuLaunchKernelEx.argtypes = (pointer, pointer, pointer, pointer)
    libcuda.cuStreamSynchronize.argtypes = (pointer,)
    libcuda.cuTensorMapEncodeTiled.argtypes = (
        *(pointer, ctypes.c_int, ctypes.c_uint, pointer, pointer, pointer, pointer, pointer),
        *(ctypes.c_int,) * 4,
    )
    return libcuda


def error_text(libcuda: Any, code: int) -> str:
    """The driver's description of an error and its name: ``invalid argument (CUDA_ERROR_INVALID_VALUE)``."""
    text, name = ctypes.c_char_p(), ctypes.c_char_p()
    unknown = libcuda.cuGetErrorString(code, ctypes.byref(text))
    if unknown or libcuda.cuGetErrorName(code, ctypes.byref(name)) or not text.value or not name.value:
        return f"CUDA error {code}"
    return f"{text.value.decode()} ({name.value.decode()})"


def current_context(libcuda: Any) -> int | None:
    """The driver's handle of this thread's current context; None without one."""
    found = ctypes.c_void_p()
    libcuda.cuCtxGetCurrent(ctypes.byref(found))
    return found.value


def synchronize(libcuda: Any, stream: int) -> None:
    """Wait for all work on a stream; ``KernelError`` if some of it failed."""
    failed = libcuda.cuStreamSynchronize(stream)
    if failed:
        raise KernelError(f"work on the GPU failed: {error_text(libcuda, failed)}")


def load_module(libcuda: Any, cubin: bytes, name: str) -> int:
    """Load a compiled file called ``name`` and return the driver's handle; ``KernelError`` if that fails."""
    module = ctypes.c_void_p()
    failed = libcuda.cuModuleLoadData(ctypes.byref(module), cubin)
    if failed or not module.value:
        raise KernelError(f"{name} could not be loaded: {error_text(libcuda, failed)}")
    return module.value


def encode_map(libcuda: Any, address: int, rows: int, width: int, box_rows: int) -> bytes:
    """Encode the ``CUtensorMap`` of a byte matrix [rows, width] at ``address`` with boxes of 128 bytes ×
    ``box_rows``, the 128-byte swizzle, and zeros outside; ``KernelError`` if the driver refuses."""
    memory = ctypes.create_string_buffer(2 * MAP_BYTES)
    at = _aligned(ctypes.addressof(memory), MAP_BYTES)
    sizes, strides = (ctypes.c_uint64 * 2)(width, rows), (ctypes.c_uint64 * 1)(width)
    box, steps = (ctypes.c_uint32 * 2)(128, box_rows), (ctypes.c_uint32 * 2)(1, 1)
    how = (NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_L2_256B, ZERO_FILL)
    failed = libcuda.cuTensorMapEncodeTiled(at, UINT8, 2, address, sizes, strides, box, steps, *how)
    if failed:
        raise KernelError(
            f"no tensor map for {rows} rows of {width} bytes in boxes of {box_rows} rows: "
            f"{error_text(libcuda, failed)}"
        )
    return ctypes.string_at(at, MAP_BYTES)


@dataclass(frozen=True)
class Arguments:
    """The memory layout of arguments. ``packer`` packs all values at once, each at its place; each parameter
    has its offset and size, and the members of a struct are one parameter."""

    packer: struct.Struct
    places: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@functools.cache
def arguments_of(types: str) -> Arguments:
    """Parse ``types``: a letter of ``LETTERS`` for each value, with the members of a struct (one parameter)
    in parentheses: ``P(QQiiQ)f``. ``ValueError`` for anything else."""
    known = "".join(LETTERS)
    if not re.fullmatch(rf"([{known}]|\([{known}]+\))*", types):
        raise ValueError(f"expected letters of {known}, those of a struct in parentheses, got {types!r}")
    form, end, places, offsets, sizes = "=", 0, list[int](), list[int](), list[int]()
    for parameter in re.findall(r"\([^)]*\)|.", types):
        members = parameter.strip("()")
        widest = max(LETTERS[letter][1] for letter in members)
        start = _aligned(end, widest)
        form, end = form + "x" * (start - end), start
        for letter in members:
            letter_in_struct, size = LETTERS[letter]
            at = _aligned(end, size)
            form, end = form + "x" * (at - end) + letter_in_struct, at + size
            places.append(at)
        tail = _aligned(end, widest)
        form, end = form + "x" * (tail - end), tail
        offsets.append(start)
        sizes.append(end - start)
    return Arguments(struct.Struct(form), tuple(places), tuple(offsets), tuple(sizes))


def _aligned(at: int, multiple: int) -> int:
    return -(-at // multiple) * multiple


def _as_float32(types: str, values: Sequence[Any]) -> list[Any]:
    """Round the floats in ``values`` as C does: infinite beyond float32."""
    letters = types.replace("(", "").replace(")", "")
    return [
        ctypes.c_float(value).value if letter == "f" else value
        for letter, value in zip(letters, values, strict=True)
    ]


class Kernel:
    """A function of a loaded module, ready to launch: the memory for its arguments and the launch
    configuration is allocated once. Threads may share it."""

    def __init__(self, libcuda: Any, module: int, name: str, types: str) -> None:
        """``KernelError`` if the module lacks the function or it takes other arguments."""
        self._libcuda, self.name, self._types = libcuda, name, types
        self._lock, self._shared = threading.Lock(), SHARED_WITHOUT_ASKING
        function = ctypes.c_void_p()
        failed = libcuda.cuModuleGetFunction(ctypes.byref(function), ctypes.c_void_p(module), name.encode())
        if failed or not function.value:
            raise KernelError(f"{name} is not in its module: {error_text(libcuda, failed)}")
        self._function = function.value
        self._layout = arguments_of(types)
        self._check_parameters(self._layout)
        self._allocate()

    def _allocate(self) -> None:
        layout = self._layout
        self._memory = ctypes.create_string_buffer(_aligned(layout.packer.size, 8) + MAP_BYTES)
        base = ctypes.addressof(self._memory)
        self._at = _aligned(base, MAP_BYTES) - base
        addresses = (base + self._at + offset for offset in layout.offsets)
        self._parameters = (ctypes.c_void_p * max(1, len(layout.offsets)))(*addresses)
        # The first is for early launches, the second for clusters: what is asked for lies side by side.
        self._attributes = (LaunchAttribute * 2)()
        self._attributes[0].id, self._attributes[0].value[0] = PROGRAMMATIC_STREAM_SERIALIZATION, 1
        self._attributes[1].id = CLUSTER_DIMENSION
        self._attributes[1].value[1] = self._attributes[1].value[2] = 1
        self._config = LaunchConfig(blockDimY=1, blockDimZ=1)
        self._last: tuple[Any, ...] = ()
        self._config_address = ctypes.addressof(self._config)
        self._parameters_address = ctypes.addressof(self._parameters)

    def _check_parameters(self, layout: Arguments) -> None:
        """Compare with the compiled sizes, which drivers report from CUDA 12.4 on: a missing argument would
        be read from whatever follows in memory."""
        if not hasattr(self._libcuda, "cuFuncGetParamInfo"):
            return
        compiled: list[int] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        for index in range(len(layout.sizes) + 1):
            if self._libcuda.cuFuncGetParamInfo(
                ctypes.c_void_p(self._function),
                ctypes.c_size_t(index),
                ctypes.byref(offset),
                ctypes.byref(size),
            ):
                break
            compiled.append(size.value)
        if tuple(compiled) != layout.sizes:
            raise KernelError(
                f"{self.name} takes arguments of {', '.join(map(str, compiled))} bytes, and {self._types!r} "
                f"has {', '.join(map(str, layout.sizes))}"
            )

    def launch(
        self,
        values: Sequence[Any],
        grid: Sequence[int],
        block: int,
        stream: int,
        shared: int = 0,
        cluster: int = 1,
        early: bool = False,
    ) -> None:
        """Launch with ``values`` (numbers, and 128 bytes for a map) on a stream, which may be captured.

        ``grid`` of three; ``block`` threads; ``shared`` bytes of dynamic shared memory; ``cluster`` CTAs
        along x in a cluster, for a kernel that does not declare them itself. ``early``: programmatic
        dependent launch. ``KernelError`` if values do not match the types, or the driver refuses.
        """
        how = (grid, block, stream, shared, cluster, early)
        with self._lock:
            self._write(values, how)
            failed = self._libcuda.cuLaunchKernelEx(
                self._config_address, self._function, self._parameters_address, None
            )
        if failed:
            self._refused(failed, how)

    def _write(self, values: Sequence[Any], how: tuple[Any, ...]) -> None:
        """Write arguments and configuration into the memory that the driver is given."""
        config, packer = self._config, self._layout.packer
        grid, block, stream, shared, cluster, early = how
        try:
            try:
                packer.pack_into(self._memory, self._at, *values)
            except OverflowError:  # struct's word for a float that float32 rounds to an infinity
                packer.pack_into(self._memory, self._at, *_as_float32(self._types, values))
        except (struct.error, OverflowError) as error:
            raise KernelError(f"{self.name} takes {self._types!r}, got {values}: {error}") from error
        if shared > self._shared:
            self._allow_shared(shared)
        if how != self._last:  # to write what stands there already takes as long as the launch
            self._last = ()
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.blockDimX, config.sharedMemBytes, config.hStream = block, shared, stream
            config.numAttrs = early + (cluster > 1)
            if config.numAttrs:
                self._attributes[1].value[0] = cluster
                config.attrs = ctypes.addressof(self._attributes[0 if early else 1])
            self._last = how

    def _refused(self, failed: int, how: tuple[Any, ...]) -> NoReturn:
        grid, block, _, shared, cluster, _ = how
        raise KernelError(
            f"{self.name} could not be launched with {tuple(grid)} blocks of {block} threads in clusters "
            f"of {cluster} and {shared} bytes of shared memory: {error_text(self._libcuda, failed)}"
        )

    def prepared(
        self,
        values: Sequence[Any],
        places: Sequence[tuple[int, int]],
        grid: Sequence[int],
        block: int,
        early: bool,
    ) -> Callable[[Sequence[int], int], None]:
        """Return a launch (addresses of a call, stream) that writes these alone into memory of its own:
        ``places`` pairs the index of a pointer among ``values`` with that of its address."""
        own, how, lock = copy.copy(self), (grid, block, 0, 0, 1, early), threading.Lock()
        own._allocate()
        own._write(values, how)
        config, stop = own._config, own._at + _aligned(self._layout.packer.size, 8)
        words = memoryview(own._memory).cast("B")[own._at : stop].cast("Q")
        at_words = tuple((self._layout.places[at] // 8, which) for at, which in places)
        call = functools.partial(
            self._libcuda.cuLaunchKernelEx, own._config_address, own._function, own._parameters_address, None
        )

        def start(given: Sequence[int], stream: int) -> None:
            with lock:
                for at, which in at_words:
                    words[at] = given[which]
                config.hStream = stream
                failed = call()
            if failed:
                own._refused(failed, how)

        return start

    def _allow_shared(self, shared: int) -> None:
        failed = self._libcuda.cuFuncSetAttribute(
            ctypes.c_void_p(self._function), MAX_DYNAMIC_SHARED_SIZE_BYTES, shared
        )
        if failed:
            raise KernelError(
                f"{self.name} may not have {shared} bytes of shared memory: "
                f"{error_text(self._libcuda, failed)}"
            )
        self._shared = shared
