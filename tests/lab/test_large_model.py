"""What a large model takes: the commands run as printed, on a small one of the same kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.large_model import LLAMA_7B, run_large_model, write_model
from tests.survey.conftest import random_llama

SMALL = {**LLAMA_7B, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model whose tokenizer is taken."""
    return random_llama(tmp_path_factory.mktemp("llama"), seed=0)


@pytest.mark.thorough
def test_every_step_is_a_command_that_ran(tokenizer: Path) -> None:
    """The survey runs the model, the recipe and the checkpoint follow it, and what each took is counted."""
    steps = list(run_large_model(tokenizer, SMALL))
    assert [step.step for step in steps] == ["survey", "recipe", "apply"]
    assert steps[0].signal == "fisher_diagonal" and all(step.file_bytes for step in steps)
    assert all(step.memory and 1e8 < step.memory < 4e9 and step.seconds > 0 for step in steps)
    assert len({step.weights for step in steps}) == 1 and steps[0].stored_bytes > 2 * steps[0].weights
    assert all(step.command.startswith(f"explorer {step.step} ") for step in steps)
    assert "/" not in steps[0].command, "no path of this machine"


def test_a_model_is_written_that_transformers_loads(tokenizer: Path, tmp_path: Path) -> None:
    """All weights are there, in shards that the index names, with the tokenizer's vocabulary."""
    from explorer.models.capture import load_model

    write_model(tmp_path / "made", tokenizer, SMALL)
    model = load_model(str(tmp_path / "made"), head=True)
    assert model.causal and 0.015 < float(model.network.lm_head.weight.detach().std()) < 0.025
