"""The small Llama of the exports' tests, which every target holds, and recipes for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from explorer.methods.recipe import Recipe
from explorer.survey import ModelRecipe
from tests.checkpoints.conftest import expected, layers, original, tokens
from tests.checkpoints.conftest import llama as ending_llama

__all__ = ["ending_llama", "expected", "layers", "original", "tokens"]
PROMPT = "Every layer of a model"


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    """The models are so small that a second thread costs more than it gives."""


@pytest.fixture(scope="session")
def llama(ending_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same Llama with a logit of 0 for all tokens but printable ASCII: its text does not end, and a token
    is a character or more."""
    folder = tmp_path_factory.mktemp("endless") / "tiny-llama"
    shutil.copytree(ending_llama, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(ending_llama)
    model = LlamaForCausalLM.from_pretrained(ending_llama)
    with torch.no_grad():
        for token, weight in enumerate(model.lm_head.weight):
            text = tokenizer.decode([token], skip_special_tokens=True)
            if not (text and text.isascii() and text.isprintable()):
                weight.zero_()
    model.save_pretrained(folder)
    return folder


def recipe_of(layers: list[str], *schemes: str) -> ModelRecipe:
    """``schemes`` in turn for ``layers``."""
    chosen = {name: Recipe.parse(schemes[i % len(schemes)]) for i, name in enumerate(layers)}
    return ModelRecipe("tiny-llama", None, "", chosen)
