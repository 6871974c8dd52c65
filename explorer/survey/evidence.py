"""Run a model forward and backward for the evidence of a survey: its layers' squared gradients and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from explorer.models.capture import Model, capture
from explorer.models.skeleton import HeldWeight, Skeleton
from explorer.progress import Progress
from explorer.survey.interval import fold_count
from explorer.survey.loss import DRAWS, LossReference, each_objective
from explorer.survey.methods import HeldOutRows, MethodEvidence, rows_of, tokens_for, widths_of
from explorer.survey.sensitivities import Evidence


def weights_of(network: nn.Module, shapes: Mapping[str, tuple[int, int] | None]) -> dict[str, HeldWeight]:
    """Find the parameter of ``network`` that holds the weight of each layer of a checkpoint, of the layer's
    shape if given.

    Layers without such a parameter are left out: heads of tasks, and layers that transformers merges
    otherwise. A checkpoint's names may have the prefix of the network without its head, or lack it, or be
    names of an earlier version: they are mapped as transformers maps them while loading.
    """
    skeleton = Skeleton(network)
    found = {layer: skeleton.held(layer, shape) for layer, shape in shapes.items()}
    return {layer: held for layer, held in found.items() if held}


def gather(
    model: Model,
    reference: LossReference,
    weights: Mapping[str, HeldWeight],
    progress: Progress | None = None,
    methods: bool = False,
) -> dict[str, Evidence]:
    """Gather the evidence of each layer of ``weights``; with ``methods`` also inputs for methods, and inputs
    to judge them by.

    The network is run forward and backward on every text of ``reference``. Layers without a gradient are left
    out. A table of embeddings that is also the head has the gradients of both uses. In a table that is only
    looked up, rows that no text uses cost nothing.
    """
    modules = {layer: held.module for layer, held in weights.items() if held.module}
    most = tokens_for(widths_of(model.network, modules.values()))
    seen, stride = rows_of(reference.tokens, most)
    held_out = {module: HeldOutRows(seen, stride) for module in modules.values() if methods}
    with ExitStack() as stack:
        for name, rows in held_out.items():
            stack.callback(model.network.get_submodule(name).register_forward_hook(rows).remove)
        squares = _squared_gradients(model, reference, weights, progress)
    by_method = _of_methods(model, reference, held_out, [weights[layer].module for layer in squares], seen)
    return {layer: found.evidence(by_method.get(weights[layer].module)) for layer, found in squares.items()}


def _of_methods(
    model: Model,
    reference: LossReference,
    held_out: Mapping[str, HeldOutRows],
    reached: Sequence[str],
    seen: int,
) -> dict[str, MethodEvidence]:
    """Gather two sets of inputs of each module: the first ``seen`` tokens for methods, and ``held_out``
    tokens to judge methods by."""
    names = [name for name in reached if name in held_out]
    captured = capture(model, reference.texts, names, seen) if names and seen else []
    found = {one.name: held_out[one.name].evidence(one.activations) for one in captured}
    return {name: evidence for name, evidence in found.items() if evidence is not None}


@dataclass
class _Dealt:
    """State of the backward passes: ``samples`` of each fold so far, and the current ``fold`` and
    ``text``."""

    samples: list[int]
    fold: int = 0
    text: int = 0


class _Squares:
    """Sums of one layer's squared gradients: of every weight, and of each fold of the texts. Also the texts
    with a gradient: an expert has none if no token of the text is routed to it."""

    def __init__(self, weight: Tensor, dealt: _Dealt) -> None:
        self.matrix, self.weights, self.dealt = torch.zeros_like(weight), weight.numel(), dealt
        self.totals = [0.0] * len(dealt.samples)
        self.texts: set[int] = set()
        self.reached = False

    def add(self, gradient: Tensor) -> None:
        """Count one gradient [N, K] and overwrite it; a table's gradient has only the rows that were looked
        up."""
        self.reached = True
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, gradient = gradient.indices()[0], gradient.values()
            self.matrix.index_add_(0, rows, gradient.square())
        else:
            self.matrix.addcmul_(gradient, gradient)
        total = float(gradient.square_().sum(dtype=torch.float64))
        self.totals[self.dealt.fold] += total
        if total:
            self.texts.add(self.dealt.text)

    def evidence(self, methods: MethodEvidence | None) -> Evidence:
        """Return means over the samples of all objectives; may be called once."""
        matrix = self.matrix.div_(sum(self.dealt.samples))
        fisher = float(matrix.sum(dtype=torch.float64)) / self.weights
        pairs = zip(self.totals, self.dealt.samples, strict=True)
        folds = tuple(total / samples / self.weights for total, samples in pairs)
        return Evidence(fisher, matrix.cpu(), folds, len(self.texts), methods)


def _squared_gradients(
    model: Model,
    reference: LossReference,
    weights: Mapping[str, HeldWeight],
    progress: Progress | None,
) -> dict[str, _Squares]:
    """Sum the squared gradients of each layer that gets one. Each gradient is dropped once it is counted, so
    that memory never holds all layers' gradients."""
    parameters = {held.parameter: model.network.get_parameter(held.parameter) for held in weights.values()}
    dealt = _Dealt([0] * fold_count(len(reference.sequences)))
    sums = {
        layer: _Squares(held.of(parameters[held.parameter].data), dealt) for layer, held in weights.items()
    }
    parts: dict[str, list[tuple[HeldWeight, _Squares]]] = {}
    for layer, held in weights.items():
        parts.setdefault(held.parameter, []).append((held, sums[layer]))
    hooks = [_counting(parts[name]) for name in parameters]
    total, done = len(reference.sequences) * DRAWS[reference.kind], 0
    with _only_gradients_of(model.network, parameters.values(), hooks), _sparse_tables(model.network):
        for one in each_objective(reference):
            dealt.fold, dealt.text = one.index % len(dealt.samples), one.index
            one.scalar.backward(retain_graph=one.again)
            dealt.samples[dealt.fold] += one.samples
            done += 1
            if progress is not None:
                progress(done, total)
    return {layer: squares for layer, squares in sums.items() if squares.reached}


@contextmanager
def _sparse_tables(network: nn.Module) -> Iterator[None]:
    """Give tables of embeddings gradients of the looked-up rows alone, inside this context, unless a head
    shares the table: a vocabulary has many rows, and a text few of them."""
    skeleton = Skeleton(network)
    table = network.get_submodule(skeleton.table) if skeleton.table and not skeleton.tied else None
    if not isinstance(table, nn.Embedding):
        yield
        return
    before, table.sparse = table.sparse, True
    try:
        yield
    finally:
        table.sparse = before


def _counting(parts: Sequence[tuple[HeldWeight, _Squares]]) -> Callable[[Tensor], None]:
    """Return a hook that counts the gradient of a parameter, part by part, and drops it."""

    def count(weight: Tensor) -> None:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        for held, squares in parts:
            squares.add(held.of(gradient))

    return count


@contextmanager
def _only_gradients_of(
    network: nn.Module, weights: Iterable[nn.Parameter], hooks: Iterable[Callable[[Tensor], None]]
) -> Iterator[None]:
    """Compute gradients only of ``weights`` of ``network`` inside this context, and give each to its hook."""
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
