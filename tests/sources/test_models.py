"""Layers of models, local and on a stand-in for the Hub: right bytes, few bytes, and clear refusals.

If these fail, a layer of the Hub is another than the model's, costs a download of the model, or a hostile
repository gets further than it should.
"""

from __future__ import annotations

import json
import struct
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
from tests.sources.hostile import framed

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


def test_hub_rows_cost_only_those_rows(hub: Hub) -> None:
    """Rows of a layer too large for here are all that is sent; progress ends at the layer's bytes."""
    remote = HubModel("team/sharded", endpoint=hub.url)
    before = hub.sent
    cut = remote.matrix(NAMES[0], max_elements=384 * 10)
    assert tuple(cut.values.shape) == (10, 384) and hub.sent - before == 10 * 384 * 4
    seen: list[tuple[int, int]] = []
    remote.read(NAMES[1], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (256 * 384 * 2, 256 * 384 * 2)


def test_hub_refusals_say_why(hub: Hub) -> None:
    """Each way the Hub can refuse is told apart. A public page sends no token, and advises no login."""
    hub.gated.add("team/gated")
    for model, revision, words in (
        ("team/missing", None, "no such model"),
        ("team/bins", None, "safetensors"),
        ("team/gated", None, "gated"),
        ("team/single", "nope", "no such revision"),
    ):
        with pytest.raises(SourceError, match=words):
            HubModel(model, revision, endpoint=hub.url)
    for model in ("team/gated", "team/missing"):
        with pytest.raises(SourceError, match="public") as refusal:
            HubModel(model, None, endpoint=hub.url, limits=HOSTED)
        assert "HF_TOKEN" not in str(refusal.value)


def test_a_hub_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A network error and HF_HUB_OFFLINE are told apart from a missing model. A public page opens no folder
    and no cache of its machine, and says nothing of what they hold."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    for offline, words in ((False, "cannot be reached"), (True, "switched off")):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        with pytest.raises(SourceError, match=words):
            HubModel("team/single", endpoint="http://127.0.0.1:9")
        with pytest.raises(SourceError, match=words) as refusal:
            HubModel("team/single", endpoint="http://127.0.0.1:9", limits=HOSTED)
        assert "cache" not in str(refusal.value) and "folder" not in str(refusal.value)
    with pytest.raises(SourceError, match=r"cache.* switched off"):
        open_model("team/single")


def test_a_server_without_ranges_is_not_downloaded(hub: Hub) -> None:
    """A mirror that ignores Range would send the whole model for every layer: it is refused."""
    remote = HubModel("team/single", endpoint=hub.url)
    hub.honour_ranges = False
    with pytest.raises(SourceError, match="whole files"):
        remote.read("w")


GOOD: dict[str, object] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
LIES: list[tuple[bytes, str]] = [
    (framed(json.dumps({"w": GOOD | {"data_offsets": [0, 12]}}).encode(), bytes(16)), "12 bytes, .* 16"),
    (framed(json.dumps({"w": GOOD | {"data_offsets": [16, 0]}}).encode(), bytes(16)), "-16 bytes"),
    (framed(json.dumps({"w": GOOD | {"data_offsets": [-16, 0]}}).encode(), bytes(16)), "16 bytes"),
    (framed(json.dumps({"w": GOOD | {"dtype": "F33"}}).encode(), bytes(16)), "does not know"),
    (framed(json.dumps({"w": {"dtype": "F32", "shape": [4]}}).encode(), bytes(16)), "does not know"),
    (struct.pack("<Q", 400) + b"{}", "2 of 400 bytes"),
    (b"abc", "3 of 8 bytes"),
]


def test_a_header_that_contradicts_itself_is_refused(hub: Hub, tmp_path: Path) -> None:
    """A stranger's header never decides how much is read: spans, shapes and dtypes must agree."""
    for data, fact in LIES:
        (tmp_path / "single" / "model.safetensors").write_bytes(data)
        with pytest.raises(SourceError, match=fact):
            HubModel("team/single", endpoint=hub.url)


def test_local_refusals(tmp_path: Path) -> None:
    """What is neither a model's folder nor a Hub id is refused with what it is instead."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.bin").write_bytes(b"x")
    for where, words in (
        (str(tmp_path / "empty"), r"no \.safetensors"),
        (str(tmp_path / "file.bin"), "files end in"),
        ("not a/valid/id!", "no Hub id"),
        ("", "model"),
    ):
        with pytest.raises(SourceError, match=words):
            open_model(where)


def test_a_broken_file_of_a_folder_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    """One bad download does not hide the good files; it is named wherever its tensors are missed."""
    (tmp_path / "bad.safetensors").write_bytes(b"abc")
    with pytest.raises(SourceError, match=r"bad\.safetensors ended after 3 of 8"):
        LocalModel(tmp_path)
    save_file({"w": torch.ones(2, 2)}, tmp_path / "good.safetensors")
    save_file({"w": torch.zeros(5, 7)}, tmp_path / "later.safetensors")
    model = LocalModel(tmp_path)
    assert [i.name for i in model.infos] == ["w"] and torch.equal(model.read("w"), torch.ones(2, 2))
    assert "bad.safetensors ended after 3 of 8" in model.broken[0]
    assert model.broken[1:] == ("later.safetensors: an earlier file holds w too (1 left out)",)
    with pytest.raises(SourceError, match=r"w; .*bad\.safetensors"):
        model.info("v")


def test_an_incomplete_or_broken_folder_says_what_is_missing(tmp_path: Path) -> None:
    """A half-downloaded model is not taken for a whole one; an index leads to no file elsewhere."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "gone.safetensors"}}))
    with pytest.raises(SourceError, match=r"gone\.safetensors"):
        LocalModel(tmp_path)
    for entry in ("../secret.safetensors", "/etc/passwd", "a\\b.safetensors"):  # out of the folder
        index.write_text(json.dumps({"weight_map": {"w": entry}}))
        with pytest.raises(SourceError, match="plain file name"):
            LocalModel(tmp_path)
    index.write_text("{}")
    with pytest.raises(SourceError, match="not a valid index"):
        LocalModel(tmp_path)


def test_the_index_says_which_file_holds_a_tensor(hub: Hub, tmp_path: Path) -> None:
    """On this machine and on the Hub. If this fails, a stale copy in another shard is read (vLLM pull 54230),
    or a tensor that was promised is missing without a word (vLLM issue 34859)."""
    folder, w = tmp_path / "sharded", torch.randn(4, 4)
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for path in folder.iterdir():
        path.unlink()
    save_file({"a": w, "b": torch.zeros(4, 4), "extra": w.clone()}, folder / shards[0])
    save_file({"b": w}, folder / shards[1])
    save_file({"c": w}, folder / "consolidated.safetensors")
    places = {"a": shards[0], "b": shards[1]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    models = [LocalModel(folder), HubModel("team/sharded", endpoint=hub.url)]
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {**places, "zz": shards[0]}})
    )
    models += [LocalModel(folder), HubModel("team/sharded", endpoint=hub.url)]
    for promised, model in zip(("", "", "zz", "zz"), models, strict=True):
        assert [info.name for info in model.infos] == ["a", "extra", "b"] and torch.equal(model.read("b"), w)
        assert promised in "".join(model.broken) and bool(model.broken) == bool(promised)
    with pytest.raises(SourceError, match="promises zz"):
        models[2].read("zz")
    (folder / "model.safetensors.index.json").unlink()
    assert [info.name for info in LocalModel(folder).infos] == ["a", "b", "extra"]
    (folder / shards[0]).rename(folder / "model.safetensors")
    assert {path.name for path in LocalModel(folder).paths} == {"model.safetensors"}


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
    assert len(layers(LocalModel(tmp_path / "m"), "up", most=12)) == 12
    with pytest.raises(SourceError, match=r"12 tensors .* up to 11 "):
        layers(LocalModel(tmp_path / "m"), "up", most=11)
    odd = ["²", "w²", "w2", "٣", "w10", "w" + "9" * 900]  # ² is a digit to Python, and no number
    save_file({name: torch.ones(1, 2) for name in odd}, tmp_path / "x.safetensors")
    assert {info.name for info in layers(LocalModel(tmp_path))} == set(odd)
