"""GGUF files as a model: names, shapes and values as the package gguf restores them, and clear refusals.

If these fail, a layer of a GGUF file is transposed, or another than the file's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from explorer import SourceError, load_matrix, open_source
from explorer.progress import StoppedError, stoppable
from explorer.sources.models import open_model
from explorer.sources.source_limits import HOSTED, LOCAL
from tests.sources import hostile

gguf = pytest.importorskip("gguf")


def test_tensors_are_what_gguf_restores(tmp_path: Path) -> None:
    """A matrix in four types by the page's ways to read it, whole and in part."""
    path = tmp_path / "tiny.gguf"
    values = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    writer, want = gguf.GGUFWriter(path, "llama"), {}
    for name in ("F32", "F16", "Q8_0", "Q4_1"):
        kind = gguf.GGMLQuantizationType[name]
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"blk.0.{name.lower()}.weight", stored, raw_dtype=kind)
        want[f"blk.0.{name.lower()}.weight"] = gguf.quants.dequantize(stored, kind)
    _finish(writer)
    source = open_source(str(path))
    assert {info.name for info in source.infos} == set(want) and source.paths == (path,)
    assert [info.dtype for info in source.infos] == ["F32", "F16", "Q8_0", "Q4_1"]
    for info in source.infos:
        assert info.shape == (8, 64)
        assert torch.equal(source.matrix(info.name).values, torch.from_numpy(want[info.name]).float())
        part = load_matrix(str(path), info.name, max_elements=130)
        assert part.cut and torch.equal(part.values, torch.from_numpy(want[info.name][:2]).float())


def test_what_is_no_gguf_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged files, strangers' files, and a machine without the package."""
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(SourceError, match=r"odd\.gguf"):
        open_model(str(path))
    with pytest.raises(SourceError, match="folders of this server"):
        open_model(str(path), limits=HOSTED)
    with pytest.raises(SourceError, match="models are folders"):
        open_model(str(Path(__file__)), limits=LOCAL)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(SourceError, match="pip install gguf"):
        open_model(str(path))


KINDS = gguf.GGML_QUANT_SIZES
RESTORED = [kind for kind in KINDS if kind.name not in ("Q8_1", "Q8_K", "Q1_0")]
"""All types but those that the package cannot restore either."""
PLAIN = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8")
ROWS, BLOCKS = 5, 3


def _stored(kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Random bytes of a matrix [ROWS, BLOCKS blocks] of the type."""
    return np.random.default_rng(int(kind)).integers(0, 256, (ROWS, BLOCKS * KINDS[kind][1]), np.uint8)


def _written(path: Path, kinds: list[gguf.GGMLQuantizationType]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "", "é"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, -2.0])
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_custom_alignment(64)
    for kind in kinds:
        writer.add_tensor(kind.name, _stored(kind), raw_dtype=kind)
    _finish(writer)
    return path


def _finish(writer: gguf.GGUFWriter) -> None:
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_type_is_read_as_the_package_reads_it(tmp_path: Path) -> None:
    """Names, shapes and places by the package's own reader, values bit by bit; of random bytes some are no
    numbers."""
    path = _written(tmp_path / "x.gguf", RESTORED)
    source, reader = open_model(str(path)), gguf.GGUFReader(path)
    assert [i.name for i in source.infos] == [t.name for t in reader.tensors] and len(source.infos) >= 28
    for info, tensor in zip(source.infos, reader.tensors, strict=True):
        assert info.shape == tuple(reversed(tensor.shape.tolist())), info.name
        assert info.dtype == tensor.tensor_type.name
        own = tensor.data if info.name in PLAIN and info.name != "BF16" else None
        want = gguf.quants.dequantize(tensor.data, tensor.tensor_type) if own is None else own
        for rows in (None, 2):
            found = source.read_rows(info, rows, None)
            values = found.float().numpy() if info.name == "BF16" else found.numpy()
            assert values.dtype == want.dtype, info.name
            assert np.array_equal(values, want[:rows], equal_nan=values.dtype.kind == "f"), info.name


def test_a_big_endian_file(tmp_path: Path) -> None:
    """Plain types have their bytes turned; the fields of blocks are not known here, and are refused."""
    values = np.arange(64, dtype=np.float32).reshape(2, 32) / 8
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bcd"])
    for dtype in (np.float32, np.float16, np.int32, np.float64):
        writer.add_tensor(np.dtype(dtype).name, values.astype(dtype))
    writer.add_tensor("one", values[0, 1:2])
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("coded", gguf.quants.quantize(values, kind), raw_dtype=kind)
    _finish(writer)
    source = open_model(str(tmp_path / "x.gguf"))
    for name in ("float32", "float16", "int32", "float64"):
        want = torch.from_numpy(values.astype(name))
        assert torch.equal(source.read(name), want)
        assert torch.equal(source.read(name, max_elements=40), want[:1])
    assert torch.equal(source.read("one"), torch.tensor([0.125]))
    with pytest.raises(SourceError, match=r"coded .*Q8_0"):
        source.read("coded")


def test_a_second_tensor_of_a_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(hostile.HOSTILE["same-names.gguf"]())
    with pytest.raises(SourceError, match="two tensors called w"):
        open_model(str(path))


def _left() -> None:
    raise StoppedError("left")


def test_codes_are_restored_in_parts(tmp_path: Path) -> None:
    """Who leaves is noticed, and progress told, before all of a large tensor is restored."""
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    stored = np.zeros((3, 34 << 15), np.uint8)
    writer.add_tensor("w", stored, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    _finish(writer)
    source, told, checks = open_model(str(path)), [], []
    with stoppable(lambda: checks.append(1)):
        source.read("w", progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == [1 << 20, 2 << 20, 3 << 20] and len(checks) >= 3
    with stoppable(_left), pytest.raises(StoppedError, match="left"):
        source.read("w")
