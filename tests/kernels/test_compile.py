"""The quantization kernels compiled for chips that are not here, and the cache of compiled kernels.

If these fail, kernels do not build on some chip, spill registers to memory, or are compiled needlessly.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import explorer.gpu.compile
from explorer import SCHEMES
from explorer.core.builds import all_builds
from explorer.core.lowering import config_of, layout_of, with_kernels
from explorer.gpu import dequantize, fake_quantize, quantize, runtime, statistics
from explorer.gpu.compile import included_files
from explorer.gpu.config import ELEMENTS, MACROS
from explorer.gpu.runtime import Build
from explorer.paths import KERNELS
from tests.covering import Trait, covering

pytestmark = pytest.mark.usefixtures("nvcc")
SHAPES = ((64, 2048), (64, 4096), (64, 8192), (64, 32768), (64, 2560), (3, 33), (4096, 8192))
"""Between them they choose every kernel, and every number of runs that a thread keeps."""


def every_build() -> list[Build]:
    """What the named schemes compile, in all element types and both roundings."""
    builds = [statistics.BUILD]
    for scheme in with_kernels():
        for seed in (None, 1):
            config = config_of(dataclasses.replace(scheme, seed=seed))
            for dtype in ELEMENTS:
                builds += fake_quantize.builds(config, dtype)
                for layout in (layout_of(shape, scheme) for shape in SHAPES):
                    builds += quantize.builds(config, layout, dtype) + dequantize.builds(
                        config, layout, dtype
                    )
    return list(dict.fromkeys(builds))


def of_each_codec(build: Build) -> set[Trait]:
    """Every file with every element type and number of runs; every codec, mapping and scale in some file."""
    own = {"ELEMENT", "RUN", "KEPT"}
    return {
        (build.file,),
        *(((build.file,) if name in own else ()) + (name, value) for name, value in build.macros),
    }


def of_each_file(build: Build) -> set[Trait]:
    return {build.file}


@pytest.mark.parametrize(
    ("arch", "traits"),
    [
        ("sm_90a", of_each_file),
        *(pytest.param(arch, of_each_codec, marks=pytest.mark.thorough)
          for arch in ("sm_80", "sm_90a", "sm_100a", "sm_120a")),
    ],
)  # fmt: skip
def test_kernels_compile_without_spilling(arch: str, traits: Callable[[Build], set[Trait]]) -> None:
    """Every kernel with every element type, each codec, mapping, range and scale in some kernel. (Every
    kernel with every codec is compiled where it runs, by the tests that need a GPU.) Builds come from the
    user's cache, where their name is a hash of all that shapes them."""
    builds = covering(every_build(), traits)
    assert {build.file for build in builds} == {*MACROS, statistics.BUILD.file}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda build: runtime.compile_cubin(build, arch), builds))
    for build in builds:
        used = runtime.resources(build, arch)
        assert len(used) == KERNELS_OF[build.file], f"{build} on {arch} reports {list(used)}"
        spilled = {name: r.spill_bytes for name, r in used.items() if r.spill_bytes}
        assert not spilled, f"{build} on {arch} spills {spilled}"
        assert all(0 < r.registers <= 255 for r in used.values())


KERNELS_OF = {
    "quantize_groups.cu": 1, "quantize_tile.cu": 1, "tensor_range.cu": 1, "ranges.cu": 2, "scales.cu": 1,
    "encode.cu": 3, "encode_units.cu": 1, "dequantize.cu": 3, "dequantize_units.cu": 2, "fake_quantize.cu": 1,
    "learned_step.cu": 2, "statistics.cu": 5,
}  # fmt: skip
"""Entry points of each file."""


def test_macros_are_those_that_files_read() -> None:
    """A macro that a launcher leaves out fails at first launch; one too many makes equal builds differ."""
    for file, macros in MACROS.items():
        sources = [(KERNELS / name).read_text(encoding="utf-8") for name in included_files(file)]
        code = "\n".join(re.sub(r"//.*", "", source) for source in sources)
        every = {name for names in MACROS.values() for name in names}
        read = {name for name in every if re.search(rf"\b{name}\b", code)}
        assert read == set(macros), file


def test_ahead_of_time_is_only_what_is_needed() -> None:
    """The page's kernels for every named scheme, without the roundings and types that it does not read."""
    builds = all_builds()
    assert len(set(builds)) == len(builds) and set(builds) < set(every_build())
    assert {build.file for build in builds} == {*MACROS, statistics.BUILD.file}
    for build in builds:
        assert dict(build.macros).get("STOCHASTIC", "0") == "0"
        assert dict(build.macros).get("ELEMENT") != ELEMENTS[torch.float16]


def test_a_compile_error_shows_nvccs_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reader sees which file and why, and no half-written cubin stays behind; or which cache cannot be
    written."""
    monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path))
    with pytest.raises(runtime.KernelError, match=r"(?s)encode\.cu for sm_90a:\n.*error"):
        runtime.compile_cubin(Build("encode.cu", (("CODEC", "Nonsense<1,2>"),)), "sm_90a")
    assert not list(tmp_path.glob("*.cubin")), "nothing half made is left in the cache"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path / "file" / "cache"))
    build = config_of(SCHEMES["bf16"]).build("dequantize.cu", torch.float32)
    with pytest.raises(runtime.KernelError, match="EXPLORER_KERNEL_CACHE"):
        runtime.compile_cubin(build, "sm_90a")


@pytest.mark.gpu
def test_pycuda_compiles_the_same_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As nvcc's command, with ptxas's report of each build where several compile at once, and nvcc's words of
    an error. pycuda imports where there is a driver."""
    compiler = pytest.importorskip("pycuda.compiler", exc_type=ImportError)
    bad = Build("encode.cu", (("CODEC", "Nonsense<1,2>"),))
    builds, found = [config_of(SCHEMES["nvfp4"]).build("dequantize.cu", dtype) for dtype in ELEMENTS], []
    for used in (compiler, None):
        monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path / str(len(found))))
        monkeypatch.setattr(explorer.gpu.compile, "pycuda_compiler", lambda used=used: used)
        list(runtime.compile_jobs([(build, "sm_90a") for build in builds], 3))
        cubins = [runtime.compile_cubin(build, "sm_90a").read_bytes() for build in builds]
        found.append((cubins, [runtime.resources(build, "sm_90a") for build in builds]))
        with pytest.raises(runtime.KernelError, match=r"(?s)encode\.cu for sm_90a:\n.*error"):
            runtime.compile_cubin(bad, "sm_90a")
    assert found[0] == found[1] and all(len(used) == 3 for used in found[0][1])


def test_the_cache_is_keyed_by_source_and_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same build is compiled once, and again where half of it is left; another macro is another cubin."""
    monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path))
    config = config_of(SCHEMES["bf16"])
    build = config.build("dequantize.cu", torch.float32)
    first = runtime.compile_cubin(build, "sm_90a")
    stamp = first.stat().st_mtime_ns
    assert runtime.compile_cubin(build, "sm_90a") == first and first.stat().st_mtime_ns == stamp
    assert runtime.compile_cubin(config.build("dequantize.cu", torch.bfloat16), "sm_90a") != first
    whole = first.read_bytes()
    first.write_bytes(whole[:100])
    assert runtime.compile_cubin(build, "sm_90a").read_bytes() == whole
    headers = ["blocks", "codec", "dependent", "element", "encode", "memory", "packing", "scale", "sums"]
    assert included_files("encode.cu") == {"encode.cu", *(f"{name}.cuh" for name in headers)}
