"""Rows of ``METHODS``: the steps of a method, and its facts for pages, figures and files.

A method is one of four kinds. A combination "a+b+c" has them in this order: transforms of the inputs, one
rounding method, corrections of the rounding error, and the correction of the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from explorer.methods.factors import FindFactor, Readers
from explorer.methods.layer import Objective, QuantizedLayer, Residue, Transform
from explorer.progress import Progress
from explorer.schemes import Scheme

Round = Callable[[Tensor, Scheme, Tensor, Progress | None], QuantizedLayer]
RoundPair = Callable[[Tensor, Scheme, Tensor, Tensor, Progress | None], QuantizedLayer]
FindTransform = Callable[[Readers], tuple[Transform, Objective]]
FindResidue = Callable[[QuantizedLayer, Tensor, Tensor], Residue]


@dataclass(frozen=True)
class ObjectiveAxis:
    """X-axis of ``QuantizedLayer.objective``: ``values``, or the share of the iterations if there are none.
    ``log``: the values are evenly spaced on a logarithmic axis."""

    label: str
    values: tuple[float, ...] = ()
    log: bool = False


@dataclass(frozen=True)
class Method:
    """Common fields of all rows.

    source      the paper
    why         the end of the sentence "… because it …"
    transform   class of the transforms that its layers have, to read files
    residue     class of the residues that its layers have, to read files
    factor      finds one transform for several layers with the same inputs, so that the operation before them
                can absorb it
    objective   set if the method's objective has a figure
    solves      True if it solves systems of K equations, so that its time grows with K³
    stage       place of the kind in a combination
    """

    stage: ClassVar[int]

    name: str
    label: str
    source: str
    why: str
    transform: type[Transform] | None = field(default=None, kw_only=True)
    residue: type[Residue] | None = field(default=None, kw_only=True)
    factor: FindFactor | None = field(default=None, kw_only=True)
    objective: ObjectiveAxis | None = field(default=None, kw_only=True)
    solves: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class TransformMethod(Method):
    """Method that changes the basis of the inputs and leaves rounding to others.

    ``find(readers)`` returns the transform of a layer, as a group of one, and its objective, empty if nothing
    was searched.
    """

    stage: ClassVar[int] = 0

    find: FindTransform


@dataclass(frozen=True)
class RoundingMethod(Method):
    """Method that chooses codes and scales: ``round(weight, scheme, activations, progress)``.

    needs_tokens  True if it overfits with fewer tokens than input channels
    sequential    True if layers of a model are quantized one after another, each for the inputs that the
                  quantized layers before it give
    round_pair    ``round`` with the original model's inputs for the same tokens as a further argument:
                  ``(weight, scheme, activations, original, progress)``
    after         rounds a weight if its ``factor`` is absorbed by the operation before; None for ``round``
    """

    stage: ClassVar[int] = 1

    round: Round
    needs_tokens: bool = field(default=False, kw_only=True)
    sequential: bool = field(default=False, kw_only=True)
    round_pair: RoundPair | None = field(default=None, kw_only=True)
    after: Round | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class CorrectionMethod(Method):
    """Method that adds a residue to a rounded layer: ``find(layer, weight, activations)`` in the
    untransformed basis."""

    stage: ClassVar[int] = 2

    find: FindResidue


@dataclass(frozen=True)
class BiasMethod(CorrectionMethod):
    """Method that adds a constant to each output channel.

    It is the last of a combination, since it corrects the mean of all remaining errors. ``into_bias`` adds
    the constant to the layer's bias.
    """

    stage: ClassVar[int] = 3
