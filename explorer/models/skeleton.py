"""A model's network without its weights, as transformers builds it: which tensors of the files become linear
layers there, and under which names.

transformers renames tensors of many architectures as it loads them, and stacks those of experts; its own
conversion mapping says how (``transformers.conversion_mapping``, since version 5).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from explorer.sources.base import SourceError, first_line

MOST_MODULES = 20_000
"""Layers times experts of a configuration: a network is built before its weights are compared."""
WEIGHT = ".weight"
_PREFERRED = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM",
)
_OUTDATED = ("AutoModelWithLMHead", "AutoModelForVision2Seq")


@dataclass(frozen=True)
class Place:
    """Where a matrix of a model's files ends up: the path of the linear layer in the network, or why it is
    none. One of the two is empty."""

    module: str
    refusal: str = ""


@dataclass(frozen=True, eq=False)
class Skeleton:
    """The network that transformers opens a model's folder as, on the ``meta`` device.

    auto  the class of transformers that opens it
    """

    auto: str
    network: nn.Module
    _conversion: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))

    def parameter(self, name: str) -> tuple[str, bool]:
        """The parameter that the tensor ``name`` of the files becomes, and whether other tensors are merged
        with it or its values are changed on the way. A name that the network lacks is returned too."""
        from transformers import core_model_loading as loading

        renamings, converters = self._conversion
        prefix = getattr(self.network, "base_model_prefix", None) or None
        found, converter = loading.rename_source_key(name, renamings, converters, prefix, self._known)
        return found, converter is not None

    def place(self, layer: str, shape: tuple[int, ...]) -> Place:
        """Where the layer ``layer`` (its tensor's name without ".weight") of ``shape`` ends up."""
        parameter, changed = self.parameter(layer + WEIGHT)
        if changed:
            return Place("", f"transformers stacks or changes it while loading, into {parameter}")
        name = parameter.removesuffix(WEIGHT)
        module = self._modules.get(name)
        if module is None or parameter == name:
            return Place("", f"{type(self.network).__name__} of transformers has no layer of this name")
        if not isinstance(module, nn.Linear):
            return Place("", f"it belongs to a {type(module).__name__}, not to a linear layer")
        if tuple(module.weight.shape) != tuple(shape):
            expected = list(module.weight.shape)
            return Place("", f"its shape is {list(shape)}, and the configuration asks for {expected}")
        if why := self._read_directly(name):
            return Place("", why)
        return Place(name)

    @cached_property
    def linear(self) -> tuple[str, ...]:
        """The paths of all linear layers, in the network's order."""
        return tuple(name for name, module in self._modules.items() if isinstance(module, nn.Linear))

    @cached_property
    def parts(self) -> Mapping[str, int]:
        """Weights by part of the network: its submodules of the first level that holds more than one."""
        module, prefix = self.network, ""
        while len(children := _with_weights(module)) == 1:
            ((name, module),) = children.items()
            prefix += f"{name}."
        return {f"{prefix}{n}": sum(p.numel() for p in m.parameters()) for n, m in children.items()}

    @cached_property
    def _modules(self) -> dict[str, nn.Module]:
        return dict(self.network.named_modules())

    @cached_property
    def _known(self) -> dict[str, Any]:
        return dict(self.network.state_dict())

    def _read_directly(self, name: str) -> str:
        """Why codes cannot take the place of the weight ``name``: the module around it reads ``.weight``
        itself, which a layer of codes does not have."""
        parent, _, leaf = name.rpartition(".")
        around = type(self._modules[parent])
        return (
            f"{around.__name__} of transformers reads its weight directly, which a layer of codes lacks"
            if re.search(rf"self\.{re.escape(leaf)}\.weight\b", _source(around))
            else ""
        )


def skeleton_of(folder: Path) -> Skeleton | None:
    """The network of the model in ``folder``; None for a kind of model that transformers does not know.

    ``SourceError`` where the configuration cannot be built.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, KeyError, OSError):
        return None
    return build(config, folder.name)


def build(config: Any, origin: str) -> Skeleton:
    """The network that ``config`` describes, by the class that opens it."""
    import transformers

    modules = modules_of_config(config.to_dict())
    if modules > MOST_MODULES:
        raise SourceError(
            f"{origin}: its config asks for {modules:,} layers times experts; accepted are up to "
            f"{MOST_MODULES:,}"
        )
    auto = auto_class(config)
    try:
        with torch.device("meta"):
            network = getattr(transformers, auto).from_config(config, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever a configuration makes it raise
        raise SourceError(f"{origin}: transformers cannot build its network: {first_line(error)}") from error
    return Skeleton(auto, network.eval(), _conversion_of(network))


def auto_class(config: Any) -> str:
    """The class of transformers that opens a model: by the configuration's first architecture, else
    ``AutoModel``."""
    from transformers.models.auto import modeling_auto

    kind = str(getattr(config, "model_type", ""))
    built = str(next(iter(getattr(config, "architectures", None) or []), ""))
    every = (name for name in vars(modeling_auto) if name.startswith("AutoModelFor"))
    for auto in dict.fromkeys((*_PREFERRED, *every)):
        mapping = getattr(getattr(modeling_auto, auto, None), "_model_mapping", None)
        names = getattr(mapping, "_model_mapping", {}).get(kind, ())
        if auto not in _OUTDATED and built in ((names,) if isinstance(names, str) else names):
            return auto
    return "AutoModel"


def modules_of_config(config: Mapping[str, Any]) -> int:
    """About how many modules a config makes transformers build: the most layers times the most experts."""
    most = {"layer": 1, "expert": 1}
    waiting: list[Any] = [config]
    while waiting:
        for key, value in waiting.pop().items():
            if isinstance(value, Mapping):
                waiting.append(value)
            for word in most:
                if word in str(key) and type(value) is int:
                    most[word] = max(most[word], value)
    return most["layer"] * most["expert"]


def _conversion_of(network: nn.Module) -> tuple[list[Any], list[Any]]:
    """transformers' renamings and its converters for ``network``, in the order in which they apply."""
    from transformers import core_model_loading as loading
    from transformers.conversion_mapping import get_model_conversion_mapping

    found = get_model_conversion_mapping(network)
    converters = [one for one in found if isinstance(one, loading.WeightConverter)]
    return [one for one in found if isinstance(one, loading.WeightRenaming)], converters


def _with_weights(module: nn.Module) -> dict[str, nn.Module]:
    return {name: m for name, m in module.named_children() if any(True for _ in m.parameters())}


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # built in C, or at run time
        return ""
