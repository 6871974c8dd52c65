"""GGUF files, read by the gguf package, by transformers and by llama.cpp.

If these fail, llama.cpp computes with other weights than those that were measured here, or cuts texts
otherwise.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.quants import dequantize
from tokenizers import Tokenizer, models, normalizers, trainers
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast as Fast

from explorer import SCHEMES, load_matrix, quantize
from explorer.checkpoints import gguf_models, write_one
from explorer.checkpoints.gguf_models import in_pairs, rope_factors
from explorer.checkpoints.model import ModelFolder
from explorer.methods.recipe import Recipe
from explorer.sources import open_source
from tests.checkpoints.conftest import TEXT
from tests.checkpoints.reading import NAME, Expected, compare, continuation, uniform
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled

TARGET = "gguf"
TYPES = {
    "q8_0": "Q8_0", "int8_group32": "Q8_0", "q4_0": "Q4_0", "int4_group32": "Q4_0", "q4_1": "Q4_1",
    "q5_0": "Q5_0", "q5_1": "Q5_1", "mxfp4": "MXFP4", "mxfp4_rceil": "MXFP4", "q2_k": "Q2_K", "q3_k": "Q3_K",
    "q4_k": "Q4_K", "q5_k": "Q5_K", "q6_k": "Q6_K", "iq4_nl": "IQ4_NL", "iq4_xs": "IQ4_XS", "tq2_0": "TQ2_0",
    "tq1_0": "TQ1_0", "nvfp4_gguf": "NVFP4", "fp16": "F16", "bf16": "BF16",
}  # fmt: skip


@pytest.mark.parametrize("scheme", TYPES)
def test_the_type_is_the_one_that_llama_cpp_calls_so(scheme: str, tmp_path: Path) -> None:
    """Casts included, whose values are those of the file's own dtype."""
    q = quantize(torch.randn(8, 256), SCHEMES[scheme])
    (tensor,) = gguf.GGUFReader(write_one(TARGET, q, tmp_path / "one", NAME)).tensors
    assert tensor.tensor_type.name == TYPES[scheme]
    assert torch.equal(restored(tensor), q.dequantize())


def restored(tensor: Any) -> Tensor:
    """The values of a tensor of a file, by the package gguf."""
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))


MIXED = ("q4_0", "q8_0", "mxfp4", "q6_k", "q4_k", "bf16", "int4_group32", "iq4_nl", "iq4_xs", "tq2_0",
         "nvfp4_gguf", "tq1_0")  # fmt: skip


def mixed(layers: list[str]) -> dict[str, Recipe]:
    """A recipe with another scheme for each layer but the last."""
    return {name: Recipe(SCHEMES[MIXED[i % len(MIXED)]]) for i, name in enumerate(layers[:-1])}


def test_transformers_reads_our_weights(
    llama: Path, layers: list[str], tokens: Tensor, expected: Expected, tmp_path: Path
) -> None:
    """All of a mixed recipe, rows of query and key in their old order, and the same text from them."""
    recipes = mixed(layers)
    written = write_checkpoint(TARGET, llama, recipes, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(written.folder, gguf_file="model.gguf", dtype=torch.float32)
    ours = expected(recipes, torch.float32)
    assert compare(theirs, ours, layers, tokens) < 1e-5
    assert continuation(theirs, tokens) == continuation(ours, tokens)
    for name, parameter in ours.named_parameters():
        assert torch.equal(theirs.get_parameter(name), parameter), name
    tokenizer = AutoTokenizer.from_pretrained(written.folder, gguf_file="model.gguf")
    assert tokenizer(TEXT, add_special_tokens=False).input_ids == tokens[0].tolist()


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_and_head_are_in_codes(tied: bool, llama: Path, tokens: Tensor, tmp_path: Path) -> None:
    """Each in its own type, read back as the rounded rows by every reader; of a tied model there is one
    tensor for both. Other targets refuse the table."""
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    if tied:
        network = LlamaForCausalLM.from_pretrained(llama)
        network.lm_head.weight, network.config.tie_word_embeddings = network.model.embed_tokens.weight, True
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        network.save_pretrained(folder)
    schemes = {"model.embed_tokens": "q6_k"} | ({} if tied else {"lm_head": "q4_k"})
    recipes = {name: Recipe(SCHEMES[scheme]) for name, scheme in schemes.items()}
    written = write_checkpoint(TARGET, folder, recipes, tmp_path / "out", verified=True)
    assert written.verified is not None and written.verified.layers == len(recipes)
    file = written.folder / "model.gguf"
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert ("output.weight" in tensors) != tied
    theirs = AutoModelForCausalLM.from_pretrained(written.folder, gguf_file="model.gguf", dtype=torch.float32)
    assert (theirs.lm_head.weight is theirs.model.embed_tokens.weight) == tied
    for name, there in (("model.embed_tokens", "token_embd"), ("lm_head", "output")):
        if name not in recipes:
            continue
        weight = ModelFolder(folder).read(f"{name}.weight").float()
        rounded, tensor = quantize(weight, recipes[name].scheme).dequantize(), tensors[f"{there}.weight"]
        assert tensor.tensor_type.name == TYPES[schemes[name]]
        assert torch.equal(restored(tensor), rounded)
        assert torch.equal(open_source(str(file)).matrix(f"{there}.weight").values.float(), rounded)
        assert torch.equal(theirs.get_parameter(f"{name}.weight"), rounded)
    table = {"model.embed_tokens": Recipe(SCHEMES["int4_group128"])}
    with pytest.raises(ValueError, match="embed_tokens"):
        write_checkpoint("compressed-tensors", folder, table, tmp_path / "other")


@pytest.mark.parametrize("scheme", sampled(["q4_0", "mxfp4", "mixed"], ["mixed"]))
def test_llama_cpp_says_what_we_say(
    scheme: str, llama: Path, layers: list[str], tokens: Tensor, expected: Expected, tmp_path: Path
) -> None:
    """Of the text's continuation."""
    xllamacpp = pytest.importorskip("xllamacpp")
    recipes = mixed(layers) if scheme == "mixed" else uniform(layers, scheme)
    written = write_checkpoint(TARGET, llama, recipes, tmp_path / "out")
    answer = ask(xllamacpp, written.folder / "model.gguf", TEXT)
    assert answer["usage"]["prompt_tokens"] == tokens.shape[1], "the text is cut as by its tokenizer"
    with torch.no_grad():
        logits = expected(recipes, torch.float32)(tokens).logits[0, -1]
    ours = torch.log_softmax(logits, 0)
    assert_near(answer, ours)


def assert_near(answer: dict[str, Any], ours: Tensor) -> None:
    """The log probabilities that llama.cpp answers with are ours, but for inputs rounded to 8 bits."""
    for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
        assert entry["logprob"] == pytest.approx(float(ours[entry["id"]]), abs=0.15)


def ask(xllamacpp: Any, path: Path, prompt: str) -> dict[str, Any]:
    """llama.cpp's answer of two tokens, with the log probabilities of five."""
    request = {"prompt": prompt, "n_predict": 2, "temperature": 0, "n_probs": 5, "cache_prompt": False}
    return answered(server(xllamacpp, path).handle_completions, request)


def server(xllamacpp: Any, path: Path, **settings: Any) -> Any:
    """llama.cpp on one thread."""
    asked = xllamacpp.CommonParams()
    asked.model.path = str(path)
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
    small = {"n_ctx": 128, "n_parallel": 1, "warmup": False, "n_gpu_layers": 0, "fit_params": False}
    for name, value in {**small, "verbosity": 0, **settings}.items():
        setattr(asked, name, value)
    return xllamacpp.Server(asked)


def answered(handler: Any, request: dict[str, Any]) -> dict[str, Any]:
    """What a handler of the server gives at last."""
    found: list[Any] = []
    handler(json.dumps(request), lambda part: found.append(part) or False)
    return json.loads(found[-1]) if isinstance(found[-1], str) else found[-1]


@pytest.mark.parametrize("prefix", [True, False])
def test_a_tokenizer_of_sentence_piece_cuts_texts_alike(
    llama: Path, layers: list[str], original: LlamaForCausalLM, tmp_path: Path, prefix: bool
) -> None:
    """Merges in the old order, unknown characters in bytes, a space before a text where there was one."""
    xllamacpp = pytest.importorskip("xllamacpp")
    model = Path(shutil.copytree(llama, tmp_path / "model"))
    tokenizer = sentence_piece(prefix)
    tokenizer.save_pretrained(model)
    written = write_checkpoint(TARGET, model, {layers[0]: Recipe(SCHEMES["q8_0"])}, tmp_path / "out")
    text = TEXT + " \u00fcber"
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    answer = ask(xllamacpp, written.folder / "model.gguf", text)
    assert answer["usage"]["prompt_tokens"] == ids.shape[1] < len(text)
    reader = gguf.GGUFReader(written.folder / "model.gguf")
    assert reader.fields["tokenizer.ggml.add_space_prefix"].contents() is prefix
    with torch.no_grad():
        assert_near(answer, torch.log_softmax(original(ids).logits[0, -1], 0))


def sentence_piece(prefix: bool) -> Fast:
    """A tokenizer of 288 tokens as Llama 2 has it, or without the space before a text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    before = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=288, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    spelled = json.loads(tokenizer.to_str())
    spelled["added_tokens"] = spelled["added_tokens"][:3]
    return Fast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spelled)),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        add_bos_token=False,
    )


def test_an_encoder_is_written_too(minilm: Path, tmp_path: Path) -> None:
    """all-MiniLM-L6-v2: every tensor but the pooler in its place, its words as llama.cpp marks them."""
    layers = [f"encoder.layer.{i}.intermediate.dense" for i in range(6)]
    layers += [f"encoder.layer.{i}.attention.self.query" for i in range(6)]
    written = write_checkpoint(TARGET, minilm, uniform(layers, "q4_0"), tmp_path / "out")
    reader = gguf.GGUFReader(written.folder / "model.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert reader.fields["general.architecture"].contents() == "bert" and len(tensors) == 101
    assert reader.fields["bert.pooling_type"].contents() == 1
    assert "llama-embedding -m model.gguf" in (written.folder / "README.md").read_text()
    weight = load_matrix(str(minilm), "encoder.layer.3.attention.self.query.weight").values
    rounded = quantize(weight, SCHEMES["q4_0"]).dequantize()
    assert torch.equal(restored(tensors["blk.3.attn_q.weight"]), rounded)
    words = reader.fields["tokenizer.ggml.tokens"].contents()
    assert words[101] == "[CLS]" and "\u2581model" in words and "ing" in words
    xllamacpp = pytest.importorskip("xllamacpp")
    run = server(xllamacpp, written.folder / "model.gguf", embedding=True)
    answer = json.loads(run.handle_embeddings(json.dumps({"input": TEXT})))
    there = torch.tensor(answer["data"][0]["embedding"])
    network = AutoModel.from_pretrained(minilm).eval()
    for name in layers:
        weight = network.get_submodule(name).weight
        weight.data = quantize(weight.data, SCHEMES["q4_0"]).dequantize()
    with torch.no_grad():
        tokens = AutoTokenizer.from_pretrained(minilm)(TEXT, return_tensors="pt")
        here = network(**tokens).last_hidden_state[0].mean(0)
    assert float(torch.cosine_similarity(there, here, 0)) > 0.9995


def change(path: Path, settings: dict[str, Any]) -> None:
    """Other settings in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


POOLED = [({"cls_token": True}, 2), ({"lasttoken": True}, 3), ({"mean_tokens": True}, 1)]


def test_embeddings_are_pooled_as_the_model_says(tmp_path: Path) -> None:
    """A model pooled by its first token has other embeddings by the mean; what has no number is refused."""
    assert gguf_models.pooling(tmp_path) is None
    (tmp_path / "modules.json").write_text('[{"path": "1_P", "type": "a.Pooling"}, {"idx": 1}]')
    with pytest.raises(ValueError, match=r"1_P.*config\.json"):
        gguf_models.pooling(tmp_path)
    for modes, kind in POOLED:
        pooled(tmp_path, {"max_tokens": False} | modes)
        assert gguf_models.pooling(tmp_path) == kind
    for modes, words in (
        ({"max_tokens": True}, "by max_tokens"),
        ({"cls_token": True, "mean_tokens": True}, "cls_token and mean_tokens"),
        ({}, "by nothing"),
    ):
        pooled(tmp_path, modes)
        with pytest.raises(ValueError, match=words):
            gguf_models.pooling(tmp_path)


def pooled(folder: Path, modes: dict[str, bool]) -> None:
    """The files that sentence-transformers says it in."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    settings = {f"pooling_mode_{name}": on for name, on in modes.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    modules = [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))


MODELS = {
    "model": ("config.json", {"model_type": "phi3"}, "llama, mistral, qwen2, bert"),
    "positions": ("config.json", {"rope_parameters": {"rope_type": "yarn"}}, "'yarn'"),
    "tokenizer": ("tokenizer.json", {"model": {"type": "Unigram"}}, "Unigram"),
    "cut": ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}, "has no name in llama.cpp"),
}


def test_models_without_a_place_are_refused(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Another architecture, positions or tokenizer would be read as something else."""
    for case, (name, settings, words) in MODELS.items():
        model = Path(shutil.copytree(llama, tmp_path / case))
        change(model / name, settings)
        with pytest.raises(ValueError, match=words):
            write_checkpoint(TARGET, model, uniform(layers, "q4_0"), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == set(MODELS)


def test_scaled_positions_turn_as_slowly_as_in_transformers() -> None:
    """Llama 3.1's frequencies, divided by our factors, are those that transformers computes."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, rope_parameters=rope)
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    factors = rope_factors(config.to_dict())
    assert factors is not None
    base = 1 / 500000.0 ** (torch.arange(0, 128, 2) / 128)
    assert torch.allclose(base / factors, theirs, rtol=1e-5)


def test_rows_in_pairs_are_a_permutation_that_keeps_heads() -> None:
    """Row i of a head stands beside row i + d/2."""
    assert in_pairs(torch.arange(8), 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert in_pairs(torch.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
