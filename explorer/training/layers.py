"""Linear layers that quantize in their forward pass and learn through it.

Three rules for the gradient: straight-through where nothing was clipped (Y. Bengio et al., arXiv
1308.3432); LSQ's learned step sizes (S. Esser et al., arXiv 1902.08153); BitNet's, which passes the
gradient to weights and activations unchanged (S. Ma et al., arXiv 2402.17764 and its training notes).
``prepare`` puts such layers into any model, ``convert`` replaces them by layers that hold codes.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from explorer.core.blocks import rectangles
from explorer.core.ops import check_learnable, fake_quantize, learned_quantize, restored, straight_through
from explorer.core.quantize import QuantizedTensor, quantize, quantize_with_scales
from explorer.core.replace import names_of_modules, replace_layers
from explorer.schemes import OWN_CODES, ScaleRule, Scales, Scheme
from explorer.training.inputs import ONE_SCALE, DynamicInputs, Float32State, StaticInputs

SMALLEST_STEP_SIZE = 1e-8
RANGES_OF_0_2 = {"low": "inputs.low", "high": "inputs.high"}
"""Names in state dicts of version 0.2 -> today's names."""


class Rule(enum.Enum):
    """Gradient rule of a rounding."""

    STE_CLIPPED = "straight-through, zero where clipped"
    LSQ = "LSQ: the step sizes are learned too"
    STE = "BitNet: straight-through everywhere"


class _Linear(Float32State, ABC):
    """Linear layer of quantized X and quantized Wᵀ, which reads states with today's names or those of an
    earlier version."""

    inputs: DynamicInputs | StaticInputs | None
    bias: Tensor | None
    renamed: ClassVar[Mapping[str, str]] = RANGES_OF_0_2

    @abstractmethod
    def matrix(self, dtype: torch.dtype) -> Tensor:
        """Return the quantized weight [out, in] for inputs of ``dtype``."""

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.inputs is None else self.inputs(x)
        return nn.functional.linear(x, self.matrix(x.dtype), self.bias)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for old, new in self.renamed.items():
            if prefix + old in state_dict:
                state_dict[prefix + new] = state_dict.pop(prefix + old)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class QuantLinear(_Linear):
    """Linear layer that quantizes its weight, and its inputs if ``activations`` is given, in the forward
    pass.

    ``weight`` and ``bias`` have the names and shapes of ``nn.Linear``'s; ``step_size`` [grid] is learned
    under LSQ. ``inputs`` quantizes the inputs: each batch with its own scales, or if ``static`` under one
    range that was observed before. ``ValueError`` for a layer that computes its weight or output in another
    way than ``nn.Linear``, for LSQ under schemes that are not symmetric integers, and for ``static`` without
    one scale for all inputs.
    """

    in_float32: ClassVar[tuple[str, ...]] = ("step_size",)
    renamed: ClassVar[Mapping[str, str]] = {"step": "step_size", **RANGES_OF_0_2}  # "step" of version 0.1

    def __init__(
        self,
        linear: nn.Linear,
        weights: Scheme,
        activations: Scheme | None = None,
        rule: Rule = Rule.STE_CLIPPED,
        static: bool = False,
    ) -> None:
        super().__init__()
        check_plain(linear)
        if static and activations is None:
            raise ValueError(ONE_SCALE)
        self.weight, self.bias = linear.weight, linear.bias
        self.weights, self.rule, self.inputs = weights, rule, None
        if activations is not None:
            dynamic = DynamicInputs(activations, masked=rule is not Rule.STE)
            self.inputs = StaticInputs(activations, linear.weight.device) if static else dynamic
        self.step_size: nn.Parameter | None = None
        if rule is Rule.LSQ:
            self.step_size = nn.Parameter(init_lsq_step_size(linear.weight.detach(), weights))
        self.train(linear.training)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def matrix(self, dtype: torch.dtype) -> Tensor:
        return self.quantized_weight()

    def quantized_weight(self) -> Tensor:
        """The weight [out, in] of the forward pass."""
        if self.step_size is not None:
            return learned_quantize(self.weight, self._positive_step_size(self.step_size), self.weights)
        if self.rule is Rule.STE:
            return straight_through(self.weight, self.weights)
        return fake_quantize(self.weight, self.weights)

    def codes(self) -> QuantizedTensor:
        """The weight as it would be stored."""
        w = self.weight.detach().float()
        if self.step_size is None:
            return quantize(w, self.weights)
        # Step sizes are stored in float32, and codes are found as in training: in the scheme's own format,
        # fitted again, or under another rule for codes they would not be what was trained.
        learned = dataclasses.replace(
            self.weights, scale=ScaleRule(), codes=OWN_CODES, least_squares_scale=False, seed=None
        )
        return quantize_with_scales(
            w, learned, Scales(self._positive_step_size(self.step_size.detach()), None, None)
        )

    @staticmethod
    def _positive_step_size(step_size: Tensor) -> Tensor:
        return step_size.abs().clamp(min=SMALLEST_STEP_SIZE)

    def extra_repr(self) -> str:
        return (
            f"in={self.in_features}, out={self.out_features}, {self.weights.name}, {self.rule.name.lower()}"
        )


class StoredLinear(_Linear):
    """Linear layer of codes and scales that dequantizes its weight in each forward pass.

    It takes over the layer's quantizer of inputs; ``ValueError`` if that is static and knows no range.
    """

    packed: Tensor
    scales: Tensor
    zero_points: Tensor | None
    tensor_scale: Tensor | None
    offsets: Tensor | None
    in_float32: ClassVar[tuple[str, ...]] = ("scales", "tensor_scale", "offsets")

    def __init__(self, layer: QuantLinear) -> None:
        super().__init__()
        if isinstance(layer.inputs, StaticInputs):
            layer.inputs.check_range()
        q = layer.codes()
        self.scheme, self.shape, self.inputs = q.scheme, q.shape, layer.inputs
        for name, values in (
            ("packed", q.packed),
            ("scales", q.scales.stored if q.scales.upper is None else q.scales.scale),
            ("zero_points", q.scales.zero_points),
            ("tensor_scale", q.scales.tensor_scale),
            ("offsets", q.scales.offsets),
            ("bias", None if layer.bias is None else layer.bias.detach()),
        ):
            self.register_buffer(name, values)
        self.train(layer.training)

    def quantized(self) -> QuantizedTensor:
        """Codes and scales, for export."""
        scales = Scales.of(self.scheme, self.scales, self.zero_points, self.tensor_scale, self.offsets)
        return QuantizedTensor(self.packed, scales, self.scheme, self.shape)

    def matrix(self, dtype: torch.dtype) -> Tensor:
        return restored(self.quantized(), dtype)


def init_lsq_step_size(weight: Tensor, scheme: Scheme) -> Tensor:
    """Compute LSQ's first step sizes [grid]: 2 · mean|w| / √(largest code) of each block of ``weight`` [out,
    in].

    ``ValueError`` for schemes that are not symmetric integers.
    """
    check_learnable(scheme)
    shape = (weight.shape[0], weight.shape[1])
    mean = torch.empty(scheme.grid(shape), device=weight.device)
    magnitudes = weight.abs().float()
    for part in rectangles(shape, scheme.block):
        mean[part.grid_rows, part.grid_columns] = part.blocks(magnitudes).mean((1, 3))
    return (2 * mean / scheme.code_limits[1] ** 0.5).clamp(min=SMALLEST_STEP_SIZE)


def prepare(
    model: nn.Module,
    weights: Scheme,
    activations: Scheme | None = None,
    *,
    rule: Rule = Rule.STE_CLIPPED,
    static: bool = False,
    keep: Sequence[str] = (),
) -> list[str]:
    """Replace every ``nn.Linear`` of ``model`` in place by a ``QuantLinear`` that shares its parameters.

    Returns the names replaced; a layer under several names is replaced under all of them, by one. ``keep``:
    names or patterns (``lm_head``, ``*.down_proj``) that stay as they are. ``ValueError`` if nothing is left
    to replace, if ``model`` is itself such a layer, and for layers that would lose something and are not
    kept: a parametrization of the weight, hooks, a forward pass of their own, or a module above that reads
    the weight itself (``nn.MultiheadAttention``).
    """
    return replace_linear(model, lambda layer: QuantLinear(layer, weights, activations, rule, static), keep)


def replace_linear(
    model: nn.Module, make: Callable[[nn.Linear], nn.Module], keep: Sequence[str]
) -> list[str]:
    """Replace every ``nn.Linear`` of ``model`` that is not kept by the result of ``make``; ``keep``, returned
    names and errors as in ``prepare``."""
    if isinstance(model, nn.Linear):
        raise ValueError(
            "the model is itself an nn.Linear, which cannot be replaced in place: put it into an "
            "nn.Sequential"
        )
    linear = [n for n in names_of_modules(model) if isinstance(model.get_submodule(n[0]), nn.Linear)]
    chosen = [names for names in linear if not any(fnmatch.filter(names, name) for name in keep)]
    if not chosen:
        raise ValueError(
            "no linear layer to quantize"
            + (f" beside those kept ({', '.join(keep)})" if linear else " in this model")
        )
    _check_replaceable(model, chosen)
    for module in model.modules():
        # In evaluation without gradients torch's transformer layers read the weights of their linear layers
        # themselves, if this attribute says that they know the activation function.
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
    return replace_layers(model, [names[0] for names in chosen], lambda _, layer: make(layer))


def observe(model: nn.Module, on: bool) -> None:
    """Switch every static quantizer of inputs between recording the range of its inputs and quantizing by
    it."""
    for module in model.modules():
        if isinstance(module, StaticInputs):
            module.observing = on


def convert(model: nn.Module) -> list[str]:
    """Replace every ``QuantLinear`` of ``model`` in place by a ``StoredLinear``; returns the names replaced.

    ``ValueError``, with no layer replaced, if ``model`` is itself such a layer, for a weight that holds NaN
    or Inf, and for a layer whose static inputs were never observed.
    """
    if isinstance(model, QuantLinear):
        raise ValueError(
            "the model is itself a QuantLinear, which cannot be replaced in place: make it a StoredLinear"
        )
    stored = {name: StoredLinear(m) for name, m in model.named_modules() if isinstance(m, QuantLinear)}
    return replace_layers(model, stored, lambda name, _: stored[name])


def _check_replaceable(model: nn.Module, layers: Sequence[Sequence[str]]) -> None:
    """``ValueError`` that names every layer that has to be kept, with the reason."""
    attention = {id(m.out_proj) for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    refused = dict[str, str]()
    for names in layers:
        layer = model.get_submodule(names[0])
        assert isinstance(layer, nn.Linear)
        above = "belongs to an nn.MultiheadAttention, which reads its weight itself"
        if reason := above if id(layer) in attention else _reason_to_leave(layer):
            refused |= dict.fromkeys(names, reason)
    if refused:
        raise ValueError(
            "not every linear layer can be quantized: "
            + "; ".join(f"{name} {reason}" for name, reason in refused.items())
            + f"; to leave them as they are, pass keep={list(refused)}"
        )


def check_plain(layer: nn.Linear) -> None:
    """``ValueError`` for a layer that computes in another way than ``nn.Linear``."""
    if reason := _reason_to_leave(layer):
        raise ValueError(f"this layer cannot be quantized: it {reason}")


def _reason_to_leave(layer: nn.Linear) -> str:
    """List features of ``layer`` that a ``QuantLinear`` in its place would lose; empty if none."""
    if "weight" not in layer._parameters:
        return "has a parametrization of its weight (weight_norm, spectral_norm, pruning), which would vanish"
    if type(layer).forward is not nn.Linear.forward or "forward" in vars(layer):
        return f"is a {type(layer).__name__} with an overridden forward"
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return "has hooks, which would vanish: register them afterwards" if any(hooks) else ""
