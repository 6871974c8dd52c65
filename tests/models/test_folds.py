"""Factors folded into the layer before: what is accepted leaves the network what it was.

If these fail, a checkpoint of AWQ's codes is another network than the one that was checked.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from explorer.models.folds import find_folds, run_of

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONFIG = {"Gemma3": "Gemma3Text"}
"""Configurations that are not named as their networks."""
RUN = run_of({"input_ids": torch.arange(3, 23)[None]})


def network(name: str, **more: Any) -> nn.Module:
    """A random network whose norms are no ones and whose biases are no zeros."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{CONFIG.get(name, name)}Config")(**TINY | ENDS | more)
    made = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def linear(made: nn.Module) -> list[str]:
    return [n for n, m in made.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]


FOLDED = [
    ("Llama", {}, 7, 0),
    ("Llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}, 7, 0),
    ("Mistral", {}, 7, 0),
    ("Qwen2", {}, 7, 0),
    ("Qwen3", {}, 7, 0),
    ("SmolLM3", {}, 7, 0),
    ("Phi3", {}, 4, 0),
    ("Gemma3", {}, 7, 0),
    ("Olmo2", {}, 2, 5),
    ("Olmo3", {}, 2, 5),
]
"""Of a block: linear layers that have a fold, and those that are refused."""


@pytest.mark.parametrize(("name", "more", "folded", "refused"), FOLDED)
def test_a_fold_changes_no_output(name: str, more: dict[str, Any], folded: int, refused: int) -> None:
    """With factors over two decades in all folds at once."""
    made = network(name, **more)
    before = copy.deepcopy(made.state_dict())
    folds, why = find_folds(made, RUN, linear(made))
    assert all(torch.equal(before[key], value) for key, value in made.state_dict().items())
    readers = [reader for fold in folds for reader in fold.readers]
    assert (len(set(readers)), len(why)) == (2 * folded, 2 * refused), why
    assert len(readers) == len(set(readers))
    expected = RUN(made)
    for fold in folds:
        fold.apply(made, torch.randn(len(fold.rows)).exp())
    assert torch.allclose(RUN(made), expected, atol=1e-5 * float(expected.abs().max()), rtol=0)
    changed = {name for fold in folds for name in fold.parameters(made)}
    after = made.state_dict()
    assert changed == {key for key in before if not torch.equal(before[key], after[key])}


def test_refusals_say_who_else_reads() -> None:
    """The residual stream of a BERT reads its norms too, and an activation lies between its two products."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, vocab_size=96
    )
    made = transformers.BertModel(config, add_pooling_layer=False).eval()
    folds, why = find_folds(made, RUN, linear(made))
    block = "encoder.layer.0"
    assert {name: fold.writer for fold in folds for name in fold.readers} == {
        f"{block}.attention.output.dense": f"{block}.attention.self.value"
    }
    inner = {f"{block}.attention.self.{part}" for part in ("query", "key", "value")}
    assert set(why) == inner | {f"{block}.intermediate.dense", f"{block}.output.dense"}
    assert "embeddings.LayerNorm" in why[f"{block}.attention.self.query"]
    assert "tried: " in why[f"{block}.output.dense"]


def test_a_layer_without_effect_proves_nothing() -> None:
    """Any fold leaves the outputs as they are where a layer multiplies by zero: none is accepted for it."""
    made = network("Llama")
    down = "model.layers.0.mlp.down_proj"
    made.get_submodule(down).weight.data.zero_()
    folds, why = find_folds(made, RUN, [down])
    assert folds == [] and "do not depend on it" in why[down]


def test_a_rounded_norm_is_divided_by_what_it_says() -> None:
    """A norm in bfloat16 holds 8 bits of the quotient; its readers make up for the rest."""
    made = network("Llama")
    folds, _ = find_folds(made, RUN, [n for n in linear(made) if "down" not in n and "o_proj" not in n])
    for parameter in made.parameters():
        parameter.data = parameter.data.bfloat16().float()
    expected = RUN(made)
    for fold in folds:
        factor = torch.randn(len(fold.rows)).exp()
        real = fold.apply(made, factor, torch.bfloat16)
        weight = made.get_submodule(fold.writer).weight
        assert torch.equal(weight, weight.bfloat16().float())
        assert not torch.equal(real, factor) and torch.allclose(real, factor, rtol=2**-8)
    assert torch.allclose(RUN(made), expected, atol=1e-5 * float(expected.abs().max()), rtol=0)
