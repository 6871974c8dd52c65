"""Linear layer Y = X · Wᵀ + bias with a quantized W: ``explorer.linear``, and the operator
``torch.ops.explorer.linear``.

The operator takes W's tensors and the text of their form (weights.py), so that it has no state: it can be
compiled (it has a fake), captured in a CUDA graph, and called from any thread. The first call of a shape
computes everything but addresses, and later calls reuse it. The operator itself has no gradient; ``linear``
and layers give it one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from explorer.core.backend import kernel_capability
from explorer.core.quantize import QuantizedTensor
from explorer.gpu.runtime import is_capturing, on_device_of
from explorer.products.weights import OUTPUTS, LoadedWeight, RestoredForm, form_called, form_of
from explorer.schemes import Scheme

# --- the operator ------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("explorer", "FRAGMENT")
_LIBRARY.define(
    "linear(Tensor x, Tensor[] weight, Tensor? bias, str form) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
_LIBRARY.define(
    "held_weight(Tensor[] weight, str form, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
# torch.library.custom_op costs some 36 µs a call, define and impl about 10 (PyTorch issue 139500).


@on_device_of("x")
def _linear(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, form: str) -> Tensor:
    layout, shape = form_called(form), x.shape
    n, k = layout.shape
    if x.device != weight[0].device or not x.is_floating_point():
        raise ValueError(
            f"expected floating X on {weight[0].device}, where W lies, got {x.dtype} on {x.device}"
        )
    if not shape or shape[-1] != k:
        raise ValueError(f"expected X [..., {k}] for W [{n}, {k}], got {list(shape)}")
    if bias is not None and bias.shape[-1] not in (n, -(-n // 8) * 8):
        raise ValueError(f"expected a bias of {n} values, got {list(bias.shape)}")
    rows = x if x.dim() == 2 else x.reshape(-1, k)
    if not rows.shape[0] or not n:
        return x.new_empty((*shape[:-1], n))
    y = layout.multiply(rows, weight, bias)
    return y if x.dim() == 2 else y.view(*shape[:-1], n)


def _linear_fake(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, form: str) -> Tensor:
    shape = form_called(form).shape
    torch._check(x.shape[-1] == shape[1], lambda: f"expected X [..., {shape[1]}], got {list(x.shape)}")
    return x.new_empty((*x.shape[:-1], shape[0]))


@on_device_of("weight")
def _held_weight(weight: Sequence[Tensor], form: str, dtype: torch.dtype) -> Tensor:
    return form_called(form).weight(weight, dtype)


def _held_weight_fake(weight: Sequence[Tensor], form: str, dtype: torch.dtype) -> Tensor:
    return weight[0].new_empty(form_called(form).shape, dtype=dtype)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("linear", _linear, _key)
    _LIBRARY.impl("held_weight", _held_weight, _key)
torch.library.register_fake("explorer::linear", _linear_fake, lib=_LIBRARY)
torch.library.register_fake("explorer::held_weight", _held_weight_fake, lib=_LIBRARY)


class _Linear(torch.autograd.Function):
    """Autograd function of the operator: gradients of X (through a quantized X unchanged) and of the bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, form: str, *weight: Tensor) -> Tensor:
        ctx.form, ctx.dtype = form, x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(*weight)
        return torch.ops.explorer.linear(x, list(weight), bias, form)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight = list(ctx.saved_tensors)
        dx = db = None
        if ctx.needs_input_grad[0]:
            dx = gradient @ torch.ops.explorer.held_weight(weight, ctx.form, gradient.dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[1]:
            db = gradient.reshape(-1, gradient.shape[-1]).sum(0).to(ctx.bias_dtype)
        return dx, db, None, *(None for _ in weight)


def apply_linear(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, form: str) -> Tensor:
    """Call the operator, with gradients if they are needed; where nothing but the operator itself would see
    the call, what it computes, which saves the way through torch's dispatcher, a third of the call."""
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        return _Linear.apply(x, bias, form, *weight)
    if _is_plain(x):
        return _linear(x, weight, bias, form)
    return torch.ops.explorer.linear(x, list(weight), bias, form)


def _is_plain(x: Tensor) -> bool:
    """True unless a compiler, a tracer, a mode, a transform or a subclass of tensors handles operators."""
    return not (
        type(x) is not Tensor
        or torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


# --- the library -------------------------------------------------------------------------------------

_HELD = "_held_for_products"
"""Attribute of a ``QuantizedTensor`` that caches its ``LoadedWeight``, by X's scheme and by the use of
kernels."""


def held(w: QuantizedTensor, x_scheme: Scheme | None, kernels: bool = True) -> LoadedWeight:
    """Lay ``w`` out for its products, once: the layout lives as long as ``w`` does."""
    every = w.__dict__.get(_HELD)
    if every is None:
        every = {}
        object.__setattr__(w, _HELD, every)
    key = (x_scheme, kernels)
    if key not in every:
        if is_capturing(w.device):
            raise ValueError(
                "W is laid out at its first call, which cannot be captured: call linear once before"
            )
        every[key] = LoadedWeight.of(w, x_scheme, None if kernels else RestoredForm)
    return every[key]


def linear(
    x: Tensor, w: QuantizedTensor, bias: Tensor | None = None, x_scheme: Scheme | None = None
) -> Tensor:
    """Compute Y [..., N] = X [..., K] · Wᵀ + bias, in X's dtype, with a quantized W [N, K].

    ``x_scheme`` quantizes X in the call, a row as a token (INT8 or FP8, one scale a row or a tensor, FP8 also
    1×128). On a GPU a kernel decodes W's codes as it multiplies, for X in bfloat16 or float16; float16 is
    rounded to bfloat16 there. The first call lays W out for the kernel, and the layout is kept with ``w``. If
    no kernel supports the scheme, the dtype or the device, W is restored in X's dtype and multiplied by
    torch; ``explain`` tells which. Sums are in float32; for more than 2,048 tokens decoded weights are
    rounded to bfloat16 first. X and the bias have gradients, W has none. An ``x_scheme`` of one scale a
    tensor makes each row depend on the others. ``ValueError`` unless X's last axis is K and the bias has N
    values.
    """
    if x.device != w.device:
        raise ValueError(f"X lies on {x.device}, and W on {w.device}")
    kernels = x.dtype in OUTPUTS or x_scheme is not None
    found = held(w, x_scheme, kernels)
    return apply_linear(x, found.tensors, bias, found.form.text)


def explain(w: QuantizedTensor, x_scheme: Scheme | None = None) -> str:
    """Name the kernels that multiply by ``w`` on its device, or the reason why none does, in one line."""
    where = "this CPU" if w.device.type == "cpu" else torch.cuda.get_device_name(w.device)
    form, why = form_of(w.scheme, x_scheme, w.shape, kernel_capability(w.device))
    inputs = "bfloat16" if x_scheme is None else str(x_scheme)
    reason = f" ({why})" if why else ""
    return f"{w.scheme} × {inputs} on {where}: {form.kernels()}{reason}"
