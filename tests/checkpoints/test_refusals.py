"""Models and layers that a reader would run or restore as others: refused before anything is written.

If these fail, a checkpoint is written whose model gives other answers than the one that was quantized.
"""

from __future__ import annotations

from typing import Any

import pytest

from explorer import SCHEMES, Scheme
from explorer.checkpoints import gguf_models, onnx_layers, onnx_models

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 100,
    "max_position_embeddings": 64,
}  # fmt: skip
QWEN2 = LLAMA | {"model_type": "qwen2", "sliding_window": 4}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"hidden_act": "gelu"}, "activation is 'gelu'"),
        ({"hidden_act": None}, "activation is None"),
        ({"model_type": "phi"}, "not of 'phi'"),
    ],
)
def test_gguf_says_what_its_readers_run_otherwise(change: dict[str, Any], words: str) -> None:
    assert words in gguf_models.refusal(LLAMA | change) and bool(gguf_models.refusal(LLAMA | change)) == bool(
        words
    )


def test_gguf_names_what_a_configuration_lacks() -> None:
    """transformers has defaults of its own; a file needs the number."""
    lacking = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    assert "does not say 'max_position_embeddings'" in gguf_models.refusal(lacking)


@pytest.mark.parametrize(
    ("change", "window", "refused"),
    [
        ({}, None, False),  # off unless it is switched on
        ({"use_sliding_window": True, "max_window_layers": 0}, 4, False),
        ({"use_sliding_window": True, "max_window_layers": 3}, None, False),
        ({"use_sliding_window": True, "max_window_layers": 2}, None, True),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, None, True),
        ({"layer_types": ["sliding_attention"] * 3}, 4, False),
        ({"model_type": "mistral"}, 4, False),
    ],
)
def test_onnx_has_one_window_for_all_layers(
    change: dict[str, Any], window: int | None, refused: bool
) -> None:
    """Which layers of Qwen2 see a window of tokens is said in three places."""
    config = QWEN2 | change
    assert ("see a window" in onnx_models._decoder_refusal(config)) is refused
    assert refused or onnx_models._window(config) == window


@pytest.mark.parametrize(("rows", "refused"), [(4, False), (8, False), (5, True), (6, True), (33, True)])
def test_two_bits_need_whole_bytes_of_rows_in_onnx(rows: int, refused: bool) -> None:
    """ONNX Runtime 1.31.1 restores others wrongly with its optimizer on."""
    scheme = Scheme.parse("int2~1x32~SYMMETRIC~float32~minmax")
    assert ("wrongly" in onnx_layers.refuses_dequantize(scheme, (rows, 64))) is refused
    assert "wrongly" not in onnx_layers.refuses_dequantize(SCHEMES["int4_group32"], (rows, 64))
