"""The definition of an export target: the schemes that it holds, its writers and its reader; and the plan of
an export."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from explorer.analysis.cache import CachePlan
from explorer.cached import cached_property
from explorer.checkpoints.model import ModelFolder
from explorer.core.quantize import QuantizedTensor
from explorer.methods.recipe import Recipe
from explorer.models.skeleton import LayerPlace
from explorer.schemes import Scheme

Shape = tuple[int, int]
Quantized = Callable[[str, Tensor, Recipe], QuantizedTensor]
"""(name of the layer, its weight [N, K], its recipe) -> the codes that are written."""
SAFETENSORS = ".safetensors"
SHARD_BYTES = 5e9
NO_CACHE = "its format has no place for that, and it is an option of the engine"
_ROUNDED = 2.0**-8
"""Largest relative change of a scale by rounding to a normal number of 16 bits."""


@dataclass(frozen=True)
class Plan:
    """A model and the recipes of its layers: all that is known before a tensor is read.

    layers        layer (its weight's name without ".weight") -> scheme and method
    inputs        the scheme of the layers' inputs: one for all layers of codes, or one by layer for those
                  that it names; None if inputs are not quantized
    input_scales  layer -> the fixed (static) scale of its inputs; other scales are found at run time
    shard_bytes   the most bytes of a file of tensors (one tensor may be larger); None: 5 GB
    cache         the scheme of keys and values; None if the files do not state it
    cache_scales  the fixed scales of ``cache``: "layers.0.keys" -> scale
    """

    model: ModelFolder
    layers: Mapping[str, Recipe]
    inputs: Scheme | Mapping[str, Scheme] | None = None
    input_scales: Mapping[str, float] = field(default_factory=dict)
    shard_bytes: float | None = None
    cache: CachePlan | None = None
    cache_scales: Mapping[str, float] = field(default_factory=dict)

    def shape(self, layer: str) -> Shape:
        """[N, K] of a layer's weight; ``ValueError`` if the model has none of that name."""
        shape = self.model.info(f"{layer}.weight").shape
        if len(shape) != 2:
            raise ValueError(f"{layer}.weight has the shape {list(shape)}; layers are matrices [N, K]")
        return shape[0], shape[1]

    def layer_of(self, tensor: str) -> str:
        """The layer of the plan whose weight is ``tensor``; empty for other tensors."""
        name = tensor.removesuffix(".weight")
        return name if name != tensor and name in self.layers else ""

    @property
    def file_bytes(self) -> float:
        return self.shard_bytes or SHARD_BYTES

    @cached_property
    def coded(self) -> dict[str, Recipe]:
        """The layers that are stored as codes: all except casts."""
        return {name: recipe for name, recipe in self.layers.items() if recipe.scheme.plain_dtype is None}

    @cached_property
    def input_schemes(self) -> dict[str, Scheme]:
        """Layer of ``coded`` -> the scheme of its inputs, if they are quantized."""
        if self.inputs is None or isinstance(self.inputs, Scheme):
            return {} if self.inputs is None else dict.fromkeys(self.coded, self.inputs)
        return {name: self.inputs[name] for name in self.coded if name in self.inputs}

    @property
    def groups(self) -> dict[tuple[Scheme, Scheme | None], list[str]]:
        """(scheme, scheme of the inputs or None) -> the layers with both, in the order of the model."""
        found: dict[tuple[Scheme, Scheme | None], list[str]] = {}
        for name, recipe in self.coded.items():
            found.setdefault((recipe.scheme, self.input_schemes.get(name)), []).append(name)
        return found

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The schemes of ``coded``, in the order of the model."""
        return tuple(dict.fromkeys(recipe.scheme for recipe in self.coded.values()))


@dataclass(frozen=True)
class ExportJob:
    """One run of an export: the destination, the quantizer, and the callbacks.

    ``step`` is called once for each tensor of the model, when it is written, and ``seen`` with the name and
    the codes of each layer. ``dtype`` and ``stored`` are those of the target. ``moved`` is called if a
    layer's scales change by more than rounding changes them, with the layer and the largest relative change.
    """

    plan: Plan
    folder: Path
    quantized: Quantized
    step: Callable[[], None]
    seen: Callable[[str, QuantizedTensor], None] = lambda name, q: None
    stored: Callable[[QuantizedTensor, torch.dtype], QuantizedTensor] = lambda q, dtype: q
    dtype: torch.dtype = torch.float32
    moved: Callable[[str, float], None] = lambda name, most: None

    def layer(self, name: str) -> QuantizedTensor:
        """Quantize a layer; ``ValueError`` if the codes do not match the recipe."""
        recipe, weight = self.plan.layers[name], self.plan.model.read(f"{name}.weight")
        q = self.quantized(name, weight, recipe)
        if q.shape != tuple(weight.shape) or q.scheme.text != recipe.scheme.text:
            raise ValueError(
                f"{name}: codes of {list(q.shape)} by {q.scheme} were given for a weight "
                f"{list(weight.shape)} by {recipe.scheme}"
            )
        q = on_cpu(q)
        if q.scheme.plain_dtype is None:
            before = q.scales.stored
            try:
                q = self.stored(q, self.dtype)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            most = float(((q.scales.stored - before).abs() / before.abs().clamp_min(1e-38)).max())
            if most > _ROUNDED:
                self.moved(name, most)
        self.seen(name, q)
        return q


def on_cpu(q: QuantizedTensor) -> QuantizedTensor:
    """Copy codes and scales to host memory."""
    scales = q.scales.map_grids(Tensor.cpu)
    top = None if scales.tensor_scale is None else scales.tensor_scale.cpu()
    return dataclasses.replace(q, packed=q.packed.cpu(), scales=dataclasses.replace(scales, tensor_scale=top))


@dataclass(frozen=True)
class Export:
    """One target. Reasons are texts, empty if there is none.

    why        its users and contents, as the end of a sentence: "what llama.cpp loads"
    refuses    (scheme, [N, K]) -> the reason why it cannot hold a layer of codes
    together   (plan) -> the reason why it cannot hold these layers of this model together
    write      writes all files of the model except those that are carried over
    one        writes one tensor in the target's layout
    load       (plan) -> Python code that opens the folder
    reader     the program and version that the tests read it back with
    exact      how near that program's weights are to ours, in words
    suffix     of the file of one tensor
    place      (model, layer, scheme) -> where the reader has the layer, or the reason why it has no codes
               there
    expert_refusal  (scheme) -> the reason why experts cannot have it
    family     (scheme) -> a name; schemes of one family can be mixed in a model
    bits       (scheme, [N, K], the model's dtype) -> bits per weight of a layer of codes in the file
    fused      True if its engine multiplies query, key and value, and gate and up, as one matrix each: they
               need one scheme
    joined     True if some engines that load it do that: layers of one scheme share a tensor scale
    reads_in   (plan) -> the dtype that the reader restores to, and that scales have
    stored     (codes, that dtype) -> the codes with scales as the files hold them
    usual      the schemes that its users choose first; recipes are compared with the first that fits
    multiplies (scheme of inputs, scheme of weights) -> the reason why its engines have no product of them
    as_read    (scheme of inputs, dtype that the reader runs in) -> the scheme by which the reader rounds them
    tables     True if it holds codes of the table of token embeddings; its users quantize that and the head
    around     (plan) -> the most bytes of its files of weights beside the codes of layers: other tensors,
               headers and padding; None if that is not known
    against_cache  (model or None, scheme of keys and values) -> the reason why the files cannot state it
    """

    name: str
    label: str
    why: str
    reader: str
    exact: str
    refuses: Callable[[Scheme, Shape], str]
    together: Callable[[Plan], str]
    write: Callable[[ExportJob], None]
    one: Callable[[QuantizedTensor, str, Path], None]
    load: Callable[[Plan], str]
    suffix: str = SAFETENSORS
    place: Callable[[ModelFolder, str, Scheme], LayerPlace] = lambda model, layer, scheme: model.place(layer)
    expert_refusal: Callable[[Scheme], str] = lambda scheme: ""
    family: Callable[[Scheme], str] = lambda scheme: ""
    bits: Callable[[Scheme, Shape, torch.dtype], float] = lambda scheme, shape, dtype: own_bits(scheme, shape)
    fused: bool = False
    joined: bool = False
    reads_in: Callable[[Plan], torch.dtype] = lambda plan: plan.model.dtype
    stored: Callable[[QuantizedTensor, torch.dtype], QuantizedTensor] = lambda q, dtype: q
    usual: tuple[str, ...] = ()
    multiplies: Callable[[Scheme, Scheme], str] = lambda inputs, scheme: "its inputs are not quantized"
    as_read: Callable[[Scheme, torch.dtype], Scheme] = lambda inputs, dtype: inputs
    around: Callable[[Plan], int] | None = None
    tables: bool = False
    against_cache: Callable[[ModelFolder | None, CachePlan], str] = lambda model, cache: NO_CACHE

    @property
    def sharded(self) -> bool:
        """True if the target stores tensors in safetensors files, of which there may be several."""
        return self.suffix == SAFETENSORS

    def refusal(self, scheme: Scheme, shape: Shape) -> str:
        """Reason why the target cannot hold a layer of ``shape`` [N, K] by ``scheme``; empty if it can."""
        return "" if scheme.plain_dtype is not None else self.refuses(scheme, shape)

    def stored_bits(self, scheme: Scheme, shape: Shape, dtype: torch.dtype) -> float:
        """Bits per weight of a layer of ``shape`` [N, K] of a model in ``dtype``, as stored in the file with
        all that the layout adds to the codes."""
        plain = scheme.plain_dtype
        return self.bits(scheme, shape, dtype) if plain is None else 8.0 * plain.itemsize


def own_bits(scheme: Scheme, shape: Shape) -> float:
    """Bits per weight in a layout that adds nothing to codes and scales."""
    return scheme.bits_per_element(shape).total


def needed(module: str, target: str) -> ModuleType:
    """Import a package that only some targets need; ``ValueError`` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ValueError(
            f"writing {target} needs the package {package} ({error}): pip install {package}"
        ) from error
