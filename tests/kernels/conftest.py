"""A library in place of libcuda, and the launchers with it and no GPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from explorer.gpu import driver, runtime, tma
from tests.kernels.stub import StubContext

HANDLE = 0xC0
"""The driver's handle of the stub's context; a tensor on the CPU is on the device -1."""


@pytest.fixture(scope="session")
def library(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """driver_stub.c as a library, compiled with nvcc's cuda.h."""
    path = tmp_path_factory.mktemp("stub") / "libcuda.so"
    source = Path(__file__).with_name("driver_stub.c")
    options = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "none")
    subprocess.run([nvcc, *options, "-o", path, source], check=True)
    stub = driver.declared(ctypes.CDLL(str(path)))
    stub.stub_launch.restype = ctypes.c_char_p
    return stub


@pytest.fixture
def on_stub(library: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StubContext]:
    """``runtime.launch`` and ``tma.tensor_map`` with the stub for a driver and no GPU."""
    context, cubin = StubContext(), tmp_path / "a.cubin"
    cubin.write_bytes(b"cubin")
    library.stub_parameters(None, ctypes.c_size_t(0))
    for place, name, value in (
        (driver, "library", lambda: library),
        (runtime, "_CONTEXTS", {0: (context, HANDLE), -1: (context, HANDLE)}),
        (runtime, "_KERNELS", {}),
        (runtime, "_MODULES", {}),
        (runtime, "arch_of", lambda device: "sm_90a"),
        (runtime, "compile_cubin", lambda build, arch: cubin),
        (runtime, "launches_early", lambda index: True),
        (runtime, "stream_of", lambda index: 0x5000 + index),
    ):
        monkeypatch.setattr(place, name, value)
    tma.encoded_map.cache_clear()
    yield context
    tma.encoded_map.cache_clear()
