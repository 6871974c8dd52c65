"""Layers of a model: a local folder, a snapshot in the Hugging Face cache, or a Hub id.

The list of layers comes from the safetensors headers alone; reading a layer reads that layer's bytes: a
slice of the mapped file, or one HTTP range request. No model code is ever run, and no file but
safetensors is opened.
"""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import Tensor

from explorer.progress import Progress
from explorer.sources.base import SourceError, TensorInfo, TensorSource
from explorer.sources.hub import HubModel
from explorer.sources.index import INDEX, local_shard_names
from explorer.sources.tensors import SUFFIXES, open_tensors

__all__ = ["HubModel", "LocalModel", "layers", "open_model"]

_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def open_model(where: str, revision: str | None = None) -> TensorSource:
    """Open a model by folder path or Hub id ("owner/name", with an optional revision).

    A folder that exists wins over an id; an id in the Hugging Face cache is read from there. Raises
    ``SourceError`` saying which of missing, gated, offline or "no safetensors" it was.
    """
    where = where.strip()
    if not where:
        raise SourceError("name a model: a folder on this machine, or a Hub id such as owner/name")
    folder = Path(where).expanduser()
    if folder.is_dir():
        return LocalModel(folder)
    if folder.is_file():
        raise SourceError(f"{where}: tensor files end in {', '.join(SUFFIXES)}; models are folders")
    if not _HUB_ID.fullmatch(where):
        raise SourceError(f"no folder {where!r} here, and it is no Hub id (owner/name)")
    snapshot = _cached_snapshot(where, revision)
    return LocalModel(snapshot, where) if snapshot else HubModel(where, revision)


def layers(source: TensorSource, containing: str = "") -> tuple[TensorInfo, ...]:
    """The tensors whose name contains ``containing`` (any case); layer 2 comes before layer 10."""
    matching = [info for info in source.infos if containing.lower() in info.name.lower()]
    return tuple(sorted(matching, key=lambda info: _natural(info.name)))


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key that compares digits as numbers."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


class LocalModel(TensorSource):
    """All safetensors files of a folder, sharded or single, as one source.

    Files that cannot be read are left out, and named in ``broken``; ``SourceError`` if none is left.
    """

    def __init__(self, folder: Path, origin: str | None = None) -> None:
        self.origin = origin or folder.name
        names = local_shard_names(folder, self.origin) or sorted(p.name for p in folder.glob("*.safetensors"))
        if not names:
            raise SourceError(f"{self.origin} holds no .safetensors files; other weight formats are not read")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise SourceError(f"{self.origin}: its index names {missing[0]}, which is not in the folder")
        self._files: list[TensorSource] = []
        for name in names:
            try:
                self._files.append(open_tensors(folder / name))
            except SourceError as error:
                self.broken += (str(error),)
        if not self._files:
            raise SourceError(self.broken[0])
        self._file_of = {info.name: file for file in self._files for info in file.infos}

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(info for file in self._files for info in file.infos)

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        return self._file_of[info.name].read_rows(info, rows, progress)


def _cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    """The folder of a cached snapshot that has all its safetensors files, or None."""
    for name in (INDEX, "model.safetensors"):
        try:
            cached = try_to_load_from_cache(repo_id, name, revision=revision)
        except HFValidationError as error:
            raise SourceError(f"{repo_id!r} is no Hub id: {error}") from error
        if isinstance(cached, str):
            folder = Path(cached).parent
            complete = all((folder / n).is_file() for n in local_shard_names(folder, repo_id))
            return folder if complete else None
    return None
