"""Sandboxed reader for files of torch.save.

This file is run by itself (``python -I -S pickle_reader.py SECONDS BYTES TENSORS PICKLE``, the file on
standard input), with nothing but the standard library. It limits its own processor time and memory, replaces
every global by a stand-in, and prints names, shapes and places of the dense tensors as JSON. It makes no
object of the file and reads no tensor's bytes.

``torch.load(weights_only=True, mmap=True)`` executes nothing either, but is not bounded: of the files in
tests/sources/hostile.py, bytearray.pt makes it take 2 GB and deflated-pickle.pt 1 GB. A process of its own
for it would import torch within the bounds.

Formats: the archive of torch 1.6 and later (data.pkl and a record for each storage, none compressed), and
the older stream of pickles (https://docs.pytorch.org/docs/stable/notes/serialization.html and
``torch.serialization._legacy_load``).
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

MAGIC = 0x1950A86A20F9469CFC6C
DEEPEST = 64
TYPES = {"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
         "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
         "ComplexFloat": "complex64", "ComplexDouble": "complex128",
         "QInt32": "qint32", "QInt8": "qint8", "QUInt8": "quint8", "QUInt4x2": "quint4x2",
         "QUInt2x4": "quint2x4"}  # fmt: skip
SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
         "int64": 8, "int32": 4, "int16": 2, "int8": 1,
         "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8,
         "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
         "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
         "qint32": 4, "qint8": 1, "quint8": 1, "quint4x2": 1, "quint2x4": 1}  # fmt: skip


class Refusal(ValueError):  # noqa: N818
    """Content that is refused; the text names it."""


class Global(NamedTuple):
    """Stand-in for an import of a pickle: a storage's class, or a dtype."""

    module: str
    name: str


class Storage(NamedTuple):
    """A storage that a tensor lies in: its key, and the dtype of its elements (None for bytes)."""

    key: str
    dtype: str | None


class Dense(NamedTuple):
    """A strided tensor; ``offset`` and ``stride`` count elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def main(seconds: int, memory: int, tensors: int, pickle_bytes: int) -> dict[str, Any]:
    """Return the output: ``{"tensors": […]}``, or ``{"refused": why}``."""
    import resource  # not on Windows, where this module is imported for ``Bounded``

    try:
        for what, most in (
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, 16),
        ):
            resource.setrlimit(what, (most, most))
        file = sys.stdin.buffer
        read = _read_archive if zipfile.is_zipfile(file) else _read_stream
        file.seek(0)
        return {"tensors": list(read(file, tensors, pickle_bytes))}
    except Refusal as refusal:
        return {"refused": str(refusal)}
    except MemoryError:
        return {"refused": f"it needs more than {memory:,} bytes to be unpickled"}
    except Exception as error:  # an unpickler raises whatever a malformed file makes it raise
        return {"refused": f"malformed ({type(error).__name__})"}


class Unpickler(pickle.Unpickler):
    """An unpickler that imports nothing: globals are stand-ins, others than torch's own are refused.

    ``widths`` has the bytes per element of each storage that was referred to.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.widths: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # its name in protocol 2
        if (made := FUNCTIONS.get(f"{module}.{name}")) is not None:
            return made
        if module in ("torch", "torch.storage", "torch.cuda") or module.startswith("torch.nn.parameter"):
            return Global(module, name)
        raise Refusal(f"it holds the pickled object {ascii(module + '.' + name)[1:-1][:80]}")

    def persistent_load(self, identity: Any) -> Storage:
        kind, storage, key, *_ = identity
        if kind != "storage" or not isinstance(storage, Global) or not isinstance(key, str):
            raise Refusal("it refers to something that is no storage")
        dtype = TYPES.get(storage.name.removesuffix("Storage"))
        if dtype is None and storage.name != "UntypedStorage":
            raise Refusal(f"it holds a storage of an unknown kind, {ascii(storage.name)[1:-1][:40]}")
        self.widths[key] = 1 if dtype is None else SIZES[dtype]
        return Storage(key, dtype)


def _dense(storage: Storage, dtype: str, offset: int, shape: Any, stride: Any, metadata: Any) -> Dense | None:
    if dtype not in SIZES or (metadata and "neg" in metadata):
        return None
    return Dense(storage, dtype, offset, tuple(shape), tuple(stride))


def _tensor_v2(storage: Storage, offset: int, shape: Any, stride: Any, *more: Any) -> Dense | None:
    _grad, _hooks, *metadata = more
    return _dense(storage, storage.dtype or "", offset, shape, stride, *(metadata or [None]))


def _tensor_v3(storage: Storage, offset: int, shape: Any, stride: Any, *more: Any) -> Dense | None:
    _grad, _hooks, dtype, *metadata = more
    return _dense(storage, dtype.name, offset, shape, stride, *(metadata or [None]))


def _first(value: Any, *_: Any) -> Any:
    return value


def _applied(function: Callable[..., Any], _kind: Any, arguments: Any, _state: Any) -> Any:
    if function not in (_tensor_v2, _tensor_v3, _first):
        raise Refusal("it rebuilds a tensor in an unknown way")
    return function(*arguments)


def _nothing(*_: Any) -> None:
    """Replace an object other than a dense CPU tensor, which is left out."""


def _text_as_bytes(text: Any = "", encoding: Any = "latin1") -> bytes:
    """Return bytes of the file. A number, of which Python would make as many zeros, is refused."""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refusal("it makes bytes out of something that is no text")
    return text.encode("latin1")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": OrderedDict,
    "torch.Size": tuple,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _applied,
    **dict.fromkeys(
        ("torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_qtensor",
         "torch._utils._rebuild_nested_tensor", "torch._utils._rebuild_meta_tensor_no_storage",
         "torch.serialization._get_layout", "torch.device", "collections.Counter", "builtins.set",
         "builtins.complex"),
        _nothing,
    ),
    "builtins.bytearray": _text_as_bytes,
    "_codecs.encode": _text_as_bytes,
}  # fmt: skip
"""Functions called in files of torch.save, with their replacements."""


def _read_archive(file: IO[bytes], tensors: int, pickle_bytes: int) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(Bounded(file, pickle_bytes)) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in records:
            raise Refusal("the archive has no data.pkl")
        for info in records.values():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise Refusal("the archive is compressed, which torch.save does not do")
        if records["data.pkl"].file_size > pickle_bytes:
            raise Refusal(f"its data.pkl has more than {pickle_bytes:,} bytes")
        if "byteorder" in records and archive.read(records["byteorder"]) != b"little":
            raise Refusal("it is not little-endian")
        loaded = Unpickler(io.BytesIO(archive.read(records["data.pkl"]))).load()

    def place(storage: Storage) -> tuple[int, int]:
        info = records[f"data/{storage.key}"]
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        return info.header_offset + 30 + name + extra, info.file_size

    return _described(loaded, place, tensors)


class Bounded:
    """File for ``zipfile`` that limits its reads: ``zipfile`` would read a list of members of any claimed
    length at once.

    ``Refusal`` for more than ``most`` bytes.
    """

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._most = file, most
        self.seek, self.tell, self.close = file.seek, file.tell, lambda: None

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size > self._most:
            raise Refusal(f"it claims a record of {size:,} bytes; accepted are up to {self._most:,}")
        return self._file.read(size)


def _read_stream(file: IO[bytes], tensors: int, pickle_bytes: int) -> Iterator[dict[str, Any]]:
    if Unpickler(file).load() != MAGIC or Unpickler(file).load() != 1001:
        raise Refusal("it is neither an archive nor a stream of torch.save")
    if not Unpickler(file).load().get("little_endian"):
        raise Refusal("it is not little-endian")
    reader = Unpickler(file)
    loaded = reader.load()
    places: dict[str, tuple[int, int]] = {}
    for key in Unpickler(file).load():
        (count,) = struct.unpack("<q", file.read(8))
        if count < 0 or key not in reader.widths:
            raise Refusal("it holds storages that no tensor of it lies in")
        size = count * reader.widths[key]
        places[key] = file.tell(), size
        file.seek(size, 1)
    return _described(loaded, lambda storage: places[storage.key], tensors)


def _described(
    loaded: Any, place: Callable[[Storage], tuple[int, int]], tensors: int
) -> Iterator[dict[str, Any]]:
    for name, dense in _tensors_of(loaded, tensors):
        start, size = place(dense.storage)
        whole = all(type(n) is int for n in (dense.offset, *dense.shape, *dense.stride))
        if not whole or min((0, dense.offset, *dense.shape, *dense.stride)) < 0:
            raise Refusal("a tensor's shape, strides or offset are not whole numbers from 0")
        yield {
            "name": name,
            "dtype": dense.dtype,
            "start": start + dense.offset * SIZES[dense.dtype],
            "stop": start + size,
            "shape": dense.shape,
            "stride": dense.stride,
        }


def _tensors_of(loaded: Any, tensors: int) -> Iterator[tuple[str, Dense]]:
    """Find the dense tensors in nested dicts and lists, by their dotted names."""
    visits = found = 0
    waiting: list[tuple[str, Any, int]] = [("", loaded, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        visits += 1  # of an object once for each path to it: a few bytes can be many paths
        if visits > 20 * tensors or depth > DEEPEST:
            raise Refusal(f"it is nested deeper than {DEEPEST} or has too many entries")
        if isinstance(value, Dense):
            found += 1
            if found > tensors:
                raise Refusal(f"it holds more than {tensors:,} tensors")
            yield name or "tensor", value
            continue
        if isinstance(value, dict):
            entries = list(value.items())
        elif isinstance(value, list) or type(value) is tuple:
            entries = list(enumerate(value))
        else:
            continue
        for key, item in reversed(entries):
            word = ascii(key)[:40] if not isinstance(key, str | int) else str(key)
            waiting.append((f"{name}.{word}" if name else word, item, depth + 1))


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:5]))))
