"""Models and layers that a reader would run or restore as others: refused before anything is written.

If these fail, a checkpoint is written whose model gives other answers than the one that was quantized.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from explorer import SCHEMES, Scheme, quantize
from explorer.checkpoints import EXPORTS, Plan, gguf_models, onnx_layers, write_checkpoint
from explorer.checkpoints.held import OWN, held_by
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.to_compressed_tensors import expert_refusal, refuses
from explorer.methods.recipe import Recipe
from tests.checkpoints.reading import uniform

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 100,
    "max_position_embeddings": 64,
}  # fmt: skip


CANNOT_CARRY = [
    ("compressed-tensors", "fp8_e5m2_row", "no format for FP8 E5M2"),
    ("compressed-tensors", "nf4_block64", "no format for NF4"),
    ("compressed-tensors", "q4_1", "floating-point offsets"),
    ("compressed-tensors", "q4_k", "floating-point offsets"),
    ("compressed-tensors", "int8_column", "rows or groups along a row"),
    ("compressed-tensors", "int4_group96", "no whole number of groups of 96"),
    ("compressed-tensors", "int4~16x16~symmetric~float16~minmax", "rows or groups along a row"),
    ("gguf", "int4_group32_asym", "as it is; q4_1 and q5_1 have a minimum"),
    ("gguf", "int4_group128", "no type of ggml holds INT4 group 128"),
    ("gguf", "int8~1x32~symmetric~float32~minmax", "no type of ggml holds"),
    ("gguf", "nvfp4", "no type of ggml holds NVFP4"),
    ("onnx", "int3_group64", "INT2, INT4, INT8 codes"),
    ("onnx", "mxfp4", "INT2, INT4, INT8 codes"),
    ("onnx", "fp8_e4m3_128x128", "a scale for the tensor or a row"),
    ("onnx-nbits", "int4_row", "blocks have 16, 32, 64"),
    ("onnx-nbits", "int4_group24", "no whole number of groups of 24"),
    ("onnx-nbits", "fp8_e4m3_row", "INT2, INT4, INT8 codes"),
    ("onnx", "q4_1", "floating-point offsets"),
    ("gptq", "int8_row", "scales are float16.*take int8~row~symmetric~float16~minmax"),
    ("gptq", "int5_group128", "INT2, INT3, INT4, INT8 codes"),
    ("gptq", "q4_1", "floating-point offsets"),
    ("awq", "int3_group64", "INT4 codes"),
    ("awq", "int4_row", "groups along a row"),
    ("bitsandbytes", "int4_group64", "it holds NF4 and its FP4"),
    ("bitsandbytes", "af4_block64", "it holds NF4 and its FP4"),
    ("bitsandbytes", "nf4_block32", "blocks have 64, 128"),
    ("bitsandbytes", "nf4_block1024", "no whole number of groups of 1024"),
]
"""(target, scheme, words of the reason)."""


@pytest.mark.parametrize(("target", "scheme", "words"), CANNOT_CARRY)
def test_what_a_target_cannot_carry_is_refused_by_name(
    target: str, scheme: str, words: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """Nothing is written, and the message says which layer and why."""
    with pytest.raises(ValueError, match=f"cannot carry {layers[0]} by .*{words}"):
        write_checkpoint(target, llama, uniform(layers, scheme), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", EXPORTS)
def test_every_target_refuses_what_it_cannot_carry_before_it_writes(
    target: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """The first scheme of the table that the row refuses for a layer of the model."""
    refused = [s for s in SCHEMES.values() if EXPORTS[target].refusal(s, (256, 256))]
    if not refused:
        pytest.skip("it carries every scheme")
    scheme = refused[0]
    with pytest.raises(ValueError, match=f"cannot carry {layers[0]} by {scheme}: "):
        write_checkpoint(target, llama, uniform(layers, scheme.name), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"hidden_act": "gelu"}, "activation is 'gelu'"),
        ({"hidden_act": None}, "activation is None"),
        ({"model_type": "phi"}, "not of 'phi'"),
    ],
)
def test_gguf_says_what_its_readers_run_otherwise(change: dict[str, Any], words: str) -> None:
    assert words in gguf_models.refusal(LLAMA | change) and bool(gguf_models.refusal(LLAMA | change)) == bool(
        words
    )


def test_gguf_names_what_a_configuration_lacks() -> None:
    """transformers has defaults of its own; a file needs the number."""
    lacking = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    assert "does not say 'max_position_embeddings'" in gguf_models.refusal(lacking)


@pytest.mark.parametrize(("rows", "refused"), [(4, False), (8, False), (5, True), (6, True), (33, True)])
def test_two_bits_need_whole_bytes_of_rows_in_onnx(rows: int, refused: bool) -> None:
    """ONNX Runtime 1.31.1 restores others wrongly with its optimizer on."""
    scheme = Scheme.parse("int2~1x32~symmetric~float32~minmax")
    assert ("wrongly" in onnx_layers.refuses_dequantize(scheme, (rows, 64))) is refused
    assert "wrongly" not in onnx_layers.refuses_dequantize(SCHEMES["int4_group32"], (rows, 64))


def tied(llama: Path, tmp_path: Path) -> Path:
    """The model with its head tied to the embeddings; its files hold both, of equal values."""
    folder = Path(shutil.copytree(llama, tmp_path / "model"))
    network = LlamaForCausalLM.from_pretrained(llama)
    network.lm_head.weight.data = network.model.embed_tokens.weight.data.clone()
    network.save_pretrained(folder, max_shard_size="3MB")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    return folder


def test_a_tied_head_is_not_quantized(llama: Path, tmp_path: Path) -> None:
    """A reader would take the embeddings in its place."""
    model = tied(llama, tmp_path)
    config = json.loads((model / "config.json").read_text())
    for target, scheme in (("compressed-tensors", "int8_row"), ("gguf", "q8_0")):
        with pytest.raises(ValueError, match="ties the head to the embeddings"):
            write_checkpoint(target, model, {"lm_head": Recipe(SCHEMES[scheme])}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    del config["tie_word_embeddings"]
    for kind, shared in (("llama", False), ("gemma", True)):  # what is not said is as transformers has it
        (model / "config.json").write_text(json.dumps(config | {"model_type": kind}))
        assert ModelFolder(model).tied is shared


def test_a_tied_head_is_not_written_to_gguf(llama: Path, tmp_path: Path) -> None:
    """There is one tensor for both, as for llama.cpp's own converter."""
    gguf = pytest.importorskip("gguf")
    model = tied(llama, tmp_path)
    layers = {"model.layers.0.mlp.up_proj": Recipe(SCHEMES["q8_0"])}
    written = write_checkpoint("gguf", model, layers, tmp_path / "out")
    names = {tensor.name for tensor in gguf.GGUFReader(written.folder / "model.gguf").tensors}
    assert "output.weight" not in names and "token_embd.weight" in names


@pytest.mark.parametrize(("rows", "refused"), [(4, True), (8, True), (16, False)])
def test_short_zero_points_are_refused(rows: int, refused: bool) -> None:
    """compressed-tensors 0.20 fails on loading packed zero points that fill one word of 32 bits."""
    row = EXPORTS["compressed-tensors"]
    assert ("packed zero points" in row.refusal(SCHEMES["int4_group32_asym"], (rows, 64))) is refused
    assert not row.refusal(SCHEMES["int4_group32"], (rows, 64))


@pytest.mark.parametrize(
    ("kind", "built", "auto"),
    [
        ("llama", ["LlamaForCausalLM"], "AutoModelForCausalLM"),
        ("bert", ["BertModel"], "AutoModel"),
        ("bert", ["BertForSequenceClassification"], "AutoModelForSequenceClassification"),
        ("t5", ["T5ForConditionalGeneration"], "AutoModelForSeq2SeqLM"),
        ("whisper", ["WhisperForConditionalGeneration"], "AutoModelForSpeechSeq2Seq"),
        ("qwen2_5_vl", ["Qwen2_5_VLForConditionalGeneration"], "AutoModelForImageTextToText"),
        ("llama", None, "AutoModel"),
    ],
)
def test_the_card_opens_the_model_by_its_own_class(
    llama: Path, tmp_path: Path, kind: str, built: list[str] | None, auto: str
) -> None:
    """By another class the encoder of a checkpoint is not found, or its head is made anew."""
    model = Path(shutil.copytree(llama, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": built, "model_type": kind}))
    plan = Plan(ModelFolder(model), {"model.layers.0.mlp.up_proj": Recipe(SCHEMES["nf4_block64"])})
    for target in ("gptq", "bitsandbytes"):
        assert f"import {auto} " in EXPORTS[target].load(plan).replace("\n", " ")


def test_families_are_what_is_refused_together(llama: Path) -> None:
    """A recipe within one family is carried, and schemes of two are not."""
    model, names = ModelFolder(llama), [f"model.layers.0.mlp.{part}_proj" for part in ("up", "down")]
    schemes = [SCHEMES[n] for n in ("int4_group32_asym", "int4_group32", "int8_row", "nf4_block64")]
    schemes += [Scheme.parse(f"int4~1x{width}~asymmetric~float16~minmax") for width in (32, 64)]
    for target in ("compressed-tensors", "awq", "bitsandbytes"):
        row = EXPORTS[target]
        for one, other in itertools.product(schemes, repeat=2):
            if any(row.refusal(s, model.info(f"{n}.weight").shape[:2]) for s in (one, other) for n in names):
                continue
            together = row.together(Plan(model, dict(zip(names, map(Recipe, (one, other)), strict=True))))
            assert (row.family(one) == row.family(other)) is not bool(together), (target, one, other)


def test_awq_has_no_codes_in_the_head(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Its readers build the head as it is: codes there are left over, and the head is random."""
    with pytest.raises(ValueError, match=r"lm_head cannot hold codes: readers of this layout"):
        write_checkpoint("awq", llama, uniform([*layers, "lm_head"], "int4_group64"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scheme", ["nvfp4", "fp8_e4m3_tensor"])
def test_vllm_keeps_one_scale_of_joined_layers(
    scheme: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """Methods choose one a layer, and vLLM would round the codes again, or read them by another scale."""
    recipes = {name: Recipe(SCHEMES[scheme], "gptq") for name in layers}
    with pytest.raises(ValueError, match="keeps one tensor scale"):
        write_checkpoint(
            "vllm", llama, recipes, tmp_path / "out", quantized=lambda n, w, r: quantize(w.float(), r.scheme)
        )


HELD = {
    "mxfp6_e2m3": ("compressed-tensors", OWN),
    "fp8_e4m3_row": ("compressed-tensors (vLLM)", "ONNX", OWN),
    "nvfp4": ("compressed-tensors (vLLM)", OWN),
    "int4_group128_asym": ("compressed-tensors (vLLM)", "GPTQ", "AWQ", "ONNX", OWN),
    "nf4_block64": ("bitsandbytes", OWN),
    "q4_k": (OWN,),
    "q4_1": ("GGUF", OWN),
    "int3_row": ("compressed-tensors", "GPTQ", OWN),
}


@pytest.mark.parametrize("name", HELD)
def test_who_can_hold_it(name: str) -> None:
    """By the writers' own rules: 384 columns are not a whole number of Q4_K's blocks of 256. Where vLLM reads
    compressed-tensors, that is named once."""
    assert held_by(SCHEMES[name], (1536, 384)) == HELD[name]


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("int8_row", (5, 7), ""),
        ("int8_tensor", (5, 7), ""),
        ("fp8_e4m3_row", (5, 7), ""),
        ("fp8_e4m3_tensor", (5, 7), ""),
        ("fp8_e4m3_128x128", (128, 256), ""),
        ("fp8_e4m3_128x128", (127, 256), "a column of 127 values is no whole number of groups of 128"),
        ("fp8_e4m3_128x128", (128, 255), "a row of 255 values is no whole number of groups of 128"),
        ("nvfp4", (5, 32), ""),
        ("nvfp4", (5, 24), "a row of 24 values is no whole number of groups of 16"),
        ("mxfp4", (5, 48), "a row of 48 values is no whole number of groups of 32"),
    ],
)
def test_layers_of_any_size_are_held_in_whole_blocks(name: str, shape: tuple[int, int], words: str) -> None:
    """A scale of a row or of the tensor fits every layer; compressed-tensors has no shorter last group."""
    assert refuses(SCHEMES[name], shape) == words


@pytest.mark.parametrize("length", [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192])
def test_blocks_of_bitsandbytes(length: int) -> None:
    """The block sizes that its kernels take: powers of two from 64 to 4096."""
    scheme = Scheme.parse(f"nf4~1x{length}~symmetric~float32~minmax")
    assert (EXPORTS["bitsandbytes"].refusal(scheme, (4, 8192)) == "") is (64 <= length <= 4096)


EXPERTS = ("int4_group128", "int8_group32", "fp8_e4m3_row")
NO_EXPERTS = (
    "int4_group128_asym",
    "fp8_e4m3_tensor",
    "fp8_e4m3_128x128",
    "int8_tensor",
    "nvfp4",
    "mxfp8_e4m3",
)


@pytest.mark.parametrize("name", [*EXPERTS, *NO_EXPERTS, "q4_k"])
def test_schemes_of_experts(name: str) -> None:
    """transformers stacks experts from packed symmetric integers and FP8 by row; it fails on others, or
    stacks their codes."""
    assert (expert_refusal(SCHEMES[name]) == "") is (name in EXPERTS)
