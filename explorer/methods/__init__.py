"""Methods that reduce rounding error: ``METHODS``, with one file per paper and one row per method.

``apply("rotation+gptq+lqer", weight, scheme, activations)`` rotates the weight, rounds the rotated weight by
GPTQ, and corrects the remaining error by a low-rank product. Pages, figures, commands and files are derived
from the rows.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import torch
from torch import Tensor

from explorer.core.hadamard import Rotation
from explorer.gpu.runtime import on_device_of
from explorer.methods.autoround import autoround
from explorer.methods.awq import ALPHAS, awq, awq_factor, clipped
from explorer.methods.bias_correction import BiasCorrection, bias_correction
from explorer.methods.factors import Readers
from explorer.methods.gptq import DAMPINGS, Order, gptaq, gptq
from explorer.methods.hqq import GroupOffset, hqq
from explorer.methods.layer import Diagonal, Objective, QuantizedLayer, Transform, check_layer
from explorer.methods.llm_int8 import OutlierColumns, RuntimeOutliers, llm_int8, llm_int8_dynamic
from explorer.methods.low_rank import LowRank, lqer, qera
from explorer.methods.method import (
    BiasMethod,
    CorrectionMethod,
    Method,
    ObjectiveAxis,
    RoundingMethod,
    TransformMethod,
)
from explorer.methods.rotation import rotation
from explorer.methods.rtn import rtn
from explorer.methods.smoothquant import smoothquant, smoothquant_search
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme

RTN = RoundingMethod("rtn", "round to nearest", "", "rounds every weight by itself", rtn)
"""The baseline, and the rounding method of combinations that name none."""
BIAS_CORRECTION = BiasMethod(
    "bias_correction",
    "Bias correction",
    "arXiv 1906.04721",
    "subtracts each output channel's mean error, in the bias where the layer has one",
    bias_correction,
    residue=BiasCorrection,
)
"""Correction of the bias, which can follow every other method; alone it corrects round to nearest."""
_ACT_ORDER = functools.partial(gptq, order=Order.ENERGY)
_OVER_DAMPING = ObjectiveAxis("damping", DAMPINGS, log=True)
_OVER_ALPHA = ObjectiveAxis("α", ALPHAS)
_OVER_ITERATIONS = ObjectiveAxis("share of the iterations")

METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        RTN,
        RoundingMethod("gptq", "GPTQ", "arXiv 2210.17323",
                       "lets the weights still to be rounded make up for each rounding error",
                       gptq, needs_tokens=True, objective=_OVER_DAMPING, solves=True),
        RoundingMethod("gptq_order", "GPTQ, act-order", "arXiv 2210.17323",
                       "rounds the columns with the most activation energy first, while all others "
                       "can still make up for them",
                       _ACT_ORDER, needs_tokens=True, objective=_OVER_DAMPING, solves=True),
        RoundingMethod("gptq_gar", "GPTQ, group-aware order", "arXiv 2505.14638",
                       "rounds the groups and their columns with the most activation energy first, and "
                       "leaves groups whole",
                       functools.partial(gptq, order=Order.GROUPS), needs_tokens=True,
                       objective=_OVER_DAMPING, solves=True),
        RoundingMethod("gptq_sequential", "GPTQ, act-order, sequential", "arXiv 2210.17323",
                       "makes up for rounding errors on the inputs that the layers quantized before give",
                       _ACT_ORDER, needs_tokens=True, objective=_OVER_DAMPING, solves=True,
                       sequential=True),
        RoundingMethod("gptaq", "GPTAQ", "arXiv 2504.02692",
                       "also makes up for what the layers quantized before changed in the inputs",
                       _ACT_ORDER, needs_tokens=True, objective=_OVER_DAMPING, solves=True,
                       sequential=True,
                       round_pair=gptaq),
        RoundingMethod("awq", "AWQ", "arXiv 2306.00978",
                       "enlarges the input channels with large activations before rounding",
                       awq, transform=Diagonal, objective=_OVER_ALPHA, factor=awq_factor, after=rtn),
        RoundingMethod("awq_clip", "AWQ, duo scaling and clipping", "arXiv 2306.00978",
                       "enlarges important channels and clips each block where the output gains by it",
                       functools.partial(awq, duo=True, clip=True), transform=Diagonal,
                       objective=_OVER_ALPHA, factor=functools.partial(awq_factor, duo=True), after=clipped),
        RoundingMethod("hqq", "HQQ", "mobiusml.github.io/hqq_blog",
                       "moves zero points to where most weights lose least",
                       hqq, residue=GroupOffset, objective=_OVER_ITERATIONS),
        RoundingMethod("autoround", "AutoRound", "arXiv 2309.05516",
                       "learns which way to round each weight, and where to clip each block",
                       autoround, objective=_OVER_ITERATIONS, needs_tokens=True),
        RoundingMethod("llm_int8", "LLM.int8(), fixed columns", "arXiv 2208.07339",
                       "multiplies the input columns with outliers in float16",
                       llm_int8, residue=OutlierColumns),
        RoundingMethod("llm_int8_dynamic", "LLM.int8()", "arXiv 2208.07339",
                       "multiplies each input's columns with outliers in float16",
                       llm_int8_dynamic, residue=RuntimeOutliers),
        TransformMethod("smoothquant", "SmoothQuant", "arXiv 2211.10438",
                        "moves the activations' outliers into the weights",
                        smoothquant, transform=Diagonal, factor=smoothquant),
        TransformMethod("smoothquant_search", "SmoothQuant, best α", "arXiv 2211.10438",
                        "moves as much of the activations' outliers into the weights as the output gains by",
                        smoothquant_search, transform=Diagonal, objective=_OVER_ALPHA,
                        factor=smoothquant_search),
        TransformMethod("rotation", "Hadamard rotation", "arXiv 2404.00456",
                        "spreads outliers over all channels",
                        rotation, transform=Rotation),
        CorrectionMethod("lqer", "LQER", "arXiv 2402.02446",
                         "adds a low-rank product in float16 for what the inputs see most of the error",
                         lqer, residue=LowRank, solves=True),
        CorrectionMethod("qera", "QERA", "arXiv 2410.06040",
                         "adds the low-rank product in float16 that leaves the output the least error",
                         qera, residue=LowRank, solves=True),
        BIAS_CORRECTION,
    )
}  # fmt: skip
"""Every method by name."""

COMBINATIONS = (
    "smoothquant+gptq", "rotation+gptq", "rotation+awq_clip", "smoothquant+rotation",
    "awq+bias_correction", "gptq+bias_correction", "hqq+bias_correction", "autoround+bias_correction",
    "gptq+lqer", "rotation+gptq+lqer",
)  # fmt: skip
"""Combinations that are offered beside the methods themselves; ``apply`` accepts every other valid one
too."""
USUAL = ("rtn", "gptq", "gptq_order", "awq", "awq_clip", "hqq", "rotation+gptq")
"""Methods that the page compares by default."""
LONGEST = 200
"""Largest accepted number of characters of a combination: no valid one is longer."""


def names_in(name: str) -> list[Method]:
    """Parse a combination "a+b+c" into its methods.

    ``ValueError`` for unknown names, and for any other order than transforms, at most one rounding method,
    corrections, that of the bias last, each once.
    """
    if len(name) > LONGEST:
        raise ValueError(f"a combination of methods has at most {LONGEST} characters, not {len(name):,}")
    parts = [part.strip() for part in name.split("+")]
    for part in parts:
        if part not in METHODS:
            raise ValueError(
                f"no method {part!r}; there are {', '.join(METHODS)}, and combinations such as "
                f"{' and '.join(COMBINATIONS[-2:])}"
            )
    rows = [METHODS[part] for part in parts]
    for index, (before, after) in enumerate(itertools.pairwise(rows)):
        in_order = before.stage < after.stage or before.stage == after.stage != RoundingMethod.stage
        if not in_order or after in rows[: index + 1]:
            raise ValueError(
                f"{before.label} cannot stand before another method, {after.label}: a combination is "
                f"transforms ({_names(TransformMethod)}), then one rounding method, then corrections "
                f"({_names(CorrectionMethod)}; {_names(BiasMethod)} last), each of these once"
            )
    return rows


def _names(kind: type[Method]) -> str:
    return ", ".join(row.name for row in METHODS.values() if isinstance(row, kind))


def label_of(name: str) -> str:
    """Label of a combination such as "rotation+gptq"."""
    return " + ".join(row.label for row in names_in(name))


def rounding_in(name: str) -> RoundingMethod:
    """Return the rounding method of a combination; round to nearest if it names none."""
    return next((row for row in names_in(name) if isinstance(row, RoundingMethod)), RTN)


def objective_axis(name: str) -> ObjectiveAxis | None:
    """X-axis for the objective of a combination; None if it has no figure."""
    axes = (row.objective for row in (rounding_in(name), *names_in(name)))
    return next((axis for axis in axes if axis is not None), None)


def transforms_label(name: str) -> str:
    """Label of the parts of a combination that transform the layer's inputs."""
    return " + ".join(row.label for row in names_in(name) if row.transform is not None)


def choices() -> dict[str, str]:
    """Labels of every method and of every offered combination, by name."""
    return {name: label_of(name) for name in (*METHODS, *COMBINATIONS)}


def has_factor(name: str) -> bool:
    """True if a combination scales input channels by a factor that the layer before can absorb."""
    return any(row.factor is not None for row in names_in(name))


def corrects_bias(name: str) -> bool:
    """True if a combination corrects the layer's bias; False for an empty name."""
    return bool(name) and BIAS_CORRECTION in names_in(name)


def factor_of(name: str, readers: Readers) -> Tensor:
    """Compute the factor float32 [K] by which a combination multiplies the input channels of ``readers``;
    each method's is found in the basis of those before it. ``ValueError`` for shapes that do not match."""
    for weight in readers.weights:
        check_layer(weight, readers.activations)
    factor = torch.ones(readers.activations.shape[1], device=readers.activations.device)
    for row in names_in(name):
        if row.factor is not None:
            found, _ = row.factor(readers)
            readers, factor = readers.scaled(found), factor * found.scale.float()
    return factor


@on_device_of("weight")
def apply(
    name: str,
    weight: Tensor,
    scheme: Scheme,
    activations: Tensor,
    progress: Progress | None = None,
    of_inputs: Scheme | None = None,
    *,
    original: Tensor | None = None,
    folded: bool = False,
) -> QuantizedLayer:
    """Quantize ``weight`` [N, K] for ``activations`` [tokens, K] by a method of ``METHODS`` or a combination
    "a+b", which rounds to nearest unless it names a rounding method.

    ``of_inputs`` is the scheme of the layer's inputs, for methods that search by the output. ``original``
    [tokens, K]: inputs of the same tokens in the original model, if ``activations`` come from a model whose
    earlier layers are quantized already; only methods with ``round_pair`` use them. ``folded``: the layer
    before has absorbed the factor of ``factor_of``, so that weight and inputs are scaled already, and the
    rest of the method is applied. ``ValueError`` for unknown names, shapes that do not match, and schemes
    that the method does not support.
    """
    rows = names_in(name)
    check_layer(weight, activations)
    w, x = weight.float(), activations.float()
    transforms: list[Transform] = []
    searched: Objective = ()
    for row in rows:
        checkpoint()
        if isinstance(row, TransformMethod) and not (folded and row.factor):
            transform, objective = row.find(Readers((w,), (scheme,), x, of_inputs))
            transforms.append(transform)
            w, x, searched = transform.weight(w), transform.inputs(x), searched or objective
    rounding = rounding_in(name)
    if original is None or rounding.round_pair is None:
        by = (rounding.after if folded else None) or rounding.round
        layer = by(w, scheme, x, progress)
    else:
        wanted = functools.reduce(lambda inputs, t: t.inputs(inputs), transforms, original.float())
        layer = rounding.round_pair(w, scheme, x, wanted, progress)
    if searched and rounding.objective is None:
        layer = dataclasses.replace(layer, objective=searched)
    for row in rows:
        if isinstance(row, CorrectionMethod):
            layer = layer.with_residue(row.find(layer, w, x))
    return layer.with_transforms(tuple(transforms))
