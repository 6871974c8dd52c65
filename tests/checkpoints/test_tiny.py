"""What readers make of tiny copies of models: known before a survey.

If these fail, hours of a survey end in a refusal by the reader, or a model that can be written is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from explorer.checkpoints import ModelFolder, tiny
from explorer.models.files import Role, role_of
from explorer.models.skeleton import Skeleton
from tests.covering import sampled

KINDS = {
    "bert": ("BertModel", ""),
    "modernbert": ("ModernBertModel", "cannot open it"),
    "deepseek_v4": ("DeepseekV4ForCausalLM", ""),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", "cannot open it"),
    "hy_v4": ("HYV4ForCausalLM", "cannot run it"),
    "kimi_linear": ("KimiLinearForCausalLM", "cannot open it"),
    "llama4_text": ("Llama4ForCausalLM", ""),
    "longcat_flash": ("LongcatFlashForCausalLM", ""),
}
"""Name of a configuration -> the class of the network, and what transformers 5.23 with compressed-tensors
says of its checkpoint."""


@pytest.mark.parametrize("kind", sampled(KINDS, ("modernbert",)))
def test_a_reader_is_tried_on_a_tiny_copy(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it said is kept: the second answer makes no copy."""
    monkeypatch.setenv("EXPLORER_KERNEL_CACHE", str(tmp_path / "kernels"))
    network, said = KINDS[kind]
    config = transformers.CONFIG_MAPPING[kind]()
    config.architectures, config.dtype = [network], "bfloat16"
    network_class = getattr(transformers, network)
    network_class(tiny.shrunk(config)).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    model = ModelFolder(tmp_path / "model")
    found = tiny.reader_refusal("compressed-tensors", model)
    assert (said in found and "tiny copy" in found) if said else not found, found
    if said:
        with pytest.raises(ValueError, match="cannot carry this model"):
            tiny.check_reader("compressed-tensors", model)
        (note,) = tiny.note_of(str(tmp_path / "model"))
        assert said in note
    monkeypatch.setattr(tiny, "tried", None)
    assert tiny.reader_refusal("compressed-tensors", model) == found
    if network.endswith("ForCausalLM"):
        assert isinstance(model.skeleton, Skeleton)
        roles = [role_of(info, model.skeleton) for info in model.infos]
        assert roles.count(Role.HEAD) == (not model.tied)


def test_kinds_of_layers_that_take_turns_all_stay() -> None:
    """Else the kind that a reader fails at is not in the copy."""
    config = transformers.CONFIG_MAPPING["qwen3_next"]()
    kinds = set(config.layer_types)
    assert set(tiny.shrunk(config).layer_types) == kinds and config.hidden_size > 1000
