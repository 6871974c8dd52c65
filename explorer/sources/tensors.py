"""Tensors in files: what is inside, from the headers alone, and one tensor read on demand.

    open_tensors("x.safetensors") -> TensorSource
        .infos                       names, shapes, dtypes; nothing else has been read
        .read("w", max_elements=…)   that tensor's bytes only
        .matrix("w")                 the same as float32 [rows, cols], NaN and Inf included

Files are untrusted: nothing here unpickles objects, trusts a claimed size, or reads what was not asked for.
Every refusal is a ``SourceError`` that says what was wrong and what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from explorer.progress import Progress
from explorer.sources.base import SourceError, TensorInfo, TensorSource, refused
from explorer.sources.coded import CodedSource
from explorer.sources.csv_file import open_csv
from explorer.sources.matrix import MATRIX_RULE, Matrix, as_matrix, matrix_shape
from explorer.sources.numpy_file import NpyFile, NpzFile
from explorer.sources.picture_file import PictureFile
from explorer.sources.safetensors_file import SafetensorsFile
from explorer.sources.source_limits import LOCAL, PICKLED, SUFFIXES, SourceLimits, within
from explorer.sources.torch_file import TorchFile

__all__ = [
    "MATRIX_RULE", "SUFFIXES", "Matrix", "Progress", "SourceError", "TensorInfo", "TensorSource", "as_matrix",
    "matrix_shape", "open_tensors",
]  # fmt: skip

_READERS: dict[str, Callable[[Path, str, SourceLimits], TensorSource]] = {
    ".safetensors": SafetensorsFile,
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".pt": TorchFile,
    ".pth": TorchFile,
    ".csv": open_csv,
    ".png": PictureFile,
    ".jpg": PictureFile,
    ".jpeg": PictureFile,
}


def open_tensors(path: str | Path, name: str | None = None, limits: SourceLimits = LOCAL) -> TensorSource:
    """Open a tensor file by its suffix; ``name`` replaces the file's name in messages.

    Raises ``SourceError`` for a suffix that ``limits`` excludes, a missing file, and a file that does not
    match its suffix.
    """
    path, limits = Path(path), within(limits)
    origin = name or path.name
    suffix = path.suffix.lower()
    if suffix not in limits.suffixes:
        accepted = f"accepted are {', '.join(limits.suffixes)}"
        if suffix in PICKLED:
            pickles = "they hold pickles; save as .safetensors"
            raise SourceError(f"{origin}: {suffix} files are not read here, {pickles} ({accepted})")
        raise SourceError(f"{origin}: {suffix or 'no'} suffix; {accepted}")
    with refused(f"{origin} is not a readable {suffix} file"):
        if not path.is_file():
            raise SourceError(f"{origin}: no such file")
        source = _READERS[suffix](path, origin, limits)
        if isinstance(source, CodedSource):
            source.find_codes()
        return source
