"""Running a model for what signals need to know of its layers: squared gradients, inputs, true losses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from explorer.models.capture import Model, capture
from explorer.models.skeleton import HeldWeight, Skeleton
from explorer.progress import Progress
from explorer.schemes import Scheme
from explorer.sources.base import SourceError
from explorer.survey.input_losses import InputLosses, input_hooks
from explorer.survey.interval import fold_count
from explorer.survey.loss import DRAWS, LossReference, each_objective
from explorer.survey.methods import HeldOutRows, MethodEvidence, rows_of, tokens_for, widths_of
from explorer.survey.sensitivities import SENSITIVITIES, Evidence, Needs

TOKENS = 256
"""Rows of each layer's inputs that the output error is taken over."""
MOST_UNSEEN = 0.5
"""The largest share of tokens that rows are taken to have that no text looked up."""


def weights_of(network: nn.Module, shapes: Mapping[str, tuple[int, int] | None]) -> dict[str, HeldWeight]:
    """Where ``network`` has the weight of each layer of a checkpoint, of the layer's shape if that is given.
    Layers that it has in no such place are left out: heads of tasks, and what transformers merges otherwise.

    A checkpoint's names may have the prefix of the network without its head, or lack it, or be those of an
    earlier version: they are mapped as transformers maps them while loading.
    """
    skeleton = Skeleton(network)
    found = {layer: skeleton.held(layer, shape) for layer, shape in shapes.items()}
    return {layer: held for layer, held in found.items() if held}


def gather(
    model: Model,
    reference: LossReference,
    weights: Mapping[str, HeldWeight],
    signals: Sequence[str],
    progress: Progress | None = None,
    methods: bool = False,
    inputs: Mapping[str, Scheme] | None = None,
) -> dict[str, Evidence]:
    """What ``signals`` need of each layer of ``weights`` that the loss depends on, with ``methods`` what
    these see of it and are judged by, and what quantizing its inputs by the schemes ``inputs`` adds to the
    loss.

    The network is run forward and backward on every text of ``reference``; layers without a gradient are
    left out. A table of embeddings that is the head's too has the gradients of both uses; of one that is
    looked up alone rows that no text has take part in the diagonal (``row_shares``). ``SourceError`` for
    signals that need the inputs of experts, which no linear layer has.
    """
    needs = {SENSITIVITIES[signal].needs for signal in signals}
    stacked = [layer for layer, held in weights.items() if held.expert is not None]
    if Needs.INPUTS in needs and stacked:
        raise SourceError(f"{stacked[0]} is one of several stacked experts, whose inputs are not captured")
    modules = {layer: held.module for layer, held in weights.items() if held.module}
    most = tokens_for(widths_of(model.network, modules.values()))
    seen, stride = rows_of(reference.tokens, most)
    held_out = {module: HeldOutRows(seen, stride) for module in modules.values() if methods}
    of_inputs = input_hooks(model, modules, inputs or {}, reference.texts, DRAWS[reference.kind] > 1)
    with _watched(model.network, held_out, {modules[layer]: hook for layer, hook in of_inputs.items()}):
        squares = _squared_gradients(model, reference, weights, "fisher_diagonal" in signals, progress)
    skeleton = Skeleton(model.network)
    multiplied = {
        x: skeleton.head if weights[x].table and skeleton.tied else weights[x].module for x in squares
    }
    shares = {
        layer: row_shares(reference, found.shape[0])
        for layer, found in squares.items()
        if weights[layer].table
    }
    for layer, of_rows in shares.items():
        if not skeleton.tied:
            squares[layer].spread(of_rows)
    seen_inputs: dict[str, Tensor] = {}
    if Needs.INPUTS in needs:
        names = [name for name in multiplied.values() if name]
        seen_inputs = {c.name: c.activations for c in capture(model, reference.texts, names, TOKENS)}
    by_method = _of_methods(model, reference, held_out, [weights[layer].module for layer in squares], seen)
    return {
        layer: Evidence(
            *found.per_sample(),
            seen_inputs.get(multiplied[layer]),
            shares.get(layer) if Needs.INPUTS in needs else None,
            partial(loss_with, model, reference, weights[layer]) if Needs.RUNS in needs else None,
            found.folds,
            found.texts,
            by_method.get(weights[layer].module),
            of_inputs[layer].losses(found.samples) if layer in of_inputs else {},
        )
        for layer, found in squares.items()
    }


def _of_methods(
    model: Model,
    reference: LossReference,
    held_out: Mapping[str, HeldOutRows],
    reached: Sequence[str],
    seen: int,
) -> dict[str, MethodEvidence]:
    """What methods see of each module and are judged by: the first ``seen`` tokens, and ``held_out``."""
    names = [name for name in reached if name in held_out]
    captured = capture(model, reference.texts, names, seen) if names and seen else []
    found = {one.name: held_out[one.name].evidence(one.activations) for one in captured}
    return {name: evidence for name, evidence in found.items() if evidence is not None}


@contextmanager
def _watched(
    network: nn.Module, after: Mapping[str, HeldOutRows], before: Mapping[str, InputLosses]
) -> Iterator[None]:
    """Inside, each module calls its hook ``before`` and ``after`` every forward pass."""
    with ExitStack() as stack:
        for name, hook in before.items():
            stack.callback(network.get_submodule(name).register_forward_pre_hook(hook).remove)
        for name, rows in after.items():
            stack.callback(network.get_submodule(name).register_forward_hook(rows).remove)
        yield


def row_shares(reference: LossReference, rows: int) -> Tensor:
    """float32 [rows]: the share of tokens that look up each row of a table of embeddings, in texts like those
    of ``reference``, by Good and Turing (Good, Biometrika 40, 1953).

    Rows that no text looked up have together the share of tokens that were seen once, at most
    ``MOST_UNSEEN``, and each the same; the others have theirs of the rest.
    """
    ids = torch.tensor([id for one in reference.sequences for id in one.ids])
    counts = torch.bincount(ids, minlength=rows).double()
    unseen = counts == 0
    share = min(float((counts == 1).sum() / counts.sum()), MOST_UNSEEN) if unseen.any() else 0.0
    shares = counts / counts.sum() * (1 - share)
    shares[unseen] = share / max(int(unseen.sum()), 1)
    return shares.float()


def loss_with(model: Model, reference: LossReference, held: HeldWeight, weight: Tensor) -> float:
    """The true loss with ``weight`` in place of the layer's own."""
    return reference.measure(_with_weight(model.network, held, weight)).value


def _with_weight(network: nn.Module, held: HeldWeight, weight: Tensor) -> nn.Module:
    """A copy of ``network`` that shares all tensors but the one that has another ``weight``: the original has
    to stay what it is, as it may be run again to compare with."""
    own = network.get_parameter(held.parameter)
    other = nn.Parameter(own.detach().clone(), requires_grad=False)
    held.of(other.data).copy_(weight)
    shared: dict[int, object] = {id(t): t for t in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, {**shared, id(own): other})


class _Squares:
    """Sums of one layer's squared gradients: of each fold of the texts, and of every weight if ``diagonal``;
    and in how many ``texts`` it had any, as an expert has none where no token is routed to it."""

    def __init__(self, weight: Tensor, diagonal: bool, dealt: _Dealt) -> None:
        self.matrix = torch.zeros_like(weight) if diagonal else None
        self.shape, self.weights, self.reached, self.dealt = weight.shape, weight.numel(), False, dealt
        self.totals = [0.0] * len(dealt.samples)
        self._seen: set[int] = set()

    def add(self, gradient: Tensor) -> None:
        """Count one gradient [N, K], which is overwritten; of a table it has the rows that were looked up."""
        self.reached = True
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, gradient = gradient.indices()[0], gradient.values()
            if self.matrix is not None:
                self.matrix.index_add_(0, rows, gradient.square())
        elif self.matrix is not None:
            self.matrix.addcmul_(gradient, gradient)
        total = float(gradient.square_().sum(dtype=torch.float64))
        self.totals[self.dealt.fold] += total
        if total:
            self._seen.add(self.dealt.text)

    @property
    def texts(self) -> int:
        return len(self._seen)

    @property
    def samples(self) -> int:
        """How many samples all objectives count for."""
        return sum(self.dealt.samples)

    def spread(self, shares: Tensor) -> None:
        """Deal the sums over all rows, those that were not looked up too, which have none of their own:
        ``shares`` [N] says which share of the tokens they have, and they are taken to be as the mean of the
        others."""
        if self.matrix is None:
            return
        unseen = ~self.matrix.any(1)
        own = shares.to(self.matrix.device)[unseen]
        mean = self.matrix.sum(0)
        self.matrix.mul_(1 - float(own.sum()))
        self.matrix[unseen] = own[:, None] * mean

    def per_sample(self) -> tuple[float, Tensor | None]:
        """The mean over weights, and the matrix float32 [N, K] on the CPU, of the mean over samples; asked
        for once."""
        if self.matrix is None:
            return sum(self.totals) / self.samples / self.weights, None
        matrix = self.matrix.div_(self.samples)
        return float(matrix.sum(dtype=torch.float64)) / self.weights, matrix.cpu()

    @property
    def folds(self) -> tuple[float, ...]:
        """The mean over weights of each fold's samples."""
        pairs = zip(self.totals, self.dealt.samples, strict=True)
        return tuple(total / samples / self.weights for total, samples in pairs)


@dataclass
class _Dealt:
    """``samples`` of each fold so far, and the ``fold`` and ``text`` whose gradients come."""

    samples: list[int]
    fold: int = 0
    text: int = 0


def _squared_gradients(
    model: Model,
    reference: LossReference,
    weights: Mapping[str, HeldWeight],
    diagonal: bool,
    progress: Progress | None,
) -> dict[str, _Squares]:
    """Of each layer that got a gradient. Each gradient is dropped once it is counted: never are those of all
    layers in memory."""
    parameters = {held.parameter: model.network.get_parameter(held.parameter) for held in weights.values()}
    dealt = _Dealt([0] * fold_count(len(reference.sequences)))
    sums = {
        layer: _Squares(held.of(parameters[held.parameter].data), diagonal, dealt)
        for layer, held in weights.items()
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
    """Inside, tables of embeddings that no head shares get gradients of the rows that were looked up alone: a
    vocabulary has many rows, and a text few of them."""
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
    """A hook that counts the gradient of a parameter, part by part, and drops it."""

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
