"""GGUF's types against ggml's C, called in llama.cpp's shared library: the same bytes.

If these fail, a scheme named after a type of GGUF holds other codes, scales or minimums than llama.cpp's own
quantizer gives.
"""

from __future__ import annotations

import ctypes
import itertools
import re

import pytest
import torch
from torch import Tensor

from explorer import CALIBRATORS, SCHEMES, ScaleRule, Scheme, quantize
from explorer.core import k_quants
from explorer.core.importances import takes_importance
from explorer.core.k_quants import k_quantized
from explorer.core.quantize import find_ranges
from explorer.export.ggml import row_bytes
from explorer.methods.awq import clip_search
from explorer.schemes import Convention

pytestmark = pytest.mark.usefixtures("one_thread")
K_QUANTS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
IQ4 = ("iq4_nl", "iq4_xs")
PLAIN = ("q4_0", "q4_1", "q5_0", "q5_1")
UNWEIGHED = ("q8_0", "tq1_0", "tq2_0", "mxfp4")
"""Types whose quantizer in ggml looks at no importance."""
MINIMUMS = {"q2_k": range(16), "q4_k": range(4, 16), "q5_k": range(4, 16)}
"""The bytes of a super-block that hold whole numbers of minimums."""


def by_ggml(x: Tensor, name: str, importance: Tensor | None = None) -> Tensor:
    """uint8 [rows, bytes of a row]: ``x`` [rows, cols] by ggml_quantize_chunk."""
    xllamacpp = pytest.importorskip("xllamacpp.xllamacpp")
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name.upper()]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    function = ctypes.CDLL(xllamacpp.__file__).ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    x = x.float().contiguous()
    out = torch.empty(len(x), x.shape[1] // block * size, dtype=torch.uint8)
    weights = None if importance is None else importance.data_ptr()
    assert function(kind, x.data_ptr(), out.data_ptr(), 0, len(x), x.shape[1], weights) == out.numel()
    return out


def here(x: Tensor, name: str, importance: Tensor | None = None) -> Tensor:
    """The same by the scheme."""
    return row_bytes(quantize(x, SCHEMES[name], importance=importance))


def matrices() -> dict[str, Tensor]:
    """Values on which two searches part: heavy tails, zeros, ties, one sign, blocks far below others."""
    g = torch.Generator().manual_seed(3)
    normal = torch.randn(24, 768, generator=g)
    zeros = normal.clone()
    zeros[:6] = 0
    zeros[:, ::3] = 0
    zeros[:, 256:288] = 0
    small = torch.arange(768) // 16 % 5 == 0
    tails = torch.randn(normal.shape, generator=g).abs().clamp(1e-3)
    return {
        "normal": normal,
        "BF16": normal.to(torch.bfloat16),
        "heavy tails": normal / tails,
        "zeros": zeros,
        "ties": torch.randint(-4, 5, normal.shape, generator=g).float(),
        "ties of scales": torch.randint(-16, 17, normal.shape, generator=g).float() / 8,
        "no negative": normal.relu(),
        "no positive": -normal.abs(),
        "constant": torch.full_like(normal, -3.0),
        "blocks that round to nothing": torch.where(small, normal * 1e-6, normal),
    }


def test_ternary_blocks_are_those_of_llama_cpp() -> None:
    """Halves go away from zero; blocks have three codes, and a scale of their amax."""
    x = torch.cat([case.float() for case in matrices().values()])
    for name in ("tq1_0", "tq2_0"):
        assert torch.equal(here(x, name), by_ggml(x, name))
        q = quantize(torch.tensor([[-0.5, 0.5, 1.0, 0.49] + [0.0] * 252]), SCHEMES[name])
        assert q.dequantize()[0, :4].tolist() == [-1.0, 1.0, 1.0, 0.0]


def test_nvfp4_of_gguf_differs_from_llama_cpps_at_ties_alone() -> None:
    """Scales where amax / 6 is half way between two numbers of E4M3 (up there, to even here), or from 256 on
    (448 there); under equal ones codes where x / scale is half way between two, and the sign of zeros."""
    x = torch.cat([case.float() for case in matrices().values()])
    ours, theirs = (raw(x, "nvfp4_gguf").view(-1, 36) for raw in (here, lambda x, _: by_ggml(x, "nvfp4")))
    scale, scale_there = (raw[:, :4].contiguous().view(torch.float8_e4m3fn).float() for raw in (ours, theirs))
    blocks = x.view(-1, 4, 16)
    wanted, apart = blocks.abs().amax(2) / 6, scale != scale_there
    halfway = wanted == (scale + scale_there) / 2
    assert bool((halfway | (wanted >= 248))[apart].all()) and 0 < int(apart.sum()) < 0.01 * apart.numel()
    table = SCHEMES["nvfp4_gguf"].format.values
    nibbles = [raw[:, 4:].reshape(-1, 4, 8) for raw in (ours, theirs)]
    mine, other = (table[torch.cat([raw & 15, raw >> 4], 2).long()] for raw in nibbles)
    differ = (mine != other) & ~apart[:, :, None]
    middle = (blocks / scale[:, :, None] - (mine + other) / 2).abs() <= 1e-6
    assert bool(middle[differ].all()) and 0 < int(differ.sum()) < 0.01 * differ.numel()
    assert bool((other.abs() < mine.abs())[differ].all())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [*K_QUANTS, *IQ4])
def test_searched_types_are_those_of_llama_cpp(name: str, weighted: bool) -> None:
    """Bit for bit: codes, scales, minimums and the float16 numbers above; with importances of columns too."""
    importance = torch.rand(768).pow(4) * 10 if weighted else None
    cases = matrices()
    x = torch.cat([case.float() for case in cases.values()])  # together: a search takes its time by itself
    differ = (here(x, name, importance) != by_ggml(x, name, importance)).sum(1).split(len(x) // len(cases))
    assert {case: int(rows.sum()) for case, rows in zip(cases, differ, strict=True)} == dict.fromkeys(
        cases, 0
    )


@pytest.mark.parametrize("name", PLAIN)
def test_blocks_of_32_under_importances_are_those_of_llama_cpp(name: str) -> None:
    """Bit for bit, where columns have importances: scales are searched then, and codes are the search's. Far
    from zero too."""
    cases = {**matrices(), "far from zero": torch.randn(24, 768) * 0.01 - 5}
    importance = torch.rand(768).pow(4) * 10
    differ = {
        case: int((here(x, name, importance) != by_ggml(x, name, importance)).sum())
        for case, x in cases.items()
    }
    assert differ == dict.fromkeys(cases, 0)


def test_types_that_llama_cpp_does_not_weigh_take_no_importances() -> None:
    """ggml gives the same bytes with them and without; here they are refused by name, so that nobody takes
    codes for weighed ones."""
    x, importance = torch.randn(8, 256), torch.rand(256)
    for name in UNWEIGHED:
        assert torch.equal(by_ggml(x, name, importance), by_ggml(x, name))
        assert not takes_importance(SCHEMES[name])
        with pytest.raises(ValueError, match=re.escape(SCHEMES[name].label)):
            quantize(x, SCHEMES[name], importance=importance)


def test_wrong_importances_are_refused() -> None:
    """Of another number of columns, negative, or beside a fixed range, which leaves nothing to search."""
    x, ranges = torch.randn(2, 256), find_ranges(torch.randn(2, 256), SCHEMES["q4_k"])
    with pytest.raises(ValueError, match="clip_range"):
        quantize(x, SCHEMES["q4_k"], importance=torch.rand(256), clip_range=ranges)
    for wrong, why in ((torch.ones(255), "256 columns"), (-torch.ones(256), "negative")):
        for name in ("q4_k", "q4_0"):
            with pytest.raises(ValueError, match=why):
                quantize(x, SCHEMES[name], importance=wrong)


def test_of_equal_magnitudes_the_first_decides_on_the_sign() -> None:
    """[-7, 7] and [7, -7] are restored as llama.cpp restores them; BF16 weights hold such blocks. By AWQ's
    search of ranges too, which moves both ends by one factor."""
    x = torch.zeros(2, 32)
    x[0, 3:5], x[1, 3:5] = torch.tensor([-7.0, 7.0]), torch.tensor([7.0, -7.0])
    ties = torch.randint(-4, 5, (64, 256)).float()
    for name in ("q4_0", "q5_0"):
        restored = quantize(x, SCHEMES[name]).dequantize()
        assert restored[0, 3] == -7 and restored[1, 3] == 7 and restored[0, 4] < 7 and restored[1, 4] > -7
        for values in (x, ties, torch.randn(256, 512).to(torch.bfloat16)):
            assert torch.equal(here(values, name), by_ggml(values, name))
    for text in ("q4_0", "int4~1x32~signed_max~float16~minmax~bf16"):
        scheme = Scheme.parse(text)
        assert (quantize(x, scheme).scales.scale[:, 0] > 0).tolist() == [True, False]
        ranges = clip_search(x, scheme, torch.ones(4, 32))
        assert ranges.low_first is not None and ranges.low_first[:, 0].tolist() == [True, False]


def test_numbers_beyond_float16_restore_what_they_can() -> None:
    """Where ggml stores Inf, the largest float16 number is stored here; where a unit of minimums rounds to 0,
    so are its whole numbers, which restore nothing. Codes of such small values are the same."""
    small = torch.randn(8, 256) * 1e-12
    for name in (*K_QUANTS, *IQ4):
        assert bool(quantize(torch.randn(4, 256) * 1e10, SCHEMES[name]).dequantize().isfinite().all())
        differ = (here(small, name) != by_ggml(small, name)).any(0).nonzero()[:, 0].tolist()
        assert set(differ) <= set(MINIMUMS.get(name, range(0)))


def test_little_is_quantized_too() -> None:
    for shape, name in itertools.product([(0, 256), (3, 0), (0, 0), (1, 1)], (*K_QUANTS, *IQ4, *PLAIN)):
        for importance in (None, torch.ones(shape[1])):
            q = quantize(torch.randn(shape), SCHEMES[name], importance=importance)
            assert q.dequantize().shape == shape


def seen(importance: Tensor, width: int) -> Tensor:
    """The importances with next to nothing in blocks that have none: llama.cpp would restore zeros there."""
    blocks = importance.view(-1, width)
    return torch.where((blocks == 0).all(1, keepdim=True), importance.mean() * 1e-6, blocks).view(-1)


@pytest.mark.parametrize("name", [*K_QUANTS, *IQ4, *PLAIN])
def test_columns_that_no_input_reached_are_rounded(name: str) -> None:
    """If this fails, an expert that no calibration token reached is wiped out: all of its importances are 0,
    or those of some blocks. Then codes are those of llama.cpp for blocks that count next to nothing."""
    x, importance = torch.randn(16, 512, generator=torch.Generator().manual_seed(1)), torch.rand(512)
    scheme = SCHEMES[name]
    plain = quantize(x, scheme).dequantize()
    assert torch.equal(quantize(x, scheme, importance=torch.zeros(512)).dequantize(), plain)
    importance[:64], importance[300], importance[384:] = 0, 0, 0
    width = scheme.block[1]
    assert width is not None
    assert torch.equal(here(x, name, importance), by_ggml(x, name, seen(importance, width)))
    restored = quantize(x, scheme, importance=importance).dequantize()
    for part in (slice(0, 64), slice(384, 512)):
        assert (restored - x)[:, part].norm() < 1.3 * (plain - x)[:, part].norm()


def test_the_codebook_is_llama_cpps() -> None:
    """Its levels, one by one: a block of them is restored as it is, with ggml's bytes, and the scale has the
    sign of its value of largest magnitude."""
    levels = torch.tensor(SCHEMES["iq4_nl"].format.levels)
    block = torch.cat([levels, levels.flip(0)])
    x = torch.stack([block, block * -0.5])
    q = quantize(x, SCHEMES["iq4_nl"])
    assert torch.equal(q.dequantize(), x) and q.scales.scale[:, 0].tolist() == [1.0, -0.5]
    assert q.codes[0, :16].tolist() == list(range(16))
    assert torch.equal(row_bytes(q), by_ggml(x, "iq4_nl"))


def test_shorter_blocks_are_searched_as_others() -> None:
    """Rows that end within a super-block, or within a block: the whole blocks before are those of a row that
    ends there, and no value is lost."""
    x = torch.randn(3, 333)
    for name in (*K_QUANTS, *IQ4):
        whole, part = quantize(x, SCHEMES[name]), quantize(x[:, :256].contiguous(), SCHEMES[name])
        assert torch.equal(whole.codes[:, :256], part.codes)
        error = (whole.dequantize() - x).square().mean(0)
        assert float(error[256:].mean()) < 2 * float(error[:256].mean())


def test_rows_shorter_than_a_super_block_are_not_padded_to_one() -> None:
    """A tall matrix of one column would take sixteen times its memory, and the time of a run."""
    grid = torch.ones(5, 1)
    assert k_quants._super_blocks(grid, SCHEMES["q6_k"]).shape == (1, 5)
    assert k_quants._super_blocks(grid.expand(5, 20), SCHEMES["q6_k"]).shape == (16, 10)


def test_a_search_goes_with_its_layouts_alone() -> None:
    """Other layouts, calibrators and fitted scales have none. Ours is called otherwise, in name and label."""
    for text, why in (
        ("int4~1x16~minimum~super6-ggml~minmax", "Q2_K"),
        ("int4~1x32~signed_max~float16-ggml~minmax", "Q2_K"),
        ("iq4_nl~1x16~signed_max~float16-ggml~minmax~reciprocal~unrounded", "1x16"),
        ("iq4_nl~1x32~symmetric~float16-ggml~minmax~reciprocal~unrounded", "symmetric"),
        ("iq4_nl~1x32~signed_max~float16-ggml~minmax", "reciprocal, unrounded"),
        ("nf4~1x32~signed_max~float16~minmax", "NF4"),
        ("int4~1x32~minimum~super6-ggml~mse", "super6"),
        ("int4~1x32~minimum~super6-ggml~minmax~fit", "super6"),
    ):
        with pytest.raises(ValueError, match=why):
            Scheme.parse(text)
    with pytest.raises(ValueError):
        ScaleRule(convention=Convention.GGML)
    ours = SCHEMES["q4_k"].with_ranges_by(CALIBRATORS["mse"])
    assert str(ours) == "int4~1x32~minimum~super6~mse"
    assert str(SCHEMES["q4_k"].with_ranges_by(CALIBRATORS["minmax"])) == "q4_k"
    codebook = SCHEMES["iq4_nl"].with_ranges_by(CALIBRATORS["mse"])
    assert str(codebook) == "iq4_nl~1x32~signed_max~float16-zero~mse~reciprocal~unrounded"
    for text, label in (
        ("q4_k", "GGUF Q4_K"),
        ("int4~1x32~minimum~super6~mse~fit", "Q4_K layout, least squared error, scales refitted"),
        ("int3~1x16~signed_max~super6~mse", "Q3_K layout, least squared error"),
        ("int6~1x16~signed_max~super8~minmax", "Q6_K layout, min-max"),
        ("int4~1x32~minimum~super4~minmax",
         "INT4 groups of 32, with minimums, 4-bit scales in super-blocks"),
    ):  # fmt: skip
        scheme = Scheme.parse(text)
        assert scheme.label == label and ("llama.cpp" in scheme.describe()) is ("_K" in label)


def test_whole_numbers_of_scales_fit_their_bits() -> None:
    """Far from zero and under importances of many sizes the search's scale of a block may be negative: what
    is stored of it is a whole number that the file has bits for."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 256, generator=g) * 0.01 - 5
    importance = torch.exp(torch.randn(256, generator=g) * 5)
    for name in ("q2_k", "q4_k", "q5_k"):
        _, scales = k_quantized(x, SCHEMES[name], importance)
        rule = SCHEMES[name].scale
        assert rule is not None and rule.super_bits is not None
        assert scales.stored.min() >= 0 and scales.stored.max() < 2**rule.super_bits, name


def test_rows_that_no_file_holds_are_said() -> None:
    for name in ("q4_k", "tq1_0", "tq2_0"):
        assert "384" in SCHEMES[name].shortened((1536, 384)) and not SCHEMES[name].shortened((384, 1536))
    assert not SCHEMES["q4_0"].shortened((1536, 384)) and not SCHEMES["int4_row"].shortened((1536, 384))
