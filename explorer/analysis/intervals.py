"""Confidence intervals of errors that are estimated on a sample of a matrix.

The variance is that of Pareto sampling (B. Rosén, On sampling with probability proportional to size, Journal
of Statistical Planning and Inference 62 (1997) 159-191). SQNR is a ratio of two sums, and its variance is
that of a ratio estimator, by linearization: W. G. Cochran, Sampling Techniques, 3rd ed. (1977), sections
2.11, 6.3 and 6.4. If all units have the same size, both are those of simple random sampling with the finite
population correction. Intervals are symmetric in the logarithm (the delta method), by Student's t.
"""

from __future__ import annotations

import math

from scipy.special import stdtrit
from torch import Tensor

CONFIDENCE = 0.95
"""Stated probability that an interval contains the value of the whole matrix."""
_QUANTILE = 0.99
"""Probability for which intervals are computed: rows with few large errors are skewed, so that intervals for
0.95 contain the value in only 0.90 to 0.95 of samples (tests/analysis/test_estimate.py)."""
EVEN = 10.0
"""Smallest effective number of units that carry the error: (Σs)² / Σs² of their sums s, with units that are
always drawn left out of the second sum. If fewer units carry most of it, intervals by the spread of units
contain the value far less often than stated."""


def carrying(noise: Tensor, signal: Tensor, chances: Tensor) -> float:
    """Number of units with equal errors that would be as uneven as these: float64 [units] of squared errors
    and squared values, drawn with ``chances``."""
    weighted = noise / chances
    at_random = float((weighted.square() * (1 - chances)).sum())
    if at_random:
        return float(weighted.sum()) ** 2 / at_random
    silent = bool((signal[chances < 1] == 0).all())
    return math.inf if silent else 0.0  # values without an error in all of them may be luck


def factor(numbers: Tensor, weights: Tensor, chances: Tensor) -> float:
    """Factor between Σnumbers / Σweights and the ends of its interval; ``chances``: of each unit to be
    drawn."""
    at_random = int((chances < 1).sum())
    if at_random < 2:
        return 1.0 if not at_random else math.inf
    total = (numbers / chances).sum()
    residues = (numbers - total / (weights / chances).sum() * weights) / chances
    rest = 1 - chances
    centred = residues - (rest * residues).sum() / rest.sum()
    deviation = float((rest * centred.square()).sum().mul(at_random / (at_random - 1)).sqrt() / total)
    return math.exp(float(stdtrit(at_random - 1, (1 + _QUANTILE) / 2)) * deviation)
