"""The runs behind docs/which-format.md: a whole model's sentence embeddings under each scheme and method.

Each run quantizes all linear layers of all-MiniLM-L6-v2 and compares its embeddings of the sentences in
``assets/texts/similar.txt`` with the unquantized model's. Methods see the layers' inputs on other sentences,
and where methods are compared, on three samples of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from explorer.core.backend import work_device
from explorer.models.capture import Model, load_model
from explorer.models.evaluate import (
    MODEL,
    SAMPLES,
    EmbeddingDrift,
    OriginalModel,
    evaluate_embeddings,
    needs_inputs,
)
from explorer.recordings.files import Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import SCHEMES

NAME = "embeddings"
TOKENS = 512
"""Rows of each layer's inputs that the methods see."""
PACKAGES = ("transformers", "numpy")


@dataclass(frozen=True)
class EmbeddingRun:
    """One quantization of the whole model: scheme of the weights, method, the scheme of every layer's inputs
    ("": float32), and the sample of calibration texts that the method sees."""

    scheme: str
    method: str = "rtn"
    activations: str = ""
    sample: int = 0


WEIGHTS = tuple(
    EmbeddingRun(scheme)
    for scheme in (
        "bf16",
        "int8_row",
        "fp8_e4m3_row",
        "mxfp8_e4m3",
        "mxfp6_e2m3",
        "nvfp4",
        "nf4_block64",
        "mxfp4",
        "int4_group128_asym",
        "int4_group128",
        "int3_group128_asym",
        "int2_group64_asym",
        "ternary_absmean",
        "binary_row",
    )
)
"""Weights alone, rounded to nearest."""
BOTH = (
    EmbeddingRun("fp8_e4m3_row", "rtn", "fp8_e4m3_row"),
    EmbeddingRun("int8_row", "rtn", "int8_row"),
    EmbeddingRun("int8_row", "rtn", "int8_tensor"),
    EmbeddingRun("int8_row", "llm_int8", "int8_tensor"),
    EmbeddingRun("int8_row", "llm_int8_dynamic", "int8_tensor"),
    EmbeddingRun("int8_row", "rotation", "int8_tensor"),
    EmbeddingRun("int8_row", "smoothquant", "int8_tensor"),
    EmbeddingRun("int8_row", "smoothquant_search", "int8_tensor"),
    EmbeddingRun("nvfp4", "rtn", "nvfp4"),
    EmbeddingRun("mxfp4", "rtn", "mxfp4"),
)
"""Weights and inputs."""
METHODS_COMPARED = (
    "rtn",
    "hqq",
    "rotation",
    "awq",
    "gptq",
    "gptq_order",
    "gptq_gar",
    "gptq_sequential",
    "gptaq",
    "awq_clip",
    "autoround",
    "rotation+gptq",
    "rotation+gptaq",
)
METHODS_SCHEMES = ("int4_group128_asym", "int3_group128_asym")
METHODS = tuple(
    EmbeddingRun(scheme, method, sample=sample)
    for method in METHODS_COMPARED
    for scheme in METHODS_SCHEMES
    for sample in range(SAMPLES if needs_inputs(method) else 1)
)
"""The same bits by one method after another, for each sample of calibration texts."""
RUNS = tuple(dict.fromkeys((*WEIGHTS, *BOTH, *METHODS)))


def record_embeddings(model: str | Path = MODEL, runs: Sequence[EmbeddingRun] = RUNS) -> Path:
    """Run everything in float32, on the GPU if the kernels run there, and write
    ``assets/measurements/embeddings.json``."""
    rows = tuple(run_embeddings(load_model(str(model), device=work_device()), runs))
    return record(NAME, Recording(this_machine(work_device(), PACKAGES), rows))


def recorded_embeddings() -> Recording[EmbeddingDrift]:
    """The recorded runs; empty if there are none."""
    return recorded(NAME, EmbeddingDrift)


def run_embeddings(
    model: Model, runs: Sequence[EmbeddingRun] = RUNS, tokens: int = TOKENS
) -> Iterator[EmbeddingDrift]:
    """Each run's drift, one after another; layers' inputs are captured only if a method needs them."""
    originals = [OriginalModel(model, tokens=tokens, sample=sample) for sample in range(SAMPLES)]
    for run in runs:
        activations = SCHEMES[run.activations] if run.activations else None
        yield evaluate_embeddings(originals[run.sample], SCHEMES[run.scheme], run.method, activations)
