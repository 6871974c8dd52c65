"""Models in several safetensors files: which file holds a tensor, by the index or the files' names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from explorer.progress import checkpoint
from explorer.sources.base import SourceError, TensorInfo
from explorer.sources.coded import CodedSource
from explorer.sources.safetensors_header import parse_json
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors", re.ASCII)


class ShardedSource(CodedSource):
    """The safetensors files of a model as one source: ``file_of`` has the file of each tensor.

    With an index, a tensor is read from the file that the index names, and from no other.
    """

    file_of: dict[str, str]
    _promised: Mapping[str, str]

    def gather(
        self, files: Mapping[str, Sequence[TensorInfo]], promised: Mapping[str, str], limits: SourceLimits
    ) -> None:
        """List the tensors of ``files``.

        Tensors whose name an earlier file has are left out. ``broken`` names them, and tensors of the index
        that no file holds.
        """
        self._promised, self.file_of, self.stored = promised, {}, ()
        for name, infos in files.items():
            own = [info for info in infos if promised.get(info.name, name) == name]
            new = [info for info in own if info.name not in self.file_of]
            if len(new) < len(own):
                twice = next(info.name for info in own if info.name in self.file_of)
                left = len(own) - len(new)
                self.broken += (f"{name}: an earlier file holds {twice} too ({left} left out)",)
            self.file_of |= {info.name: name for info in new}
            self.stored += tuple(new)
            if len(self.stored) > limits.tensors:
                raise SourceError(f"{self.origin} lists more than {limits.tensors:,} tensors, the limit here")
        if missing := [name for name in promised if name not in self.file_of]:
            self.broken += (
                f"{INDEX} promises {plain(missing[0], 80)} in {promised[missing[0]]}, which does not hold it "
                f"({len(missing):,} such)",
            )
        self.find_codes()

    def promised(self) -> Iterable[str]:
        return self._promised


def weight_map(index: bytes | bytearray, origin: str, limits: SourceLimits) -> dict[str, str]:
    """Read the file of each tensor from an index. Files are plain file names: never a path out of the
    folder."""
    origin = f"{origin}: {INDEX}"
    parsed = parse_json(index, origin, "list of files", limits)
    weights = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise SourceError(f"{origin} is not a valid index")
    if len(weights) > limits.tensors:
        raise SourceError(f"{origin} lists {len(weights):,} tensors; accepted are up to {limits.tensors:,}")
    for name in weights.values():
        checkpoint()
        if not is_plain_name(name):
            raise SourceError(f"{origin} names {ascii(name)[:100]}, which is not a plain file name")
    return weights


def weight_files(
    promised: Mapping[str, str], here: Iterable[str], origin: str, limits: SourceLimits
) -> list[str]:
    """Choose the files of a model to read: by its index, else among the safetensors files ``here``.

    Without an index model.safetensors, or the shards; all files only if there is neither.
    """
    names = sorted(set(promised.values()) or here)
    if not promised:
        shards = [name for name in names if _SHARD.fullmatch(name)]
        names = ["model.safetensors"] if "model.safetensors" in names else shards or names
    if not names:
        raise SourceError(f"{origin} has no .safetensors files at its top level; other formats are not read")
    if len(names) > limits.shards:
        raise SourceError(f"{origin} has {len(names):,} files; accepted are up to {limits.shards:,}")
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


def local_weight_map(folder: Path, origin: str, limits: SourceLimits) -> dict[str, str]:
    """Read the file of each tensor from a folder's index; empty if it has no index."""
    index = folder / INDEX
    if not index.is_file():
        return {}
    return weight_map(StampedFile(index, f"{origin}: {INDEX}").all(limits.header_bytes), origin, limits)
