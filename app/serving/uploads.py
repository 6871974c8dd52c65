"""Store of uploads and results: a folder of this process, swept while it runs, removed at its end."""

from __future__ import annotations

import atexit
import hashlib
import heapq
import logging
import math
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

from gradio import route_utils, routes
from gradio.routes import upload_fn

from app import limits

PREFIX = "quantization-explorer-"
ABANDONED_SECONDS = 600
"""An upload that has got no byte for so long was broken off."""
OPENED = "opened"
"""Folder of the store with the file that the page was started on; kept as long as the page runs."""


def make_store() -> Path:
    """A fresh folder of this process for uploads, in ``GRADIO_TEMP_DIR`` or the system's folder for temporary
    files: what else lies there is not ours to delete. Set for Gradio, which reads the variable when it needs
    it. Folders of processes that are gone are removed, this one at the end: a process holds a lock of its
    folder, because its number may be another's in another container.
    """
    parent = Path(os.environ.get("GRADIO_TEMP_DIR") or tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    for folder in parent.glob(f"{PREFIX}*"):
        if re.match(rf"{PREFIX}\d+-", folder.name) and (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    fresh = Path(tempfile.mkdtemp(prefix=".", dir=parent))
    _lock(fresh)  # before it has a name that others look for; until the process ends
    store = fresh.rename(parent / f"{PREFIX}{os.getpid()}-{fresh.name[1:]}")
    os.environ["GRADIO_TEMP_DIR"] = routes.DEFAULT_TEMP_DIR = str(store)
    atexit.register(shutil.rmtree, store, ignore_errors=True)
    return store


def remove_store() -> None:
    """Remove the folder in use, for a process that ends at once. It is renamed first: threads that still
    write for visitors find no folder."""
    folder = store()
    os.environ["GRADIO_TEMP_DIR"] = os.devnull
    with suppress(FileNotFoundError):
        shutil.rmtree(folder.rename(f"{folder}-gone"), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)  # of who made it anew


def removed() -> bool:
    """True once the folder has been removed: the process ends."""
    return os.environ.get("GRADIO_TEMP_DIR") == os.devnull


def _lock(folder: Path) -> int | None:
    """The descriptor that holds the lock of a folder; None if a process of any container has it, and on a
    system without such locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # another user's, or gone
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def store() -> Path:
    """The folder in use."""
    return Path(os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio")


def named_in(folder: Path, text: str) -> Path | None:
    """The file below ``folder`` that ``text`` is the absolute path of, as it is written: no link is followed.
    (``/proc/self/fd/7`` would lead to what another visitor uploads.)"""
    root, named = folder.resolve(), Path(text)
    for start in (root, folder) if ".." not in named.parts else ():
        if named.is_relative_to(start):
            path = root / named.relative_to(start)
            with suppress(OSError, ValueError):  # no path
                return path if path.is_file() and path.resolve() == path else None
    return None


def of_store(text: str) -> Path | None:
    """The finished upload or result that ``text`` is the path of; None for everything else, also for what is
    being written, in a visitor's folder itself or the store's, and on a public page for its owner's file."""
    found = named_in(store(), text)
    if found and limits.current().hosted and found.is_relative_to(store().resolve() / OPENED):
        return None
    begun = found is None or found.parent == store().resolve() or found.parent.name.startswith(VISITOR)
    return None if begun else found


def of_visitor(path: str) -> Path:
    """The upload that a browser names by the path that it got for it, or the file that the page was started
    on. ``ValueError`` in words for every other path, whether anything is there or not."""
    found = of_store(path)
    if not found:
        hours = limits.current().keep_seconds / 3600
        raise ValueError(f"this file is not here: uploads are kept {hours:.0f} h at most; drop it in again")
    return found


AHEAD_BYTES = 8 << 20
"""Maximum space reserved for an upload's announced size, before that much has arrived."""
LEAST_BYTES = 1 << 20
"""Minimum size that a file counts as, because every file costs work, and time when the page ends."""


FULL = "the store is full, and no visitor has more files in it than you; try again in some minutes"
VISITOR = "visitor-"
"""Begins the name of each visitor's folder of the store: what lies directly in it is an upload on its way."""
_KEY = secrets.token_bytes(32)


def visitor_folder(address: str) -> Path:
    """The folder of the store for a visitor's uploads and results, under a name that nobody guesses; the
    store itself for "", which is nobody's address."""
    return store() / _name(address)


def _name(address: str) -> str:
    return address and VISITOR + hashlib.blake2b(address.encode(), key=_KEY, digest_size=16).hexdigest()


def stored_files() -> list[tuple[float, int, str]]:
    """Time of its last change, bytes on the disk (at least ``LEAST_BYTES``) and path of each upload and
    result, the newest first."""
    found = []
    for folder, _, names in os.walk(store()):  # several times as fast as rglob
        for name in names:
            with suppress(OSError):  # gone in between
                about = os.lstat(path := f"{folder}{os.sep}{name}")
                found.append((about.st_mtime, max(about.st_size, LEAST_BYTES), path))
    return sorted(found, reverse=True)


class FullError(ValueError):
    """The store has no space for an upload or a result."""


class Upload:
    """An upload in progress, of an address. Space is reserved for its announced and unused size: at first at
    most ``AHEAD_BYTES``, then as much again as has arrived, so an announcement alone reserves little. Bytes
    beyond that count at once. ``announced``: bytes; None, if it does not say."""

    def __init__(self, address: str, announced: int | None) -> None:
        self.address, self._left, self._brought = address, announced or 0, 0
        self.files: list[Any] = []
        """Where its parts are written before they have their names."""

    @property
    def held(self) -> int:
        """Bytes of room that are held for it."""
        return min(self._left, max(AHEAD_BYTES, self._brought))

    @property
    def counted(self) -> int:
        """Bytes that have arrived, and those of the room that is held."""
        return self._brought + self.held

    def __enter__(self) -> Upload:
        _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:  # of an upload that was broken off; others are closed and have their names
            with suppress(OSError):  # what could not be written
                file.close()
            Path(file.name).unlink(missing_ok=True)
        with _LOCK:
            _open.discard(self)
            _Count.arrived[_name(self.address)] += self._brought
            self._brought = 0

    def add(self, count: int) -> bool:
        """Count newly arrived bytes; True if they fit."""
        with _LOCK:
            self._left, self._brought = max(0, self._left - count), self._brought + count
            return _Count.held().total() <= limits.current().store_bytes

    def find_room(self) -> None:
        """``make_room`` for what has not arrived; from then on room is held for it."""
        make_room(self.address, self._left - (self.held if self in _open else 0), self)


class _Count:
    """Bytes in the store by visitor's folder at the last count, and those of uploads that ended since; the
    finished files then, each visitor's oldest last; the time of that count (monotonic), and its duration in
    seconds."""

    stored, arrived = Counter[str](), Counter[str]()
    files: ClassVar[dict[str, list[tuple[int, str]]]] = {}
    at, took = -math.inf, 0.0

    @classmethod
    def held(cls) -> Counter[str]:
        """Bytes that are stored or reserved, by visitor's folder."""
        found = cls.stored + cls.arrived
        for upload in _open:
            found[_name(upload.address)] += upload.counted
        return found


_CURRENT: ContextVar[Upload | None] = ContextVar("upload", default=None)


def _file_of_part(**options: Any) -> Any:
    """Gradio's temporary file for a part of an upload, which leaves it where the upload is broken off."""
    file = tempfile.NamedTemporaryFile(**options)  # noqa: SIM115
    if (upload := _CURRENT.get()) is not None:
        upload.files.append(file)
    return file


async def _upload_of_visitor(request: Any, folder: Any, *rest: Any, **options: Any) -> Any:
    """Gradio's upload, into the folder of its visitor."""
    upload = _CURRENT.get()
    return await upload_fn(request, visitor_folder(upload.address) if upload else folder, *rest, **options)


route_utils.NamedTemporaryFile = _file_of_part  # type: ignore[assignment]
routes.upload_fn = _upload_of_visitor  # type: ignore[assignment]
_open = set[Upload]()
_LOCK, _COUNTING = threading.Lock(), threading.Lock()
"""For the counts; and held as long as the store is counted, by one at a time."""


def open_uploads() -> int:
    """Number of uploads in progress."""
    return len(_open)


def _count() -> None:
    """Count what the store holds, unless that was done just now: a tenth of the time at most goes into it.
    An upload on its way counts by itself, whatever of it is on the disk. What ends meanwhile may count twice,
    and never not at all."""
    start = time.monotonic()
    if start - _Count.at < 10 * _Count.took:
        return
    with _LOCK:
        before = _Count.arrived.copy()
        begun = {file.name for upload in _open for file in upload.files}
    stored, files = Counter[str](), defaultdict[str, list[tuple[int, str]]](list)
    for _, size, path in stored_files():
        if path in begun:
            continue
        first, _, others = path[len(str(store())) + 1 :].partition(os.sep)
        name = first if first.startswith(VISITOR) else ""
        stored[name] += size
        if name and os.sep in others:
            files[name].append((size, path))
    with _LOCK:
        _Count.stored, _Count.files = stored, files
        _Count.arrived -= before
    _Count.at = time.monotonic()
    _Count.took = _Count.at - start


def make_room(address: str, more: int = 0, upload: Upload | None = None) -> None:
    """Find room for ``more`` bytes of an address, and hold it for ``upload``. Of a full store, the oldest
    files of the address that holds most are deleted. ``FullError`` in a visitor's words if neither this one
    nor any that holds more than it would has a finished file."""
    with _COUNTING:
        _count()
        missing = _free(_name(address), more)
        if missing > 0 and _Count.arrived.keys() - _Count.files.keys():  # of one, all files came since then
            _Count.at = -math.inf
            _count()
            missing = _free(_name(address), more)
        if upload is not None and missing <= 0:
            with _LOCK:
                _open.add(upload)
    if missing > 0:
        raise FullError(FULL)


def _free(mine: str, more: int) -> int:
    """Delete files of the last count until ``more`` bytes of a visitor's folder have room, or none may go;
    returns the bytes that are missing, if any."""
    with _LOCK:
        held = _Count.held()
    missing = held.total() + more - limits.current().store_bytes
    held[mine] += more
    most = [(-held[name], name != mine, name) for name in _Count.files]
    heapq.heapify(most)
    freed = Counter[str]()
    while missing > 0 and most and (most[0][2] == mine or -most[0][0] > held[mine]):
        _, other, name = most[0]
        size, path = _Count.files[name].pop()
        Path(path).unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            Path(path).parent.rmdir()
        held[name], missing, freed[name] = held[name] - size, missing - size, freed[name] + size
        if _Count.files[name]:
            heapq.heapreplace(most, (-held[name], other, name))
        else:
            heapq.heappop(most)
            del _Count.files[name]
    with _LOCK:
        _Count.stored -= freed
    return missing


def sweep(now: float) -> int:
    """Delete uploads that were broken off (beside the folders of finished ones) and finished files
    older than ``Limits.keep_seconds``; returns how many files. ``now``: seconds since the epoch."""
    gone, folder = 0, store()
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        if path.is_relative_to(folder / OPENED):
            continue
        begun = path.parent == folder or path.parent.name.startswith(VISITOR)
        longest = ABANDONED_SECONDS if begun else limits.current().keep_seconds
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
