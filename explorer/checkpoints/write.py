"""A model written as a checkpoint of another program, and one tensor in the same layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor, nn

from explorer.analysis.cache import CachePlan
from explorer.checkpoints.card import least_bytes, model_card
from explorer.checkpoints.export import SHARD_BYTES, Export, ExportJob, Plan, Quantized, on_cpu
from explorer.checkpoints.folder import check_space, whole_folder, write_beside
from explorer.checkpoints.front_matter import CARD
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.table import EXPORTS, export_of
from explorer.checkpoints.verify import Verified, obstacle, seen_probe, verify
from explorer.core.quantize import QuantizedTensor, quantize_weight
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.models.quantize import rounding
from explorer.progress import Progress
from explorer.schemes import Scheme

WEIGHT_FILES = (".safetensors", ".gguf", ".onnx", ".onnx_data")
"""Endings of files that hold weights."""


@dataclass(frozen=True)
class Written:
    """Result of an export: the folder, its files with their sizes in bytes, and the number of quantized
    layers."""

    folder: Path
    files: Mapping[str, int]
    layers: int
    verified: Verified | None = None

    @classmethod
    def of(cls, folder: Path, layers: int, verified: Verified | None) -> Self:
        """The result whose files are all those of ``folder``."""
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
        return cls(Path(folder), sizes, layers, verified)

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return sum(self.files.values())


def rounded(name: str, weight: Tensor, recipe: Recipe, importance: Tensor | None = None) -> QuantizedTensor:
    """``weight`` [N, K] rounded to nearest (``quantize_weight``);
    ``ValueError`` for a recipe with a method, which needs inputs."""
    if recipe.method:
        raise ValueError(f"{name}: {label_of(recipe.method)} needs the layer's inputs; none are given here")
    return quantize_weight(weight, recipe.scheme, importance)


def write_checkpoint(
    target: str,
    model: Path,
    layers: Mapping[str, Recipe],
    out: Path,
    *,
    quantized: Quantized = rounded,
    inputs: Scheme | Mapping[str, Scheme] | None = None,
    input_scales: Mapping[str, float] | None = None,
    card: str = "",
    progress: Progress | None = None,
    shard_bytes: float | None = None,
    verified: bool | None = False,
    beside: Mapping[str, str] | None = None,
    measure: Callable[[nn.Module | None], str] | None = None,
    changed: Mapping[str, Tensor] | None = None,
    cache: CachePlan | None = None,
    cache_scales: Mapping[str, float] | None = None,
) -> Written:
    """Write the folder ``model`` with ``layers`` quantized as a checkpoint in ``out``, whole or not at all.

    Layers are named as their weights are, without ".weight"; what is not named stays as it is. ``quantized``
    gives the codes of one layer; nothing is rounded after it. Rounding to nearest for an engine that
    multiplies several layers as one matrix gives these one scale of the whole tensor. ``inputs`` says how the
    layers' inputs are quantized when the model runs, of all layers or by layer, with the ``input_scales`` of
    schemes that have fixed ones. ``cache`` says how keys and values are stored, with its fixed
    ``cache_scales``. ``card`` is added to the model card: how the model measured. If ``verified``, the folder
    is opened by the code on its card and compared before it is put in place (``verify``), and the card says
    so; None does that where its reader is here and the model fits into memory (``obstacle``).
    ``shard_bytes``: of a file of tensors, at most (5 GB if None). ``beside``: texts by the names of files
    that they are written to. ``changed``: tensors in place of the model's own, by name: layers that took in
    factors of the others, and corrected biases. ``measure`` gives more text for the card: it is asked after
    the folder was verified, with the network that the reader opened, or None. ``progress`` counts tensors of
    the model.

    ``ValueError`` that names the first layer that the target can't carry and why, and ``SourceError`` for a
    model that is broken, before anything is written; ``OSError`` where the folder can't be written. In every
    case, and where ``progress`` stops the work, nothing is left of it.
    """
    check_shards(target, shard_bytes)
    plan = Plan(
        ModelFolder(model, changed),
        dict(layers),
        inputs,
        dict(input_scales or {}),
        shard_bytes or SHARD_BYTES,
        cache,
        cache_scales or {},
    )
    export = checked(target, plan, needs_inputs=quantized is rounded)
    against = obstacle(export, plan) if verified is not False else ""
    if verified and against:
        raise ValueError(f"{export.label} cannot be verified here: {against}. Leave --verify out")
    verified = not against if verified is None else verified
    check_space(out, least_bytes(plan))
    total, done = len(plan.model.infos), 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    if export.fused and quantized is rounded:
        quantized = _rounded_together(plan)

    with whole_folder(out) as folder:
        plan.model.carry_over(folder)
        outputs: dict[str, Tensor] = {}

        def seen(name: str, q: QuantizedTensor) -> None:
            if verified and name in plan.coded:
                outputs[name] = q.dequantize() @ seen_probe(export, plan, name, q.shape[1])

        export.write(ExportJob(plan, folder, quantized, step, seen))
        opened: list[nn.Module] = []
        result = verify(export, plan, folder, outputs, opened.append) if verified else None
        if measure is not None:
            card = f"{card}\n\n{measure(opened[0] if opened else None)}"
        size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHT_FILES)
        write_beside(folder, {CARD: model_card(export, plan, card, result, size), **(beside or {})})
    return Written.of(out, len(plan.coded), result)


def _rounded_together(plan: Plan) -> Quantized:
    """Rounds to nearest; layers that engines multiply as one matrix share its scale of the whole tensor."""
    shared = rounding(plan.layers, True, lambda name: plan.model.read(f"{name}.weight").float())
    return lambda name, weight, recipe: shared(name)


def check_shards(target: str, shard_bytes: float | None) -> None:
    """``ValueError`` if a size of files was given for a target whose tensors are in one file, or none is
    positive."""
    export = export_of(target)
    if shard_bytes is None:
        return
    if not export.sharded:
        some = ", ".join(row.name for row in EXPORTS.values() if row.sharded)
        raise ValueError(f"{export.label} has its tensors in one file: a size of files is for {some}")
    if not shard_bytes > 0:
        raise ValueError("a file has more than 0 bytes")


def checked(target: str, plan: Plan, needs_inputs: bool = False) -> Export:
    """The row of ``target``; ``ValueError`` if there is none, or it can't carry the plan."""
    export = export_of(target)
    if not plan.layers:
        raise ValueError("no layer is named: there is nothing to quantize")
    if plan.model.tied and (heads := [name for name in plan.layers if plan.model.is_head(name)]):
        raise ValueError(
            f"{heads[0]}: config.json ties the head to the embeddings, and readers use those in its place"
        )
    if plan.model.transposed and plan.coded:
        raise ValueError(f"{plan.model.type} stores its layers [K, N]: no target carries those")
    if plan.cache is not None and (why := export.against_cache(plan.model, plan.cache)):
        raise ValueError(f"{export.label} cannot say how keys and values are stored: {why}")
    for name, recipe in plan.layers.items():
        if needs_inputs and recipe.method:
            raise ValueError(
                f"{name}: {label_of(recipe.method)} needs inputs; only rounding to nearest is given"
            )
    check_schemes(export, plan)
    strange = [name for name in plan.input_scales if name not in plan.input_schemes]
    if strange:
        raise ValueError(f"a scale was given for inputs of {strange[0]}, which are not quantized")
    if why := export.together(plan):
        raise ValueError(f"{export.label} cannot carry this model: {why}")
    for name in plan.coded:
        if why := export.place(plan.model, name, plan.layers[name].scheme).refusal:
            raise ValueError(f"{name} cannot hold codes: {why}. Leave it out, for example by --keep {name}")
    return export


def check_schemes(export: Export, plan: Plan) -> None:
    """``ValueError`` that names the first layer whose scheme the target can't carry, and why."""
    for name, recipe in plan.layers.items():
        if why := export.refusal(recipe.scheme, plan.shape(name)):
            raise ValueError(f"{export.label} cannot carry {name} by {recipe.scheme}: {why}")


def write_one(target: str, q: QuantizedTensor, path: Path, name: str = "weight") -> Path:
    """Write one tensor in a target's layout, its parts called ``name``.…; the path with the right suffix.

    ``ValueError`` if the target can't carry it, ``OSError`` if the path can't be written.
    """
    export = export_of(target)
    if why := export.refusal(q.scheme, q.shape):
        raise ValueError(f"{export.label} cannot carry {name} by {q.scheme}: {why}")
    path = Path(path).with_suffix(export.suffix)
    export.one(on_cpu(q), name.removesuffix(".weight"), path)
    return path
