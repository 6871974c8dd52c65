"""Tensor maps: the descriptors by which Hopper's TMA copies boxes of a matrix to shared memory."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections import OrderedDict
from typing import Any

import torch

from explorer.gpu.compile import Build, KernelError
from explorer.gpu.runtime import context, launch

MAP_WRITER = Build("tensor_map.cu", ())
KEPT = 4096
"""Maps on the devices that are kept for the next call, the least recently used dropped first."""
UINT8, NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_L2_256B, ZERO_FILL = 0, 0, 3, 3, 0
"""Enumerators of cuda.h: CU_TENSOR_MAP_..."""

_LOCK = threading.Lock()
_MAPS: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()
_IN_GRAPHS: dict[tuple[int, ...], torch.Tensor] = {}
"""Maps that graphs read: they are never dropped."""


def map_is_kept(matrix: torch.Tensor, box_rows: int) -> bool:
    """Whether the map was written before this call: then no kernel of a graph writes it."""
    with _LOCK:
        return _key(matrix, box_rows) in _MAPS


def _key(matrix: torch.Tensor, box_rows: int) -> tuple[int, ...]:
    return matrix.device.index or 0, matrix.data_ptr(), matrix.shape[0], matrix.shape[1], box_rows


def tensor_map(matrix: torch.Tensor, box_rows: int) -> torch.Tensor:
    """128 bytes on the device that tell TMA to copy boxes of 128 bytes × ``box_rows`` of a contiguous uint8
    matrix [rows, bytes] with the 128-byte swizzle; what lies outside reads as zero. Rows are a multiple of 16
    bytes. ``KernelError`` if the driver refuses.

    The map is passed in memory: a kernel expects it at a multiple of 128 bytes among its
    arguments, where pycuda's packing does not put it.
    """
    index, key = matrix.device.index or 0, _key(matrix, box_rows)
    capturing = torch.cuda.is_current_stream_capturing()
    with _LOCK:
        if key in _MAPS:
            _MAPS.move_to_end(key)
            if capturing:
                _IN_GRAPHS[key] = _MAPS[key]
            return _MAPS[key]
    content = _encode(matrix, box_rows, index)
    if capturing:
        # The graph writes the map at every replay into memory of its own, which no other call may use.
        in_graph = torch.empty(16, dtype=torch.int64, device=matrix.device)
        words = struct.unpack("16Q", content)
        launch(MAP_WRITER, "write_map", matrix.device, (1,), 1, "P" + "Q" * 16, (in_graph, *words))
        return in_graph
    on_device = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(matrix.device)
    with _LOCK:
        _MAPS[key] = on_device
        while len(_MAPS) > KEPT:
            _MAPS.popitem(last=False)
    return on_device


def _encode(matrix: torch.Tensor, box_rows: int, index: int) -> bytes:
    """The map's 128 bytes by cuTensorMapEncodeTiled, which wants them at a multiple of 64."""
    buffer = (ctypes.c_uint64 * 32)()
    at = (ctypes.addressof(buffer) + 63) & ~63
    rows, width = matrix.shape
    sizes, strides = (ctypes.c_uint64 * 2)(width, rows), (ctypes.c_uint64 * 1)(width)
    box, element_strides = (ctypes.c_uint32 * 2)(128, box_rows), (ctypes.c_uint32 * 2)(1, 1)
    layout = (sizes, strides, box, element_strides)
    how = (NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_L2_256B, ZERO_FILL)
    with context(index):
        failed = _libcuda().cuTensorMapEncodeTiled(
            ctypes.c_void_p(at), UINT8, 2, ctypes.c_void_p(matrix.data_ptr()), *layout, *how
        )
    if failed:
        raise KernelError(f"no tensor map for {rows} rows of {width} bytes: CUDA error {failed}")
    return ctypes.string_at(at, 128)


@functools.cache
def _libcuda() -> Any:
    return ctypes.CDLL("libcuda.so.1")
