"""Which safetensors files hold a model's tensors: its index, or the names of the files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath

from explorer.sources.base import SourceError
from explorer.sources.safetensors_header import parse_json
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors", re.ASCII)


def weight_map(index: bytes | bytearray, origin: str, limits: SourceLimits) -> dict[str, str]:
    """The file of each tensor by an index, each a plain file name: never a path out of the folder."""
    origin = f"{origin}: {INDEX}"
    parsed = parse_json(index, origin, "list of files", limits)
    weights = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise SourceError(f"{origin} is not a valid index")
    for name in weights.values():
        if not is_plain_name(name):
            raise SourceError(f"{origin} names {ascii(name)[:100]}, which is not a plain file name")
    if (files := len(set(weights.values()))) > limits.shards:
        raise SourceError(f"{origin} names {files:,} files; accepted are up to {limits.shards:,}")
    return weights


def file_names(here: Iterable[str]) -> list[str]:
    """The files, of the safetensors files ``here`` of a model without an index, that its tensors are in:
    model.safetensors, or its shards; all of them only where there is neither."""
    names = sorted(here)
    if "model.safetensors" in names:
        return ["model.safetensors"]
    return [name for name in names if _SHARD.fullmatch(name)] or names


def broken_promise(promised: Mapping[str, str], held: Collection[str]) -> tuple[str, ...]:
    """What is wrong where tensors that an index promises are not in ``held``; empty if nothing is."""
    missing = [name for name in promised if name not in held]
    if not missing:
        return ()
    first = missing[0]
    return (
        f"{INDEX} promises {plain(first, 80)} in {promised[first]}, which does not hold it "
        f"({len(missing):,} such)",
    )


def is_plain_name(name: object) -> bool:
    """True if ``name`` is a plain file name, without a path."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= 255
        and name.isprintable()
        and name not in (".", "..")
        and PurePosixPath(name).name == name
        and "\\" not in name
    )


def local_weight_map(folder: Path, origin: str, limits: SourceLimits) -> dict[str, str]:
    """The file of each tensor by a folder's index; empty if it has no index."""
    index = folder / INDEX
    if not index.is_file():
        return {}
    file = StampedFile(index, f"{origin}: {INDEX}")
    if file.size > limits.header_bytes:
        raise SourceError(f"{origin}: {INDEX} has {file.size:,} bytes, more than {limits.header_bytes:,}")
    return weight_map(file.read(0, file.size), origin, limits)
