"""What rounding a layer costs, by one signal or another: ``SENSITIVITIES``.

One signature: a row looks at the layer's weight, at what was rounded off, and at the ``Evidence`` that
running the model gave of the layer, and answers with a number that is summed over layers. Signals of the same
layer order its schemes alike; which *layer* matters only those see that see the loss (docs/models.md).

With a loss L that is smallest, and flat, at the original weights, and F = E[g gᵀ] its Fisher information,
L(ΔW) ≈ ½ ΔWᵀ F ΔW; ``fisher_diagonal`` keeps F's diagonal, ``fisher`` the mean of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from explorer.survey.methods import MethodEvidence


class Needs(StrEnum):
    """What a signal has to know beside the weights, the cheapest first."""

    NOTHING = "nothing but the weights"
    INPUTS = "the layer's inputs: texts are run forward"
    GRADIENTS = "gradients: texts are run forward and backward"
    RUNS = "a run of the model for each layer and scheme"


@dataclass(frozen=True, eq=False)
class Evidence:
    """What running the model gave of one layer [N, K], where that was asked for.

    ``fisher``: the mean squared gradient of its weights; ``fisher_diagonal`` float32 [N, K] of each weight;
    ``inputs`` float32 [tokens, K]; ``rows`` float32 [N]: of a table whose rows are looked up, the share of
    tokens that look up each one; ``loss_with``: the model's true loss with another weight in the layer;
    ``folds``: ``fisher`` of each fold of the texts; ``texts``: how many gave its weights a gradient;
    ``methods``: what methods see of it and are judged by, where they were asked for and it has inputs;
    ``quantized_inputs``: the loss that quantizing its inputs adds, by scheme, where that was asked for.
    """

    fisher: float | None = None
    fisher_diagonal: Tensor | None = None
    inputs: Tensor | None = None
    rows: Tensor | None = None
    loss_with: Callable[[Tensor], float] | None = None
    folds: tuple[float, ...] = ()
    texts: int | None = None
    methods: MethodEvidence | None = None
    quantized_inputs: Mapping[str, float] = field(default_factory=dict)


Cost = Callable[[Tensor, Tensor, Evidence], float]
"""(weight [N, K], weight - rounded weight [N, K], evidence) -> cost, from 0."""


@dataclass(frozen=True)
class Sensitivity:
    """A row. ``is_loss``: its sum over layers predicts the model's loss; ``trust`` says what it is worth."""

    name: str
    label: str
    why: str
    trust: str
    needs: Needs
    is_loss: bool
    cost: Cost


def _weight(weight: Tensor, error: Tensor, evidence: Evidence) -> float:
    return squares(error)


def _fisher(weight: Tensor, error: Tensor, evidence: Evidence) -> float:
    assert evidence.fisher is not None
    return 0.5 * evidence.fisher * squares(error)


def _fisher_diagonal(weight: Tensor, error: Tensor, evidence: Evidence) -> float:
    assert evidence.fisher_diagonal is not None
    fisher = evidence.fisher_diagonal.to(error.device)
    return 0.5 * sum(
        float((f * e * e).sum(dtype=torch.float64))
        for f, e in zip(_parts(fisher), _parts(error), strict=True)
    )


def _output(weight: Tensor, error: Tensor, evidence: Evidence) -> float:
    """Of products, of rows that are looked up, or, where a head shares the embeddings, of both."""
    assert evidence.inputs is not None or evidence.rows is not None
    total = 0.0
    if evidence.inputs is not None:
        inputs = evidence.inputs.to(error.device)
        total += squares(inputs @ error.t()) / len(inputs)
    if evidence.rows is not None:
        of_rows = torch.cat([part.square().sum(1, dtype=torch.float64) for part in _parts(error)])
        total += float(evidence.rows.to(of_rows) @ of_rows)
    return total


def _measured(weight: Tensor, error: Tensor, evidence: Evidence) -> float:
    assert evidence.loss_with is not None
    return max(evidence.loss_with(weight - error), 0.0)


_ORDERS_ONLY = "Orders the schemes of one layer; says next to nothing of which layer matters."
SENSITIVITIES: dict[str, Sensitivity] = {
    row.name: row
    for row in (
        Sensitivity("weight", "weight error", "‖ΔW‖², from the weights alone", _ORDERS_ONLY,
                    Needs.NOTHING, False, _weight),
        Sensitivity("output", "output error", "E‖ΔW·x‖² over the layer's inputs",
                    _ORDERS_ONLY + " What most tools call sensitivity.", Needs.INPUTS, False, _output),
        Sensitivity("fisher", "Fisher, one number per layer",
                    "‖ΔW‖² × mean squared gradient of the layer's weights",
                    "Sees what the rest of the model does with an error.", Needs.GRADIENTS, True, _fisher),
        Sensitivity("fisher_diagonal", "Fisher, one number per weight", "Σ gradient² · ΔW²",
                    "Nearest to the measured losses; needs memory for another copy of the model.",
                    Needs.GRADIENTS, True, _fisher_diagonal),
        Sensitivity("measured", "measured", "the true loss with that layer alone quantized",
                    "The reference: a run of the model for each layer and scheme.",
                    Needs.RUNS, True, _measured),
    )
}  # fmt: skip
"""Every signal by name."""
DEFAULT = ("weight", "fisher", "fisher_diagonal")
"""What a survey with texts computes; the last is what recipes are chosen by."""

_PART = 1 << 24


def squares(x: Tensor) -> float:
    """Σ x² in float64, part by part."""
    return sum(float(part.double().square().sum()) for part in _parts(x))


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """Runs of rows of at most about ``_PART`` elements: temporaries stay small."""
    return x.split(max(1, _PART // max(x.shape[-1], 1)))
