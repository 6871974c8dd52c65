"""Methods ranked by the loss of a model, and what of a value layer's error attention passes on."""

from __future__ import annotations

import pytest
import torch

from explorer.models.capture import Model
from lab.embeddings import METHODS_SCHEMES
from lab.ranking import (
    Seen,
    attended,
)

pytestmark = pytest.mark.usefixtures("one_thread")
INT4, INT3 = METHODS_SCHEMES


def test_attention_mixes_tokens_head_by_head() -> None:
    """Against loops; and where all tokens look at the first, only its values count."""
    torch.manual_seed(0)
    values, output = torch.randn(5, 6), torch.randn(6, 6)
    attention = torch.rand(2, 5, 5).softmax(2)
    naive = torch.zeros(6, dtype=torch.float64)
    for token in range(5):
        mixed = torch.zeros(6, dtype=torch.float64)
        for head in range(2):
            for other in range(5):
                part = slice(3 * head, 3 * head + 3)
                mixed[part] += attention[head, token, other].double() * values[other, part].double()
        naive += output.double() @ mixed / 5
    assert torch.allclose(attended(values, attention, output)[0], naive)
    first = torch.zeros(2, 5, 5)
    first[:, :, 0] = 1
    alone = attended(values, first, output)
    values[1:] = 7
    assert torch.equal(attended(values, first, output), alone)


def test_attention_of_a_model() -> None:
    """Of a small BERT: a share for each head and token, inputs of the layer asked for, token by token."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)

    class Tokenizer:
        chat_template = None

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            ids = [1, *(2 + ord(c) % 40 for c in text)]
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    model = Model(BertModel(config).eval(), Tokenizer(), torch.device("cpu"), "tiny")
    name = "encoder.layer.1.attention.self.value"
    seen = Seen.of(model, ["abc", "defgh"], [name])
    assert [one.shape for one in seen.inputs[name]] == [(4, 8), (6, 8)]
    assert [one.shape for one in seen.attention[1]] == [(2, 4, 4), (2, 6, 6)]
    received = seen.received(name)
    assert received[:4].sum() == pytest.approx(4) and received[4:].sum() == pytest.approx(6)
    assert 0 < seen.on_first(name) < 1
