"""The rows of ``METHODS``: what a method does, and what pages, figures and files have to know about it.

A method is one of four kinds, and a combination "a+b+c" has them in this order: transforms of the inputs,
one rounding method, corrections of what rounding left, and the correction of the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from explorer.methods.factors import FindFactor
from explorer.methods.layer import Objective, QuantizedLayer, Residue, Transform
from explorer.progress import Progress
from explorer.schemes import Scheme

Round = Callable[[Tensor, Scheme, Tensor, Progress | None], QuantizedLayer]
RoundPair = Callable[[Tensor, Scheme, Tensor, Tensor, Progress | None], QuantizedLayer]
FindTransform = Callable[[Tensor, Tensor, Scheme, Scheme | None], tuple[Transform, Objective]]
FindResidue = Callable[[QuantizedLayer, Tensor, Tensor], Residue]


@dataclass(frozen=True)
class ObjectiveAxis:
    """X-axis of ``QuantizedLayer.objective``: ``values``, or without any the share of iterations.

    ``log`` says that the values are spread evenly on a logarithmic axis.
    """

    label: str
    values: tuple[float, ...] = ()
    log: bool = False


@dataclass(frozen=True)
class Method:
    """Common fields of all rows. ``why`` ends the sentence "… because it …".

    ``objective`` is set where the method's objective is worth a figure. ``transform`` and ``residue`` are
    the classes of a layer's parts other than the codes; they are used to read files. ``factor`` searches one
    transform for several layers that read the same inputs, so that the operation before them can take it in.
    ``stage`` is a kind's place in a combination.
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
    """Changes the basis of the inputs and leaves rounding to others.

    ``find(weight, activations, scheme, of_inputs)`` gives the transform and what it was chosen by, if it was;
    ``scheme`` is the weight's, ``of_inputs`` that of the inputs at run time (None: they stay as they are).
    """

    stage: ClassVar[int] = 0

    find: FindTransform


@dataclass(frozen=True)
class RoundingMethod(Method):
    """Chooses codes and scales: ``round(weight, scheme, activations, progress)``.

    ``needs_tokens`` says that it can fit fewer tokens than there are input channels, and then does badly on
    others.

    ``sequential`` layers of a model are quantized one after another, each for the inputs that it gets from
    those before it. ``round_pair(weight, scheme, activations, original, progress)`` also looks at the inputs
    that the same tokens gave in the original model; a layer alone has no others and is left to ``round``.

    ``after`` rounds a weight whose ``factor`` the operation before has taken in; None for ``round`` itself.
    """

    stage: ClassVar[int] = 1

    round: Round
    needs_tokens: bool = field(default=False, kw_only=True)
    sequential: bool = field(default=False, kw_only=True)
    round_pair: RoundPair | None = field(default=None, kw_only=True)
    after: Round | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class CorrectionMethod(Method):
    """Adds a residue to a rounded layer: ``find(layer, weight, activations)``, untransformed by the layer."""

    stage: ClassVar[int] = 2

    find: FindResidue


@dataclass(frozen=True)
class BiasMethod(CorrectionMethod):
    """Adds a constant to each output channel: the last of a combination, since it takes the mean of the error
    that all others leave. Where the layer has a bias, that takes it in (``into_bias``)."""

    stage: ClassVar[int] = 3
