"""GGUF files made of GGUF files, read by the gguf package and by llama.cpp.

If these fail, a copy loses metadata or weights of its base, or its layers hold other values than were
measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from explorer.checkpoints import gguf_base, write_checkpoint
from explorer.checkpoints.gguf_base import write_from_gguf
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.sources import open_source
from explorer.survey import ModelRecipe
from explorer.survey.run import SurveyPlan, survey_model, weights_sha256
from tests.checkpoints.conftest import TEXT
from tests.checkpoints.reading import uniform
from tests.checkpoints.test_gguf import ask, mixed

PART = {
    "gemma3": "language_model.model",
    "lfm2": "model",
    "olmo2": "model",
    "qwen3": "model",
    "smollm3": "model",
}
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


def finished(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write what the writer was given."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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


@pytest.mark.parametrize("arch", PART)
def test_all_but_the_recipe_is_copied(arch: str, tmp_path: Path) -> None:
    """A key, type, order or byte that is lost makes another model of an architecture that we do not know."""
    path = write_base(tmp_path / "base.gguf", arch)
    recipes = {
        f"{PART[arch]}.layers.0.self_attn.q_proj": recipe("q4_k"),
        DOWN: recipe(),
    }
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


def test_the_files_are_those_of_an_export_of_the_folder(
    llama: Path, layers: list[str], tmp_path: Path
) -> None:
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


def test_llama_cpp_runs_an_architecture_that_no_folder_is_written_of(
    llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """A copy that llama.cpp cannot open, or that says something else than its base, is of no use."""
    xllamacpp = pytest.importorskip("xllamacpp")
    plain = write_checkpoint("gguf", llama, uniform(layers, "fp32"), tmp_path / "plain")
    base = as_qwen3(opened(plain.folder), tmp_path / "qwen3.gguf")
    recipes = uniform(layers[1:], "q8_0") | uniform([Q], "q6_k")
    written = write_from_gguf(base, recipes, tmp_path / "out")
    before, after = (ask(xllamacpp, path, TEXT) for path in (base, written.folder / "model.gguf"))
    assert after["usage"] == before["usage"]
    first, second = (a["choices"][0]["logprobs"]["content"][0]["top_logprobs"] for a in (before, after))
    wanted = {entry["id"]: entry["logprob"] for entry in first}
    assert len(wanted) == 5 and second[0]["id"] == first[0]["id"]
    for entry in second[:3]:
        assert entry["logprob"] == pytest.approx(wanted[entry["id"]], abs=0.15)


def as_qwen3(reader: gguf.GGUFReader, path: Path) -> Path:
    """A Llama's file as one of Qwen3, which norms each head's query and key as well."""
    writer = gguf.GGUFWriter(path, "qwen3")
    for key, field in list(reader.fields.items())[3:]:
        item = field.types[-1] if field.types[0] is Type.ARRAY else None
        if key != "general.architecture":
            writer.add_key_value(key.replace("llama.", "qwen3."), field.contents(), field.types[0], item)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name in ("attn_q_norm", "attn_k_norm"):
        for block in range(2):
            writer.add_tensor(f"blk.{block}.{name}.weight", np.ones(64, np.float32))
    return finished(writer, path)


def test_the_card_says_what_was_made_of_which_file(base: Path, tmp_path: Path) -> None:
    """Without the base's name, the schemes and the size nobody can tell what a file is."""
    recipes = {Q: Recipe(SCHEMES["q4_0"]), DOWN: Recipe(SCHEMES["bf16"])}
    written = write_from_gguf(base, recipes, tmp_path / "out", card="Measured: 0.5.", verified=False)
    card = (written.folder / "README.md").read_text()
    size = (written.folder / "model.gguf").stat().st_size
    for words in ("`base.gguf` (`qwen3`)", "- quantized\n- gguf", "rtn | 1 | 16,384 | 4.500 |"):
        assert words in card
    assert f"{size:,} bytes" in card and "not read back" in card and "Measured: 0.5." in card
    assert written.verified is None and written.layers == 1
    written = write_from_gguf(base, recipes, tmp_path / "read")
    assert str(written.verified) in (written.folder / "README.md").read_text()


def test_casts_alone_need_no_version(base: Path, tmp_path: Path) -> None:
    """A file without codes says nothing of a version of codes, and holds the casts' values."""
    written = write_from_gguf(base, {Q: Recipe(SCHEMES["fp16"])}, tmp_path / "out")
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
    "nothing": ({}, "no layer is named"),
    "method": ({Q: recipe("q4_0", "gptq")}, "blk.0.attn_q: GPTQ needs the layer's inputs, which a .gguf"),
    "unknown": ({"blk.7.attn_q": recipe()}, r"blk.7.attn_q: base.gguf has no tensor for it"),
    "missing": (
        {"model.layers.0.self_attn.k_proj": recipe()},
        r"k_proj: base.gguf has no blk.0.attn_k.weight",
    ),
    "coded": (
        {"blk.0.ffn_up": recipe()},
        "blk.0.ffn_up is stored as Q8_0 in base.gguf; .* from F32, F16, BF16",
    ),
    "rows": (
        {DOWN: recipe("q4_k")},
        "GGUF cannot carry blk.1.ffn_down by .*96 values .* super-blocks of 256",
    ),
    "scheme": ({Q: recipe("nvfp4")}, "GGUF cannot carry blk.0.attn_q by nvfp4.*no type of ggml"),
    "vector": ({"blk.0.attn_norm": recipe()}, r"has the shape \[256\] in base.gguf"),
    "router": ({"blk.0.ffn_gate_inp": recipe()}, "cannot hold codes: .* --keep blk.0.ffn_gate_inp"),
    "twice": (
        {Q: recipe(), "model.layers.0.self_attn.q_proj": recipe()},
        "blk.0.attn_q and model.layers.0.self_attn.q_proj are both blk.0.attn_q.weight",
    ),
    "experts": ({MOE.format(0): recipe()}, "one of 2 experts .* names 1; name all of them, or none"),
    "mixed": (
        {MOE.format(0): recipe(), MOE.format(1): recipe("q4_0")},
        "the other experts in blk.0.ffn_gate_exps.weight have several schemes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_refused_by_name(case: str, tmp_path: Path) -> None:
    """A refusal after hours of writing, or one that names no layer, helps nobody."""
    more = {
        "blk.0.ffn_up.weight": (torch.ones(32, 256), "Q8_0"),
        "blk.0.ffn_gate_inp.weight": (torch.ones(2, 256), "F32"),
        "blk.0.ffn_gate_exps.weight": (torch.ones(2, 32, 256), "F32"),
    }
    path = write_base(tmp_path / "base.gguf", "qwen3moe", more)
    recipes, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        write_from_gguf(path, recipes, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["base.gguf"]


def test_another_model_is_refused(base: Path, tmp_path: Path) -> None:
    """A layer of another shape belongs to another model than was surveyed."""
    with pytest.raises(ValueError, match=r"blk.0.attn_q is \[64, 128\] .* is \[64, 256\] in base.gguf"):
        write_from_gguf(base, {Q: recipe()}, tmp_path / "out", shapes={Q: (64, 128)})


def no_gguf(path: Path) -> None:
    path.write_bytes(b"something else, and long enough for a header")


def big_endian(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "qwen3", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor(f"{Q}.weight", np.ones((64, 256), np.float32))
    finished(writer, path)


BASES = {
    "no GGUF": (no_gguf, "it does not begin with GGUF"),
    "none": (Path.unlink, "no file .*base.gguf here"),
    "part": (
        lambda path: write_base(path, "qwen3", **{"split.count": (3, Type.UINT16, None)}),
        "is one of 3 files of a model; merge them",
    ),
    "big-endian": (big_endian, "is in big-endian order"),
}


@pytest.mark.parametrize("case", BASES)
def test_what_is_no_whole_base_is_refused(case: str, base: Path, tmp_path: Path) -> None:
    """A part of a model, or no model at all, must not look like a quantized one."""
    change, words = BASES[case]
    change(base)
    with pytest.raises(ValueError, match=words):
        write_from_gguf(base, {Q: recipe()}, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_an_unknown_architecture_goes_by_its_own_names(tmp_path: Path) -> None:
    """A model that is newer than the package gguf can be written, by the names of its file."""
    path = write_base(tmp_path / "base.gguf", "newer")
    assert write_from_gguf(path, {Q: recipe()}, tmp_path / "out").layers == 1
    with pytest.raises(ValueError, match="does not know newer, so layers go by the file's own names"):
        write_from_gguf(path, {"model.layers.0.self_attn.q_proj": recipe()}, tmp_path / "other")


def test_a_stop_leaves_nothing(base: Path, tmp_path: Path) -> None:
    """Half a file would be taken for a whole one."""
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(total)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_from_gguf(base, {Q: recipe()}, tmp_path / "out", progress=stop)
    assert seen == [7, 7] and [file.name for file in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("what", ["codes", "copies", "metadata"])
def test_reading_back_finds_what_is_wrong(
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
    with pytest.raises(ValueError, match=f"{words}.* is read back as something else"):
        write_from_gguf(base, {Q: recipe()}, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def run(capsys: pytest.CaptureFixture[str], *command: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = main([str(word) for word in command])
    return code, *capsys.readouterr()


def test_the_command_writes_a_recipe_of_the_same_file(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A survey of a .gguf file leads to a file that llama.cpp opens, and to no other model's."""
    survey = tmp_path / "s.jsonl"
    survey_model(SurveyPlan(str(base), schemes=("q8_0", "q4_0"), signals=("weight",)), survey)
    file = tmp_path / "r.json"
    assert run(capsys, "recipe", survey, "--bits", "6.5", "--for", "gguf", "--out", file)[0] == 0
    apply = ("apply", file, "--to", "gguf", "--base")
    code, out, _ = run(capsys, *apply, base, "--out", tmp_path / "out")
    assert code == 0 and "written: " in out and "Read back by gguf" in out
    code, out, _ = run(capsys, *apply, base, "--out", tmp_path / "json", "--json")
    assert code == 0 and json.loads(out)["layers"] == 5  # the embeddings too
    other = write_base(tmp_path / "other.gguf", "qwen3")
    code, _, err = run(capsys, *apply, other, "--out", tmp_path / "no")
    assert code == 2 and "are not those that the recipe was made for" in err
    assert ModelRecipe.load(file).weights_sha256 == weights_sha256(open_source(str(base)))


def test_the_command_writes_a_recipe_of_the_folder(
    llama: Path, layers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe made by a survey of the folder is written into the file that was converted from it, and into
    no other model's."""
    plain = write_checkpoint("gguf", llama, uniform(layers, "bf16"), tmp_path / "plain").folder / "model.gguf"
    file = tmp_path / "r.json"
    ModelRecipe(str(llama), None, "", uniform(layers, "q4_k")).save(file)
    apply = ("apply", file, "--to", "gguf", "--base")
    assert run(capsys, *apply, plain, "--out", tmp_path / "out", "--no-verify")[0] == 0
    assert {t.tensor_type.name for t in opened(tmp_path / "out").tensors} == {"F32", "Q4_K"}
    other = write_base(tmp_path / "other.gguf", "llama")
    ModelRecipe(str(llama), None, "", {layers[0]: recipe()}).save(file)
    code, _, err = run(capsys, *apply, other, "--out", tmp_path / "no")
    assert code == 2 and "is [64, 256] in other.gguf, which is another model's" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--to", "awq"), "--base is the .gguf file that --to gguf copies"),
        (("--to", "gguf", "--model", "x"), "goes with no other format, nor --model"),
    ],
)
def test_a_base_elsewhere_is_one_line(
    options: tuple[str, ...], words: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base that is silently ignored would give another file than was asked for."""
    file = tmp_path / "r.json"
    ModelRecipe(str(base), None, "", {Q: recipe()}).save(file)
    code, _, err = run(capsys, "apply", file, *options, "--base", base, "--out", tmp_path / "out")
    assert code == 2 and err.strip().startswith("error: ") and words in err
