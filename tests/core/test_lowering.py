"""A scheme in the kernels' terms, without a GPU.

If these fail, a GPU runs a kernel on a scheme that it was not written for, or torch operations on one that it
was. Whether the kernels' codes are right is asked on a GPU (tests/gpu).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from explorer import SCHEMES, Scheme, quantize
from explorer.core.lowering import config_of, has_kernels, layout_of, lowered, with_kernels
from explorer.formats import FORMATS
from explorer.schemes import OWN_CODES, Convention, MappingType

WITHOUT = {
    "another library's scales": ["int8_row_vllm", "int4_group128_vllm", "nvfp4_vllm", "nvfp4_gguf"],
    "another library's codes": ["nf4_block64_bnb", "nf4_block64_double", "fp4_block64_bnb"],
    "zero points of another library": ["int4_group128_asym_vllm"],
    "llama.cpp's": ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "tq2_0", "tq1_0", "iq4_nl", "iq4_xs"],
    "a search": ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"],
}
"""Rows of ``SCHEMES`` that no kernel serves, by the reason."""


def test_rows_without_kernels_are_those_of_other_libraries() -> None:
    """Every row of this project's own conventions has kernels, and no other has."""
    without = [name for names in WITHOUT.values() for name in names]
    assert {scheme.name for scheme in with_kernels()} == set(SCHEMES) - set(without)


ONE_CHANGE: list[tuple[str, dict[str, Any], bool]] = [
    ("int4_group128", {}, True),
    ("int4_group128", {"codes": dataclasses.replace(OWN_CODES, reciprocal=True)}, False),
    ("int4_group128", {"flat": True, "block": (None, 64)}, False),
    ("int4_group128", {"mapping": MappingType.SIGNED_MAX}, False),
    ("int4_group128", {"mapping": MappingType.FULL}, True),
    ("int4_group128_asym", {}, True),
    ("int4_group128", {"format": FORMATS["iq4_nl"]}, False),
    ("fp8_e4m3_cast", {}, True),
]


@pytest.mark.parametrize(("name", "change", "kernels"), ONE_CHANGE)
def test_one_change_takes_a_scheme_from_its_kernels(name: str, change: dict[str, Any], kernels: bool) -> None:
    """Each condition decides by itself; also that of scales of another library's convention."""
    assert has_kernels(dataclasses.replace(SCHEMES[name], **change)) is kernels
    rule = SCHEMES[name].scale
    if kernels and rule is not None:
        other = next(one for one in Convention if one is not Convention.OWN)
        foreign = dataclasses.replace(rule, convention=other)
        assert not has_kernels(dataclasses.replace(SCHEMES[name], scale=foreign))


FINDS: list[tuple[str, bool]] = [
    ("int4~1x128~symmetric~float16~minmax", True),
    ("int4~1x128~symmetric~float16~absmean", True),
    ("int4~1x128~symmetric~float16~mse", False),
    ("int4~1x128~symmetric~float16~minmax~fit", False),
    ("int4~tensor~symmetric~float16~minmax~fit", True),
    ("int4~tensor~asymmetric~float16~minmax~fit", False),
    ("int4~tensor~asymmetric~float16~minmax", True),
    ("nvfp4_four_over_six", False),
    ("q8_0", False),
]


@pytest.mark.parametrize(("text", "found"), FINDS)
def test_whose_scales_kernels_find(text: str, found: bool) -> None:
    """A search, and a least-squares scale of each block or with zero points, is left to torch."""
    scheme = Scheme.parse(text)
    kept = lowered(scheme)
    assert (kept is not None) is found and lowered(scheme) is kept
    assert kept is None or (kept.scheme is scheme and kept.config == config_of(scheme))


@pytest.mark.parametrize(
    ("text", "shape", "block"),
    [
        ("int4_group128", (3, 300), (1, 128)),
        ("int4_group128", (3, 100), (1, 100)),
        ("fp8_e4m3_128x128", (100, 300), (100, 128)),
        ("int8_column", (7, 5), (7, 1)),
        ("int8_row", (7, 5), (1, 5)),
        ("int8_tensor", (7, 5), (7, 5)),
        ("fp16", (7, 5), (7, 5)),
        ("int8_tensor", (0, 5), (1, 5)),
        ("int8_row", (7, 0), (1, 1)),
        ("int4_group128", (0, 0), (1, 1)),
    ],
)
def test_blocks_in_numbers(text: str, shape: tuple[int, int], block: tuple[int, int]) -> None:
    """A side of None is the whole axis, none is larger than the matrix, and none is 0."""
    layout = layout_of(shape, SCHEMES[text])
    assert dataclasses.astuple(layout)[:4] == (*shape, *block)
    assert layout.row_bytes == quantize(torch.zeros(1, shape[1]), SCHEMES[text]).packed.shape[1]


STORED = {
    "float32": torch.float32,
    "float16": torch.float16,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
    "float8_e4m3fn": torch.float8_e4m3fn,
}
"""In which dtype scales of a format are kept."""


@pytest.mark.parametrize("scheme", with_kernels(), ids=str)
def test_the_kernels_are_told_what_the_scheme_says(scheme: Scheme) -> None:
    """Field by field; a scheme without a scale is a cast, whose single scale is 1 in float32."""
    config, rule = config_of(scheme), scheme.scale
    assert (config.codec, config.bits) == (scheme.format.cuda_codec, scheme.format.bits)
    assert config.cast == (rule is None) and config.refit == scheme.least_squares_scale
    assert config.two_level == (rule is not None and rule.per_tensor) and not config.stochastic
    assert config.asymmetric == scheme.asymmetric == (scheme.mapping is MappingType.ASYMMETRIC)
    assert config.per_byte == (5 if scheme.format.name == "ternary" else 0)
    kept = "float32" if rule is None else rule.format.name
    assert config.scale_dtype is STORED[kept] and config.smallest_scale == (
        rule.smallest if rule else 2.0**-149
    )
    width = scheme.block[1]
    assert config.wide == (width is None or width in (32, 64, 128))
    name = scheme.calibrator.name
    assert config.range.name == (name.upper() if name in ("minmax", "absmean", "twn") else "MINMAX")
    assert config_of(dataclasses.replace(scheme, seed=3)).stochastic
