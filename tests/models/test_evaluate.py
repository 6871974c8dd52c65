"""A real model's embeddings before and after quantization, and the inputs captured from its layers.

If these fail, a model's measured drift, or what methods are calibrated on, is wrong.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from explorer import SCHEMES, load_matrix
from explorer.methods import apply
from explorer.models.capture import Model, capture, linear_layers, load_model, save_captured
from explorer.models.evaluate import (
    SAMPLES,
    OriginalModel,
    _rank_correlation,
    calibration_texts,
    embed,
    evaluate_embeddings,
    sentences,
)
from explorer.models.quantize import MethodLinear, quantize_by_method

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="session")
def encoder(minilm: Path) -> Model:
    return load_model(str(minilm))


def test_more_bits_drift_less(encoder: Model) -> None:
    """float32 drifts not at all, and every fewer bits more; kept layers stay, and so does the model
    itself."""
    texts = sentences()[:24]
    original = OriginalModel(encoder, texts=texts)
    torch.testing.assert_close(original.embeddings.norm(dim=1), torch.ones(24))
    names = ("fp32", "int8_row", "int4_group128", "int2_group128")
    drifts = [evaluate_embeddings(original, SCHEMES[name]) for name in names]
    assert drifts[0].cosine == pytest.approx(1, abs=1e-6)
    assert drifts[0].rank == pytest.approx(1, abs=1e-6) and drifts[0].neighbours == 1
    assert drifts[1].cosine > 0.999 > drifts[2].cosine > 0.9 > drifts[3].cosine
    assert drifts[1].rank > drifts[2].rank > drifts[3].rank
    both = evaluate_embeddings(original, SCHEMES["int8_row"], activations=SCHEMES["int8_row"])
    assert 0.98 < both.cosine < drifts[1].cosine
    partly = OriginalModel(encoder, keep=("encoder.layer.[1-5]*",), texts=texts)
    kept = evaluate_embeddings(partly, SCHEMES["int2_group128"])
    assert kept.cosine > drifts[3].cosine and kept.megabytes < drifts[3].megabytes
    assert torch.equal(embed(encoder, texts), original.embeddings), "the model itself was changed"


def test_samples_of_calibration_texts_share_no_sentence(encoder: Model) -> None:
    """Else their spread says too little; each is long enough for what docs/ and pages capture, and none is
    among the sentences that embeddings are compared of."""
    samples = [calibration_texts(sample) for sample in range(SAMPLES)]
    every = [text for sample in samples for text in sample]
    assert len(set(every)) == len(every) and not set(every) & set(sentences())
    assert all(sum(len(encoder.tokenizer(text).input_ids) for text in sample) >= 512 for sample in samples)


def test_captured_inputs_are_the_stored_samples(encoder: Model) -> None:
    """The built-in activations were taken with padding left out, as here."""
    file = Path(__file__).resolve().parents[2] / "assets" / "texts" / "sentences.txt"
    texts, seen, name = (
        file.read_text().splitlines(),
        list[tuple[int, int]](),
        "encoder.layer.3.intermediate.dense",
    )
    (layer,) = capture(encoder, texts, [name], 400, lambda a, b: seen.append((a, b)))
    assert torch.equal(layer.weight, load_matrix("sample:mlp_up").values)
    torch.testing.assert_close(
        layer.activations, load_matrix("sample:mlp_up_in").values, rtol=1e-3, atol=1e-3
    )
    assert seen[-1][0] <= len(texts) and not encoder.network.get_submodule(layer.name)._forward_pre_hooks


def test_capture_keeps_what_is_asked_and_writes_it(encoder: Model, tmp_path: Path) -> None:
    """So many rows across texts, empty lines skipped, and a file that the Methods section reads."""
    names = linear_layers(encoder, "layer.5.output")
    assert names == ("encoder.layer.5.output.dense",)
    (layer,) = capture(encoder, ["one two three", "", "four"], names, 3)
    assert layer.activations.shape == (3, 1536)
    save_captured([layer], tmp_path / "c.safetensors")
    written = load_matrix(str(tmp_path / "c.safetensors"), f"{names[0]}.activations").values
    assert torch.equal(written, layer.activations)


def test_sequential_methods_get_the_inputs_of_the_network_as_it_is(encoder: Model) -> None:
    """In the order that the model runs them. A layer alone has one kind of inputs: GPTAQ is GPTQ then."""
    names = ["encoder.layer.0.intermediate.dense", "encoder.layer.0.attention.self.query"]
    layers = capture(encoder, sentences()[:20], names, 150)
    assert [layer.name for layer in layers] == names[::-1]
    network, asked = copy.deepcopy(encoder.network), dict[str, torch.Tensor]()

    def inputs_now(name: str) -> torch.Tensor:
        now = replace(encoder, network=network)
        asked[name] = capture(now, sentences()[:20], [name], 150)[0].activations
        return asked[name]

    scheme = SCHEMES["int2_group64_asym"]
    quantize_by_method(network, layers, "rotation+gptaq", scheme, inputs_now=inputs_now)
    assert list(asked) == names[::-1]
    first, second = layers
    torch.testing.assert_close(asked[first.name], first.activations)
    assert not torch.allclose(asked[second.name], second.activations, atol=0.01)
    want = apply("rotation+gptaq", second.weight, scheme, asked[second.name], original=second.activations)
    got = network.get_submodule(second.name)
    assert isinstance(got, MethodLinear) and torch.equal(got.layer.weight(), want.weight())

    alone, other = (apply(n, second.weight, scheme, asked[second.name]) for n in ("gptaq", "gptq_order"))
    assert torch.equal(alone.weight(), other.weight()) and not torch.equal(alone.weight(), want.weight())
    with pytest.raises(ValueError, match="GPTAQ"):
        quantize_by_method(network, layers, "gptaq", scheme)


def test_rank_correlation_is_spearmans() -> None:
    """Ties share their mean rank: a model whose embeddings are all alike is not an exception."""
    found = _rank_correlation(torch.tensor([1.0, 2, 2, 3]), torch.tensor([1.0, 3, 2, 4]))
    assert found == pytest.approx(0.9486833)
    assert _rank_correlation(torch.ones(4), torch.arange(4.0)) == 0


def test_two_captures_of_one_network_do_not_mix(encoder: Model) -> None:
    """A page's visitors share a model: one's words must not be among what the other's layer was fed."""
    name = linear_layers(encoder)[0]
    texts = (["red apples"] * 12, ["a very long sentence about matrices and numbers"] * 12)
    alone = [capture(encoder, text, [name], 64)[0].activations for text in texts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda text: capture(encoder, text, [name], 64)[0].activations, texts * 2))
    for index, found in enumerate(together):
        assert torch.equal(found, alone[index % 2])
