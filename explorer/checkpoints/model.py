"""Model that an export reads: a folder with its configuration and its tensors, read one at a time."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explorer.cached import cached_property
from explorer.models.skeleton import TRANSPOSED, LayerPlace, Skeleton, auto_class, config_of, skeleton_of
from explorer.progress import checkpoint
from explorer.sources.base import SourceError, TensorInfo
from explorer.sources.coded import CONFIG, SETTINGS, as_in_network, shape_in_network, stored_dtype, weights_of
from explorer.sources.models import LocalModel
from explorer.sources.safetensors_header import NAMES, bytes_of
from explorer.sources.source_limits import LOCAL

_CARRIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".spm", ".vocab", ".bpe")
_TERMS = re.compile(r"(LICENSE|NOTICE|USE_POLICY|COPYING)[^/]*", re.IGNORECASE)
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|wpe|embeddings?|[a-z_]+_embeddings?)(\.|$)")


class ModelFolder:
    """Folder with config.json and complete safetensors files.

    Weights stored as codes (``sources.quantized_forms``) are restored: they have the model's ``dtype`` and
    the names and shapes of the network's parameters, and ``config`` has no quantization. ``changed``: tensors
    that replace those of the files, by name, such as norms that took in factors.

    ``SourceError`` for a missing configuration, an unreadable file, a tensor that the index lists and no file
    holds, and codes that no form restores.
    """

    def __init__(self, folder: Path, changed: Mapping[str, Tensor] | None = None) -> None:
        self.folder = Path(folder)
        self.changed = dict(changed or {})
        self.config = _json(self.folder / CONFIG)
        self._quantized = SETTINGS in self.config
        self.config.pop(SETTINGS, None)
        self._source = LocalModel(self.folder, limits=LOCAL)
        if self._source.broken:
            raise SourceError(f"{self.folder.name}: {self._source.broken[0]}")
        if problem := next(iter(self._source.problems), ""):
            raise SourceError(f"{self.folder.name}: {problem}")
        self._infos = {info.name: self._restored(info) for info in weights_of(self._source)}
        codes = (i for i in self.infos if i.dtype.startswith("F8_") or i.dtype in ("U8", "I8", "I32"))
        if self._quantized and (left := next(codes, None)):
            raise SourceError(
                f"{self.folder.name}: {left.name} is stored as {left.dtype}, in a form not known here; "
                "export the model that it was made of"
            )

    def _restored(self, info: TensorInfo) -> TensorInfo:
        if info.name not in self._source.restored:
            return info
        return TensorInfo(info.name, shape_in_network(self._source, info), NAMES[self.dtype])

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(self._infos.values())

    def info(self, name: str) -> TensorInfo:
        """The header entry of a tensor; ``SourceError`` if there is none of this name."""
        return self._infos[name] if name in self._infos else self._source.info(name)

    def read(self, name: str) -> Tensor:
        """Read one tensor in its own dtype, or in the model's if it is restored from codes."""
        checkpoint()
        if name in self.changed:
            return self.changed[name]
        return as_in_network(self._source, name, self.dtype)

    @property
    def restored(self) -> frozenset[str]:
        """The names of the weights that the files hold as codes."""
        return self._source.restored

    @property
    def stored_as(self) -> dict[str, str]:
        """Restored weight -> the form of its codes in words: "NVFP4", "INT4"."""
        infos = (self._source.info(name) for name in self._source.restored)
        return {info.name: info.dtype.partition(" · ")[0] for info in infos}

    def growth(self, name: str) -> int:
        """Bytes of a restored weight beyond those of its codes and scales."""
        taken = sum(map(bytes_of, self._source.parts_of(name)))
        return bytes_of(self.info(name)) - taken if taken else 0

    @property
    def type(self) -> str:
        """``model_type`` of the configuration: "llama", "bert"."""
        return str(self.config.get("model_type", ""))

    @property
    def transposed(self) -> bool:
        return self.type in TRANSPOSED

    @property
    def tied(self) -> bool:
        """True if the head shares the embeddings, even if the files also contain a head, of equal values."""
        config = self.settings
        if self.skeleton is not None and self.skeleton.head and not self.skeleton.tied:
            return False
        if config is None:
            return bool(self.config.get("tie_word_embeddings", False))
        return any(getattr(c, "tie_word_embeddings", False) for c in (config, config.get_text_config()))

    @cached_property
    def settings(self) -> Any | None:
        """The configuration as transformers reads it, with its defaults; None if it cannot."""
        return config_of(self.folder)

    @cached_property
    def skeleton(self) -> Skeleton | None:
        """The network as transformers builds it; None for a kind of model that it does not have."""
        found = skeleton_of(self.folder)
        return None if found is None else found.as_stored(self._infos, self.read)

    @property
    def auto_class(self) -> str:
        """The class of transformers that opens the model."""
        config = self.settings
        return "AutoModel" if config is None else auto_class(config)

    def place(self, layer: str) -> LayerPlace:
        """The place of a layer in the network, or the reason why no linear layer has its weight."""
        return self.skeleton.place(layer, self._shape(layer)) if self.skeleton else LayerPlace(layer)

    @cached_property
    def replaced(self) -> str:
        """The first class of the network that transformers replaces in quantized models; the replacement does
        not find its weights. Empty if there is none."""
        from transformers.quantizers.base import MODULES_TO_PATCH_FOR_QUANTIZATION

        kinds = {type(m).__name__ for m in self.skeleton.network.modules()} if self.skeleton else set()
        return next((name for name in MODULES_TO_PATCH_FOR_QUANTIZATION if name in kinds), "")

    def taken_apart(self, name: str) -> dict[str, Callable[[Tensor], Tensor]]:
        """Split a stacked tensor [E, inputs, outputs] into tensors of single experts, if transformers
        replaces its class (``replaced``): name -> the function that takes it from the stack. Empty for other
        tensors."""
        block, _, part = name.rpartition(".")
        if not self.replaced or not block.endswith(".experts") or part not in ("gate_up_proj", "down_proj"):
            return {}
        parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
        return {
            f"{block}.{expert}.{one}.weight": lambda t, e=expert, at=at: (  # type: ignore[misc]
                t[e].chunk(len(parts), 1)[at].t().contiguous()
            )
            for expert in range(self.info(name).shape[0])
            for at, one in enumerate(parts)
        }

    def apart(self, layer: str) -> LayerPlace:
        """``place`` for a reader that does not stack experts."""
        found = self.place(layer)
        return LayerPlace(layer) if found.experts else found

    def is_head(self, layer: str) -> bool:
        """True for the layer that computes the logits."""
        network = self.skeleton
        named = network is not None and network.head and network.place(layer).module == network.head
        return layer == "lm_head" or bool(named)

    @property
    def lacks_head(self) -> bool:
        """True if the network has a head of its own, and the files have no weight for it."""
        network = self.skeleton
        if network is None or not network.head or self.tied:
            return False
        parameter = f"{network.head}.weight"
        return not any(network.parameter(info.name)[0] == parameter for info in self.infos)

    def is_table(self, layer: str) -> bool:
        """True for the table of token embeddings."""
        return self.skeleton is not None and self.skeleton.is_table(layer)

    def coded(self, layer: str) -> LayerPlace:
        """``place`` for a reader with layers of codes that have no ``.weight``."""
        return self.skeleton.coded(layer, self._shape(layer)) if self.skeleton else LayerPlace(layer)

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """The layers of experts that transformers stacks while loading."""
        return tuple(name for name in self.matrices if self.place(name).experts)

    def _shape(self, layer: str) -> tuple[int, ...]:
        return self.info(f"{layer}.weight").shape

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype that the configuration states, else that of the first floating-point tensor."""
        named = self.config.get("dtype") or self.config.get("torch_dtype")
        return stored_dtype(named, self._source.infos)

    @cached_property
    def matrices(self) -> tuple[str, ...]:
        """The layers (names without ".weight") that are matrices, without embeddings."""
        matrices = (i.name for i in self.infos if i.name.endswith(".weight") and len(i.shape) == 2)
        layers = (name.removesuffix(".weight") for name in matrices)
        return tuple(name for name in layers if not _EMBEDDING.search(name))

    def carry_over(self, folder: Path) -> None:
        """Copy configuration, tokenizer, generation settings and terms into ``folder``, and settings of
        folders inside (``1_Pooling/config.json``). Weights, the index and the model's card are left out."""
        for path in sorted([*self.folder.glob("*"), *self.folder.glob("*/*.json")]):
            taken = path.suffix in _CARRIED or _TERMS.fullmatch(path.name)
            if not path.is_file() or not taken or path.name.endswith(".index.json"):
                continue
            to = folder / path.relative_to(self.folder)
            to.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, to)
            if self._quantized and path == self.folder / CONFIG:
                to.write_text(json.dumps(self.config, indent=2), encoding="utf-8")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SourceError(
            f"{path.parent.name} has no {path.name}: an export needs the model's folder"
        ) from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path.parent.name}: {path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path.parent.name}: {path.name} is no JSON object")
    return value
