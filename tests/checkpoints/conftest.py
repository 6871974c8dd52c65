"""A causal model small enough to be exported in every layout, and what our codes make of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from explorer.methods.recipe import Recipe
from explorer.models.quantize import rounding
from tests.checkpoints.reading import Expected

TEXT = "Every layer of a model is rounded by a scheme of its own."


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The models are so small that a second thread costs more than it gives."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama of two layers in two shards, and its tokenizer; rows of 256 and 512."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=288,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
    )
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="3MB")
    _tokenizer().save_pretrained(folder)
    (folder / "LICENSE").write_text("of the model", encoding="utf-8")
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=288, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="session")
def original(llama: Path) -> LlamaForCausalLM:
    """The model before."""
    return LlamaForCausalLM.from_pretrained(llama).eval()


@pytest.fixture(scope="session")
def layers(original: LlamaForCausalLM) -> list[str]:
    """The names of its linear layers but for the head."""
    linear = [name for name, part in original.named_modules() if isinstance(part, nn.Linear)]
    return [name for name in linear if name != "lm_head"]


@pytest.fixture(scope="session")
def tokens(llama: Path) -> Tensor:
    """int64 [1, tokens] of ``TEXT``."""
    return PreTrainedTokenizerFast.from_pretrained(llama)(TEXT, return_tensors="pt").input_ids


@pytest.fixture(scope="session")
def expected(original: LlamaForCausalLM) -> Expected:
    """(recipes of layers, dtype, whether layers are joined) -> the original with weights as our
    codes restore them."""

    def model(
        recipes: Mapping[str, Recipe], dtype: torch.dtype = torch.float32, joined: bool = False
    ) -> LlamaForCausalLM:
        made = copy.deepcopy(original)
        rounded = rounding(recipes, joined, lambda name: original.get_submodule(name).weight.data)
        for name in recipes:
            made.get_submodule(name).weight.data = rounded(name).dequantize()
        for parameter in made.parameters():  # and no buffer: the rotation's frequencies stay float32
            parameter.data = parameter.data.to(dtype)
        return made

    return model
