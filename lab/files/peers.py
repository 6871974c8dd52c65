"""Other programs that quantize models, run by an interpreter of their own: ``peer_files``.

The environment variable EXPLORER_PEERS_PYTHON names it, as of ``python -m venv peers`` and
``peers/bin/pip install llmcompressor auto-round``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

PYTHON = "EXPLORER_PEERS_PYTHON"
PEERS = {
    "llmcompressor-gptq": ("llm-compressor, GPTQ, INT4 group 64", "llmcompressor"),
    "autoround": ("AutoRound, INT4 group 64", "auto-round"),
}
"""Name of a row -> its label, and the package."""
SCRIPT = Path(__file__).with_name("peer_files.py")


def peers_refusal() -> str:
    """Why these programs cannot be run; empty if they can."""
    python = os.environ.get(PYTHON, "")
    if not python:
        return f"not measured: {PYTHON} names no interpreter that has it"
    return "" if Path(python).is_file() else f"not measured: {PYTHON} names {python}, which is no file"


def run_peer(*arguments: str) -> dict[str, Any]:
    """Run a peer and return the last line that ``peer_files`` prints. ``RuntimeError`` with the end of its
    messages if it fails."""
    command = [os.environ[PYTHON], str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"{arguments[0]}: {lines[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
