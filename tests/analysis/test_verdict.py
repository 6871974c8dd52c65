"""The verdict's sentences. If these fail, the page says something else of a scheme than was measured."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch

from explorer import SCHEMES, compare, load_matrix, quantize
from explorer.analysis.report import Report
from explorer.analysis.tensor import analyse
from explorer.analysis.verdict import BANDS, Band, band_of, judged, verdict
from explorer.schemes import BitBudget
from lab.embeddings import recorded_embeddings

BASE = compare(torch.ones(2, 64), quantize(torch.ones(2, 64), SCHEMES["int4_group32"]))


def report(sqnr_db: float, bits: float, **changes: float) -> Report:
    return dataclasses.replace(BASE, sqnr_db=sqnr_db, bits=BitBudget(bits, 0, 0, 0, 0), **changes)


MEASURED = (
    "Elsewhere: in the sentence encoder all-MiniLM-L6-v2, with all linear layers at about as many decibels, "
)
KEPT = f"{MEASURED}embeddings keep a cosine similarity of 0.96 to 0.97 to the original's (0.98 with GPTQ)."
LOW = f"{MEASURED}embeddings keep a cosine similarity of 0.94 to the original's."
GOOD = f"{MEASURED}embeddings keep a cosine similarity of 0.97 to 0.98 to the original's."
ALONE = [
    (report(19.47, 4.156), f"19.5 dB at 4.16 bits is usual for 4-bit weights. {KEPT}"),
    (
        report(42.06, 8.083),
        f"42.1 dB at 8.08 bits is usual for INT8. {MEASURED}embeddings keep a cosine similarity of 0.9996 "
        "to the original's.",
    ),
    (
        report(4.18, 1.083),
        f"4.2 dB at 1.08 bits is what 2 bits and fewer leave. {MEASURED}embeddings keep a cosine "
        "similarity of 0.27 to 0.47 to the original's; only training helps.",
    ),
    (report(math.inf, 32), "Nothing is lost: every element is restored exactly, in 32.00 bits."),
    (
        report(math.nan, 4, max_error=0.25),
        "Every element was 0, and the scheme changes that by up to 0.25.",
    ),
]


@pytest.mark.parametrize("a, words", ALONE)
def test_one_scheme(a: Report, words: str) -> None:
    assert verdict(a) == words


PAIRS = [
    (
        report(19.47, 4.5),
        report(18.57, 4.16),
        "B saves 0.34 bits and loses 0.9 dB, less than the 2.0 dB that so many bits are usually worth. "
        f"Both are usual for 4-bit weights. {KEPT}",
    ),
    (
        report(19.47, 4.16),
        report(42.06, 8.08),
        "B needs 3.92 bits more and gains 22.6 dB, less than the 23.6 dB that so many bits are usually "
        "worth. A is usual for 4-bit weights, B usual for INT8.",
    ),
    (
        report(18.0, 4.0),
        report(18.02, 4.001),
        f"A and B have the same error at the same size. Both are low for 4-bit weights. {LOW}",
    ),
    (
        report(18.0, 4.0),
        report(21.0, 4.0),
        "At the same size B has 3.0 dB more: A's squared error is 2 times as large. "
        "A is low, B good for 4-bit weights.",
    ),
    (
        report(20.26, 4.5),
        report(20.42, 4.5),
        "At the same size B has 0.2 dB more: A's squared error is 1.04 times as large. "
        f"Both are good for 4-bit weights. {GOOD}",
    ),
    (
        report(20.02, 4.5),
        report(20.0, 4.13),
        f"B has the same error as A with 0.37 bits less. Both are good for 4-bit weights. {GOOD}",
    ),
    (
        report(20.0, 4.13),
        report(18.0, 4.5),
        "A beats B in both: 2.0 dB more with 0.37 bits less. A is good, B low for 4-bit weights.",
    ),
    (
        report(math.inf, 32),
        report(math.inf, 16),
        "Both restore every element exactly; B saves 16.00 bits.",
    ),
    (
        report(math.inf, 16),
        report(19.47, 4.16),
        "A: Nothing is lost: every element is restored exactly, in 16.00 bits. "
        f"B: 19.5 dB at 4.16 bits is usual for 4-bit weights. {KEPT}",
    ),
]


@pytest.mark.parametrize("a, b, words", PAIRS)
def test_two_schemes(a: Report, b: Report, words: str) -> None:
    assert verdict(a, b) == words


def test_swapping_swaps_the_letters() -> None:
    """What is said of A and B is the same whichever comes first."""
    a, b = report(20.9, 4.13), report(20.1, 4.5)
    swapped = re.sub(r"\b[AB]\b", lambda letter: "AB"["BA".index(letter[0])], verdict(a, b))
    assert swapped == verdict(b, a) != verdict(a, b)


NAMED = {
    "bf16": "the error of a 16-bit float",
    "int8_row": "usual for INT8",
    "fp8_e4m3_row": "usual for FP8 and 6-bit floats",
    "mxfp6_e2m3": "usual for FP8 and 6-bit floats",
    "nvfp4": "good for 4-bit weights",
    "mxfp4": "usual for 4-bit weights",
    "int4_group128": "low for 4-bit weights",
    "int3_group128_asym": "usual for 3-bit weights",
    "int2_group64_asym": "what 2 bits and fewer leave",
    "binary_row": "what 2 bits and fewer leave",
}
OTHERS = {
    "mxfp8_e4m3": "usual for FP8 and 6-bit floats",
    "nf4_block64": "good for 4-bit weights",
    "int4_group128_asym": "usual for 4-bit weights",
    "ternary_absmean": "what 2 bits and fewer leave",
}


@pytest.mark.parametrize("name", NAMED | OTHERS)
def test_the_schemes_that_were_measured_lie_in_their_own_band(name: str) -> None:
    """A band is named after the schemes whose SQNR on a real layer lies in it."""
    x = load_matrix("sample:mlp_up").values
    assert band_of(compare(x, quantize(x, SCHEMES[name]))).words == (NAMED | OTHERS)[name]
    assert [band.least for band in BANDS] == sorted((band.least for band in BANDS), reverse=True)


@pytest.mark.parametrize("band", BANDS, ids=lambda band: band.words)
def test_the_cosines_are_those_that_were_recorded(band: Band) -> None:
    """The numbers of a sentence are the least and the most of the recorded schemes of its band."""
    plain = [row for row in recorded_embeddings().rows if row.method == "rtn" and not row.activations]
    four = ("low for 4-bit weights", "usual for 4-bit weights", "good for 4-bit weights")
    kinds = {"between 4-bit weights and FP8": [four, ("usual for FP8 and 6-bit floats",)]}
    told = []
    for kind in kinds.get(band.words, [(band.words,)]):
        cosines = [row.cosine for row in plain if (NAMED | OTHERS).get(row.scheme) in kind]
        told += [min(cosines), max(cosines)]
    said = [(float(n), len(n.split(".")[1])) for n in re.findall(r"[01]\.\d+", band.cosine)]
    rounded = {round(cosine, digits) for cosine, (_, digits) in zip(told, said * 2, strict=False)}
    assert rounded == {cosine for cosine, _ in said}


DEGENERATE = {
    "zeros": (torch.zeros(40, 64), "nvfp4", "All 2,560 elements are 0: restored exactly, in 4.51 bits."),
    "exact constant": (
        torch.full((40, 64), 3.25),
        "nvfp4",
        "All 2,560 elements are the same: restored exactly, in 4.51 bits.",
    ),
    "constant": (
        torch.full((40, 64), 3.25),
        "int4_group32",
        "All 2,560 elements are the same: restored to within 0.015 %, in 4.50 bits.",
    ),
    "one": (
        torch.full((1, 1), -0.7),
        "int4_group32",
        "There is one element: restored to within 0.0244 %, in 24.00 bits.",
    ),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_tensors_of_one_value_have_no_decibels(case: str) -> None:
    """One number under a scale of its own is no weight: 70 dB of it are not "the error of a 16-bit float"."""
    x, name, text = DEGENERATE[case]
    a, b = analyse(x, SCHEMES[name]), analyse(x, SCHEMES["int8_row"])
    assert judged(a) == (text, "")
    start, _, rest = text.rstrip(".").partition(": ")
    pair, why = judged(a, b)
    assert pair.startswith(f"{start}: by A {rest}; by B restored ") and "dB" not in pair and why == ""


def test_decibels_of_heavy_tails_are_told_to_be_theirs() -> None:
    """Of a Cauchy tensor INT4 keeps 38 dB and loses two elements in three: it is not "usual for INT8"."""
    x = torch.distributions.Cauchy(0.0, 1.0)
    torch.manual_seed(0)
    heavy, light = x.sample((256, 512)), torch.randn(256, 512)
    for a, b in (("int4_group32", None), ("int4_group32", "nvfp4")):
        text, _ = judged(*(analyse(heavy, SCHEMES[name]) for name in (a, b) if name))
        assert "hold 9" in text and "the decibels are theirs" in text
        assert "usual" not in text.replace("usually", "") and "Measured" not in text
    assert "tails" not in judged(analyse(light, SCHEMES["int4_group32"]))[0]


def test_a_few_large_elements_do_not_hide_the_loss_of_all_others() -> None:
    """One outlier under one scale: 30 dB, and everything else is gone."""
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 1e4
    report = compare(x, quantize(x, SCHEMES["int8_tensor"]))
    assert report.sqnr_db > 20 and "of the elements became 0" in verdict(report)
    assert "became 0" not in verdict(compare(x[1:], quantize(x[1:], SCHEMES["int8_tensor"])))
