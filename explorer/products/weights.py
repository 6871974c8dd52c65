"""Forms of a quantized W [N, K] in memory: laid out once for the kernel that multiplies it.

``form_of`` chooses among

    TilesForm       W's codes are decoded in registers on Hopper: X in bfloat16, int8 or E4M3
    RowsForm        W's codes are of X's type, which Hopper's tensor cores multiply as they are
    RegistersForm   the same as TilesForm for one row after another, from Ampere on: few tokens
    RestoredForm    every other scheme, device and dtype: W is dequantized in the call, and torch multiplies

A form is named by a text (``WeightForm.text``), an argument of the operator ``explorer::linear``: W's tensors
and that text are all that a call needs.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from explorer.cached import cached_property
from explorer.core import ops as operators
from explorer.core.backend import kernel_capability
from explorer.core.cuda import quantize_on_device
from explorer.core.quantize import QuantizedTensor
from explorer.formats import FloatFormat, IntegerFormat
from explorer.formats.packing import pack, packed_row_bytes
from explorer.gpu import gemm as kernel
from explorer.gpu.gemm import OperandType, ScaleK, ScalePlace, Tiles, padded_columns, unpack_codes
from explorer.gpu.gemm.swap_ab import RUN, SwapAB, alternating_tiles
from explorer.gpu.runtime import is_capturing, on_device_of
from explorer.products import layouts
from explorer.products.auto import variants_for
from explorer.products.gemms import GEMMS
from explorer.schemes import Scales, Scheme

AMPERE, HOPPER = (8, 0), (9, 0)
MANY_TOKENS = 2048
"""Number of tokens up to which gemm_swap_ab is as fast or faster; for more, weights are first unpacked to
bfloat16 (docs/gemm-speed.md)."""
REGISTER_TOKENS = 32
"""Number of tokens up to which the kernel for Ampere decodes W in registers; for more W is restored."""
KEPT_SHAPES = 256
"""Number of token counts whose launches a form caches."""
OUTPUTS = (torch.bfloat16, torch.float16)
"""Types of X that kernels multiply in bfloat16, and of their Y."""


@dataclass(frozen=True)
class WeightForm(ABC):
    """Layout of W [N, K] of scheme ``w`` in memory, and the product by it; ``x``: the scheme by which X is
    quantized in the call (None: it is not).

    ``load`` and ``unload`` are inverse: a form holds the codes exactly, and once. The form that
    ``form_called`` returns caches everything that calls need but addresses.
    """

    name: ClassVar[str]
    w: Scheme
    x: Scheme | None
    shape: tuple[int, int]

    @cached_property
    def text(self) -> str:
        """The name that ``form_called`` reads."""
        n, k = self.shape
        return "|".join((self.name, str(n), str(k), self.w.text, "" if self.x is None else self.x.text))

    @abstractmethod
    def load(self, q: QuantizedTensor) -> list[Tensor]:
        """Lay ``q`` out: the tensors that calls read, on its device."""

    @abstractmethod
    def unload(self, held: Sequence[Tensor], scales: Scales) -> QuantizedTensor:
        """Restore the quantized weight from the tensors of ``load``, and its ``scales``."""

    @abstractmethod
    def multiply(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        """Compute Y [M, N] in X's dtype from X [M, K], M ≥ 1, the tensors of ``load``, and a bias [N]."""

    @abstractmethod
    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Restore W [N, K]."""

    @abstractmethod
    def kernels(self) -> str:
        """Name the files of kernels/ that multiply, with the largest number of tokens of each."""

    row_step: ClassVar[int] = 0
    """Step of the rows of W that can be joined with others; 0: W cannot be joined."""

    def join(self, held: Sequence[Sequence[Tensor]], forms: Sequence[WeightForm]) -> list[Tensor]:
        """Join weights held in ``forms`` to one in this form: rows after rows; a scale of a whole W is
        repeated for its rows."""
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
        """Reason why this form cannot hold W of scheme ``w`` with X of scheme ``x``; "" if it can."""


def _filled(bias: Tensor | None) -> Tensor | None:
    """Pad to float32 [N rounded up to a multiple of 8]; unchanged if N is a multiple."""
    if bias is None or (bias.dtype == torch.float32 and bias.numel() % 8 == 0 and bias.is_contiguous()):
        return bias
    return torch.nn.functional.pad(bias.float(), (0, -bias.numel() % 8))


def alternating(vectors: Sequence[Tensor]) -> Tensor:
    """Join two vectors over rows in turns of ``RUN``."""
    return torch.stack([vector.view(-1, RUN) for vector in vectors], 1).flatten()


def _of_columns(vector: Tensor | None, n: int) -> Tensor | None:
    """Take the first ``n`` values of a vector over columns; a single value, shared by all, is unchanged."""
    return vector if vector is None or vector.numel() == 1 else vector[:n]


def _by_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias[: weight.shape[0]].to(x.dtype)
    return torch.nn.functional.linear(x, weight, bias)


def _unusual(w: Scheme) -> str:
    """Reason why scale · (value - zero point) on a grid of blocks does not restore ``w``; "" if it does."""
    if w.scale is None:
        return "a cast has no codes to save bytes by"
    if w.flat:
        return "its blocks run across rows"
    if w.mapping.has_offset:
        return "its blocks have float offsets"
    if w.scale.super_bits is not None or w.scale.nested:
        return "its scales are quantized themselves"
    return ""


class _HopperForm(WeightForm):
    """Products by gemm_swap_ab.cu for few tokens; launches are cached by the number of tokens."""

    @property
    @abstractmethod
    def tiles(self) -> Tiles:
        """Layout of W for that kernel."""

    @cached_property
    def _launches(self) -> Callable[[int, int, torch.dtype, torch.device], SwapAB]:
        def launch(m: int, row_bytes: int, dtype: torch.dtype, device: torch.device) -> SwapAB:
            return SwapAB(m, self.shape[0], row_bytes, self.tiles, dtype, device, early=True)

        return functools.lru_cache(KEPT_SHAPES)(launch)

    def _few(
        self,
        x: Tensor,
        w: Tensor,
        dtype: torch.dtype,
        vectors: tuple[Tensor | None, Tensor | None, Tensor | None],
        terms: Sequence[Tensor | None] = (None, None, None, None),
        scales: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> Tensor:
        """Compute Y by gemm_swap_ab from X's rows uint8 [M, bytes]. ``vectors``: scales of rows and columns,
        bias; ``terms``: row_a, col_a, row_b, col_b; ``scales`` along K."""
        m, n, device = x.shape[0], self.shape[0], x.device
        product = self._launches(m, x.shape[1], dtype, device)
        out = torch.empty((m, n), dtype=dtype, device=device)
        addresses = [0 if v is None else v.data_ptr() for v in (out, *vectors, *terms)]
        strides = (0 if v is None or v.numel() == 1 else 1 for v in vectors[:2])
        epilogue = (*addresses, *strides, 1, 0, m, n)
        along_k = (0 if v is None else v.data_ptr() for v in scales)
        product.start(x.data_ptr(), w.data_ptr(), epilogue, *along_k)
        return out


class TilesForm(_HopperForm):
    """Form whose codes are decoded in registers on Hopper: [repacked tiles, the epilogue's scales of columns
    if there are any]. X is bfloat16 (float16 is rounded to it), or quantized in the call to 8 bits."""

    name = "tiles"
    row_step = 64

    @cached_property
    def tiles(self) -> Tiles:
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

    def join(
        self, held: Sequence[Sequence[Tensor]], forms: Sequence[WeightForm], alternate: bool = False
    ) -> list[Tensor]:
        """As any form; ``alternate``: the rows of two W of one shape in turns of ``RUN``."""
        joined = super().join(held, forms)
        if alternate:
            tiles, *vectors = ([*tensor.chunk(2)] for tensor in joined)
            joined = [alternating_tiles(tiles, self.tiles), *map(alternating, vectors)]
        return joined

    def multiply(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        column, bias = held[1] if len(held) > 1 else None, _filled(bias)
        if self.x is not None:
            q = quantized(x, self.x)
            return self._few(layouts.byte_rows(q), held[0], x.dtype, (layouts.scale_vector(q), column, bias))
        check_dtype(x)
        rows, (n, k) = bfloat16_rows(x), self.shape
        if x.shape[0] <= MANY_TOKENS:
            return self._few(rows, held[0], x.dtype, (None, column, bias))
        values = kernel.unpack_values(held[0], self.tiles, n, k).view(torch.uint8)
        epilogue = kernel.Epilogue(x.dtype, col_scale=_of_columns(column, n), bias=_of_columns(bias, n))
        return kernel.gemm_wgmma(rows, values, "bf16", epilogue)

    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        n, k = self.shape
        values = kernel.unpack_values(held[0], self.tiles, n, k)[:, :k].float()
        scale = _of_columns(held[1], n) if len(held) > 1 else None
        return (values if scale is None else values * scale.view(-1, 1)).to(dtype)

    def kernels(self) -> str:
        if self.x is not None:
            return "quantize, gemm_swap_ab.cu"
        return f"gemm_swap_ab.cu; for more than {MANY_TOKENS} tokens unpack.cu, gemm_wgmma.cu"

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


class RowsForm(_HopperForm):
    """Form whose codes are of X's 8-bit type, to which X is quantized in the call.

    [rows of bytes, scales of columns, then sums and zero points of columns if there are any]; with scales
    along K [rows, scales of blocks].
    """

    name = "rows"
    row_step = 128

    @cached_property
    def kind(self) -> OperandType:
        return x_type_of(self.x)

    @cached_property
    def blocks(self) -> bool:
        """True if the scales are of blocks along K."""
        return self.w.block == (128, 128)

    @cached_property
    def tiles(self) -> Tiles:
        return Tiles(self.kind, scales=ScalePlace.BLOCK if self.blocks else ScalePlace.ROW)

    @cached_property
    def _is_few(self) -> Callable[[int], bool]:
        """True for a number of tokens for which gemm_swap_ab is the faster kernel."""
        names = {"s8": "int8", "e4m3": "fp8_e4m3_row", "e5m2": "fp8_e5m2_row"}
        gemm = GEMMS["fp8_blockwise" if self.blocks else names[self.kind]]

        def is_few(m: int) -> bool:
            [variant] = variants_for(gemm, (m, *self.shape), HOPPER, "auto")
            return "swap" in variant.name

        return functools.lru_cache(KEPT_SHAPES)(is_few)

    @cached_property
    def zero_terms(self) -> bool:
        assert self.x is not None
        return self.x.asymmetric or self.w.asymmetric

    def load(self, q: QuantizedTensor) -> list[Tensor]:
        rows = layouts.byte_rows(q)
        if self.blocks:
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
        if not self.blocks:
            return super().join(held, forms)
        rows, scales = (torch.cat([parts[at] for parts in held]) for at in range(2))
        return [rows, padded_columns(scales, 4)]

    def multiply(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        assert self.x is not None
        q, bias, few, n = quantized(x, self.x), _filled(bias), self._is_few(x.shape[0]), self.shape[0]
        rows, w = layouts.byte_rows(q), held[0]
        if self.blocks:
            scales = layouts.x_block_scales(q), held[1]
            if few:
                return self._few(rows, w, x.dtype, (None, None, bias), scales=scales)
            epilogue = kernel.Epilogue(x.dtype, bias=None if bias is None else bias[:n])
            return kernel.gemm_wgmma(rows, w, self.kind, epilogue, ScaleK.BLOCK, *scales)
        terms: tuple[Tensor | None, ...] = (None, None, None, None)
        if self.zero_terms:
            sums = layouts.code_sums(q) if self.w.asymmetric else None
            terms = (layouts.zero_points(q), held[2], sums, held[3] if sums is not None else None)
        scale = layouts.scale_vector(q)
        if few:
            return self._few(rows, w, x.dtype, (scale, held[1], bias), terms)
        row_a, col_a, row_b, col_b = (v if v is None or i % 2 == 0 else v[:n] for i, v in enumerate(terms))
        bias = None if bias is None else bias[:n]
        vectors = (scale, _of_columns(held[1], n), bias, "none", row_a, col_a, row_b, col_b)
        return kernel.gemm_wgmma(rows, w, self.kind, kernel.Epilogue(x.dtype, *vectors))

    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        n, k = self.shape
        values = held[0][:, :k].view(_TYPES[self.kind]).float()
        if self.blocks:
            scale = held[1].repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
            return (values * scale).to(dtype)
        if self.w.asymmetric:
            values = values - held[3][:n].view(-1, 1)
        return (values * (held[1] if held[1].numel() == 1 else held[1][:n].view(-1, 1))).to(dtype)

    def kernels(self) -> str:
        few = [m for m in (1, 16, 64, 128, 256, 512, 1024) if self._is_few(m)]
        if not few:
            return "quantize, gemm_wgmma.cu"
        return f"quantize, gemm_swap_ab.cu; for more than some {few[-1]} tokens gemm_wgmma.cu"

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


_TYPES = {"s8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


class RegistersForm(WeightForm):
    """Form that mma.sync decodes in registers: [packed rows, scales, zero points or nothing [0], scale of the
    whole tensor or nothing [0], scales in float32 for restoring]. Compiled for Ampere and Ada too, but run on
    Hopper alone."""

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

    @cached_property
    def _how(self) -> kernel.Weight:
        return layouts.weight_of(self.w)

    def multiply(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        if x.shape[0] > REGISTER_TOKENS or x.dtype not in OUTPUTS:
            return _by_torch(x, self.weight(held, x.dtype), bias)
        packed, scales, zeros, whole, _ = held
        rows, bias = bfloat16_rows(x, 32).view(torch.bfloat16), _filled(bias)
        epilogue = kernel.Epilogue(
            x.dtype,
            col_scale=whole if whole.numel() else None,
            bias=None if bias is None else bias[: self.shape[0]],
        )
        how = (zeros if zeros.numel() else None, self._how, self.w.block[1] or self.shape[1])
        return kernel.gemm_dequant_in_registers(rows, packed, scales, *how, epilogue)

    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        (packed, _, zeros, whole, stored), k = held, self.shape[1]
        codes = packed[:, : packed_row_bytes(self.w.format, k)]
        zeros = zeros[: stored.shape[0]] if zeros.numel() else zeros.view(0, 0)
        return torch.ops.explorer.dequantize(codes.contiguous(), stored, zeros, whole, self.w.text, k, dtype)

    def kernels(self) -> str:
        return f"gemm_dequant_in_registers.cu; for more than {REGISTER_TOKENS} tokens dequantize, torch"

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
    """Form that is dequantized and multiplied by torch: [packed codes, scales as they restore, zero points or
    offsets, scale of the whole tensor], as the operator ``dequantize`` takes them. A quantized X is rounded
    too."""

    name = "restored"

    def load(self, q: QuantizedTensor) -> list[Tensor]:
        return list(operators.parts(q))

    def unload(self, held: Sequence[Tensor], scales: Scales) -> QuantizedTensor:
        return QuantizedTensor(held[0], scales, self.w, self.shape)

    def multiply(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        if self.x is not None:
            x = torch.ops.explorer.fake_quantize(x, self.x.text)[0]
        return _by_torch(x, self.weight(held, x.dtype), bias)

    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        return torch.ops.explorer.dequantize(*held, self.w.text, self.shape[1], dtype)

    def kernels(self) -> str:
        return "dequantized, then multiplied by torch"

    @classmethod
    def why_not(cls, w: Scheme, x: Scheme | None, k: int) -> str:
        return ""


FORMS: dict[str, type[WeightForm]] = {
    form.name: form for form in (TilesForm, RowsForm, RegistersForm, RestoredForm)
}
FIRST_CHIP = {TilesForm: HOPPER, RowsForm: HOPPER, RegistersForm: AMPERE}
"""Forms with kernels for a GPU -> least compute capability. Hopper's forms use instructions that only Hopper
has."""


@functools.lru_cache(4096)
def form_called(text: str) -> WeightForm:
    """Return the form with this ``WeightForm.text``; ``ValueError`` for any other text."""
    parts = text.split("|")
    if len(parts) != 5 or parts[0] not in FORMS or not (parts[1] + parts[2]).isdigit():
        raise ValueError(f"expected form|N|K|scheme of W|scheme of X, got {text!r}")
    name, n, k, w, x = parts
    return FORMS[name](Scheme.parse(w), Scheme.parse(x) if x else None, (int(n), int(k)))


def form_of(
    w: Scheme, x: Scheme | None, shape: tuple[int, int], capability: tuple[int, int] | None
) -> tuple[WeightForm, str]:
    """Choose the form for W [N, K] on a chip (None: a CPU); for ``RestoredForm`` also the reason why no
    kernel supports W."""
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
    """Return the form of several joined W of one form; None if they cannot be joined."""
    first = forms[0]
    same = all(
        (type(f), f.w, f.x, f.shape[1]) == (type(first), first.w, first.x, first.shape[1]) for f in forms
    )
    if not same or not first.row_step or any(form.shape[0] % first.row_step for form in forms):
        return None
    return type(first)(first.w, first.x, (sum(form.shape[0] for form in forms), first.shape[1]))


def x_type_of(x: Scheme | None) -> OperandType:
    """Operand type of X under a scheme, bfloat16 without one; ``ValueError`` for types that no kernel
    multiplies."""
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


def check_dtype(x: Tensor) -> None:
    """``ValueError`` unless kernels multiply X of this dtype."""
    if x.dtype not in OUTPUTS:
        raise ValueError(
            f"this weight is held for inputs in bfloat16 or float16, got {x.dtype}: convert the model, or "
            "hold the weight restored (kernels=False)"
        )


def bfloat16_rows(x: Tensor, multiple: int = 16) -> Tensor:
    """Convert X [M, K] to bfloat16 in rows of whole ``multiple`` bytes, uint8 [M, bytes]; X's own memory if
    it is laid out so."""
    if x.dtype != torch.bfloat16:
        x = x.to(torch.bfloat16)
    return kernel.padded_rows(x.contiguous().view(torch.uint8), multiple)


def quantized(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantize X [M, K] on its device, without waiting for it: NaN is not checked."""
    packed, scales, _ = quantize_on_device(x, scheme)
    return QuantizedTensor(packed, scales, scheme, (x.shape[0], x.shape[1]))


def padded_to_eight(v: Tensor) -> Tensor:
    """Pad a vector over columns to a multiple of eight, which epilogues load at once; a single value is
    unchanged."""
    if v.numel() == 1:
        return v.contiguous()
    return torch.nn.functional.pad(v, (0, -v.numel() % 8)).contiguous()


@dataclass(frozen=True, eq=False)
class LoadedWeight:
    """W as a layer holds it. ``why``: the reason if no kernel supports it."""

    form: WeightForm
    tensors: list[Tensor]
    why: str = ""

    @classmethod
    @on_device_of("q")
    def of(cls, q: QuantizedTensor, x: Scheme | None, form: type[WeightForm] | None = None) -> Self:
        """Lay ``q`` out on its device, in the given form or the fastest one there."""
        if form is not None:
            return cls(made := form(q.scheme, x, q.shape), made.load(q))
        capability = kernel_capability(q.device)
        found, why = form_of(q.scheme, x, q.shape, capability)
        tensors = found.load(q)
        if capability is not None and not is_capturing(q.device):
            # Products are launched early: layouts of W are in memory before the first.
            torch.cuda.current_stream(q.device).synchronize()
        return cls(found, tensors, why)
