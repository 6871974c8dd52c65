"""Running a model for what signals need to know of its layers: squared gradients, inputs, true losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from explorer.models.capture import Model, capture
from explorer.models.skeleton import Skeleton
from explorer.progress import Progress
from explorer.survey.loss import DRAWS, LossReference, each_objective
from explorer.survey.sensitivities import SENSITIVITIES, Evidence, Needs

TOKENS = 256
"""Rows of each layer's inputs that the output error is taken over."""


def modules_of(network: nn.Module, shapes: Mapping[str, tuple[int, int] | None]) -> dict[str, str]:
    """The linear module of ``network`` for each layer of a checkpoint, of the layer's shape if that is given.
    Layers without one are left out: heads of tasks, and experts that transformers stacks.

    A checkpoint's names may have the prefix of the network without its head, or lack it, or be those of an
    earlier version: they are mapped as transformers maps them while loading.
    """
    skeleton = Skeleton(network)
    found = {layer: skeleton.place(layer, shape).module for layer, shape in shapes.items()}
    return {layer: module for layer, module in found.items() if module}


def gather(
    model: Model,
    reference: LossReference,
    modules: Mapping[str, str],
    signals: Sequence[str],
    progress: Progress | None = None,
) -> dict[str, Evidence]:
    """What ``signals`` need of each layer of ``modules`` (layer -> module) that the loss depends on.

    The network is run forward and backward on every text of ``reference``; layers without a gradient are
    left out.
    """
    squared = _squared_gradients(model, reference, modules, "fisher_diagonal" in signals, progress)
    needs = {SENSITIVITIES[signal].needs for signal in signals}
    names = [modules[layer] for layer in squared]
    inputs: dict[str, Tensor] = {}
    if Needs.INPUTS in needs:
        inputs = {c.name: c.activations for c in capture(model, reference.texts, names, TOKENS)}
    return {
        layer: Evidence(
            mean,
            matrix,
            inputs.get(modules[layer]),
            partial(_loss_with, model, reference, modules[layer]) if Needs.RUNS in needs else None,
        )
        for layer, (mean, matrix) in squared.items()
    }


def _loss_with(model: Model, reference: LossReference, module: str, weight: Tensor) -> float:
    """The true loss with ``weight`` in place of the layer's own."""
    linear = model.network.get_submodule(module)
    assert isinstance(linear, nn.Linear)
    own = linear.weight.data
    try:
        linear.weight.data = weight.to(own)
        return reference.measure(model.network).value
    finally:
        linear.weight.data = own


class _Squares:
    """Sums of one layer's squared gradients: of every weight if ``diagonal``, else of all together.

    Called once for each gradient, which is dropped: never are all layers' gradients in memory."""

    def __init__(self, weight: nn.Parameter, diagonal: bool) -> None:
        self.matrix = torch.zeros_like(weight.data) if diagonal else None
        self.weights, self.total, self.reached = weight.numel(), 0.0, False

    def __call__(self, weight: Tensor) -> None:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        self.reached = True
        if self.matrix is None:
            self.total += float(gradient.double().square().sum())
        else:
            self.matrix.addcmul_(gradient, gradient)

    def per_sample(self, samples: int) -> tuple[float, Tensor | None]:
        """The mean over weights, and the matrix, of the mean over samples."""
        if self.matrix is None:
            return self.total / samples / self.weights, None
        matrix = self.matrix.div_(samples)
        return float(matrix.sum(dtype=torch.float64)) / self.weights, matrix.cpu()


def _squared_gradients(
    model: Model,
    reference: LossReference,
    modules: Mapping[str, str],
    diagonal: bool,
    progress: Progress | None,
) -> dict[str, tuple[float, Tensor | None]]:
    weights = {layer: _weight(model.network, name) for layer, name in modules.items()}
    sums = {layer: _Squares(weight, diagonal) for layer, weight in weights.items()}
    total, samples, done = len(reference.texts) * DRAWS[reference.kind], 0, 0
    with _only_gradients_of(model.network, weights.values(), sums.values()):
        for scalar, again, count in each_objective(reference):
            scalar.backward(retain_graph=again)
            samples, done = samples + count, done + 1
            if progress is not None:
                progress(done, total)
    return {layer: squares.per_sample(samples) for layer, squares in sums.items() if squares.reached}


def _weight(network: nn.Module, module: str) -> nn.Parameter:
    weight = network.get_submodule(module).weight
    assert isinstance(weight, nn.Parameter)
    return weight


@contextmanager
def _only_gradients_of(
    network: nn.Module, weights: Iterable[nn.Parameter], hooks: Iterable[Callable[[Tensor], None]]
) -> Iterator[None]:
    """Inside, only ``weights`` of ``network`` get gradients, each of which is given to its hook."""
    before = {parameter: parameter.requires_grad for parameter in network.parameters()}
    network.requires_grad_(False)
    handles = []
    try:
        for weight, hook in zip(weights, hooks, strict=True):
            weight.requires_grad_(True)
            handles.append(weight.register_post_accumulate_grad_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, wanted in before.items():
            parameter.requires_grad_(wanted)
            parameter.grad = None
