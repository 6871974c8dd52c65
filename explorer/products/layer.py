"""``QuantizedLinear``: a linear layer that holds its weight's codes and multiplies by them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from explorer.core.file import part_names, parts_of, tensor_of
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.products.linear import apply_linear
from explorer.products.weights import LoadedWeight, RestoredForm, WeightForm, form_called
from explorer.schemes import Scales, Scheme


class QuantizedLinear(nn.Module):
    """Linear layer Y [..., N] = X [..., K] · Wᵀ + bias that holds codes, computed by ``explorer.linear``.

    W is held once, in the layout that the kernel for its device reads. ``to(device)`` makes the layout of
    another device from the same codes; a change of dtype alone leaves them as they are. ``quantized`` returns
    the codes. On a GPU the scales as they were stored stay in host memory beside the layout. ``state_dict``
    has the parts of an ``explorer.load`` file (``packed``, ``scale``, ...), on any device. ``weight``
    restores W, for modules that read it. ``kernels`` False: W is always restored and multiplied by torch, in
    any dtype.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        weight: QuantizedTensor,
        bias: Tensor | None = None,
        x_scheme: Scheme | None = None,
        kernels: bool = True,
    ) -> None:
        """``ValueError`` for a bias without N values."""
        super().__init__()
        if bias is not None and tuple(bias.shape) != weight.shape[:1]:
            raise ValueError(f"expected a bias of {weight.shape[0]} values, got {list(bias.shape)}")
        self.out_features, self.in_features = weight.shape
        self.scheme, self.x_scheme, self.kernels = weight.scheme, x_scheme, kernels
        trained = isinstance(bias, nn.Parameter) and bias.requires_grad
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=trained)
        self.dtype = torch.float32 if bias is None else bias.dtype
        self._hold(weight)

    @classmethod
    def of(
        cls,
        linear: nn.Linear,
        scheme: Scheme,
        x_scheme: Scheme | None = None,
        kernels: bool = True,
    ) -> Self:
        """Round the weight of ``linear`` to nearest by ``scheme``."""
        layer = cls(quantize(linear.weight.detach(), scheme), linear.bias, x_scheme, kernels)
        layer.dtype = linear.weight.dtype
        return layer

    def _hold(self, q: QuantizedTensor) -> None:
        held = LoadedWeight.of(q, self.x_scheme, None if self.kernels else RestoredForm)
        self._form, self._why = held.form.text, held.why
        self._count = len(held.tensors)
        for index, tensor in enumerate(held.tensors):
            self.register_buffer(f"held_{index}", tensor, persistent=False)
        self._scales: Scales = q.scales if q.packed.device.type == "cpu" else q.scales.to("cpu")

    @property
    def held(self) -> list[Tensor]:
        """Tensors of W as calls read them."""
        return [getattr(self, f"held_{index}") for index in range(self._count)]

    @property
    def weight(self) -> Tensor:
        """W [N, K] restored, in the model's current dtype; not a parameter."""
        return torch.ops.explorer.held_weight(self.held, self._form, self.dtype)

    @property
    def form(self) -> WeightForm:
        """Layout of W in memory."""
        return form_called(self._form)

    @property
    def device(self) -> torch.device:
        """Device of W."""
        return self.held_0.device  # type: ignore[return-value]

    @property
    def quantized(self) -> QuantizedTensor:
        """W's codes and scales, on its device."""
        return self.form.unload(self.held, self._scales.to(self.device))

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(x, self.held, self.bias, self._form)

    @property
    def kernel(self) -> str:
        """Names of the kernels that multiply by W, or the reason why none does."""
        why = f" ({self._why})" if self._why else ""
        return f"{form_called(self._form).kernels()}{why}"

    def extra_repr(self) -> str:
        inputs = "" if self.x_scheme is None else f" × {self.x_scheme}"
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, {self.scheme}{inputs}: {self.kernel}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the layer: another device needs W in a new layout; a change of dtype affects the
        bias alone."""
        before = self.device
        probe = fn(torch.empty(0, device=before, dtype=self.dtype))
        after, self.dtype = probe.device, probe.dtype
        if after != before:
            self._hold(self.quantized.to(after))
        held = {name: self._buffers.pop(name) for name in [f"held_{i}" for i in range(self._count)]}
        try:
            super()._apply(fn, recurse)
        finally:
            self._buffers.update(held)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key, tensor in parts_of(self.quantized).items():
            # Layers that were rounded as one share memory, which safetensors refuses to write.
            destination[prefix + key] = tensor.clone()

    def get_extra_state(self) -> Tensor:
        """The schemes and the shape as JSON text in uint8, so that safetensors can hold it."""
        about = {"scheme": str(self.scheme), "x_scheme": str(self.x_scheme or "")}
        text = json.dumps({**about, "shape": [self.out_features, self.in_features]})
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: ``_load_from_state_dict``, which has the codes too, checks the state."""

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        shape = self.out_features, self.in_features
        wanted = part_names(self.scheme, shape)
        own = {key: state_dict[prefix + key] for key in wanted if prefix + key in state_dict}
        others = {k: v for k, v in state_dict.items() if k.removeprefix(prefix) not in own}
        about = state_dict.get(f"{prefix}_extra_state")
        super()._load_from_state_dict(
            others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        missing_keys += [prefix + key for key in sorted(wanted - own.keys())]
        if own.keys() != wanted:
            return
        try:
            if about is not None:
                self._check_about(about)
            self._hold(tensor_of(own, self.scheme, shape).to(self.device))
        except ValueError as error:
            error_msgs.append(f"{prefix.rstrip('.') or 'the layer'}: {error}")

    def _check_about(self, about: Tensor) -> None:
        """``ValueError`` for a state of another scheme or shape."""
        try:
            found = json.loads(bytes(about.cpu().numpy()).decode())
        except ValueError as error:
            raise ValueError(f"the extra state is not that of a QuantizedLinear: {error}") from error
        own = json.loads(bytes(self.get_extra_state().numpy()).decode())
        for key, value in own.items():
            if found.get(key) != value:
                raise ValueError(f"the state's {key} is {found.get(key)!r}, the layer's {value!r}")
