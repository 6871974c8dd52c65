"""A model's network without its weights, as transformers builds it: it shows which tensors of the files
become linear layers, and under which names.

transformers renames tensors of many architectures as it loads them, and stacks the matrices of experts; its
own conversion mapping says how (``transformers.conversion_mapping``, since version 5).
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from explorer.cached import cached_property
from explorer.progress import StoppedError, checkpoint
from explorer.sources.base import SourceError, first_line

MOST_MODULES = 200_000
"""Largest accepted product of layers and experts of a configuration, and number of modules. Qwen3-Next (48 ×
512) is built in 2 s."""
WEIGHT = ".weight"
TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Models whose "linear" layers are Conv1D: their weights are stored [K, N]."""
_PREFERRED = (
    "AutoModel",
    "AutoModelForImageTextToText",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM",
)
_COUNTED = re.compile(r"depth|label|class|indices|kernel_size|blocks|stages")
"""Names of values that count what is built, or the entries of a list."""
_EXPERT = re.compile(r"\.experts\.\d+\.")
_OUTDATED = ("AutoModelWithLMHead", "AutoModelForVision2Seq")


@dataclass(frozen=True)
class LayerPlace:
    """Path of the linear layer that a matrix of a model's files becomes, or the reason why it becomes none;
    the other field is empty. ``experts``: the parameter that the matrices of experts are stacked in."""

    module: str
    refusal: str = ""
    experts: str = ""


@dataclass(frozen=True)
class HeldWeight:
    """Parameter of a network that holds the weight [N, K] of a layer. transformers stacks experts in one
    parameter [experts, parts · N, K]. ``table``: its rows are looked up, as the tokens' embeddings are."""

    parameter: str
    expert: int | None = None
    part: int = 0
    parts: int = 1
    table: bool = False

    @property
    def module(self) -> str:
        """The path of the linear layer; empty for experts and tables, which have none."""
        return "" if self.table or self.expert is not None else self.parameter.removesuffix(WEIGHT)

    def of(self, values: Tensor) -> Tensor:
        """Return the layer's part of the parameter's ``values``, or of its gradient: a view [N, K]."""
        return values if self.expert is None else values[self.expert].chunk(self.parts)[self.part]


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Network of transformers that is used for names, kinds and shapes only: it may lie on ``meta``.

    auto  the class of transformers that opens it
    """

    network: nn.Module
    auto: str = "AutoModel"

    def parameter(self, name: str) -> tuple[str, bool]:
        """The parameter that the tensor ``name`` of the files becomes; second, True if other tensors are
        merged with it or its values change on the way. The parameter's name is returned even if the network
        lacks it."""
        found, pattern = self._renamed(name)
        return found, pattern is not None

    def _renamed(self, name: str) -> tuple[str, str | None]:
        """The parameter of a tensor, and the pattern of the converter that takes it, if any."""
        from transformers.core_model_loading import rename_source_key

        prefix = getattr(self.network, "base_model_prefix", None) or None
        return rename_source_key(name, *self._conversion, prefix, self._known)

    def place(self, layer: str, shape: tuple[int, ...] | None = None) -> LayerPlace:
        """The linear layer that the tensor ``layer`` + ".weight" of the files becomes; ``shape`` is compared
        if it is given."""
        parameter, changed = self.parameter(layer + WEIGHT)
        name = parameter.removesuffix(WEIGHT)
        module, kind = self._modules.get(name), type(self._modules.get(name)).__name__
        why = stacked = ""
        if changed:
            why = f"transformers merges it with others while loading, into {parameter}"
            stacked = parameter if is_expert(layer) else ""
        elif module is None or parameter == name:
            why = f"{type(self.network).__name__} of transformers has no layer of this name"
        elif isinstance(module, nn.Embedding):
            why = "it is a table that rows are looked up in, and no linear layer"
        elif not isinstance(module, nn.Linear):
            why = f"it belongs to a {kind}, not to a linear layer"
        elif type(module).forward is not nn.Linear.forward:
            why = f"it belongs to a {kind}, which multiplies in its own way"
        elif shape is not None and module.weight.shape != shape:
            why = f"its shape is {list(shape)}, and the configuration asks for {list(module.weight.shape)}"
        return LayerPlace("" if why else name, why, stacked)

    def held(self, layer: str, shape: tuple[int, ...] | None = None) -> HeldWeight | None:
        """The parameter that holds the weight of ``layer``; its ``shape`` is compared if given.

        None unless the layer is a linear layer, the table of tokens' embeddings, or an expert that is stacked
        row by row.
        """
        place = self.place(layer, shape)
        if place.module:
            return HeldWeight(place.module + WEIGHT)
        if self.is_table(layer):
            found: HeldWeight | None = HeldWeight(self.table + WEIGHT, table=True)
        else:
            found = self._stacked(layer) if place.experts else None
        if found is None or shape is None:
            return found
        whole = tuple(self._known[found.parameter].shape)
        held = whole if found.table else (whole[1] // found.parts, *whole[2:])
        return found if held == tuple(shape) else None

    def _stacked(self, layer: str) -> HeldWeight | None:
        """The part of a stacked parameter that an expert becomes; None if transformers merges experts in
        another way than one after another, the matrices of each below each other."""
        from transformers import core_model_loading as loading

        name = layer + WEIGHT
        parameter, pattern = self._renamed(name)
        converter = next((one for one in self._conversion[1] if pattern in one.source_patterns), None)
        number = re.search(r"\.experts\.(\d+)\.", name)
        if converter is None or number is None or parameter not in self._known:
            return None
        merge, *more = converter.operations
        below = all(isinstance(one, loading.Concatenate) and one.dim == 1 for one in more)
        if not isinstance(merge, loading.MergeModulelist) or merge.dim != 0 or len(more) > 1 or not below:
            return None
        sources = list(converter.source_patterns)
        return HeldWeight(parameter, int(number[1]), sources.index(pattern), len(sources))

    def coded(self, layer: str, shape: tuple[int, ...] | None = None) -> LayerPlace:
        """``place`` of a layer if codes can replace its weight. They cannot if other code reads ``.weight``
        itself, which a layer of codes lacks."""
        found = self.place(layer, shape)
        return LayerPlace("", why) if found.module and (why := self._reader_of(found.module)) else found

    def holds(self, parameter: str) -> bool:
        """True for a parameter or buffer of the network; other tensors of the files are ignored."""
        return parameter in self._known

    def is_embedding(self, layer: str) -> bool:
        """True for a table of embeddings."""
        path = self.parameter(layer + WEIGHT)[0].removesuffix(WEIGHT)
        return isinstance(self._modules.get(path), nn.Embedding)

    def is_table(self, layer: str) -> bool:
        """True for the table of tokens' embeddings; False for those of positions or kinds of tokens."""
        return bool(self.table) and self.parameter(layer + WEIGHT)[0] == self.table + WEIGHT

    @cached_property
    def table(self) -> str:
        """The path of the table of tokens' embeddings; empty if the network has none."""
        path = self._of_tokens("input")
        return path if isinstance(self._modules.get(path), nn.Embedding) else ""

    @cached_property
    def head(self) -> str:
        """The path of the layer that gives the logits of tokens; empty if the network has none."""
        return self._of_tokens("output")

    @property
    def tied(self) -> bool:
        """True if the head multiplies by the table of tokens' embeddings."""
        table, head = (self._modules.get(path) for path in (self.table, self.head))
        return bool(self.table and self.head) and getattr(head, "weight", None) is getattr(table, "weight", 0)

    def as_stored(self, names: Iterable[str], read: Callable[[str], Tensor]) -> Self:
        """Untie the head if the files' tensors ``names`` include a head and a table with different values, as
        transformers does (modeling_utils, ``tie_weights``); returns this network."""
        if self.tied:
            ends = tuple(path.rpartition(".")[2] + WEIGHT for path in (self.table, self.head))
            of = {self.parameter(name)[0]: name for name in names if name.endswith(ends)}
            table, head = (of.get(path + WEIGHT) for path in (self.table, self.head))
            if table and head and not torch.equal(read(table), read(head)):
                module = self._modules[self.head]
                module.weight = nn.Parameter(module.get_parameter("weight").detach().clone(), False)
        return self

    def _of_tokens(self, side: str) -> str:
        """The path of the module that transformers names as the network's "input" or "output" embeddings;
        empty if it names none."""
        try:
            module = getattr(self.network, f"get_{side}_embeddings")()
        except (AttributeError, NotImplementedError):  # of images or sound, or no model of transformers
            return ""
        return next((name for name, m in self._modules.items() if module is not None and m is module), "")

    @cached_property
    def language(self) -> str:
        """The path of the part that reads and writes text, with a dot at its end; empty if the whole network
        is text's."""
        config = getattr(self.network, "config", None)
        text = config.get_text_config() if config is not None else None
        if text is None or text is config:
            return ""
        paths = [n for n, m in self._modules.items() if n and getattr(m, "config", None) is text]
        whole = [path for path in paths if any(name.startswith(f"{path}.") for name in self.linear)]
        return f"{whole[0]}." if whole else ""

    @cached_property
    def linear(self) -> tuple[str, ...]:
        """The paths of all linear layers, in the network's order."""
        return tuple(name for name, module in self._modules.items() if isinstance(module, nn.Linear))

    @cached_property
    def _modules(self) -> dict[str, nn.Module]:
        return dict(self.network.named_modules())

    @cached_property
    def _known(self) -> dict[str, Any]:
        return dict(self.network.state_dict())

    @cached_property
    def _conversion(self) -> tuple[list[Any], list[Any]]:
        """transformers' renamings and its converters for the network, in the order in which they apply."""
        from transformers import core_model_loading as loading
        from transformers.conversion_mapping import get_model_conversion_mapping

        found = get_model_conversion_mapping(self.network)
        converters = [one for one in found if isinstance(one, loading.WeightConverter)]
        return [one for one in found if isinstance(one, loading.WeightRenaming)], converters

    def _reader_of(self, name: str) -> str:
        """The class that reads the weight ``name`` itself, in words; empty if none does."""
        path, _, leaf = name.rpartition(".")
        around = type(self._modules[path])
        if _mentions(around, f"self.{leaf}.weight"):
            return (
                f"{around.__name__} of transformers reads its weight directly, which a layer of codes lacks"
            )
        while path and not hasattr(self._modules[path], "_init_weights"):
            path = path.rpartition(".")[0]
        owner: Any = type(self._modules[path])  # the innermost of transformers' models around it
        if _mentions(owner._init_weights, f"module.{leaf}.weight"):
            return f"{owner.__name__} of transformers sets its weight itself, which a layer of codes lacks"
        return ""


def is_expert(layer: str) -> bool:
    """True for the name of a matrix of one expert among several."""
    return _EXPERT.search(layer) is not None


def config_of(folder: Path) -> Any | None:
    """Read the configuration in ``folder``; None for a kind of model that transformers does not know.
    ``SourceError`` for one with values that its kind does not take."""
    from transformers import AutoConfig

    with suppress(ValueError, OSError):  # AutoConfig says what is wrong
        check_counts(json.loads((folder / "config.json").read_bytes()), folder.name, MOST_MODULES)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, KeyError, OSError):
        return None
    except Exception as error:  # transformers raises whatever a configuration makes it raise
        raise SourceError(
            f"{folder.name}: transformers cannot read its config.json: {first_line(error)}"
        ) from error


def skeleton_of(folder: Path) -> Skeleton | None:
    """Build the network of the model in ``folder``; None for a kind of model that transformers does not know.

    ``SourceError`` if the network cannot be built from the configuration.
    """
    config = config_of(folder)
    if config is None:
        return None
    auto = auto_class(config)
    try:
        with torch.device("meta"), few_modules(folder.name, MOST_MODULES):
            network = class_of(config, auto)(config)
    except (SourceError, StoppedError):
        raise
    except Exception as error:  # transformers raises whatever a configuration makes it raise
        raise SourceError(
            f"{folder.name}: transformers cannot build its network: {first_line(error)}"
        ) from error
    return Skeleton(network.eval(), auto)


def check_counts(config: Any, origin: str, most: int) -> None:
    """``SourceError`` if the values of a config.json make transformers build more than ``most`` of what they
    count: layers times experts, blocks or labels. It makes lists of as many as it reads the file. Nor may a
    value name code of the Hub, which is what "owner/name" is for transformers as an implementation."""
    layers, experts, others = 1, 1, 0
    waiting: list[Mapping[str, Any]] = [config] if isinstance(config, Mapping) else []
    while waiting:
        for key, value in waiting.pop().items():
            if isinstance(value, Mapping):
                waiting.append(value)
            elif isinstance(value, str) and "implementation" in key and "/" in value:
                raise SourceError(f"{origin}: its config asks for code of the Hub, {value}, as {key}")
            parts = value if isinstance(value, list) else [value]
            count = max(sum(n for n in parts if type(n) in (int, float)), 0)
            if "layer" in key:
                layers = max(layers, count)
            elif "expert" in key:
                experts = max(experts, count)
            elif _COUNTED.search(key):
                others = max(others, count)
    if not layers * experts <= most >= others:
        counted = layers * experts if others <= most else others
        raise SourceError(
            f"{origin}: its config asks for {counted:,.0f} layers times experts, blocks or labels; accepted "
            f"are up to {most:,}"
        )


@contextmanager
def few_modules(origin: str, most: int) -> Iterator[None]:
    """Inside, this thread builds networks of ``most`` modules, and stops as the work does; ``SourceError``
    beyond. Without memory for its weights, a module takes 2 kB."""
    builder, count = threading.get_ident(), 0

    def one_more(*_: object) -> None:
        nonlocal count
        if threading.get_ident() != builder:
            return
        count += 1
        if count % 100 == 0:
            checkpoint()
        if count > most:
            raise SourceError(f"{origin}: its network has more than {most:,} modules")

    hook = register_module_module_registration_hook(one_more)
    try:
        yield
    finally:
        hook.remove()


def class_of(config: Any, auto: str) -> Callable[[Any], nn.Module]:
    """The function that builds the network: that of the class that opens it, or of the trained class if no
    class of transformers opens the model."""
    import transformers

    opens = getattr(transformers, auto)
    trained = getattr(transformers, str(next(iter(getattr(config, "architectures", None) or []), "")), None)
    if type(config) in opens._model_mapping or trained is None:
        return partial(opens.from_config, trust_remote_code=False)
    return trained._from_config


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


def _mentions(kind: Any, words: str) -> bool:
    """True if the source of ``kind`` contains ``words``."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # built in C, or at run time
        return False
    return re.search(rf"\b{re.escape(words)}\b", source) is not None
