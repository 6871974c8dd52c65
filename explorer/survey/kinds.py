"""What a tensor of a model is for in a survey.

Names are those of transformers' checkpoints and of GGUF files.
"""

from __future__ import annotations

import fnmatch
import re
from enum import StrEnum

from explorer.models.skeleton import WEIGHT as SUFFIX
from explorer.models.skeleton import Skeleton
from explorer.sources import gguf_file
from explorer.sources.base import TensorInfo
from explorer.sources.coded import stored_bits

FLOATS = {"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"}
"""The file's names of dtypes that hold a weight as it was trained; codes of 8 bits have their scales
elsewhere."""


def itemsize(dtype: str) -> float:
    """Bytes of an element of a file's ``dtype``, by the bits in its name ("BF16", "int64"); 1 where it names
    none. Of weights in codes with scales the bytes of both; 2 for the coded tensors of GGUF files, which are
    restored to 16 bits."""
    if (stored := stored_bits(dtype)) is not None:
        return stored / 8
    bits = re.search(r"\d+", dtype)
    return 2 if dtype.startswith(gguf_file.CODED) else max(int(bits[0]) // 8, 1) if bits else 1


class Role(StrEnum):
    """Linear layers are quantized; so are the head, and the table of tokens' embeddings, where the target
    carries them or they are asked for. Other embeddings, of positions and kinds of tokens, and experts that
    are one tensor of three axes are listed and stay as they are: no target carries them."""

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
    """Whether a layer's name is meant by ``pattern``: one of ``fnmatch``, or a part of the name."""
    return fnmatch.fnmatchcase(layer, pattern) or pattern in layer


def role_of(info: TensorInfo, network: Skeleton | None = None) -> Role | None:
    """The role of the tensor ``info`` in a survey; None for norms, biases, convolutions, and codes.

    ``network`` decides which matrices are linear layers, and leaves out those beside its language part;
    without one their names do.
    """
    name = info.name.removesuffix(SUFFIX)
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
