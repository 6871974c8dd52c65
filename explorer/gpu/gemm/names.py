"""The values of the GEMM kernels' macros and arguments: enumerators and C++ types of kernels/.

A test compares each enumeration with the one of the same name in the headers.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum, auto
from typing import NoReturn

import torch


class _Name(StrEnum):
    """An enumeration of lower-case member names; an unknown name is refused with the accepted ones."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"no {cls.__name__} {value!r}; there are {', '.join(cls)}")


class OperandType(_Name):
    """Operand types of the tensor cores, by PTX name."""

    BF16 = auto()
    F16 = auto()
    TF32 = auto()
    E4M3 = auto()
    E5M2 = auto()
    S8 = auto()
    B1 = auto()


class BlockScaledFormat(_Name):
    """Formats with block scales that sm_120a's tensor cores apply themselves."""

    NVFP4 = auto()
    MXFP4 = auto()
    MXFP8 = auto()


class ScaleK(_Name):
    """Scales along K: none, one for a 1 × 128 block of X and a 128 × 128 block of W, or one for 128 elements
    of a column of W."""

    NONE = auto()
    BLOCK = auto()
    COLUMN = auto()


class ProductSide(_Name):
    """A side of a product."""

    X = auto()
    W = auto()


class ScalePlace(_Name):
    """The stage at which gemm_swap_ab.cu applies scales: the epilogue, each group's sum, the weights in
    bfloat16, or sums of 128 with scales of both sides."""

    ROW = auto()
    SUM = auto()
    WEIGHT = auto()
    BLOCK = auto()


class CodeOrder(_Name):
    """The order of repacked codes (fragments.cuh): a register's elements apart, as neighbours, or E2M1's sign
    and magnitude at bit positions that one shift moves to those of bfloat16."""

    APART = auto()
    PAIRED = auto()
    FLOAT4 = auto()


class WordOp(_Name):
    """Products of 32-bit words on ordinary cores: four int8 products, or xor and popc of 32 bits."""

    DP4A = auto()
    POPC = auto()


class Activation(IntEnum):
    """The activation that the epilogue applies to y = scaled product + bias."""

    NONE = 0
    GELU_TANH = 1
    GELU = 2


CPP_TYPES = {
    torch.bfloat16: "__nv_bfloat16",
    torch.float16: "__half",
    torch.float32: "float",
    torch.int32: "int",
}
"""The C++ type for each dtype of outputs and scales."""


def macro(choice: StrEnum | bool | int | str | torch.dtype) -> str:
    """Format the value of a -D macro: an enumerator's name, a C++ type, 0 or 1, a number, or C++ text
    unchanged."""
    if isinstance(choice, StrEnum):
        return choice.name
    if isinstance(choice, torch.dtype):
        return CPP_TYPES[choice]
    return str(int(choice)) if isinstance(choice, bool) else str(choice)


def macros(**choices: StrEnum | bool | int | str | torch.dtype) -> tuple[tuple[str, str], ...]:
    """List the -D macros of a build in order."""
    return tuple((name, macro(choice)) for name, choice in choices.items())
