"""Limits of a chip, and its state after a measurement: the reference for timings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

import torch

from explorer.bench.quantize import copy_speed
from explorer.bench.timing import Call, loop_of, time_replay
from explorer.core.backend import free_bytes
from explorer.gpu.peak import tensor_peak, word_peak
from explorer.recordings.machine import MachineLimits
from explorer.recordings.times import DeviceState

HOPPER = (9, 0)
TENSOR_CORE_KINDS = ("bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "b1")
WORD_KINDS = ("dp4a", "popc")
COPIED_ELEMENTS = 1 << 28
"""float32 values of the copy that is timed, 1 GiB; less where memory is small."""


def measure_limits(device: torch.device, kinds: Iterable[str] = TENSOR_CORE_KINDS) -> MachineLimits:
    """The copy of 1 GiB and, on Hopper, each tensor-core type; dp4a and popc everywhere."""
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
    """The GPU's state now; None where nvidia-smi does not tell."""
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
