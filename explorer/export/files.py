"""Writing files so that a reader finds a whole file or none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Temporary name next to ``path``, renamed to ``path`` at the end of the block, and removed after an
    error. It gets the mode that umask gives. ``OSError`` if ``path`` exists and is not a regular file."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no regular file; it is not replaced")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            mode = os.fstat(file.fileno()).st_mode
        yield partial
        partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_tensors(tensors: Mapping[str, Tensor], path: str | Path, about: Mapping[str, str]) -> None:
    """Write ``tensors`` with the texts ``about`` as metadata, under another name first.

    ``OSError`` if the path cannot be written, the disk is full, or the path is not a regular file; an
    existing file is then untouched.
    """
    with replacing(path) as partial:
        try:
            save_file(dict(tensors), partial, dict(about))
        except (SafetensorError, OSError) as error:
            raise OSError(f"{path} cannot be written: {error}") from error
