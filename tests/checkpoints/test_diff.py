"""Two checkpoints held against each other, for every layout that is read.

If these fail, somebody is told a wrong scheme or a wrong error of a model that somebody else quantized.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from explorer import SCHEMES, Scheme, compare, quantize
from explorer.checkpoints import EXPORTS, write_one
from explorer.checkpoints.diff import (
    Diff,
    LayerDiff,
    _in_steps,
    analysis_of,
    compared,
    diff,
    open_pair,
    ordered,
    with_outliers,
)
from explorer.checkpoints.diff_words import sentences
from explorer.checkpoints.gguf_model import GgufModel
from explorer.checkpoints.integer_words import int32_words
from explorer.checkpoints.rescaled import find_factors, whole_factor
from explorer.checkpoints.stored import GgufCheckpoint, gguf_of, open_checkpoint
from explorer.cli import main
from explorer.core.file import save_quantized
from explorer.models.quantize import rounding
from explorer.sources.base import SourceError
from explorer.sources.gguf_file import GgufFile
from explorer.sources.quantized_forms import Restored
from explorer.sources.source_limits import LOCAL
from tests.checkpoints.reading import NAME, finished, hard_weight, target_parts, uniform
from tests.checkpoints.writing import write_checkpoint
from tests.covering import by_pairs, sampled

READ = [name for name, export in EXPORTS.items() if export.sharded or name == "gguf"]
"""What ``explorer diff`` reads: safetensors and GGUF."""
WHOLE = [
    ("compressed-tensors", "int4_group128", "INT4 group 128"),
    ("compressed-tensors", "nvfp4_vllm", "NVFP4 (E4M3 scale a group of 16, FP32 scale a tensor)"),
    ("vllm", "int4_group128_asym", "INT4 group 128, asymmetric"),
    ("gptq", "int4_group128", "INT4 group 128"),
    ("awq", "int4_group64_asym", "INT4 group 64, asymmetric"),
    ("bitsandbytes", "nf4_block64_double", "NF4 block 64, double-quantized"),
    ("gguf", "q4_0", "Q4_0"),
]
Q = "model.layers.0.self_attn.q_proj"


def rows(found: Diff) -> dict[str, LayerDiff]:
    return {layer.name: layer for layer in found.layers}


@pytest.mark.parametrize(("target", "scheme", "kind"), sampled(WHOLE, WHOLE[1::3]))
def test_a_written_model_has_the_error_of_its_scheme(
    target: str, scheme: str, kind: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """Every layer of the folder: what it is called, its decibels and its bits; all else is the original's."""
    written = write_checkpoint(target, llama, uniform(layers, scheme), tmp_path / "out")
    found = diff(open_pair(str(llama), str(written.folder)))
    assert not (found.missing or found.extra or found.unread or found.outliers or found.left_out)
    original, by_name = open_checkpoint(str(llama)), rows(found)
    recipes = uniform(layers, scheme)
    rounded = rounding(
        recipes, EXPORTS[target].joined, lambda name: original.restore(f"{name}.weight").values
    )
    codes = {layer: rounded(layer) for layer in layers}
    assert {layer.name.removesuffix(".weight") for layer in found.coded} == set(layers)
    for layer in layers:
        row, weight = by_name[f"{layer}.weight"], original.restore(f"{layer}.weight").values
        truth = compare(weight, codes[layer])
        assert row.kind == kind and row.shape == tuple(weight.shape) and not row.note
        assert row.sqnr_db == pytest.approx(truth.sqnr_db, rel=1e-9)
        assert row.max_error == truth.max_error and row.cosine == pytest.approx(truth.cosine, rel=1e-12)
        bits = EXPORTS[target].stored_bits(SCHEMES[scheme], (weight.shape[0], weight.shape[1]), torch.float32)
        assert row.bits == pytest.approx(bits, rel=0.01)
    kept = [layer for layer in found.layers if not layer.coded]
    assert kept and all(layer.equal and layer.sqnr_db == math.inf and layer.kind == "F32" for layer in kept)


CARRIED = [
    (target, scheme.text)
    for target in READ
    for scheme in (
        *SCHEMES.values(),
        Scheme.parse("int8~1x64~asymmetric~float16~minmax"),
        Scheme.parse("int4~1x16~asymmetric~bfloat16~mse"),
        Scheme.parse("float8_e4m3fn~128x128~symmetric~bfloat16~minmax"),
        Scheme.parse("nf4~flat64~symmetric~float32~minmax"),
    )
    if scheme.scale is not None and not EXPORTS[target].refusal(scheme, (128, 512))
]


@pytest.mark.parametrize(("target", "text"), by_pairs(CARRIED, target_parts))
def test_every_layout_is_restored(target: str, text: str, tmp_path: Path) -> None:
    """Bit for bit. Where the scale over the tensor is stored as its reciprocal, to one part in 10⁶."""
    weight, scheme = hard_weight(0.1), Scheme.parse(text)
    q = quantize(weight, scheme)
    restored, expected = _one(write_one(target, q, tmp_path / "one", NAME), target, scheme), q.dequantize()
    if scheme.scale is not None and scheme.scale.per_tensor and not scheme.scale.divides_by_tensor_scale:
        assert torch.allclose(restored.values, expected, rtol=1e-6, atol=0)
    else:
        assert torch.equal(restored.values, expected)
    assert restored.scheme == "" or Scheme.parse(restored.scheme).format is scheme.format
    if restored.steps is not None and scheme.block[1] is not None and not scheme.flat:
        grid = q.scales.scale.abs()
        assert restored.steps.abs().max() == pytest.approx(float(grid.max()), rel=1e-6)


def _one(path: Path, target: str, scheme: Scheme) -> Restored:
    """The weight of a file of one tensor, in a folder with the configuration that its layout needs."""
    if target == "gguf":
        model = GgufModel(GgufFile(path, LOCAL), {}, "none", 0, False, 32)
        return GgufCheckpoint(model).restore(f"{NAME}.weight")
    version = "gptq_v2" if scheme.asymmetric else "gptq"
    folder = made(path.parent / "folder", load_file(path), checkpoint_format=version)
    return open_checkpoint(str(folder)).restore(f"{NAME}.weight")


def made(folder: Path, tensors: Mapping[str, Tensor], **settings: object) -> Path:
    """A folder with ``tensors`` and ``quantization_config``."""
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings} if settings else {}))
    return folder


@pytest.fixture(scope="module")
def written(llama: Path, layers: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in AWQ's layout."""
    out = tmp_path_factory.mktemp("written") / "awq"
    return write_checkpoint("awq", llama, uniform(layers, "int4_group128_asym"), out).folder


def changed(written: Path, folder: Path, change: Mapping[str, float | None]) -> Path:
    """A copy in which tensors were multiplied, or (None) left out."""
    shutil.copytree(written, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, factor in change.items():
        tensors[name] = torch.empty(0) if factor is None else tensors[name] * factor
    kept = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    save_file(kept, folder / "model.safetensors")
    return folder


def test_what_is_damaged_or_missing_is_listed(llama: Path, written: Path, tmp_path: Path) -> None:
    """One layer with other scales, one with NaN, one without codes, one norm with other values."""
    norm, lost = "model.layers.1.post_attention_layernorm.weight", "model.layers.0.mlp.up_proj"
    nan = "model.layers.1.mlp.up_proj"
    change = {f"{Q}.scales": 1.2, f"{lost}.qweight": None, norm: 1.01, f"{nan}.scales": math.nan}
    found = diff(open_pair(str(llama), str(changed(written, tmp_path / "damaged", change))))
    first, second = found.outliers
    assert (first.name, second.name) == (f"{Q}.weight", f"{nan}.weight")
    assert "the 12 layers" in first.outlier and first.z is not None and first.z < -3.5
    assert "1.2 times" in first.note and "NaN" in second.outlier and math.isnan(second.sqnr_db)
    assert found.missing == (f"{lost}.weight",) and set(found.extra) == {f"{lost}.qzeros", f"{lost}.scales"}
    assert not rows(found)[norm].equal and rows(found)[norm].note
    assert [layer.name for layer in ordered(found.layers, "db")[:2]] == [f"{nan}.weight", f"{Q}.weight"]
    told = " ".join(sentences(found))
    assert all(name in told for name in (Q, nan, lost, norm))


STANDING_OUT: dict[tuple[float, ...], list[int]] = {
    (73.0, 20.0, 73.1): [1],
    (73.0, 72.9, 73.1, 20.0): [3],
    (30.0, 30.1, 28.0): [],
    (30.0, 34.0, 25.0): [],
    (73.0, 20.0): [],
    (30.0, 30.1, 30.0, 30.2, 28.0): [4],
}
"""Decibels of layers: which of them stands out."""


def test_a_layer_stands_out_among_few() -> None:
    """Of three layers one at 20 dB beside 73 dB looked fine; of so few, 2 dB are nothing."""
    usual = {f.name: None for f in dataclasses.fields(LayerDiff)} | {"kind": "bfloat16", "outlier": ""}
    usual |= {"shape": (8, 8), "coded": False, "equal": False}
    medians = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statistics.median", lambda values: medians.append(1) or np.median([*values]))  # type: ignore[func-returns-value]
        for decibels, found in STANDING_OUT.items():
            layers = [LayerDiff(**usual | {"name": f"{i}", "sqnr_db": db}) for i, db in enumerate(decibels)]  # type: ignore[arg-type]
            assert [i for i, one in enumerate(with_outliers(layers)) if one.outlier] == found, decibels
    assert len(medians) <= 2 * len(STANDING_OUT)  # of a kind, not of each of its layers


def test_folded_factors_are_undone(
    llama: Path, layers: list[str], original: torch.nn.Module, tmp_path: Path
) -> None:
    """As AWQ folds them, into the norm before query, key and value, and from the rows of up into the columns
    of down: the error is that of the scaled weight's codes over the factors."""
    up, down = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"
    norm, readers = "model.layers.0.input_layernorm.weight", [Q.replace("q_proj", f"{c}_proj") for c in "qkv"]
    weights = {name: original.get_submodule(name).weight.detach() for name in (*readers, up, down)}
    s, t = torch.randn(256).mul(0.5).exp(), torch.randn(512).mul(0.5).exp()
    folded = {f"{name}.weight": weights[name] * s for name in readers}
    folded |= {f"{up}.weight": weights[up] / t[:, None], f"{down}.weight": weights[down] * t}
    folded[norm] = torch.ones(256) / s
    scheme = SCHEMES["int4_group128"]
    out = tmp_path / "out"
    write_checkpoint("gptq", llama, uniform(layers, scheme.name), out, changed=folded)
    opened = open_pair(str(llama), str(out))
    by_name = rows(diff(opened))
    for name in readers:
        row, q = by_name[f"{name}.weight"], quantize(weights[name] * s, scheme)
        truth = -10 * math.log10(
            (q.dequantize() / s - weights[name]).square().sum() / weights[name].square().sum()
        )
        assert row.sqnr_db == pytest.approx(truth, abs=1e-3) and row.stored_sqnr_db < row.sqnr_db - 3
        assert norm in row.note
        x, analysis, _ = analysis_of(opened, name)
        assert analysis.report.sqnr_db == pytest.approx(truth, abs=1e-3) and torch.equal(x, weights[name])
    for name, where in ((up, "rows"), (down, "columns")):
        row = by_name[f"{name}.weight"]
        assert where in row.note and row.sqnr_db > row.stored_sqnr_db + 3
    plain = [
        row for name, row in by_name.items() if row.coded and name.removesuffix(".weight") not in weights
    ]
    assert len(plain) == len(layers) - 5 and not any(row.note for row in plain)


def _gptq_by_activation_order() -> tuple[dict[str, Tensor], Tensor, str]:
    codes, order = torch.randint(0, 16, (32, 64), dtype=torch.uint8), torch.randperm(64) // 32
    scales, zeros = torch.rand(2, 32).half(), torch.randint(1, 16, (2, 32), dtype=torch.uint8)
    parts = {
        "a.qweight": int32_words(codes, 4).t(),
        "a.qzeros": int32_words(zeros - 1, 4),
        "a.scales": scales,
        "a.g_idx": order.int(),
    }
    values = (codes.float() - zeros[order].t()) * scales[order].t().float()
    return parts, values, "INT4 group 32, asymmetric, groups by activation order"


def _llm_int8() -> tuple[dict[str, Tensor], Tensor, str]:
    codes, largest = torch.randint(-127, 128, (32, 64), dtype=torch.int8), torch.rand(32)
    return (
        {"a.weight": codes, "a.SCB": largest},
        codes * (largest / 127)[:, None],
        "INT8 per row (LLM.int8())",
    )


def _modelopt_nvfp4() -> tuple[dict[str, Tensor], Tensor, str]:
    q = quantize(torch.randn(32, 64), SCHEMES["nvfp4"])
    scales, top = q.scales.stored.to(torch.float8_e4m3fn), q.scales.tensor_scale
    assert top is not None
    parts = {"a.weight": q.packed, "a.weight_scale": scales, "a.weight_scale_2": top}
    return parts, q.dequantize(), "NVFP4 (E4M3 scale a group of 16, FP32 scale a tensor)"


def _fp8_tiles() -> tuple[dict[str, Tensor], Tensor, str]:
    codes, scales = torch.randn(32, 64).to(torch.float8_e4m3fn), torch.rand(2, 4)
    values = codes.float() * scales.repeat_interleave(16, 0).repeat_interleave(16, 1)
    return {"a.weight": codes, "a.weight_scale_inv": scales}, values, "FP8 E4M3 16×16"


def _experts_mxfp4() -> tuple[dict[str, Tensor], Tensor, str]:
    q = quantize(torch.randn(64, 64), SCHEMES["mxfp4"])
    exponents = (q.scales.stored.log2() + 127).to(torch.uint8)
    parts = {"a_blocks": q.packed.view(2, 32, 2, 16), "a_scales": exponents.view(2, 32, 2)}
    return parts, q.dequantize().view(2, 32, 64).transpose(1, 2), "MXFP4"


def _ragged_tiles() -> tuple[dict[str, Tensor], Tensor, str]:
    codes, scales = torch.randn(40, 72).to(torch.float8_e4m3fn), torch.rand(3, 5)
    grid = scales.repeat_interleave(16, 0)[:40].repeat_interleave(16, 1)[:, :72]
    return {"a.weight": codes, "a.weight_scale": scales}, codes.float() * grid, "FP8 E4M3 16×16"


def _ragged_groups() -> tuple[dict[str, Tensor], Tensor, str]:
    codes, scales = torch.randint(-8, 8, (32, 80)), torch.rand(32, 3)
    words = int32_words((codes + 8).to(torch.uint8), 4)
    parts = {"a.weight_packed": words, "a.weight_scale": scales, "a.weight_shape": torch.tensor([32, 80])}
    return parts, codes * scales.repeat_interleave(32, 1)[:, :80], "INT4 group 32"


def _grouped(**weights: object) -> dict[str, object]:
    groups = {"g": {"weights": {"group_size": 64}}, "h": {"weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (_gptq_by_activation_order, {"quant_method": "gptq"}),
        (_llm_int8, {"quant_method": "bitsandbytes"}),
        (_modelopt_nvfp4, {"quant_method": "modelopt"}),
        (_fp8_tiles, {"quant_method": "fp8", "weight_block_size": [16, 16]}),
        (_experts_mxfp4, {"quant_method": "mxfp4"}),
        (_ragged_tiles, _grouped(block_structure=[16, 16])),
        (_ragged_groups, _grouped(group_size=32)),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_layouts_that_others_write(build: object, settings: dict[str, object], tmp_path: Path) -> None:
    """By the arithmetic of their documentation."""
    parts, values, kind = build()  # type: ignore[operator]
    name = "a" if "a_blocks" in parts else "a.weight"
    moved = values + 1e-3
    whole = made(tmp_path / "whole", {name: moved, "b.weight": torch.ones(4)})
    coded = made(tmp_path / "coded", {**parts, "b.weight": torch.ones(4)}, **settings)
    found = diff(open_pair(str(whole), str(coded)))
    row = rows(found)[name]
    assert not (found.missing or found.extra or found.unread) and row.coded and row.kind == kind
    restored = open_checkpoint(str(coded)).restore(name)
    assert torch.allclose(restored.values, values, rtol=1e-6, atol=0)
    assert row.max_error == pytest.approx(1e-3, rel=0.01) and row.max_error_steps is not None
    size = sum(part.nbytes for part in parts.values())
    assert row.bits == 8 * size / values.numel()


def test_files_of_this_program_are_compared_too(tmp_path: Path) -> None:
    """A folder of layers, each by its scheme, beside the model's; and one file beside a file of one tensor
    of another name."""
    weights = {f"h.{i}.weight": torch.randn(8, 64) for i in range(2)}
    whole, own = made(tmp_path / "whole", weights), tmp_path / "own"
    own.mkdir()
    for name, scheme in zip(weights, ("int4_group32", "q4_1"), strict=True):
        save_quantized(quantize(weights[name], SCHEMES[scheme]), own / f"{name}.safetensors", name)
    save_file({"h.2.packed": torch.ones(1)}, own / "z.safetensors", {"quantization_explorer": "{}"})
    found = diff(open_pair(str(whole), str(own)))
    assert found.left_out[0].startswith("z.safetensors: ")
    assert [(layer.name, layer.scheme) for layer in found.layers] == [
        ("h.0.weight", "int4_group32"),
        ("h.1.weight", "q4_1"),
    ]
    for layer in found.layers:
        q = quantize(weights[layer.name], SCHEMES[layer.scheme])
        assert layer.sqnr_db == compare(weights[layer.name], q).sqnr_db
        assert layer.bits == pytest.approx(q.bits_per_element.total)
    one = tmp_path / "one.safetensors"
    save_file({"w": weights["h.0.weight"]}, one)
    (row,) = diff(open_pair(str(one), str(own / "h.0.weight.safetensors"))).layers
    assert row.name == "w" and row.stored_as == "h.0.weight"


def test_joined_and_renamed_layers_find_their_parts(tmp_path: Path) -> None:
    """Query, key and value as one matrix on either side, and names with another prefix."""
    parts = {f"model.layers.0.attn.{c}_proj.weight": torch.randn(8, 4) for c in "kqv"}  # as files sort them
    joined = torch.cat([parts[f"model.layers.0.attn.{c}_proj.weight"] for c in "qkv"])
    apart = made(tmp_path / "apart", parts)
    whole = made(tmp_path / "joined", {"layers.0.attn.qkv_proj.weight": joined})
    as_one = made(tmp_path / "one", {"model.layers.0.attn.qkv_proj.weight": joined})
    for first, second in ((apart, as_one), (as_one, apart)):
        found = diff(open_pair(str(first), str(second)))
        (row,) = found.layers
        assert row.equal and row.shape == (24, 4) and not (found.missing or found.extra)
        assert row.bits == 32, "the bytes of all parts"
    (row,) = diff(open_pair(str(as_one), str(whole))).layers
    assert row.equal and row.stored_as == "layers.0.attn.qkv_proj.weight"
    (row,) = diff(open_pair(str(apart), str(as_one))).layers
    assert row.name == "model.layers.0.attn.q_proj.weight and 2 more"


def test_experts_of_a_gguf_file_are_those_of_the_folder(tmp_path: Path) -> None:
    """One tensor in the file, one for each of ten experts in the folder, in the order of their numbers; norms
    of Gemma are stored plus 1."""
    experts = {
        f"model.layers.0.mlp.experts.{i}.up_proj.weight": torch.randn(4, 32) for i in range(10, -1, -1)
    }
    folder = made(tmp_path / "moe", experts | {"model.norm.weight": torch.ones(32)})
    q = quantize(torch.cat(list(reversed(experts.values()))), SCHEMES["q8_0"])
    path = tmp_path / "moe.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(1)
    raw = write_one("gguf", q, tmp_path / "part", "x")
    (tensor,) = gguf.GGUFReader(raw).tensors
    data = np.array(tensor.data).reshape(11, 4, -1)
    writer.add_tensor("blk.0.ffn_up_exps.weight", data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    finished(writer, path)
    found = diff(open_pair(str(folder), str(path)))
    (row,) = found.coded
    assert row.kind == "Q8_0" and row.shape == (44, 32) and row.bits == 8.5 and not found.missing
    truth = compare(torch.cat(list(reversed(experts.values()))), q)
    assert row.sqnr_db == pytest.approx(truth.sqnr_db, rel=1e-9)
    assert row.max_error_steps is not None and 0.45 < row.max_error_steps < 0.56


def test_a_folder_is_its_only_gguf_file(tmp_path: Path) -> None:
    """None or two are no answer: the two are counted, and one is named."""
    assert gguf_of(str(tmp_path), LOCAL) is None
    (tmp_path / "b.gguf").touch()
    assert gguf_of(str(tmp_path), LOCAL) == tmp_path / "b.gguf"
    (tmp_path / "a.gguf").touch()
    with pytest.raises(SourceError, match=r"2 GGUF files.*a\.gguf"):
        gguf_of(str(tmp_path), LOCAL)
    (tmp_path / "model.safetensors").touch()
    assert gguf_of(str(tmp_path), LOCAL) is None


def test_blocks_of_scale_zero_have_no_steps() -> None:
    """They restore zeros exactly; the largest error is that of the other blocks, of scale 1 too."""
    x, values, steps = torch.tensor([[0.0, 1.4, 3.0], [0.0, 1.0, 2.0], [0.0, 1.0, 4.0]])[:, None]
    assert _in_steps(x, values, steps) == pytest.approx(0.4) and _in_steps(x, values, None) is None


@pytest.mark.parametrize(("gain_db", "found"), [(2.9, False), (3.1, True)])
@pytest.mark.parametrize("where", ["norm", "weight", "whole"])
def test_factors_are_believed_from_three_decibels_on(where: str, gain_db: float, found: bool) -> None:
    """Noise is added until undoing the factors gains so many decibels: below three they may be chance. From a
    norm, from the weight alone, and one for all values."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(64, 64, generator=generator, dtype=torch.float64)
    columns = torch.full((64,), 1.05) if where == "whole" else torch.linspace(0.8, 1.2, 64)
    columns = columns.double()
    other = torch.randn(64, 64, generator=generator, dtype=torch.float64)
    for _ in range(40):  # noise that factors cannot explain: of no rows, columns or whole
        other -= weight * ((weight * other).sum(0) / weight.square().sum(0))
        other -= weight * ((weight * other).sum(1) / weight.square().sum(1))[:, None]

    def gain(size: float) -> float:
        left = other * size
        before = (weight * columns + left * columns - weight).square().sum()
        return 10 * math.log10(before / left.square().sum())

    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gain(middle) > gain_db else (low, middle)
    restored = ((weight + other * low) * columns).float()
    if where == "whole":
        factor = whole_factor(weight.float(), restored)
        assert (factor is not None) is found and (factor is None or factor == pytest.approx(1.05, rel=1e-2))
        return
    norms = {"norm.weight": columns.float()} if where == "norm" else {}
    factors = find_factors(weight.float(), restored, norms)
    assert (factors is not None) is found
    if factors is not None:
        assert torch.allclose(factors.undo(weight.float() * columns.float()), weight.float(), rtol=0.1)


def test_what_cannot_be_compared_is_said(llama: Path, written: Path, tmp_path: Path) -> None:
    """Another model, another shape, a file that is none; each in one line."""
    other = made(tmp_path / "other", {"x.weight": torch.ones(4, 4), "y.weight": torch.ones(4)})
    with pytest.raises(SourceError, match=r"other .* tiny-llama .*x\.weight"):
        open_pair(str(llama), str(other))
    taller = made(tmp_path / "taller", {"x.weight": torch.ones(8, 4), "y.weight": torch.ones(4)})
    found = diff(open_pair(str(other), str(taller)))
    assert "[4, 4] in other" in found.unread[0].why and "[8, 4] in taller" in found.unread[0].why
    with pytest.raises(SourceError, match="nothing"):
        open_pair(str(llama), str(tmp_path / "nothing"))
    with pytest.raises(SourceError, match="'zz'"):
        diff(open_pair(str(llama), str(written)), "zz")
    opened = open_pair(str(llama), str(written))
    with pytest.raises(SourceError, match="up to 100 "):
        analysis_of(opened, Q, most=100)


@pytest.mark.parametrize(
    ("norms", "words"), [([2000], "2,000 elements"), ([600, 600], "b.norm.weight and the")]
)
def test_vectors_are_read_within_the_limit(norms: list[int], words: str, tmp_path: Path) -> None:
    """They are read for a matrix as well, and those that differ are kept: two headers took 4 GB, and a file
    of 45 vectors as much."""
    vectors = {f"{name}.norm.weight": torch.ones(n) for name, n in zip("abc", norms, strict=False)}
    wide = {"a.weight": torch.ones(8, 64), **vectors}
    opened = open_pair(str(made(tmp_path / "one", wide)), str(made(tmp_path / "two", wide)))
    with pytest.raises(SourceError, match=words):
        analysis_of(opened, "a.weight", most=1000)
    rows = compared(opened, opened.pairs.pairs, most=1000)
    unread = [row for row in rows if not isinstance(row, LayerDiff)]
    assert len(unread) == 1 and words in unread[0].why
    assert analysis_of(opened, "a.weight")[2].equal, "the user's own machine sets no limit"


def _nf4(shape: list[int], **state: int) -> dict[str, Tensor]:
    """8 x 64 codes of bitsandbytes whose state says ``shape`` and more."""
    said = {"quant_type": "nf4", "shape": shape, "dtype": "float32", "blocksize": 64, **state}
    parts = {
        "": torch.zeros(256, 1, dtype=torch.uint8),
        ".absmax": torch.ones(8),
        ".quant_map": torch.ones(16),
    }
    if "nested_blocksize" in state:
        parts |= {".nested_absmax": torch.ones(1), ".nested_quant_map": torch.ones(256)}
        parts[".absmax"] = torch.zeros(8, dtype=torch.uint8)
    parts[".quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)
    return {f"a.weight{end}": tensor for end, tensor in parts.items()}


def _gptq(columns: int, rows: int, groups: Tensor) -> dict[str, Tensor]:
    return {
        "a.qweight": torch.zeros(columns // 8, rows, dtype=torch.int32),
        "a.qzeros": torch.full((1, rows // 8), 0x77777777, dtype=torch.int32),
        "a.scales": torch.ones(1, rows).half(),
        "a.g_idx": groups.int(),
    }


HUGE = 1 << 50
LYING = [
    (_nf4([8, 64], blocksize=HUGE), "values have 8 scales"),
    (_nf4([8, 64], nested_blocksize=HUGE, nested_offset=0), "(8, 64)"),
    (_nf4([8, 64], blocksize=0), "blocks of 0"),
    (_nf4([8, 64], nested_blocksize=-1, nested_offset=0), "blocks of -1"),
    (_nf4([HUGE, HUGE]), "it has 512 codes"),
    (_gptq(64, 8, torch.zeros(HUGE >> 30)), "1,048,649 codes and scales are too many for 512 values"),
    (_gptq(64, 8, torch.ones(64)), "a group other than 0 to 0"),
    (_gptq(64, 8, -torch.ones(64)), "a group other than 0 to 0"),
    (_gptq(64, 16, torch.zeros(64)), "1,024 elements; up to 1,000"),
    ({"a.weight": torch.ones(8, 200)}, "it has 1,600 elements"),
    ({"a.weight": torch.ones(8, 65)}, "and [8, 65] in lying"),
    (
        {
            "a.weight_packed": torch.zeros(8, 8, dtype=torch.int32),
            "a.weight_scale": torch.ones(8, 1),
            "a.weight_shape": torch.tensor([1, 64]),
        },
        "it has codes of 8 rows",
    ),
]


@pytest.mark.parametrize(("parts", "words"), LYING, ids=[words for _, words in LYING])
def test_no_number_of_a_file_sets_the_memory(parts: dict[str, Tensor], words: str, tmp_path: Path) -> None:
    """A file of a few kilobytes would end a server."""
    whole = made(tmp_path / "whole", {"a.weight": torch.zeros(8, 64)})
    lying = made(tmp_path / "lying", parts)
    opened = open_pair(str(whole), str(lying))
    if "in lying" in words:  # by the headers alone
        opened.quantized.restore = None  # type: ignore[assignment,method-assign]
    (row,) = compared(opened, opened.pairs.pairs, most=1000)
    assert words in (str(row.shape) if isinstance(row, LayerDiff) else row.why)


def test_a_weight_without_an_error_leaves_the_others(tmp_path: Path) -> None:
    """Infinities of both signs have no sum, and float64 may be beyond float32: the comparison of a whole
    model ended at such a weight."""
    torch.manual_seed(0)
    good, infinite = torch.randn(64, 64), torch.ones(64, 64)
    infinite[0, 0], infinite[40, 0] = math.inf, -math.inf
    names = ("a.weight", "b.weight", "c.weight", "d.weight")
    whole = made(tmp_path / "whole", {name: good.abs().double() + 1 for name in names})
    other = {"a.weight": infinite.double(), "b.weight": good.double() * 1e300, "c.weight": good.double()}
    found = diff(open_pair(str(whole), str(made(tmp_path / "other", other | {"d.weight": good.double()}))))
    assert [layer.name for layer in found.layers] == ["a.weight", "c.weight", "d.weight"]
    first, (second,) = found.layers[0], found.unread
    assert math.isnan(first.sqnr_db) and math.isnan(first.max_error) and first.max_error_at == (0, 0)
    with pytest.raises(SourceError, match=r"a\.weight"):
        analysis_of(open_pair(str(whole), str(tmp_path / "other")), "a.weight")
    assert second.name == "b.weight" and "of 4096 float64 values" in second.why


@pytest.mark.parametrize("build", [_ragged_tiles, _ragged_groups])
def test_cut_blocks_are_not_guessed(build: object, tmp_path: Path) -> None:
    """The size of blocks that do not fill a side is what the settings state: of others, any guess gives a
    false error."""
    parts, _, _ = build()  # type: ignore[operator]
    folder = made(tmp_path / "coded", parts, quant_method="compressed-tensors")
    with pytest.raises(SourceError, match="group_size, block_structure or weight_block_size"):
        open_checkpoint(str(folder)).restore("a.weight")


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_zero_points_less_one_are_added_to_as_readers_do(bits: int, tmp_path: Path) -> None:
    """Version 1 of GPTQ's layout holds zero points less one. What gptqmodel subtracts from whole words wraps
    below a zero point of 0 and borrows from its neighbour; read one by one, both are false."""
    zeros = torch.randint(1, 1 << bits, (2, 32), dtype=torch.uint8)
    zeros[0, 3], zeros[1, 31] = 0, 0
    if bits == 3:  # codes cross words: there is no pattern of one word, and each wraps by itself
        stored = int32_words((zeros - 1) & 7, 3)
    else:
        ones = sum(1 << place for place in range(0, 32, bits))
        stored = ((int32_words(zeros, bits).long() - ones) & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)
    codes, scales = torch.randint(0, 1 << bits, (32, 64), dtype=torch.uint8), torch.rand(2, 32).half()
    words = int32_words(codes, bits).t()
    parts = {"a.qweight": words, "a.qzeros": stored, "a.scales": scales}
    restored = open_checkpoint(str(made(tmp_path / "v1", parts, quant_method="gptq"))).restore("a.weight")
    where = torch.arange(64) // 32
    values = (codes.float() - zeros[where].t().float()) * scales[where].t().float()
    assert torch.equal(restored.values, values)


def test_the_command(llama: Path, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table sorted by decibels, JSON and CSV of every weight, code 2 and one line for bad input."""
    sheet = tmp_path / "layers.csv"
    assert main(["diff", str(llama), str(written), "--sort", "db", "--csv", str(sheet)]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("model.layers")]
    with sheet.open(newline="") as file:
        records = list(csv.DictReader(file))
    assert any("(14 INT4 group 128, asymmetric), 4.156 bits" in line for line in lines)
    assert len(listed) == 14 and listed == [r["name"] for r in records if r["coded"] == "True"]
    assert main(["diff", str(llama), str(written), "--layer", Q, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["layers"]
    assert (row["name"], row["scheme"]) == (f"{Q}.weight", "int4_group128_asym")
    assert row["shape"] == [256, 256]
    for extra, words in (
        (["--sort", "size"], "'db', 'bits'"),
        (["--csv", str(tmp_path)], str(tmp_path)),
        (["--layer", "zz"], "'zz'"),
    ):
        assert main(["diff", str(llama), str(written), *extra]) == 2
        assert words in capsys.readouterr().err
