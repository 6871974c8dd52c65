"""Models that are published quantized, FP8 in blocks and MXFP4: their weights are listed as restored values.

If these fail, a survey or an export is of other weights than the model's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from hub import serve
from safetensors.torch import load_file, save_file
from torch import Tensor

from explorer import SourceError, load_matrix, open_source
from explorer.checkpoints.integer_words import int32_words
from explorer.sources.models import HubModel, LocalModel, folder_stamp
from explorer.sources.source_limits import LOCAL
from tests.sources.coded_models import FP8, MXFP4, fp8_parts, mxfp4_parts, tiles

LAYER = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


def folder_of(folder: Path, tensors: dict[str, Tensor], settings: object) -> Path:
    """A model's folder with these tensors and this ``quantization_config``."""
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return folder


def fp8_folder(folder: Path, shape: tuple[int, int], tile: int = 128) -> tuple[Path, Tensor, Tensor]:
    """The folder, the codes and the scales of one layer."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    codes, scales = fp8_parts(weight, tile)
    tensors = {f"{LAYER}.weight": codes, f"{LAYER}.weight_scale_inv": scales, "model.norm.weight": weight[0]}
    return folder_of(folder, tensors, FP8 | {"weight_block_size": [tile, tile]}), codes, scales


def mxfp4_folder(folder: Path) -> tuple[Path, Tensor, Tensor]:
    """The folder, the blocks and the scales of four experts [4, 96, 64]."""
    blocks, scales = mxfp4_parts(4, 96, 64)
    tensors = {
        f"{EXPERTS}_blocks": blocks,
        f"{EXPERTS}_scales": scales,
        f"{EXPERTS}_bias": torch.zeros(4, 96),
    }
    return folder_of(folder, tensors, MXFP4), blocks, scales


def test_fp8_is_what_transformers_restores(tmp_path: Path) -> None:
    """If this fails, a whole number of tiles is restored to other values than transformers'."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    folder, codes, scales = fp8_folder(tmp_path / "m", (256, 384))
    source = open_source(str(folder))
    assert {(i.name, i.shape, i.dtype) for i in source.infos} == {
        (f"{LAYER}.weight", (256, 384), "FP8 E4M3 · 8.001953 bits"),
        ("model.norm.weight", (384,), "F32"),
    }
    read = source.read(f"{LAYER}.weight")
    want = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)
    assert read.dtype is torch.float32 and torch.equal(read, want)
    assert source.restored == {f"{LAYER}.weight"}


def test_tiles_may_be_cut_at_the_edges_and_scales_be_shorter(tmp_path: Path) -> None:
    """A scale is spread over its own rows where N or K is no whole number of tiles; scales have 8 to 32
    bits."""
    for shape, tile in (((200, 320), 128), ((192, 128), 128), ((5, 7), 1 << 20), ((70, 33), 32)):
        folder, codes, scales = fp8_folder(tmp_path / f"{shape}", shape, tile)
        read = load_matrix(str(folder), f"{LAYER}.weight").values
        assert torch.equal(read, tiles(codes, scales, min(tile, 512)))
    codes, scales = fp8_parts(torch.randn(130, 130))
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e8m0fnu):
        short = scales.to(dtype)
        tensors = {f"{LAYER}.weight": codes, f"{LAYER}.weight_scale_inv": short}
        folder = folder_of(tmp_path / f"{dtype}", tensors, FP8 | {"weight_block_size": [128, 128]})
        assert torch.equal(open_source(str(folder)).read(f"{LAYER}.weight"), tiles(codes, short))


def test_mxfp4_is_what_transformers_restores(tmp_path: Path) -> None:
    """If this fails, experts have wrong values, or inputs and outputs in each other's place."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder, blocks, scales = mxfp4_folder(tmp_path / "m")
    source = open_source(str(folder))
    shown = {i.name: (i.shape, i.dtype) for i in source.infos}
    assert shown == {EXPERTS: ((4, 96, 64), "MXFP4 · 4.25 bits"), f"{EXPERTS}_bias": ((4, 96), "F32")}
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [E, inputs, outputs]
    assert torch.equal(source.read(EXPERTS), want.transpose(1, 2))
    assert torch.equal(load_matrix(str(folder), EXPERTS).values, want.transpose(1, 2).reshape(4 * 96, 64))
    halves = convert_moe_packed_tensors(blocks, scales)  # in bfloat16, as a network holds them
    assert torch.equal(source.read(EXPERTS).bfloat16().transpose(1, 2), halves)


def test_every_code_and_scale_of_mxfp4(tmp_path: Path) -> None:
    """If this fails, one of 16 codes or 255 scales is restored wrongly; scale 255 is not a number."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(1, 256, 1, 1)
    scales = torch.arange(256, dtype=torch.uint8).reshape(1, 256, 1).repeat(1, 1, 16)
    folder = folder_of(tmp_path / "m", {f"{EXPERTS}_blocks": blocks, f"{EXPERTS}_scales": scales}, MXFP4)
    read = open_source(str(folder)).read(EXPERTS)
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    finite = slice(0, 254)  # at 2^127 the product overflows in both, at 255 there is no scale
    assert torch.equal(read[:, finite], want[:, finite]) and read[:, 255].isnan().all()


def test_first_rows_are_restored_alone(tmp_path: Path) -> None:
    """A part of the tiles, and of the experts."""
    folder, codes, scales = fp8_folder(tmp_path / "a", (300, 256))
    part = LocalModel(folder).matrix(f"{LAYER}.weight", max_elements=130 * 256)
    assert part.cut and torch.equal(part.values, tiles(codes, scales)[:130])
    experts = LocalModel(mxfp4_folder(tmp_path / "b")[0])
    assert torch.equal(experts.read(EXPERTS, max_elements=2 * 96 * 64), experts.read(EXPERTS)[:2])


def damaged(scales: Tensor, what: str) -> Tensor:
    """Of another shape, or integers."""
    if what == "whole":
        return torch.zeros(scales.shape, dtype=torch.int32)
    return scales[:-1].contiguous() if len(scales) > 1 else scales.repeat(2, 1)


@pytest.mark.parametrize("make", [lambda path: fp8_folder(path, (200, 128)), mxfp4_folder])
@pytest.mark.parametrize(("what", "words"), [("cut", "shape"), ("lost", "no scales"), ("whole", "I32")])
def test_wrong_scales_are_refused_by_name(
    make: Callable[[Path], tuple[Path, Tensor, Tensor]], what: str, words: str, tmp_path: Path
) -> None:
    """If this fails, a layer whose scales are damaged is read as numbers that mean nothing."""
    folder = make(tmp_path / "m")[0]
    tensors = load_file(folder / "model.safetensors")
    scales = next(name for name in tensors if name.endswith(("_scale_inv", "_scales")))
    if what == "lost":
        del tensors[scales]
    else:
        tensors[scales] = damaged(tensors[scales], what)
    save_file(tensors, folder / "model.safetensors")
    source = open_source(str(folder))
    name = next(name for name in (f"{LAYER}.weight", EXPERTS) if name in {info.name for info in source.infos})
    with pytest.raises(SourceError, match=words) as caught:
        source.read(name)
    assert name in str(caught.value)


def full(value: float, *shape: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    return torch.full(shape, value).to(dtype)


def u8(value: int, *shape: int) -> Tensor:
    return torch.full(shape, value, dtype=torch.uint8)


ROWS = torch.arange(64.0)[:, None] + 1
STEPS = 1 + 5 * torch.arange(8.0)[:, None] + torch.arange(5.0)
FP4_ONES = u8(0x22, 64, 32)
FORMS: dict[str, tuple[dict[str, Tensor], object, Tensor | float, str]] = {
    "MXFP8, exponents in bytes": (
        {"weight": full(1, 64, 64), "weight_scale": u8(120, 64, 2)},
        {"quant_method": "mxfp8", "weight_block_size": [1, 32]}, 2**-7, "MXFP8 E4M3",
    ),
    "MXFP8 in bytes": (
        {"weight": u8(0x38, 64, 64), "weight_scale": u8(120, 64, 2)}, {"quant_method": "mxfp8"}, 2**-7,
        "MXFP8 E4M3",
    ),
    "rows [N, 1]": ({"weight": full(1, 64, 64), "weight_scale": ROWS}, {}, ROWS.expand(64, 64), "FP8 E4M3"),
    "rows [N]": ({"weight": full(1, 64, 32), "weight_scale": ROWS[:, 0]}, 7, ROWS.expand(64, 32), "FP8 E4M3"),
    "one scale": (
        {"weight": full(2, 8, 8, dtype=torch.float8_e5m2), "weight_scale": torch.tensor(0.25)}, {}, 0.5,
        "FP8 E5M2",
    ),
    "cut blocks": (
        {"weight": full(1, 1000, 576), "weight_scale_inv": STEPS}, FP8 | {"weight_block_size": [128, 128]},
        tiles(full(1, 1000, 576), STEPS), "FP8 E4M3",
    ),
    "another size in the settings": (
        {"weight": full(1, 256, 256), "weight_scale_inv": full(3, 2, 2, dtype=torch.bfloat16)},
        FP8 | {"weight_block_size": [64, 10**30]}, 3.0, "FP8 E4M3",
    ),
    "E8M0 blocks": (
        {"weight": full(1, 256, 256), "scale": full(2**-9, 2, 2, dtype=torch.float8_e8m0fnu)}, {}, 2**-9,
        "FP8 E4M3",
    ),
    "MXFP4 in I8": (
        {"weight": FP4_ONES.view(torch.int8), "scale": u8(126, 64, 2).view(torch.float8_e8m0fnu)}, {}, 0.5,
        "MXFP4",
    ),
    "NVFP4, a divisor": (
        {
            "weight_packed": FP4_ONES, "weight_scale": full(448, 64, 4),
            "weight_global_scale": torch.tensor([3584.0]),
        },
        {}, 0.125, "NVFP4",
    ),
    "NVFP4, a multiplier": (
        {"weight": FP4_ONES, "weight_scale": full(448, 64, 4), "weight_scale_2": torch.tensor(1 / 3584)}, {},
        448 * torch.tensor(1 / 3584), "NVFP4",
    ),
    "INT8 of torchao": (
        {
            "_weight_qdata": full(-3, 64, 32, dtype=torch.int8), "_weight_scale": ROWS,
            "_weight_zero_point": full(0, 64, 1, dtype=torch.int8),
        },
        {"quant_method": "torchao"}, -3 * ROWS.expand(64, 32), "INT8",
    ),
    "INT4 of HQQ": (  # the first group in the high bits of the bytes, the second in the low ones
        {
            "W_q": u8(0x2F, 1, 64), "scale": torch.tensor([[2.0], [0.5]]),
            "zero": torch.tensor([[1.0], [7.0]]), "nbits": torch.tensor(4),
            "axis": torch.tensor(1), "shape": torch.tensor([2, 64]),
        },
        {"quant_method": "hqq"}, torch.tensor([[2.0], [4.0]]).expand(2, 64), "packed integers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_codes_mean_what_their_scales_say(form: str, tmp_path: Path) -> None:
    """If this fails, the commonest checkpoints are shown as their bare codes. A file alone gives the same
    values, and so do its first rows."""
    parts, settings, want, label = FORMS[form]
    folder = folder_of(tmp_path / "m", {f"{LAYER}.{end}": part for end, part in parts.items()}, settings)
    for where in (folder, folder / "model.safetensors"):
        source = open_source(str(where))
        (info,) = source.infos
        assert info.name == f"{LAYER}.weight" and info.dtype.startswith(f"{label} · ")
        values = source.read(info.name)
        assert values.shape == info.shape and torch.equal(values, torch.as_tensor(want).expand(values.shape))
        part = source.read(info.name, max_elements=33 * info.shape[1])
        assert torch.equal(part, values[:33])


@pytest.mark.parametrize("bits", [3, 7])
def test_first_rows_of_odd_widths(bits: int, tmp_path: Path) -> None:
    """Codes of 3 and 7 bits cross words: the first rows need whole words of zero points."""
    scales, zeros = torch.rand(2, 128).half(), torch.randint(1, 1 << bits, (2, 128)).to(torch.uint8)
    codes = torch.randint(0, 1 << bits, (128, 64)).to(torch.uint8)
    parts = {
        "weight_packed": int32_words(codes, bits), "weight_scale": scales.t().contiguous(),
        "weight_zero_point": int32_words(zeros, bits).t().contiguous(),
        "weight_shape": torch.tensor([128, 64]),
    }  # fmt: skip
    folder = folder_of(tmp_path / "m", {f"{LAYER}.{end}": part for end, part in parts.items()}, {})
    source = open_source(str(folder))
    whole = source.read(f"{LAYER}.weight")
    each = zeros.t().float().repeat_interleave(32, 1), scales.t().float().repeat_interleave(32, 1)
    assert torch.allclose(whole, (codes.float() - each[0]) * each[1])
    for rows in (1, 33, 63, 100):
        assert torch.equal(source.read(f"{LAYER}.weight", max_elements=rows * 64), whole[:rows])


@pytest.mark.parametrize("columns", [4, 9, 12, 17, 20])
def test_few_columns_have_the_stated_bits(columns: int, tmp_path: Path) -> None:
    """Twelve codes of 4 bits in two words were read as codes of 5."""
    codes = torch.randint(0, 16, (8, columns)).to(torch.uint8)
    parts = {
        "weight_packed": int32_words(codes, 4), "weight_scale": torch.ones(8, 1),
        "weight_shape": torch.tensor([8, columns]),
    }  # fmt: skip
    tensors = {f"{LAYER}.{end}": part for end, part in parts.items()}
    stated = {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    source = open_source(str(folder_of(tmp_path, tensors, stated)))
    assert torch.equal(source.read(f"{LAYER}.weight"), codes.float() - 8)
    unstated = open_source(str(folder_of(tmp_path, tensors, {})))
    if columns == 4:
        with pytest.raises(ValueError, match="1 words hold a row of 4 codes"):
            unstated.read(f"{LAYER}.weight")
    else:
        assert torch.equal(unstated.read(f"{LAYER}.weight"), codes.float() - 8)


def test_codes_and_scales_are_bounded(tmp_path: Path) -> None:
    """An archive of 0.6 MB held 30 million scales of 256 values, and took 5 GB. What is read whole has a
    limit: a weight whose first rows are shown may be of any size."""
    parts = {"qweight": torch.zeros(2, 16, dtype=torch.int32), "scales": torch.ones(1 << 12, 16).half()}
    parts["qzeros"] = torch.zeros(1 << 12, 2, dtype=torch.int32)
    source = open_source(
        str(folder_of(tmp_path / "a", {f"{LAYER}.{end}": p for end, p in parts.items()}, {}))
    )
    assert "too many for 256 values" in source.problems[0]
    nf4 = {f"{LAYER}.{end}": part for end, part in flat_parts("nf4", 64, 96).items()}
    few = dataclasses.replace(LOCAL, coded_bytes=3000)
    where = str(folder_of(tmp_path / "b", nf4, {}))
    with pytest.raises(SourceError, match="which are read whole; here up to 3,000 are"):
        open_source(where, limits=few).matrix(max_elements=96)
    assert open_source(where).matrix(max_elements=96).values.shape == (1, 96)


CHANGING = ("zero_point", "weight_zp", "weight_zeros", "offset", "weight_min", "pre_quant_scale")
"""Of tensors that change what codes mean, names that no form has."""


def test_an_unknown_form_is_refused_and_its_codes_are_shown_on_purpose(tmp_path: Path) -> None:
    """If this fails, codes are taken for weights. The scales of inputs are no scales of a weight."""
    ones, scale = full(1, 64, 64), torch.ones(5)
    for codes, scales, tensor in (
        ("weight", "weight_w_scale", ones),
        ("weight", "weight_scale", ones),
        ("qdata", "scales", ones.to(torch.int8)),
        ("codes", "absmax", u8(1, 8)),
        ("weight", "scales", u8(1, 64, 16).to(torch.int32).view(torch.uint32)),  # MLX
        ("weight._data", "weight._scale", ones.to(torch.int8)),  # quanto
        ("B", "s", u8(1, 64, 16).to(torch.int32)),  # Marlin
        ("weight_int8", "weight_amax", ones.to(torch.int8)),
        ("weight", "delta", ones.to(torch.int8)),
        ("weight", "q_scale", ones.to(torch.int8)),
        ("weight", "shared_exp", ones),
    ):
        tensors = {f"{LAYER}.{codes}": tensor, f"{LAYER}.{scales}": scale, "a.weight": torch.ones(2, 2)}
        folder = folder_of(tmp_path / "m", tensors, {})
        for where in (folder, folder / "model.safetensors"):
            source = open_source(str(where))
            assert source.problems and source.read("a.weight").eq(1).all()
            with pytest.raises(SourceError) as caught:
                source.read(f"{LAYER}.{codes}")
            assert f"{LAYER}.{codes}" in str(caught.value)
            assert scales in str(caught.value) or "5 scales" in str(caught.value)
            bare = load_matrix(str(where), f"{LAYER}.{codes}", codes=True)
            assert bare.values.eq(1).all() and bare.name in {info.name for info in source.infos}
    more = {f"{LAYER}.weight_scale": torch.ones(64, 1), f"{LAYER}.weight_offset": scale}
    for lost in (
        more,
        *({f"{LAYER}.weight_scale": torch.ones(64, 1), f"{LAYER}.{end}": scale} for end in CHANGING),
        {f"{LAYER}.weight_scale": None},
    ):  # a part that no form knows; scales that are not there
        kept = {name: tensor for name, tensor in lost.items() if tensor is not None}
        folder = folder_of(tmp_path / "m", {f"{LAYER}.weight": ones, **kept}, {})
        index = {"weight_map": dict.fromkeys([f"{LAYER}.weight", *lost], "model.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for where in (folder, folder / "model.safetensors"):
            with pytest.raises(SourceError):
                open_source(str(where)).read(f"{LAYER}.weight")
        (folder / "model.safetensors.index.json").unlink()
    words = {f"{LAYER}.{end}": torch.zeros(3, 8, dtype=torch.int32) for end in ("qweight", "qzeros")}
    folder_of(tmp_path / "m", words | {f"{LAYER}.scales": torch.tensor(1.0)}, {})
    with pytest.raises(SourceError, match=r"index out of range.*qzeros \[3, 8\], .*scales \[\]"):
        open_source(str(tmp_path / "m")).read(f"{LAYER}.qweight")
    folder_of(tmp_path / "m", {f"{LAYER}.weight": ones}, {"quant_method": "fbgemm_fp8"})
    with pytest.raises(SourceError, match="no scales"):
        open_source(str(tmp_path / "m")).read(f"{LAYER}.weight")
    folder_of(tmp_path / "m", {f"{LAYER}.weight": ones, f"{LAYER}.input_scale": scale}, {})
    assert open_source(str(tmp_path / "m")).read(f"{LAYER}.weight").float().eq(1).all()


def test_a_configuration_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """If this fails, codes whose layout nobody knows are listed as weights; plain models need no file."""
    folder = fp8_folder(tmp_path / "m", (128, 128))[0]
    (folder / "config.json").write_text("{")
    with pytest.raises(SourceError, match=r"config\.json"):
        open_source(str(folder))
    save_file({"a.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    assert len(open_source(str(folder)).infos) == 1


def test_a_changed_configuration_changes_the_stamp(tmp_path: Path) -> None:
    """If this fails, a page shows codes of the old layout after the configuration was corrected."""
    folder = fp8_folder(tmp_path / "m", (128, 128))[0]
    before = folder_stamp(str(folder))
    (folder / "config.json").write_text("{}  ")
    assert folder_stamp(str(folder)) != before


def test_the_hub_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a model on the Hub has other values than its copy on this machine, or costs more."""
    folders = {
        "team/fp8": fp8_folder(tmp_path / "a", (300, 256))[0],
        "team/mxfp4": mxfp4_folder(tmp_path / "b")[0],
    }
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with serve(folders) as hub:
        for name, folder in folders.items():
            there, here = HubModel(name, endpoint=hub.url), LocalModel(folder)
            assert there.infos == here.infos and there.restored == here.restored
            (weight,) = there.restored
            before = hub.sent
            assert torch.equal(there.read(weight), here.read(weight))
            assert hub.sent - before < here.info(weight).elements * 1.01 + 100


def flat_parts(kind: str, rows: int, columns: int) -> dict[str, Tensor]:
    """A layer whose codes follow no rows: NF4 of bitsandbytes, or HQQ of so many bits along an axis."""

    def some(*shape: int) -> Tensor:
        return torch.rand(shape) + 0.5

    count = rows * columns
    if kind.startswith("nf4"):
        blocks, state = -(-count // 64), {"quant_type": "nf4", "blocksize": 64, "shape": [rows, columns]}
        parts = {"weight": random_bytes(-(-count // 2), 1), "weight.quant_map": some(16)}
        if kind == "nf4 nested":
            state |= {"nested_blocksize": 4, "nested_offset": 0.25}
            more = {
                "absmax": random_bytes(blocks),
                "nested_absmax": some(-(-blocks // 4)),
                "nested_quant_map": some(256),
            }
        else:
            more = {"absmax": some(blocks)}
        more["quant_state.bitsandbytes__nf4"] = torch.tensor(
            list(json.dumps(state).encode()), dtype=torch.uint8
        )
        return parts | {f"weight.{end}": part for end, part in more.items()}
    bits, axis = map(int, kind.split()[1:])
    grid = [count // 32, 32]
    scales = [grid[0], 1] if axis else [1, 32]
    numbers = {
        "nbits": torch.tensor(bits),
        "axis": torch.tensor(axis),
        "shape": torch.tensor([rows, columns]),
    }
    return {
        "W_q": random_bytes(grid[0] * bits // 8, 32),
        "scale": some(*scales),
        "zero": some(*scales),
    } | numbers


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    "kind", ["nf4", "nf4 nested", *(f"hqq {bits} {axis}" for bits in (1, 4, 8) for axis in (0, 1))]
)
def test_first_rows_of_flat_codes_take_memory_of_no_more(kind: str, tmp_path: Path) -> None:
    """The whole weight was restored for them, and kept with them: 120 MB of NF4 took 4.2 GB."""
    torch.manual_seed(0)
    for rows, columns in ((64, 96), (48, 30) if kind.startswith("nf4") else (96, 48)):
        parts = {f"{LAYER}.{end}": part for end, part in flat_parts(kind, rows, columns).items()}
        source = open_source(str(folder_of(tmp_path / f"{columns}", parts, {})))
        name = source.infos[0].name
        whole = source.read(name)
        assert whole.shape == (rows, columns)
        for first in (1, 3, 31, rows - 1):
            part = source.read(name, max_elements=first * columns)
            assert torch.equal(part, whole[:first])
            assert part.untyped_storage().nbytes() <= part.nbytes + 4 * 64
