"""Measure the loss of a checkpoint that was just written, for its model card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from explorer.checkpoints.targets import export_of
from explorer.models.capture import Model
from explorer.models.evaluate import built_in_texts, held_out_texts
from explorer.models.texts import AnyTexts
from explorer.progress import Progress
from explorer.sources.base import SourceError
from explorer.survey.assemble import assemble
from explorer.survey.check import cached_by, calibrated_by, inputs_of
from explorer.survey.loss import EMBEDDING, Loss, reference_for
from explorer.survey.recipe import ModelRecipe

Measure = Callable[[nn.Module | None], str]
"""Network that the reader opened (None if it opened none) -> Markdown for the card."""


def measuring(
    recipe: ModelRecipe,
    load: Callable[[], Model],
    texts: AnyTexts = (),
    calibration: AnyTexts = (),
    progress: Progress | None = None,
    required: bool = True,
    target: str = "",
    importances: Mapping[str, Tensor] | None = None,
) -> Measure:
    """Return a function that measures the loss on ``texts`` (held-out built-in ones if empty) against the
    original in float32.

    It runs the network that the checkpoint's reader opened, if that has the original's class. Otherwise it
    runs one that is assembled like the checkpoint of ``target`` (rounded weights, quantized inputs, folded
    factors), and the card says so. Keys and values are stored as the recipe says. ``calibration``: texts for
    methods; ``importances`` as in ``assemble``. Unless ``required``, the card of a model that cannot be run
    on text gives the reason instead.
    """

    def measure(opened: nn.Module | None) -> str:
        try:
            model = load()
            reference = reference_for(model, texts or held_out_texts(model.causal))
        except SourceError as error:
            if required:
                raise
            return f"The loss was not measured: {error}."
        read = type(opened) is type(model.network)
        if opened is None or not read:
            seen = calibration or built_in_texts(model.causal)
            opened = assemble(
                model,
                recipe.layers,
                seen,
                fused=recipe.fused or bool(target and export_of(target).joined),
                inputs=inputs_of(recipe, model, calibration, target),
                of_inputs=recipe.input_schemes,
                folded=True,
                importances=importances,
            ).network
        known = calibrated_by(recipe, texts, calibration)
        network = cached_by(recipe, model, calibration)(opened)
        return "\n".join(loss_lines(reference.measure(network, progress), read, not texts, known))

    return measure


def loss_lines(loss: Loss, read: bool, built_in: bool, calibrated: bool = False) -> Iterator[str]:
    """Describe a loss in Markdown: the network and the texts, and a table by kind of text. ``read``: the
    checkpoint's reader opened the network; ``calibrated``: the texts are the calibration texts."""
    network = "the checkpoint as its reader opened it" if read else "a network of the same rounded weights"
    source = "built-in texts" if built_in else "texts"
    which = "the calibration texts themselves, which flatters it" if calibrated else "not calibrated by"
    yield (
        f"Measured on {loss.texts} {source} ({loss.tokens:,} tokens; {which}): {network}, against the "
        "original in float32."
    )
    yield ""
    if loss.kind == EMBEDDING:
        low, high = (loss.value if end is None else end for end in (loss.low, loss.high))
        yield "| texts | mean of 1 − cosine of embeddings | 95 % interval |"
        yield "| ---: | ---: | ---: |"
        yield f"| {loss.texts} | {loss.value:.4g} | {low:.4g} to {high:.4g} |"
        return
    yield (
        "| text | texts | tokens | KL, nats a token | 99th percentile | equal first choices | perplexity | "
        "of the original |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    rows = {**loss.kinds, "all": loss} if len(loss.kinds) > 1 else {"all": loss}
    for kind, one in rows.items():
        scores = one.scores
        yield (
            f"| {kind} | {one.texts} | {one.tokens:,} | {one.value:.4g} | {scores['kl_p99']:.4g} | "
            f"{100 * scores['same_top']:.1f} % | {scores['perplexity']:.4g} | "
            f"{scores['perplexity_original']:.4g} |"
        )
