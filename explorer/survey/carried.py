"""Schemes, products with quantized inputs, and file sizes that checkpoint formats support."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from explorer.checkpoints.inputs import label_of_inputs
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Export, Plan, Shape, own_bits
from explorer.checkpoints.targets import EXPORTS, export_of
from explorer.methods.recipe import Recipe
from explorer.models.files import folder_of
from explorer.schemes import SCHEMES, Scheme
from explorer.sources.base import SourceError
from explorer.sources.gguf_file import SUFFIX
from explorer.sources.safetensors_header import NAMES
from explorer.survey.rows import Survey

StoredBits = Callable[[Scheme, Shape], float]
"""(scheme, [N, K]) -> bits per weight."""


def target_of(name: str) -> Export | None:
    """Return the checkpoint format called ``name``, None for an empty name; ``ValueError`` lists the
    names."""
    return export_of(name) if name else None


def model_folder(model: str, revision: str | None = None) -> ModelFolder | None:
    """Open the folder of a surveyed model; None if it is not on this machine, and for a GGUF file."""
    if Path(model).suffix.lower() == SUFFIX:
        return None
    try:
        return ModelFolder(folder_of(model, revision))
    except (ValueError, SourceError):
        return None


def targets_with(inputs: Scheme | None) -> tuple[str, ...]:
    """Name the targets whose engines multiply quantized ``inputs`` with weights of some scheme; all targets
    for None."""
    if inputs is None:
        return tuple(EXPORTS)
    weights = [scheme for scheme in SCHEMES.values() if scheme.plain_dtype is None]
    return tuple(
        name for name, row in EXPORTS.items() if not all(row.multiplies(inputs, one) for one in weights)
    )


def carriers(coded: Iterable[tuple[Scheme, Shape]], inputs: Iterable[Scheme] = ()) -> list[Export]:
    """Find the targets that hold layers of these (scheme, [N, K]) together, and multiply them with
    ``inputs``."""
    pairs, own = set(coded), set(inputs)
    schemes = {scheme for scheme, _ in pairs if scheme.plain_dtype is None}
    return [
        row
        for row in EXPORTS.values()
        if len({row.family(scheme) for scheme in schemes}) <= 1
        and not any(row.refusal(*pair) for pair in pairs)
        and not any(row.multiplies(x, scheme) for x in own for scheme in schemes)
    ]


def product_refusal(target: Export | None, inputs: Scheme | None) -> Callable[[Scheme], str]:
    """Return a function: scheme of weights -> the reason why their product with ``inputs`` is missing, in
    ``target`` or, if None, in every target that quantizes inputs; empty if there is one.

    ``ValueError`` for a target that does not quantize inputs so; it names those that do.
    """
    if inputs is None:
        return lambda scheme: ""
    able = targets_with(inputs)
    if target is not None and target.name not in able:
        why, others = target.multiplies(inputs, inputs), " or ".join(able) or "no target here"
        raise ValueError(f"{target.name}: {why}; {label_of_inputs(inputs)} is for {others}")
    rows = [EXPORTS[name] for name in able] if target is None else [target]

    def refusal(scheme: Scheme) -> str:
        if scheme.plain_dtype is not None:
            return ""
        reasons = [row.multiplies(inputs, scheme) for row in rows]
        return reasons[0] if all(reasons) else ""

    return refusal


def stored_bits(
    target: Export | None, folder: ModelFolder | None, dtype: torch.dtype = torch.bfloat16
) -> StoredBits:
    """Return a function for the bits per weight of a layer in the target's files of the model in ``folder``;
    without a target, of codes and scales alone. ``dtype``: the model's, if its folder is not known."""
    if target is None:
        return own_bits
    stored = dtype if folder is None else folder.dtype
    return lambda scheme, shape: target.stored_bits(scheme, shape, stored)


def bits_in_files(target: Export | None, survey: Survey) -> StoredBits:
    """Return ``stored_bits`` for a surveyed model. If the model is not on this machine, its dtype is its
    layers'."""
    named = {layer.dtype for layer in survey.linear}
    dtype = next((dtype for dtype, name in NAMES.items() if name in named), torch.bfloat16)
    folder = model_folder(survey.head.model, survey.head.revision) if target else None
    return stored_bits(target, folder, dtype)


def bytes_around(target: Export | None, survey: Survey, layers: Iterable[str]) -> int | None:
    """Count the bytes that the target's files take beside the codes of ``layers``.

    None if the target cannot tell or cannot carry the model, and if the model is not on this machine.
    """
    if target is None or target.around is None:
        return None
    folder = model_folder(survey.head.model, survey.head.revision)
    if folder is None:
        return None
    try:
        plan = Plan(folder, dict.fromkeys(layers, Recipe(Scheme.parse("bf16"))))
        return None if target.together(plan) else target.around(plan)
    except (ValueError, SourceError):
        return None


def unplaced(target: str, survey: Survey) -> dict[str, str]:
    """Find the surveyed layers whose codes the reader of ``target`` cannot use, with the reasons; empty if
    the model is not on this machine. ``ValueError`` if the reader cannot open such a model at all."""
    export, folder = export_of(target), model_folder(survey.head.model, survey.head.revision)
    if folder is None:
        return {}
    from explorer.checkpoints.tiny import check_reader  # slow to import

    check_reader(target, folder)
    schemes = [Scheme.parse(text) for text in survey.head.schemes]
    found = {}
    for layer in survey.linear:
        if layer.is_table or not folder.coded(layer.name).refusal:
            continue  # ``frontier`` says it of tables
        carried = (one for one in schemes if not export.refusal(one, layer.shape))
        reasons = (export.place(folder, layer.name, scheme).refusal for scheme in carried)
        if why := next(filter(None, reasons), ""):
            found[layer.name] = why
    return found
