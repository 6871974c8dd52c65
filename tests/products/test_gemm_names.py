"""Names that cross the border between Python and CUDA C++: enumerators and entry points are the same on both
sides.

If these fail, a launcher asks a kernel for something else than it says, or for a kernel that its build does
not hold.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import cache

import pytest
import torch

from explorer.gpu.compile import included_files
from explorer.gpu.gemm import names
from explorer.gpu.gemm.epilogue import EPILOGUE_TYPES
from explorer.gpu.gemm.simt import CODES_TYPES
from explorer.gpu.gemm.tensor_cores import MMA_STAGES, grouped_tiles, wgmma_tiles
from explorer.gpu.peak import K_OF
from explorer.paths import KERNELS
from explorer.products.gemms import all_builds

ENUMERATIONS = [names.OperandType, names.BlockScaledFormat, names.ScaleK, names.WordOp, names.Activation]
CHIPS = [(8, 0), (9, 0), (12, 0)]


@cache
def text_of(file: str) -> str:
    """A source with its headers."""
    return "".join((KERNELS / name).read_text() for name in sorted(included_files(file)))


@cache
def qualified(file: str) -> list[tuple[str, str]]:
    """Every Enumeration::MEMBER of a source with its headers."""
    return re.findall(r"\b(\w+)::([A-Z_]+)\b", text_of(file))


@cache
def enumerators(text: str) -> dict[str, list[str]]:
    """The members of every ``enum class`` of a C++ text, in order."""
    found = re.findall(r"enum class (\w+) \{([^}]*)\}", text)
    return {name: [member.strip() for member in members.split(",")] for name, members in found}


def test_enumerators_are_those_of_the_headers() -> None:
    """Each is defined in one CUDA file, with the same members; where its number is passed, in the same
    order."""
    for enumeration in ENUMERATIONS:
        files = [p for p in KERNELS.iterdir() if enumeration.__name__ in enumerators(p.read_text())]
        assert len(files) == 1, f"{enumeration.__name__} is defined in {[p.name for p in files]}"
        members = enumerators(files[0].read_text())[enumeration.__name__]
        assert members == [member.name for member in enumeration]
        if issubclass(enumeration, IntEnum):
            assert [member.value for member in enumeration] == list(range(len(members)))


@pytest.mark.parametrize("chip", CHIPS)
def test_macros_name_enumerators_or_types(chip: tuple[int, int]) -> None:
    """No macro carries the index of a Python tuple: a macro read as Enumeration::MACRO is one of its
    members. A build holds one kernel, named as its file: more would be compiled for every build and launched
    by few. (The codec's own dequantization picks one of its kernels by the shape of the blocks.)"""
    for build in all_builds(chip):
        members, values = enumerators(text_of(build.file)), dict(build.macros)
        for enumeration, macro in qualified(build.file):
            if enumeration in members and macro in values:
                assert values[macro] in members[enumeration], f"{build}: {macro}"
        if "OUT" in values:
            assert values["OUT"] in names.CPP_TYPES.values(), build
        if build.file not in ("dequantize.cu", "dequantize_units.cu"):
            text = text_of(build.file)
            assert text.count('extern "C" __global__') == 1, build.file
            assert f"{build.file.removesuffix('.cu')}(" in text, build.file


def test_struct_letters_are_those_of_the_parameters() -> None:
    """A pointer passed as an int, or one argument too few, would shift all that follow."""
    letter = {"*": "P", "int": "i"}
    for file, macro, letters in (
        ("epilogue.cuh", "EPILOGUE_PARAMETERS", EPILOGUE_TYPES),
        ("packed_operand.cuh", "OPERAND_PARAMETERS\\(PREFIX\\)", CODES_TYPES),
    ):
        text = (KERNELS / file).read_text()
        match = re.search(rf"#define {macro}((?:.*\\\n)*.*\n)", text)
        assert match, f"{file} does not define {macro}"
        parameters = match.group(1).replace("\\", " ").split(",")
        assert "".join(letter["*" if "*" in p else p.split()[0]] for p in parameters) == letters


def test_unknown_names_are_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="bf16, f16, tf32"):
        names.OperandType("f8")
    assert list(K_OF) == list(names.OperandType), "each has a peak"


def test_macro_values() -> None:
    values = names.macros(A=names.ScaleK.BLOCK, B=torch.float16, C=True, D=3, E="FloatCodec<4,3,7,FN>")
    assert values == (("A", "BLOCK"), ("B", "__half"), ("C", "1"), ("D", "3"), ("E", "FloatCodec<4,3,7,FN>"))


@pytest.mark.parametrize("scale_k", names.ScaleK)
def test_stages_fit_hoppers_shared_memory(scale_k: names.ScaleK) -> None:
    """227 KiB are all that a CTA can have; a launch that asks for more fails on the chip alone. Fewer than
    three stages leave nothing to load ahead."""
    grouped = () if scale_k is names.ScaleK.COLUMN else grouped_tiles(scale_k)
    for tile in (*wgmma_tiles(scale_k), *grouped):
        assert tile.scale_k is scale_k and tile.shared_bytes <= 227 * 1024 and tile.stages >= 3, tile
    assert 2 * MMA_STAGES * 256 * 128 <= 227 * 1024, "two CTAs of gemm_mma share a multiprocessor"
