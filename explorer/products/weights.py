"""A quantized W [N, K] as a layer holds it: laid out once for the kernel that multiplies it.

``form_of`` chooses among

    TilesForm       W's codes are decoded in registers on Hopper: X in bfloat16, int8 or E4M3
    RowsForm        W's codes are of X's type, which Hopper's tensor cores multiply as they are
    RegistersForm   the same as TilesForm for one row after another, from Ampere on: few tokens
    RestoredForm    every other scheme, device and dtype: W is dequantized in the call, and torch multiplies

A form is what the text of an operator's argument says (``WeightForm.text``), so that W's tensors and that
text are all that a call needs.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from explorer.core import ops as operators
from explorer.core.backend import kernel_capability
from explorer.core.quantize import QuantizedTensor
from explorer.formats import FloatFormat, IntegerFormat
from explorer.formats.packing import pack, packed_row_bytes
from explorer.gpu.gemm import OperandType, ScaleK, ScalePlace, padded_columns, unpack_codes
from explorer.gpu.gemm import Tiles as TileLayout
from explorer.gpu.runtime import is_capturing, on_device_of
from explorer.products import layouts
from explorer.schemes import Scales, Scheme

AMPERE, HOPPER = (8, 0), (9, 0)


@dataclass(frozen=True)
class WeightForm(ABC):
    """How W [N, K] of scheme ``w`` lies in memory, and what X is quantized by in the call (None: not).

    ``load`` and ``unload`` are inverse: what a form holds are the codes, once.
    """

    name: ClassVar[str]
    w: Scheme
    x: Scheme | None
    shape: tuple[int, int]

    @property
    def text(self) -> str:
        """What ``form_called`` reads."""
        n, k = self.shape
        return "|".join((self.name, str(n), str(k), self.w.text, "" if self.x is None else self.x.text))

    @abstractmethod
    def load(self, q: QuantizedTensor) -> list[Tensor]:
        """The tensors of ``q`` as calls read them, on its device."""

    @abstractmethod
    def unload(self, held: Sequence[Tensor], scales: Scales) -> QuantizedTensor:
        """The codes of ``load``'s tensors again, with the scales that they came with."""

    row_step: ClassVar[int] = 0
    """W of whole multiples of so many rows can be joined with others; 0: none can."""

    def join(self, held: Sequence[Sequence[Tensor]], forms: Sequence[WeightForm]) -> list[Tensor]:
        """What this form, of all rows, holds of weights in ``forms``: rows after rows, and a scale of a whole
        W repeated for its rows."""
        joined = [torch.cat([parts[0] for parts in held])]
        for at in range(1, len(held[0])):
            vectors = [
                parts[at].expand(form.shape[0]) if parts[at].numel() == 1 else parts[at]
                for parts, form in zip(held, forms, strict=True)
            ]
            joined.append(torch.cat(vectors).contiguous())
        return joined

    @classmethod
    @abstractmethod
    def why_not(cls, w: Scheme, x: Scheme | None, k: int) -> str:
        """Why no W of this scheme is held so, with X's scheme; "" if it is."""


def _unusual(w: Scheme) -> str:
    """Why codes and scales of ``w`` are no plain scale · (value - zero point) on a grid; "" if they are."""
    if w.scale is None:
        return "a cast has no codes to save bytes by"
    if w.flat:
        return "its blocks run across rows"
    if w.mapping.has_offset:
        return "its blocks have float offsets"
    if w.scale.super_bits is not None or w.scale.nested:
        return "its scales are quantized themselves"
    return ""


class TilesForm(WeightForm):
    """[repacked tiles, the epilogue's scales of columns if there are any]."""

    name = "tiles"
    row_step = 64

    @functools.cached_property
    def tiles(self) -> TileLayout:
        return layouts.tiles_of(self.w, x_type_of(self.x))

    def load(self, q: QuantizedTensor) -> list[Tensor]:
        scale = self._column_scale(q)
        return [layouts.tiled_weights(q, self.tiles), *([] if scale is None else [padded_to_eight(scale)])]

    def _column_scale(self, q: QuantizedTensor) -> Tensor | None:
        if self.tiles.scales is ScalePlace.ROW:
            return layouts.scale_vector(q)
        return layouts.folded_scale(q) if self.tiles.folded else layouts.tensor_scale(q)

    def unload(self, held: Sequence[Tensor], scales: Scales) -> QuantizedTensor:
        codes = unpack_codes(held[0], self.tiles, *self.shape)
        return QuantizedTensor(pack(codes, self.w.format), scales, self.w, self.shape)

    @classmethod
    def why_not(cls, w: Scheme, x: Scheme | None, k: int) -> str:
        if why := _unusual(w):
            return why
        if x is not None and (x.asymmetric or x.block[1] is not None):
            return f"inputs quantized by {x} have zero points, or scales along K"
        try:
            tiles = layouts.tiles_of(w, x_type_of(x))
        except ValueError as error:
            return str(error)
        group = w.block[1]
        if group is not None and group < k and (group & (group - 1) or group < 16):
            return f"groups are powers of two of at least 16 along K, not {group}"
        if tiles.x_type is OperandType.S8 and tiles.scales is ScalePlace.ROW and k > 131072:
            return "int32 sums of sixteen times int4 by int8 hold K up to 131,072"
        return ""


class RowsForm(WeightForm):
    """[rows of bytes, then scales of columns, then sums and zero points of columns where there are those];
    with scales along K [rows, scales of blocks]."""

    name = "rows"
    row_step = 128

    @property
    def kind(self) -> OperandType:
        return x_type_of(self.x)

    @property
    def scale_k(self) -> ScaleK:
        return ScaleK.BLOCK if self.w.block == (128, 128) else ScaleK.NONE

    @property
    def zero_terms(self) -> bool:
        assert self.x is not None
        return self.x.asymmetric or self.w.asymmetric

    def load(self, q: QuantizedTensor) -> list[Tensor]:
        rows = layouts.byte_rows(q)
        if self.scale_k is ScaleK.BLOCK:
            return [rows, padded_columns(layouts.w_block_scales(q), 4)]
        scale = layouts.scale_vector(q)
        assert scale is not None
        held = [rows, padded_to_eight(scale)]
        if self.zero_terms:
            zeros = layouts.zero_points(q)
            held += [padded_to_eight(layouts.code_sums(q) - q.shape[1] * zeros), padded_to_eight(zeros)]
        return held

    def unload(self, held: Sequence[Tensor], scales: Scales) -> QuantizedTensor:
        packed = held[0][:, : packed_row_bytes(self.w.format, self.shape[1])].contiguous()
        return QuantizedTensor(packed, scales, self.w, self.shape)

    def join(self, held: Sequence[Sequence[Tensor]], forms: Sequence[WeightForm]) -> list[Tensor]:
        if self.scale_k is ScaleK.NONE:
            return super().join(held, forms)
        rows, scales = (torch.cat([parts[at] for parts in held]) for at in range(2))
        return [rows, padded_columns(scales, 4)]

    @classmethod
    def why_not(cls, w: Scheme, x: Scheme | None, k: int) -> str:
        if why := _unusual(w):
            return why
        if x is None or x.format != w.format or x.format.bits != 8:
            return "X and W are not both INT8, or both FP8 of one kind"
        if (x.block, w.block) == ((1, 128), (128, 128)) and x.format.name == "float8_e4m3fn":
            return ""
        if any(s.block not in ((1, None), (None, None)) or s.flat for s in (x, w)):
            return "scales of X and W are not one a tensor, a token or a channel, nor 1×128 with 128×128"
        if isinstance(x.format, FloatFormat) and (x.asymmetric or w.asymmetric):
            return "zero points belong to integers"
        return ""


class RegistersForm(WeightForm):
    """[packed rows, scales, zero points or nothing [0], scale of the whole tensor or nothing [0], the
    scales as they restore float32]."""

    name = "registers"

    def load(self, q: QuantizedTensor) -> list[Tensor]:
        nothing = q.packed.new_empty(0)
        zeros, whole = layouts.weight_zeros(q), layouts.tensor_scale(q)
        return [
            layouts.weight_rows(q),
            layouts.weight_scales(q),
            nothing if zeros is None else zeros,
            nothing if whole is None else whole,
            q.scales.stored,
        ]

    def unload(self, held: Sequence[Tensor], scales: Scales) -> QuantizedTensor:
        packed = held[0][:, : packed_row_bytes(self.w.format, self.shape[1])].contiguous()
        return QuantizedTensor(packed, scales, self.w, self.shape)

    @classmethod
    def why_not(cls, w: Scheme, x: Scheme | None, k: int) -> str:
        if why := _unusual(w):
            return why
        if x is not None:
            return "X is quantized"
        if layouts.per_byte_of(w.format) or (w.scale is not None and w.scale.divides_by_tensor_scale):
            return "its codes or scales are stored in another way"
        group = w.block[1]
        if group is not None and group < k and group & (group - 1):
            return f"groups are powers of two along K, not {group}"
        try:
            layouts.weight_of(w)
        except ValueError as error:
            return str(error)
        return ""


class RestoredForm(WeightForm):
    """[packed codes, scales as they restore, zero points or offsets, scale of the whole tensor]: what the
    operator ``dequantize`` takes."""

    name = "restored"

    def load(self, q: QuantizedTensor) -> list[Tensor]:
        return list(operators.parts(q))

    def unload(self, held: Sequence[Tensor], scales: Scales) -> QuantizedTensor:
        return QuantizedTensor(held[0], scales, self.w, self.shape)

    @classmethod
    def why_not(cls, w: Scheme, x: Scheme | None, k: int) -> str:
        return ""


_FORMS = (TilesForm, RowsForm, RegistersForm, RestoredForm)
FORMS: dict[str, type[WeightForm]] = {form.name: form for form in _FORMS}
FIRST_CHIP = {TilesForm: HOPPER, RowsForm: HOPPER, RegistersForm: AMPERE}
"""Forms whose kernels need a GPU: from which compute capability on. Those of Hopper have its instructions
alone."""


@functools.lru_cache(4096)
def form_called(text: str) -> WeightForm:
    """The form that ``WeightForm.text`` names; ``ValueError`` for any other text."""
    parts = text.split("|")
    if len(parts) != 5 or parts[0] not in FORMS or not (parts[1] + parts[2]).isdigit():
        raise ValueError(f"expected form|N|K|scheme of W|scheme of X, got {text!r}")
    name, n, k, w, x = parts
    return FORMS[name](Scheme.parse(w), Scheme.parse(x) if x else None, (int(n), int(k)))


def form_of(
    w: Scheme, x: Scheme | None, shape: tuple[int, int], capability: tuple[int, int] | None
) -> tuple[WeightForm, str]:
    """The form for W [N, K] on a chip (None: a CPU), and, of ``RestoredForm``, why no kernel takes it."""
    if capability is None:
        return RestoredForm(w, x, shape), "the kernels are for GPUs"
    if not all(shape):
        return RestoredForm(w, x, shape), "W is empty"
    reasons = []
    for form in (RowsForm, TilesForm, RegistersForm):
        first = FIRST_CHIP[form]
        if capability < first or (first == HOPPER and capability[0] != HOPPER[0]):
            continue
        why = form.why_not(w, x, shape[1])
        if not why:
            return form(w, x, shape), ""
        reasons.append(why)
    return RestoredForm(w, x, shape), reasons[1] if len(reasons) > 1 else "no kernel runs on this chip"


def joined_form(forms: Sequence[WeightForm]) -> WeightForm | None:
    """The form of all rows of several W in one form; None where they cannot be joined."""
    first = forms[0]
    same = all(
        (type(f), f.w, f.x, f.shape[1]) == (type(first), first.w, first.x, first.shape[1]) for f in forms
    )
    if not same or not first.row_step or any(form.shape[0] % first.row_step for form in forms):
        return None
    return type(first)(first.w, first.x, (sum(form.shape[0] for form in forms), first.shape[1]))


def x_type_of(x: Scheme | None) -> OperandType:
    """Operand type of X under a scheme, bfloat16 without one; ``ValueError`` for types that are not
    multiplied."""
    if x is None:
        return OperandType.BF16
    if x.block not in ((1, None), (None, None), (1, 128)) or x.format.bits != 8:
        raise ValueError(f"inputs quantized by {x} are not multiplied as they are")
    if isinstance(x.format, IntegerFormat):
        return OperandType.S8
    kinds = {"float8_e4m3fn": OperandType.E4M3, "float8_e5m2": OperandType.E5M2}
    if x.format.name not in kinds:
        raise ValueError(f"{x.format.label} inputs are not multiplied as they are")
    return kinds[x.format.name]


def padded_to_eight(v: Tensor) -> Tensor:
    """A vector over columns filled to a multiple of eight, which epilogues load at once; one value as it
    is."""
    if v.numel() == 1:
        return v.contiguous()
    return torch.nn.functional.pad(v, (0, -v.numel() % 8)).contiguous()


@dataclass(frozen=True, eq=False)
class LoadedWeight:
    """W as a layer holds it. ``why``: of a W without a kernel, why."""

    form: WeightForm
    tensors: list[Tensor]
    why: str = ""

    @classmethod
    @on_device_of("q")
    def of(cls, q: QuantizedTensor, x: Scheme | None, form: type[WeightForm] | None = None) -> Self:
        """``q`` laid out on its device, in the form that is fastest there or the one given."""
        if form is not None:
            return cls(made := form(q.scheme, x, q.shape), made.load(q))
        capability = kernel_capability(q.device)
        found, why = form_of(q.scheme, x, q.shape, capability)
        tensors = found.load(q)
        if capability is not None and not is_capturing(q.device):
            # Products are launched early: layouts of W are in memory before the first.
            torch.cuda.current_stream(q.device).synchronize()
        return cls(found, tensors, why)
