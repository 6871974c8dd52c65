"""Write a model as a checkpoint of another program, or one tensor in the same layout."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from explorer.checkpoints.card import CARD, least_bytes, model_card, restored_words
from explorer.checkpoints.folder import whole_folder, write_beside
from explorer.checkpoints.target import Export, ExportJob, Plan, Quantized, on_cpu
from explorer.checkpoints.targets import EXPORTS, export_of
from explorer.checkpoints.verify import Verified, obstacle, verify
from explorer.core.quantize import QuantizedTensor, quantize_weight
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.models.kinds import fused_groups, has_one_scale, sharing
from explorer.models.quantize import rounding
from explorer.progress import Progress

WEIGHT_FILES = (".safetensors", ".gguf", ".onnx", ".onnx_data")
"""Suffixes of files with weights."""


@dataclass(frozen=True)
class Written:
    """The result of an export: the folder, its files with their sizes in bytes, the number of quantized
    layers, the result of verifying it, and ``notes``, which are on the card too."""

    folder: Path
    files: Mapping[str, int]
    layers: int
    verified: Verified | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Path, layers: int, verified: Verified | None, notes: tuple[str, ...] = ()) -> Self:
        """Describe a written folder with all its files."""
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
        return cls(Path(folder), sizes, layers, verified, notes)

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


def rounded(name: str, weight: Tensor, recipe: Recipe, importance: Tensor | None = None) -> QuantizedTensor:
    """Round ``weight`` [N, K] to nearest (``quantize_weight``); ``ValueError`` for a recipe with a method,
    which needs inputs."""
    if recipe.method:
        raise ValueError(f"{name}: {label_of(recipe.method)} needs the layer's inputs; none are given here")
    return quantize_weight(weight, recipe.scheme, importance)


@dataclass(frozen=True)
class Request:
    """Parameters of an export.

    target     a name of ``EXPORTS``
    plan       the model and the recipes of its layers; other tensors stay as they are
    out        the folder to write, which must not exist
    quantized  returns the codes of one layer. Afterwards only scales are rounded, to the dtype of the files.
               ``rounded`` gives layers that engines join one tensor scale
    card       Markdown for the model card: the measured loss
    verified   True: the folder is opened by the code on its card, compared and run before it is put in place
               (``verify``). None: only if its reader is installed and the model fits into memory
    beside     name of a further file -> its text
    measure    returns more text for the card. It is called after the folder was verified, with the network
               that the reader opened, or None
    notes      sentences on the codes
    """

    target: str
    plan: Plan
    out: Path
    quantized: Quantized = rounded
    card: str = ""
    verified: bool | None = False
    beside: Mapping[str, str] = field(default_factory=dict)
    measure: Callable[[nn.Module | None], str] | None = None
    notes: tuple[str, ...] = ()


def export(request: Request, progress: Progress | None = None) -> Written:
    """Write a checkpoint, whole or not at all. ``progress`` counts tensors of the model.

    Before anything is written, ``ValueError`` names the first layer that the target cannot hold and the
    reason, and ``SourceError`` a broken model. ``ValueError`` if the written folder cannot be opened, differs
    or does not run; ``OSError`` if it cannot be written. After an error or a stop by ``progress`` nothing is
    left.
    """
    plan, quantized = request.plan, request.quantized
    row = checked(request.target, plan, needs_inputs=quantized is rounded)
    verified = check_verifiable(row, plan, request.verified)
    if row.joined and quantized is rounded:  # parts of one matrix share its scale of the whole tensor
        together = rounding(plan.layers, True, lambda name: plan.model.read(f"{name}.weight").float())

        def quantized(name: str, weight: Tensor, recipe: Recipe) -> QuantizedTensor:
            return together(name)

    total, done = len(plan.model.infos), itertools.count(1)
    codes: dict[str, QuantizedTensor] = {}
    moved: dict[str, float] = {}
    opened: list[nn.Module] = []

    def step() -> None:
        if progress is not None:
            progress(next(done), total)

    def seen(name: str, q: QuantizedTensor) -> None:
        if verified:
            codes[name] = q

    with whole_folder(request.out, least_bytes(plan)) as folder:
        plan.model.carry_over(folder)
        dtype = row.reads_in(plan)
        row.write(ExportJob(plan, folder, quantized, step, seen, row.stored, dtype, moved.__setitem__))
        result = verify(row, plan, folder, codes, opened.append) if verified else None
        card = request.card
        if request.measure is not None:
            card = f"{card}\n\n{request.measure(opened[0] if opened else None)}"
        size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHT_FILES)
        scales = (*_unjoined_words(row, plan), *_moved_words(dtype, moved))
        notes = (*request.notes, *scales, *restored_words(plan))
        write_beside(folder, {CARD: model_card(row, plan, card, result, size, notes), **request.beside})
    return Written.of(request.out, len(plan.coded), result, notes)


def _moved_words(dtype: torch.dtype, moved: Mapping[str, float]) -> Iterator[str]:
    """Warn of scales that are too small for the files' dtype."""
    if moved:
        name = max(moved, key=lambda one: moved[one])
        yield (
            f"Scales of {len(moved)} layers are too small for {str(dtype).removeprefix('torch.')}: they move "
            f"by up to {100 * moved[name]:.3g} % of their size, in {name}, and the weights with them"
        )


def check_verifiable(row: Export, plan: Plan, verified: bool | None) -> bool:
    """True if the folder will be verified; ``ValueError`` if that is required and not possible here."""
    against = obstacle(row, plan) if verified is not False else ""
    if verified and against:
        raise ValueError(f"{row.label} cannot be verified here: {against}. Leave --verify out")
    return not against if verified is None else verified


def _unjoined_words(row: Export, plan: Plan) -> Iterator[str]:
    """Warn of layers that engines join and that share no tensor scale. A ``fused`` target refuses those."""
    if not row.joined or row.fused:
        return
    alike = set(sharing(plan.layers))
    groups = (group for group in fused_groups(plan.coded) if len(group) > 1 and group not in alike)
    own = [group for group in groups if any(has_one_scale(plan.coded[name].scheme) for name in group)]
    if own:
        more = f" ({len(own)} such groups)" if len(own) > 1 else ""
        yield (
            f"{', '.join(own[0])} share no tensor scale, being of different schemes or by a method{more}: an "
            "engine that multiplies them as one matrix takes one scale for all, or refuses"
        )


def check_shards(export: Export, shard_bytes: float | None) -> None:
    """``ValueError`` for a file size that is not positive, and for a target that keeps its tensors in one
    file."""
    if shard_bytes is None:
        return
    if not export.sharded:
        some = ", ".join(row.name for row in EXPORTS.values() if row.sharded)
        raise ValueError(f"{export.label} keeps its tensors in one file: only {some} take a size of files")
    if not shard_bytes > 0:
        raise ValueError("the size of files has to be more than 0 bytes")


def checked(target: str, plan: Plan, needs_inputs: bool = False) -> Export:
    """Return the target of this name; ``ValueError`` if there is none, or if it cannot hold the plan."""
    export = export_of(target)
    check_shards(export, plan.shard_bytes)
    if not plan.layers:
        raise ValueError("no layer is named: there is nothing to quantize")
    if plan.model.tied and (heads := [name for name in plan.layers if plan.model.is_head(name)]):
        raise ValueError(
            f"{heads[0]}: config.json ties the head to the embeddings, and readers use those in its place"
        )
    if plan.model.lacks_head:
        raise ValueError(
            f"{plan.model.type}: config.json ties no head to the embeddings, and the files have none: "
            "readers would draw it at random"
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
    if strange := [name for name in plan.input_scales if name not in plan.input_schemes]:
        raise ValueError(f"a scale was given for inputs of {strange[0]}, which are not quantized")
    if why := export.together(plan):
        raise ValueError(f"{export.label} cannot carry this model: {why}")
    for name in plan.coded:
        if why := export.place(plan.model, name, plan.layers[name].scheme).refusal:
            raise ValueError(f"{name} cannot hold codes: {why}. Leave it out, for example by --keep {name}")
    return export


def check_schemes(export: Export, plan: Plan) -> None:
    """``ValueError`` for the first layer with a scheme that the target cannot hold, and the reason."""
    for name, recipe in plan.layers.items():
        if why := export.refusal(recipe.scheme, plan.shape(name)):
            raise ValueError(f"{export.label} cannot carry {name} by {recipe.scheme}: {why}")


def write_one(target: str, q: QuantizedTensor, path: Path, name: str = "weight") -> Path:
    """Write one tensor in a target's layout, its parts called ``name``.…; returns the path with the target's
    suffix.

    ``ValueError`` if the target cannot hold it, ``OSError`` if the path cannot be written.
    """
    export = export_of(target)
    if why := export.refusal(q.scheme, q.shape):
        raise ValueError(f"{export.label} cannot carry {name} by {q.scheme}: {why}")
    path = Path(path).with_suffix(export.suffix)
    export.one(on_cpu(q), name.removesuffix(".weight"), path)
    return path
