"""The interval of a predicted loss over the choice of calibration texts.

The texts are dealt into k folds in turn (k = 8, or as many as there are texts). Of each layer l the survey
keeps its mean squared gradient F_l, and that of each fold, F_lf. A cost c_l is proportional to the squared
gradients, so that fold f alone would predict

    L_f = Σ_l c_l F_lf / F_l

of a choice whose predicted loss is L = Σ_l c_l. The interval is L ± t s / √k, where s is the standard
deviation of the L_f, and t the 97.5 % quantile of Student's distribution with k - 1 degrees of freedom.

It covers the choice of texts like these, and nothing else: no texts of another kind, no error of the
second-order estimate itself, which grows with the loss, and no error of adding up layers. A fold scales a
layer as a whole, though its weights may differ. With few texts a fold is one text, and the interval is wide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import stdtrit

from explorer.survey.rows import FOLDS, Layer, Survey
from explorer.survey.sensitivities import SENSITIVITIES

COVERED = 0.95
Interval = tuple[float, float]


def standard_errors(count: int) -> float:
    """Half-width of the 95 % interval of a mean of ``count`` independent numbers (two or more), in standard
    errors, by Student's t: 1.97 for 240 numbers, 3.18 for 4."""
    return float(stdtrit(count - 1, (1 + COVERED) / 2))


def fold_count(texts: int) -> int:
    """Number of folds of so many texts; text i is in fold i modulo that number."""
    return max(min(FOLDS, texts), 1)


def predicted_interval(
    survey: Survey,
    signal: str,
    schemes: Mapping[str, str],
    methods: Mapping[str, str] | None = None,
) -> Interval | None:
    """Return the 95 % interval over calibration texts of the predicted loss of ``schemes`` and ``methods``
    (layer -> name; other layers are rounded to nearest).

    None where ``signal`` predicts no loss, and for surveys without folds, of earlier versions or of a single
    text.
    """
    if not SENSITIVITIES[signal].is_loss:
        return None
    layers = [layer for layer in survey.layers if layer.name in schemes and layer.reached]
    counts = {len(layer.folds) for layer in layers}
    if len(counts) != 1 or (count := counts.pop()) < 2:
        return None
    by = methods or {}
    costs = np.array([x.cost(signal, schemes[x.name], by.get(x.name, "")) for x in layers])
    by_fold = costs @ np.array([_shares(layer) for layer in layers])
    half = standard_errors(count) * float(by_fold.std(ddof=1)) / math.sqrt(count)
    loss = float(costs.sum())
    return max(loss - half, 0.0), loss + half


def _shares(layer: Layer) -> list[float]:
    """Return F_lf / F_l; 1 for each fold if the layer has no gradient at all."""
    if not layer.fisher:
        return [1.0] * len(layer.folds)
    return [fold / layer.fisher for fold in layer.folds]
