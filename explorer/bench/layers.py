"""Times of a model's linear layers on this machine's GPU by scheme, as ``explorer.linear`` multiplies them:
each product in a CUDA graph, over weights that are not in the L2 cache."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import torch
from torch import Tensor

from explorer.bench.timing import buffer_sets, time_graph
from explorer.core.backend import gpu_device, gpu_status, require_gpu
from explorer.core.quantize import quantize
from explorer.models.capture import Model
from explorer.products.linear import apply_linear
from explorer.products.shape_times import ShapeTime
from explorer.products.weights import LoadedWeight, RestoredForm
from explorer.progress import checkpoint
from explorer.schemes import Scheme
from explorer.survey.assemble import shapes_of
from explorer.survey.recipe import ModelRecipe
from explorer.survey.times import UNQUANTIZED, CheckedTime, StepTimes, Weight

REPEATS = 10
_DEVIATION = 0.02
"""Standard deviation of the random weights: times do not depend on values."""


def times_here(batch: int, restored: bool = False) -> StepTimes:
    """Return times of products with ``batch`` tokens on this machine's GPU; each is measured when it is first
    needed.

    A scheme that no kernel supports here has no time; with ``restored`` its time is that of dequantizing and
    of torch's product. ``ValueError`` without a GPU, and for a batch below 1.
    """
    device = require_gpu()
    if batch < 1:
        raise ValueError(f"a step multiplies at least 1 token, not {batch}")

    def product(scheme: Scheme, shape: Weight, inputs: Scheme | None) -> ShapeTime:
        checkpoint()
        return _measured(scheme, (batch, *shape), inputs, device, restored)

    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return StepTimes(torch.cuda.get_device_name(device), batch, product, date, "measured")


def checked_time(recipe: ModelRecipe, model: Model) -> CheckedTime | None:
    """Measure the layers of ``recipe`` on this machine's GPU at their shapes in ``model``, and compare with
    the predicted time. Without a GPU the result has the reason; None for a recipe that predicts no time."""
    predicted = recipe.predicted_time
    if predicted is None:
        return None
    if gpu_device() is None:
        return CheckedTime(predicted, None, f"it is predicted only: {gpu_status().reason}")
    layers, kept = shapes_of(model, recipe.layers), shapes_of(model, predicted.kept)
    times = times_here(predicted.batch, restored=True)
    measured = times.of_recipe(recipe.layers, layers, kept, recipe.fused, recipe.input_schemes)
    return CheckedTime(predicted, measured)


def _measured(
    scheme: Scheme, shape: tuple[int, int, int], inputs: Scheme | None, device: torch.device, restored: bool
) -> ShapeTime:
    m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(0)
    w = torch.randn(n, k, generator=generator, device=device) * _DEVIATION
    x = torch.randn(m, k, generator=generator, device=device).to(torch.bfloat16)
    form = ""
    if scheme == UNQUANTIZED:
        held = [w.to(torch.bfloat16)]
    else:
        try:
            loaded = LoadedWeight.of(quantize(w, scheme), inputs)
        except ValueError as error:
            return ShapeTime(shape, "none", reason=str(error))
        if isinstance(loaded.form, RestoredForm) and not restored:
            return ShapeTime(shape, "none", reason=loaded.why or "no kernel here multiplies these weights")
        held, form = list(loaded.tensors), loaded.form.text
    del w
    size = x.nbytes + sum(tensor.nbytes for tensor in held)
    sets = [(x.clone(), [t.clone() for t in held]) for _ in range(buffer_sets(size, device))]
    seconds = time_graph([_call(x, held, form) for x, held in sets], REPEATS).median_s
    name = torch.cuda.get_device_name(device)
    return ShapeTime(shape, "measured", seconds=seconds, gpu=name)


def _call(x: Tensor, held: list[Tensor], form: str) -> Callable[[], Tensor]:
    """Return a call that computes Y of one layer; torch's if it is not quantized."""
    if not form:
        return partial(torch.nn.functional.linear, x, held[0])
    return partial(apply_linear, x, held, None, form)
