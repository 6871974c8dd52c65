"""A layer quantized by a method: codes, transforms of its inputs, and residues added to the product.

    Y = residues(X') + dequantize(codes) · X'      with X' = transforms(X)

Transforms change the basis of the inputs, so that W · X stays the same (SmoothQuant, AWQ, rotation). Residues
correct the rounding error. They are stored beside the codes (HQQ's offsets, LLM.int8()'s float16 columns,
LQER's low-rank factors), or as part of the layer's bias (bias correction). Each is a class in the file of its
method.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor, quantize
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack
from explorer.schemes import BitBudget, Scales, Scheme

Objective = tuple[float, ...]
"""Objective values of a method, over its iterations or its candidates."""
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-14, 65504.0
"""float16's smallest normal and its largest number."""


class Transform(Protocol):
    """Change of the basis of the layer's inputs.

    ``inputs`` of X [tokens, K] times ``weight`` of W [N, K] is again X · Wᵀ, and ``undo`` takes a weight back
    to the old basis. The other members are those of ``Stored``; its ``bits`` count if the operation before
    the layer cannot absorb the transform.
    """

    names: ClassVar[tuple[str, ...]]

    @property
    def bits(self) -> int: ...
    def inputs(self, x: Tensor) -> Tensor: ...
    def weight(self, w: Tensor) -> Tensor: ...
    def undo(self, w: Tensor) -> Tensor: ...
    def tensors(self) -> dict[str, Tensor]: ...
    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], q: QuantizedTensor) -> Self: ...


@dataclass(frozen=True, eq=False)
class Stored:
    """Tensors that a file holds beside the codes: the first fields of the class, under the keys ``names``,
    which no two classes share."""

    names: ClassVar[tuple[str, ...]]

    @property
    def bits(self) -> int:
        """Bits of storage."""
        return 8 * sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to be stored, by name."""
        fields = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, field) for name, field in zip(self.names, fields, strict=False)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], q: QuantizedTensor) -> Self:
        """Invert ``tensors``, for the codes ``q`` beside which they are stored."""
        return cls(*(tensors[name] for name in cls.names))


class Residue(Stored, ABC):
    """Term of the product besides the codes. Inputs and weights are in the transformed basis."""

    def remaining(self, x: Tensor) -> Tensor:
        """Return the inputs [tokens, K] that the codes multiply: ``x``, without those that this residue
        multiplies itself."""
        return x

    @abstractmethod
    def product(self, x: Tensor, remaining: Tensor) -> Tensor:
        """Compute this residue's term of the output, [tokens, N] in ``remaining``'s dtype.

        ``x``: inputs before quantization; ``remaining``: inputs that the codes multiply.
        """

    def merged(self, values: Tensor) -> Tensor:
        """Add this residue to the weight [N, K] ``values`` of the codes and later residues."""
        return values


@dataclass(frozen=True, eq=False)
class Diagonal(Stored):
    """Input channels scaled by ``scale`` [K]: W · diag(scale) for X · diag(1/scale).

    The operation before the layer can absorb 1/scale if it is a norm that feeds nothing else, or a linear
    layer. BERT's norms cannot, because the residual stream reads them too; activation functions cannot.
    """

    scale: Tensor
    names: ClassVar[tuple[str, ...]] = ("input_divisor",)

    @classmethod
    def rounded(cls, scale: Tensor) -> Diagonal:
        """Round a positive ``scale`` [K] to float16, as it is stored."""
        return cls(scale.clamp(SMALLEST_SCALE, LARGEST_SCALE).half())

    def inputs(self, x: Tensor) -> Tensor:
        return x / self.scale

    def weight(self, w: Tensor) -> Tensor:
        return w * self.scale

    def undo(self, w: Tensor) -> Tensor:
        return w / self.scale


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """A weight's codes ``q`` in the basis after ``transforms``, which are applied in order, and ``residues``.

    ``objective`` has the values that the method minimised: GPTQ's error over the damping, AWQ's and a
    searched SmoothQuant's over α, HQQ's and AutoRound's per iteration. ``snapshots`` [blocks, rows, columns]:
    GPTQ's first rows after some of its blocks.
    """

    q: QuantizedTensor
    transforms: tuple[Transform, ...] = ()
    residues: tuple[Residue, ...] = ()
    objective: Objective = ()
    snapshots: Tensor | None = None

    @property
    def bits(self) -> BitBudget:
        """Bits stored per weight: codes, scales, zero points, residues, and transforms, which cost nothing
        only if the operation before the layer absorbs them."""
        extra = sum(t.bits for t in self.transforms) + sum(r.bits for r in self.residues)
        added = extra / max(self.q.shape[0] * self.q.shape[1], 1)
        return dataclasses.replace(self.q.bits_per_element, added=added)

    @property
    def bits_per_weight(self) -> float:
        return self.bits.total

    @property
    def plain(self) -> bool:
        """True if the codes alone define the layer's weight, in the basis of its inputs."""
        return not self.transforms and not self.residues

    def with_transforms(self, transforms: tuple[Transform, ...]) -> QuantizedLayer:
        """Return the layer with ``transforms`` of its inputs that precede its own."""
        return dataclasses.replace(self, transforms=(*transforms, *self.transforms))

    def with_residue(self, residue: Residue) -> QuantizedLayer:
        """Return the layer with one more residue, after its own."""
        return dataclasses.replace(self, residues=(*self.residues, residue))

    def transform_inputs(self, x: Tensor) -> Tensor:
        """Transform inputs [tokens, K] to the basis of the codes, not yet quantized."""
        for transform in self.transforms:
            x = transform.inputs(x)
        return x

    def transform_weight(self, w: Tensor) -> Tensor:
        """Transform an original weight [N, K] to the basis of the codes, unrounded."""
        for transform in self.transforms:
            w = transform.weight(w)
        return w

    def transformed_weight(self) -> Tensor:
        """float32 [N, K]: codes and residues in the transformed basis."""
        values = self.q.dequantize()
        for residue in reversed(self.residues):  # an earlier residue takes its inputs from the later ones
            values = residue.merged(values)
        return values

    def weight(self) -> Tensor:
        """float32 [N, K]: the matrix that the layer multiplies its original inputs with."""
        values = self.transformed_weight()
        for transform in reversed(self.transforms):
            values = transform.undo(values)
        return values

    def multiply(self, x: Tensor, values: Tensor, activations: Scheme | None = None) -> Tensor:
        """Multiply original inputs [tokens, K] by ``values`` = ``q.dequantize()``: [tokens, N] in their
        dtype.

        Inputs are transformed, quantized by ``activations`` if given, and multiplied by codes and residues.
        """
        x = self.transform_inputs(x.float())
        remaining = x
        for residue in self.residues:
            remaining = residue.remaining(remaining)
        if activations is not None:
            remaining = quantize(remaining, activations).dequantize()
        remaining = remaining.to(values.dtype)
        product = remaining @ values.t()
        for residue in self.residues:
            product = product + residue.product(x, remaining)
        return product

    def output(self, x: Tensor, activations: Scheme | None = None) -> Tensor:
        """float64 [tokens, N] for original inputs [tokens, K]; ``activations`` quantizes them if given."""
        return self.multiply(x, self.q.dequantize().double(), activations)

    def extra_tensors(self) -> dict[str, Tensor]:
        """Tensors stored in addition to the codes, by name; names for transform i begin with
        ``change<i>.``."""
        extra: dict[str, Tensor] = {}
        for index, transform in enumerate(self.transforms):
            extra |= {f"change{index}.{key}": value for key, value in transform.tensors().items()}
        for residue in self.residues:
            extra |= residue.tensors()
        return extra


def check_layer(weight: Tensor, activations: Tensor) -> None:
    """Raise ``ValueError`` unless the weight is [N, K], the activations are [tokens ≥ 1, K], and all values
    are finite."""
    if not (
        weight.dim() == activations.dim() == 2
        and weight.shape[1] == activations.shape[1]
        and len(activations) > 0
    ):
        raise ValueError(
            "expected a weight [N, K] and activations [tokens, K] with at least one token, got "
            f"{list(weight.shape)} and {list(activations.shape)}"
        )
    for values, hold in ((weight, "weight holds"), (activations, "activations hold")):
        if not bool(torch.isfinite(values.sum(dtype=torch.float64))):
            raise ValueError(f"the {hold} NaN or Inf")


def check_objective(loss: float) -> float:
    """Return ``loss``; ``ValueError`` if it is Inf or NaN, so that steps cannot be compared."""
    if not math.isfinite(loss):
        raise ValueError(f"the error to minimise is {loss} in float32: scale the weight or the inputs down")
    return loss


def safe_divisor(scale: Tensor) -> Tensor:
    """Replace scales of 0 by 1: such a block restores zeros whatever its codes."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def as_float16(values: Tensor, what: str) -> Tensor:
    """Convert to float16; ``ValueError`` that names ``what`` if a finite number would become Inf."""
    half = values.half()
    if not bool(torch.isfinite(half).all()):
        raise ValueError(f"{what} reach beyond float16's 65504; scale the weight down first")
    return half


def row_groups(x: Tensor, width: int) -> Tensor:
    """[rows, groups, width]: split ``x`` [rows, K] into groups along its rows, the last padded with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % width)).view(len(x), -1, width)


def of_groups(codes: Tensor, scales: Scales, scheme: Scheme, shape: tuple[int, int]) -> QuantizedTensor:
    """Pack integer codes [N, groups, width] of a weight [N, K], without the padding."""
    assert isinstance(scheme.format, IntegerFormat)
    flat = scheme.format.codes_of(codes.flatten(1)[:, : shape[1]].contiguous())
    return QuantizedTensor(pack(flat, scheme.format), scales, scheme, shape)


def same_gram(x: Tensor) -> Tensor:
    """Return ``x`` [tokens, K], or a smaller matrix [min(tokens, K), K] for which E·xᵀ has the same norm for
    every E."""
    return torch.linalg.qr(x, mode="r").R if len(x) > x.shape[1] else x
