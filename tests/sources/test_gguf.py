"""GGUF files as a model: names, shapes and values as the package gguf restores them, and clear refusals.

If these fail, a layer of a GGUF file is transposed, or another than the file's.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from explorer import SourceError, load_matrix, open_source
from explorer.sources.limits import HOSTED, LOCAL
from explorer.sources.models import open_model

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A matrix in four types, and what each of them restores to."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    values = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    want = {}
    for name in ("F32", "F16", "Q8_0", "Q4_1"):
        kind = gguf.GGMLQuantizationType[name]
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"blk.0.{name.lower()}.weight", stored, raw_dtype=kind)
        want[f"blk.0.{name.lower()}.weight"] = gguf.quants.dequantize(stored, kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return path, want


def test_tensors_are_what_gguf_restores(file: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, want = file
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
    with pytest.raises(SourceError, match=r"odd\.gguf is not a readable GGUF file"):
        open_model(str(path))
    with pytest.raises(SourceError, match="folders of this server"):
        open_model(str(path), limits=HOSTED)
    with pytest.raises(SourceError, match="models are folders, or files in"):
        open_model(str(Path(__file__)), limits=dataclasses.replace(LOCAL))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(SourceError, match="pip install gguf"):
        open_model(str(path))
