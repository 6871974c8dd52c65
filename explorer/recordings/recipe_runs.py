"""Recorded losses of recipes and single schemes on whole models: ``assets/measurements/recipes.json``."""

from __future__ import annotations

from dataclasses import dataclass

from explorer.recordings.files import Recording, recorded

NAME, CAUSAL = "recipes", "causal"
"""Names of the recordings of MiniLM, and of a causal language model."""


@dataclass(frozen=True)
class RecipeRun:
    """One model that was run.

    ``scheme`` is that of all layers, "" for a recipe of ``budget`` bits by ``signal``, ``fused`` or not.
    ``loss`` with its 95 % interval over texts; ``predicted`` None where nothing predicts it. ``perplexity``
    and ``same_top`` (share of tokens with the same most probable successor) of causal models, whose loss is
    the KL divergence. ``model``: the name of the folder, where it is not MiniLM. ``losses``: of each text, in
    the texts' order, which paired differences are made of; empty in rows that were recorded without.
    """

    budget: float
    signal: str
    scheme: str
    method: str
    fused: bool
    bits: float
    predicted: float | None
    loss: float
    low: float
    high: float
    texts: int
    tokens: int
    perplexity: float | None = None
    same_top: float | None = None
    model: str = ""
    losses: tuple[float, ...] = ()


def recorded_recipes() -> Recording[RecipeRun]:
    """The recorded runs of MiniLM; empty if there are none."""
    return recorded(NAME, RecipeRun)


def recorded_causal() -> Recording[RecipeRun]:
    """The recorded runs of a causal model; empty if there are none."""
    return recorded(CAUSAL, RecipeRun)
