"""The verdict's sentences. If these fail, the page says something else of a scheme than was measured."""

from __future__ import annotations

import dataclasses
import math
import re

import torch

from explorer import SCHEMES, compare, load_matrix, quantize
from explorer.analysis.report import Report
from explorer.analysis.tensor import analyse
from explorer.analysis.verdict import BANDS, band_of, judged, verdict
from explorer.schemes import BitBudget
from lab.embeddings import recorded_embeddings

BASE = compare(torch.ones(2, 64), quantize(torch.ones(2, 64), SCHEMES["int4_group32"]))


def report(sqnr_db: float, bits: float, **changes: float) -> Report:
    return dataclasses.replace(BASE, sqnr_db=sqnr_db, bits=BitBudget(bits, 0, 0, 0, 0), **changes)


ALONE: list[tuple[Report, tuple[str, ...]]] = [
    (report(19.47, 4.156), ("19.5 dB at 4.16 bits", "a typical error for 4-bit weights", "0.96 to 0.97")),
    (report(42.06, 8.083), ("42.1 dB at 8.08 bits", "a typical error for INT8", "0.9996")),
    (report(4.18, 1.083), ("4.2 dB at 1.08 bits", "2 bits and fewer", "0.27 to 0.47")),
    (report(math.inf, 32), ("exactly", "32.00 bits")),
    (report(math.nan, 4, max_error=0.25), ("0.25",)),
]


def test_one_scheme() -> None:
    """Its decibels and bits, its band, and the cosines that were measured in it."""
    for a, facts in ALONE:
        text = verdict(a)
        assert [fact for fact in facts if fact not in text] == [], text
        assert ("For comparison" in text) is math.isfinite(a.sqnr_db)


PAIRS: list[tuple[Report, Report, tuple[str, ...]]] = [
    (report(19.47, 4.5), report(18.57, 4.16),
     ("B saves 0.34 bits", "0.9 dB, less than the 2.0 dB", "Both have a typical error for 4-bit",
      "0.96 to 0.97")),
    (report(19.47, 4.16), report(42.06, 8.08),
     ("B needs 3.92 more bits", "22.6 dB, less than the 23.6 dB", "A has a typical error for 4-bit",
      "B a typical error for INT8")),
    (report(18.0, 4.0), report(18.02, 4.001),
     ("same error at the same size", "Both have a large error", "0.94")),
    (report(18.0, 4.0), report(21.0, 4.0),
     ("same size the SQNR of B is 3.0 dB higher", "A's squared error is 2 times",
      "A has a large error, B a small error for 4-bit weights")),
    (report(20.26, 4.5), report(20.42, 4.5),
     ("same size the SQNR of B is 0.2 dB higher", "A's squared error is 1.04 times", "Both have a small",
      "0.97 to 0.98")),
    (report(20.02, 4.5), report(20.0, 4.13),
     ("B has the same error", "0.37 fewer bits", "Both have a small")),
    (report(20.0, 4.13), report(18.0, 4.5),
     ("A is better than B", "2.0 dB higher SQNR with 0.37 fewer bits", "B a large")),
    (report(math.inf, 32), report(math.inf, 16), ("Both", "exactly", "B saves 16.00 bits")),
    (report(math.inf, 16), report(19.47, 4.16), ("A: ", "exactly, in 16.00 bits", "B: 19.5 dB at 4.16")),
]  # fmt: skip


def test_two_schemes() -> None:
    """Which of them is better in what, and by how much; swapped, the same is said of the other letters."""
    for a, b, facts in PAIRS:
        text = verdict(a, b)
        assert [fact for fact in facts if fact not in text] == [], text
    a, b = report(20.9, 4.13), report(20.1, 4.5)
    swapped = re.sub(r"\b[AB]\b", lambda letter: "AB"["BA".index(letter[0])], verdict(a, b))
    assert swapped == verdict(b, a) != verdict(a, b)


MEASURED = {
    scheme: words
    for words, schemes in {
        "an error as small as a 16-bit float's": "bf16",
        "a typical error for INT8": "int8_row",
        "a typical error for FP8 and 6-bit floats": "fp8_e4m3_row mxfp6_e2m3 mxfp8_e4m3",
        "a small error for 4-bit weights": "nvfp4 nf4_block64",
        "a typical error for 4-bit weights": "mxfp4 int4_group128_asym",
        "a large error for 4-bit weights": "int4_group128",
        "a typical error for 3-bit weights": "int3_group128_asym",
        "a typical error for 2 bits and fewer": "int2_group64_asym ternary_absmean binary_row",
    }.items()
    for scheme in schemes.split()
}


def test_the_schemes_that_were_measured_lie_in_their_own_band() -> None:
    """A band is named after the schemes whose SQNR on a real layer lies in it."""
    x = load_matrix("sample:mlp_up").values
    found = {name: band_of(compare(x, quantize(x, SCHEMES[name]))).words for name in MEASURED}
    assert found == MEASURED
    assert [band.least for band in BANDS] == sorted((band.least for band in BANDS), reverse=True)


def test_the_cosines_are_those_that_were_recorded() -> None:
    """The numbers of a sentence are the least and the most of the recorded schemes of its band."""
    plain = [row for row in recorded_embeddings().rows if row.method == "rtn" and not row.activations]
    four = tuple(f"a {size} error for 4-bit weights" for size in ("large", "typical", "small"))
    kinds = {
        "an error between those of 4-bit weights and FP8": [
            four,
            ("a typical error for FP8 and 6-bit floats",),
        ]
    }
    for band in BANDS:
        told = []
        for kind in kinds.get(band.words, [(band.words,)]):
            cosines = [row.cosine for row in plain if MEASURED.get(row.scheme) in kind]
            told += [min(cosines), max(cosines)]
        said = [(float(n), len(n.split(".")[1])) for n in re.findall(r"[01]\.\d+", band.cosine)]
        rounded = {round(cosine, digits) for cosine, (_, digits) in zip(told, said * 2, strict=False)}
        assert rounded == {cosine for cosine, _ in said}, band


DEGENERATE = [
    (torch.zeros(40, 64), "nvfp4", "All 2,560 .* exactly.* 4.51 bits"),
    (torch.full((40, 64), 3.25), "nvfp4", "All 2,560 .* exactly.* 4.51 bits"),
    (torch.full((40, 64), 3.25), "int4_group32", "All 2,560 .* 0.015 %.* 4.50 bits"),
    (torch.full((1, 1), -0.7), "int4_group32", "one .* 0.0244 %.* 24.00 bits"),
]


def test_tensors_of_one_value_have_no_decibels() -> None:
    """One number under a scale of its own is no weight: 70 dB of it are no "error as small as a 16-bit
    float's"."""
    for x, name, facts in DEGENERATE:
        a, b = analyse(x, SCHEMES[name]), analyse(x, SCHEMES["int8_row"])
        alone, why = judged(a)
        assert re.search(facts, alone) and "dB" not in alone and not why
        start, _, rest = alone.rstrip(".").partition(": ")
        pair, why = judged(a, b)
        assert pair.startswith(f"{start}: by A {rest}; by B ") and "dB" not in pair and not why


def test_decibels_of_heavy_tails_are_told_to_be_theirs() -> None:
    """Of a Cauchy tensor INT4 keeps 38 dB and loses two elements in three: it is not "typical for INT8"."""
    heavy, light = torch.distributions.Cauchy(0.0, 1.0).sample((256, 512)), torch.randn(256, 512)
    for a, b in (("int4_group32", None), ("int4_group32", "nvfp4")):
        text, _ = judged(*(analyse(heavy, SCHEMES[name]) for name in (a, b) if name))
        assert "hold 9" in text and "typical" not in text
    assert "tails" not in judged(analyse(light, SCHEMES["int4_group32"]))[0]


def test_a_few_large_elements_do_not_hide_the_loss_of_all_others() -> None:
    """One outlier under one scale: 30 dB, and everything else is gone."""
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 1e4
    report = compare(x, quantize(x, SCHEMES["int8_tensor"]))
    assert report.sqnr_db > 20 and "of the elements became 0" in verdict(report)
    assert "became 0" not in verdict(compare(x[1:], quantize(x[1:], SCHEMES["int8_tensor"])))
