"""llama.cpp's importance files ("imatrix"): the sums of the squares of each tensor's inputs, by column.

Two forms are read and written. The older one (.dat) is binary, little-endian; llama-imatrix writes it with
--output-format dat::

    i32 entries
    entries: i32 length, name; i32 calls; i32 count, float32 [count]   calls times the mean squares
    i32 chunks; i32 length, the text's name

The newer one (.gguf) has for each tensor the sums, ``NAME.in_sum2`` float32 [matrices, K], and their numbers
of tokens, ``NAME.counts`` float32 [matrices, 1]; and the keys general.type ("imatrix"), imatrix.datasets,
imatrix.chunk_count and imatrix.chunk_size. Further tensors (``in_sum``, ``stats``) are not read. The experts
of a block are the matrices of one tensor; the older form has one count for all of them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from explorer.checkpoints.gguf_model import number, scalar, texts, walk
from explorer.checkpoints.target import needed
from explorer.export.files import replacing
from explorer.progress import checkpoint
from explorer.sources.base import SourceError
from explorer.sources.gguf_file import GgufFile
from explorer.sources.gguf_header import MAGIC
from explorer.sources.source_limits import LOCAL
from explorer.words import plain

CHUNK = 512
"""Number of tokens in a chunk for files that do not state it: llama-imatrix's default."""
SUFFIXES = (".gguf", ".dat")
_SUMS, _COUNTS = ".in_sum2", ".counts"
_MOST_BYTES = 1 << 32
_LONGEST_NAME = 4096


@dataclass(frozen=True, eq=False)
class Squares:
    """Sums of squared inputs of one tensor: ``sums`` float32 [matrices, K] over ``counts`` float32 [matrices]
    tokens (in the older form, chunks). ``matrices``: the experts of a tensor, else 1."""

    sums: Tensor
    counts: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean squares, float32 [matrices, K]; 1 for a matrix that no token reached, as in llama.cpp."""
        reached = self.counts[:, None] > 0
        return torch.where(reached, self.sums / self.counts[:, None], torch.ones(()))


@dataclass(frozen=True, eq=False)
class Imatrix:
    """Content of an importance file.

    ``tensors`` by llama.cpp's name (blk.0.attn_q.weight), the names of the texts (``datasets``), and the
    number of ``chunks`` of ``chunk_size`` tokens (0 if the file does not state it).
    """

    tensors: Mapping[str, Squares]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = 0

    def importance(self, name: str, columns: int, matrices: int = 1) -> Tensor | None:
        """Mean squares of the inputs of the tensor ``name``, float32 [matrices, columns]; None if the file
        has none. ``ValueError`` for another number of columns."""
        found = self.tensors.get(name)
        if found is None:
            return None
        mean = found.mean
        if mean.numel() != columns * matrices:
            raise ValueError(
                f"{name} has {mean.numel():,} importances in this file, and {matrices * columns:,} inputs: "
                "the file is of another model"
            )
        return mean.reshape(matrices, columns)


def read_imatrix(path: str | Path) -> Imatrix:
    """Read a file of either form. ``ValueError`` for other or truncated files, and for sums that are negative
    or not finite."""
    path = Path(path)
    with path.open("rb") as file:
        newer = file.read(len(MAGIC)) == MAGIC
    try:
        found = _read_gguf(path) if newer else _read_dat(path)
    except SourceError as error:
        raise ValueError(f"{path.name} is no importance file: {error}") from error
    for name, squares in found.tensors.items():
        for part in (squares.sums, squares.counts):
            if not bool((part.isfinite() & (part >= 0)).all()):
                raise ValueError(f"{path.name}: {plain(name, 200)} has sums that are negative or not finite")
    if not found.tensors:
        raise ValueError(f"{path.name} holds no importances")
    return found


def write_imatrix(imatrix: Imatrix, path: str | Path) -> None:
    """Write .gguf in the newer form or .dat in the older one; ``ValueError`` for another suffix."""
    path = Path(path)
    check_suffix(path)
    with replacing(path) as partial:
        if path.suffix.lower() == ".gguf":
            _write_gguf(imatrix, partial)
        else:
            partial.write_bytes(b"".join(_dat(imatrix)))


def check_suffix(path: Path) -> None:
    """``ValueError`` for a suffix that is not in ``SUFFIXES``."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path.name}: an importance file ends in .gguf, or in .dat for the older form")


def _read_gguf(path: Path) -> Imatrix:
    source = GgufFile(path, LOCAL)
    if source.broken:
        raise SourceError(source.broken[0])
    if source.order != "<":
        raise SourceError(f"{source.origin} is in big-endian order")
    with path.open("rb") as file:
        records = walk(memoryview(file.read(LOCAL.header_bytes)))
    if (kind := scalar(records, "general.type")) not in ("imatrix", None):
        raise SourceError(f"{source.origin} says that it is a {plain(str(kind), 80)}")
    names = {info.name for info in source.infos}
    found = {}
    for info in source.infos:
        name = info.name.removesuffix(_SUMS)
        if name == info.name:
            continue
        checkpoint()
        if f"{name}{_COUNTS}" not in names:
            raise SourceError(f"{source.origin} has the sums of {name} without their counts")
        counts = source.read(f"{name}{_COUNTS}").float().reshape(-1)
        sums = source.read(info.name).float().reshape(-1)
        if not len(counts) or len(sums) % len(counts):
            raise SourceError(f"{source.origin}: {name} has {len(sums)} sums and {len(counts)} counts")
        found[name] = Squares(sums.view(len(counts), -1), counts)
    chunks, size = (number(records, f"imatrix.{key}", 0) for key in ("chunk_count", "chunk_size"))
    return Imatrix(found, texts(records, "imatrix.datasets"), chunks, size)


def _write_gguf(imatrix: Imatrix, path: Path) -> None:
    gguf = needed("gguf", "an importance file")
    with closing(gguf.GGUFWriter(path, "")) as writer:
        writer.kv_data[0].clear()  # the file of no architecture
        writer.add_type(gguf.GGUFType.IMATRIX)
        writer.add_key_value(
            gguf.Keys.IMatrix.DATASETS,
            list(imatrix.datasets) or [""],  # llama.cpp refuses a file without the key
            gguf.GGUFValueType.ARRAY,
            gguf.GGUFValueType.STRING,
        )
        writer.add_uint32(gguf.Keys.IMatrix.CHUNK_COUNT, imatrix.chunks)
        writer.add_uint32(gguf.Keys.IMatrix.CHUNK_SIZE, imatrix.chunk_size or CHUNK)
        for name, squares in sorted(imatrix.tensors.items()):
            counts = squares.counts if imatrix.chunk_size else squares.counts * CHUNK
            sums = squares.sums if imatrix.chunk_size else squares.sums * CHUNK
            writer.add_tensor(f"{name}{_SUMS}", sums.numpy())
            writer.add_tensor(f"{name}{_COUNTS}", counts[:, None].numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _dat(imatrix: Imatrix) -> Iterator[bytes]:
    """Encode the older form, part by part. Tensors that no token reached are left out, as in llama.cpp."""
    reached = {name: one for name, one in sorted(imatrix.tensors.items()) if bool((one.counts > 0).any())}
    yield struct.pack("<i", len(reached))
    for name, squares in reached.items():
        calls = math.ceil(float(squares.counts.max()) / (imatrix.chunk_size or 1))
        values, raw = squares.mean * torch.tensor(float(calls)), name.encode()
        yield struct.pack(f"<i{len(raw)}sii", len(raw), raw, calls, values.numel())
        yield values.numpy().astype("<f4").tobytes()
    dataset = (imatrix.datasets[-1] if imatrix.datasets else "").encode()
    yield struct.pack(f"<ii{len(dataset)}s", imatrix.chunks, len(dataset), dataset)


def _read_dat(path: Path) -> Imatrix:
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise SourceError(f"it has {size:,} bytes; accepted are up to {_MOST_BYTES:,}")
    raw, at = path.read_bytes(), 0

    def take(count: int, what: str) -> bytes:
        nonlocal at
        if not 0 <= count <= len(raw) - at:
            raise SourceError(f"it ends within {what}, or is of another kind")
        at += count
        return raw[at - count : at]

    def whole(what: str, least: int = 0, most: int = 1 << 30) -> int:
        found = int(struct.unpack("<i", take(4, what))[0])
        if not least <= found <= most:
            raise SourceError(f"{what} is {found:,}; accepted are {least:,} to {most:,}")
        return found

    found = {}
    for _ in range(whole("the number of entries", 1)):
        checkpoint()
        name = take(whole("the length of a name", 1, _LONGEST_NAME), "a name").decode(errors="replace")
        calls = whole("a number of calls")
        values = np.frombuffer(take(4 * whole("a number of values", 1), "its values"), "<f4")
        sums = torch.from_numpy(values.astype(np.float32))[None]
        found[name] = Squares(sums, torch.tensor([float(max(calls, 1))]))
    if at == len(raw):  # files of the first version end here
        return Imatrix(found)
    chunks = whole("the number of chunks")
    dataset = take(whole("the length of the text's name"), "the text's name") if at < len(raw) else b""
    return Imatrix(found, (dataset.decode(errors="replace"),) if dataset else (), chunks)


def importances_of(
    imatrix: Imatrix, name_of: Callable[[str], str], shapes: Mapping[str, tuple[int, int]]
) -> dict[str, Tensor]:
    """Return layer -> importances float32 [K], for the layers that the file has.

    ``shapes``: layer -> [N, K]; ``name_of`` returns llama.cpp's name of a tensor. ``ValueError`` for a file
    of another model, or without any of the layers.
    """
    found, wanted = dict[str, Tensor](), ""
    for layer, (_, columns) in shapes.items():
        name = name_of(f"{layer}.weight") or f"{layer}.weight"
        wanted = wanted or name
        if (importance := imatrix.importance(name, columns)) is not None:
            found[layer] = importance[0]
    if not found:
        there = plain(next(iter(imatrix.tensors)), 200)
        raise ValueError(f"the importance file has none of these layers: it has {there}, and not {wanted}")
    return found
