"""The table of docs/models.md: what a survey, a recipe and a checkpoint of a large model take.

The model has the shapes of Llama 2 7B and random weights in bfloat16: time and memory do not depend on their
values, but losses would mean nothing and are not recorded. Each step is the command that a user types, in a
process of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from explorer.core.backend import work_device
from explorer.models.skeleton import skeleton_of
from explorer.recordings.files import NOT_RECORDED, Recording, record_each, recorded
from explorer.recordings.machine import this_machine
from explorer.survey.sensitivities import SENSITIVITIES
from explorer.words import bytes_, count, duration
from lab.tables import markdown

NAME = "large-model"
PACKAGES = ("transformers",)
SCHEMES = ("int3_group128_asym", "int4_group128_asym", "nvfp4", "int8_row")
"""The schemes of the survey: four of its usual fourteen."""
TARGET, BITS = "compressed-tensors", 4.5
LARGER = "70 B", 70e9
"""A larger model, whose times are modelled, and its weights."""
LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
_SHARD = 2 << 30
"""Bytes of weights in a file, at least."""
_MEASURED = """
import json, sys
from explorer.cli import main
code = main(sys.argv[2:])
import torch
peak = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
own = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
json.dump({"gpu": peak, "memory": 1024 * int(own[0].split()[1])}, open(sys.argv[1], "w"))
sys.exit(code)
"""
"""Runs a command; writes the most bytes that torch had on the GPU, and that this process had itself, without
those of the one that started it (``ru_maxrss`` counts them)."""


@dataclass(frozen=True)
class LargeStep:
    """One command on one model: ``weights`` of the model, ``seconds`` of wall time with the start of Python,
    ``memory`` and ``gpu_memory`` in bytes at most (None: not known), ``file_bytes`` that it wrote;
    ``signal``: what the survey could measure in the memory there was."""

    step: str
    command: str
    model: str
    weights: int
    stored_bytes: int
    seconds: float
    memory: int | None
    gpu_memory: int
    file_bytes: int
    threads: int
    signal: str = ""


def write_model(folder: Path, tokenizer: Path, shapes: dict[str, object] | None = None) -> None:
    """A checkpoint with random weights of deviation 0.02 and the tokenizer of another model's folder;
    ``shapes``: its configuration, that of Llama 2 7B if none is given, with the tokenizer's vocabulary."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)
    vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    config = {**(LLAMA_7B if shapes is None else shapes), "vocab_size": vocabulary}
    (folder / "config.json").write_text(json.dumps(config))
    network = skeleton_of(folder)
    if network is None:
        raise ValueError(f"{folder} has a configuration that transformers does not know")
    device, generator = work_device(), torch.Generator(work_device()).manual_seed(0)
    index: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    parameters = list(network.network.named_parameters())
    total = 2 * sum(parameter.numel() for _, parameter in parameters)
    for name, parameter in parameters:
        values = torch.ones(parameter.shape, dtype=torch.bfloat16)
        if parameter.ndim == 2:
            normal = torch.randn(parameter.shape, device=device, generator=generator)
            values = normal.mul_(0.02).bfloat16().cpu()
        shard[name] = values
        if sum(t.nbytes for t in shard.values()) >= _SHARD or name == parameters[-1][0]:
            file = f"model-{len(set(index.values())) + 1:05d}.safetensors"
            save_file(shard, folder / file, metadata={"format": "pt"})
            index |= dict.fromkeys(shard, file)
            shard = {}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )


def run_large_model(tokenizer: Path, shapes: dict[str, object] | None = None) -> Iterator[LargeStep]:
    """Survey, recipe and checkpoint of a model as ``write_model`` makes it, in a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, survey, recipe, made = (
            folder / name for name in ("model", "model.jsonl", "recipe.json", "made")
        )
        write_model(model, tokenizer, shapes)
        yield _step(
            "survey", [str(model), "--schemes", ",".join(SCHEMES), "--out", str(survey)], model, survey
        )
        bits = ["--bits", str(BITS), "--for", TARGET]
        yield _step("recipe", [str(survey), *bits, "--out", str(recipe)], model, recipe)
        yield _step("apply", [str(recipe), "--to", TARGET, "--no-verify", "--out", str(made)], model, made)


def _step(name: str, arguments: Sequence[str], model: Path, written: Path) -> LargeStep:
    """Run ``explorer name arguments`` and measure it; ``RuntimeError`` with its last words if it fails."""
    with tempfile.NamedTemporaryFile() as peak, tempfile.TemporaryFile("w+") as said:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", _MEASURED, peak.name, name, *arguments], stdout=said, stderr=said
        )
        process.wait()
        seconds = time.perf_counter() - start
        said.seek(0)
        text = said.read()
        if process.returncode:
            raise RuntimeError(f"explorer {name} failed:\n{text[-2000:]}")
        peaks = json.load(peak)
    files = list(model.glob("*.safetensors"))
    network = skeleton_of(model)
    assert network is not None
    sizes = [file.stat().st_size for file in (written.rglob("*") if written.is_dir() else [written])]
    private = str(model.parent)
    head = json.loads(written.read_text().splitlines()[0]) if name == "survey" else {}
    return LargeStep(
        step=name,
        command=" ".join(["explorer", name, *arguments]).replace(f"{private}/", ""),
        model="Llama 2 7B's shapes",
        weights=sum(parameter.numel() for parameter in network.network.parameters()),
        stored_bytes=sum(file.stat().st_size for file in files),
        seconds=seconds,
        memory=peaks["memory"],
        gpu_memory=peaks["gpu"],
        file_bytes=sum(sizes),
        threads=torch.get_num_threads(),
        signal=head.get("default", ""),
    )


def record_large_model(tokenizer: Path) -> Path:
    """Write ``assets/measurements/large-model.json``, after each step."""
    return record_each(NAME, this_machine(work_device(), PACKAGES), run_large_model(tokenizer))


def recorded_large_model() -> Recording[LargeStep]:
    """The recorded steps; empty if there are none."""
    return recorded(NAME, LargeStep)


def large_table(rows: Sequence[LargeStep]) -> str:
    """Steps by what they took, and the time of the larger model, modelled by the number of weights."""
    titles = ["step", "time", "main memory", "GPU memory", "written", f"{LARGER[0]}, at most (modelled)"]
    lines = [
        [
            f"`explorer {row.step}`",
            duration(row.seconds),
            "–" if row.memory is None else bytes_(row.memory),
            bytes_(row.gpu_memory) if row.gpu_memory else "–",
            bytes_(row.file_bytes),
            duration(row.seconds * LARGER[1] / row.weights, 2),
        ]
        for row in rows
    ]
    return markdown(titles, lines or [[NOT_RECORDED, *[""] * (len(titles) - 1)]])


def signal_of(rows: Sequence[LargeStep]) -> str:
    """The signal that the survey measured, in words."""
    found = next((row.signal for row in rows if row.signal), "")
    old = "one mean squared gradient for each layer, of an earlier version"
    return SENSITIVITIES[found].label if found in SENSITIVITIES else old if found else NOT_RECORDED


def weights_of(rows: Sequence[LargeStep]) -> str:
    """ "6,880,759,808 weights, 13.8 GB in bfloat16", or that nothing was recorded."""
    return (
        f"{count(rows[0].weights)} weights, {bytes_(rows[0].stored_bytes)} in bfloat16"
        if rows
        else NOT_RECORDED
    )
