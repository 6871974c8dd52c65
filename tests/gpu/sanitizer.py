"""A program under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import subprocess
import sys


def assert_clean(tool: str, program: str) -> None:
    """Run Python ``program`` under ``tool`` (memcheck, racecheck, initcheck);
    fail with its report on any finding."""
    quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
    command = ["compute-sanitizer", "--tool", tool, *quiet, "--error-exitcode", "9"]
    command += [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
