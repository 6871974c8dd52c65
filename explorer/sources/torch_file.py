"""Files of torch.save: read with ``weights_only``, so that nothing in them is executed."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from explorer.sources.base import InMemory, SourceError, TensorSource, first_line

_ONLY_TENSORS = "only tensors and dicts or lists of them are read; pickled objects are refused"


def open_torch(path: Path, origin: str) -> TensorSource:
    """The dense tensors of a .pt file, mapped where it is a zip archive (torch 1.6 and later)."""
    mapped = zipfile.is_zipfile(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:  # its text advises to switch the protection off
        raise SourceError(f"{origin} could not be loaded as plain tensors: {_ONLY_TENSORS}") from error
    except Exception as error:  # the unpickler raises whatever a malformed file makes it raise
        raise SourceError(
            f"{origin} could not be loaded as plain tensors: {first_line(error)}. O{_ONLY_TENSORS[1:]}"
        ) from error
    return InMemory(origin, dict(_flatten(loaded, "")))


def _flatten(value: object, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Dotted names of the dense tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_quantized and value.device.type == "cpu":
            yield prefix or "tensor", value.detach()
        return
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, list | tuple):
        entries = dict(enumerate(value)).items()
    else:
        return
    for key, item in entries:
        yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
