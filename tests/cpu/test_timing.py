"""Timing on a CPU: kernels take turns with float32, what cannot run is said, and a recording keeps it all.

If these fail, a kernel is compared with a float32 of another moment, or one refusal ends a run of minutes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from explorer.bench import commands, cpu_gemm
from explorer.bench.cpu_gemm import CpuJob, NotTimed, fastest_threads, not_installed, plan_on_cpu, time_on_cpu
from explorer.cli.app import app
from explorer.cpu.kernels import S8, Call, CpuKernel, Held, Library
from explorer.cpu.products import CPU_PRODUCTS
from explorer.recordings import files
from explorer.recordings.files import Recording, machine_name, record_to, recorded_by_machine, recording_of
from explorer.recordings.gemm import GemmTiming, recorded_cpus
from explorer.recordings.machine import Machine, MachineLimits
from explorer.recordings.times import TimeSpread
from explorer.schemes import Scheme

LIMITS = MachineLimits(1e10, {"f32": 1e11, "bf16": 1e11, "s8": 1e11})
HERE = Library("torch", ("torch",), "pip install torch")


def test_kernel_and_float32_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call after other data went through the caches, the answer compared with float64's; the modelled
    limit is the bytes of X, W and Y at the copy's speed."""
    steps: list[str] = []
    monkeypatch.setattr(cpu_gemm, "thread_counts", lambda: (1,))
    monkeypatch.setattr(cpu_gemm._Bench, "flush", lambda self: steps.append("flush"))

    def hold(w: Tensor, scheme: Scheme) -> Held:
        def bind(x: Tensor, threads: int) -> Call:
            def call() -> Tensor:
                steps.append("ours")
                return x @ w.t()

            return call

        return Held(123, bind)

    class Float32:
        hold = staticmethod(lambda w, scheme: Held(1, lambda x, threads: lambda: steps.append("float32")))

    monkeypatch.setattr(cpu_gemm.torch_kernels, "FLOAT32", Float32)
    job = CpuJob(CPU_PRODUCTS["w4_group32"], (CpuKernel("mine", HERE, hold, S8),), ((2, 16, 32),))
    (row,) = time_on_cpu([job], LIMITS, repeats=3)
    assert isinstance(row, GemmTiming)
    assert steps[-12:] == ["flush", "float32", "flush", "ours"] * 3, "in turns"
    assert row.threads == 1 and row.on_cpu and row.sqnr_db > 100 and row.weight_bytes == 123
    assert row.floor_s == (4 * 2 * 32 + 123 + 4 * 2 * 16) / LIMITS.copy and row.baseline == "torch float32"


class SlowClock:
    """A clock that stands still but for calls, which take as long as they say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 0.0, 0
        monkeypatch.setattr(cpu_gemm, "time", self)
        monkeypatch.setattr(cpu_gemm, "thread_counts", lambda: (1, 2))
        monkeypatch.setattr(cpu_gemm, "preemptions", lambda: 0)

    def perf_counter(self) -> float:
        return self.now

    def taking(self, seconds: float) -> Call:
        def call() -> Tensor:
            self.calls += 1
            self.now += seconds
            return torch.ones(1)

        return call


def test_rates_of_a_slow_cpu_are_found_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without instructions for bfloat16 a product of 1,536 takes 8 s, and its rate took minutes. A slow CPU
    is measured by a smaller product, a fast one by the largest."""
    clock = SlowClock(monkeypatch)
    sides: list[int] = []

    def product(side: int, operations_per_s: float) -> Call:
        sides.append(side)
        return clock.taking(2 * side**3 / operations_per_s)

    assert cpu_gemm.rate(lambda side: product(side, 1e9), cpu_gemm.RATE_SIDES) == pytest.approx(1e9)
    assert sides == [192, 384] and clock.now < 4
    sides.clear()
    assert cpu_gemm.rate(lambda side: product(side, 1e12), cpu_gemm.RATE_SIDES) == pytest.approx(1e12)
    assert sides == list(cpu_gemm.RATE_SIDES)


def test_a_product_of_many_seconds_is_called_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, one slow kernel holds up a visitor who asks about his CPU for minutes."""
    clock = SlowClock(monkeypatch)
    monkeypatch.setattr(cpu_gemm._Bench, "flush", lambda self: None)
    slow = fastest_threads(lambda threads: clock.taking(9.0 / threads), lambda: None)
    assert slow.threads == 2 and clock.calls == 2
    bench = cpu_gemm._Bench.of((8, 8))
    quick = fastest_threads(lambda threads: clock.taking(1e-3), lambda: None)
    clock.calls = 0
    float32_s, ours = cpu_gemm._in_turns(bench, quick, slow, cpu_gemm.REPEATS)
    assert ours == [pytest.approx(4.5)] and len(float32_s) == 1 and clock.calls == 2


def test_a_refusal_is_said_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(w: Tensor, scheme: Scheme) -> Held:
        raise RuntimeError("not on this CPU\nat line 7")

    monkeypatch.setattr(cpu_gemm, "thread_counts", lambda: (1,))
    row = CPU_PRODUCTS["fp32"]
    absent = Library("x", ("nope",), "pip install nope")
    bad = CpuKernel("bad", HERE, refuse, S8)
    job = CpuJob(row, (bad, CpuKernel("absent", absent, refuse, S8), row.kernels[0]), ((1, 8, 16),))
    first, second, third = time_on_cpu([job], repeats=2)
    assert first == NotTimed("fp32", row.label, "bad", "not on this CPU")
    assert isinstance(second, NotTimed) and "pip install nope" in second.reason
    assert isinstance(third, GemmTiming) and third.floor_s is None and third.share is None


def test_what_is_not_installed_is_listed_and_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "missing", property(lambda self: "" if self.label == "torch" else "get it"))
    jobs = plan_on_cpu(["w4_group32", "q4_k", "fp32"], [(1, 8, 32), (4, 8, 32), (1, 8, 32)])
    assert [(job.product.name, len(job.kernels), job.shapes) for job in jobs] == [
        ("w4_group32", 1, ((1, 8, 32), (4, 8, 32))),
        ("fp32", 1, ((1, 8, 32), (4, 8, 32))),
    ]
    missing = not_installed(["w4_group32", "q4_k"])
    assert [row.kernel for row in missing][-1] == "llama.cpp" and {row.reason for row in missing} == {
        "get it"
    }
    every = [k.name for job in plan_on_cpu(None, [(1, 8, 32)], "torch") for k in job.kernels]
    assert every and all(name.startswith("torch") for name in every)


def test_the_fastest_number_of_threads_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the most threads down to a number that is far slower; those near the best again, in turns."""
    monkeypatch.setattr(cpu_gemm, "thread_counts", lambda: (1, 2, 4, 8))
    took = {1: 9.0, 2: 0.3, 4: 0.1, 8: 0.12}
    order: list[int | str] = []
    monkeypatch.setattr(
        cpu_gemm._Contestant, "seconds", lambda self: order.append(self.threads) or took[self.threads]
    )
    best = fastest_threads(lambda threads: partial(torch.zeros, threads), lambda: order.append("flush"))
    assert best.threads == 4 and order[:8] == [8, 8, 4, 2, "flush", 8, "flush", 4] and 1 not in order


def test_disturbed_calls_are_repeated_and_long_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call from which other work took a CPU is not counted; where every call is such, all of them are."""
    bench = cpu_gemm._Bench.of((1, 1))
    one = cpu_gemm._Contestant(lambda: torch.zeros(1), 1)
    for calls, rounds in (
        ([(1e-6, False)], 4),
        ([(1e-6, False), (1e-6, False), (9e-6, True), (9e-6, True)], 4),
        ([(1e-6, True)], cpu_gemm.MOST * 4),
        ([(0.5, False)], cpu_gemm.FEWEST),
        ([(10.0, False)], 1),
    ):
        clock, given = [0.0], itertools.cycle(calls)

        def timed(self: object, clock: list[float] = clock, given: Any = given) -> tuple[float, bool]:
            took = next(given)
            clock[0] += took[0]
            return took

        monkeypatch.setattr(cpu_gemm._Contestant, "timed", timed)
        monkeypatch.setattr(cpu_gemm.time, "perf_counter", lambda clock=clock: clock[0])
        float32_s, ours_s = cpu_gemm._in_turns(bench, one, one, 4)
        assert len(float32_s) == len(ours_s) == rounds and {*float32_s, *ours_s} == {calls[0][0]}


def test_the_command_times_says_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`explorer bench gemm --device cpu`: a table, what is missing, a file to read again."""
    monkeypatch.setattr(commands, "measure_cpu_limits", lambda: LIMITS)
    monkeypatch.setattr(Library, "missing", property(lambda self: "" if self.label == "torch" else "get it"))
    path = tmp_path / "new" / "mine.json"
    given = ["--shape", "1x32x64", "--gemms", "w4_group32,fp32", "--record-to", str(path)]
    said = CliRunner().invoke(app, ["bench", "gemm", "--device", "cpu", *given])
    assert said.exit_code == 0 and "get it" in said.output
    read = recording_of(json.loads(path.read_text()), GemmTiming)
    assert [row.gemm for row in read.rows] == ["w4_group32", "fp32"] and read.machine.cpu
    assert read.machine.conditions["CPUs"] and read.limits == LIMITS
    benchmark = commands.bench_cpu_gemm(["fp32"], [(1, 8, 16), (1, 8, 16)])
    assert len(list(benchmark.rows)) == benchmark.total == 1
    with pytest.raises(ValueError, match="--layers"):
        commands.bench_gemm(None, layers=True)


def test_recordings_are_kept_by_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this fails, one machine's numbers are written over another's."""
    named = {
        "Intel(R) Xeon(R) Processor": "machines/intel-xeon/gemm",
        "AMD EPYC 9654 96-Core Processor": "machines/amd-epyc-9654-96-core/gemm",
        "Intel(R) Core(TM) i7-1165G7 @ 2.80GHz": "machines/intel-core-i7-1165g7-2-80ghz/gemm",
        "": "machines/unnamed/gemm",
    }
    assert {chip: machine_name("gemm", Machine(cpu=chip)) for chip in named} == named
    assert machine_name("gemm", Machine(cpu="AMD EPYC", threads=8)) == "machines/amd-epyc-8-threads/gemm"
    assert machine_name("gemm", Machine(gpu="NVIDIA H100 80GB HBM3")) == "machines/nvidia-h100-80gb-hbm3/gemm"
    one = timing("fp32", "torch", 1, 1.0)
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    assert not recorded_by_machine("gemm", GemmTiming) and not recorded_cpus()
    record_to(tmp_path / "machines/b/gemm.json", Recording(Machine(cpu="b"), (one,)))
    record_to(tmp_path / "machines/a/gemm.json", Recording(Machine(gpu="a"), (one,)))
    found = recorded_by_machine("gemm", GemmTiming)
    assert list(found) == ["a", "b"] and found["b"].rows == (one,)
    assert [recording.machine.cpu for recording in recorded_cpus()] == ["b"], "a GPU is no CPU"
    record_to(tmp_path / "machines/c/gemm.json", Recording(Machine(cpu="c", date="2026-01-02"), (one,)))
    assert [recording.machine.cpu for recording in recorded_cpus()] == ["c", "b"], "the newest is first"


def timing(gemm: str, kernel: str, m: int, seconds: float, float32: float = 1.0) -> GemmTiming:
    once = TimeSpread(seconds, seconds, seconds)
    base = TimeSpread(float32, float32, float32)
    other = next(iter(recorded_cpus()[0].rows))
    return dataclasses.replace(
        other, gemm=gemm, variant=kernel, shape=(m, 8, 16), graph=once, baseline_graph=base, threads=2
    )
