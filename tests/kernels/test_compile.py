"""The quantization kernels compiled for chips that are not here, and the cache of compiled kernels.

If these fail, kernels do not build on some chip, spill registers to memory, or are compiled needlessly.
"""

from __future__ import annotations

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from explorer import SCHEMES
from explorer.core.builds import all_builds
from explorer.core.lowering import config_of, layout_of, with_kernels
from explorer.formats import float_format
from explorer.gpu import dequantize, fake_quantize, quantize, runtime, statistics
from explorer.gpu.compile import included_files
from explorer.gpu.config import BLOCKS, ELEMENTS, MACROS
from explorer.gpu.runtime import Build
from explorer.paths import KERNELS
from explorer.schemes import ScaleRule
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


@pytest.mark.parametrize(
    "arch",
    ["sm_90a", *(pytest.param(arch, marks=pytest.mark.thorough) for arch in ("sm_80", "sm_100a", "sm_120a"))],
)
def test_kernels_compile_without_spilling(arch: str) -> None:
    """Every kernel with every element type, each codec, mapping, range and scale in some kernel. (Every
    kernel with every codec is compiled where it runs, by the tests that need a GPU.) Builds come from the
    user's cache, where their name is a hash of all that shapes them."""
    builds = covering(every_build(), of_each_codec)
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


LETTERS = {"Blocks": BLOCKS, "uint64_t": "Q", "uint32_t": "I", "int": "i", "float": "f"}
"""Struct letters of C++ parameter types; pointers are P."""


def parameters(file: str, kernel: str) -> str:
    """The struct letters of a kernel's parameters, from its declaration."""
    code = (KERNELS / file).read_text(encoding="utf-8")
    match = re.search(rf"__global__ [^;{{]*?\b{kernel}\(([^)]*)\)", code)
    assert match, f"{file} has no kernel {kernel}"
    declared = [part.strip() for part in match.group(1).split(",")]
    return "".join("P" if "*" in part else LETTERS[part.split()[0]] for part in declared)


def test_arguments_are_the_kernels_parameters() -> None:
    """A launcher that passes other types than a kernel declares makes it read wrong numbers and addresses."""
    launches = []
    for scheme in with_kernels():
        config = config_of(scheme)
        for layout in (layout_of(shape, scheme) for shape in SHAPES):
            launches += quantize.launches(config, layout, torch.float32)
            launches.append(dequantize.launch_for(config, layout, torch.float32))
    for launch in launches:
        assert launch.types == parameters(launch.build.file, launch.kernel), launch.kernel
    reached = {launch.build.file for launch in launches}
    assert reached == set(MACROS) - {"fake_quantize.cu", "learned_step.cu"}


def test_ahead_of_time_is_only_what_is_needed() -> None:
    """The page's kernels for every named scheme, without the roundings and types that it does not read."""
    builds = all_builds()
    assert len(set(builds)) == len(builds) and set(builds) < set(every_build())
    assert {build.file for build in builds} == {*MACROS, statistics.BUILD.file}
    for build in builds:
        assert dict(build.macros).get("STOCHASTIC", "0") == "0"
        assert dict(build.macros).get("ELEMENT") != ELEMENTS[torch.float16]


def test_schemes_that_differ_in_nothing_else_share_builds() -> None:
    """A range kernel does not know codecs, an encoding kernel no scale format."""
    groups, layout = SCHEMES["int4_group128"], layout_of((3, 33), SCHEMES["int4_group128"])
    other = dataclasses.replace(groups, scale=ScaleRule(float_format("bfloat16")))
    first, second = (
        {b.file: b for b in quantize.builds(config_of(scheme), layout, torch.float32)}
        for scheme in (groups, other)
    )
    assert first["encode.cu"] == second["encode.cu"] and first["ranges.cu"] == second["ranges.cu"]
    assert first["scales.cu"] != second["scales.cu"]


def test_a_compile_error_shows_nvccs_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reader sees which file and why, and no half-written cubin stays behind."""
    monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path))
    with pytest.raises(runtime.KernelError, match=r"(?s)could not compile encode\.cu for sm_90a:\n.*error"):
        runtime.compile_cubin(Build("encode.cu", (("CODEC", "Nonsense<1,2>"),)), "sm_90a")
    assert not list(tmp_path.glob("*.cubin")), "nothing half made is left in the cache"


def test_the_cache_is_keyed_by_source_and_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same build is compiled once; another arch or macro is another cubin."""
    monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path))
    config = config_of(SCHEMES["bf16"])
    build = config.build("dequantize.cu", torch.float32)
    first = runtime.compile_cubin(build, "sm_90a")
    stamp = first.stat().st_mtime_ns
    assert runtime.compile_cubin(build, "sm_90a") == first and first.stat().st_mtime_ns == stamp
    assert runtime.compile_cubin(build, "sm_80") != first
    assert runtime.compile_cubin(config.build("dequantize.cu", torch.bfloat16), "sm_90a") != first
    headers = {
        "blocks.cuh",
        "codec.cuh",
        "dependent.cuh",
        "element.cuh",
        "encode.cuh",
        "memory.cuh",
        "packing.cuh",
        "scale.cuh",
        "sums.cuh",
    }
    assert included_files("encode.cu") == {"encode.cu", *headers}


def test_a_damaged_cubin_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loaded as it is, half a file would fail at the first launch, for every visitor."""
    monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path))
    build = config_of(SCHEMES["bf16"]).build("dequantize.cu", torch.float32)
    path = runtime.compile_cubin(build, "sm_90a")
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert runtime.compile_cubin(build, "sm_90a").read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Warming the kernels ends with a line that says what to set, not with a traceback."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path / "file" / "cache"))
    build = config_of(SCHEMES["bf16"]).build("dequantize.cu", torch.float32)
    with pytest.raises(runtime.KernelError, match="EXPLORER_KERNEL_CACHE"):
        runtime.compile_cubin(build, "sm_90a")


def test_without_a_gpu_the_reason_is_said() -> None:
    """The page and the command line show it."""
    state = runtime.available()
    if not torch.cuda.is_available():
        assert not state.ok and state.reason == "no GPU found"
