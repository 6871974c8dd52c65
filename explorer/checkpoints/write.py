"""A model written as a checkpoint of another program, and one tensor in the same layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from explorer.checkpoints.card import CARD, least_bytes, model_card
from explorer.checkpoints.export import Export, ExportJob, Plan, Quantized, on_cpu
from explorer.checkpoints.folder import check_space, whole_folder
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.table import EXPORTS
from explorer.checkpoints.verify import Verified, obstacle, probe, verify
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.progress import Progress
from explorer.schemes import Scheme


@dataclass(frozen=True)
class Written:
    """Result of an export: the folder, its files with their sizes in bytes, and the number of quantized
    layers."""

    folder: Path
    files: Mapping[str, int]
    layers: int
    verified: Verified | None = None

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return sum(self.files.values())


def rounded(name: str, weight: Tensor, recipe: Recipe) -> QuantizedTensor:
    """``weight`` [N, K] rounded to nearest; ``ValueError`` for a recipe with a method, which needs inputs."""
    if recipe.method:
        raise ValueError(f"{name}: {label_of(recipe.method)} needs the layer's inputs; none are given here")
    return quantize(weight, recipe.scheme)


def write_checkpoint(
    target: str,
    model: Path,
    layers: Mapping[str, Recipe],
    out: Path,
    *,
    quantized: Quantized = rounded,
    inputs: Scheme | None = None,
    input_scales: Mapping[str, float] | None = None,
    card: str = "",
    progress: Progress | None = None,
    shard_bytes: float = 5e9,
    verified: bool | None = False,
) -> Written:
    """Write the folder ``model`` with ``layers`` quantized as a checkpoint in ``out``, whole or not at all.

    Layers are named as their weights are, without ".weight"; what is not named stays as it is.
    ``quantized`` gives the codes of one layer; nothing is rounded after it. ``inputs`` says how the layers'
    inputs are quantized when the model runs, with the fixed ``input_scales`` for schemes of the whole tensor.
    ``card`` is added to the model card: how the model measured. If ``verified``, the folder is opened by the
    code on its card and compared before it is put in place (``verify``), and the card says so; None does
    that where its reader is here and the model fits into memory (``obstacle``). ``progress``
    counts tensors of the model.

    ``ValueError`` that names the first layer that the target can't carry and why, and ``SourceError`` for a
    model that is broken, before anything is written; ``OSError`` where the folder can't be written. In every
    case, and where ``progress`` stops the work, nothing is left of it.
    """
    plan = Plan(ModelFolder(model), dict(layers), inputs, dict(input_scales or {}), shard_bytes)
    export = checked(target, plan, needs_inputs=quantized is rounded)
    verified = not obstacle(export, plan) if verified is None else verified
    check_space(out, least_bytes(plan))
    total, done = len(plan.model.infos), 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    with whole_folder(out) as folder:
        plan.model.carry_over(folder)
        outputs: dict[str, Tensor] = {}

        def seen(name: str, q: QuantizedTensor) -> None:
            if verified and name in plan.coded:
                outputs[name] = q.dequantize() @ probe(name, q.shape[1])

        export.write(ExportJob(plan, folder, quantized, step, seen))
        result = verify(export, plan, folder, outputs) if verified else None
        (folder / CARD).write_text(model_card(export, plan, card, result), encoding="utf-8")
    files = sorted(path for path in Path(out).rglob("*") if path.is_file())
    sizes = {str(path.relative_to(out)): path.stat().st_size for path in files}
    return Written(Path(out), sizes, len(plan.coded), result)


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
    for name, recipe in plan.layers.items():
        if needs_inputs and recipe.method:
            raise ValueError(
                f"{name}: {label_of(recipe.method)} needs inputs; only rounding to nearest is given"
            )
        if why := export.refusal(recipe.scheme, plan.shape(name)):
            raise ValueError(f"{export.label} cannot carry {name} by {recipe.scheme}: {why}")
    strange = [name for name in plan.input_scales if plan.inputs is None or name not in plan.layers]
    if strange:
        raise ValueError(f"a scale was given for inputs of {strange[0]}, which are not quantized")
    if why := export.together(plan):
        raise ValueError(f"{export.label} cannot carry this model: {why}")
    for name in plan.coded:
        if why := export.place(plan.model, name, plan.layers[name].scheme).refusal:
            raise ValueError(f"{name} cannot hold codes: {why}. Leave it out, for example by --keep {name}")
    return export


def export_of(target: str) -> Export:
    """The row of ``EXPORTS`` called ``target``; ``ValueError`` with the names there are."""
    if target not in EXPORTS:
        raise ValueError(f"no checkpoint format {target!r}; there are {', '.join(EXPORTS)}")
    return EXPORTS[target]


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
