"""Where uploads and results are kept: a folder of this process, swept while it runs, removed at its end."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

from app import limits

PREFIX = "quantization-explorer-"
ABANDONED_SECONDS = 600
"""An upload that has got no byte for so long was broken off."""


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


def _alive(process: int) -> bool:
    """Whether a process of this number runs, of whomever."""
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


def stored_bytes() -> int:
    """What all uploads and results take on the disk."""
    return sum(_size(path) for path in store().rglob("*"))


class FullError(Exception):
    """The store has no room for what an upload brings."""


class Upload:
    """An upload that is on its way: the room that it announced and has not used yet is kept for it, and what
    arrives beyond that counts at once. ``announced``: bytes; None, if it does not say."""

    def __init__(self, announced: int | None) -> None:
        self._left = announced or 0

    def __enter__(self) -> Upload:
        """``FullError`` if it would not fit beside what is there and what others have announced."""
        if _Count.stored + _Count.arrived + _promised() + self._left > limits.current().store_bytes:
            raise FullError
        _open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _open.remove(self)

    def add(self, count: int) -> None:
        """So many more bytes have arrived. ``FullError`` if they do not fit."""
        self._left = max(0, self._left - count)
        _Count.arrived += count
        if _Count.stored + _Count.arrived + _promised() > limits.current().store_bytes:
            raise FullError


class _Count:
    """What the store held when it was last counted, and what has arrived since."""

    stored, arrived = 0, 0


_open: list[Upload] = []


def _promised() -> int:
    return sum(upload._left for upload in _open)


def open_uploads() -> int:
    """How many uploads are on their way."""
    return len(_open)


def count() -> None:
    """Count what the store holds. What arrives meanwhile may count twice, and never not at all."""
    before = _Count.arrived
    stored = stored_bytes()
    _Count.stored, _Count.arrived = stored, _Count.arrived - before


def check_room() -> None:
    """``ValueError`` in a visitor's words if no result may be written any more."""
    if stored_bytes() > limits.current().store_bytes:
        raise ValueError("the store for uploads and results is full; try again in some minutes")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # gone in between
        return 0


def sweep(now: float) -> int:
    """Delete uploads that were broken off (files beside the folders of finished ones) and finished files
    older than ``Limits.keep_seconds``; returns how many files. ``now``: seconds since the epoch."""
    gone, folder = 0, store()
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
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
                logging.getLogger("explorer").warning("the store for uploads was not swept: %s", error)
            time.sleep(every)

    threading.Thread(target=run, daemon=True, name="sweep").start()
