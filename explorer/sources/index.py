"""The index of a sharded model: which safetensors files hold its tensors."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from explorer.sources.base import SourceError
from explorer.sources.safetensors_header import parse_json
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile

INDEX = "model.safetensors.index.json"


def shard_names(index: bytes | bytearray, origin: str, limits: SourceLimits) -> list[str]:
    """The files that an index names, each a plain file name: never a path out of the folder."""
    origin = f"{origin}: {INDEX}"
    parsed = parse_json(index, origin, "list of files", limits)
    weights = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise SourceError(f"{origin} is not a valid index")
    for name in weights.values():
        if not is_plain_name(name):
            raise SourceError(f"{origin} names {ascii(name)[:100]}, which is not a plain file name")
    names = sorted(set(weights.values()))
    if len(names) > limits.shards:
        raise SourceError(f"{origin} names {len(names):,} files; accepted are up to {limits.shards:,}")
    return names


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


def local_shard_names(folder: Path, origin: str, limits: SourceLimits) -> list[str]:
    """The files that a folder's index names; none if it has no index."""
    index = folder / INDEX
    if not index.is_file():
        return []
    file = StampedFile(index, f"{origin}: {INDEX}")
    if file.size > limits.header_bytes:
        raise SourceError(f"{origin}: {INDEX} has {file.size:,} bytes, more than {limits.header_bytes:,}")
    return shard_names(file.read(0, file.size), origin, limits)
