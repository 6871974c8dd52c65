"""Benchmarks as the command line calls them, on the CPU."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from explorer import gpu
from explorer.bench import commands, quantize, timing
from explorer.bench.commands import place_of
from explorer.bench.steps import SHAPES, parts_of, products_of
from explorer.core.lowering import config_of, layout_of, with_kernels
from explorer.gpu.dequantize import launch_for
from explorer.gpu.quantize import launches
from explorer.models.serve import linear_but_head
from explorer.products.auto import TUNED_ON, variants_for
from explorer.products.gemms import GEMMS
from explorer.recordings.gemm import newest_gemms
from explorer.recordings.machine import Machine
from explorer.recordings.quantize import SMALL
from explorer.recordings.times import TimeSpread
from explorer.schemes import SCHEMES
from lab import benchmarks

NO_GPU = pytest.mark.skipif(gpu.available().ok, reason="on a machine with a GPU its kernels are timed")
H200 = (9, 0)


@NO_GPU
def test_every_benchmark_gives_as_many_rows_as_it_says() -> None:
    scheme = [SCHEMES["nvfp4"]]
    for benchmark in (
        commands.bench_cpu(scheme, [(16, 32)], 1),
        benchmarks.bench_analysis(scheme, [(16, 32)], 1),
    ):
        rows = list(benchmark.rows)
        assert len(rows) == benchmark.total == 1 and benchmark.line(rows[0])
        with pytest.raises(ValueError, match="GPU"):
            benchmark.record(rows)


def test_wrong_input_is_refused_before_anything_is_timed() -> None:
    for call, fact in (
        (lambda: commands.bench_cpu(None, [(1, 2, 3)]), "1x2x3"),
        (lambda: commands.bench_gemm(None, [(64, 64)]), "64x64"),
        (lambda: commands.bench_gemm(["nope"]), "'nope'"),
        (lambda: commands.bench_cpu_gemm(["nope"]), "'nope'.*fp32"),
        (lambda: commands.bench_cpu_gemm(None, [(1, 2, 3)], "nope"), "'nope'"),
        (lambda: commands.bench_cpu_gemm(None, [(0, 2, 3)]), "at least 1"),
        (lambda: commands.bench_quantize(None, dtypes=["int9"]), "'int9'"),
    ):
        with pytest.raises(ValueError, match=fact):
            call()


def test_calls_are_timed_until_the_last_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a call's time is that of its launch, or of many calls."""
    steps: list[str] = []
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(timing, "synchronize", lambda device: steps.append("wait"))
    ticks = SimpleNamespace(perf_counter=lambda: (steps.append("clock"), next(clock))[1])
    monkeypatch.setattr(timing, "time", ticks)
    calls = [lambda: steps.append("a"), lambda: steps.append("b")]
    spread = timing.time_calls(calls, torch.device("cpu"), rounds=3, repeats=2)
    once = ["wait", "clock", *"ababab", "wait", "clock"]
    assert steps == once * 3 and spread == TimeSpread(10, 10, 10)


def test_another_gpu_is_recorded_beside_the_one_that_ships() -> None:
    """Otherwise `--record` on an A100 replaces the H200's times, which stand for shapes not recorded."""
    for name in ("gemm", "quantize"):
        assert place_of(name, Machine(gpu=TUNED_ON)) == name
        assert place_of(name, Machine(gpu="NVIDIA A100")) == f"machines/nvidia-a100/{name}"
    assert place_of("steps", Machine(gpu="NVIDIA A100")) == "steps", "of which there is one"


def test_the_fastest_kernel_depends_on_the_tokens() -> None:
    """Few tokens take kernels that decode weights as they multiply, many those with the widest tiles."""
    row, sides = GEMMS["w4a16_group128"], (8192, 8192)
    names = {m: [v.name for v in variants_for(row, (m, *sides), H200, "fastest")] for m in (1, 32, 256, 4096)}
    assert names == {
        1: ["registers", "swap A/B"],
        32: ["swap A/B"],
        256: ["swap A/B", "swap A/B, scaled weights"],
        4096: ["swap A/B, scaled weights", "dequantize + wgmma"],
    }
    assert variants_for(row, (1, *sides), H200, "all") == row.variants_on(H200)
    assert [v.name for v in variants_for(row, (1, *sides), H200, "tiled")] == ["tiled"]
    assert variants_for(GEMMS["int8_dynamic"], (1, *sides), (7, 5), "fastest") == ()


def test_auto_takes_the_recorded_fastest_at_the_nearest_shape() -> None:
    """Of a product that was not swept, of its relatives: a time at 4,096 tokens says nothing of 64. Verdicts
    and the page time one kernel for each product."""
    for name, m in (("int8_asym", 64), ("fp8_e5m2_row", 64), ("w4a8_int_channel", 256), ("w4a16_group64", 1)):
        (chosen,) = variants_for(GEMMS[name], (m, 8192, 8192), H200, "auto")
        assert chosen.name == "swap A/B", name
    for row in GEMMS.values():
        for shape in ((1, 8192, 8192), (100, 8000, 8000), (4096, 4096, 4096)):
            (chosen,) = variants_for(row, shape, H200, "auto")
            likely = [v.name for v in variants_for(row, shape, H200, "fastest")]
            assert chosen.name in likely
            here = [t for t in newest_gemms().rows if (t.gemm, t.shape) == (row.name, shape)]
            times = {t.variant: t.seconds for t in here if t.variant in likely}
            if shape[0] == 1 and chosen.name in times:
                assert times[chosen.name] == min(times.values())
    # 4096³ was recorded before this kernel was: the nearest shape at which all kernels were timed decides.
    (chosen,) = variants_for(GEMMS["w4a8_int"], (4096, 4096, 4096), H200, "auto")
    assert chosen.name == "widen, scaled weights + wgmma"


def test_a_block_has_the_products_of_the_network() -> None:
    """Otherwise the table of a model's products is of another model's shapes."""
    for shape, sizes in SHAPES.items():
        with torch.device("meta"):
            network = LlamaForCausalLM(LlamaConfig(**{**sizes, "num_hidden_layers": 1}))
        layers = {tuple(network.get_submodule(name).weight.shape) for name in linear_but_head(network)}
        products = products_of(shape)
        joined = {products.pop("query, key and value"), products.pop("gate and up")}
        assert set(products.values()) == layers
        block = network.model.layers[0]
        of_input = [block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj]
        of_norm = [block.mlp.gate_proj, block.mlp.up_proj]
        assert joined == {
            (sum(layer.out_features for layer in some), some[0].in_features) for some in (of_input, of_norm)
        }


def test_kernels_that_overlap_count_once() -> None:
    """What starts while the kernel before it runs counts from that one's end. Otherwise a step's parts are
    longer than the step."""
    kernels = [(10.0, 0.0, "triton_norm"), (31.0, 12.0, "triton_poi"), (30.0, 5.0, "gemm_swap_ab")]
    kernels.append((50.0, 40.0, "attend"))
    linear, attention, rest = parts_of(kernels)
    assert [round(1e6 * part, 9) for part in (linear, attention, rest)] == [20.0, 10.0, 11.0]


def test_every_kernel_that_is_timed_is_compiled_ahead() -> None:
    """Each scheme's, at the shapes that are timed and that of the small call; none twice."""
    shapes, dtypes = [(16384, 16384), (4096, 4096)], ["float32", "bfloat16"]
    builds = quantize.builds_of(with_kernels(), shapes, dtypes)
    assert len(set(builds)) == len(builds)
    for scheme, name, shape in itertools.product(with_kernels(), dtypes, (*shapes, SMALL)):
        config, layout, dtype = config_of(scheme), layout_of(shape, scheme), quantize.DTYPES[name]
        needed = {launch.build for launch in launches(config, layout, dtype)}
        assert needed | {launch_for(config, layout, dtype).build} <= set(builds), scheme.name
