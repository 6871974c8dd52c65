"""What a loss is measured on, and the interval of a predicted loss over calibration texts.

If these fail, texts are left out without a word, a model is run beyond its positions, or a prediction looks
surer than the texts that it comes from allow.
"""

from __future__ import annotations

import copy
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from explorer.models.capture import Model, capture, load_model
from explorer.models.texts import Texts
from explorer.survey import ModelRecipe, Survey, frontier, load_survey, recipe_of
from explorer.survey import loss as losses
from explorer.survey.evidence import gather, weights_of
from explorer.survey.interval import fold_count, predicted_interval, standard_errors
from explorer.survey.loss import _mean, each_objective, reference_for
from explorer.survey.rows import line_of
from explorer.survey.sentences import texts_run
from lab.intervals import interval
from tests.survey.conftest import SEEN as TEXTS
from tests.survey.conftest import UP

pytestmark = pytest.mark.usefixtures("one_thread")


def louder(model: Model) -> torch.nn.Module:
    """A copy of the network with one layer's weights times 1.5."""
    other = copy.deepcopy(model.network)
    with torch.no_grad():
        other.get_submodule(UP).weight.mul_(1.5)
    return other


def test_no_text_is_left_out_of_a_large_vocabulary(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the original's log-probabilities do not fit, it is run again: the loss is the same."""
    whole = reference_for(llama, TEXTS).measure(louder(llama))
    monkeypatch.setattr(losses, "MOST_LOGITS", 64 * 8)
    assert reference_for(llama, TEXTS).measure(louder(llama)) == whole and whole.texts == 3
    assert [len(list(each_objective(reference_for(llama, TEXTS))))] == [3]


@pytest.mark.parametrize("make", ["llama", "bert", "roberta", "xlnet"])
def test_texts_are_cut_where_positions_end(make: str, llama: Model) -> None:
    """An index error else, or, with rotary positions, a model beyond what it was made for. RoBERTa counts
    from behind its padding token."""
    from transformers import AutoConfig, AutoModel

    model = llama
    if make != "llama":
        small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
        more = {"d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 32} if make == "xlnet" else {}
        ends = {} if make == "xlnet" else {"max_position_embeddings": 40, "intermediate_size": 32}
        config = AutoConfig.for_model(make, **(more or small), **ends, **({"vocab_size": 64} if more else {}))
        network = AutoModel.from_config(config).eval()
        model = Model(network, llama.tokenizer, torch.device("cpu"), make)
    name = next(n for n, m in model.network.named_modules() if isinstance(m, torch.nn.Linear))
    (seen,) = capture(model, ["the cat " * 300], [name], 10_000)
    ends_at = {"llama": 64, "bert": 40, "roberta": 40 - 1 - config.pad_token_id if make == "roberta" else 0}
    assert len(seen.activations) == ends_at.get(make, 512)
    reference = reference_for(model, ["the cat " * 300, *TEXTS])
    assert reference.measure(model.network).value == pytest.approx(0, abs=1e-5)


def test_pieces_are_the_whole(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax a few tokens at a time: the same loss, and of the same drawn tokens the same gradient."""
    monkeypatch.setattr(losses._NextTokens, "_drawn", lambda self, rows, _: rows.argmin(-1, keepdim=True))
    found = []
    for piece in (losses.PIECE, 64 * 2, 1):
        monkeypatch.setattr(losses, "PIECE", piece)
        reference = reference_for(llama, TEXTS)
        (scalar,), count = reference.objectives(torch.zeros(3), 0)
        weight = llama.network.get_submodule(UP).weight
        found.append((reference.measure(louder(llama)), count, torch.autograd.grad(scalar, weight)[0]))
    for loss, count, gradient in found[1:]:
        assert loss.value == pytest.approx(found[0][0].value, rel=1e-6) and count == found[0][1] == 7
        assert loss.scores == pytest.approx(found[0][0].scores, rel=1e-6)
        assert torch.allclose(gradient, found[0][2], atol=1e-6)


def test_texts_of_one_token_are_counted(llama: Model) -> None:
    """They have no next token; a mean over fewer texts than were given is not passed over."""
    reference = reference_for(llama, ["cat", *TEXTS, "  ", "roof"])
    loss = reference.measure(louder(llama))
    assert (loss.texts, loss.left_out) == (3, 2) and loss == replace(whole_loss(llama), left_out=2)
    assert texts_run(3, 2) == "3 of 5 texts" and texts_run(1234, 0) == "1,234 texts"


def whole_loss(model: Model) -> losses.Loss:
    return reference_for(model, TEXTS).measure(louder(model))


def test_the_percentile_is_of_tokens(llama: Model) -> None:
    """A mean hides the few tokens at which a model goes another way."""
    divergences = []
    for text in TEXTS:
        ids = llama.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            p, q = (
                n(input_ids=ids).logits[0].double().log_softmax(-1) for n in (llama.network, louder(llama))
            )
        divergences += (p.exp() * (p - q)).sum(-1).tolist()
    want = torch.tensor(divergences).quantile(0.99)
    assert whole_loss(llama).scores["kl_p99"] == pytest.approx(float(want), rel=1e-4)


def test_each_kind_has_its_loss(llama: Model) -> None:
    """A model that loses only at code looks fine in the mean; texts of one kind need no second table."""
    kinds = ("prose", "code", "prose")
    loss = reference_for(llama, Texts(TEXTS, kinds)).measure(louder(llama))
    assert replace(loss, kinds={}) == whole_loss(llama)
    assert len(loss.each) == len(TEXTS) and loss.each[1] == pytest.approx(loss.kinds["code"].value)
    prose = reference_for(llama, TEXTS[::2]).measure(louder(llama))
    assert loss.kinds == {"prose": prose, "code": reference_for(llama, TEXTS[1:2]).measure(louder(llama))}
    assert not reference_for(llama, Texts(TEXTS, ("code",) * 3)).measure(llama.network).kinds


def with_folds(survey: Survey, *shares: float) -> Survey:
    """Every layer's fisher in folds of these shares of it."""
    layers = (replace(x, folds=tuple((x.fisher or 0) * s for s in shares)) for x in survey.layers)
    return replace(survey, layers=tuple(layers))


def test_the_interval_is_that_of_the_formula(made_up: Survey) -> None:
    """Three folds that predict .5, 1 and 1.5 of the loss: L ± 4.303 × .5 L / √3, not below 0."""
    choice = frontier(made_up).at(4.5)
    low, high = predicted_interval(with_folds(made_up, 0.5, 1.0, 1.5), "fisher_diagonal", choice.schemes) or (
        0,
        0,
    )
    assert low == 0 and high == pytest.approx(choice.loss * (1 + 4.302653 * 0.5 / 3**0.5), rel=1e-6)
    low, high = predicted_interval(with_folds(made_up, 0.98, 1.02), "fisher_diagonal", choice.schemes) or (
        0,
        0,
    )
    half = 12.706205 * 0.04 / 2**0.5 / 2**0.5
    assert (low, high) == pytest.approx((choice.loss * (1 - half), choice.loss * (1 + half)), rel=1e-6)
    recipe = recipe_of(with_folds(made_up, 1.0, 1.0, 1.0), choice)
    assert recipe.predicted_interval == pytest.approx((choice.loss, choice.loss))
    assert ModelRecipe.from_json(recipe.to_json()) == recipe
    with pytest.raises(ValueError, match="from 0"):
        replace(recipe, predicted_interval=(-1.0, 1.0))


def test_layers_that_differ_in_opposite_ways_cancel(made_up: Survey) -> None:
    """Folds are those of texts: what one text says of all layers is summed before it is compared."""
    names = [layer.name for layer in made_up.linear[:2]]
    schemes = dict.fromkeys(names, "nvfp4")
    costs = [made_up.layer(name).costs["fisher_diagonal"]["nvfp4"] for name in names]
    move = (0.3 / costs[0], -0.3 / costs[1])
    layers = tuple(
        replace(x, folds=tuple((x.fisher or 0) * (1 + sign * move[names.index(x.name)]) for sign in (-1, 1)))
        if x.name in names
        else x
        for x in made_up.layers
    )
    found = predicted_interval(replace(made_up, layers=layers), "fisher_diagonal", schemes)
    assert found == pytest.approx((sum(costs), sum(costs)), rel=1e-6)


def test_there_is_none_where_nothing_gives_it(made_up: Survey, tmp_path: Path) -> None:
    """Files of earlier versions have no folds; other signals are no squared gradients; one text is no
    sample."""
    choice = frontier(made_up).at(4.5)
    for survey, signal in (
        (made_up, "fisher_diagonal"),
        (with_folds(made_up, 1.0, 1.1), "weight"),
        (with_folds(made_up, 1.0), "fisher_diagonal"),
    ):
        assert predicted_interval(survey, signal, choice.schemes) is None
    lines = [line_of(made_up.head), *(line_of(x).replace('"folds":[],', "") for x in made_up.layers)]
    (tmp_path / "old.jsonl").write_text("".join(lines))
    assert recipe_of(load_survey(tmp_path / "old.jsonl"), choice).predicted_interval is None


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_bert"])
def test_folds_are_shares_of_the_whole(kind: str, request: pytest.FixtureRequest) -> None:
    """The mean over folds, by samples, is the layer's own; every gradient is in one of them."""
    model = load_model(str(request.getfixturevalue(kind)), head=True)
    reference = reference_for(model, TEXTS)
    modules = weights_of(
        model.network, dict.fromkeys(n for n, m in model.network.named_modules() if hasattr(m, "in_features"))
    )
    tokens = [len(one.ids) if model.causal else 1 for one in reference.sequences]
    for found in gather(model, reference, modules).values():
        mean = sum(n * f for n, f in zip(tokens, found.folds, strict=True)) / sum(tokens)
        assert found.fisher == pytest.approx(mean, rel=1e-5) and len(set(found.folds)) == 3
    assert [fold_count(n) for n in (1, 3, 8, 100)] == [1, 3, 8, 8]


def test_intervals_of_few_texts_are_by_students_t() -> None:
    """Those of a measured loss as those of a prediction: of four numbers a normal one is too narrow."""
    numbers = [1.0, 2.0, 3.0, 6.0]
    mean, low, high = _mean(torch.tensor(numbers), torch.ones(4))
    assert standard_errors(4) == pytest.approx(3.1824, abs=1e-4) and standard_errors(240) < 1.98
    assert low is not None and high is not None
    half = standard_errors(4) * statistics.stdev(numbers) / 2
    assert (mean, low, high) == pytest.approx((3.0, max(3.0 - half, 0.0), 3.0 + half))
    assert half == pytest.approx(interval(numbers)[1])
