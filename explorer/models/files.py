"""A model's files: their folder and hash, and the role of each tensor.

Names of tensors are those of transformers' checkpoints and of GGUF files.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from explorer.models.skeleton import TRANSPOSED, WEIGHT, Skeleton, skeleton_of
from explorer.progress import checkpoint
from explorer.sources import gguf_file, open_source
from explorer.sources.base import SourceError, TensorInfo, TensorSource
from explorer.sources.coded import CONFIG, stored_bits
from explorer.sources.models import config_in
from explorer.sources.models import layers as in_order
from explorer.sources.source_limits import LOCAL, SourceLimits, within
from explorer.words import plain

FLOATS = {"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"}
"""Names in files of the dtypes that hold trained weights; 8-bit codes are absent, as their scales are stored
elsewhere."""

_PIECE = 16 << 20


def itemsize(dtype: str) -> float:
    """Bytes of an element of a file's ``dtype``, by the bits in its name ("BF16", "int64"); 1 if the name has
    none.

    Codes with scales count both. Coded tensors of GGUF files count 2, as they are restored to 16 bits.
    """
    if (stored := stored_bits(dtype)) is not None:
        return stored / 8
    bits = re.search(r"\d+", dtype)
    return 2 if dtype.startswith(gguf_file.CODED) else max(int(bits[0]) // 8, 1) if bits else 1


class Role(StrEnum):
    """Use of a tensor in a survey.

    Linear layers are quantized; so are the head, and the table of tokens' embeddings, if the target carries
    them or they are asked for. Other embeddings, of positions and kinds of tokens, and experts that are one
    tensor of three axes are listed and stay as they are: no target carries them.
    """

    LINEAR = "linear"
    HEAD = "head"
    EMBEDDING = "embedding"
    OTHER_EMBEDDING = "other embedding"
    EXPERTS = "experts"


_TOKENS = re.compile(r"(^|\.)(embed_tokens|word_embeddings|wte|token_embd|tok_embeddings|embed_in|shared)$")
_EMBEDDINGS = re.compile(r"embed|_embd\b|\bwte\b|\bwpe\b|relative_attention_bias|rotary")
_HEADS = re.compile(r"(^|\.)(lm_head|embed_out|score|classifier)$|^output$")
_ROUTERS = re.compile(r"\.(router|gate)(\.classifier)?$")
"""Layers that choose experts: engines keep them as they are."""
_NOT_LINEAR = re.compile(r"norm|\bln_|conv", re.IGNORECASE)
_STACKED = re.compile(r"\.experts\.[^.]+$|_exps(\.weight)?$")


def matches(layer: str, pattern: str) -> bool:
    """True if ``pattern`` matches a layer's name: as a pattern of ``fnmatch``, or as a part of the name."""
    checkpoint()
    return _compiled(pattern).match(layer) is not None or pattern in layer


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of ``fnmatch``, whose own cache keeps 32,768; one of 1,000 characters can take 80 kB."""
    return re.compile(fnmatch.translate(pattern))


def role_of(info: TensorInfo, network: Skeleton | None = None) -> Role | None:
    """The role of the tensor ``info`` in a survey; None for norms, biases, convolutions, and codes.

    ``network`` says which matrices are linear layers, and excludes those outside its language part; without a
    network their names say it.
    """
    checkpoint()
    name = info.name.removesuffix(WEIGHT)
    codes = info.dtype.startswith(gguf_file.CODED) or stored_bits(info.dtype) is not None
    if not (info.dtype in FLOATS or codes) or min(info.shape, default=0) < 2:
        return None
    if len(info.shape) == 3:
        used = network is None or network.holds(network.parameter(info.name)[0])
        return Role.EXPERTS if used and _STACKED.search(info.name) else None
    if name == info.name or len(info.shape) != 2:
        return None
    if network is not None:
        return _role_in(network, name, info.shape)
    if _HEADS.search(name):
        return Role.HEAD
    if _TOKENS.search(name):
        return Role.EMBEDDING
    if _EMBEDDINGS.search(name):
        return Role.OTHER_EMBEDDING
    return None if _NOT_LINEAR.search(name) else Role.LINEAR


def _role_in(network: Skeleton, name: str, shape: tuple[int, ...]) -> Role | None:
    place = network.place(name, shape)
    if place.experts:
        return Role.LINEAR
    if not place.module:
        if network.is_table(name):
            return Role.EMBEDDING
        return Role.OTHER_EMBEDDING if network.is_embedding(name) else None
    if network.tied and place.module == network.head:
        return None  # in its place readers use the embeddings
    if place.module == network.head or (_HEADS.search(name) and "." not in place.module):
        return Role.HEAD
    if _ROUTERS.search(name):
        return None
    return Role.LINEAR if place.module.startswith(network.language) else None


def network_of(source: TensorSource) -> Skeleton | None:
    """Build the network of a model's folder on this machine, to find its linear layers; None if only names
    can tell them."""
    folder = source.paths[0].parent if source.paths else None
    if (
        folder is None
        or source.paths[0].suffix.lower() == gguf_file.SUFFIX
        or not (folder / CONFIG).is_file()
    ):
        return None
    found = skeleton_of(folder)
    return None if found is None else found.as_stored((info.name for info in source.infos), source.read)


def check_orientation(source: TensorSource) -> None:
    """``SourceError`` for a model that stores its layers as [inputs, outputs]: blocks along its rows would
    lie across the inputs."""
    config = config_in(source.paths[0].parent / CONFIG, source.origin, LOCAL) if source.paths else {}
    if config.get("model_type") in TRANSPOSED:
        raise SourceError(
            f"{source.origin} is a {config['model_type']} model: its layers are stored transposed (Conv1D), "
            "and are not surveyed"
        )


def linear_names(source: TensorSource) -> tuple[str, ...]:
    """Name the layers that one scheme for a whole model applies to: its linear layers without the head.

    ``SourceError`` for a model without any, and for one that stores them transposed.
    """
    network = network_of(source)
    check_orientation(source)
    infos = (info for info in in_order(source) if role_of(info, network) is Role.LINEAR)
    names = tuple(info.name.removesuffix(WEIGHT) for info in infos)
    if not names:
        raise SourceError(f"{source.origin} has no linear layers in floating point")
    return names


def folder_of(model: str, revision: str | None = None) -> Path:
    """The folder of a model's files on this machine; ``ValueError`` for one that is only on the Hub, and on a
    public page, which opens no folder."""
    if not within(LOCAL).folders:
        raise ValueError(f"this page opens no folder: {plain(model, 80)} is written on your own machine")
    paths = open_source(model, revision).paths
    if not paths:
        raise ValueError(f"{model} is not on this machine: fetch it first (`hf download {model}`)")
    return paths[0].parent


def weights_sha256(source: TensorSource) -> str:
    """SHA-256 over the names and bytes of the files that ``source`` reads; "" if none is on this machine."""
    if not source.paths:
        return ""
    digest = hashlib.sha256()
    for path in sorted(source.paths, key=lambda path: path.name):
        digest.update(f"{path.name}\n{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                checkpoint()
                digest.update(piece)
    return digest.hexdigest()


class WeightsRecipe(Protocol):
    """Fields of ``explorer.survey.recipe.ModelRecipe`` that name a model's weights."""

    @property
    def revision(self) -> str | None: ...

    @property
    def weights_sha256(self) -> str: ...


def check_weights(recipe: WeightsRecipe, place: str, limits: SourceLimits = LOCAL) -> None:
    """``ValueError`` if the recipe was made for other weights than those at ``place``, if both hashes are
    known."""
    sha256 = weights_sha256(open_source(place, recipe.revision, limits))
    if sha256 and recipe.weights_sha256 and sha256 != recipe.weights_sha256:
        raise ValueError(f"the weights of {place} are not those that the recipe was made for")
