"""The codec and scale headers compiled for the host and run: the same bits as the reference and as NVIDIA.

If these fail, a GPU gives other codes or scales than the CPU or than NVIDIA's own conversions.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import FORMATS, MappingType, Scheme
from explorer.core.lowering import config_of
from explorer.formats import E8M0, FloatFormat, Specials
from explorer.gpu import config as kernel
from explorer.paths import KERNELS
from explorer.schemes import ExponentRule, ScaleRule, scale_for
from explorer.schemes.calibrators import CALIBRATORS, Range
from tests.covering import sampled
from tests.kernels.generated import write_formats
from tests.new_rows import CODECS, ROWS

HERE = Path(__file__).parent
VENDOR = {"float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float8_e8m0fnu"}
"""Formats that NVIDIA's headers convert to."""


def hard_values() -> Tensor:
    """All bfloat16 and float16 values, boundaries of every format ±3 ulp, and three million bit patterns."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    parts = [every.view(torch.bfloat16).float(), every.view(torch.float16).float()]
    for fmt in ROWS.values():
        if fmt.bits <= 8:
            levels = torch.tensor(fmt.levels, dtype=torch.float64)
            points = torch.cat([levels, (levels[1:] + levels[:-1]) / 2]).float()
            bits = points.view(torch.int32)
            parts += [(bits + d).view(torch.float32) for d in range(-3, 4)]
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31 - 1, (3_000_000,), generator=generator).to(torch.int32)
    return torch.cat([*parts, random.view(torch.float32)])


@dataclass(frozen=True)
class Checked:
    """What codec_check.cu wrote: the inputs, each format's codes, and for each format that NVIDIA converts to
    how many codes differ and the first input."""

    values: Tensor
    codes: dict[str, Tensor]
    vendor: dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def checked(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    folder = tmp_path_factory.mktemp("codec")
    include, source = write_formats(folder), HERE / "codec_check.cu"
    subprocess.run([nvcc, "-O2", "-std=c++17", include, "-o", folder / "check", source], check=True)
    values = hard_values()
    values.numpy().tofile(folder / "in")
    command = [folder / "check", folder / "in", folder / "out"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [line.split() for line in lines]
    codes = torch.from_numpy(np.fromfile(folder / "out", np.int32)).view(len(rows), -1)
    vendor = {name: (int(count), first) for name, known, count, first in rows if known == "nvidia"}
    return Checked(values, dict(zip((row[0] for row in rows), codes, strict=True)), vendor)


def test_every_format_is_met(checked: Checked) -> None:
    """No row is left out, and none of NVIDIA's conversions."""
    assert list(checked.codes) == list(CODECS)
    assert set(ROWS) - set(CODECS) == {"iq4_nl", "ternary_run256"}
    assert set(checked.vendor) == VENDOR


def test_the_codec_is_nvidias(checked: Checked) -> None:
    """Bit for bit on three million values."""
    for name in VENDOR:
        count, first = checked.vendor[name]
        assert count == 0, f"{name}: {count} codes differ from NVIDIA's, the first for {first}"


@pytest.mark.parametrize("name", CODECS)
def test_the_codec_is_the_references(name: str, checked: Checked) -> None:
    """Bit for bit on three million values; NaN only where the format has one."""
    values, codes = checked.values, checked.codes[name]
    fmt = CODECS[name]
    kept = torch.ones_like(values, dtype=torch.bool) if fmt.has_nan else ~torch.isnan(values)
    x, got = values[kept], codes[kept]
    want = fmt.encode(x).to(torch.int32)
    want = want & 0xFFFF if fmt.bits == 16 else want
    differ = (got != want).nonzero().reshape(-1)
    if len(differ):
        i = int(differ[0])
        pytest.fail(
            f"{len(differ)} of {len(x)} differ, first x={x[i].item()!r}: "
            f"header {int(got[i]):#x}, reference {int(want[i]):#x}"
        )


def scale_rules() -> dict[str, ScaleRule]:
    """Every format that can be a scale, E8M0 under each of its rules."""
    rules = {}
    for fmt in ROWS.values():
        if isinstance(fmt, FloatFormat) and fmt.holds_scales:
            for exponent in ExponentRule if fmt is E8M0 else [None]:
                rules[f"{fmt.name}{'_' + exponent.name if exponent else ''}"] = ScaleRule(fmt, exponent)
    return rules


def hard_ranges() -> tuple[Tensor, Tensor]:
    """Low and high ends [n] over all binades: ordinary, one-sided, empty, tiny and huge ones."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-140, 127, (200_000,), generator=generator).double()
    low = -(torch.rand(200_000, generator=generator).double() * 2.0**exponents).float()
    high = (torch.rand(200_000, generator=generator).double() * 2.0**exponents).float()
    low[::7], high[::11], low[::13], high[::13] = 0.0, 0.0, 0.0, 0.0
    low[1], high[1] = -3e38, 3e38
    ends = hard_ends()
    return torch.cat([low, torch.zeros_like(ends)]), torch.cat([high, ends])


def hard_ends() -> Tensor:
    """Where the rules for E8M0 scales step: in every binade what rounds to the next one at each width of a
    mantissa, and multiples of each format's largest value, all ±2 ulp."""
    mantissas = [2 - 2.0 ** -(bits + 1) for bits in range(8)] + [1.0, 1.5]
    mantissas += [fmt.max / 2.0**fmt.max_exponent for fmt in ROWS.values() if fmt.bits <= 8]
    points = torch.tensor(sorted(set(mantissas)), dtype=torch.float64)
    points = (points[:, None] * 2.0 ** torch.arange(-126.0, 126, dtype=torch.float64)).float().reshape(-1)
    return torch.cat([(points.view(torch.int32) + d).view(torch.float32) for d in range(-2, 3)])


@pytest.mark.parametrize(
    ("fmt", "mapping"),
    sampled(
        [
            ("float8_e4m3fn", "SYMMETRIC"),
            *(("int4", mapping.name) for mapping in kernel.Mapping),
            ("nf4", "SYMMETRIC"),
        ],
        [("float8_e4m3fn", "SYMMETRIC")],
    ),
)
def test_stored_scales_are_the_references(fmt: str, mapping: str, nvcc: str, tmp_path: Path) -> None:
    """Every format that can be a scale, under every mapping: stored codes and steps bit for bit."""
    low, high = hard_ranges()
    torch.stack([low, high], 1).numpy().tofile(tmp_path / "in")
    schemes = {
        name: Scheme("t", "t", FORMATS[fmt], (1, 1), rule, MappingType[mapping])
        for name, rule in scale_rules().items()
        if (mapping == "SYMMETRIC" or rule.format.bits > 8)
        # EVEN rounds to the mantissa's width, which codebooks do not have.
        and (fmt != "nf4" or rule.exponent is not ExponentRule.EVEN)
    }
    configs = [config_of(scheme) for scheme in schemes.values()]
    calls = [f"check<{c.scale_codec}>({c.scale_rule.name}, {c.smallest_scale.hex()}f);" for c in configs]
    (tmp_path / "cases.inc").write_text("\n".join(calls))
    codec = FORMATS[fmt].cuda_codec.replace(",", "\\,")
    macros = [f"-DCODEC={codec}", f"-DMAPPING={mapping}", f"-I{tmp_path}"]
    check = tmp_path / "check"
    subprocess.run([nvcc, "-O2", "-std=c++17", *macros, "-o", check, HERE / "scale_check.cu"], check=True)
    subprocess.run([check, tmp_path / "in", tmp_path / "out"], check=True)
    results = torch.from_numpy(np.fromfile(tmp_path / "out", np.int32)).view(len(schemes), 2, -1)
    for (name, scheme), (codes, steps) in zip(schemes.items(), results, strict=True):
        assert scheme.scale is not None
        stored = scale_for(Range(low[:, None], high[:, None]), scheme).stored
        wrong = (steps != stored.view(torch.int32).view(-1)).nonzero().view(-1)
        assert not len(wrong), f"{name}: {len(wrong)} steps, the first for {low[wrong[0]]}, {high[wrong[0]]}"
        want = scheme.scale.format.to_stored(stored).view(torch.uint8).view(len(low), -1)
        assert torch.equal(
            codes.contiguous().view(torch.uint8).view(len(low), -1)[:, : want.shape[1]], want
        ), name


def enumerators(header: str, name: str) -> list[str]:
    """The enumerators of a C++ enum of a header of ``kernels/``."""
    match = re.search(rf"enum {name} \{{([^}}]*)\}}", (KERNELS / header).read_text(encoding="utf-8"))
    assert match, f"no enum {name} in {header}"
    return [part.split("=")[0].strip() for part in match.group(1).split(",")]


def test_enumerators_have_one_list_of_names() -> None:
    """The launchers pass names: one that C++ does not have would only show when nvcc meets it."""
    for members, header, name in (
        (kernel.Mapping, "scale.cuh", "Mapping"),
        (kernel.KernelScaleRule, "scale.cuh", "ScaleRule"),
        (kernel.KernelRange, "extent.cuh", "Range"),
    ):
        assert [member.name for member in members] == enumerators(header, name)
    assert {m.name for m in kernel.Mapping} <= {m.name for m in MappingType}
    assert {r.name for r in ExponentRule} < {r.name for r in kernel.KernelScaleRule}
    assert {r.name.lower() for r in kernel.KernelRange} <= set(CALIBRATORS)
    assert {s.name for s in Specials} - {"SCALE"} == set(enumerators("codec.cuh", "Specials"))
