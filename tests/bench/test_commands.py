"""Benchmarks as the command line calls them, on the CPU.

If these fail, `explorer bench` prints a table of something else than it timed.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from explorer import gpu
from explorer.bench import commands, plan, timing
from explorer.bench.commands import place_of
from explorer.bench.plan import SMALL_ROWS, SWEPT, plan_of_layers, plan_of_records
from explorer.bench.steps import SHAPES, parts_of, products_of
from explorer.methods import METHODS
from explorer.models.serve import linear_layers
from explorer.products.auto import TUNED_ON, variants_for
from explorer.products.shapes import DECODE, LARGE, SERVING, SMALL_LAYERS, SQUARE
from explorer.products.table import GEMMS
from explorer.recordings.gemm import later_shapes, newest_gemms, recorded_gemms
from explorer.recordings.machine import Machine
from explorer.recordings.quantize import CallTimes, recorded_quantize
from explorer.recordings.steps import recorded_steps
from explorer.recordings.times import TimeSpread
from explorer.schemes import SCHEMES
from lab import benchmarks
from lab.methods import time_methods
from lab.steps import expectation, head_costs, head_of, steps_command

NO_GPU = pytest.mark.skipif(gpu.available().ok, reason="on a machine with a GPU its kernels are timed")
H200 = (9, 0)


def test_timing_covers_every_method_the_scheme_allows() -> None:
    timings = list(time_methods([SCHEMES["int4_group64_asym"]], (32, 64), torch.device("cpu"), 1, 16))
    assert [t.method for t in timings] == list(METHODS)
    assert all(t.low_s <= t.median_s <= t.high_s for t in timings)


@NO_GPU
def test_every_benchmark_gives_as_many_rows_as_it_says() -> None:
    scheme = [SCHEMES["nvfp4"]]
    for benchmark in (
        commands.bench_cpu(scheme, [(16, 32)], 1),
        benchmarks.bench_analysis(scheme, [(16, 32)], 1),
    ):
        rows = list(benchmark.rows)
        assert len(rows) == benchmark.total == 1 and benchmark.line(rows[0])
        with pytest.raises(ValueError, match="only measurements of a GPU are recorded"):
            benchmark.record(rows)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: commands.bench_cpu(None, [(1, 2, 3)]), "rows x columns, got 1x2x3"),
        (lambda: commands.bench_gemm(None, [(64, 64)]), "M x N x K, got 64x64"),
        (lambda: commands.bench_gemm(["nope"]), "no product 'nope'"),
        (lambda: commands.bench_cpu_gemm(["nope"]), "no product 'nope' on a CPU; there are fp32"),
        (lambda: commands.bench_cpu_gemm(None, [(1, 2, 3)], "nope"), "no kernel on a CPU is called 'nope'"),
        (lambda: commands.bench_cpu_gemm(None, [(0, 2, 3)]), "at least 1"),
        (lambda: commands.bench_quantize(None, dtypes=["int9"]), "no input type 'int9'"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_timed(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=words):
        call()


def test_lines_are_made_of_typed_timings() -> None:
    product = next(t for t in recorded_gemms().rows if t.baseline_graph)
    line = commands.gemm_line(product)
    assert line["µs"] == product.graph.median_s * 1e6 and line["baseline"] == product.baseline
    assert commands.gemm_line(dataclasses.replace(product, baseline_graph=None))["× baseline"] is None
    row = recorded_quantize().rows[0]
    line = commands.quantize_line(dataclasses.replace(row, call=None, small_call=None))
    assert line["GB/s"] == row.gigabytes_per_s and line["call µs"] is line["call of the copy"] is None
    twice = TimeSpread(*(2 * seconds for seconds in dataclasses.astuple(row.time)))
    called = dataclasses.replace(row, call=CallTimes(twice, row.time), small_call=CallTimes(twice, twice))
    line = commands.quantize_line(called)
    assert line["call µs"] == 2 * line["unchecked µs"] == 2 * line["µs"]
    assert line["call of the copy"] == row.share / 2 and line["256² unchecked µs"] == 2 * line["µs"]


def test_calls_are_timed_until_the_last_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a call's time is that of its launch, or of many calls."""
    steps: list[str] = []
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(timing, "synchronize", lambda device: steps.append("wait"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: (steps.append("clock"), next(clock))[1])
    calls = [lambda: steps.append("a"), lambda: steps.append("b")]
    spread = timing.time_calls(calls, torch.device("cpu"), rounds=3, repeats=2)
    once = ["wait", "clock", *"ababab", "wait", "clock"]
    assert steps == once * 3 and spread == TimeSpread(10, 10, 10)


def test_another_gpu_is_recorded_beside_the_one_that_ships() -> None:
    """Otherwise `--record` on an A100 replaces the H200's times, from which others are modelled."""
    for name in ("gemm", "quantize"):
        assert place_of(name, Machine(gpu=TUNED_ON)) == name
        assert place_of(name, Machine(gpu="NVIDIA A100")) == f"machines/nvidia-a100/{name}"
    assert place_of("steps", Machine(gpu="NVIDIA A100")) == "steps", "of which there is one"


ONLY_LATER = ("widen, scaled weights + wgmma",)
"""Kernels that are younger than gemm.json: the later run timed them at its shapes."""


def test_the_plan_of_records_covers_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product with all its kernels at 4096³; nothing twice. If this fails, `bench gemm --record`
    forgets a product."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: H200)
    jobs = plan_of_records()
    keys = [(job.gemm.name, job.shape) for job in jobs]
    assert len(keys) == len(set(keys))
    flushed = {job.shape for job in jobs if job.flush}
    assert {DECODE, SERVING, SQUARE, LARGE} == flushed, "the shapes that the tables show have both timings"
    square = {job.gemm.name: job.variants for job in jobs if job.shape == (4096, 4096, 4096)}
    assert square == {gemm.name: gemm.variants_on(H200) for gemm in GEMMS.values()}
    recorded = {(t.gemm, t.shape, t.variant) for t in recorded_gemms().rows}
    planned = {(job.gemm.name, job.shape, v.name) for job in jobs for v in job.variants}
    names = {t.gemm for t in recorded_gemms().rows}
    assert recorded <= planned
    of_model = {(job.gemm.name, job.shape) for job in plan._jobs_of_model(list(GEMMS))}
    pending = {p for p in planned if p[0] in names} - recorded
    assert {p[:2] for p in pending if p[2] not in ONLY_LATER} <= of_model, "all but what the model needs"
    later = {(t.gemm, t.shape, t.variant) for t in newest_gemms().rows}
    assert {p for p in planned if p[2] in ONLY_LATER and p[1] in later_shapes()} <= later


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


TUNED_WORDS = (
    "choices of kernels were tuned on an NVIDIA H200; on this NVIDIA A100 another variant may be faster: "
    "--variants all"
)


@pytest.mark.parametrize(
    ("gpu", "capability", "hint"),
    [
        ("NVIDIA H200", (9, 0), ""),
        ("NVIDIA H100 80GB HBM3", (9, 0), ""),  # the same tensor cores and kernels
        ("NVIDIA A100", (8, 0), TUNED_WORDS),
    ],
)
@pytest.mark.parametrize("variants", ["auto", "all"])
def test_choices_tuned_on_another_gpu_are_said_once(
    gpu: str, capability: tuple[int, int], hint: str, variants: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where every kernel is timed anyway."""
    assert recorded_gemms().machine.gpu == TUNED_ON
    for name in ("gpu_device", "work_device"):
        monkeypatch.setattr(commands, name, lambda: torch.device("cuda"))
    monkeypatch.setattr(commands, "kernel_capability", lambda device: capability)
    monkeypatch.setattr(commands, "measure_limits", lambda device: None)
    monkeypatch.setattr(commands, "this_machine", lambda device, limits: Machine(gpu=gpu))
    monkeypatch.setattr(commands, "plan", lambda *_: [])
    benchmark = commands.bench_gemm(["bf16"], [(1, 64, 64)], variants)
    assert benchmark.notes == ([hint] if hint and variants == "auto" else [])


def test_auto_of_a_product_that_was_not_swept_is_its_relatives() -> None:
    """A time at 4,096 tokens says nothing of 64: another product of the same kernels does."""
    for name, m in (("int8_asym", 64), ("fp8_e5m2_row", 64), ("w4a8_int_channel", 256), ("w4a16_group64", 1)):
        (chosen,) = variants_for(GEMMS[name], (m, 8192, 8192), H200, "auto")
        assert chosen.name == "swap A/B", name


def test_auto_takes_the_recorded_fastest_at_the_nearest_shape() -> None:
    """Verdicts and the page time one kernel for each product: the one that won where it was measured."""
    for row in GEMMS.values():
        for shape in ((1, 8192, 8192), (100, 8000, 8000), (4096, 4096, 4096)):
            (chosen,) = variants_for(row, shape, H200, "auto")
            likely = [v.name for v in variants_for(row, shape, H200, "fastest")]
            assert chosen.name in likely
            if shape == (1, 8192, 8192):
                times = {
                    t.variant: t.seconds
                    for t in newest_gemms().rows
                    if (t.gemm, t.shape) == (row.name, shape)
                }
                assert all(
                    times[chosen.name] <= times[name]
                    for name in likely
                    if chosen.name in times and name in times
                )
    # 4096³ was recorded before this kernel was: the nearest shape at which all kernels were timed decides.
    (chosen,) = variants_for(GEMMS["w4a8_int"], (4096, 4096, 4096), H200, "auto")
    assert chosen.name == "widen, scaled weights + wgmma"


def test_the_recordings_fill_the_grid_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers have a recording of their own, a job for each shape; few tokens and several weights of
    each product are in the large one. Where one is missing the model of times extrapolates."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: H200)
    large, small = plan_of_records(), plan_of_layers()
    for jobs in (large, small):
        timed = {(job.gemm.name, job.shape) for job in jobs}
        assert len(timed) == len(jobs)
    assert {(name, (m, n, k)) for name in SMALL_ROWS for n, k in SMALL_LAYERS for m in (1, 64, 4096)} <= timed
    assert {("w_nvfp4", (m, 28672, 4096)) for m in (1, 4, 16, 64)} <= timed
    of_large = {(job.gemm.name, job.shape) for job in large}
    assert all((name, (64, 4096, 11008)) in of_large for name in SWEPT)
    assert ("w4a16_group64", (1, 8192, 8192)) in of_large and ("fp32", (1, 8192, 8192)) not in of_large


def test_a_block_has_the_products_of_the_network() -> None:
    """Otherwise the table of a model's products is of another model's shapes."""
    for shape, sizes in SHAPES.items():
        with torch.device("meta"):
            network = LlamaForCausalLM(LlamaConfig(**{**sizes, "num_hidden_layers": 1}))
        layers = {tuple(network.get_submodule(name).weight.shape) for name in linear_layers(network)}
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


def test_the_docs_name_the_command_of_their_table() -> None:
    """The head and the shapes are those of the rows."""
    rows = recorded_steps().rows
    command = steps_command(rows)
    assert command.startswith("explorer bench steps --shapes Llama-3-8B") and "--head int8_row" in command
    assert all(row.scheme in command and str(row.batch) in command for row in rows if row.scheme != "bf16")
    assert head_of(rows) == "INT8 per row" and "525 MB more" in head_costs(rows)
    quantized_inputs = dataclasses.replace(rows[-1], batch=1, scheme="int8_row", inputs="int8_row")
    assert "int8_row+int8_row" in steps_command([quantized_inputs])
    assert expectation([quantized_inputs]) == expectation([])
