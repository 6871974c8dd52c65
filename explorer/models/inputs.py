"""Quantization of layers' inputs when the model runs: by scales of each batch, or by fixed scales from
calibration texts. Also sums of squared inputs, for importance files of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from explorer.core.quantize import quantize
from explorer.formats import E4M3
from explorer.models.capture import Model, watch
from explorer.models.quantize import MethodLinear
from explorer.models.texts import AnyTexts
from explorer.progress import Progress
from explorer.schemes import Scheme, scale_for, tensor_scale_for
from explorer.schemes.observer import Observer


@dataclass(frozen=True)
class QuantizedInputs:
    """Quantization of a layer's inputs: ``scheme``, and the fixed ``scale`` if they have one."""

    scheme: Scheme
    scale: float | None = None


def quantized_inputs(x: Tensor, scheme: Scheme, scale: float | None = None) -> Tensor:
    """Round inputs [..., K] to the codes of ``scheme``; float32. A fixed ``scale`` saturates values beyond
    its range; NVFP4's is the scale of its block scales."""
    if scale is None:
        return quantize(x.reshape(-1, x.shape[-1]), scheme).dequantize().reshape(x.shape)
    codes = scheme.format
    if scheme.block == (None, None):
        return codes.decode(codes.encode(x.float() / scale)) * scale
    # A row more that holds the largest value sets the scale of the tensor.
    largest = scale * codes.max * E4M3.max
    rows = x.float().reshape(-1, x.shape[-1]).clamp(-largest, largest)
    rows = torch.cat([rows, torch.full_like(rows[:1], largest)])
    return quantize(rows, scheme).dequantize()[:-1].reshape(x.shape)


def quantize_inputs(
    network: nn.Module, modules: Mapping[str, str], inputs: Mapping[str, QuantizedInputs]
) -> None:
    """Quantize the inputs of the layers ``modules`` (name -> module of ``network``) that ``inputs`` names
    from now on.

    A layer by a method that transforms its inputs rounds them after that. ``ValueError`` for such a layer
    with a fixed scale, which is known for untransformed inputs only.
    """
    for name, path in modules.items():
        if name not in inputs:
            continue
        module, scheme, scale = network.get_submodule(path), inputs[name].scheme, inputs[name].scale
        if isinstance(module, MethodLinear) and not module.layer.plain:
            if scale is not None:
                raise ValueError(
                    f"{name}: its method changes its inputs or adds to its product; fixed scales are of "
                    "inputs as they are: quantize inputs per token"
                )
            module.activations = scheme
        else:
            module.register_forward_pre_hook(partial(_round, scheme=scheme, scale=scale))


def _round(
    module: nn.Module, given: tuple[Tensor, ...], *, scheme: Scheme, scale: float | None
) -> tuple[Tensor, ...]:
    return quantized_inputs(given[0], scheme, scale).to(given[0].dtype), *given[1:]


def find_input_scales(
    model: Model,
    modules: Mapping[str, str],
    schemes: Mapping[str, Scheme],
    texts: AnyTexts,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Find the fixed scale of each layer's inputs (name -> module), by the range that its scheme's calibrator
    finds in all inputs from ``texts``. ``progress`` counts texts.

    ``SourceError`` without a text; ``ValueError`` for a layer that no text reaches, and for inputs that are
    NaN or Inf.
    """
    found = {}
    for name, observer in observed_inputs(model, modules, texts, progress).items():
        if not observer.batches:
            raise ValueError(
                f"no text reached {name}: the fixed scale of its inputs is not known; keep it, or quantize "
                "inputs per token"
            )
        found[name] = fixed_scale(observer, schemes[name])
    return found


def observed_inputs(
    model: Model, modules: Mapping[str, str], texts: AnyTexts, progress: Progress | None = None
) -> dict[str, Observer]:
    """Observe the inputs that ``texts`` give each layer (name -> module); ``progress`` counts texts. Errors
    as ``find_input_scales``, but a layer that no text reaches only has an empty observer."""
    observers = {name: Observer() for name in modules}
    watch(model, texts, {path: observers[name].add for name, path in modules.items()}, progress)
    return observers


def fixed_scale(observer: Observer, scheme: Scheme) -> float:
    """Compute the fixed scale of ``scheme`` from the range that its calibrator finds in all values of
    ``observer``: the scale of the whole tensor, or of NVFP4's block scales."""
    clip = observer.clip_range(scheme.calibrator.name, 1 << (scheme.format.bits - 1))
    if scheme.block != (None, None):
        return float(tensor_scale_for(clip.amax, scheme))
    return float(scale_for(clip, scheme).scale.to(torch.float32))


class SquaredInputs:
    """Watcher of a layer: ``sums`` float64 [K] of its squared inputs, and the number of ``tokens``."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None
        self.tokens = 0

    def __call__(self, inputs: Tensor) -> None:
        rows = inputs.reshape(-1, inputs.shape[-1])
        squares = rows.double().square_().sum(0).cpu()
        self.sums = squares if self.sums is None else self.sums + squares
        self.tokens += len(rows)


def squared_inputs(
    model: Model, texts: AnyTexts, modules: Sequence[str], progress: Progress | None = None
) -> dict[str, SquaredInputs]:
    """Sum the squared inputs of the linear layers ``modules`` over all tokens of ``texts``; layers that no
    text reached are left out. ``progress`` counts texts. ``SourceError`` without a text."""
    found = {name: SquaredInputs() for name in modules}
    watch(model, texts, found, progress)
    return {name: one for name, one in found.items() if one.sums is not None and torch.any(one.sums > 0)}
