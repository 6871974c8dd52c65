"""Store of uploads and results: a folder of this process, swept while it runs, removed at its end."""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from gradio import route_utils

from app import limits

PREFIX = "quantization-explorer-"
ABANDONED_SECONDS = 600
"""An upload that has got no byte for so long was broken off."""
OPENED = "opened"
"""Folder of the store with the file that the page was started on; kept as long as the page runs."""


def make_store() -> Path:
    """A fresh folder of this process for uploads, in ``GRADIO_TEMP_DIR`` or the system's folder for temporary
    files: what else lies there is not ours to delete. Set for Gradio, which reads the variable when it needs
    it. Folders of processes that are gone are removed, this one at the end.
    """
    parent = Path(os.environ.get("GRADIO_TEMP_DIR") or tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    for folder in parent.glob(f"{PREFIX}*"):
        match = re.match(rf"{PREFIX}(\d+)-", folder.name)
        if match and not _alive(int(match.group(1))):
            shutil.rmtree(folder, ignore_errors=True)
    store = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    os.environ["GRADIO_TEMP_DIR"] = str(store)
    atexit.register(shutil.rmtree, store, ignore_errors=True)
    return store


def remove_store() -> None:
    """Remove the folder in use, for a process that ends at once."""
    shutil.rmtree(store(), ignore_errors=True)


def _alive(process: int) -> bool:
    """True if a process with this number runs, of any user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def store() -> Path:
    """The folder in use."""
    return Path(os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio")


def named_in(folder: Path, text: str) -> Path | None:
    """The file below ``folder`` that ``text`` is the absolute path of, as it is written: no link is followed.
    (``/proc/self/fd/7`` would lead to what another visitor uploads.)"""
    root, named = folder.resolve(), Path(os.path.normpath(text))
    for start in (root, folder):
        if named.is_relative_to(start):
            path = root / named.relative_to(start)
            with suppress(OSError, ValueError):  # no path
                return path if path.is_file() and path.resolve() == path else None
    return None


def of_store(text: str) -> Path | None:
    """The finished upload or result that ``text`` is the path of; None for everything else."""
    found = named_in(store(), text)
    return found if found and found.parent != store().resolve() else None  # there it is being written


def of_visitor(path: str) -> Path:
    """The upload that a browser names by the path that it got for it, or the file that the page was started
    on. ``ValueError`` in words for every other path, whether anything is there or not."""
    found = of_store(path)
    if not found or (limits.current().hosted and found.is_relative_to(store().resolve() / OPENED)):
        kept = limits.current().keep_seconds / 3600
        raise ValueError(f"this file is not here: uploads are kept for {kept:.0f} h; drop it in again")
    return found


AHEAD_BYTES = 8 << 20
"""Maximum space reserved for an upload's announced size, before that much has arrived."""
LEAST_BYTES = 1 << 16
"""Minimum size that a file counts as, because every file costs work."""


def stored_bytes() -> int:
    """Disk space of all uploads and results, at least ``LEAST_BYTES`` each."""
    return sum(_size(path) for path in store().rglob("*"))


class FullError(Exception):
    """The store has no space for an upload."""


class Upload:
    """An upload in progress. Space is reserved for its announced and unused size: at first at most
    ``AHEAD_BYTES``, then as much again as has arrived, so an announcement alone reserves little. Bytes
    beyond that count at once. ``announced``: bytes; None, if it does not say."""

    def __init__(self, announced: int | None) -> None:
        self._left, self._brought = announced or 0, 0
        self.files: list[Any] = []
        """Where its parts are written before they have their names."""

    @property
    def held(self) -> int:
        """Bytes of room that are held for it."""
        return min(self._left, max(AHEAD_BYTES, self._brought))

    def __enter__(self) -> Upload:
        """``FullError`` if its announced size does not fit in the free, unreserved space."""
        with _LOCK:
            if _Count.used() + self._left > limits.current().store_bytes:
                raise FullError
            _open.append(self)
        _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            _open.remove(self)
        for file in self.files:  # of an upload that was broken off; others are closed and have their names
            with suppress(OSError):  # what could not be written
                file.close()
            Path(file.name).unlink(missing_ok=True)

    def add(self, count: int) -> None:
        """Count newly arrived bytes. ``FullError`` if they do not fit."""
        with _LOCK:
            self._left, self._brought = max(0, self._left - count), self._brought + count
            _Count.arrived += count
            if _Count.used() > limits.current().store_bytes:
                raise FullError


class _Count:
    """Size of the store at the last count, and the bytes arrived since; the time of that count
    (monotonic), and its duration in seconds."""

    stored, arrived = 0, 0
    at, took = -math.inf, 0.0

    @classmethod
    def used(cls) -> int:
        return cls.stored + cls.arrived + sum(upload.held for upload in _open)


_CURRENT: ContextVar[Upload | None] = ContextVar("upload", default=None)


def _file_of_part(**options: Any) -> Any:
    """Gradio's temporary file for a part of an upload, which leaves it where the upload is broken off."""
    file = tempfile.NamedTemporaryFile(**options)  # noqa: SIM115
    if (upload := _CURRENT.get()) is not None:
        upload.files.append(file)
    return file


route_utils.NamedTemporaryFile = _file_of_part  # type: ignore[assignment]
_open: list[Upload] = []
_LOCK, _COUNTING = threading.Lock(), threading.Lock()
"""For the counts; and held as long as the store is counted, by one at a time."""


def open_uploads() -> int:
    """Number of uploads in progress."""
    return len(_open)


def count() -> None:
    """Count what the store holds, unless that was done just now: a tenth of the time at most goes into it.
    What arrives meanwhile may count twice, and never not at all."""
    with _COUNTING:
        start = time.monotonic()
        if start - _Count.at < 10 * _Count.took:
            return
        with _LOCK:
            before = _Count.arrived
        stored = stored_bytes()
        with _LOCK:
            _Count.stored, _Count.arrived = stored, _Count.arrived - before
        _Count.at = time.monotonic()
        _Count.took = _Count.at - start


def check_room() -> None:
    """``ValueError`` in a visitor's words if no result may be written any more."""
    count()
    if _Count.stored > limits.current().store_bytes:
        raise ValueError("the store for uploads and results is full; try again in some minutes")


def _size(path: Path) -> int:
    try:
        return max(path.stat().st_size, LEAST_BYTES) if path.is_file() else 0
    except OSError:  # gone in between
        return 0


def sweep(now: float) -> int:
    """Delete uploads that were broken off (files beside the folders of finished ones) and finished files
    older than ``Limits.keep_seconds``; returns how many files. ``now``: seconds since the epoch."""
    gone, folder = 0, store()
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        if path.is_relative_to(folder / OPENED):
            continue
        longest = ABANDONED_SECONDS if path.parent == folder else limits.current().keep_seconds
        try:
            if path.is_file() and path.stat().st_mtime < now - longest:
                path.unlink()
                gone += 1
            elif path.is_dir() and path.stat().st_mtime < now - ABANDONED_SECONDS:
                path.rmdir()  # refused where something is in it
        except OSError:  # not empty, or another sweep, or its owner, was first
            continue
    return gone


def sweep_forever(every: float = 60) -> None:
    """``sweep`` in the background until the process ends."""

    def run() -> None:
        while True:
            try:
                sweep(time.time())
            except OSError as error:
                logging.getLogger("explorer").warning("the store for uploads was not cleaned: %s", error)
            time.sleep(every)

    threading.Thread(target=run, daemon=True, name="sweep").start()
