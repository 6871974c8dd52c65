"""What the CUDA driver is given, by a library that stands in for it and writes it down.

If these fail, a kernel reads other arguments than it was given, TMA copies other boxes of a matrix, or a
refused launch is taken for a product.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from explorer.gpu import driver, gemm, runtime, tma
from explorer.gpu.compile import Build, KernelError
from explorer.gpu.gemm import swap_ab, tensor_cores
from tests.kernels.stub import StubContext, last

ROOT = Path(__file__).parents[2]
MAP_A, MAP_B = bytes(range(128)), bytes(range(128, 256))


def kernel_of(library: Any, types: str, name: str = "kernel") -> driver.Kernel:
    """A kernel that takes what ``types`` says."""
    sizes = driver.arguments_of(types).sizes
    library.stub_parameters((ctypes.c_size_t * len(sizes))(*sizes), ctypes.c_size_t(len(sizes)))
    return driver.Kernel(library, driver.load_module(library, b"cubin", "a.cu"), name, types)


ARGUMENTS = [
    ("P", [2**63 + 5], ["<Q"]), ("Q", [2**64 - 1], ["<Q"]), ("q", [-(2**63)], ["<q"]),
    ("I", [2**32 - 1], ["<I"]), ("i", [-7], ["<i"]), ("f", [1.5], ["<f"]), ("M", [MAP_A], ["128s"]),
    ("iPifQ", [1, 2, 3, 4.5, 5], ["<i", "<Q", "<i", "<f", "<Q"]),
    ("P(QQiiQ)i", [1, 2, 3, 4, 5, 6, 7], ["<Q", "<QQiiQ", "<i"]),
    ("i(iQ)(Qi)f", [1, 2, 3, 4, 5, 6.0], ["<i", "<i4xQ", "<Qi4x", "<f"]),
    ("iMPiM", [9, MAP_A, 8, 7, MAP_B], ["<i", "128s", "<Q", "<i", "128s"]),
    ("MM" + "P" * 20, [MAP_A, MAP_B, *range(20)], ["128s", "128s", *["<Q"] * 20]), ("", [], []),
]  # fmt: skip
"""Types, values, and each parameter's bytes in struct's letters."""


def test_every_kind_of_argument_arrives(library: Any) -> None:
    """Each parameter's bytes, at an address that the driver and an encoded map need. A second launch's
    arguments replace the first's."""
    for types, values, parameters in ARGUMENTS:
        kernel = kernel_of(library, types)
        for turn in (values, values[::-1] if len(set(types)) == 1 else values):
            kernel.launch(turn, (1, 1, 1), 32, 0)
        left, want = list(turn), []
        for form in parameters:
            members = len(re.sub(r"\d*[x<]|\d+", "", form))
            want.append(struct.pack(form, *left[:members]).hex())
            left = left[members:]
        assert last(library)["parameters"] == want, types
        assert not any(last(library)["beyond"]), types


def test_a_float_beyond_float32_is_infinite(library: Any) -> None:
    """As C rounds it. The largest float32 and half a step, from where on values saturate, is such a number:
    the launch of a cast to FP32 was refused for it."""
    kernel = kernel_of(library, "f(if)i")
    for value, want in ((3.4028235677973366e38, math.inf), (-1e300, -math.inf), (3.4028234e38, 3.4028234e38)):
        kernel.launch([value, 1, 0.1, 2], (1, 1, 1), 32, 0)
        first, *others = last(library)["parameters"]
        assert struct.unpack("<f", bytes.fromhex(first))[0] == pytest.approx(want, rel=1e-6)
        assert others == [struct.pack("<if", 1, 0.1).hex(), struct.pack("<i", 2).hex()]


def test_a_prepared_launch_writes_its_addresses_alone(library: Any) -> None:
    """Into memory of its own: another launch of the kernel, prepared or not, changes nothing of it."""
    kernel = kernel_of(library, "iPQ(QQ)P")
    first = kernel.prepared([7, 0, 8, 9, 10, 0], [(1, 2), (5, 0)], (3, 2, 1), 96, True)
    second = kernel.prepared([1, 0, 2, 3, 4, 5], [(1, 1)], (1, 1, 1), 32, False)
    for turn in range(2):
        kernel.launch([0] * 6, (9, 9, 9), 64, 5)
        second([40, 50, 60], 0x6000)
        said = last(library)
        assert said["parameters"] == [struct.pack(form, *v).hex() for form, v in (
            ("<i", [1]), ("<Q", [50]), ("<Q", [2]), ("<QQ", [3, 4]), ("<Q", [5]))]  # fmt: skip
        first([11, 12, 13 + turn], 0x5000)
        said = last(library)
        assert said["parameters"] == [struct.pack(form, *v).hex() for form, v in (
            ("<i", [7]), ("<Q", [13 + turn]), ("<Q", [8]), ("<QQ", [9, 10]), ("<Q", [11]))]  # fmt: skip
        assert said["grid"] == [3, 2, 1] and said["block"] == [96, 1, 1] and said["stream"] == 0x5000
        assert said["attributes"] == {"early": 1}
    library.stub_fail(1)
    with pytest.raises(KernelError, match=r"\(3, 2, 1\) .* 96 .*CUDA_ERROR_INVALID_VALUE"):
        first([1, 2, 3], 0)


LAUNCHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}), ({"early": True}, {"early": 1}), ({"cluster": 2}, {"cluster": [2, 1, 1]}),
    ({"cluster": 8, "early": True}, {"early": 1, "cluster": [8, 1, 1]}),
    ({"cluster": 1, "shared": 1000}, {}),
]  # fmt: skip


def test_the_launch_is_what_was_asked_for(library: Any) -> None:
    """Grid, block, stream, shared memory and attributes, none of which a launch before leaves behind."""
    kernel = kernel_of(library, "i")
    for number, (how, attributes) in enumerate(LAUNCHES * 2):
        kernel.launch([1], (3, 2, 65535), 384, 0x7F0000000000 + number, **how)
        said = last(library)
        assert said["grid"] == [3, 2, 65535] and said["block"] == [384, 1, 1]
        assert said["stream"] == 0x7F0000000000 + number and said["shared"] == how.get("shared", 0)
        assert said["attributes"] == attributes


def test_large_shared_memory_is_asked_for_once(library: Any) -> None:
    """The driver refuses more than 48 KiB that were not asked for; asking costs time."""
    kernel = kernel_of(library, "i")
    for shared, asked in ((0, 0), (49152, 0), (49153, 1), (49153, 1), (232448, 2), (100000, 2)):
        kernel.launch([1], (1, 1, 1), 32, 0, shared)
        assert library.stub_asked() == asked


def _launched(library: Any, code: int) -> None:
    kernel = kernel_of(library, "i")
    library.stub_fail(code)
    kernel.launch([1], (7, 1, 1), 33, 0, 99, 2)


REFUSED = [
    (lambda library: _launched(library, 1), r"\(7, 1, 1\) .* 33 .* 2 .* 99 .*CUDA_ERROR_INVALID_VALUE"),
    (lambda library: _launched(library, 12345), "CUDA error 12345"),
    (lambda library: driver.load_module(library, b"text", "a.cu"), "a.cu .*CUDA_ERROR_INVALID_VALUE"),
    (lambda library: kernel_of(library, "i", "absent"), "absent .*CUDA_ERROR_NOT_FOUND"),
    (lambda library: kernel_of(library, "i").launch([1], (1, 1, 1), 32, 0, 232449), "kernel .* 232449"),
    (lambda library: kernel_of(library, "ii").launch([1], (1, 1, 1), 32, 0), r"'ii', got \[1\]"),
    (lambda library: kernel_of(library, "i").launch([2**31], (1, 1, 1), 32, 0), r"'i', got \[2147483648\]"),
    (lambda library: kernel_of(library, "M").launch([0], (1, 1, 1), 32, 0), r"'M', got \[0\]"),
    (lambda library: driver.encode_map(library, 4096, 10, 256, 257), "10 rows of 256 .* 257 rows"),
]


def test_what_the_driver_refuses_is_an_error_that_says_why(library: Any) -> None:
    """Else a product would be whatever lies in the output's memory."""
    for call, words in REFUSED:
        with pytest.raises(KernelError, match=words):
            call(library)


def test_types_that_the_kernel_does_not_have_are_refused(library: Any) -> None:
    """Arguments too few, too many or of another size would be read from what lies beside them."""
    for compiled in ("i", "iii", "iP", "M"):
        sizes = driver.arguments_of(compiled).sizes
        kernel_of(library, "ii")
        library.stub_parameters((ctypes.c_size_t * len(sizes))(*sizes), ctypes.c_size_t(len(sizes)))
        with pytest.raises(KernelError, match="'ii' has 4, 4"):
            driver.Kernel(library, driver.load_module(library, b"cubin", "a.cu"), "kernel", "ii")
    for types in ("x", "P(", "P(QQ", "(P(Q))", "()", "P Q"):
        with pytest.raises(ValueError, match="PQqIifM"):
            driver.arguments_of(types)


def test_threads_do_not_mix_their_arguments(library: Any) -> None:
    """A kernel's memory for arguments is one for all threads. If this fails, a visitor gets another's
    product."""
    kernel = kernel_of(library, "QQ")
    library.stub_wait()

    def work(number: int) -> None:
        for _ in range(20):
            kernel.launch([number, number], (number, 1, 1), 32, 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.stub_unequal() == 0


# --- the way from a launcher to the driver -----------------------------------------------------------------


def test_a_launch_goes_to_torchs_stream_and_leaves_no_context(library: Any, on_stub: StubContext) -> None:
    """On another stream a CUDA graph would not hold it, or it would read X before it is written; a thread
    that ends with a context on its stack ends the process."""
    x, device, build = torch.zeros(3), torch.device("cuda", 0), Build("a.cu", ())
    sizes = (ctypes.c_size_t * 3)(8, 8, 4)
    library.stub_parameters(sizes, ctypes.c_size_t(3))
    runtime.launch(build, "kernel", device, (5,), 64, "PPi", (x, None, -1), 60000, early=True)
    said = last(library)
    assert said["stream"] == 0x5000 and said["grid"] == [5, 1, 1] and said["attributes"] == {"early": 1}
    assert said["parameters"] == [struct.pack("<Q", x.data_ptr()).hex(), "00" * 8, "ff" * 4]
    assert on_stub.depth == 0
    library.stub_fail(1)
    with pytest.raises(KernelError, match="invalid argument"):
        runtime.launch(build, "kernel", device, (5,), 64, "PPi", (x, None, -1))
    assert on_stub.depth == 0


BF16, S8, E4M3 = gemm.OperandType.BF16, gemm.OperandType.S8, gemm.OperandType.E4M3
DENSE, INT8 = gemm.Tiles(BF16), gemm.Tiles(S8)
INT4 = gemm.Tiles(BF16, 4, "IntegerCodec<4>", scales=gemm.ScalePlace.SUM, scale="__half")
BLOCKWISE = gemm.Tiles(E4M3, scales=gemm.ScalePlace.BLOCK)
NONE, BLOCK, COLUMN = gemm.ScaleK.NONE, gemm.ScaleK.BLOCK, gemm.ScaleK.COLUMN


UINT8, RANK, NO_INTERLEAVE, SWIZZLE_128B, L2_256B, ZEROS = 0, 2, 0, 3, 3, 0
"""Of every map: cuda.h's enumerators, and two dimensions."""


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.uint8)


def _swap(tiles: gemm.Tiles, m: int, n: int, k: int) -> None:
    width = k * (2 if tiles.x_type is BF16 else 1)
    w = _zeros(-(-n // 64), -(-k // 128), tiles.tile_bytes) if tiles.bits else _zeros(n, width)
    scales = (torch.zeros(k // 128, m), torch.zeros(-(-n // 128), k // 128))
    given = scales if tiles is BLOCKWISE else (None, None)
    gemm.gemm_swap_ab(_zeros(m, width), w, n, tiles, gemm.Epilogue(), *given)


def _wgmma(kind: str, scale_k: gemm.ScaleK, m: int, width: int) -> None:
    scales = {
        NONE: (None, None),
        BLOCK: (torch.zeros(width // 128, m), torch.zeros(32, width // 128)),
        COLUMN: (None, torch.zeros(width // 128, 4096)),
    }
    gemm.gemm_wgmma(_zeros(m, width), _zeros(4096, width), kind, gemm.Epilogue(), scale_k, *scales[scale_k])


def _grouped(kind: str, m: int, width: int, blocks: bool) -> None:
    scales = (torch.zeros(width // 128, m), torch.zeros(4, 4, width // 128)) if blocks else (None, None)
    ends = torch.zeros(4, dtype=torch.int32)
    gemm.gemm_grouped(_zeros(m, width), _zeros(4, 512, width), ends, kind, gemm.Epilogue(), 0, *scales)


MAPS: list[tuple[str, Any, tuple[int, ...], tuple[int, ...] | None]] = [
    ("swap bf16, 1", lambda: _swap(DENSE, 1, 4096, 4096), (8192, 1, 1), (8192, 4096, 64)),
    ("swap bf16, 16", lambda: _swap(DENSE, 16, 4096, 4096), (8192, 16, 16), (8192, 4096, 64)),
    ("swap bf16, 64", lambda: _swap(DENSE, 64, 4096, 4096), (8192, 64, 64), (8192, 4096, 64)),
    ("swap bf16, 128", lambda: _swap(DENSE, 128, 4096, 4096), (8192, 128, 128), (8192, 4096, 64)),
    ("swap bf16, 4096", lambda: _swap(DENSE, 4096, 4096, 4096), (8192, 4096, 256), (8192, 4096, 128)),
    ("swap int8, 1", lambda: _swap(INT8, 1, 8192, 8192), (8192, 1, 1), (8192, 8192, 64)),
    ("swap int8, 4096", lambda: _swap(INT8, 4096, 8192, 8192), (8192, 4096, 256), (8192, 8192, 128)),
    ("swap int4, 1", lambda: _swap(INT4, 1, 4096, 4096), (8192, 1, 1), None),
    ("swap int4, 64", lambda: _swap(INT4, 64, 4096, 4096), (8192, 64, 64), None),
    ("swap int4, 4096", lambda: _swap(INT4, 4096, 4096, 4096), (8192, 4096, 128), None),
    ("swap blocks, 1", lambda: _swap(BLOCKWISE, 1, 512, 1024), (1024, 1, 1), (1024, 512, 64)),
    ("swap blocks, 128", lambda: _swap(BLOCKWISE, 128, 512, 1024), (1024, 128, 128), (1024, 512, 128)),
    ("wgmma bf16, 1", lambda: _wgmma("bf16", NONE, 1, 8192), (8192, 1, 1), (8192, 4096, 128)),
    ("wgmma bf16, 4096", lambda: _wgmma("bf16", NONE, 4096, 8192), (8192, 4096, 128), (8192, 4096, 128)),
    ("wgmma blocks, 1", lambda: _wgmma("e4m3", BLOCK, 1, 4096), (4096, 1, 1), (4096, 4096, 128)),
    ("wgmma blocks, 4096", lambda: _wgmma("e4m3", BLOCK, 4096, 4096), (4096, 4096, 256), (4096, 4096, 128)),
    ("wgmma columns, 128", lambda: _wgmma("s8", COLUMN, 128, 4096), (4096, 128, 128), (4096, 4096, 128)),
    ("grouped bf16, 32", lambda: _grouped("bf16", 32, 8192, False), (8192, 32, 32), (8192, 2048, 256)),
    ("grouped bf16, 1200", lambda: _grouped("bf16", 1200, 8192, False), (8192, 1200, 64), (8192, 2048, 256)),
    ("grouped blocks, 32", lambda: _grouped("e4m3", 32, 4096, True), (4096, 32, 32), (4096, 2048, 256)),
    ("grouped blocks, 800", lambda: _grouped("e4m3", 800, 4096, True), (4096, 800, 128), (4096, 2048, 128)),
]  # fmt: skip
"""A product, and its maps of X and W on 132 multiprocessors: bytes of a row, rows, rows of a box: no
more than X has. Where W is repacked it has no map."""


def test_maps_are_encoded_for_the_boxes_that_kernels_load(
    on_stub: StubContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box of other rows would fill other shared memory than the barrier waits for; another swizzle or
    stride would multiply other elements."""
    launched: list[tuple[str, Any]] = []
    for module in (swap_ab, tensor_cores):
        monkeypatch.setattr(module, "padded_pair", lambda x, w, *_: (x, w))
        monkeypatch.setattr(module, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(tensor_cores, "launch", lambda *a, **_: launched.append((a[5], a[6])))
    monkeypatch.setattr(swap_ab, "planned", swap_ab.SwapAB)
    monkeypatch.setattr(swap_ab, "Ready", lambda *a, **_: _Started(a[3], launched))
    monkeypatch.setattr(swap_ab, "padded_rows", lambda x: x)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for name, call, of_x, of_w in MAPS:
        launched.clear()
        call()
        [(types, arguments)] = launched
        assert types.startswith("MM" if of_w else "MP"), name
        for found, want in zip(arguments, (of_x, of_w) if of_w else (of_x,), strict=False):
            width, rows, box_rows = want
            numbers = struct.unpack("<16Q", found)
            boxes = (width, rows, width, 128, box_rows, 1, 1)
            assert numbers[0], name
            assert numbers[1:14] == (UINT8, RANK, *boxes, NO_INTERLEAVE, SWIZZLE_128B, L2_256B, ZEROS), name
    assert on_stub.depth == 0


class _Started:
    """In place of ``Ready``: notes the types and values of each launch."""

    def __init__(self, types: str, launched: list[tuple[str, Any]]) -> None:
        self._types, self._launched = types, launched

    def start(self, values: Any) -> None:
        self._launched.append((self._types, values))


def test_a_map_is_that_of_the_matrix(on_stub: StubContext) -> None:
    """Maps are kept by value: another address, shape or box at the same place is another map."""
    x = _zeros(64, 256)
    first, y = tma.tensor_map(x, 8), x[1:]
    assert tma.tensor_map(_zeros(64, 256)[:], 8) != first == tma.tensor_map(x, 8)
    others = [tma.tensor_map(x, 16), tma.tensor_map(y, 8), tma.tensor_map(x.view(128, 128), 8)]
    assert len({first, *others}) == 4
    assert struct.unpack("<Q", others[1][:8])[0] == x.data_ptr() + 256


def test_a_padded_w_is_not_read_early(on_stub: StubContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is written just before the launch, which would not wait for it."""
    launched: list[bool] = []

    def ready(*_: Any, early: bool, **__: Any) -> _Started:
        launched.append(early)
        return _Started("", [])

    monkeypatch.setattr(swap_ab, "planned", swap_ab.SwapAB)
    monkeypatch.setattr(swap_ab, "Ready", ready)
    for copied in (False, True):
        pair = (lambda x, w: (x, w.clone())) if copied else (lambda x, w: (x, w))
        monkeypatch.setattr(swap_ab, "padded_pair", pair)
        gemm.gemm_swap_ab(_zeros(1, 256), _zeros(64, 256), 64, DENSE, gemm.Epilogue(), early=True)
    assert launched == [True, False]
