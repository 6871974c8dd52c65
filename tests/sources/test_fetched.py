"""Models that are fetched to be run: within limits, into a cache with a quota, and never filled up by chance.

If these fail, a hosted page's disk fills for good, or a model's numbers are those of random weights.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from lying_hub import Answer, LyingHub, body, info, named, ranged, serve
from safetensors.torch import save
from torch import nn

from app import limits as page_limits
from explorer import SourceError
from explorer.models import capture, skeleton
from explorer.models.capture import load_model
from explorer.progress import StoppedError, stoppable
from explorer.sources import fetched
from explorer.sources.fetched import fetch_model
from explorer.sources.models import HubModel
from explorer.sources.source_limits import HOSTED

CONFIG: dict[str, object] = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 6, "max_position_embeddings": 16,
    "type_vocab_size": 2,
}  # fmt: skip
VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\n"
LIMITS = dataclasses.replace(HOSTED, runs=None, fetch_bytes=70 << 20, cache_bytes=70 << 20)


def weights(config: dict[str, object] = CONFIG) -> dict[str, torch.Tensor]:
    """Random weights of the network that ``config`` describes."""
    from transformers import BertConfig, BertModel

    return {k: v.clone() for k, v in BertModel(BertConfig(**config)).state_dict().items()}


def answers(tensors: dict[str, torch.Tensor], config: object = CONFIG, **more: Answer) -> dict[str, Answer]:
    """A repository that transformers can load."""
    return {
        "models/a/b": info(named("config.json", "vocab.txt", "tokenizer_config.json", "model.safetensors")),
        "tokenizer_config.json": body(b'{"tokenizer_class": "BertTokenizer"}'),
        "config.json": body(json.dumps(config).encode()),
        "vocab.txt": body(VOCABULARY.encode()),
        "model.safetensors": ranged(save(tensors)),
        **more,
    }


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("EXPLORER_MODEL_CACHE", str(tmp_path / "models"))


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Callable[[LyingHub], None]:
    """Make a stand-in the Hub of this process."""
    return lambda hub: monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)


def test_a_model_is_fetched_once_and_run(endpoint: Callable[[LyingHub], None]) -> None:
    """The whole way of a hosted page: headers, files, network; the second time nothing but headers."""
    with serve(answers(weights())) as hub:
        endpoint(hub)
        model = load_model("a/b", limits=LIMITS)
        assert model.name == "a/b" and sum(p.numel() for p in model.network.parameters()) > 100
        before = len(hub.asked)
        load_model("a/b", limits=LIMITS)
        assert not [a for a in hub.asked[before:] if a.path.endswith(("config.json", "vocab.txt"))]


CONFIGS: list[tuple[object, str]] = [
    (CONFIG | {"num_hidden_layers": 60}, "would be random"),
    (CONFIG | {"num_hidden_layers": 10**9}, "layers times experts"),
    (CONFIG | {"text_config": {"n_layer": 10**9}}, "layers times experts"),
    ({"model_type": "levit", "image_size": 10**5}, "reads no text"),  # built in minutes
    (CONFIG | {"backbone_config": {"num_classes": 10**9}}, "blocks or labels"),
    (CONFIG | {"num_labels": 10**9}, "blocks or labels"),  # of which transformers makes lists
    (CONFIG | {"vision_config": {"depth": 50_000}}, "blocks or labels"),
    (CONFIG | {"depths": [9_000] * 3}, "blocks or labels"),
    (CONFIG | {"attn_implementation": "owner/kernel"}, "code of the Hub, owner/kernel"),
    (CONFIG | {"model_type": "nonsense"}, "could not be loaded"),
    ([], "could not be loaded"),
]


def test_a_config_that_asks_for_more_than_there_is(endpoint: Callable[[LyingHub], None]) -> None:
    """transformers would draw what is missing at random, and the page would show that as the model's. Other
    weights in their place do not help: their number alone tells nothing."""
    few = {k: v for k, v in weights().items() if "query" not in k} | {"other": torch.zeros(10_000)}
    cases = [(weights(), config, words) for config, words in CONFIGS]
    for tensors, config, words in [*cases, (few, CONFIG, "lacks 2 of the weights")]:
        with serve(answers(tensors, config)) as hub:
            endpoint(hub)
            with pytest.raises(SourceError, match=words):
                load_model("a/b", limits=LIMITS)


def test_a_network_is_built_of_few_modules(
    endpoint: Callable[[LyingHub], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a config calls their number; and it can be stopped meanwhile. Other packages are not asked to
    quantize what is loaded."""
    coded = CONFIG | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    with serve(answers(weights(), coded)) as hub:
        endpoint(hub)
        model = load_model("a/b", limits=LIMITS)
        assert {parameter.dtype for parameter in model.network.parameters()} == {torch.float32}
        monkeypatch.setattr(capture, "_MOST_MODULES", 20)
        with pytest.raises(SourceError, match="more than 20 modules"):
            load_model("a/b", limits=LIMITS)

    def stop() -> None:
        raise StoppedError("the visitor has left")

    with pytest.raises(StoppedError), stoppable(stop), skeleton.few_modules("x", 10**6), capture.loading("x"):
        nn.Sequential(*(nn.Identity() for _ in range(100)))


def test_a_model_beyond_the_limit_is_not_begun() -> None:
    """Its size is known from the headers."""
    few = dataclasses.replace(LIMITS, fetch_bytes=(64 << 20) + 100)
    with serve(answers({"w": torch.zeros(1000)})) as hub:
        model = HubModel("a/b", endpoint=hub.url, limits=few)
        before = len(hub.asked)
        with pytest.raises(SourceError, match="up to 100 "):
            fetch_model(model, few)
        assert len(hub.asked) == before


def test_a_broken_fetch_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a model is not taken for a whole one. Its small files together have one limit: a dozen of that
    size each would not be in the quota."""
    small = len(json.dumps(CONFIG)) + 20
    for more, room, words in (
        ({"vocab.txt": body(b"", 500)}, 1 << 20, "answered 500"),
        ({}, small, "more than"),
    ):
        monkeypatch.setattr(fetched, "_SMALL_BYTES", room)
        with serve(answers(weights(), **more)) as hub:
            model = HubModel("a/b", endpoint=hub.url, limits=LIMITS)
            with pytest.raises(SourceError, match=words):
                fetch_model(model, LIMITS)
        assert not list(fetched.cache_folder().iterdir())


def test_the_cache_has_a_quota() -> None:
    """The least recently used model makes room for the next."""
    data = {"w": torch.zeros(1 << 20)}  # 4 MiB
    room = dataclasses.replace(LIMITS, cache_bytes=(64 << 20) + (9 << 20), fetch_bytes=1 << 30)
    folders = []
    for index in range(3):
        commit = str(index) * 40
        files = named("config.json", "model.safetensors")
        with serve(answers(data) | {"models/a/b": info(files, commit)}) as hub:
            folders.append(fetch_model(HubModel("a/b", endpoint=hub.url, limits=room), room))
        os.utime(folders[-1], (index, index))
    assert [folder.is_dir() for folder in folders] == [False, True, True]


def test_a_fetch_under_way_is_not_deleted_by_another(tmp_path: Path) -> None:
    """A visitor's model would be gone while it is written; what a dead process has left goes."""
    running, left, old = (tmp_path / name for name in ("part-a", "part-b", "model"))
    for folder in (running, left, old):
        folder.mkdir()
        (folder / "w").write_bytes(bytes(100))
    os.utime(left, (0, 0))
    fetched._make_room(tmp_path, 0)
    assert [folder.name for folder in tmp_path.iterdir()] == ["part-a"]


def test_a_strangers_model_is_not_run(endpoint: Callable[[LyingHub], None]) -> None:
    """Its chat template froze a page for 40 s, its tokenizer ended it, its configuration took all memory. Nor
    is what anybody may add to the repository of a model that is run: a change that he asks for."""
    listed = dataclasses.replace(LIMITS, runs=("a/b",))
    with serve(answers(weights())) as hub:
        endpoint(hub)
        for where, revision, bounds in (
            ("a/b", None, HOSTED), ("a/b", "refs/pr/1", listed), ("A/b", None, listed), ("a/c", None, listed)
        ):  # fmt: skip
            with pytest.raises(SourceError, match="not run on text on this page"):
                load_model(where, revision, limits=bounds)
        assert not hub.asked
        assert load_model(" a/b", limits=listed).name == "a/b"


def test_a_host_names_the_models_that_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is none would run no model, without a word."""
    for text, runs in (("", HOSTED.runs), ("a/b, c/d", ("a/b", "c/d")), ("*", None)):
        monkeypatch.setenv(page_limits.RUN_MODELS, text)
        assert page_limits.hosted_sources().runs == runs
    monkeypatch.setenv(page_limits.RUN_MODELS, "a/b nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        page_limits.hosted_sources()
