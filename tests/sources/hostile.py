"""The corpus of hostile files: each a name with its suffix, and a function that makes its bytes.

Every entry did harm once: it took gigabytes, never ended, gave another tensor's numbers, or came through as
a traceback of another library. Files are built here from bytes; none is stored.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence

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


U8, I32, U32, F32, STRING, ARRAY, U64 = 0, 5, 4, 6, 8, 9, 10
"""Types of a GGUF file's values."""


def gguf(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    order: str = "<",
) -> bytes:
    """A GGUF file of these parts, padded to 32 bytes where tensors' bytes follow; ``counts`` are what it
    claims of tensors and of pairs."""
    claimed = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack(f"{order}IQQ", version, *claimed) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data if data else head


def text(value: bytes, order: str = "<", length: int | None = None) -> bytes:
    """A text as GGUF stores it; ``length`` is the one that it claims."""
    return struct.pack(f"{order}Q", len(value) if length is None else length) + value


def pair(name: bytes, kind: int, value: bytes, order: str = "<") -> bytes:
    """A key and its value's bytes."""
    return text(name, order) + struct.pack(f"{order}I", kind) + value


def items(kind: int, count: int, value: bytes = b"") -> bytes:
    """A value that is a list of ``count`` items."""
    return struct.pack("<IQ", kind, count) + value


def listed(
    name: bytes, dims: Sequence[int], kind: int = 0, offset: int = 0, axes: int | None = None
) -> bytes:
    """What a GGUF header says of one tensor; ``dims`` are in ggml's order."""
    many = struct.pack("<I", len(dims) if axes is None else axes) + struct.pack(f"<{len(dims)}Q", *dims)
    return text(name) + many + struct.pack("<IQ", kind, offset)


def _nested_items(levels: int) -> bytes:
    """A list that holds a list, and so on; the innermost has one byte."""
    return items(ARRAY, 1) * levels + items(U8, 1, b"x")


def whole_gguf() -> bytes:
    """A file as it should be: pairs of all shapes, tensors of two types."""
    pairs = [
        pair(b"general.architecture", STRING, text(b"llama")),
        pair(b"general.alignment", U32, struct.pack("<I", 32)),
        pair(b"tokenizer.ggml.tokens", ARRAY, items(STRING, 3, text(b"a") + text(b"") + text(b"ccc"))),
        pair(b"tokenizer.ggml.scores", ARRAY, items(F32, 3, bytes(12))),
        pair(b"nested", ARRAY, items(ARRAY, 2, items(U8, 2, b"ab") + items(U64, 1, bytes(8)))),
    ]
    tensors = [listed(b"a.weight", [32, 2]), listed(b"b.weight", [32, 2], 8, 256)]
    return gguf(pairs, tensors, bytes(256 + 68))


def _cut_ggufs() -> dict[str, Callable[[], bytes]]:
    """The whole file without its end, in each of its sections."""
    places = (0, 3, 7, 20, 50, 90, 170, 250, 330, 500)
    return {f"cut-{at}.gguf": lambda at=at: whole_gguf()[:at] for at in places}


def _alignment(value: bytes, kind: int = U32) -> Callable[[], bytes]:
    return lambda: gguf([pair(b"general.alignment", kind, value)], [listed(b"w", [4])], bytes(64))


def _one_gguf(*tensors: bytes, data: bytes = bytes(64)) -> Callable[[], bytes]:
    return lambda: gguf((), tensors, data)


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
    "empty.pt": lambda: b"",
    "build.pt": lambda: torch_zip(b"\x80\x02ccollections\nOrderedDict\n)R}(X\x01\x00\x00\x00aK\x01ub."),
    # zip archives
    "fortran-bomb.npz": lambda: _fortran_bomb(0.625),
    "header-bomb.npz": lambda: zipped(
        {"x.npy": npy("", version=2, length=(1 << 32) - 1)}, repeat={"x.npy": 48}
    ),
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
    "huge-shape.npy": lambda: npy(array_header((1 << 70, 0)), bytes(64)),
    "many-axes.npy": lambda: npy(array_header((1,) * 100), bytes(64)),
    "empty-huge.npy": lambda: npy(array_header((0, 1 << 62, 1 << 62)), bytes(64)),
    "parentheses.npy": lambda: npy("(" * 5000, bytes(64)),
    "tuple-descr.npy": lambda: npy(array_header((4,), descr=("<f4", (1 << 40,))), bytes(64)),
    "digits.npy": lambda: npy(array_header((4,)).replace("(4,)", "(" + "9" * 5000 + ",)"), bytes(64)),
    "long-header.npy": lambda: npy("", version=2, length=(1 << 32) - 1) + bytes(64),
    "longdouble.npy": lambda: npy(array_header((1,), descr="<f16"), bytes(16)),
    "long-axes.npy": lambda: npy(array_header((10**4000, 10**4000)), bytes(64)),
    # safetensors headers
    "long-offset.safetensors": lambda: safetensors({"w": entry([4], 10**4199, 10**4199 + 16)}, bytes(16)),
    "long-size.safetensors": lambda: safetensors({"w": entry([1 << 62] * 64, 0, 16)}, bytes(16)),
    "infinite.safetensors": lambda: framed(
        b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,16]}}', bytes(16)
    ),
    "axes.safetensors": lambda: safetensors({"w": entry([9_999_999] * 200_000, 0, 16)}, bytes(16)),
    "float-shape.safetensors": lambda: safetensors({"w": entry([2.5], 0, 16)}, bytes(16)),
    "negative.safetensors": lambda: safetensors({"w": entry([-2, -2], 0, 16)}, bytes(16)),
    "beyond.safetensors": lambda: safetensors({"w": entry([4], 1 << 70, (1 << 70) + 16)}, bytes(16)),
    "huge-empty.safetensors": lambda: safetensors({"w": entry([0, 1 << 63], 0, 0)}),
    "deep.safetensors": lambda: framed(b"[" * 100_000),
    "nest.safetensors": lambda: framed(b"[" + b"{}," * (5 * MiB) + b"{}]"),
    "null.safetensors": lambda: framed(b'{"w":null}'),
    "fp6.safetensors": lambda: safetensors({"w": entry([4], 0, 3, "F6_E2M3")}, bytes(3)),
    "odd-fp4.safetensors": lambda: safetensors({"w": entry([2, 3], 0, 3, "F4")}, bytes(3)),
    "empties.safetensors": lambda: safetensors({str(i): entry([0], 0, 0) for i in range(25_000)}),
    # GGUF headers
    "bytes-list.gguf": lambda: gguf([pair(b"x", ARRAY, items(U8, 1 << 40))]) + bytes(88),
    "overflowing-list.gguf": lambda: gguf([pair(b"x", ARRAY, items(U64, (1 << 61) + 1))]) + bytes(88),
    "deep-lists.gguf": lambda: gguf([pair(b"x", ARRAY, _nested_items(100_000))]),
    "wide-lists.gguf": lambda: gguf(
        [pair(b"x", ARRAY, items(ARRAY, 200_000, items(U8, 0) * 200_000))]
    ),
    "many-texts.gguf": lambda: gguf([pair(b"x", ARRAY, items(STRING, 1_900_000, bytes(8 * 1_900_000)))]),
    "unknown-list.gguf": lambda: gguf([pair(b"x", ARRAY, items(99, 4, bytes(64)))]),
    "claimed-both.gguf": lambda: gguf(counts=((1 << 64) - 1, (1 << 64) - 1)) + bytes(64),
    "long-key.gguf": lambda: gguf([pair(b"k" * (4 * MiB), U8, b"x")]),
    "claimed-text.gguf": lambda: gguf([pair(b"x", STRING, text(b"v", length=1 << 63))]) + bytes(64),
    "unknown-value.gguf": lambda: gguf([pair(b"x", 13, bytes(64))]),
    "header-too-long.gguf": lambda: gguf([pair(b"x", ARRAY, items(U8, 17 * MiB, bytes(17 * MiB)))]),
    "no-tensors.gguf": gguf,
    "version-99.gguf": lambda: gguf((), [listed(b"w", [4])], bytes(64), version=99),
    "big-endian.gguf": lambda: gguf([pair(b"x", U8, b"1", ">")], (), bytes(64), order=">"),
    "mixed-endian.gguf": lambda: gguf([pair(b"x", U8, b"1")], (), bytes(64), order=">", counts=(0, 1)),
    # what they say of tensors
    "overflowing-dims.gguf": _one_gguf(listed(b"w", [1 << 32, 1 << 32, 1 << 32, 1 << 32])),
    "empty-huge.gguf": _one_gguf(listed(b"w", [0, 1 << 63, 1 << 63])),
    "no-dims-coded.gguf": _one_gguf(listed(b"w", [], 8)),
    "zero-dim.gguf": _one_gguf(listed(b"w", [4, 0])),
    "many-dims.gguf": _one_gguf(listed(b"w", [1] * 100_000)),
    "unknown-type.gguf": _one_gguf(listed(b"w", [4], 31)),
    "part-of-a-block.gguf": _one_gguf(listed(b"w", [31], 8)),
    "unrestored-type.gguf": _one_gguf(listed(b"w", [256], 15), data=bytes(320)),
    "same-names.gguf": _one_gguf(listed(b"w", [4]), listed(b"w", [8], 0, 32), data=bytes(64)),
    "far-beyond.gguf": _one_gguf(listed(b"w", [4], 0, (1 << 64) - 32)),
    "overlapping.gguf": _one_gguf(listed(b"v", [16], 0, 0), listed(b"w", [8], 0, 32), data=bytes(96)),
    "all-over-each-other.gguf": lambda: gguf(
        (), [listed(b"w%d" % i, [1 << 20]) for i in range(10_000)], bytes(4 * MiB)
    ),
    "misaligned.gguf": _one_gguf(listed(b"w", [4], 0, 4)),
    "newline.gguf": _one_gguf(listed(b"a\nb", [4])),
    "direction.gguf": _one_gguf(listed("a\u202eb".encode(), [4])),
    "utf8-name.gguf": _one_gguf(listed(b"\xff\xfe", [4])),
    "alignment-0.gguf": _alignment(struct.pack("<I", 0)),
    "alignment-3.gguf": _alignment(struct.pack("<I", 3)),
    "alignment-text.gguf": _alignment(text(b"32"), STRING),
    "not-one.gguf": lambda: b"GGML" + bytes(200),
    **_cut_ggufs(),
    # tables
    "nul.csv": lambda: b"1,2\n\x00,4\n",
    "comment.csv": lambda: b"#\n#\n",
    "quote.csv": lambda: b'"1,2\n3,4\n' * 10,
    "nan.csv": lambda: b"nan,inf\n1e999,-1e999\n",
    "beyond.csv": lambda: b"1e300,2\n3,4\n",
    "binary.csv": lambda: zlib.compress(ZEROS)[:4096],
    "wide.csv": lambda: b"," * (4 * MiB),
    # pictures
    "claimed.png": lambda: png(1 << 30, 1 << 30, b""),
    "bomb.png": lambda: png(1 << 12, 1 << 12, bytes(1 << 24)),
    "no-width.png": lambda: png(0, 4, b""),
    "text-bomb.png": lambda: png(
        4, 4, bytes(20), more=chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(1 << 26)))
    ),
    "exif.png": lambda: png(4, 4, bytes(20), more=chunk(b"eXIf", b"MM\0*\xff\xff\xff\xff")),
    "not-one.jpg": lambda: b"\xff\xd8\xff" + bytes(999),
}  # fmt: skip


def png(width: int, height: int, rows: bytes, colours: int = 0, more: bytes = b"") -> bytes:
    """A PNG of 8 bits a channel whose header claims a size; ``rows`` begin with the number of a filter each,
    ``colours`` is the type of the header: 0 grey, 6 RGBA. ``more``: chunks before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    parts = chunk(b"IHDR", header), more, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def scans(width: int, height: int, count: int) -> bytes:
    """A progressive grey JPEG of ``count`` scans, all but the first of blocks that have ended: each goes
    through the picture, and has a few bytes."""

    def segment(marker: int, content: bytes) -> bytes:
        return struct.pack(">BBH", 255, marker, len(content) + 2) + content

    blocks = -(-width // 8) * -(-height // 8)
    bits = ("0" + "1" * 14) * -(-blocks // 32767)  # "0": the end of 16,384 blocks and as many more as follow
    bits += "1" * (-len(bits) % 8)
    ended = int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\0")
    parts = [segment(0xDB, b"\0" + b"\1" * 64)]
    parts += [segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0")]
    parts += [segment(0xC4, bytes([at, 1, *[0] * 15, symbol])) for at, symbol in ((0, 0), (16, 0xE0))]
    parts += [segment(0xDA, b"\1\1\0\0\0\0") + bytes(-(-blocks // 8))]
    parts += [segment(0xDA, b"\1\1\0\1\x3f\0") + ended] * (count - 1)
    return b"\xff\xd8" + b"".join(parts) + b"\xff\xd9"


def _same_names() -> bytes:
    """Two members of one name, made by renaming one of them."""
    small, large = npy(array_header((4,)), bytes(16)), npy(array_header((4096,)), bytes(16384))
    return zipped({"x.npy": small, "y.npy": large}).replace(b"y.npy", b"x.npy")
