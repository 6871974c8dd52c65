"""One budget in the files of every target: promised and stored bits and bytes, and the logits of the reader.

A causal model is surveyed once. Each target gets the recipe of its own schemes, fused where its engine is.
The checkpoint is opened by the target's reader and run on a text, beside the network of the same rounded
weights. Two readers are not among the tests' packages: vLLM (``EXPLORER_VLLM_PYTHON``), and gptqmodel, which
pins another torch: install it without its dependencies into a folder, and name that in ``PYTHONPATH``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from explorer.checkpoints import EXPORTS
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.onnx_graph import DATA
from explorer.checkpoints.vllm_reader import LOGITS, read_by_vllm
from explorer.models.capture import Model, load_model
from explorer.models.evaluate import calibration_sentences, sentences
from explorer.recordings.files import Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.survey import Constraints, ModelRecipe, Survey, frontier, recipe_of
from explorer.survey.assemble import assemble
from explorer.survey.carried import unplaced
from explorer.survey.export import Wanted, export
from explorer.survey.loss import reference_for
from explorer.survey.run import SurveyPlan, survey_model
from lab.recipes import PACKAGES, passages
from lab.tables import markdown

NAME = "exports"
BITS = 4.5
SCHEMES = (
    "int3_group64", "int3_group64_asym", "int4_group64", "int4_group64_asym", "int4_group32", "nvfp4",
    "mxfp4", "int5_group64", "int5_group64_asym", "int6_group64", "int6_group64_asym", "mxfp6_e2m3",
    "fp8_e4m3_row", "int8_row", "int8~1x64~symmetric~float16~minmax", "q4_0", "q5_0",
    "q5_1", "q8_0", "nf4_block64",
)  # fmt: skip
"""Schemes for rows that are no multiple of 128; INT4 in groups of 32 with zero points is left out, as the
weights of a model restored from Q4_1 lie on its grid."""
TOKENS = 64
"""Tokens of the text that readers are run on."""


@dataclass(frozen=True)
class ExportRow:
    """A recipe of ``BITS`` as the checkpoint of one target.

    schemes   name -> layers                    promised, stored     bits per weight of the recipe's layers
    bytes_promised, bytes_stored  of all weights of the model, of the tensors in its files
    loss      mean KL in nats a token on held-out texts, from ``low`` to ``high``; ``predicted`` by the survey
    reader    the program that opened it        difference  the largest of logits, over the largest logit
    """

    target: str
    schemes: Mapping[str, int]
    fused: bool
    promised: float
    stored: float
    bytes_promised: int
    bytes_stored: int
    predicted: float
    loss: float
    low: float
    high: float
    texts: int
    tokens: int
    reader: str
    difference: float
    model: str


def recorded_exports() -> Recording[ExportRow]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, ExportRow)


def record_exports(model: str) -> Path:
    """Write ``model`` for every target and run it (some minutes); write ``assets/measurements/exports.json``.
    ``ValueError`` where no Python with vLLM is named."""
    rows = tuple(run_exports(model))
    machine = this_machine(torch.device("cpu"), PACKAGES)
    return record(NAME, Recording(machine, rows))


def run_exports(where: str, targets: tuple[str, ...] = tuple(EXPORTS)) -> Iterator[ExportRow]:
    """A row a target."""
    model = load_model(where, head=True)
    with tempfile.TemporaryDirectory() as room:
        plan = SurveyPlan(where, schemes=SCHEMES, texts=passages(calibration_sentences()))
        survey = survey_model(plan, Path(room) / "survey.jsonl")
        for target in targets:
            yield _row(target, survey, model, Path(where), Path(room) / target)


def _row(target: str, survey: Survey, model: Model, folder: Path, out: Path) -> ExportRow:
    kept_to = Constraints(target=EXPORTS[target], keep=tuple(unplaced(target, survey)))
    front = frontier(survey, "", kept_to)
    choice = front.at(max(BITS, front.least))
    recipe = recipe_of(survey, choice, constraints=kept_to)
    written = export(Wanted(recipe, target, out, str(folder), lambda: model))
    stored = tensor_bytes(written.folder)
    assembled = assemble(model, recipe.layers, (), fused=recipe.fused).network
    loss = reference_for(model, passages(sentences())).measure(assembled)
    reader, difference = _difference(target, written.folder, recipe, assembled, model, folder)
    return ExportRow(
        target=target,
        schemes=recipe.counts,
        fused=recipe.fused,
        promised=choice.bits,
        stored=(stored - front.kept_bytes) * 8 / front.weights,
        bytes_promised=choice.bytes + front.kept_bytes,
        bytes_stored=stored,
        predicted=choice.loss,
        loss=loss.value,
        low=loss.value if loss.low is None else loss.low,
        high=loss.value if loss.high is None else loss.high,
        texts=loss.texts,
        tokens=loss.tokens,
        reader=reader,
        difference=difference,
        model=model.name,
    )


def _difference(
    target: str, made: Path, recipe: ModelRecipe, assembled: nn.Module, model: Model, folder: Path
) -> tuple[str, float]:
    """The reader, and the largest difference of its logits [tokens, V] from those of ``assembled`` in the
    dtype that it computes in, over the largest logit."""
    ids = model.tokenizer(passages(sentences())[0], return_tensors="pt")["input_ids"][:, :TOKENS]
    name, dtype, theirs = READERS[target](made, ids, ModelFolder(folder).dtype)
    with torch.no_grad():
        ours = assembled.to(dtype)(input_ids=ids).logits[0].float()[: len(theirs)]
    assembled.float()
    return name, float((theirs - ours).abs().max() / ours.abs().max())


def tensor_bytes(folder: Path) -> int:
    """Bytes of all tensors in a checkpoint, without the headers of files and without a vocabulary."""
    found = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            found += path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")
    for path in folder.glob("*.gguf"):
        from gguf import GGUFReader

        found += sum(int(tensor.n_bytes) for tensor in GGUFReader(path).tensors)
    return found + sum(path.stat().st_size for path in folder.glob(DATA))


Opened = tuple[str, torch.dtype, Tensor]
"""The reader's name, the dtype that it computed in, and its logits float32 [tokens, V]."""


def _by_transformers(made: Path, ids: Tensor, dtype: torch.dtype, **more: Any) -> Opened:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(made, dtype=dtype, **more).eval()
    with torch.no_grad():
        logits = network(input_ids=ids).logits[0].float()
    return f"transformers {metadata.version('transformers')}", dtype, logits


def _gguf(made: Path, ids: Tensor, dtype: torch.dtype) -> Opened:
    from transformers import GgufConfig

    config = GgufConfig(dequantize=True)
    return _by_transformers(made, ids, torch.float32, gguf_file="model.gguf", quantization_config=config)


def _gptqmodel(made: Path, ids: Tensor, dtype: torch.dtype) -> Opened:
    """Its kernels for CPUs compute in float16; it compiles them when it first loads (a minute)."""
    name, dtype, logits = _by_transformers(made, ids, torch.float16, device_map="cpu")
    return f"{name} with gptqmodel {metadata.version('gptqmodel')}", dtype, logits


def _onnx(made: Path, ids: Tensor, dtype: torch.dtype) -> Opened:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(made / "model.onnx", options, providers=["CPUExecutionProvider"])
    given = {"input_ids": ids.numpy(), "attention_mask": torch.ones_like(ids).numpy()}
    found = torch.from_numpy(session.run(None, given)[0][0])
    return f"onnxruntime {onnxruntime.__version__}", torch.float32, found


def _vllm(made: Path, ids: Tensor, dtype: torch.dtype) -> Opened:
    """In 16 bits, which its kernels compute in."""
    dtype = torch.bfloat16 if dtype is torch.float32 else dtype
    (read,) = read_by_vllm([made], {"ids": ids[0]}, dtype)
    if not read.opened:
        raise ValueError(f"vLLM {read.version} cannot open {made.name}: {read.why}")
    kernels = ", ".join(dict.fromkeys(read.kernels.values()))
    return (
        f"vLLM {read.version} ({kernels})" if kernels else f"vLLM {read.version}",
        dtype,
        read.outputs[LOGITS],
    )


READERS: Mapping[str, Callable[[Path, Tensor, torch.dtype], Opened]] = {
    "compressed-tensors": _by_transformers,
    "vllm": _vllm,
    "gguf": _gguf,
    "onnx": _onnx,
    "onnx-nbits": _onnx,
    "gptq": _gptqmodel,
    "awq": _gptqmodel,
    "bitsandbytes": _by_transformers,
}
"""The program that opens the checkpoint of each target."""


def exports_measured(rows: Sequence[ExportRow]) -> str:
    """For each target: promised and stored bits and bytes, the loss, the reader and how far its logits
    are."""
    titles = ["target", "schemes", "bits promised", "stored", "bytes promised", "stored", "KL, nats a token"]
    titles += ["opened by", "largest difference of logits"]
    return markdown(
        titles,
        [
            [
                f"`{row.target}`{', fused' if row.fused else ''}",
                str(len(row.schemes)),
                f"{row.promised:.3f}",
                f"{row.stored:.3f}",
                f"{row.bytes_promised:,}",
                f"{row.bytes_stored:,}",
                f"{row.loss:.4f} ± {(row.high - row.low) / 2:.4f}",
                row.reader,
                f"{row.difference:.1e}",
            ]
            for row in rows
        ],
    )
