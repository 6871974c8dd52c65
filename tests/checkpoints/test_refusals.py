"""Models and layers that a reader would run or restore as others: refused before anything is written.

If these fail, a checkpoint is written whose model gives other answers than the one that was quantized.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from explorer import SCHEMES, Scheme, quantize
from explorer.checkpoints import EXPORTS, Plan, gguf_models, onnx_layers
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.targets import held_by, why_unheld
from explorer.checkpoints.to_compressed_tensors import expert_refusal, refuses
from explorer.methods.recipe import Recipe
from tests.checkpoints.architectures import ARCHITECTURES
from tests.checkpoints.writing import write_checkpoint

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 100,
    "max_position_embeddings": 64,
}  # fmt: skip


CANNOT_CARRY = {
    "compressed-tensors": {
        "fp8_e5m2_row": "FP8 E5M2", "nf4_block64": "NF4", "q4_1": "offsets", "q4_k": "offsets",
        "int8_column": "along a row", "int4_group96": "96",
        "int4~16x16~symmetric~float16~minmax": "along a row",
    },
    "gguf": {
        "int4_group32_asym": "q4_1 and q5_1", "int4_group128": "INT4 group 128", "nvfp4": "NVFP4",
        "int8~1x32~symmetric~float32~minmax": "no type of ggml",
    },
    "onnx": {
        "int3_group64": "INT2, INT4, INT8", "mxfp4": "INT2, INT4, INT8", "q4_1": "offsets",
        "fp8_e4m3_128x128": "the tensor or a row",
    },
    "onnx-nbits": {
        "int4_row": "16, 32, 64", "int4_group24": "24", "fp8_e4m3_row": "INT2, INT4, INT8",
        "int4~1x8~symmetric~float16~minmax": "16, 32, 64", "int4~1x16~symmetric~float16~minmax": "",
        "int4~1x32~symmetric~float16~minmax": "",
    },
    "gptq": {
        "int8_row": "int8~row~symmetric~float16~minmax", "int5_group128": "INT2, INT3, INT4, INT8",
        "q4_1": "offsets",
    },
    "awq": {"int3_group64": "INT4", "int4_row": "along a row"},
    "bitsandbytes": {
        "int4_group64": "NF4", "af4_block64": "NF4", "nf4_block32": "64, 128", "nf4_block1024": "1024",
        "nf4~1x64~symmetric~float32~minmax": "", "nf4~1x128~symmetric~float32~minmax": "",
    },
}  # fmt: skip
"""What is said of a scheme for a layer of [256, 256]; nothing where it is carried."""


def test_what_a_target_cannot_carry_is_said() -> None:
    """What is written all the same is read as something else."""
    for target, schemes in CANNOT_CARRY.items():
        for scheme, fact in schemes.items():
            why = EXPORTS[target].refusal(Scheme.parse(scheme), (256, 256))
            assert bool(why) == bool(fact) and fact in why, (target, scheme, why)


def test_gguf_says_what_its_readers_run_otherwise() -> None:
    """transformers has defaults of its own; a file needs the number."""
    assert gguf_models.refusal(LLAMA) == ""
    for change in ({"hidden_act": "gelu"}, {"hidden_act": None}, {"model_type": "phi"}):
        assert repr(*change.values()) in gguf_models.refusal(LLAMA | change)
    lacking = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    assert "'max_position_embeddings'" in gguf_models.refusal(lacking)


def test_two_bits_need_whole_bytes_of_rows_in_onnx() -> None:
    """ONNX Runtime 1.31.1 restores others wrongly with its optimizer on."""
    scheme = Scheme.parse("int2~1x32~symmetric~float32~minmax")
    for rows, refused in ((4, False), (8, False), (5, True), (6, True), (33, True)):
        assert bool(onnx_layers.refuses_dequantize(scheme, (rows, 64))) is refused
        assert not onnx_layers.refuses_dequantize(SCHEMES["int4_group32"], (rows, 64))


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
    """A reader would take the embeddings in its place; a GGUF file has one tensor for both."""
    model = tied(llama, tmp_path)
    for target, scheme in (("compressed-tensors", "int8_row"), ("gguf", "q8_0")):
        with pytest.raises(ValueError, match="embeddings"):
            write_checkpoint(target, model, {"lm_head": Recipe(SCHEMES[scheme])}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    layers = {"model.layers.0.mlp.up_proj": Recipe(SCHEMES["q8_0"])}
    written = write_checkpoint("gguf", model, layers, tmp_path / "out")
    names = {tensor.name for tensor in gguf.GGUFReader(written.folder / "model.gguf").tensors}
    assert "output.weight" not in names and "token_embd.weight" in names
    config = json.loads((model / "config.json").read_text())
    del config["tie_word_embeddings"]
    for kind, shared in (("llama", False), ("gemma", True)):  # what is not said is as transformers has it
        (model / "config.json").write_text(json.dumps(config | {"model_type": kind}))
        assert ModelFolder(model).tied is shared
    for path in llama.glob("*.safetensors*"):  # a head of other values is not tied, whatever is said
        shutil.copy(path, model)
    (model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    assert not ModelFolder(model).tied


def test_short_zero_points_are_refused() -> None:
    """compressed-tensors 0.20 fails on loading packed zero points that fill one word of 32 bits."""
    row = EXPORTS["compressed-tensors"]
    for rows, refused in ((4, True), (8, True), (16, False)):
        assert bool(row.refusal(SCHEMES["int4_group32_asym"], (rows, 64))) is refused
        assert not row.refusal(SCHEMES["int4_group32"], (rows, 64))


CLASSES: list[tuple[str, str | None, str]] = [
    ("llama", "LlamaForCausalLM", "AutoModelForCausalLM"),
    ("bert", "BertModel", "AutoModel"),
    ("bert", "BertForSequenceClassification", "AutoModelForSequenceClassification"),
    ("t5", "T5ForConditionalGeneration", "AutoModelForSeq2SeqLM"),
    ("whisper", "WhisperForConditionalGeneration", "AutoModelForSpeechSeq2Seq"),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "AutoModelForImageTextToText"),
    ("llama", None, "AutoModel"),
]


def test_the_card_opens_the_model_by_its_own_class(llama: Path, tmp_path: Path) -> None:
    """By another class the encoder of a checkpoint is not found, or its head is made anew."""
    model = Path(shutil.copytree(llama, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    for kind, built, auto in CLASSES:
        said = {"architectures": built and [built], "model_type": kind}
        (model / "config.json").write_text(json.dumps(config | said))
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


@pytest.mark.parametrize("scheme", ["nvfp4", "fp8_e4m3_tensor"])
def test_vllm_joins_layers_by_one_scale(scheme: str, llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Methods choose one a layer, and vLLM would round the codes again, or read them by another scale."""
    recipes = {name: Recipe(SCHEMES[scheme], "gptq") for name in layers}
    with pytest.raises(ValueError, match="one tensor scale"):
        write_checkpoint(
            "vllm", llama, recipes, tmp_path / "out", quantized=lambda n, w, r: quantize(w.float(), r.scheme)
        )


HELD = {
    "mxfp6_e2m3": ("compressed-tensors",),
    "fp8_e4m3_row": ("compressed-tensors (vLLM)", "ONNX"),
    "nvfp4": ("compressed-tensors (vLLM)",),
    "int4_group128_asym": ("compressed-tensors (vLLM)", "GPTQ", "AWQ", "ONNX"),
    "nf4_block64": ("bitsandbytes",),
    "q4_k": (),
    "q4_1": ("GGUF",),
    "int3_row": ("compressed-tensors", "GPTQ"),
}


def test_who_can_hold_it() -> None:
    """384 columns are not a whole number of Q4_K's blocks of 256."""
    assert {name: held_by(SCHEMES[name], (1536, 384)) for name in HELD} == HELD
    for name, columns, why in (
        ("nvfp4", 768, ""),
        ("nvfp4", 777, "777 is not a multiple of 16"),
        ("q4_k", 384, "384 is not a multiple of 256"),
        ("ternary_twn", 768, "no file format of an engine has Ternary TWN"),
    ):
        assert why_unheld(SCHEMES[name], (512, columns)) == why


WHOLE_BLOCKS: list[tuple[str, tuple[int, int], tuple[str, ...]]] = [
    ("int8_row", (5, 7), ()),
    ("int8_tensor", (5, 7), ()),
    ("fp8_e4m3_row", (5, 7), ()),
    ("fp8_e4m3_tensor", (5, 7), ()),
    ("fp8_e4m3_128x128", (128, 256), ()),
    ("fp8_e4m3_128x128", (127, 256), ("column", "127", "128")),
    ("fp8_e4m3_128x128", (128, 255), ("row", "255", "128")),
    ("nvfp4", (5, 32), ()),
    ("nvfp4", (5, 24), ("row", "24", "16")),
    ("mxfp4", (5, 48), ("row", "48", "32")),
]


def test_layers_of_any_size_are_held_in_whole_blocks() -> None:
    """A scale of a row or of the tensor fits every layer; compressed-tensors has no shorter last group."""
    for name, shape, facts in WHOLE_BLOCKS:
        why = refuses(SCHEMES[name], shape)
        assert bool(why) == bool(facts) and all(fact in why for fact in facts), (name, shape, why)


def test_blocks_of_bitsandbytes() -> None:
    """The block sizes that its kernels take: powers of two from 64 to 4096."""
    for length in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        scheme = Scheme.parse(f"nf4~1x{length}~symmetric~float32~minmax")
        assert (EXPORTS["bitsandbytes"].refusal(scheme, (4, 8192)) == "") is (64 <= length <= 4096)


def test_schemes_of_experts() -> None:
    """transformers stacks experts from packed symmetric integers and FP8 by row; it fails on others, or
    stacks their codes."""
    carried = ("int4_group128", "int8_group32", "fp8_e4m3_row")
    others = ("int4_group128_asym", "fp8_e4m3_tensor", "fp8_e4m3_128x128", "int8_tensor", "nvfp4", "q4_k")
    assert not any(expert_refusal(SCHEMES[name]) for name in carried)
    assert all(expert_refusal(SCHEMES[name]) for name in (*others, "mxfp8_e4m3"))


def test_a_head_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    """If this fails, readers draw the head at random."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA))
    model.save_pretrained(
        tmp_path / "model",
        state_dict={name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"},
    )
    layers = {"model.layers.0.mlp.up_proj": Recipe(SCHEMES["int4_group32"])}
    with pytest.raises(ValueError, match="at random"):
        write_checkpoint("compressed-tensors", tmp_path / "model", layers, tmp_path / "out")
    config = json.loads((tmp_path / "model" / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    left = tmp_path / f".out.{int(dead.stdout)}.partial"
    kept = tmp_path / f".out.{os.getppid()}.partial"
    for folder in (left, kept):
        folder.mkdir()
    assert write_checkpoint("compressed-tensors", tmp_path / "model", layers, tmp_path / "out").layers == 1
    assert kept.exists() and not left.exists(), "what a killed process left goes; that of a running one stays"


def test_awq_holds_no_experts(tmp_path: Path) -> None:
    """transformers finds no codes of experts that lie apart in this layout: 8 keys missing, 144 left over."""
    model = ModelFolder(ARCHITECTURES["mixtral"].save(tmp_path / "moe"))
    scheme = SCHEMES["int4_group32_asym"]
    for name in model.matrices:
        if name != "lm_head" and not name.endswith(".gate"):
            assert bool(EXPORTS["awq"].place(model, name, scheme).refusal) == (".experts." in name)
