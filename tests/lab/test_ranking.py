"""Methods ranked by the loss of a model, and what of a value layer's error attention passes on.

If these fail, docs/which-format.md explains the order of methods by a quantity that is another one.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from explorer.models.capture import Model
from explorer.models.evaluate import sentences
from lab import docs, ranking
from lab.bias_correction import BiasRow, recorded_bias
from lab.embeddings import METHODS_SCHEMES
from lab.ranking import (
    LONG,
    METHODS,
    NO_INPUTS,
    PASSAGES,
    SHORT,
    WORDS,
    ButFirst,
    LayerLoss,
    RankRow,
    Seen,
    attended,
    passages,
    recorded_ranking,
    row_of,
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


def test_the_first_token_is_the_originals() -> None:
    torch.manual_seed(0)
    changed, original, x = nn.Linear(4, 3), nn.Linear(4, 3), torch.randn(2, 5, 4)
    found = ButFirst(changed, original)(x)
    assert torch.equal(found[:, 0], original(x)[:, 0]) and torch.allclose(found[:, 1:], changed(x)[:, 1:])


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


def test_passages_are_enough_text() -> None:
    """So many, different ones, of so many words; none is among the compared sentences."""
    texts = passages()
    assert len({*texts}) == len(texts) == PASSAGES
    assert all(len(text.split()) == WORDS for text in texts) and not {*texts} & {*sentences()}


def _row(method: str, loss: float, error: float, layer: LayerLoss) -> RankRow:
    calibration = "" if method in NO_INPUTS else LONG
    return RankRow(INT3, method, calibration, 5, 0.1, 0.05, (layer,), loss, 0.01, loss, error, 3.0)


def test_methods_stand_in_the_order_of_the_loss() -> None:
    """With their places by layer error beside it, and the correlation of the two."""
    name = "encoder.layer.3.attention.self.value"
    rows = [
        _row("rtn", 0.20, 0.30, LayerLoss(name, 0.02, 0.2, 0.2, 1.0, 0.5)),
        _row("hqq", 0.30, 0.25, LayerLoss(name, 0.08, 0.2, 0.4, 2.0, 0.5)),
        _row("gptq", 0.10, 0.10, LayerLoss(name, 0.01, 0.1, 0.1, 0.5, 0.5)),
    ]
    bias = [
        BiasRow(INT3, method, 0, 3.0, cosine, cosine, error, 0.2, 0.1, 0.3, 1, 1)
        for method, cosine, error in (("rtn", 0.8, 0.3), ("hqq", 0.7, 0.4), ("gptq", 0.9, 0.1))
    ]
    table = [line.strip("| ").split(" | ") for line in ranking.ranks_table(rows, bias, INT3).splitlines()[2:]]
    assert [line[0] for line in table] == ["GPTQ", "round to nearest", "HQQ"]
    assert table[1] == [
        "round to nearest",
        "0.2000 ± 0.0100 (2)",
        "",
        "0.2000",
        "30.0 % (3)",
        "0.2000 (2)",
        "30.0 % (2)",
    ]
    assert [line[2] for line in table] == ["−0.1000 ± at most 0.0200", "", "+0.1000 ± at most 0.0200"]
    assert ranking.few_rank_correlation(bias, INT3) == "1.00 (p = 0.33)"
    assert ranking.rank_correlation(rows, INT3) == "0.50 (p = 1.00)"
    assert "| 3 | 50 % | 100 → 200 % | 20 → 20 % | 20 → 40 % | × 4.00 |" in ranking.values_table(
        rows, INT3, "hqq"
    )
    assert ranking.worse_values(rows, INT3, "hqq") == "1 of 1"
    assert ranking.worse_values(rows, INT3, "gptq") == "0 of 1"
    assert ranking.attention_to_first(rows) == "50 to 50 %"
    assert ranking.added(rows, "hqq") == "0.080 against 0.300"
    changed = dataclasses.replace(rows[1], value_loss=0.2, value_loss_but_first=0.06)
    assert ranking.of_first([rows[0], changed], INT3, "hqq") == "90 %"


def test_methods_are_compared_in_pairs_of_groups() -> None:
    """Where groups of sentences were recorded the interval is that of their differences, narrower than the
    bound without them; what is within it is named."""
    name = LayerLoss("encoder.layer.3.attention.self.value", 0.02, 0.2, 0.2, 1.0, 0.5)
    usual, other = _row("rtn", 0.20, 0.30, name), _row("hqq", 0.21, 0.25, name)
    assert ranking.difference(usual, other) == pytest.approx((0.01, 0.02))
    assert ranking.undecided([usual, other], INT3) == "round to nearest against HQQ"
    hard = (0.1, 0.2, 0.3)
    before = dataclasses.replace(usual, groups=hard)
    after = dataclasses.replace(other, groups=tuple(one + 0.01 for one in hard))
    assert ranking.difference(before, after) == pytest.approx((0.01, 0.0), abs=1e-9)
    assert ranking.undecided([before, after], INT3) == "none"


def test_the_page_says_what_was_recorded() -> None:
    """Every method under both schemes, with the first token's part in the loss that the text rests on."""
    rows, text = recorded_ranking().rows, docs.render("which-format.md")
    for scheme in METHODS_SCHEMES:
        assert (
            ranking.ranks_table(rows, recorded_bias().rows, scheme) in text
            and ranking.first_table(rows, scheme) in text
        )
        assert [row_of(rows, scheme, method) for method in METHODS].count(None) == 0
    for scheme, method, calibration in ((INT3, "hqq", LONG), (INT4, "autoround", SHORT)):
        rounded, row = row_of(rows, scheme, "rtn"), row_of(rows, scheme, method, calibration)
        assert row and rounded and row.value_loss > rounded.value_loss, "there is nothing to explain"
        excess = row.value_loss_but_first - rounded.value_loss_but_first
        assert excess < 0.2 * (row.value_loss - rounded.value_loss), "the first token does not explain it"
