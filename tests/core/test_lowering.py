"""A scheme in the kernels' terms, without a GPU.

If these fail, a GPU runs a kernel on a scheme that it was not written for, or torch operations on one that it
was. Whether the kernels' codes are right is asked on a GPU (tests/gpu).
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from explorer import SCHEMES, Scheme, quantize
from explorer.core import lowering
from explorer.core.lowering import (
    CodedScales,
    config_of,
    has_kernels,
    layout_of,
    lowered,
    raw_scales,
    scales_from,
    with_kernels,
)
from explorer.formats import FORMATS
from explorer.gpu.quantize import Output
from explorer.schemes import OWN_CODES, Convention, MappingType, Scales

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


def test_one_change_takes_a_scheme_from_its_kernels() -> None:
    """Each condition decides by itself; also that of scales of another library's convention."""
    for name, change, kernels in (
        ("int4_group128", {}, True),
        ("int4_group128", {"codes": dataclasses.replace(OWN_CODES, reciprocal=True)}, False),
        ("int4_group128", {"flat": True, "block": (None, 64)}, False),
        ("int4_group128", {"mapping": MappingType.SIGNED_MAX}, False),
        ("int4_group128", {"mapping": MappingType.FULL}, True),
        ("int4_group128_asym", {}, True),
        ("int4_group128", {"format": FORMATS["iq4_nl"]}, False),
        ("fp8_e4m3_cast", {}, True),
    ):
        assert has_kernels(dataclasses.replace(SCHEMES[name], **change)) is kernels, (name, change)
        rule = SCHEMES[name].scale
        if kernels and rule is not None:
            other = next(one for one in Convention if one is not Convention.OWN)
            foreign = dataclasses.replace(rule, convention=other)
            assert not has_kernels(dataclasses.replace(SCHEMES[name], scale=foreign))


def test_whose_scales_kernels_find() -> None:
    """A search, and a least-squares scale of each block or with zero points, is left to torch."""
    for text, found in (
        ("int4~1x128~symmetric~float16~minmax", True),
        ("int4~1x128~symmetric~float16~absmean", True),
        ("int4~1x128~symmetric~float16~mse", False),
        ("int4~1x128~symmetric~float16~minmax~fit", False),
        ("int4~tensor~symmetric~float16~minmax~fit", True),
        ("int4~tensor~asymmetric~float16~minmax~fit", False),
        ("int4~tensor~asymmetric~float16~minmax", True),
        ("nvfp4_four_over_six", False),
        ("q8_0", False),
    ):
        scheme = Scheme.parse(text)
        kept = lowered(scheme)
        assert (kept is not None) is found and lowered(scheme) is kept, text
        assert kept is None or (kept.scheme is scheme and kept.config == config_of(scheme))


def test_blocks_in_numbers() -> None:
    """A side of None is the whole axis, none is larger than the matrix, and none is 0."""
    for text, shape, block in (
        ("int4_group128", (3, 300), (1, 128)),
        ("int4_group128", (3, 100), (1, 100)),
        ("fp8_e4m3_128x128", (100, 300), (100, 128)),
        ("int8_column", (7, 5), (7, 1)),
        ("int8_row", (7, 5), (1, 5)),
        ("fp16", (7, 5), (7, 5)),
        ("int8_tensor", (0, 5), (1, 5)),
        ("int8_row", (7, 0), (1, 1)),
        ("int4_group128", (0, 0), (1, 1)),
    ):
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


def test_the_kernels_are_told_what_the_scheme_says() -> None:
    """Field by field; a scheme without a scale is a cast, whose single scale is 1 in float32."""
    for scheme in with_kernels():
        config, rule = config_of(scheme), scheme.scale
        assert (config.codec, config.bits) == (scheme.format.cuda_codec, scheme.format.bits)
        assert config.cast == (rule is None) and config.refit == scheme.least_squares_scale
        assert config.two_level == (rule is not None and rule.per_tensor) and not config.stochastic
        assert config.asymmetric == scheme.asymmetric == (scheme.mapping is MappingType.ASYMMETRIC)
        assert config.per_byte == (5 if scheme.format.name == "ternary" else 0)
        kept, smallest = ("float32", 2.0**-149) if rule is None else (rule.format.name, rule.smallest)
        assert (config.scale_dtype, config.smallest_scale) == (STORED[kept], smallest)
        width = scheme.block[1]
        assert config.wide == (width is None or width in (32, 64, 128))
        name = scheme.calibrator.name
        assert config.range.name == (name.upper() if name in ("minmax", "absmean", "twn") else "MINMAX")
        assert config_of(dataclasses.replace(scheme, seed=3)).stochastic


WRITTEN = ("nvfp4", "mxfp4", "int4_group128", "int4_group128_asym", "fp8_e4m3_row", "fp16")


@pytest.mark.parametrize("name", WRITTEN)
def test_scales_of_a_kernel_are_those_of_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted from their codes when they are asked for, kept then, and copied as plain scales; under a
    graph's capture nothing is kept, for each replay writes its own."""
    monkeypatch.setattr(lowering.runtime, "is_capturing", lambda device: False)
    q = quantize(torch.randn(8, 256, generator=torch.Generator().manual_seed(4)), SCHEMES[name])
    raw, zeros = raw_scales(q.scales, q.scheme), q.scales.zero_points
    over = q.scales.tensor_scale
    amax = None if over is None else torch.cat([torch.zeros(2), over.view(1), torch.zeros(1)])
    output = Output(q.packed, raw, zeros, amax, None, None, (object(),))  # type: ignore[arg-type]
    scales = scales_from(output, q.scheme, False)
    assert "stored" not in vars(scales) or raw.dtype is torch.float32
    assert torch.equal(scales.stored, q.scales.stored) and scales.stored is scales.stored
    assert torch.equal(scales.scale, q.scales.scale) and scales.zero_points is zeros
    assert q.scheme.scale is None or raw_scales(scales, q.scheme) is raw
    again = copy.deepcopy(scales)
    assert type(again) is Scales and torch.equal(again.stored, scales.stored)
    with pytest.raises(AttributeError, match="nothing"):
        scales.nothing  # noqa: B018
    kept = scales_from(output, q.scheme, False)
    monkeypatch.setattr(lowering.runtime, "is_capturing", lambda device: True)
    captured = scales_from(output, q.scheme, True)
    assert type(captured) is Scales and torch.equal(captured.stored, q.scales.stored)
    if type(kept) is CodedScales:
        assert torch.equal(kept.stored, q.scales.stored) and "stored" not in vars(kept)


def test_an_empty_matrix_has_the_tensor_scale_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel ran that would have made it."""
    monkeypatch.setattr(lowering.runtime, "is_capturing", lambda device: False)
    scheme = SCHEMES["nvfp4"]
    q = quantize(torch.zeros(0, 32), scheme)
    output = Output(q.packed, raw_scales(q.scales, scheme), None, torch.zeros(4), None, None, ())
    scales = scales_from(output, scheme, False)
    assert scales.tensor_scale is not None and q.scales.tensor_scale is not None
    assert torch.equal(scales.tensor_scale.view(-1), q.scales.tensor_scale.view(-1))


class Planned:
    """In the place of ``LaunchPlan``: what it was made of."""

    def __init__(self, *given: Any) -> None:
        self.given = given


def test_launches_are_planned_once_for_each_kind_of_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape, element type and alignment: a plan for another of these reads what is not there. Old plans are
    forgotten, not without bound kept."""
    monkeypatch.setattr(lowering, "LaunchPlan", Planned)
    monkeypatch.setattr(lowering, "MOST_KEPT", 3)
    scheme = Scheme.parse("int4~1x64~symmetric~float16~minmax")
    kept = lowered(scheme)
    assert kept is not None
    x = torch.zeros(4 * 64 + 1)
    matrices = [x[:-1].view(4, 64), x[1:].view(4, 64), x[:-1].view(2, 128), x[:-1].view(4, 64).half()]
    plans = [kept.plan(matrix) for matrix in matrices[:3]]
    assert kept.plan(matrices[0]) is plans[0] and len({id(plan) for plan in plans}) == 3
    for matrix, plan in zip(matrices, plans, strict=False):
        aligned = matrix is not matrices[1]
        layout = layout_of((matrix.shape[0], matrix.shape[1]), scheme)
        assert plan.given == (kept.config, layout, matrix.dtype, aligned, matrix.device, 0)
    kept.plan(matrices[3])
    assert len(kept.plans) == 1 and kept.plan(matrices[0]) is not plans[0]
