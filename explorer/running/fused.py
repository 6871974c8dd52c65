"""Layers with the same input, multiplied as one: query, key and value; gate and up. Rows of gate and up
alternate in runs of 32 where the product's kernel can join them (``TilesForm.join``).

For one token a small product mostly waits for its launch and its last multiprocessor, so that one product of
all rows is faster than three. Codes and scales stay what they are; a scale of a whole tensor is repeated for
each of its rows. The sums over K may be added in another order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from explorer.core.backend import synchronize
from explorer.core.replace import replace_layers
from explorer.gpu.gemm.swap_ab import RUN
from explorer.models.kinds import fused_groups
from explorer.products.layer import QuantizedLinear
from explorer.products.linear import apply_linear
from explorer.products.weights import TilesForm, WeightForm, alternating, form_called, joined_form


class _Computed:
    """Outputs for one input that their layers have not taken yet."""

    def __init__(self) -> None:
        self.input: Tensor | None = None
        self.left: dict[int, Tensor] = {}


class _ComputedHere(threading.local):
    """Outputs of the current thread; a copy starts with none."""

    def __init__(self) -> None:
        self.now = _Computed()

    def __reduce__(self) -> tuple[type[_ComputedHere], tuple[()]]:
        return _ComputedHere, ()


class JoinedLayers(nn.Module):
    """Product of several layers with one input. The first layer that is called computes the outputs of
    all."""

    def __init__(self, linear: nn.Module, sizes: Sequence[int], alternate: bool = False) -> None:
        super().__init__()
        self.linear, self.sizes, self.alternate = linear, list(sizes), alternate
        self._here = _ComputedHere()
        self._traced = _Computed()

    def part(self, index: int, x: Tensor) -> Tensor:
        """The output of layer ``index`` for ``x``."""
        # torch.compile follows no state of a thread; what it compiles has none left
        computed = self._traced if torch.compiler.is_compiling() else self._here.now
        if computed.input is not x or index not in computed.left:
            computed.input = x
            y = self.linear(x)
            if self.alternate:
                parts = [part.flatten(-2) for part in y.unflatten(-1, (-1, 2, RUN)).unbind(-2)]
            else:
                parts = y.split(self.sizes, dim=-1)
            computed.left = dict(enumerate(parts))
        found = computed.left.pop(index)
        if not computed.left:
            computed.input = None
        return found


class JoinedLayer(nn.Module):
    """Member of a ``JoinedLayers``, in the place of the layer that it replaces."""

    def __init__(self, together: JoinedLayers, index: int) -> None:
        super().__init__()
        self.together, self.index = together, index

    def forward(self, x: Tensor) -> Tensor:
        return self.together.part(self.index, x)


def fuse(network: nn.Module) -> int:
    """Join layers that engines multiply as one, in place, where possible; the number of groups joined.

    Each group's layers are freed before the next group is joined, if nothing else holds them.
    """
    linear = [
        name
        for name, module in network.named_modules()
        if type(module) is nn.Linear or isinstance(module, QuantizedLinear)
    ]
    return sum(_put_together(network, group) for group in fused_groups(linear) if len(group) > 1)


def _put_together(network: nn.Module, group: Sequence[str]) -> bool:
    layers: list[Any] = [network.get_submodule(name) for name in group]
    alternate = _alternates(group, layers)
    made = _joined(layers, alternate)
    if made is None:
        return False
    together = JoinedLayers(made, [layer.out_features for layer in layers], alternate)
    replace_layers(network, group, lambda name, _: JoinedLayer(together, group.index(name)))
    return True


def _alternates(group: Sequence[str], layers: Sequence[Any]) -> bool:
    """True for gate and up in a form whose rows alternate."""
    names = [name.rpartition(".")[2] for name in group]
    forms = [getattr(layer, "form", None) for layer in layers]
    return names == ["gate_proj", "up_proj"] and all(isinstance(form, TilesForm) for form in forms)


def _joined(layers: Sequence[Any], alternate: bool) -> nn.Module | None:
    """One layer with the rows of all; None if its result would differ."""
    if len({layer.bias is None for layer in layers}) > 1:
        return None
    biases = [] if layers[0].bias is None else [layer.bias.detach() for layer in layers]
    bias = alternating(biases) if biases and alternate else torch.cat(biases) if biases else None
    if all(type(layer) is nn.Linear for layer in layers):
        weight = torch.cat([layer.weight.detach() for layer in layers])
        joined = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        joined.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            joined.bias = nn.Parameter(bias, requires_grad=False)
        return joined
    if not all(isinstance(layer, QuantizedLinear) for layer in layers):
        return None
    form = joined_form([layer.form for layer in layers])
    if form is None:
        return None
    every = [layer.held for layer in layers], [layer.form for layer in layers]
    held = form.join(*every, alternate) if isinstance(form, TilesForm) else form.join(*every)
    synchronize(held[0].device)  # products are launched early: W is in memory before the first
    return JoinedCodes(form, held, bias)


class JoinedCodes(nn.Module):
    """Linear layer Y = X · Wᵀ + bias that holds the codes of several layers, in the form that kernels
    read."""

    def __init__(self, form: WeightForm, held: Sequence[Tensor], bias: Tensor | None) -> None:
        super().__init__()
        self._form, self._count = form.text, len(held)
        for index, tensor in enumerate(held):
            self.register_buffer(f"held_{index}", tensor, persistent=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def form(self) -> WeightForm:
        """Layout of W in memory."""
        return form_called(self._form)

    @property
    def held(self) -> list[Tensor]:
        """Tensors of W as calls read them."""
        return [getattr(self, f"held_{index}") for index in range(self._count)]

    @property
    def kernel(self) -> str:
        """The kernel, in words."""
        return self.form.kernels()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the layer; a change of dtype affects the bias alone."""
        held = {name: self._buffers.pop(name) for name in [f"held_{i}" for i in range(self._count)]}
        try:
            super()._apply(fn, recurse)
        finally:
            for name, tensor in held.items():
                assert tensor is not None
                self._buffers[name] = tensor.to(fn(torch.empty(0, device=tensor.device)).device)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(x, self.held, self.bias, self._form)
