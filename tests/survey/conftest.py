"""Surveys to choose from, made up or of tiny models."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from explorer.checkpoints import EXPORTS
from explorer.checkpoints.target import Export
from explorer.cli import main
from explorer.models.capture import Model, load_model
from explorer.survey import Head, Layer, Role, Survey, depth_of, kind_of, load_survey

PARTS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
TEXTS = (
    "the cat sleeps on the warm roof",
    "she counts the ships and puts out the lamp",
    "salt lowers the freezing point of water",
    "the train was late again",
)
SEEN = ("the cat sleeps on the warm roof", "the train was late again", "salt lowers the roof")
HELD_OUT = ("she counts the ships", "the lamp was late", "the cat counts water and salt")
UP, DOWN, QUERY = (f"model.layers.{one}_proj" for one in ("0.mlp.up", "0.mlp.down", "1.self_attn.q"))
"""Layers of ``tiny_llama``."""
SURVEYED = ("int3_group64_asym", "int4_group64", "nvfp4", "int8_row", "fp8_e4m3_row")
SIZES = {
    "int2_group64_asym": 2.28,
    "int3_group64_asym": 3.3,
    "int4_group128_asym": 4.16,
    "nvfp4": 4.5,
    "mxfp6_e2m3": 6.25,
    "int8_row": 8.04,
}
"""Bits per weight of the schemes of ``made_up``."""
SCHEMES = tuple(SIZES)


def target(**rows: Any) -> Export:
    """A checkpoint format that carries the layers of ``made_up`` as ``rows`` of ``Export`` say."""
    plain = {"refuses": lambda scheme, shape: "", "family": lambda scheme: "", "around": None, "fused": False}
    bits = {"bits": lambda scheme, shape, dtype: SIZES[str(scheme)], "usual": ()}
    return dataclasses.replace(EXPORTS["onnx"], **(plain | bits | rows))


@pytest.fixture
def made_up() -> Survey:
    """Three blocks of seven layers, each with costs that fall about fourfold a bit, and not quite
    convexly."""
    draw = random.Random(0)
    layers = [Layer("model.embed_tokens", (1000, 64), "BF16", Role.EMBEDDING, "other", None)]
    for block in range(3):
        for part in PARTS:
            name, shape = f"model.layers.{block}.{part}", (draw.choice((64, 128)), 64)
            worth = 10 ** draw.uniform(-4, -1)
            fisher = {s: worth * 4**-b * draw.uniform(0.6, 1.6) for s, b in SIZES.items()}
            weight = {s: 4**-b * shape[0] for s, b in SIZES.items()}
            costs = {"weight": weight, "fisher_diagonal": fisher}
            kind = kind_of(name)
            layers.append(
                Layer(name, shape, "BF16", Role.LINEAR, kind, depth_of(name), 10.0, SIZES, costs, worth)
            )
    costs = {"weight": dict.fromkeys(SCHEMES, 1.0), "fisher_diagonal": dict.fromkeys(SCHEMES, 5.0)}
    layers.append(Layer("lm_head", (1000, 64), "BF16", Role.HEAD, "other", None, 10.0, SIZES, costs, 1.0))
    head = Head(
        "made/up",
        None,
        "ab" * 32,
        SCHEMES,
        ("weight", "fisher_diagonal"),
        "fisher_diagonal",
        len(layers),
        300_000,
        128_000,
        "next token",
        texts=3,
        tokens=90,
    )
    return Survey(head, tuple(layers))


def tokenizer_of(folder: Path) -> None:
    """A word a token, for the words of the built-in texts that are there."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({w for text in TEXTS for w in text.split()})
    vocabulary = {word: i for i, word in enumerate(("[PAD]", "[UNK]", *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder
    )


def random_llama(folder: Path, seed: int, **sizes: Any) -> Path:
    """Write a random Llama of ``sizes``, 64 words and 64 channels, and a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    usual = {"vocab_size": 64, "hidden_size": 64, "max_position_embeddings": 64, "initializer_range": 0.2}
    usual |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(**(usual | sizes))
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer_of(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama of two blocks, a head of its own, and a tokenizer."""
    return random_llama(
        tmp_path_factory.mktemp("models") / "tiny-llama",
        seed=1,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


@pytest.fixture(scope="session")
def llama(tiny_llama: Path) -> Model:
    """The model in ``tiny_llama``, with its head. Tests leave it as it is."""
    return load_model(str(tiny_llama), head=True)


@pytest.fixture(scope="session")
def files(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By name: the model, texts, its survey by ``SURVEYED``, and a recipe."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "seen.txt").write_text("\n\n".join(SEEN))
    (folder / "held-out.txt").write_text("\n".join(HELD_OUT))
    (folder / "blank.txt").write_text("\n \n")
    (folder / "odd.json").write_text("{}")
    rows = [
        {"body": "the cat sleeps", "kind": "prose"},
        {"body": "the roof", "kind": "code"},
        {"body": "cat"},
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {p.stem: str(p) for p in folder.iterdir()} | {"model": str(tiny_llama), "folder": str(folder)}
    names |= {new: str(folder / new) for new in ("new", "survey", "recipe")}
    command = ["survey", names["model"], "--text", names["seen"], "--schemes", ",".join(SURVEYED)]
    assert main([*command, "--out", names["survey"], "--json"]) == 0
    assert main(["recipe", names["survey"], "--bits", "4.6", "--out", names["recipe"], "--json"]) == 0
    return names


@pytest.fixture(scope="session")
def tiny_survey(files: dict[str, str]) -> Survey:
    """The survey of ``files``."""
    return load_survey(files["survey"])


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random BERT of one block with a pooler, and a tokenizer."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    torch.manual_seed(2)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = BertConfig(vocab_size=64, max_position_embeddings=64, initializer_range=0.2, **sizes)
    BertModel(config).save_pretrained(folder)
    tokenizer_of(folder)
    return folder
