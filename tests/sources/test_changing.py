"""Files and folders that change, share names, or should not be seen: no old bytes, no wrong shapes, no leaks.

If these fail, a file cut short ends the server, a visitor sees another file's numbers, or the page tells
what lies on its disk.
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import explorer
from app import limits as page_limits
from app.state.selection import Selection, file_source, matrix_of, model_source
from explorer import SourceError, open_source
from explorer.checkpoints.stored import open_checkpoint
from explorer.sources.models import open_model
from explorer.sources.source_limits import HOSTED, LOCAL, PICKLED
from explorer.sources.tensors import open_tensors

ROWS = 4096


def _write(path: Path, value: float) -> None:
    values = torch.full((ROWS, 64), value)
    if path.suffix == ".safetensors":
        save_file({"w": values}, path)
    elif path.suffix == ".npy":
        np.save(path, values.numpy())
    elif path.suffix == ".npz":
        np.savez(path, w=values.numpy())
    elif path.suffix == ".gguf":
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("w", values.numpy())
        for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
            step()
        writer.close()
    else:
        torch.save({"w": values}, path)


KINDS = [".safetensors", ".npy", ".npz", ".pt", ".gguf"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_short_is_a_refusal(kind: str, tmp_path: Path) -> None:
    """A mapped file would end the process with SIGBUS: it is run in a child."""
    path = tmp_path / f"x{kind}"
    _write(path, 1)
    source = open_source(str(path))
    os.truncate(path, 600)
    child = os.fork()
    if child == 0:
        try:
            source.matrix(source.infos[0].name)
        except SourceError as error:
            os._exit(0 if "changed" in str(error) else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_written_anew_is_not_mixed(kind: str, tmp_path: Path) -> None:
    """Same path, same size, other numbers: the open source refuses, one opened anew has the new ones."""
    path = tmp_path / f"x{kind}"
    _write(path, 1)
    source = open_source(str(path))
    assert source.matrix(source.infos[0].name).values.unique().tolist() == [1]
    _write(path, 2)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**7))
    with pytest.raises(SourceError, match="changed"):
        source.matrix(source.infos[0].name)
    anew = open_source(str(path))
    assert anew.matrix(anew.infos[0].name).values.unique().tolist() == [2]


def test_a_saved_tensor_keeps_its_numbers(tmp_path: Path) -> None:
    """What was loaded is none of the file's pages: other bytes in it change no value, and a file cut off ends
    no process. An open checkpoint refuses a file that was written anew."""
    path = tmp_path / "q.safetensors"
    explorer.quantize(torch.full((64, 64), 7.0), explorer.SCHEMES["int4_group64"]).save(path)
    q, kept = explorer.load(path), open_checkpoint(str(path))
    (name,) = kept.weights
    before, found = q.dequantize().clone(), kept.restore(name)
    with path.open("r+b") as file:
        file.seek(-64 * 32, os.SEEK_END)
        file.write(b"\x55" * 64 * 32)
    os.utime(path, ns=(1, 1))
    assert torch.equal(q.dequantize(), before) and found.values.unique().tolist() == [7]
    with pytest.raises(SourceError, match="changed"):
        kept.restore(name)
    child = os.fork()
    if child == 0:
        os.truncate(path, 600)
        os._exit(0 if torch.equal(q.dequantize(), before) and found.steps is not None else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_page_reads_a_folder_anew_once_it_changed(tmp_path: Path) -> None:
    """The folder's stamp is in the caches' keys: else the numbers of the earlier file are shown."""
    chosen = Selection(source="model", model=str(tmp_path), layer="w")
    for value in (1.0, 2.0):
        _write(tmp_path / "model.safetensors", value)
        os.utime(tmp_path / "model.safetensors", ns=(1, int(value) * 10**9))
        assert matrix_of(chosen).values.unique().tolist() == [value]


def test_places_that_cannot_be() -> None:
    """A home without a user, a NUL and a path too long are refusals like any other."""
    for where in ("~nosuchuser", "~nosuchuser/x", "a\0b", "/" + "x" * 5000, "x" * 300, "\ud800"):
        with pytest.raises(SourceError):
            open_model(where)


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_limits, "current", lambda: page_limits.HOSTED)


PATHS = ["/root/.bashrc", "/root/.ssh/id_rsa", "/", "~", "~root", "~nosuchuser", "./app", "../x", "a/b/c",
         ".", "/nonexistent", "a\0b"]  # fmt: skip


@pytest.mark.usefixtures("hosted")
def test_a_hosted_page_says_the_same_of_every_path(tmp_path: Path) -> None:
    """What exists on the server and what does not are one answer."""
    (tmp_path / "there").mkdir()
    said = set()
    for where in (*PATHS, str(tmp_path / "there"), str(tmp_path / "missing")):
        with pytest.raises(SourceError) as refusal:
            model_source(where, "")
        said.add(str(refusal.value))
    assert len(said) == 1


@pytest.mark.usefixtures("hosted")
def test_a_hosted_page_takes_no_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by its suffix, before anything is read, whoever forgets to say so; elsewhere it is taken."""
    for kind in PICKLED:
        _write(tmp_path / f"x{kind}", 1)
        with pytest.raises(SourceError, match=r"pickles; save as \.safetensors"):
            file_source(str(tmp_path / f"x{kind}"))
        with pytest.raises(SourceError, match="not read here"):
            open_tensors(tmp_path / f"x{kind}", limits=LOCAL)
        with monkeypatch.context() as patch:
            patch.setattr(page_limits, "current", lambda: page_limits.LOCAL)
            assert open_tensors(tmp_path / f"x{kind}", limits=LOCAL).infos


def test_a_table_larger_than_its_limit(tmp_path: Path) -> None:
    """Text is parsed whole and takes several times its size: refused before it is read."""
    with (tmp_path / "x.csv").open("wb") as file:
        file.truncate(HOSTED.text_bytes + 1)
    with pytest.raises(SourceError, match="read up to"):
        open_tensors(tmp_path / "x.csv", limits=HOSTED)
