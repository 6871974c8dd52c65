"""The names that the GEMM kernels' macros and arguments take: the enumerators and C++ types of kernels/.

A test compares every enumeration with the one of the same name in the headers.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum, auto
from typing import NoReturn

import torch


class _Name(StrEnum):
    """An enumeration whose texts are its members' names in lower case; unknown ones are refused with those
    there are."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"no {cls.__name__} {value!r}; there are {', '.join(cls)}")


class OperandType(_Name):
    """What tensor cores multiply, by its PTX name."""

    BF16 = auto()
    F16 = auto()
    TF32 = auto()
    E4M3 = auto()
    E5M2 = auto()
    S8 = auto()
    B1 = auto()


class BlockScaledFormat(_Name):
    """Formats whose block scales sm_120a's tensor cores apply themselves."""

    NVFP4 = auto()
    MXFP4 = auto()
    MXFP8 = auto()


class ScaleK(_Name):
    """Scales along K: none, one to a 1 × 128 block of X and a 128 × 128 block of W, or one to 128 of a column
    of W."""

    NONE = auto()
    BLOCK = auto()
    COLUMN = auto()


class ProductSide(_Name):
    """A side of a product."""

    X = auto()
    W = auto()


class ScalePlace(_Name):
    """Where gemm_swap_ab.cu applies scales: in the epilogue, on each group's sum, on the weights in bfloat16,
    or on sums of 128 with scales of both sides."""

    ROW = auto()
    SUM = auto()
    WEIGHT = auto()
    BLOCK = auto()


class CodeOrder(_Name):
    """How repacked codes lie (fragments.cuh): a register's elements apart, as neighbours, or E2M1's
    sign and magnitude where one shift brings both to bfloat16's places."""

    APART = auto()
    PAIRED = auto()
    FLOAT4 = auto()


class WordOp(_Name):
    """How ordinary cores multiply 32-bit words: four int8 products, or xor and popc of 32 bits."""

    DP4A = auto()
    POPC = auto()


class Activation(IntEnum):
    """What the epilogue applies to y = scaled product + bias."""

    NONE = 0
    GELU_TANH = 1
    GELU = 2


CPP_TYPES = {
    torch.bfloat16: "__nv_bfloat16",
    torch.float16: "__half",
    torch.float32: "float",
    torch.int32: "int",
}
"""The C++ type of an output's or a scale's dtype."""


def macro(choice: StrEnum | bool | int | str | torch.dtype) -> str:
    """The value of a -D macro: an enumerator's name, a C++ type, 0 or 1, a number, or C++ text as it is."""
    if isinstance(choice, StrEnum):
        return choice.name
    if isinstance(choice, torch.dtype):
        return CPP_TYPES[choice]
    return str(int(choice)) if isinstance(choice, bool) else str(choice)


def macros(**choices: StrEnum | bool | int | str | torch.dtype) -> tuple[tuple[str, str], ...]:
    """The -D macros of a build, in order."""
    return tuple((name, macro(choice)) for name, choice in choices.items())
