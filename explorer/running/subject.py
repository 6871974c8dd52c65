"""Models to run: as they are or under a recipe, checkpoints of codes, and GGUF files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch

from explorer.cached import cached_property
from explorer.checkpoints.gguf_model import GgufModel, open_gguf
from explorer.checkpoints.stored import gguf_of
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, is_causal, load_model, loading
from explorer.models.files import check_weights, linear_names
from explorer.models.skeleton import config_of
from explorer.sources import open_source
from explorer.sources.base import SourceError
from explorer.sources.coded import SETTINGS
from explorer.sources.safetensors_header import bytes_of
from explorer.sources.source_limits import LOCAL, SourceLimits
from explorer.survey.recipe import ModelRecipe

_TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model",
    "tekken.json",
)  # fmt: skip
_ENCODERS = (
    "bert", "nomic-bert", "jina-bert", "t5encoder", "modern-bert", "neo-bert", "eurobert", "gemma-embedding",
)  # fmt: skip
"""Beginnings of GGUF's architecture names of models that predict no next token."""
NO_TEXT = "has no text to write: it predicts no next token (an encoder, or a model without such a head)"


class SubjectKind(StrEnum):
    """Storage of the weights: as trained, as codes in safetensors files, or in a GGUF file."""

    PLAIN = "weights"
    CODED = "codes"
    GGUF = "GGUF"


@dataclass(frozen=True, eq=False)
class Subject:
    """Model to run, made and checked by ``subject_of``.

    ``place``: folder, Hub id or .gguf file as given; ``file``: the GGUF file; ``recipe`` of its layers, None
    for the model as it is; ``limits`` of opening and fetching.
    """

    place: str
    revision: str | None
    kind: SubjectKind
    recipe: ModelRecipe | None = None
    file: Path | None = None
    limits: SourceLimits = LOCAL

    @property
    def original(self) -> Subject:
        """The same model without a recipe."""
        return replace(self, recipe=None)

    @property
    def name(self) -> str:
        """The model's name for messages, without its folders."""
        path = Path(self.place)
        return path.resolve().name if path.exists() else self.place

    @cached_property
    def gguf(self) -> GgufModel:
        assert self.file is not None
        return open_gguf(self.file)

    @cached_property
    def stored_bytes(self) -> int:
        """Size of the weights in files: a recipe's layers as codes and scales, the others as they are."""
        if self.file is not None:
            return sum(self.gguf.source.stored_bytes(info.name) for info in self.gguf.source.infos)
        source = open_source(self.place, self.revision, self.limits)
        layers = self.recipe.layers if self.recipe else {}
        total = 0.0
        for info in source.infos:
            if recipe := layers.get(info.name.removesuffix(".weight")):
                total += recipe.scheme.bits_per_element(info.matrix_shape).total * info.elements / 8
            else:
                total += sum(map(bytes_of, source.parts_of(info.name) or (info,)))
        return round(total)

    @property
    def asks_for_inputs(self) -> bool:
        """True for a checkpoint of codes with quantized inputs."""
        settings = open_source(self.place, self.revision, self.limits).config().get(SETTINGS)
        groups = settings.get("config_groups") if isinstance(settings, dict) else None
        found = groups.values() if isinstance(groups, dict) else ()
        return any(isinstance(group, dict) and group.get("input_activations") for group in found)

    def load(self, device: torch.device) -> Model:
        """Load the network in float32 as its files hold it, without the recipe, and its tokenizer.
        ``SourceError`` if that fails; ``ValueError`` for a model that writes no text."""
        if self.file is not None:
            model = _load_gguf(self.file, device)
        else:
            model = load_model(self.place, self.revision, device, self.limits, head=True)
        if not model.causal:
            raise ValueError(f"{self.name} {NO_TEXT}")
        return model


def subject_of(
    place: str,
    recipe: ModelRecipe | Recipe | None = None,
    revision: str | None = None,
    limits: SourceLimits = LOCAL,
) -> Subject:
    """Open the model at ``place``: a folder, a Hub id, or a .gguf file.

    ``recipe``: layers to quantize (``Recipe``), or one scheme for all linear layers; None for the model as it
    is. ``SourceError`` for a place without a model, or a model beyond the ``limits``; ``ValueError`` for a
    model that writes no text, has no tokenizer, or is not the one that the recipe was made for.
    """
    file = gguf_of(place, limits)
    if file is not None:
        if recipe is not None:
            raise ValueError(f"{file.name} is run as it is; a recipe or scheme is for a model's folder")
        subject = Subject(place, revision, SubjectKind.GGUF, file=file, limits=limits)
        if subject.gguf.architecture.startswith(_ENCODERS):
            raise ValueError(f"{file.name} {NO_TEXT}")
        return subject
    source = open_source(place, revision, limits)
    if source.problems:
        raise SourceError(source.problems[0])
    kind = SubjectKind.CODED if source.restored and recipe is None else SubjectKind.PLAIN
    subject = Subject(place, revision, kind, limits=limits)
    folder = source.paths[0].parent if source.paths else None
    if folder is not None:
        config = config_of(folder)
        if config is not None and not is_causal(config):
            raise ValueError(f"{subject.name} {NO_TEXT}")
        if not any((folder / file).is_file() for file in _TOKENIZERS):
            raise ValueError(
                f"{subject.name} has no tokenizer: its folder needs tokenizer.json, or another of its files"
            )
    if recipe is None:
        return subject
    if isinstance(recipe, Recipe):
        recipe = ModelRecipe(place, revision, "", dict.fromkeys(linear_names(source), recipe))
    else:
        check_weights(recipe, place, limits)
    return replace(subject, recipe=recipe)


def _load_gguf(file: Path, device: torch.device) -> Model:
    """Load a GGUF file, restored by transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with loading(file.name):
        network, told = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    if missing := sorted(told["missing_keys"]):
        raise SourceError(f"{file.name} lacks {len(missing):,} weights of its network, such as {missing[0]}")
    return Model(network.eval().to(device), tokenizer, device, file.name, True)
