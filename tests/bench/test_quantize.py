"""What the benchmark of the quantize kernels compiles before it times anything.

If these fail, recording takes minutes longer: kernels and baselines are compiled one at a time between
timings.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import torch

from explorer.bench import quantize as bench
from explorer.bench import quantize_baselines as baselines
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


class OneProcess:
    """An executor that runs what it is given at once, in this process."""

    def __init__(self, workers: int, context: Any) -> None:
        assert 0 < workers <= baselines.MOST_PROCESSES and context.get_start_method() == "spawn"

    def __enter__(self) -> OneProcess:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, call: Any, *arguments: Any) -> Future[None]:
        future: Future[None] = Future()
        try:
            future.set_result(call(*arguments))
        except RuntimeError as error:
            future.set_exception(error)
        return future


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


@pytest.mark.parametrize("asked", [True, False])
def test_baselines_are_compiled_while_kernels_are(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of schemes that have one, each for every type and shape; one that fails takes none away."""
    compiled: list[Build] = []
    called: list[tuple[str, torch.dtype, tuple[int, ...]]] = []

    def compile(function: Any, dynamic: bool) -> Any:
        assert not dynamic
        name = next(key for key, value in baselines.MATHEMATICS.items() if value is function)

        def call(x: torch.Tensor) -> None:
            called.append((name, x.dtype, tuple(x.shape)))
            if len(called) == 1:
                raise RuntimeError("no compiler")

        return call

    def compile_all(builds: list[Build], arches: list[str]) -> list[Build]:
        assert arches == ["sm_90a"]
        compiled.extend(builds)
        return builds

    monkeypatch.setattr(baselines, "ProcessPoolExecutor", OneProcess)
    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(bench, "compile_all", compile_all)
    monkeypatch.setattr(runtime, "arch_of", lambda device: "sm_90a")
    schemes = [SCHEMES[name] for name in ("int8_row", "int4_row", "mxfp4")]
    bench.compile_ahead(schemes, [(4, 64), (8, 64)], DTYPES, CPU, asked)
    assert compiled == bench.builds_of(schemes, [(4, 64), (8, 64)], DTYPES)
    kinds = [torch.float32, torch.bfloat16]
    every = [(n, k, s) for n in ("int8_row", "mxfp4") for k in kinds for s in ((4, 64), (8, 64))]
    assert called == (every if asked else [])
