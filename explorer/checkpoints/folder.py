"""Write folders and files of tensors that appear whole or not at all."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from explorer.paths import check_new_folder
from explorer.sources.index import INDEX
from explorer.sources.safetensors_header import NAMES, PREFIX

SINGLE = "model.safetensors"
_METADATA = {"format": "pt"}
_ALIGNED = 8
"""Tensors begin at multiples of this, so that readers may map them. Those of other lengths come last."""


@contextmanager
def whole_folder(out: Path, needed: int = 0) -> Iterator[Path]:
    """Yield a temporary folder next to ``out``, which becomes ``out`` at the end, and is removed after an
    error or a stop. ``ValueError`` if ``out`` exists, ``OSError`` if it cannot be written or its disk has
    fewer than ``needed`` bytes."""
    partial = _begun(out)
    try:
        check_space(out, needed)
        yield partial
        partial.replace(out)
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_writable(out: Path) -> None:
    """``ValueError`` if ``out`` exists, ``OSError`` if it cannot be made."""
    _begun(out).rmdir()


def _begun(out: Path) -> Path:
    """Make the temporary folder, and remove those that killed processes left."""
    check_new_folder(out)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    for left in out.parent.glob(f".{glob.escape(out.name)}.*.partial"):
        if left == partial or not _runs(left.name.split(".")[-2]):
            shutil.rmtree(left, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(out, error) from error
    return partial


def _unwritable(out: Path, error: OSError) -> OSError:
    return OSError(error.errno, f"{out} cannot be written: {error.strerror}") if error.strerror else error


def _runs(process: str) -> bool:
    """False if it is known that no process of this number runs on this machine."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        pass
    return True


def write_beside(folder: Path, texts: Mapping[str, str]) -> None:
    """Write ``texts`` into ``folder``: name of a file -> its text."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def check_space(out: Path, needed: int) -> None:
    """``OSError`` if the disk of ``out`` has fewer than ``needed`` bytes."""
    above = next(folder for folder in Path(out).absolute().parents if folder.exists())
    free = shutil.disk_usage(above).free
    if free < needed:
        raise OSError(f"{out} needs at least {needed:,} bytes; the disk has {free:,} left")


def room_of(header_bytes: int) -> int:
    """The offset of the first tensor in a file of ``Shards``."""
    return PREFIX + -(-header_bytes // _ALIGNED) * _ALIGNED


class Shards:
    """Safetensors files of a folder, written tensor by tensor, with one in memory at a time.

    A file begins with room for its header (at most ``header_bytes``), which is written last. Several files
    are numbered, and listed in ``model.safetensors.index.json``.
    """

    def __init__(self, folder: Path, most_bytes: float, header_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self._room = room_of(header_bytes)
        self._files: list[list[str]] = []
        self._bytes = 0
        self._open()

    def _open(self) -> None:
        self._entries: dict[str, dict[str, object]] = {}
        self._late: list[tuple[str, Tensor]] = []
        self._end, self._taken = 0, 0
        self._file = (self._folder / f"{len(self._files)}.part").open("wb")
        self._file.write(b" " * self._room)

    def add(self, name: str, tensor: Tensor) -> None:
        """Write a tensor, into a new file if this one would become too large."""
        size = tensor.numel() * tensor.element_size()
        if self._taken and self._taken + size > self._most:
            self._close()
            self._open()
        self._taken += size
        if size % _ALIGNED:
            self._late.append((name, tensor))
        else:
            self._write(name, tensor)

    def _write(self, name: str, tensor: Tensor) -> None:
        flat = tensor.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
        raw = flat.view(torch.uint8).numpy()
        span = [self._end, self._end + raw.size]
        kind, shape = NAMES[tensor.dtype], list(tensor.shape)
        self._entries[name] = {"dtype": kind, "shape": shape, "data_offsets": span}
        self._file.write(raw.data)
        self._end = span[1]

    def _close(self) -> None:
        for name, tensor in sorted(self._late, key=lambda pair: -pair[1].element_size()):
            self._write(name, tensor)
        header = json.dumps({"__metadata__": _METADATA, **self._entries}, separators=(",", ":")).encode()
        length = self._room - PREFIX
        if len(header) > length:
            raise ValueError(f"the header takes {len(header):,} bytes, {length:,} were kept for it")
        with self._file:
            self._file.seek(0)
            self._file.write(length.to_bytes(PREFIX, "little") + header.ljust(length))
        self._files.append(list(self._entries))
        self._bytes += self._end

    def close(self) -> None:
        """Finish the last file, name all files, and write the index if there are several."""
        self._close()
        count = len(self._files)
        names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
        names = names if count > 1 else [SINGLE]
        for number, name in enumerate(names):
            (self._folder / f"{number}.part").rename(self._folder / name)
        if count > 1:
            where = {key: name for name, keys in zip(names, self._files, strict=True) for key in keys}
            index = {"metadata": {"total_size": self._bytes}, "weight_map": where}
            (self._folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
