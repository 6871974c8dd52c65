"""Models from the Hub as folders: fetched within limits into a folder with a quota.

For pages whose visitors name models: the sizes in the headers bound what is fetched, no token is sent unless
the limits say so, and the least recently used models make room for the next. ``hf_hub_download`` has no
bound on a file's size or on the time of its arrival.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from explorer.progress import Progress
from explorer.sources.base import SourceError, refused
from explorer.sources.hub import HubModel
from explorer.sources.source_limits import SourceLimits

_SMALL_FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model",
    "model.safetensors.index.json",
)  # fmt: skip
"""Files of a text model that transformers reads in addition to the weights."""
_SMALL_BYTES = 64 << 20
"""Largest accepted size of all small files of a model together."""
_PIECE = 32 << 20
_CACHE = threading.Lock()
PART = "part-"
ABANDONED_SECONDS = 2 * 3600
"""Age of an abandoned fetch in seconds: a fetch takes an hour at most."""
_under_way: dict[Path, int] = {}
"""Bytes reserved by each fetch of this process."""


def cache_folder() -> Path:
    """Folder of fetched models: ``EXPLORER_MODEL_CACHE``, or the user's cache folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("EXPLORER_MODEL_CACHE", home / "quantization-explorer" / "models"))


def fetch_model(model: HubModel, limits: SourceLimits, progress: Progress | None = None) -> Path:
    """Return the folder of ``model``'s config, tokenizer and weights; fetch it if it is not in the cache.

    ``SourceError`` for a model of more than ``limits.fetch_bytes``, and for one that takes longer than
    ``limits.visit_seconds``.
    """
    weights, most = sum(model.sizes.values()), min(limits.fetch_bytes, limits.cache_bytes) - _SMALL_BYTES
    if weights > most:
        raise SourceError(f"{model.origin} has {weights:,} bytes of weights; up to {most:,} are fetched here")
    needed = weights + _SMALL_BYTES
    with refused(f"{model.origin} cannot be kept"):
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        folder = cache / hashlib.sha256(model.identity.encode()).hexdigest()
        with _CACHE:
            if folder.is_dir():
                os.utime(folder)
                return folder
            _make_room(cache, limits.cache_bytes - needed - sum(_under_way.values()))
            part = Path(tempfile.mkdtemp(prefix=PART, dir=cache))
            _under_way[part] = needed
        try:
            _fetch_into(part, model, limits, progress)
            with _CACHE:
                if not folder.is_dir():
                    part.rename(folder)
        finally:
            _under_way.pop(part, None)
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _fetch_into(folder: Path, model: HubModel, limits: SourceLimits, progress: Progress | None) -> None:
    visit, done, total = model.visit(), 0, sum(model.sizes.values())
    left = min(_SMALL_BYTES, limits.fetch_bytes)
    for name in _SMALL_FILES:
        if name in model.files:
            small = visit.file(name, model.commit, left)
            (folder / name).write_bytes(small)
            left -= len(small)
    for name, size in model.sizes.items():
        with (folder / name).open("wb") as file:
            for start in range(0, size, _PIECE):
                stop = min(start + _PIECE, size)
                file.write(visit.span(name, model.commit, start, stop))
                done += stop - start
                if progress is not None:
                    progress(done, total)


def _make_room(cache: Path, most: int) -> None:
    """Delete folders until the others have at most ``most`` bytes.

    The least recently used go first, and remains of fetches whose process has ended. Fetches under way stay.
    """
    oldest = time.time() - ABANDONED_SECONDS
    used = {folder: folder.stat().st_mtime for folder in cache.iterdir() if folder.is_dir()}
    folders = [f for f in used if not f.name.startswith(PART) or used[f] < oldest]
    sizes = {folder: sum(f.stat().st_size for f in folder.iterdir()) for folder in folders}
    total = sum(sizes.values())
    for folder in sorted(folders, key=used.__getitem__):
        if total <= most:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= sizes[folder]
