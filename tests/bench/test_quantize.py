"""What the benchmark of the quantize kernels compiles before it times anything.

If these fail, recording takes minutes longer: kernels are compiled one at a time between timings.
"""

from __future__ import annotations

import pytest
import torch

from explorer.bench import commands
from explorer.bench import quantize as bench
from explorer.core.lowering import config_of, layout_of, with_kernels
from explorer.gpu import runtime
from explorer.gpu.compile import Build
from explorer.gpu.dequantize import launch_for
from explorer.gpu.quantize import launches
from explorer.recordings.quantize import SMALL
from explorer.schemes import SCHEMES

SHAPES = [(16384, 16384), (4096, 4096)]
DTYPES = ["float32", "bfloat16"]
CPU = torch.device("cpu")


def test_every_kernel_that_is_timed_is_compiled_ahead() -> None:
    """Each scheme's, at the shapes that are timed and that of the small call; none twice."""
    builds = bench.builds_of(with_kernels(), SHAPES, DTYPES)
    assert len(set(builds)) == len(builds)
    for scheme in with_kernels():
        for dtype in (bench.DTYPES[name] for name in DTYPES):
            for layout in (layout_of(shape, scheme) for shape in (*SHAPES, SMALL)):
                config = config_of(scheme)
                of_quantize = {launch.build for launch in launches(config, layout, dtype)}
                assert of_quantize | {launch_for(config, layout, dtype).build} <= set(builds), scheme.name


def test_kernels_are_compiled_before_the_first_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, and nothing before rows are asked for. What takes long beside the kernels, torch.compile
    and calls from Python, is timed at the first shape alone."""
    steps: list[object] = []

    def compile_all(builds: list[Build], arches: list[str]) -> list[Build]:
        steps.append((tuple(builds), tuple(arches)))
        return builds

    def timed(schemes: object, shape: tuple[int, int], *_: object, first: bool) -> list[object]:
        steps.append((shape, first))
        return []

    monkeypatch.setattr(commands, "compile_all", compile_all)
    monkeypatch.setattr(commands, "time_quantize", timed)
    monkeypatch.setattr(commands, "require_gpu", lambda: CPU)
    monkeypatch.setattr(runtime, "arch_of", lambda device: "sm_90a")
    schemes = [SCHEMES[name] for name in ("int8_row", "int4_row", "mxfp4")]
    asked = commands.bench_quantize(schemes, [(4, 64), (8, 64)], DTYPES)
    assert not steps and not list(asked.rows)
    builds = tuple(bench.builds_of(schemes, [(4, 64), (8, 64)], DTYPES))
    assert steps == [(builds, ("sm_90a",)), ((4, 64), True), ((8, 64), False)]
