"""The cost of rounding a layer, by the weights alone or by Fisher's diagonal: ``SENSITIVITIES``.

With a loss L that is smallest, and flat, at the original weights, and F = E[g gᵀ] its Fisher information,
L(ΔW) ≈ ½ ΔWᵀ F ΔW; ``fisher_diagonal`` keeps F's diagonal. Costs are summed over layers. Both signals order
the schemes of one layer alike; only the second tells which layer matters (docs/models.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.survey.methods import MethodEvidence

WEIGHT, FISHER = "weight", "fisher_diagonal"
_PART = 1 << 24


@dataclass(frozen=True)
class Sensitivity:
    """Signal of a layer's cost. ``is_loss``: its sum over layers predicts the model's loss; ``trust``
    describes its reliability."""

    name: str
    label: str
    why: str
    trust: str
    is_loss: bool


SENSITIVITIES: dict[str, Sensitivity] = {
    row.name: row
    for row in (
        Sensitivity(WEIGHT, "weight error", "‖ΔW‖², from the weights alone",
                    "It orders the schemes of one layer, and hardly says which layer matters.", False),
        Sensitivity(FISHER, "Fisher's diagonal", "½ Σ gradient² · ΔW²",
                    "It is near to measured losses, and needs memory for another copy of the model.", True),
    )
}  # fmt: skip
"""Every signal by name; recipes are chosen by the last one, if texts could be run."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Squared gradients and inputs of one layer [N, K], from running the model on texts.

    ``fisher``: the mean squared gradient of its weights; ``folds``: the same of each fold of the texts;
    ``fisher_diagonal`` float32 [N, K] of each weight; ``texts``: number of texts that gave its weights a
    gradient; ``methods``: inputs for methods and to judge them by, if methods were asked for and the layer
    has inputs.
    """

    fisher: float
    fisher_diagonal: Tensor
    folds: tuple[float, ...]
    texts: int
    methods: MethodEvidence | None = None

    def cost(self, error: Tensor) -> float:
        """Predict the loss of ``error`` [N, K], the weight less the rounded weight."""
        fisher = self.fisher_diagonal.to(error.device)
        return 0.5 * sum(
            float((f * e * e).sum(dtype=torch.float64))
            for f, e in zip(_parts(fisher), _parts(error), strict=True)
        )


def squares(x: Tensor) -> float:
    """Σ x² in float64, part by part."""
    return sum(float(part.double().square().sum()) for part in _parts(x))


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """Split into groups of rows of about ``_PART`` elements, so that temporaries stay small."""
    return x.split(max(1, _PART // max(x.shape[-1], 1)))
