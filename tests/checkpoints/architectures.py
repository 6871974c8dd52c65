"""Tiny models of the architectures that people use, a row each, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 128, "max_position_embeddings": 128,
}  # fmt: skip
VISION = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
LINEAR_ATTENTION = TEXT | {
    "num_hidden_layers": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
DEEPSTACK = VISION | {
    "depth": 2, "num_heads": 2, "out_hidden_size": 64, "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16, "spatial_merge_size": 2,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}


def words(count: int = 24) -> dict[str, Tensor]:
    """Token ids [1, count], none of which is special."""
    return {"input_ids": torch.randint(8, 120, (1, count), generator=torch.Generator().manual_seed(0))}


def both_sides() -> dict[str, Tensor]:
    """Token ids of an encoder and of its decoder."""
    return words() | {"decoder_input_ids": words(7)["input_ids"]}


def picture() -> dict[str, Tensor]:
    """Pixels [1, 3, 28, 28]."""
    return {"pixel_values": torch.randn(1, 3, 28, 28, generator=torch.Generator().manual_seed(0))}


def sound() -> dict[str, Tensor]:
    """A spectrum [1, 80, 3000] and a decoder's token ids."""
    spectrum = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    return {"input_features": spectrum, "decoder_input_ids": words(7)["input_ids"]}


@dataclass(frozen=True)
class Architecture:
    """A class of transformers and its configuration; ``asked`` gives the inputs of a run.

    linear, refused  how many matrices of the files can hold codes, and how many cannot
    thorough         run by `make test-all` alone
    """

    network: str
    config: str
    settings: Mapping[str, Any]
    linear: int
    refused: int
    asked: Callable[[], dict[str, Tensor]] = field(default=words)
    thorough: bool = False

    def save(self, folder: Path) -> Path:
        """Write the model into ``folder``."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.settings)
        getattr(transformers, self.network)(config).eval().save_pretrained(folder)
        return folder


ARCHITECTURES = {
    "llama with biases": Architecture(
        "LlamaForCausalLM", "LlamaConfig", TEXT | {"attention_bias": True, "mlp_bias": True}, 15, 1,
        thorough=True,
    ),
    "mixtral": Architecture(
        "MixtralForCausalLM", "MixtralConfig", TEXT | {"num_local_experts": 4}, 33, 3,
    ),
    "qwen3 moe": Architecture(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig", TEXT | EXPERTS, 33, 3,
    ),
    "qwen3 next": Architecture(
        "Qwen3NextForCausalLM", "Qwen3NextConfig", TEXT | EXPERTS |
        {"shared_expert_intermediate_size": 64, "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "num_hidden_layers": 4}, 78, 5, thorough=True,
    ),
    "deepseek v3": Architecture(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", {"hidden_size": 64, "intermediate_size": 128,
        "moe_intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 32,
        "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "vocab_size": 128}, 49, 3,
        thorough=True,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", "GptOssConfig", TEXT | {"num_local_experts": 4,
        "num_experts_per_tok": 2}, 9, 3,
    ),
    "gemma 3 with vision": Architecture(
        "Gemma3ForConditionalGeneration", "Gemma3Config", {"text_config": TEXT,
        "vision_config": VISION, "mm_tokens_per_image": 4}, 14, 17, thorough=True,
    ),
    "nemotron-h": Architecture(
        "NemotronHForCausalLM", "NemotronHConfig", {"hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
        "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1,
        "layers_block_type": ["mamba", "attention", "mlp"]}, 8, 2,
    ),
    "mamba 2": Architecture(
        "Mamba2ForCausalLM", "Mamba2Config", {"hidden_size": 64, "num_heads": 8, "head_dim": 16,
        "num_hidden_layers": 2, "vocab_size": 128, "state_size": 16, "n_groups": 1, "expand": 2},
        2, 4,
    ),
    "lfm2": Architecture(
        "Lfm2ForCausalLM", "Lfm2Config", TEXT | {"layer_types": ["conv", "full_attention"]}, 12, 1,
    ),
    "gemma 4": Architecture(
        "Gemma4ForCausalLM", "Gemma4TextConfig", TEXT | {"hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 128}, 19, 2, thorough=True,
    ),
    "qwen3.5": Architecture(
        "Qwen3_5ForCausalLM", "Qwen3_5TextConfig", LINEAR_ATTENTION, 32, 1, thorough=True,
    ),
    "qwen3.5 with vision": Architecture(
        "Qwen3_5ForConditionalGeneration", "Qwen3_5Config", {"text_config": LINEAR_ATTENTION,
        "vision_config": DEEPSTACK}, 42, 2, thorough=True,
    ),
    "qwen3-vl": Architecture(
        "Qwen3VLForConditionalGeneration", "Qwen3VLConfig", {"text_config": TEXT,
        "vision_config": DEEPSTACK}, 27, 2, thorough=True,
    ),
    "vit": Architecture(
        "ViTForImageClassification", "ViTConfig", VISION, 13, 0, picture,
    ),
    "t5": Architecture(
        "T5ForConditionalGeneration", "T5Config", {"d_model": 64, "d_kv": 16, "d_ff": 128,
        "num_layers": 2, "num_heads": 4, "vocab_size": 128}, 0, 35, both_sides,
    ),
    "bert for next sentences": Architecture(
        "BertForNextSentencePrediction", "BertConfig", {"hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}, 14, 3,
    ),
    "whisper": Architecture(
        "WhisperForConditionalGeneration", "WhisperConfig", {"d_model": 64, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 128, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}, 32, 3, sound,
    ),
}  # fmt: skip
