"""Why an error is what it is. If these fail, the page explains a difference by what did not cause it."""

from __future__ import annotations

import math
import re

import pytest
import torch

from explorer import Scheme
from explorer.analysis.tensor import Analysis, analyse
from explorer.analysis.why import grid_of, why
from tests.covering import EACH_SCHEME

torch.manual_seed(0)
X = torch.randn(256, 1000)
UNIFORM = ["int4_group32", "int4_row", "int4_group128_asym", "int8_tensor", "int8_column", "int3_group64",
           "int4~48x96~full~float16~minmax", "int4~flat48~symmetric~float32~minmax", "mxint8", "q5_1",
           "q4_0"]  # fmt: skip
"""Schemes with equal steps; 1000 columns are no multiple of most of their blocks."""


def done(text: str, x: torch.Tensor = X) -> Analysis:
    return analyse(x, Scheme.parse(text))


def test_the_steps_foretell_the_error() -> None:
    """A twelfth of the squared step is the squared error, on any grid of equal steps, whatever the blocks."""
    rms = float(X.double().square().mean().sqrt())
    for text in UNIFORM:
        a = done(text)
        step = grid_of(a.q, rms).step
        assert a.report.sqnr_db == pytest.approx(10 * math.log10(12 / step**2), abs=0.6), text


def test_a_small_block_beats_one_scale_because_its_range_is_small() -> None:
    """INT4 per tensor against groups of 32, with an outlier: steps, ranges and tails in numbers."""
    x = X.clone()
    x[3, 7] = 20.0
    text = why(done("int4~tensor~symmetric~float32~minmax", x), done("int4_group32", x))
    facts = ("B's steps are 8.3 times", "B has 14 steps over 4.8 times the RMS", "A 14 steps over 40 times",
             "became 0 under A", "is 20 times the RMS", "at most 0.05 % ", "4.4 times the RMS")  # fmt: skip
    assert [fact for fact in facts if fact not in text] == [], text
    assert "equally wide, 0.34" in why(done("int4_group32", x), done("int4_group32", x))
    for a, b, fact in (
        ("int4_group32", None, "14 equal steps over 4.8 times the RMS (groups of 32), each 0.34"),
        ("fp8_e4m3_row", None, "1/8 of the value (one scale per row)"),
        ("nf4_block64", None, "16 uneven levels over 5.3 times the RMS (groups of 64)"),
        ("bf16", None, "1/128 of the value (no scale)"),
        ("nvfp4", None, "1/2 of the value (groups of 16), except for the 20 %"),
        ("int4_row", "nvfp4", "A has 14 equal steps over 6.9 times the RMS (one scale per row), each 0.49"),
        ("mxfp4", "nvfp4", "at most 1/2 of the value"),
    ):
        assert fact in why(done(a), None if b is None else done(b))


def test_steps_that_differ_in_no_digit_are_equal() -> None:
    """Two searches for one layout: "1 times as fine" says nothing, what the errors are of a step does."""
    words = why(done("q4_k"), done("int4~1x32~minimum~super6~mse~fit"))
    assert re.search(r"equally wide, 0\.2\d .* A's error is 0\.25 .* B's 0\.2[678]: 0\.29", words), words
    assert "a step" not in why(done("int4_group32"), done("int4_group32"))


def test_doubly_quantized_scales_that_collapse_are_the_cause() -> None:
    """One large block beside 299 small ones: bitsandbytes' rule stores scales of 0 and below for them."""
    x = 0.02 * torch.randn(300, 64, generator=torch.Generator().manual_seed(0))
    x[7] *= 3e5
    a = done("nf4_block64_double", x)
    lost = int((a.q.scales.scale <= 0).sum())
    assert lost >= 200 and f"of A's 300 scales {lost} " in why(a)
    assert f"of B's 300 scales {lost} " in why(done("int8_row", x), a)
    x[7] = 0
    for text in ("nf4_block64_double", "nf4_block64_bnb"):
        assert "double quantization" not in why(done(text, x))


def test_scales_that_end_are_the_cause() -> None:
    """INT4 with FP16 scales on values of 10¹²: 0.0 dB without a word of why. FP32 scales do not end there."""
    x = 1e12 * X[:, :256]
    alone = why(done("int4_group128", x))
    assert "A's FP16" in alone and "65,504" in alone and alone.count("100 %") == 2
    assert "scales end" not in why(done("int4~1x128~symmetric~float32~minmax", x))
    assert "B's FP16 scales end" in why(done("nvfp4", x), done("int4_group128", x))
    assert "scales end" not in why(done("nvfp4"), done("mxfp4"))


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_every_scheme_has_a_reason(name: str) -> None:
    """Alone and beside another, with the shares that are zero, subnormal or beyond the centre."""
    x = X[:64, :256].clone()
    x[0, 0] = 1e3
    a, b = done(name, x), done("int4_group32", x)
    texts = [why(a), why(a, b), why(b, a)]
    assert all(text == "" or (text.startswith("Why: ") and "nan" not in text) for text in texts)
    assert (texts[0] == "") == (a.report.max_error == 0)


def test_subnormals_are_counted() -> None:
    """Of values spread over 0 … 6 in FP4 E2M1 one in eight lies below .75, which rounds to 0 or .5."""
    x = torch.arange(1, 6145).view(6, 1024) / 1024
    text = why(done("float4_e2m1fn~tensor~symmetric~none~minmax", x))
    assert "1/2 of the value (no scale)" in text and "12 % of values that are subnormal or became 0" in text


LEVELS = torch.randint(-8, 8, (64, 512), generator=torch.Generator().manual_seed(0)).float()
TENSORS = {
    "values on INT4's levels": LEVELS,
    "signs": torch.sign(LEVELS + 0.5),
    "far from zero": 1000 + torch.randn(64, 512, generator=torch.Generator().manual_seed(1)),
    "heavy tails": torch.distributions.StudentT(2.0).sample((64, 512)),
}
PAIRS = [
    ("int4_group128", "int8_row"),
    ("int8_row", "int4_group32"),
    ("nvfp4", "mxfp4"),
    ("int4_group128", "int4~tensor~symmetric~float32~mse"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_finer_step_is_the_reason_only_of_a_smaller_error(pair: tuple[str, str]) -> None:
    """If this fails, the page explains that A is better by the finer steps of B."""
    for x in TENSORS.values():
        a, b = (analyse(x, Scheme.parse(text)) for text in pair)
        words = why(a, b)
        if match := re.match(r"Why: ([AB])'s steps are [\d.,]+ times as fine as [AB]'s(.)", words):
            better = "A" if a.report.sqnr_db > b.report.sqnr_db else "B"
            assert match.group(2) == ("," if match.group(1) != better else ":"), words
        assert "0 % under A" not in words or "0 % under B" not in words


def test_what_lies_within_is_counted() -> None:
    """ "At most p % of the elements are larger than m times the RMS" of a tensor whose tails differ."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(200, 500, generator=generator)
        x[torch.rand(200, 500, generator=generator) < 0.0004] *= -8
        x[x > 6] /= 2
        words = why(analyse(x, Scheme.parse("int4_group128")))
        share, within = re.search(r"at most ([\d.]+) % .* larger than ([\d.]+) times", words).groups()
        rms = float(x.square().mean().sqrt())
        assert float((x.abs() > float(within) * rms).float().mean()) <= float(share) / 100 * 1.05, words
