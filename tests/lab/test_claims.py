"""Claims of others beside what is recorded: from recordings of any machine, or "not recorded yet".

If these fail, docs/ show an H200's number as an H100's, or a claim as a measurement.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from explorer.products.shapes import SQUARE
from explorer.recordings import files
from explorer.recordings.files import NOT_RECORDED, Recording, record_to
from explorer.recordings.gemm import GemmTiming, recorded_gemms
from explorer.recordings.machine import Machine
from explorer.recordings.quantize import QuantizeTiming, recorded_quantize
from explorer.recordings.times import TimeSpread
from lab import claims

TIMING, QUANTIZED = recorded_gemms().rows[0], recorded_quantize().rows[0]


def product(name: str, tflops: float, seconds: float = 1.0, variant: str = "wgmma") -> GemmTiming:
    graph = TimeSpread(seconds, seconds, seconds)
    return dataclasses.replace(TIMING, gemm=name, shape=SQUARE, tflops=tflops, graph=graph, variant=variant)


def quantizing(scheme: str, gigabytes: float, dtype: str) -> QuantizeTiming:
    return dataclasses.replace(
        QUANTIZED, scheme=scheme, dtype=dtype, shape=claims.QUANTIZED, gigabytes_per_s=gigabytes
    )


def test_each_column_is_of_its_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of whatever file: a machine's own folder counts, and the fastest kernel."""
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    h200, h100 = Machine(gpu="NVIDIA H200", date="2026-01-02"), Machine(gpu="NVIDIA H100 PCIe")
    record_to(
        tmp_path / "gemm.json", Recording(h200, (product("bf16", 700, 2.0, "tiled"), product("bf16", 800)))
    )
    of_h100 = (product("bf16", 500), product("fp8_blockwise", 900))
    record_to(tmp_path / "machines" / "nvidia-h100-pcie" / "gemm.json", Recording(h100, of_h100))
    fp8, bf16 = claims.gemm_claims_table().splitlines()[-2:]
    assert fp8.endswith(f"| 750 TFLOP/s | 900 TFLOP/s | {NOT_RECORDED} |")
    assert bf16.endswith("| 400 TFLOP/s | 500 TFLOP/s | 800 TFLOP/s |")
    rows = (quantizing("fp8_e4m3_tensor", 3000, "float32"), quantizing("fp8_e4m3_tensor", 2500, "bfloat16"))
    record_to(tmp_path / "quantize.json", Recording(h200, rows))
    tensor, fine = claims.quantize_claims_table().splitlines()[-2:]
    assert tensor.endswith(f"| 2.5 TB/s | {NOT_RECORDED} | 3.00 TB/s from float32, 2.50 TB/s from bfloat16 |")
    assert fine.endswith(f"| 2.1 TB/s | {NOT_RECORDED} | {NOT_RECORDED} |")
    assert claims.machines_table().splitlines()[2:] == [
        "| NVIDIA H200 | 2026-01-02 | 1 | 1 | `gemm.json` |",
        "| NVIDIA H100 PCIe |  | 2 | 1 | `machines/nvidia-h100-pcie/gemm.json` |",
    ]


def test_without_recordings_only_the_claims_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    for table in (claims.gemm_claims_table(), claims.quantize_claims_table()):
        assert table.count(NOT_RECORDED) == 4 and "claimed (H100)" in table
    assert NOT_RECORDED in claims.machines_table()
