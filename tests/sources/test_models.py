"""Layers of models, local and on a stand-in for the Hub: right bytes, few bytes, and clear refusals.

If these fail, a layer of the Hub is another than the model's, costs a download of the model, or a hostile
repository gets further than it should.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from hub import Hub, serve
from safetensors.torch import save_file

from explorer import SourceError
from explorer.sources.models import HubModel, LocalModel, layers, open_model
from explorer.sources.source_limits import HOSTED

ROOT = Path(__file__).resolve().parents[2]
HANGS = 600
"""Seconds after which a child process is taken to hang. Starting one imports torch: beside other
processes, or from a cold disk, that alone can take more than a minute."""
NAMES = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(12)]


def make_sharded(folder: Path) -> dict[str, torch.Tensor]:
    """Twelve layers in three shards with an index, bfloat16 and float32."""
    folder.mkdir()
    draw = torch.Generator().manual_seed(0)
    weights = {
        n: torch.randn(256, 384, generator=draw).to(torch.bfloat16 if i % 2 else torch.float32)
        for i, n in enumerate(NAMES)
    }
    where = {}
    for shard in range(3):
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        names = NAMES[shard * 4 : shard * 4 + 4]
        save_file({n: weights[n] for n in names}, folder / file)
        where |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return weights


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    make_sharded(tmp_path / "sharded")
    (tmp_path / "single").mkdir()
    save_file({"w": torch.randn(64, 64), "b": torch.randn(64)}, tmp_path / "single" / "model.safetensors")
    (tmp_path / "bins").mkdir()
    (tmp_path / "bins" / "pytorch_model.bin").write_bytes(b"x")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve({f"team/{n}": tmp_path / n for n in ("sharded", "single", "bins")}) as hub:
        yield hub


def header_bytes(folder: Path) -> int:
    return sum(8 + int.from_bytes(p.read_bytes()[:8], "little") for p in folder.glob("*.safetensors"))


@pytest.mark.parametrize("name", ["sharded", "single"])
def test_hub_layers_are_exact_and_cost_their_own_bytes(name: str, hub: Hub) -> None:
    """Every layer equals the local one; beside it only headers and 64 KB cross the wire."""
    folder = hub.models[f"team/{name}"]
    local, remote = LocalModel(folder), HubModel(f"team/{name}", endpoint=hub.url)
    assert sorted(i.name for i in local.infos) == sorted(i.name for i in remote.infos)
    overhead = hub.sent - header_bytes(folder)
    assert 0 <= overhead <= 65536
    for info in local.infos[:3]:
        before = hub.sent
        assert torch.equal(remote.read(info.name), local.read(info.name))
        assert hub.sent - before == local.read(info.name).nbytes


def test_the_command_line_reads_the_hub_of_the_environment(hub: Hub, tmp_path: Path) -> None:
    """HF_ENDPOINT is honoured: the way mirrors and air-gapped sites point the client elsewhere."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "home"),
    }
    run = [sys.executable, "-m", "explorer", "layers", "team/sharded", "--filter", "layers.11", "--json"]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"name": NAMES[11], "shape": [256, 384], "dtype": "BF16"}]


def test_hub_rows_cost_only_those_rows(hub: Hub) -> None:
    """Rows of a layer too large for here are all that is sent; progress ends at the layer's bytes."""
    remote = HubModel("team/sharded", endpoint=hub.url)
    before = hub.sent
    cut = remote.matrix(NAMES[0], max_elements=384 * 10)
    assert tuple(cut.values.shape) == (10, 384) and hub.sent - before == 10 * 384 * 4
    seen: list[tuple[int, int]] = []
    remote.read(NAMES[1], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (256 * 384 * 2, 256 * 384 * 2)


def test_reading_can_be_stopped(hub: Hub) -> None:
    """An exception of the progress callback ends the download: how a visitor's Stop button works."""

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        HubModel("team/single", endpoint=hub.url).read("w", progress=stop)


REFUSED = [
    ("team/missing", None, "no such model"),
    ("team/bins", None, "no safetensors files"),
    ("team/gated", None, "gated"),
    ("team/single", "nope", "no such revision"),
]


@pytest.mark.parametrize("model, revision, words", REFUSED)
def test_hub_refusals_say_why(model: str, revision: str | None, words: str, hub: Hub) -> None:
    """Each way the Hub can refuse has its own message, which names what can be done."""
    hub.gated.add("team/gated")
    with pytest.raises(SourceError, match=words):
        HubModel(model, revision, endpoint=hub.url)


@pytest.mark.parametrize("model", ["team/gated", "team/missing"])
def test_a_public_page_advises_no_login(model: str, hub: Hub) -> None:
    """It sends no token, so that logging in changes nothing."""
    hub.gated.add("team/gated")
    with pytest.raises(SourceError, match="public models only") as refusal:
        HubModel(model, None, endpoint=hub.url, limits=HOSTED)
    assert "HF_TOKEN" not in str(refusal.value)


def test_unreachable_hub_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network error is told apart from a missing model."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(SourceError, match="cannot be reached"):
        HubModel("team/single", endpoint="http://127.0.0.1:9")


def test_offline_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """HF_HUB_OFFLINE is honoured, and named in the message."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="nor in the local cache, and the Hub is switched off"):
        open_model("team/single")


def test_a_public_page_speaks_of_no_place_where_it_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens no folder and no cache of its machine, and says nothing of what they hold."""
    for offline, words in ((False, "the Hub cannot be reached"), (True, "switched off here")):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        with pytest.raises(SourceError, match=words) as refusal:
            HubModel("team/single", endpoint="http://127.0.0.1:9", limits=HOSTED)
        assert "cache" not in str(refusal.value) and "folder" not in str(refusal.value)


def test_a_server_without_ranges_is_not_downloaded(hub: Hub) -> None:
    """A mirror that ignores Range would send the whole model for every layer: it is refused."""
    remote = HubModel("team/single", endpoint=hub.url)
    hub.honour_ranges = False
    with pytest.raises(SourceError, match="whole files only"):
        remote.read("w")


LIES = [
    ({"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}, "says w takes 12 bytes, its shape 16"),
    ({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}, "says w takes -16 bytes"),
    ({"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}, "says w takes 16 bytes"),
    ({"dtype": "F33", "shape": [4], "data_offsets": [0, 16]}, "does not know"),
    ({"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}, "does not know"),
    ({"dtype": "F32", "shape": [4]}, "does not know"),
    ({"dtype": "F32", "shape": [4], "data_offsets": ["a", "b"]}, "does not know"),
]


@pytest.mark.parametrize("entry, words", LIES)
def test_a_header_that_contradicts_itself_is_refused(
    entry: dict[str, object], words: str, hub: Hub, tmp_path: Path
) -> None:
    """A stranger's header never decides how much is read: spans, shapes and dtypes must agree."""
    raw = json.dumps({"w": entry}).encode()
    (tmp_path / "single" / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(16))
    with pytest.raises(SourceError, match=words):
        HubModel("team/single", endpoint=hub.url)


@pytest.mark.parametrize(
    "data, words",
    [
        (struct.pack("<Q", 1 << 40), "claims a header of 1,099,511,627,776 bytes"),
        (struct.pack("<Q", 400) + b"{}", "ended after 2 of 400 bytes"),
        (struct.pack("<Q", 4) + b"abcd", "no valid safetensors header"),
        (struct.pack("<Q", 2) + b"[]", "no valid safetensors header"),
        (b"abc", "ended after 3 of 8 bytes"),
    ],
)
def test_a_broken_header_on_the_hub_is_refused(data: bytes, words: str, hub: Hub, tmp_path: Path) -> None:
    """Garbage where the header should be is a message, and its claimed length is not read blindly."""
    (tmp_path / "single" / "model.safetensors").write_bytes(data)
    with pytest.raises(SourceError, match=words):
        HubModel("team/single", endpoint=hub.url)


def test_local_refusals(tmp_path: Path) -> None:
    """What is neither a model's folder nor a Hub id is refused with what it is instead."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.bin").write_bytes(b"x")
    for where, words in (
        (str(tmp_path / "empty"), "no .safetensors"),
        (str(tmp_path / "file.bin"), "tensor files end in"),
        ("not a/valid/id!", "no Hub id"),
        ("", "name a model"),
    ):
        with pytest.raises(SourceError, match=words):
            open_model(where)


@pytest.mark.parametrize("entry", ["../secret.safetensors", "/etc/passwd", "a\\b.safetensors"])
def test_an_index_cannot_lead_out_of_the_folder(entry: str, tmp_path: Path) -> None:
    """A stranger's index names plain files of its own folder, nothing else on this machine."""
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": entry}}))
    with pytest.raises(SourceError, match="not a plain file name"):
        LocalModel(tmp_path)


def test_a_broken_file_of_a_folder_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    """One bad download does not hide the good files; it is named wherever its tensors are missed."""
    (tmp_path / "bad.safetensors").write_bytes(b"abc")
    with pytest.raises(SourceError, match=r"bad\.safetensors ended after 3 of 8"):
        LocalModel(tmp_path)
    save_file({"w": torch.ones(2, 2)}, tmp_path / "good.safetensors")
    model = LocalModel(tmp_path)
    assert [i.name for i in model.infos] == ["w"] and torch.equal(model.read("w"), torch.ones(2, 2))
    (broken,) = model.broken
    assert "bad.safetensors ended after 3 of 8" in broken
    with pytest.raises(SourceError, match=r"it holds w; .*bad\.safetensors ended after"):
        model.info("v")


def test_an_incomplete_or_broken_folder_says_what_is_missing(tmp_path: Path) -> None:
    """A half-downloaded model is not taken for a whole one."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "gone.safetensors"}}))
    with pytest.raises(SourceError, match=r"gone\.safetensors, which is not in the folder"):
        LocalModel(tmp_path)
    index.write_text("{}")
    with pytest.raises(SourceError, match="not a valid index"):
        LocalModel(tmp_path)


def test_a_cached_snapshot_is_read_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id in the Hugging Face cache needs no network."""
    snapshot = tmp_path / "models--team--cached" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    weights = make_sharded(snapshot)
    (tmp_path / "models--team--cached" / "refs").mkdir()
    (tmp_path / "models--team--cached" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert torch.equal(open_model("team/cached").read(NAMES[5]), weights[NAMES[5]])


def test_layers_are_filtered_and_in_numeric_order(tmp_path: Path) -> None:
    """The page's list of layers reads 2 before 10, and finds a name in any case."""
    make_sharded(tmp_path / "m")
    names = [i.name for i in layers(LocalModel(tmp_path / "m"), "UP_PROJ")]
    assert names == NAMES, "layer 10 must come after layer 9"
    assert layers(LocalModel(tmp_path / "m"), "absent") == ()


def test_a_real_model(minilm: Path) -> None:
    """The whole way on a real checkpoint: its tensor count and one layer's known spread."""
    source = open_model(str(minilm))
    assert len(source.infos) == 104
    assert source.matrix("encoder.layer.0.attention.self.query.weight").values.std() == pytest.approx(
        0.0955, abs=1e-3
    )
