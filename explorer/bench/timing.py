"""Timing on a GPU: calls captured into a CUDA graph and replayed over rotating buffers, as medians; and the
limits of the chip, measured in the same way.

A call is captured once per buffer set; the sets together are larger than twice the L2 cache, so that no input
is found there. One timed replay runs every set once; its time is divided by their number."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from explorer.core.backend import free_bytes, synchronize
from explorer.gpu import peak
from explorer.gpu.compile import Build, compile_all
from explorer.gpu.peak import tensor_peak, word_peak
from explorer.gpu.runtime import arch_of
from explorer.progress import checkpoint
from explorer.recordings.machine import MachineLimits
from explorer.recordings.times import DeviceState, TimeSpread

Call = Callable[[], object]
WARM_UP = 3
"""Untimed replays before the timed ones."""
HOPPER = (9, 0)
TENSOR_CORE_KINDS = ("bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "b1")
WORD_KINDS = ("dp4a", "popc")
COPIED_ELEMENTS = 1 << 28
"""Number of float32 values of the copy that is timed, 1 GiB; fewer if memory is small."""


def spread(times: Sequence[float]) -> TimeSpread:
    """Return the median and the 10th and 90th percentile of some times."""
    ordered = sorted(times)
    tenth = len(ordered) // 10
    return TimeSpread(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth])


@dataclass(frozen=True, eq=False)
class Replay:
    """Calls that can be repeated: ``run`` launches ``count`` of them at once; ``outputs`` are kept alive with
    it."""

    run: Call
    count: int
    outputs: tuple[object, ...] = ()

    def seconds(self) -> float:
        """Time one replay; seconds of each call."""
        return event_seconds(self.run) / self.count


def graph_of(calls: Sequence[Call], separate_outputs: bool = True) -> Replay:
    """Capture all ``calls`` in one CUDA graph.

    ``separate_outputs``: no two calls write to the same memory, so that outputs cannot stay in the L2 cache;
    without it they may share memory, as the activations of a model's layers do.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    outputs = []
    # thread_local: another visitor's thread may synchronize during the capture. A stream of this device:
    # torch's own for captures lies on that of the first capture.
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
        for call in calls:
            output = call()
            if separate_outputs:
                outputs.append(output)
            del output
    return Replay(graph.replay, len(calls), tuple(outputs))


def loop_of(calls: Sequence[Call]) -> Replay:
    """Launch all ``calls`` back to back, for calls that a graph cannot hold."""

    def run() -> None:
        for call in calls:
            call()

    return Replay(run, len(calls))


def time_graph(calls: Sequence[Call], repeats: int = 20) -> TimeSpread:
    """Time one call: all ``calls`` (one per buffer set) are replayed from a CUDA graph."""
    return time_replay(graph_of(calls), repeats, WARM_UP)


def time_events(calls: Sequence[Call], repeats: int = 20) -> TimeSpread:
    """Time one call: all ``calls`` are launched back to back between two events, without a graph."""
    return time_replay(loop_of(calls), repeats, WARM_UP)


def time_replay(replay: Replay, repeats: int, warm_up: int = 0) -> TimeSpread:
    """Time ``repeats`` replays, after some that are not counted."""
    return spread([replay.seconds() for _ in range(repeats + warm_up)][warm_up:])


def event_seconds(call: Call) -> float:
    """Time ``call`` on the GPU, between an event before and one after it."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3


def wall_seconds(call: Call, device: torch.device, repeats: int, warm_up: int = 1) -> TimeSpread:
    """Time calls on the clock until the answer is there: median, least and most of the repeats, after some
    that are not counted."""
    seconds = []
    for _ in range(repeats + warm_up):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    ordered = sorted(seconds[warm_up:])
    return TimeSpread(statistics.median(ordered), ordered[0], ordered[-1])


def time_calls(calls: Sequence[Call], device: torch.device, rounds: int, repeats: int = 10) -> TimeSpread:
    """Time one call on the clock: ``calls`` one after another, ``rounds`` times, until the last has ended on
    the GPU; the spread of the repeats."""

    def run() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    whole = wall_seconds(run, device, repeats)
    count = rounds * len(calls)
    return TimeSpread(whole.median_s / count, whole.low_s / count, whole.high_s / count)


def buffer_sets(bytes_each: int, device: torch.device) -> int:
    """Number of buffer sets that together exceed twice the L2 cache; at least 2."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(2, -(-2 * cache // max(bytes_each, 1)) + 1)


# --- limits of the chip ------------------------------------------------------------------------------


def copy_speed(inputs: Sequence[Tensor]) -> float:
    """Measure the bytes per second of a device-to-device copy of the same buffers, reads and writes counted.

    The faster of torch's copy (launched one by one) and an elementwise kernel replayed from a graph: in a
    graph a plain copy becomes a memory node that leaves a third of the bandwidth unused.
    """
    targets = [torch.empty_like(x) for x in inputs]
    pairs = list(zip(inputs, targets, strict=True))
    elementwise = time_graph([partial(torch.neg, x, out=y) for x, y in pairs]).median_s
    plain = time_events([partial(y.copy_, x) for x, y in pairs]).median_s
    return 2 * inputs[0].nbytes / min(elementwise, plain)


def limit_builds(device: torch.device, kinds: Iterable[str] = TENSOR_CORE_KINDS) -> list[Build]:
    """List the compilations of ``measure_limits``."""
    hopper = torch.cuda.get_device_capability(device) == HOPPER
    return peak.builds(kinds if hopper else (), WORD_KINDS)


def measure_limits(device: torch.device, kinds: Iterable[str] = TENSOR_CORE_KINDS) -> MachineLimits:
    """Measure the copy of 1 GiB and, on Hopper, each tensor-core type; dp4a and popc everywhere."""
    kinds = tuple(kinds)
    for _ in compile_all(limit_builds(device, kinds), [arch_of(device)]):
        checkpoint()
    size = min(COPIED_ELEMENTS, free_bytes(device) // 16)
    copy = copy_speed([torch.randn(size, device=device) for _ in range(2)])
    rates = {}
    if torch.cuda.get_device_capability(device) == HOPPER:
        for kind in kinds:
            rates[kind] = _rate(*tensor_peak(kind, device))
    for name in WORD_KINDS:
        rates[name] = _rate(*word_peak(name, device))
    return MachineLimits(copy, rates)


def _rate(call: Call, operations: float) -> float:
    return operations / time_replay(loop_of([call]), repeats=5, warm_up=1).median_s


def device_state(device: torch.device) -> DeviceState | None:
    """Read the GPU's state now; None if nvidia-smi does not report it."""
    query = (
        "nvidia-smi",
        "--query-gpu=clocks.sm,power.draw,temperature.gpu",
        "--format=csv,noheader,nounits",
        f"--id={device.index or 0}",
    )
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        clock, power, temperature = (float(value) for value in answer.split(","))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    return DeviceState(clock, power, temperature)
