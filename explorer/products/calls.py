"""What multiplies by a W in each form (weights.py): ``call_of`` gives the call for a form's text."""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from explorer.core.cuda import quantize_on_device
from explorer.core.quantize import QuantizedTensor
from explorer.formats.packing import packed_row_bytes
from explorer.gpu import gemm as kernel
from explorer.gpu.gemm.swap_ab import SwapAB
from explorer.products import layouts
from explorer.products.auto import variants_for
from explorer.products.gemms import GEMMS
from explorer.products.weights import (
    HOPPER,
    RegistersForm,
    RestoredForm,
    RowsForm,
    TilesForm,
    WeightForm,
    form_called,
)
from explorer.schemes import Scheme

MANY_TOKENS = 2048
"""From more tokens on decoded weights are unpacked to bfloat16 first: up to so many, gemm_swap_ab is as fast
or faster (docs/gemm-speed.md)."""
REGISTER_TOKENS = 32
"""Up to so many tokens the kernel for Ampere decodes W in registers; for more W is restored."""
KEPT_SHAPES = 256
"""Numbers of tokens whose launch a layer's form keeps."""
OUTPUTS = (torch.bfloat16, torch.float16)
"""Types of X that kernels multiply in bfloat16, and of their Y."""


class Call(ABC):
    """A product with W [N, K] in one form."""

    def __init__(self, form: WeightForm) -> None:
        self.form, (self.n, self.k) = form, form.shape

    @abstractmethod
    def __call__(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        """Y [M, N] in X's dtype, of X [M, K] with M ≥ 1, W as ``form.load`` gave it, and a bias [N]."""

    @abstractmethod
    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """W [N, K] restored."""

    @abstractmethod
    def kernels(self) -> str:
        """Which files of kernels/ multiply, and up to how many tokens."""

    def _bias(self, bias: Tensor | None) -> Tensor | None:
        """float32 [N filled to a multiple of 8]; as it is if it is that."""
        if bias is None or (bias.dtype == torch.float32 and bias.numel() % 8 == 0 and bias.is_contiguous()):
            return bias
        return torch.nn.functional.pad(bias.float(), (0, -bias.numel() % 8))

    def _plain_bias(self, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        return None if bias is None else bias[: self.n].to(dtype)


class _OnHopper(Call):
    """What products by gemm_swap_ab.cu share: launches kept by the number of tokens."""

    tiles: kernel.Tiles

    def __init__(self, form: WeightForm) -> None:
        super().__init__(form)
        self._launches: dict[tuple[int, torch.dtype, torch.device], SwapAB] = {}
        self._lock = threading.Lock()

    def _few(
        self,
        x: Tensor,
        w: Tensor,
        dtype: torch.dtype,
        vectors: tuple[Tensor | None, Tensor | None, Tensor | None],
        terms: Sequence[Tensor | None] = (None, None, None, None),
        scales: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> Tensor:
        """Y by gemm_swap_ab of X's rows uint8 [M, bytes]; ``vectors``: scales of rows and columns, bias;
        ``terms``: row_a, col_a, row_b, col_b; ``scales`` along K."""
        m, device = x.shape[0], x.device
        product = self._launches.get((m, dtype, device))
        if product is None:
            product = SwapAB(m, self.n, x.shape[1], self.tiles, dtype, device, early=True)
            with self._lock:
                if len(self._launches) >= KEPT_SHAPES:
                    self._launches.clear()
                self._launches[m, dtype, device] = product
        out = torch.empty((m, self.n), dtype=dtype, device=device)
        addresses = [0 if v is None else v.data_ptr() for v in (out, *vectors, *terms)]
        strides = (0 if v is None or v.numel() == 1 else 1 for v in vectors[:2])
        epilogue = (*addresses, *strides, 1, 0, m, self.n)
        along_k = (0 if v is None else v.data_ptr() for v in scales)
        product.start(x.data_ptr(), w.data_ptr(), epilogue, *along_k)
        return out


class TilesCall(_OnHopper):
    """Decoded in registers; X in bfloat16 (float16 is rounded to it), or quantized here to 8 bits."""

    def __init__(self, form: TilesForm) -> None:
        super().__init__(form)
        self.tiles = form.tiles

    def __call__(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        column, bias = held[1] if len(held) > 1 else None, self._bias(bias)
        if self.form.x is not None:
            q = quantized(x, self.form.x)
            return self._few(layouts.byte_rows(q), held[0], x.dtype, (layouts.scale_vector(q), column, bias))
        check_dtype(x)
        rows = bfloat16_rows(x)
        if x.shape[0] <= MANY_TOKENS:
            return self._few(rows, held[0], x.dtype, (None, column, bias))
        values = kernel.unpack_values(held[0], self.tiles, self.n, self.k).view(torch.uint8)
        epilogue = kernel.Epilogue(x.dtype, col_scale=self._of_columns(column), bias=self._of_columns(bias))
        return kernel.gemm_wgmma(rows, values, "bf16", epilogue)

    def _of_columns(self, vector: Tensor | None) -> Tensor | None:
        return vector if vector is None or vector.numel() == 1 else vector[: self.n]

    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        values = kernel.unpack_values(held[0], self.tiles, self.n, self.k)[:, : self.k].float()
        scale = self._of_columns(held[1]) if len(held) > 1 else None
        return (values if scale is None else values * scale.view(-1, 1)).to(dtype)

    def kernels(self) -> str:
        if self.form.x is not None:
            return "quantize, gemm_swap_ab.cu"
        return f"gemm_swap_ab.cu; for more than {MANY_TOKENS} tokens unpack.cu, gemm_wgmma.cu"


class RowsCall(_OnHopper):
    """Both sides of one 8-bit type: X is quantized here."""

    def __init__(self, form: RowsForm) -> None:
        super().__init__(form)
        blocks = form.scale_k is kernel.ScaleK.BLOCK
        place = kernel.ScalePlace.BLOCK if blocks else kernel.ScalePlace.ROW
        self.tiles, self.rows, self.blocks = kernel.Tiles(form.kind, scales=place), form, blocks
        names = {"s8": "int8", "e4m3": "fp8_e4m3_row", "e5m2": "fp8_e5m2_row"}
        self._gemm = GEMMS["fp8_blockwise" if blocks else names[form.kind]]
        self._is_few = functools.lru_cache(KEPT_SHAPES)(self._asked)

    def _asked(self, m: int) -> bool:
        [variant] = variants_for(self._gemm, (m, self.n, self.k), HOPPER, "auto")
        return "swap" in variant.name

    def __call__(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        assert self.form.x is not None
        q, bias, few = quantized(x, self.form.x), self._bias(bias), self._is_few(x.shape[0])
        rows, w = layouts.byte_rows(q), held[0]
        if self.blocks:
            scales = layouts.x_block_scales(q), held[1]
            if few:
                return self._few(rows, w, x.dtype, (None, None, bias), scales=scales)
            epilogue = kernel.Epilogue(x.dtype, bias=None if bias is None else bias[: self.n])
            return kernel.gemm_wgmma(rows, w, self.rows.kind, epilogue, kernel.ScaleK.BLOCK, *scales)
        column = held[1] if held[1].numel() == 1 else held[1][: self.n]
        terms: tuple[Tensor | None, ...] = (None, None, None, None)
        if self.rows.zero_terms:
            sums = layouts.code_sums(q) if self.form.w.asymmetric else None
            terms = (layouts.zero_points(q), held[2], sums, held[3] if sums is not None else None)
        scale = layouts.scale_vector(q)
        if few:
            return self._few(rows, w, x.dtype, (scale, held[1], bias), terms)
        row_a, col_a, row_b, col_b = (
            v if v is None or i % 2 == 0 else v[: self.n] for i, v in enumerate(terms)
        )
        bias = None if bias is None else bias[: self.n]
        vectors = (scale, column, bias, "none", row_a, col_a, row_b, col_b)
        epilogue = kernel.Epilogue(x.dtype, *vectors)
        return kernel.gemm_wgmma(rows, w, self.rows.kind, epilogue)

    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        values = held[0][:, : self.k].view(_TYPES[self.rows.kind]).float()
        if self.blocks:
            scale = held[1].repeat_interleave(128, 0)[: self.n].repeat_interleave(128, 1)[:, : self.k]
            return (values * scale).to(dtype)
        if self.form.w.asymmetric:
            values = values - held[3][: self.n].view(-1, 1)
        return (values * (held[1] if held[1].numel() == 1 else held[1][: self.n].view(-1, 1))).to(dtype)

    def kernels(self) -> str:
        few = [m for m in (1, 16, 64, 128, 256, 512, 1024) if self._is_few(m)]
        if not few:
            return "quantize, gemm_wgmma.cu"
        return f"quantize, gemm_swap_ab.cu; for more than some {few[-1]} tokens gemm_wgmma.cu"


_TYPES = {"s8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


class RegistersCall(Call):
    """Decoded in registers by mma.sync; compiled for Ampere and Ada, and run on Hopper alone."""

    def __init__(self, form: RegistersForm) -> None:
        super().__init__(form)
        self._how, self._group = layouts.weight_of(form.w), form.w.block[1] or self.k

    def __call__(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        if x.shape[0] > REGISTER_TOKENS or x.dtype not in OUTPUTS:
            weight = self.weight(held, x.dtype)
            return torch.nn.functional.linear(x, weight, self._plain_bias(bias, x.dtype))
        packed, scales, zeros, whole, _ = held
        rows = bfloat16_rows(x, 32).view(torch.bfloat16)
        bias = self._bias(bias)
        epilogue = kernel.Epilogue(
            x.dtype,
            col_scale=whole if whole.numel() else None,
            bias=None if bias is None else bias[: self.n],
        )
        how = (zeros if zeros.numel() else None, self._how, self._group)
        return kernel.gemm_dequant_in_registers(rows, packed, scales, *how, epilogue)

    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        packed, _, zeros, whole, stored = held
        codes = packed[:, : packed_row_bytes(self.form.w.format, self.k)]
        if zeros.numel():
            zeros = zeros[: stored.shape[0]]
        else:
            zeros = zeros.view(0, 0)
        text = self.form.w.text
        return torch.ops.explorer.dequantize(codes.contiguous(), stored, zeros, whole, text, self.k, dtype)

    def kernels(self) -> str:
        return f"gemm_dequant_in_registers.cu; for more than {REGISTER_TOKENS} tokens dequantize, torch"


class RestoredCall(Call):
    """W is dequantized to X's dtype, X too where it is quantized, and torch multiplies."""

    def __call__(self, x: Tensor, held: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        if self.form.x is not None:
            x = torch.ops.explorer.fake_quantize(x, self.form.x.text)[0]
        weight = self.weight(held, x.dtype)
        return torch.nn.functional.linear(x, weight, self._plain_bias(bias, x.dtype))

    def weight(self, held: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        return torch.ops.explorer.dequantize(*held, self.form.w.text, self.k, dtype)

    def kernels(self) -> str:
        return "dequantized, then multiplied by torch"


_CALLS: dict[type[WeightForm], type[Call]] = {
    TilesForm: TilesCall,
    RowsForm: RowsCall,
    RegistersForm: RegistersCall,
    RestoredForm: RestoredCall,
}


@functools.lru_cache(4096)
def call_of(text: str) -> Call:
    """The call for a form's text; ``ValueError`` for any other text."""
    form = form_called(text)
    return _CALLS[type(form)](form)


# --- X -----------------------------------------------------------------------------------------------


def check_dtype(x: Tensor) -> None:
    """``ValueError`` unless kernels multiply X of this dtype."""
    if x.dtype not in OUTPUTS:
        raise ValueError(
            f"this weight is held for inputs in bfloat16 or float16, got {x.dtype}: convert the model, or "
            "hold the weight restored (kernels=False)"
        )


def bfloat16_rows(x: Tensor, multiple: int = 16) -> Tensor:
    """uint8 [M, bytes]: X [M, K] in bfloat16, in rows of whole ``multiple`` bytes; X's own memory if it lies
    so."""
    if x.dtype != torch.bfloat16:
        x = x.to(torch.bfloat16)
    return kernel.padded_rows(x.contiguous().view(torch.uint8), multiple)


def quantized(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """X [M, K] quantized on its device, without waiting for it: NaN is not looked for."""
    packed, scales, _ = quantize_on_device(x, scheme)
    return QuantizedTensor(packed, scales, scheme, (x.shape[0], x.shape[1]))
