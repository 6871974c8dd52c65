"""What flows into a model's layers: run it on text, keep the inputs of chosen linear layers.

Models are loaded by transformers from safetensors only, and no code of theirs is run. Of each layer the
first so many tokens are kept, and the run ends as soon as all have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from torch import Tensor, nn

from explorer.export.files import write_tensors
from explorer.progress import Progress, checkpoint
from explorer.sources.base import first_line
from explorer.sources.models import open_model
from explorer.sources.tensors import SourceError

LONGEST = 512
"""Tokens of one text that are run."""


@dataclass(frozen=True, eq=False)
class Model:
    """A transformers network without its head, in evaluation mode, and its tokenizer."""

    network: nn.Module
    tokenizer: Any
    device: torch.device
    name: str


@dataclass(frozen=True, eq=False)
class Captured:
    """One linear layer: ``weight`` float32 [N, K] and ``activations`` float32 [tokens, K], on the CPU."""

    name: str
    weight: Tensor
    activations: Tensor


def load_model(where: str, revision: str | None = None, device: str | torch.device = "cpu") -> Model:
    """Load a transformers model and its tokenizer from a folder or the Hub; ``SourceError`` if that fails."""
    from transformers import AutoModel, AutoTokenizer

    where = where.strip()
    open_model(where, revision)  # its refusals are in our words, and come without transformers' retries
    folder = Path(where).expanduser()
    name = str(folder) if folder.is_dir() else where
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise SourceError(f"{where} holds no config.json: a model's folder has that, weights and a tokenizer")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
        network = AutoModel.from_pretrained(
            name, revision=revision, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, OfflineModeIsEnabled, HfHubHTTPError) as error:
        raise SourceError(f"{where} could not be loaded by transformers: {first_line(error)}") from error
    return Model(
        network.eval().to(device), tokenizer, torch.device(device), folder.name if folder.is_dir() else where
    )


def linear_layers(model: Model, containing: str = "") -> tuple[str, ...]:
    """The names of the model's linear layers that contain ``containing`` (any case)."""
    names = (name for name, m in model.network.named_modules() if isinstance(m, nn.Linear))
    return tuple(name for name in names if containing.lower() in name.lower())


def capture(
    model: Model,
    texts: Sequence[str],
    names: Sequence[str],
    tokens: int = 512,
    progress: Progress | None = None,
) -> list[Captured]:
    """Run ``texts`` one by one and keep the first ``tokens`` inputs of each of the layers ``names``.

    The layers come in the order that the model runs them.

    ``SourceError`` for unknown layers, no text, and layers that no text reached.
    """
    modules = _linear_modules(model, names)
    texts = [text for text in texts if text.strip()]
    if not texts or not names or tokens < 1:
        raise SourceError("give at least one line of text, one layer, and one token to keep")
    reached: list[_Inputs] = []
    inputs = {name: _Inputs(tokens, reached) for name in names}
    hooks = [modules[name].register_forward_pre_hook(inputs[name]) for name in names]
    try:
        for index, text in enumerate(texts):
            checkpoint()
            batch = model.tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")
            with torch.no_grad():
                model.network(**{k: v.to(model.device) for k, v in batch.items()})
            if progress is not None:
                progress(index + 1, len(texts))
            if not any(kept.missing for kept in inputs.values()):
                break
    finally:
        for hook in hooks:
            hook.remove()
    for name, kept in inputs.items():
        if not kept.rows:
            raise SourceError(f"no text reached the layer {name!r}")
    return [
        Captured(name, modules[name].weight.detach().float().cpu(), torch.cat(kept.rows))
        for name, kept in sorted(inputs.items(), key=lambda item: reached.index(item[1]))
    ]


class _Inputs:
    """A forward pre-hook that keeps the first rows of one layer's inputs, on the CPU, and joins ``reached``
    when it is first called."""

    def __init__(self, tokens: int, reached: list[_Inputs]) -> None:
        self.rows: list[Tensor] = []
        self.missing, self.reached = tokens, reached

    def __call__(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not self.rows:
            self.reached.append(self)
        if self.missing:
            rows = inputs[0].detach().reshape(-1, inputs[0].shape[-1])[: self.missing].float().cpu()
            self.rows.append(rows)
            self.missing -= len(rows)


def _linear_modules(model: Model, names: Sequence[str]) -> dict[str, nn.Linear]:
    linear = {name: m for name, m in model.network.named_modules() if isinstance(m, nn.Linear)}
    for name in names:
        checkpoint()
        if name not in linear:
            raise SourceError(
                f"{model.name} has no linear layer {name!r}; it has {len(linear)}, "
                f"such as {', '.join([*linear][:3])}"
            )
    return linear


def save_captured(layers: Sequence[Captured], path: str | Path) -> None:
    """Write ``<layer>.weight`` and ``<layer>.activations`` of each to one .safetensors file.

    The file is complete or not there; ``OSError`` if it cannot be written.
    """
    tensors = {}
    for layer in layers:
        tensors[f"{layer.name}.weight"] = layer.weight.contiguous()
        tensors[f"{layer.name}.activations"] = layer.activations.contiguous()
    write_tensors(tensors, path, {})
