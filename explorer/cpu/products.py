"""The products of a CPU: ``CPU_PRODUCTS``, rows as in ``explorer.products.gemms``.

A row is named by how W is held. X is float32 and stays so, or is rounded within the call: torch's packed
weights take it in bfloat16, integer kernels in INT8."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from explorer.cpu import llama, onnx_runtime, torch_kernels
from explorer.cpu.kernels import CpuKernel, CpuProduct
from explorer.products.advice import products_of
from explorer.products.gemms import GEMMS, Product
from explorer.schemes import SCHEMES, Scheme

S = SCHEMES
INSIDE = "inside the kernel"


def _plain(name: str, *kernels: CpuKernel) -> CpuProduct:
    scheme = S[name]
    return CpuProduct(name, GEMMS[name].label, scheme, scheme, "none", "float32", kernels)


def _int8(name: str, label: str, x: str, *kernels: CpuKernel) -> CpuProduct:
    return CpuProduct(name, label, S[x], S["int8_row"], "in the epilogue", "int32", kernels, dynamic=True)


def _groups(bits: int, group: int, *kernels: CpuKernel) -> CpuProduct:
    w = S[f"int{bits}_group{group}"]
    name, label = f"w{bits}_group{group}", f"INT{bits} weights, group {group}"
    return CpuProduct(name, label, S["fp32"], w, INSIDE, "float32", kernels)


def _gguf(name: str) -> CpuProduct:
    row = f"w_{name}" if f"w_{name}" in GEMMS else name
    return CpuProduct(
        row, f"{name.upper()} weights", S["fp32"], S[name], INSIDE, "float32", (llama.BY_SCHEME[name],)
    )


ROWS: tuple[CpuProduct, ...] = (
    _plain("fp32", torch_kernels.FLOAT32, onnx_runtime.FLOAT32, llama.FLOAT32),
    _plain("fp16", torch_kernels.FLOAT16, llama.FLOAT16),
    _plain("bf16", torch_kernels.BFLOAT16, llama.BFLOAT16),
    _int8("int8_dynamic", "INT8 W8A8, X quantized in the call", "int8_tensor_asym",
          torch_kernels.DYNAMIC, onnx_runtime.DYNAMIC),
    _int8("int8_static", "INT8 W8A8, X by a fixed scale", "int8_tensor", onnx_runtime.STATIC),
    CpuProduct("w8_row", "INT8 weights, per channel", S["bf16"], S["int8_row"], INSIDE, "float32",
               (torch_kernels.INT8_WEIGHTS,)),
    *(_groups(8, group, *onnx_runtime.NBITS) for group in (32, 128)),
    *(_groups(4, group, torch_kernels.INT4_WEIGHTS, *onnx_runtime.NBITS) for group in (32, 128)),
    *(_groups(2, group, *onnx_runtime.NBITS) for group in (32, 128)),
    CpuProduct("ternary_weights", "Ternary weights (BitNet b1.58)", S["fp32"], S["ternary_absmean"], INSIDE,
               "float32", (*llama.TERNARY, onnx_runtime.TERNARY)),
    *map(_gguf, llama.BY_SCHEME),
)  # fmt: skip
CPU_PRODUCTS: dict[str, CpuProduct] = {row.name: row for row in ROWS}
"""Every product on a CPU by name."""
FIRST = ("w4_group32", "ternary_weights", "w2_group128", "int8_dynamic", "fp32", "bf16", "q4_k", "w8_group32")
"""Products that are timed first: those for the sentence about a CPU, then one of each kind."""
FORMER = {"int8": "int8_dynamic"}
"""Old names of a CPU's products, from before it had a table of its own."""


def find(name: str) -> CpuProduct:
    """Return the row called ``name``; ``ValueError`` lists the names."""
    name = FORMER.get(name, name)
    if name not in CPU_PRODUCTS:
        raise ValueError(f"no product {name!r} on a CPU; there are {', '.join(CPU_PRODUCTS)}")
    return CPU_PRODUCTS[name]


def in_order(names: Iterable[str]) -> list[str]:
    """Sort ``names`` in the order in which they are timed."""
    every = list(names)
    return [*(name for name in FIRST if name in every), *(name for name in every if name not in FIRST)]


def product_of(name: str, on_cpu: bool) -> Product | None:
    """Return the row of a timing, of a CPU's table or a GPU's; None for a product that is in neither any
    more."""
    return CPU_PRODUCTS.get(name) if on_cpu else GEMMS.get(name)


def products_for(scheme: Scheme, on_cpu: bool) -> list[str]:
    """Return the products whose weights are stored as by ``scheme``."""
    rows: Sequence[Product] = ROWS if on_cpu else tuple(GEMMS.values())
    return products_of(scheme, rows)
