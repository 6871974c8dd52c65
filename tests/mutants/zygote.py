"""Runs of pytest that begin with torch imported: each is a fork of a process that waits for it.

Its standard input takes lines of JSON, ``[folder, seconds, arguments]``. It answers with the exit code, null
after so many seconds, negative if a signal ended it, and the name of the file that holds what was printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

READY = ("torch", "numpy", "pytest", "hypothesis", "transformers", "safetensors.torch", "scipy.stats", "gguf")
"""What most tests import, and no change of the library can alter."""


class Zygote:
    """The process, from the side of who wants runs; one run at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        command = [sys.executable, str(Path(__file__))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, folder: Path, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """The exit code of pytest in ``folder``, None after ``seconds``; what it printed."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps([str(folder), seconds, list(arguments)]), file=self._process.stdin, flush=True)
        code, name = json.loads(self._process.stdout.readline())
        said = Path(name).read_text(encoding="utf-8", errors="replace")
        Path(name).unlink()
        return code, said


def _serve() -> None:
    sys.path.pop(0)  # this folder
    for module in READY:
        __import__(module)
    for line in sys.stdin:
        folder, seconds, arguments = json.loads(line)
        descriptor, name = tempfile.mkstemp()
        if not (child := os.fork()):
            os.setsid()
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(folder)
            sys.path.insert(0, folder)
            os._exit(_pytest(arguments))
        os.close(descriptor)
        print(json.dumps([_ended(child, seconds), name]), flush=True)


def _pytest(arguments: list[str]) -> int:
    import pytest

    try:
        return int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _ended(child: int, seconds: float) -> int | None:
    """The exit code of a process, or None, after which it and what it started are ended."""
    import select
    import signal

    exited = os.pidfd_open(child)
    done = select.select([exited], [], [], seconds)[0]
    os.close(exited)
    if not done:
        os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status) if done else None


if __name__ == "__main__":
    _serve()
