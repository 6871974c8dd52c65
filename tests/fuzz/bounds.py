"""Run one case with a bound on its time and memory, and say how it ended."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 2.0
PATIENCE = 10
"""How many times longer a case may take than the processor time that it may use: others run beside it."""
MEGABYTES = 512


class HangError(BaseException):
    """The case took too long; no ``except Exception`` of the code under test can hide it."""


def _hang(signum: int, frame: FrameType | None) -> None:
    raise HangError


def _kilobytes(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found, field
    return int(found.group(1))


def _processor_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


@contextmanager
def bounded(seconds: float, megabytes: int) -> Iterator[None]:
    """Raise ``HangError`` after ``seconds`` by the clock; let the address space grow by ``megabytes``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    earlier = signal.signal(signal.SIGALRM, _hang)
    resource.setrlimit(resource.RLIMIT_AS, ((_kilobytes("VmSize") << 10) + (megabytes << 20), hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fault(
    case: Callable[[], object],
    own: tuple[type[BaseException], ...],
    seconds: float = SECONDS,
    megabytes: int = MEGABYTES,
) -> str | None:
    """What is wrong with how ``case`` ended: None for an answer or an error of the kinds ``own``.

    ``seconds`` are of processor time, of the process and those that it started; by the clock it may take
    ``PATIENCE`` times as long. Memory is the rise of the process's largest resident size, in which a refused
    allocation does not show: the address space is bounded too, at twice as much.
    """
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _kilobytes("VmHWM"), _processor_seconds()
    ended = None
    try:
        with bounded(PATIENCE * seconds, 2 * megabytes):
            case()
    except HangError:
        return f"still running after {PATIENCE * seconds:g} s"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        if isinstance(error.__cause__, MemoryError):
            ended = f"asked for more than {2 * megabytes} MB"
        elif not isinstance(error, own):
            ended = f"{type(error).__module__}.{type(error).__name__}: {str(error)[:200]}"
    used = _processor_seconds() - began
    if used > seconds:
        return f"took {used:.1f} s of processor time"
    grown = (_kilobytes("VmHWM") - before) >> 10
    return f"took {grown} MB of memory" if grown > megabytes else ended
