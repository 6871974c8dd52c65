"""Layers of a model: a local folder, a snapshot in the Hugging Face cache, or a Hub id.

The list of layers comes from the safetensors headers alone; reading a layer reads that layer's bytes, from
the file or by one HTTP range request. No model code is ever run. The only other file that is read is
config.json, where weights are codes (coded.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from explorer.progress import Progress, checkpoint
from explorer.sources.base import SourceError, TensorInfo, TensorSource, refused
from explorer.sources.coded import CONFIG
from explorer.sources.gguf_file import SUFFIX as GGUF
from explorer.sources.gguf_file import GgufFile
from explorer.sources.hub import HubModel, check_revision, is_hub_id
from explorer.sources.index import INDEX, ShardedSource, local_weight_map, weight_files
from explorer.sources.safetensors_file import SafetensorsFile, config_in
from explorer.sources.source_limits import LOCAL, SUFFIXES, SourceLimits, within
from explorer.sources.stamped import stamp_of

__all__ = ["HubModel", "LocalModel", "folder_stamp", "layers", "local_folder", "open_model"]


def open_model(where: str, revision: str | None = None, limits: SourceLimits = LOCAL) -> TensorSource:
    """Open a model by the path of a folder or GGUF file, or by Hub id ("owner/name").

    A folder that exists is preferred to an id; an id in the Hugging Face cache is read from there. With
    ``limits.folders`` off the answer does not depend on this machine's files. ``SourceError`` distinguishes
    missing, gated and offline models, and those without safetensors.
    """
    where, limits = where.strip(), within(limits)
    if not where:
        raise SourceError("name a model: a folder on this machine, or a Hub id such as owner/name")
    check_revision(revision)
    folder = local_folder(where, limits)
    if folder is not None:
        return LocalModel(folder, limits=limits)
    if (gguf := _gguf_file(where, limits)) is not None:
        with refused(f"{gguf.name} is not a readable GGUF file"):
            return GgufFile(gguf, limits)
    if limits.folders and _existing(where, Path.is_file) is not None:
        raise SourceError(
            f"{where}: tensor files end in {', '.join(SUFFIXES)}; models are folders, or files in {GGUF}"
        )
    if not is_hub_id(where):
        if not limits.folders:
            raise SourceError(
                "folders of this server cannot be opened here; give a Hub id such as owner/name"
            )
        raise SourceError(f"no folder {where[:200]!r} here, and it is no Hub id (owner/name)")
    snapshot = _cached_snapshot(where, revision, limits) if limits.folders else None
    return LocalModel(snapshot, where, limits) if snapshot else HubModel(where, revision, limits=limits)


def _existing(where: str, is_one: Callable[[Path], bool]) -> Path | None:
    """The path that ``where`` names, if ``is_one`` holds for it."""
    with suppress(OSError, RuntimeError, ValueError):  # no such user, a NUL, a name too long
        path = Path(where.strip()).expanduser()
        return path if is_one(path) else None
    return None


def local_folder(where: str, limits: SourceLimits = LOCAL) -> Path | None:
    """The folder at the path ``where``; None if there is none, or ``limits`` allow no folders."""
    return _existing(where, Path.is_dir) if within(limits).folders else None


def _gguf_file(where: str, limits: SourceLimits) -> Path | None:
    """The GGUF file at the path ``where``; None if there is none, or ``limits`` allow no folders."""
    file = _existing(where, Path.is_file) if within(limits).folders else None
    return file if file is not None and file.suffix.lower() == GGUF else None


def folder_stamp(where: str, limits: SourceLimits = LOCAL) -> Hashable:
    """A value that changes with the weights of the folder or GGUF file ``where``; None if it is neither."""
    folder, file = local_folder(where, limits), _gguf_file(where, limits)
    with refused(f"{where} cannot be read"):
        if file is not None:
            return stamp_of(file)
        if folder is None:
            return None
        files = [*folder.glob("*.safetensors"), *folder.glob(INDEX), *folder.glob(CONFIG)]
        return tuple((path.name, stamp_of(path)) for path in sorted(files))


def layers(source: TensorSource, containing: str = "", most: int | None = None) -> tuple[TensorInfo, ...]:
    """List the tensors with ``containing`` in their names (any case); layer 2 comes before layer 10.

    ``SourceError`` if there are more than ``most``.
    """
    matching = [info for info in source.infos if containing.lower() in info.name.lower()]
    if most is not None and len(matching) > most:
        raise SourceError(
            f"{len(matching):,} tensors of {source.origin} have {containing[:80]!r} in their names; up to "
            f"{most:,} are listed here: name a longer part"
        )
    return tuple(sorted(matching, key=lambda info: _natural(info.name)))


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key that compares digits as numbers."""
    checkpoint()
    parts = re.split(r"(\d+)", name, flags=re.ASCII)
    return [(0, int(part)) if part.isdecimal() and part.isascii() else (1, part) for part in parts if part]


class LocalModel(ShardedSource):
    """The safetensors files of a folder, sharded or single, as one source.

    Files that cannot be read are left out, and named in ``broken``; ``SourceError`` if no file is left.
    """

    def __init__(self, folder: Path, origin: str | None = None, limits: SourceLimits = LOCAL) -> None:
        self.origin = origin or folder.name
        self._folder, self._limits = folder, limits
        with refused(f"{self.origin} cannot be read"):
            promised = local_weight_map(folder, self.origin, limits)
            here = [path.name for path in folder.glob("*.safetensors")]
            names = weight_files(promised, here, self.origin, limits)
            if missing := [name for name in names if not (folder / name).is_file()]:
                raise SourceError(f"{self.origin}: its index names {missing[0]}, which is not in the folder")
        self._files: dict[str, SafetensorsFile] = {}
        for name in names:
            try:
                with refused(f"{name} is not a readable .safetensors file"):
                    self._files[name] = SafetensorsFile(folder / name, name, limits)
            except SourceError as error:
                self.broken += (str(error),)
        if not self._files:
            raise SourceError(self.broken[0])
        self.paths = tuple(folder / name for name in self._files)
        self.gather({name: file.stored for name, file in self._files.items()}, promised, limits)

    def config(self) -> dict[str, Any]:
        """Read config.json (``TensorSource.config``); ``SourceError`` for invalid JSON."""
        return config_in(self._folder / CONFIG, self.origin, self._limits)

    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        return self._files[self.file_of[info.name]].read_stored(info, rows, progress)


def _cached_snapshot(repo_id: str, revision: str | None, limits: SourceLimits) -> Path | None:
    """The folder of a cached snapshot that has all its safetensors files, or None."""
    from huggingface_hub import try_to_load_from_cache  # slow to import, and of no use for a file
    from huggingface_hub.errors import HFValidationError

    for name in (INDEX, "model.safetensors"):
        try:
            cached = try_to_load_from_cache(repo_id, name, revision=revision)
        except HFValidationError as error:
            raise SourceError(f"{repo_id!r} is no Hub id: {error}") from error
        if isinstance(cached, str):
            folder = Path(cached).parent
            promised = local_weight_map(folder, repo_id, limits)
            complete = all((folder / n).is_file() for n in set(promised.values()))
            return folder if complete else None
    return None
