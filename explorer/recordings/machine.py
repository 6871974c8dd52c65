"""Machine of a measurement: chip, driver, package versions, date and commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field

from explorer.paths import checkout
from explorer.recordings.times import Positive
from explorer.threads import usable_threads

Value = TypeVar("Value")
Few = Annotated[dict[str, Value], Field(max_length=64)]


@dataclass(frozen=True)
class MachineLimits:
    """Bytes per second of a device-to-device copy, and operations per second of each tensor-core type (and of
    the instructions ``dp4a`` and ``popc``), measured in the same run as the timings."""

    copy: Positive
    rates: Few[Positive]

    def least_seconds(self, core: str, bytes_moved: float, operations: int) -> float | None:
        """Least time for a kernel: its bytes at the copy's speed or its operations at the core's rate,
        whichever takes longer; None if the core's rate was not measured."""
        rate = self.rates.get(core)
        return max(bytes_moved / self.copy, operations / rate) if rate else None


@dataclass(frozen=True)
class Machine:
    """Machine, date and commit of a recording.

    ``gpu``, ``driver``, ``cuda`` and ``pycuda`` are empty on a CPU, ``cpu`` and ``threads`` on a GPU.
    ``packages``: versions of other packages that affect the result. ``conditions``: what else affects it, in
    words, such as the load of a shared machine.
    """

    gpu: str = ""
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    pycuda: str = ""
    python: str = ""
    date: str = ""
    commit: str = ""
    cpu: str = ""
    threads: int | None = None
    packages: Few[str] = field(default_factory=dict)
    conditions: Few[str] = field(default_factory=dict)
    limits: MachineLimits | None = None

    @property
    def chip(self) -> str:
        """The GPU, or the CPU if there was none."""
        return self.gpu or self.cpu

    def describe(self) -> str:
        """One line: chip, versions, date, commit; unknown parts are left out."""
        threads = f" ({self.threads} thread{'' if self.threads == 1 else 's'})" if self.threads else ""
        chip = self.gpu or self.cpu + threads
        versions = {
            "driver": self.driver,
            "CUDA": self.cuda,
            "torch": self.torch,
            **self.packages,
            **self.conditions,
            "commit": self.commit,
        }
        known = (f"{name} {version}" for name, version in versions.items() if version)
        return ", ".join(filter(None, (chip, self.date, *known)))


def this_machine(
    device: torch.device, packages: Sequence[str] = (), limits: MachineLimits | None = None
) -> Machine:
    """Describe this machine for a recording, with the versions of ``packages`` and the chip's measured
    limits."""
    named: dict[str, Any] = {"cpu": _cpu_name(), "threads": usable_threads()}
    if device.type == "cuda":
        index = f"--id={device.index or 0}"
        named = {
            "gpu": torch.cuda.get_device_name(device),
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", index),
            "cuda": torch.version.cuda or "",
            "pycuda": _version("pycuda"),
        }
    return Machine(
        torch=torch.__version__,
        python=platform.python_version(),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=commit(),
        packages={name: _version(name) for name in packages},
        limits=limits,
        **named,
    )


def peak_bytes() -> int | None:
    """The process's largest resident size so far; None if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows has no resource module
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def commit() -> str:
    """Return the commit of ``EXPLORER_COMMIT`` or of the checkout, wherever the program was started;
    "unknown" without one."""
    if named := os.environ.get("EXPLORER_COMMIT"):
        return named
    try:
        folder = checkout()
    except ValueError:
        return "unknown"
    return _head(folder)


@cache
def _head(folder: Path) -> str:
    return _output("git", "-C", str(folder), "rev-parse", "--short", "HEAD")


def _cpu_name() -> str:
    """The processor's name as Linux reports it, or its architecture."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: *(.*)$", info.read_text("utf-8") if info.exists() else "", re.M)
    return named[1].strip() if named else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
