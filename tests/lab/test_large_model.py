"""What a large model takes: the commands run as printed, on a small one of the same kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.large_model import LLAMA_7B, write_model
from tests.survey.conftest import random_llama

SMALL = {**LLAMA_7B, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model whose tokenizer is taken."""
    return random_llama(tmp_path_factory.mktemp("llama"), seed=0)


def test_a_model_is_written_that_transformers_loads(tokenizer: Path, tmp_path: Path) -> None:
    """All weights are there, in shards that the index names, with the tokenizer's vocabulary."""
    from explorer.models.capture import load_model

    write_model(tmp_path / "made", tokenizer, SMALL)
    model = load_model(str(tmp_path / "made"), head=True)
    assert model.causal and 0.015 < float(model.network.lm_head.weight.detach().std()) < 0.025
