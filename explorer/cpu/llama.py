"""llama.cpp's products on a CPU: one ggml_mul_mat of the shared library that the package xllamacpp brings.

W lies where llama.cpp would put it: in the first extra buffer of the CPU's backend that multiplies its type
(weights repacked for the vector units), else in plain memory. llama.cpp rounds X to 8 bits in blocks for
every type of fewer than 16 bits.

ggml's C functions are called by ctypes. Structures are passed only where their layout is simple or the
library fills them in itself; a build that does not export a function is refused by its name."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from explorer.core.quantize import quantize
from explorer.cpu.kernels import BF16, F32, S8, Call, CpuKernel, Held, Library, usable_threads
from explorer.schemes import Scheme

LLAMA = Library("llama.cpp", ("xllamacpp",), "pip install xllamacpp")
TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "BF16": 30, "TQ1_0": 34, "TQ2_0": 35, "MXFP4": 39,
}  # fmt: skip
"""ggml's numbers of its types, which GGUF files hold (ggml/include/ggml.h)."""
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_TENSORS_BYTES, _POOL_BYTES = 1 << 20, 1 << 14
"""Memory for the descriptions of a few tensors and a graph, and for ggml's parameters of a pool of threads;
both need less."""
_P, _I64, _SIZE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_int
_LOG = ctypes.CFUNCTYPE(None, _INT, ctypes.c_char_p, _P)
_SILENT = _LOG(lambda _level, _text, _data: None)


class _Room(ctypes.Structure):
    """Structure ggml_init_params."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ggml_init": (_P, _Room),
    "ggml_free": (None, _P),
    "ggml_new_tensor_2d": (_P, _P, _INT, _I64, _I64),
    "ggml_mul_mat": (_P, _P, _P, _P),
    "ggml_new_graph": (_P, _P),
    "ggml_build_forward_expand": (None, _P, _P),
    "ggml_row_size": (_SIZE, _INT, _I64),
    "ggml_blck_size": (_I64, _INT),
    "ggml_quantize_chunk": (_SIZE, _INT, _P, _P, _I64, _I64, _I64, _P),
    "ggml_log_get": (None, _P, _P),
    "ggml_log_set": (None, _P, _P),
    "ggml_backend_cpu_init": (_P,),
    "ggml_backend_free": (None, _P),
    "ggml_backend_cpu_set_n_threads": (None, _P, _INT),
    "ggml_backend_cpu_set_threadpool": (None, _P, _P),
    "ggml_threadpool_params_init": (None, _P, _INT),
    "ggml_threadpool_new": (_P, _P),
    "ggml_threadpool_free": (None, _P),
    "ggml_backend_get_device": (_P, _P),
    "ggml_backend_dev_backend_reg": (_P, _P),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, _P, _P),
    "ggml_backend_reg_get_proc_address": (_P, _P, ctypes.c_char_p),
    "ggml_backend_cpu_buffer_type": (_P,),
    "ggml_backend_buft_name": (ctypes.c_char_p, _P),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_P, _P, _P),
    "ggml_backend_buffer_free": (None, _P),
    "ggml_backend_tensor_set": (None, _P, _P, _SIZE, _SIZE),
    "ggml_backend_tensor_get": (None, _P, _P, _SIZE, _SIZE),
    "ggml_backend_graph_compute": (_INT, _P, _P),
}
"""C functions of ggml: types of the result and of the arguments."""


class _Ggml:
    """The functions of the shared library, by their names without "ggml_"."""

    def __init__(self) -> None:
        from xllamacpp import xllamacpp

        library = ctypes.CDLL(xllamacpp.__file__)
        for name, (result, *arguments) in _FUNCTIONS.items():
            if not hasattr(library, name):
                raise ValueError(f"this build of xllamacpp does not export {name}")
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ggml_{name} is not among the functions that are called")

    def buffer_types(self, device: int) -> list[int]:
        """Buffer types in which llama.cpp may put W, the preferred one first."""
        found: list[int] = []
        registry = self.backend_dev_backend_reg(device)
        address = self.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        listed: Any = ctypes.CFUNCTYPE(ctypes.POINTER(_P), _P)(address)(device) if address else None
        while listed and listed[len(found)]:
            found.append(listed[len(found)])
        return [*found, self.backend_cpu_buffer_type()]

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Suppress ggml's messages on repacking inside this context."""
        log, data = _P(), _P()
        self.log_get(ctypes.byref(log), ctypes.byref(data))
        self.log_set(ctypes.cast(_SILENT, _P), None)
        try:
            yield
        finally:
            self.log_set(log, data)


@cache
def _ggml() -> _Ggml:
    return _Ggml()


@dataclass(eq=False)
class _Tensors:
    """Tensors with their memory and the graph that computes the last of them."""

    context: int
    buffer: int = 0

    @classmethod
    def empty(cls) -> _Tensors:
        ggml = _ggml()
        tensors = cls(ggml.init(_Room(_TENSORS_BYTES, None, True)))
        weakref.finalize(tensors, ggml.free, tensors.context)
        return tensors

    def allocate(self, buffer_type: int) -> bool:
        """Allocate memory for all tensors; False if that kind of memory has none for them."""
        ggml = _ggml()
        self.buffer = ggml.backend_alloc_ctx_tensors_from_buft(self.context, buffer_type) or 0
        if self.buffer:
            weakref.finalize(self, ggml.backend_buffer_free, self.buffer)
        return bool(self.buffer)


class _Backend:
    """CPU backend with a pool of so many threads."""

    def __init__(self, threads: int) -> None:
        ggml = _ggml()
        self.pointer = ggml.backend_cpu_init()
        settings = ctypes.create_string_buffer(_POOL_BYTES)
        ggml.threadpool_params_init(settings, threads)
        pool = ggml.threadpool_new(settings)
        ggml.backend_cpu_set_n_threads(self.pointer, threads)
        ggml.backend_cpu_set_threadpool(self.pointer, pool)
        weakref.finalize(self, _close, ggml, self.pointer, pool)


def _close(ggml: _Ggml, backend: int, pool: int) -> None:
    ggml.backend_free(backend)
    ggml.threadpool_free(pool)


def _coded(w: Tensor, kind: str) -> Tensor:
    """Encode W [N, K] as a GGUF file holds it, uint8; rows are shared among the usable CPUs."""
    if kind in _PLAIN:
        return w.to(_PLAIN[kind]).contiguous().view(torch.uint8)
    ggml, (n, k) = _ggml(), w.shape
    number, each = TYPES[kind], ggml.row_size(TYPES[kind], k)
    w, out = w.contiguous(), torch.empty(n, each, dtype=torch.uint8)

    def part(first: int, rows: int) -> None:
        ggml.quantize_chunk(number, w[first:].data_ptr(), out[first:].data_ptr(), 0, rows, k, None)

    step = -(-n // usable_threads())
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda first: part(first, min(step, n - first)), range(0, n, step)))
    return out


def _held(kind: str, w: Tensor, scheme: Scheme) -> Held:
    ggml, (n, k) = _ggml(), w.shape
    block = ggml.blck_size(TYPES[kind])
    if k % block:
        raise ValueError(f"{kind} has blocks of {block} values, and a row has {k}")
    if kind.startswith("TQ"):
        w = quantize(w, scheme).dequantize()
    coded = _coded(w, kind)
    probe = _Backend(1)
    device = ggml.backend_get_device(probe.pointer)
    for buffer_type in ggml.buffer_types(device):
        tensors = _Tensors.empty()
        weight = ggml.new_tensor_2d(tensors.context, TYPES[kind], k, n)
        if not tensors.allocate(buffer_type):
            continue
        x = ggml.new_tensor_2d(tensors.context, TYPES["F32"], k, 1)
        if ggml.backend_dev_supports_op(device, ggml.mul_mat(tensors.context, weight, x)):
            with ggml.silent():
                ggml.backend_tensor_set(weight, coded.data_ptr(), 0, coded.nbytes)
            layout = ggml.backend_buft_name(buffer_type).decode()
            return Held(coded.nbytes, partial(_bound, tensors, weight, n), layout)
    raise ValueError(f"this build of llama.cpp multiplies no {kind} on this CPU")


def _bound(held: _Tensors, weight: int, n: int, x: Tensor, threads: int) -> Call:
    ggml, (m, k) = _ggml(), x.shape
    tensors = _Tensors.empty()
    x, given = x.contiguous(), ggml.new_tensor_2d(tensors.context, TYPES["F32"], k, m)
    product = ggml.mul_mat(tensors.context, weight, given)
    if not tensors.allocate(ggml.backend_cpu_buffer_type()):
        raise ValueError("llama.cpp found no memory for X and Y")
    graph = ggml.new_graph(tensors.context)
    ggml.build_forward_expand(graph, product)
    ggml.backend_tensor_set(given, x.data_ptr(), 0, x.nbytes)
    backend, y = _Backend(threads), torch.empty(m, n)

    def call() -> Tensor:
        status = ggml.backend_graph_compute(backend.pointer, graph)
        if status:
            raise RuntimeError(f"llama.cpp ended with status {status}")
        ggml.backend_tensor_get(product, y.data_ptr(), 0, y.nbytes)
        return y

    # The graph reads W, and lies in the tensors' memory: both live as long as the call.
    call.__dict__["keeps"] = (held, tensors)
    return call


def _kernel(kind: str, core: str = S8) -> CpuKernel:
    return CpuKernel("llama.cpp", LLAMA, partial(_held, kind), core)


FLOAT32, FLOAT16, BFLOAT16 = _kernel("F32", F32), _kernel("F16", F32), _kernel("BF16", BF16)
BY_SCHEME: dict[str, CpuKernel] = {
    name: _kernel(name.upper()) for name in ("q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k", "q2_k", "mxfp4")
}
"""Types by the names of their schemes."""
TERNARY = tuple(
    CpuKernel(f"llama.cpp, {kind}", LLAMA, partial(_held, kind), S8) for kind in ("TQ2_0", "TQ1_0")
)
