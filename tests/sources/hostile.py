"""The corpus of hostile files: each a name with its suffix, and a function that makes its bytes.

Every entry did harm once: it took gigabytes, never ended, gave another tensor's numbers, or came through as
a traceback of another library. Files are built here from bytes; none is stored.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import torch

MiB = 1 << 20
ZEROS = bytes(16 * MiB)


def safetensors(entries: Mapping[str, object], data: bytes = b"") -> bytes:
    """A safetensors file with the header ``entries``."""
    return framed(json.dumps(entries).encode(), data)


def framed(header: bytes, data: bytes = b"") -> bytes:
    """A safetensors file whose header is these bytes."""
    return struct.pack("<Q", len(header)) + header + data


def entry(shape: list[object], start: object, stop: object, dtype: object = "F32") -> dict[str, object]:
    """One entry of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def npy(header: str, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    """An .npy file with the header text ``header``; ``length`` is the length that it claims."""
    raw = header.encode("latin1")
    claimed = struct.pack("<H" if version == 1 else "<I", len(raw) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + claimed + raw + data


def array_header(shape: object, descr: object = "<f4", fortran: bool = False) -> str:
    """The text of a regular .npy header."""
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}\n"


def zipped(
    members: Mapping[str, bytes], kind: int = zipfile.ZIP_DEFLATED, repeat: Mapping[str, int] | None = None
) -> bytes:
    """A zip archive; each member is followed by ``repeat`` times 16 MiB of zeros."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind, compresslevel=1) as archive:
        for name, data in members.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
                for _ in range((repeat or {}).get(name, 0)):
                    file.write(ZEROS)
    return out.getvalue()


def torch_zip(
    pickled: bytes, kind: int = zipfile.ZIP_STORED, storages: Mapping[str, bytes] | None = None
) -> bytes:
    """An archive as torch.save writes it, around a pickle of our own."""
    members = {"a/data.pkl": pickled, "a/byteorder": b"little", "a/version": b"3\n"}
    return zipped(members | {f"a/data/{k}": v for k, v in (storages or {}).items()}, kind)


def saved(value: object, legacy: bool = False) -> bytes:
    """What torch.save writes."""
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


def _bytearray_of(count: int) -> bytes:
    return b"\x80\x02cbuiltins\nbytearray\nJ" + struct.pack("<i", count) + b"\x85R."


def _nested_memo(levels: int) -> bytes:
    """A list of two references to a list of two references, and so on: 2**levels paths in a few bytes."""
    out = [b"\x80\x02]q\x00"]
    for level in range(levels):
        out.append(b"](" + b"h" + bytes([level]) * 1 + b"h" + bytes([level]) + b"eq" + bytes([level + 1]))
    return b"".join(out) + b"."


def _deep(count: int) -> bytes:
    return b"\x80\x02" + b"]" * count + b"a" * (count - 1) + b"."


def _cyclic() -> bytes:
    return b"\x80\x02]q\x00h\x00a."


def _expanded() -> bytes:
    return saved({"w": torch.zeros(1).expand(1 << 20, 1 << 14)})


def _big_directory() -> bytes:
    """An end record that claims a list of members of 2 GiB."""
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, (1 << 31) - 1, 0, 0)
    return b"\0" * 4096 + end


def _many_members(count: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for index in range(count):
            archive.writestr(f"{index}.npy", b"")
    return out.getvalue()


def _corrupt_deflate() -> bytes:
    good = bytearray(zipped({"x.npy": npy(array_header((4096,)), np.arange(4096, dtype="<f4").tobytes())}))
    start = good.index(b"x.npy") + 40
    good[start : start + 200] = bytes(200)
    return bytes(good)


def _lzma_member() -> bytes:
    return zipped({"x.npy": npy(array_header((4,)), bytes(16))}, zipfile.ZIP_LZMA)


def _encrypted() -> bytes:
    data = bytearray(zipped({"x.npy": npy(array_header((4,)), bytes(16))}))
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    return bytes(data)


def _fortran_bomb(gigabytes: float) -> bytes:
    """A few megabytes that inflate to ``gigabytes``, by columns: rows cannot be cut off its start."""
    size = int(gigabytes * (1 << 30))
    header = npy(array_header((4096, size // 4 // 4096), fortran=True))
    return zipped({"x.npy": header}, repeat={"x.npy": size // len(ZEROS)})


def _deflated_pickle(megabytes: int) -> bytes:
    """A data.pkl that is one long string of zeros, deflated."""
    body = b"\x80\x04\x8e" + struct.pack("<Q", megabytes * MiB)
    members = {"a/data.pkl": body, "a/byteorder": b"little", "a/version": b"3\n"}
    return zipped(members, repeat={"a/data.pkl": megabytes // 16})


HOSTILE: dict[str, Callable[[], bytes]] = {
    # what a pickle can make an unpickler do
    "bytearray.pt": lambda: torch_zip(_bytearray_of(2_000_000_000)),
    "bytearray-legacy.pt": lambda: _bytearray_of(2_000_000_000),
    "memo.pt": lambda: torch_zip(_nested_memo(200)),
    "deep.pt": lambda: torch_zip(_deep(200_000)),
    "cyclic.pt": lambda: torch_zip(_cyclic()),
    "expanded.pt": _expanded,
    "deflated-pickle.pt": lambda: _deflated_pickle(1024),
    "long-claim.pt": lambda: torch_zip(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40)),
    "unhashable.pt": lambda: torch_zip(b"\x80\x02}]]s."),
    "stop.pt": lambda: torch_zip(b"."),
    "empty.pt": lambda: b"",
    "build.pt": lambda: torch_zip(b"\x80\x02ccollections\nOrderedDict\n)R}(X\x01\x00\x00\x00aK\x01ub."),
    "no-storage.pt": lambda: torch_zip(pickle.dumps({"a": 1}, 2)),
    # zip archives
    "fortran-bomb.npz": lambda: _fortran_bomb(0.625),
    "header-bomb.npz": lambda: zipped(
        {"x.npy": npy("", version=2, length=(1 << 32) - 1)}, repeat={"x.npy": 48}
    ),
    "directory.npz": _big_directory,
    "directory.pt": _big_directory,
    "members.npz": lambda: _many_members(25_000),
    "corrupt.npz": _corrupt_deflate,
    "lzma.npz": _lzma_member,
    "encrypted.npz": _encrypted,
    "long-name.npz": lambda: zipped({"n" * 60_000 + ".npy": npy(array_header((4,)), bytes(16))}),
    "newline.npz": lambda: zipped({"a\nb.npy": npy(array_header((4,)), bytes(16))}),
    "same-name.npz": lambda: _same_names(),
    # headers of arrays
    "negative.npy": lambda: npy(array_header((-1, 4)), bytes(64)),
    "negatives.npy": lambda: npy(array_header((-2, -4)), bytes(64)),
    "bool-shape.npy": lambda: npy(array_header((True, 4)), bytes(64)),
    "huge-shape.npy": lambda: npy(array_header((1 << 70, 0)), bytes(64)),
    "many-axes.npy": lambda: npy(array_header((1,) * 100), bytes(64)),
    "empty-huge.npy": lambda: npy(array_header((0, 1 << 62, 1 << 62)), bytes(64)),
    "token.npy": lambda: npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,", bytes(64)),
    "parentheses.npy": lambda: npy("(" * 5000, bytes(64)),
    "minus.npy": lambda: npy("-" * 9000 + "1", bytes(64)),
    "set.npy": lambda: npy("{'descr'}", bytes(64)),
    "list-descr.npy": lambda: npy(array_header((4,), descr=[("a", "<f4"), ("a", "<f4")]), bytes(64)),
    "tuple-descr.npy": lambda: npy(array_header((4,), descr=("<f4", (1 << 40,))), bytes(64)),
    "number-descr.npy": lambda: npy(array_header((4,), descr=5), bytes(64)),
    "digits.npy": lambda: npy(array_header((4,)).replace("(4,)", "(" + "9" * 5000 + ",)"), bytes(64)),
    "null.npy": lambda: npy("{'descr': '\x00f4', 'fortran_order': False, 'shape': (4,)}", bytes(64)),
    "long-header.npy": lambda: npy("", version=2, length=(1 << 32) - 1) + bytes(64),
    "version.npy": lambda: b"\x93NUMPY\x09\x00" + bytes(100),
    "longdouble.npy": lambda: npy(array_header((1,), descr="<f16"), bytes(16)),
    # safetensors headers
    "infinite.safetensors": lambda: framed(
        b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,16]}}', bytes(16)
    ),
    "axes.safetensors": lambda: safetensors({"w": entry([9_999_999] * 200_000, 0, 16)}, bytes(16)),
    "long-axis.safetensors": lambda: safetensors({"w": entry([10**4000] * 60, 0, 16)}, bytes(16)),
    "float-shape.safetensors": lambda: safetensors({"w": entry([2.5], 0, 16)}, bytes(16)),
    "bool-shape.safetensors": lambda: safetensors({"w": entry([True, 4], 0, 16)}, bytes(16)),
    "negative.safetensors": lambda: safetensors({"w": entry([-2, -2], 0, 16)}, bytes(16)),
    "beyond.safetensors": lambda: safetensors({"w": entry([4], 1 << 70, (1 << 70) + 16)}, bytes(16)),
    "huge-empty.safetensors": lambda: safetensors({"w": entry([0, 1 << 63], 0, 0)}),
    "deep.safetensors": lambda: framed(b"[" * 100_000),
    "nest.safetensors": lambda: framed(b"[" + b"{}," * (5 * MiB) + b"{}]"),
    "list.safetensors": lambda: framed(b"[1]"),
    "null.safetensors": lambda: framed(b'{"w":null}'),
    "surrogate.safetensors": lambda: framed(
        b'{"\\ud800":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', bytes(16)
    ),
    "utf8.safetensors": lambda: framed(b'{"\xff\xfe":1}'),
    "fp6.safetensors": lambda: safetensors({"w": entry([4], 0, 3, "F6_E2M3")}, bytes(3)),
    "odd-fp4.safetensors": lambda: safetensors({"w": entry([2, 3], 0, 3, "F4")}, bytes(3)),
    "empties.safetensors": lambda: safetensors({str(i): entry([0], 0, 0) for i in range(25_000)}),
    "claim.safetensors": lambda: struct.pack("<Q", (1 << 63) + 5) + b"{}",
    "metadata.safetensors": lambda: framed(b'{"__metadata__":{"a":1}}'),
    # tables
    "nul.csv": lambda: b"1,2\n\x00,4\n",
    "comment.csv": lambda: b"#\n#\n",
    "quote.csv": lambda: b'"1,2\n3,4\n' * 10,
    "nan.csv": lambda: b"nan,inf\n1e999,-1e999\n",
    "beyond.csv": lambda: b"1e300,2\n3,4\n",
    "binary.csv": lambda: zlib.compress(ZEROS)[:4096],
    "wide.csv": lambda: b"," * (4 * MiB),
}  # fmt: skip


def _same_names() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", npy(array_header((4,)), bytes(16)))
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr("x.npy", npy(array_header((4096,)), bytes(16384)))
    return out.getvalue()
