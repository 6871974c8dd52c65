"""GGUF files made of GGUF files, read by the gguf package and by llama.cpp.

If these fail, a copy loses metadata or weights of its base, or its layers hold other values than were
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as Type
from gguf.quants import dequantize
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.checkpoints import gguf_base
from explorer.checkpoints.gguf_base import write_from_gguf
from explorer.methods.recipe import Recipe
from tests.checkpoints.conftest import TEXT
from tests.checkpoints.reading import finished, uniform
from tests.checkpoints.test_gguf import ask, mixed
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled

PART = {"gemma3": "language_model.model"} | dict.fromkeys(("lfm2", "olmo2", "qwen3", "smollm3"), "model")
"""Architectures that are written from no folder -> what their layers' names in transformers begin with."""
SETTINGS: dict[str, tuple[Any, Type, Type | None]] = {
    "general.alignment": (64, Type.UINT32, None),
    "general.file_type": (32, Type.UINT32, None),
    "general.quantized": (False, Type.BOOL, None),
    "general.tags": (["a", "", "\u00fc"], Type.ARRAY, Type.STRING),
    "tokenizer.ggml.scores": ([0.1, -3e38, float("inf")], Type.ARRAY, Type.FLOAT32),
    "tokenizer.ggml.flags": ([True, False], Type.ARRAY, Type.BOOL),
    "tokenizer.ggml.token_type": ([1, -1], Type.ARRAY, Type.INT32),
    "any.big": (2**63, Type.UINT64, None),
    "any.small": (-3, Type.INT8, None),
    "any.number": (0.1, Type.FLOAT64, None),
    "any.text": ("", Type.STRING, None),
}
"""Metadata: value, type, and the type of items."""
Q, DOWN = "blk.0.attn_q", "blk.1.ffn_down"


def stored(values: Tensor, kind: str) -> np.ndarray:
    """The bytes of a tensor in one of ggml's types."""
    return gguf.quants.quantize(values.numpy(), Kind[kind])


def write_base(
    path: Path, arch: str, more: Mapping[str, tuple[Tensor, str]] | None = None, **settings: Any
) -> Path:
    """A GGUF file of two blocks with random weights and metadata of all kinds; ``more``: tensors."""
    generator = torch.Generator().manual_seed(0)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(2)
    for key, (value, kind, item) in {**SETTINGS, **settings}.items():
        writer.add_key_value(key, value, kind, item)
    writer.data_alignment = 64
    tensors = {"token_embd.weight": (torch.randn(5, 256, generator=generator), "F16")}
    for block in range(2):
        start = f"blk.{block}"
        tensors[f"{start}.attn_norm.weight"] = (torch.randn(256, generator=generator), "F32")
        for name, shape in (("attn_q", (64, 256)), ("ffn_down", (256, 96))):
            tensors[f"{start}.{name}.weight"] = (torch.randn(shape, generator=generator), "BF16")
    for name, (values, kind) in {**tensors, **(more or {})}.items():
        writer.add_tensor(name, stored(values, kind), raw_dtype=Kind[kind])
    return finished(writer, path)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base of Qwen3, in a folder of its own."""
    (tmp_path / "in").mkdir()
    return write_base(tmp_path / "in" / "base.gguf", "qwen3")


def opened(path: Path) -> gguf.GGUFReader:
    return gguf.GGUFReader(path / "model.gguf" if path.is_dir() else path)


def metadata(reader: gguf.GGUFReader) -> dict[str, tuple[Any, list[Type]]]:
    """Values and types of all keys but the file's own."""
    found = {key: (field.contents(), field.types) for key, field in reader.fields.items()}
    own = ("GGUF.kv_count", "general.file_type", "general.quantization_version")
    return {key: value for key, value in found.items() if key not in own}


def values(reader: gguf.GGUFReader) -> dict[str, Tensor]:
    """float32 values of all tensors."""
    return {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}


@pytest.mark.parametrize("arch", sampled(PART, ["gemma3", "qwen3"]))
def test_all_but_the_recipe_is_copied(arch: str, tmp_path: Path) -> None:
    """A key, type, order or byte that is lost makes another model."""
    path = write_base(tmp_path / "base.gguf", arch)
    recipes = {f"{PART[arch]}.layers.0.self_attn.q_proj": recipe("q4_k"), DOWN: recipe()}
    written = write_from_gguf(path, recipes, tmp_path / "out")
    old, new = opened(path), opened(written.folder)
    assert metadata(new) == metadata(old) and list(new.fields)[:-1] == list(old.fields)
    assert new.fields["general.file_type"].contents() == 1024
    assert new.fields["general.quantization_version"].contents() == 2
    assert new.alignment == 64 and all(t.data_offset % 64 == 0 for t in new.tensors)
    kinds = {f"{Q}.weight": ("Q4_K", "q4_k"), f"{DOWN}.weight": ("Q8_0", "q8_0")}
    before, after = values(old), values(new)
    for there, tensor in zip(old.tensors, new.tensors, strict=True):
        assert tensor.name == there.name and tensor.shape.tolist() == there.shape.tolist()
        if tensor.name not in kinds:
            assert tensor.tensor_type == there.tensor_type and tensor.data.tobytes() == there.data.tobytes()
            continue
        kind, scheme = kinds[tensor.name]
        assert tensor.tensor_type.name == kind
        expected = quantize(before[tensor.name], SCHEMES[scheme]).dequantize()
        assert torch.equal(after[tensor.name], expected)
    assert written.layers == 2 and written.verified is not None
    assert written.verified.tensors == len(new.tensors) - 2 and written.verified.layers == 2


def test_files_are_those_of_an_export_of_the_folder(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """By names of transformers or of GGUF, rows of query and key stay in the base's order, and llama.cpp
    answers as by an export of the folder."""
    plain = write_checkpoint("gguf", llama, uniform(layers, "fp32"), tmp_path / "plain")
    recipes = mixed(layers)
    direct = write_checkpoint("gguf", llama, recipes, tmp_path / "direct")
    copied = write_from_gguf(plain.folder / "model.gguf", recipes, tmp_path / "copied")
    wanted, found = opened(direct.folder), opened(copied.folder)
    for there, tensor in zip(wanted.tensors, found.tensors, strict=True):
        assert tensor.name == there.name and tensor.tensor_type == there.tensor_type
        assert tensor.data.tobytes() == there.data.tobytes(), tensor.name
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    own = {str(names.get_name(name)): recipe for name, recipe in recipes.items()}
    again = write_from_gguf(plain.folder / "model.gguf", own, tmp_path / "again")
    assert (again.folder / "model.gguf").read_bytes() == (copied.folder / "model.gguf").read_bytes()
    xllamacpp = pytest.importorskip("xllamacpp")
    one, other = (ask(xllamacpp, made.folder / "model.gguf", TEXT)["choices"] for made in (direct, copied))
    assert one[0]["logprobs"]["content"][0] == other[0]["logprobs"]["content"][0]


def test_the_card_says_what_was_made_of_which_file(base: Path, tmp_path: Path) -> None:
    """Without the base's name, the schemes and the size nobody can tell what a file is."""
    recipes = {Q: Recipe(SCHEMES["q4_0"]), DOWN: Recipe(SCHEMES["bf16"])}
    written = write_from_gguf(base, recipes, tmp_path / "out", card="Measured: 0.5.", verified=False)
    size = f"{(written.folder / 'model.gguf').stat().st_size:,} bytes"
    card = (written.folder / "README.md").read_text()
    assert all(fact in card for fact in ("`base.gguf` (`qwen3`)", "rtn | 1 | 16,384 | 4.500 |", size, "0.5."))
    assert written.verified is None and written.layers == 1
    written = write_from_gguf(base, recipes, tmp_path / "read")
    assert str(written.verified) in (written.folder / "README.md").read_text()


def test_casts_alone_need_no_version(base: Path, tmp_path: Path) -> None:
    """A file without codes says nothing of a version of codes, and holds the casts' values."""
    seen: list[tuple[int, int]] = []
    recipes = {Q: Recipe(SCHEMES["fp16"])}
    written = write_from_gguf(base, recipes, tmp_path / "out", progress=lambda *at: seen.append(at))
    assert seen == [(i, 7) for i in range(1, 8)]
    old, new = opened(base), opened(written.folder)
    assert "general.quantization_version" not in new.fields and written.layers == 0
    assert torch.equal(values(new)[f"{Q}.weight"], values(old)[f"{Q}.weight"].half().float())


MOE = "model.layers.0.mlp.experts.{}.gate_proj"


@pytest.mark.parametrize("names", [["blk.0.ffn_gate_exps"], [MOE.format(i) for i in range(3)]])
def test_experts_are_rounded_together(names: list[str], tmp_path: Path) -> None:
    """The experts of a block are one tensor, each row rounded by itself."""
    experts = torch.randn(3, 32, 256, generator=torch.Generator().manual_seed(1))
    more = {"blk.0.ffn_gate_exps.weight": (experts, "BF16")}
    path = write_base(tmp_path / "base.gguf", "qwen3moe", more)
    recipes = dict.fromkeys(names, Recipe(SCHEMES["q4_k"]))
    written = write_from_gguf(path, recipes, tmp_path / "out")
    before = values(opened(path))["blk.0.ffn_gate_exps.weight"]
    after = values(opened(written.folder))["blk.0.ffn_gate_exps.weight"]
    expected = quantize(before.flatten(0, 1), SCHEMES["q4_k"]).dequantize().view_as(before)
    assert torch.equal(after, expected)
    assert f"rtn | {len(names)} | 24,576 | 4.500 |" in (written.folder / "README.md").read_text()


def recipe(scheme: str = "q8_0", method: str = "") -> Recipe:
    return Recipe(Scheme.parse(scheme), method)


REFUSED: dict[str, tuple[dict[str, Recipe], str]] = {
    "nothing": ({}, "no layer"),
    "method": ({Q: recipe("q4_0", "gptq")}, "blk.0.attn_q: GPTQ"),
    "unknown": ({"blk.7.attn_q": recipe()}, r"blk.7.attn_q: base.gguf"),
    "missing": ({"model.layers.0.self_attn.k_proj": recipe()}, "k_proj: .* blk.0.attn_k.weight"),
    "coded": ({"blk.0.ffn_up": recipe()}, "blk.0.ffn_up .* Q8_0 in base.gguf; .* F32, F16, BF16"),
    "rows": ({DOWN: recipe("q4_k")}, "blk.1.ffn_down .*96 values .* 256"),
    "scheme": ({Q: recipe("nvfp4")}, "blk.0.attn_q by nvfp4"),
    "vector": ({"blk.0.attn_norm": recipe()}, r"\[256\] in base.gguf"),
    "router": ({"blk.0.ffn_gate_inp": recipe()}, "--keep blk.0.ffn_gate_inp"),
    "twice": (
        {Q: recipe(), "model.layers.0.self_attn.q_proj": recipe()},
        "blk.0.attn_q and model.layers.0.self_attn.q_proj .* blk.0.attn_q.weight",
    ),
    "experts": ({MOE.format(0): recipe()}, "2 experts .* names 1"),
    "mixed": ({MOE.format(0): recipe(), MOE.format(1): recipe("q4_0")}, "blk.0.ffn_gate_exps.weight"),
    "another model": ({Q: recipe()}, r"blk.0.attn_q is \[64, 128\] .* \[64, 256\] in base.gguf"),
}


def test_what_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    """A refusal after hours of writing, or one that names no layer, helps nobody."""
    more = {
        "blk.0.ffn_up.weight": (torch.ones(32, 256), "Q8_0"),
        "blk.0.ffn_gate_inp.weight": (torch.ones(2, 256), "F32"),
        "blk.0.ffn_gate_exps.weight": (torch.ones(2, 32, 256), "F32"),
    }
    path = write_base(tmp_path / "base.gguf", "qwen3moe", more)
    for case, (recipes, words) in REFUSED.items():
        shapes = {Q: (64, 128)} if case == "another model" else None
        with pytest.raises(ValueError, match=words):
            write_from_gguf(path, recipes, tmp_path / "out", shapes=shapes)
    assert [file.name for file in tmp_path.iterdir()] == ["base.gguf"]


def no_gguf(path: Path) -> None:
    path.write_bytes(b"something else, and long enough for a header")


def big_endian(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "qwen3", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor(f"{Q}.weight", np.ones((64, 256), np.float32))
    finished(writer, path)


BASES: list[tuple[Callable[[Path], object], str]] = [
    (no_gguf, "GGUF"),
    (lambda path: write_base(path, "qwen3", **{"split.count": (3, Type.UINT16, None)}), " 3 files"),
    (big_endian, "big-endian"),
    (Path.unlink, "base.gguf"),
]


def test_what_is_no_whole_base_is_refused(base: Path, tmp_path: Path) -> None:
    """A part of a model, or no model at all, must not look like a quantized one."""
    for change, words in BASES:
        change(base)
        with pytest.raises(ValueError, match=words):
            write_from_gguf(base, {Q: recipe()}, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_an_unknown_architecture_goes_by_its_own_names(tmp_path: Path) -> None:
    """A model that is newer than the package gguf can be written, by the names of its file."""
    path = write_base(tmp_path / "base.gguf", "newer")
    assert write_from_gguf(path, {Q: recipe()}, tmp_path / "out").layers == 1
    with pytest.raises(ValueError, match="newer"):
        write_from_gguf(path, {"model.layers.0.self_attn.q_proj": recipe()}, tmp_path / "other")


@pytest.mark.parametrize("what", ["codes", "copies", "metadata"])
def test_reading_back_finds_it(
    what: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was damaged while it was written is not put in place."""
    honest, words = gguf_base._write, {"codes": f"{Q}.weight", "copies": DOWN, "metadata": "any.big"}[what]

    def damaging(*given: Any) -> dict[str, str]:
        digests, path = honest(*given), given[3]
        data = bytearray(path.read_bytes())
        starts = {tensor.name: tensor.data_offset for tensor in opened(path).tensors}
        record = data.find(b"any.big") + len(b"any.big") + 4
        data[{"codes": starts[f"{Q}.weight"] + 3, "copies": starts[f"{DOWN}.weight"]}.get(what, record)] ^= 1
        path.write_bytes(data)
        return digests

    monkeypatch.setattr(gguf_base, "_write", damaging)
    with pytest.raises(ValueError, match=words):
        write_from_gguf(base, {Q: recipe()}, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["in"]
