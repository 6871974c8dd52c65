"""Headers with tables of their own, compiled for the host and run.

If these fail, two codes of a repacked tile share a bit or a weight is multiplied twice, or NF4, FNUZ, ternary
or binary codes on a GPU are others than on a CPU.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from explorer.gpu.config import MACROS
from explorer.paths import KERNELS
from tests.covering import sampled

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "name", sampled(["fragments_check", "cells_check", "shortcuts_check"], ["shortcuts_check"])
)
def test_the_program_finds_nothing_wrong(name: str, nvcc: str, tmp_path: Path) -> None:
    program = tmp_path / "check"
    source = HERE / f"{name}.cu"
    subprocess.run([nvcc, "-O1", "-std=c++17", f"-I{KERNELS}", "-o", program, source], check=True)
    assert subprocess.run([program], check=True, capture_output=True, text=True).stdout == "ok\n"


def test_kernels_that_are_launched_early_wait_for_the_last_one() -> None:
    """``Launch`` launches all of them early. If this fails, one reads what is not written yet."""
    for name in (*MACROS, "statistics.cu"):
        text = (KERNELS / name).read_text(encoding="utf-8")
        kernels = re.findall(r'extern "C" __global__ void[^{]*\{\s*(\w[^;]*;)', text)
        assert kernels == ["follow();"] * text.count("__global__"), name
