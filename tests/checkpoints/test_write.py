"""An export is whole or not there: what is carried over, what is refused, what a stop leaves.

If these fail, a folder is found that looks like a model and is none, or a defect is found only on loading.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from explorer import SCHEMES, QuantizedTensor, quantize
from explorer.checkpoints import EXPORTS, integer_words, verify, write_one
from explorer.checkpoints import folder as folders
from explorer.checkpoints.folder import Shards
from explorer.methods.recipe import Recipe
from explorer.progress import StoppedError, checkpoint, stoppable
from explorer.words import code
from tests.checkpoints.reading import fitting, uniform
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled

TARGET = "compressed-tensors"


def copied(model: Path, to: Path) -> Path:
    return Path(shutil.copytree(model, to))


def shard(model: Path) -> Path:
    return sorted(model.glob("*.safetensors"))[0]


def test_small_files_come_along(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Configuration, tokenizer, generation settings, terms; the index is a new one; the card is ours."""
    recipes = uniform(layers, "int4_group128")
    written = write_checkpoint(TARGET, llama, recipes, tmp_path / "out", card="0.0312")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "LICENSE"):
        assert (written.folder / name).read_bytes() == (llama / name).read_bytes()
    card = (written.folder / "README.md").read_text()
    assert "| `int4_group128` | rtn | 14 |" in card and "0.0312" in card and "tiny-llama" in card
    assert "model.safetensors" in written.files and "model.safetensors.index.json" not in written.files
    assert written.bytes == sum(path.stat().st_size for path in written.folder.iterdir())
    config = json.loads((written.folder / "config.json").read_text())
    assert config.pop("quantization_config") and config == json.loads((llama / "config.json").read_text())


ODD = "q\x1b]0;t\x07`</code><img src=x onerror=y>|\u202e[a](http:b)**_\n\n# Heading"
"""A name that would be markup in Markdown, and more than text on a terminal."""


def test_names_are_text_in_the_card(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """The card is shown by the Hub and by cat; what config.json says is not the model that was quantized."""
    model = copied(llama, tmp_path / ODD.replace("/", ""))
    for origin in (ODD, [ODD], {"a": ODD}, None):
        overwrite(model, _name_or_path=origin)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        written = write_checkpoint(TARGET, model, uniform(layers, "int4_group128"), tmp_path / "out")
        card = (written.folder / "README.md").read_text(encoding="utf-8")
        assert card.replace("\n", "").isprintable()
        assert [line for line in card.splitlines() if line.startswith("# ")] == [
            f"# {code(model.name)}, quantized for compressed-tensors"
        ]
        assert f"Made from {code(model.name)} by" in card
        outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", card)
        assert "<img" not in outside and "](" not in outside


def test_what_is_not_named_stays_as_it_is(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Norms, embeddings and the head keep their bits, in several files as in one."""
    recipes = uniform(layers, "int4_group128")
    kept = {name: x for name, x in load(llama).items() if name.removesuffix(".weight") not in recipes}
    one = write_checkpoint(TARGET, llama, recipes, tmp_path / "one")
    many = write_checkpoint(TARGET, llama, recipes, tmp_path / "many", shard_bytes=200_000)
    index = json.loads((many.folder / "model.safetensors.index.json").read_text())["weight_map"]
    whole = load_file(one.folder / "model.safetensors")
    assert set(index) == set(whole) and len(set(index.values())) > 3 and kept
    for name, tensor in whole.items():
        with safe_open(many.folder / index[name], framework="pt") as file:
            assert torch.equal(file.get_tensor(name), tensor)
        assert name not in kept or torch.equal(tensor, kept[name])


def test_tensors_of_any_length_and_dtype_can_be_mapped(tmp_path: Path) -> None:
    """An odd number of bytes before a wider dtype would put that one where it can't be read."""
    dtypes = (torch.uint8, torch.float16, torch.float32, torch.int64, torch.float8_e4m3fn)
    tensors = {f"{dtype}.{n}": torch.arange(n).to(dtype) for dtype in dtypes for n in (0, 1, 3, 8)}
    shards = Shards(tmp_path, 1e9, 10_000)
    for name, tensor in tensors.items():
        shards.add(name, tensor)
    shards.close()
    for name, read in load(tmp_path).items():
        want = tensors.pop(name)
        assert (read.dtype, read.tolist()) == (want.dtype, want.tolist())
    assert not tensors


def cut(model: Path) -> None:
    path = shard(model)
    path.write_bytes(path.read_bytes()[:-100])


def lose_tensor(model: Path) -> None:
    tensors = load_file(shard(model))
    tensors.pop(next(iter(tensors)))
    save_file(tensors, shard(model))


def overwrite(model: Path, **settings: object) -> None:
    """Other settings in the configuration."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | settings))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a cut shard": (cut, "is cut short"),
    "a lost shard": (lambda model: shard(model).unlink(), "which is not in the folder"),
    "a lost tensor": (lose_tensor, "does not hold it"),
    "no configuration": (lambda model: (model / "config.json").unlink(), "has no config.json"),
    "a damaged configuration": (lambda model: (model / "config.json").write_text("{"), "config.json cannot"),
}
TURNS = {(case, list(EXPORTS)[i % len(EXPORTS)]) for i, case in enumerate(BROKEN)}
"""Each way to be broken by one target, another each time."""


@pytest.mark.parametrize(
    ("case", "target"), sampled([(case, target) for case in BROKEN for target in EXPORTS], TURNS)
)
def test_a_broken_model_is_refused_before_anything_is_written(
    case: str, target: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """The message says what is broken; no folder is begun."""
    damage, words = BROKEN[case]
    model = copied(llama, tmp_path / "model")
    damage(model)
    with pytest.raises(ValueError, match=words):
        write_checkpoint(target, model, uniform(layers, fitting(target, llama, layers)), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_wrong_names_are_refused(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """A target, a layer, a method without inputs, an existing folder, nothing to do."""
    recipes, out = uniform(layers, "int4_group128"), tmp_path / "out"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for target, layer_recipes, folder, words in (
        ("no-such", recipes, out, "'no-such'.* compressed-tensors"),
        (TARGET, uniform(["model.nope"], "int8_row"), out, "'model.nope.weight'"),
        (TARGET, uniform(["model.norm"], "int8_row"), out, r"shape \[256\]"),
        (TARGET, {layers[0]: Recipe(SCHEMES["int4_group128"], "gptq")}, out, "GPTQ"),
        (TARGET, {}, out, "no layer"),
        (TARGET, recipes, tmp_path / "full", "exists already"),
    ):
        with pytest.raises(ValueError, match=words):
            write_checkpoint(target, llama, layer_recipes, folder)
    assert not out.exists()


def test_what_would_be_read_otherwise_is_refused(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Conv1D of GPT-2 keeps [K, N]; scales of inputs that are not quantized would never be used."""
    model = copied(llama, tmp_path / "model")
    overwrite(model, model_type="gpt2")
    recipes, out = uniform(layers, "int8_row"), tmp_path / "out"
    with pytest.raises(ValueError, match=r"gpt2 .*\[K, N\]"):
        write_checkpoint(TARGET, model, recipes, out)
    static, head = SCHEMES["int8_tensor"], {"lm_head": 0.1}
    for inputs, scales, fact in (
        (None, head, "lm_head"),
        (static, head, "lm_head"),
        (static, None, layers[0]),
        (SCHEMES["mxfp4"], None, "MXFP4"),
    ):
        with pytest.raises(ValueError, match=fact):
            write_checkpoint(TARGET, llama, recipes, out, inputs=inputs, input_scales=scales)


@pytest.mark.parametrize("target", EXPORTS)
def test_progress_counts_the_tensors_and_a_stop_leaves_nothing(
    target: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """Each tensor once, up to all of them; stopped by the progress or by a checkpoint, in the middle."""
    recipes, seen, calls = uniform(layers, fitting(target, llama, layers)), list[tuple[int, int]](), 0

    def stop(done: int, total: int) -> None:
        if done == total // 2:
            raise StoppedError("enough")

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 10:
            raise StoppedError("enough")

    with pytest.raises(StoppedError):
        write_checkpoint(target, llama, recipes, tmp_path / "out", progress=stop)
    with pytest.raises(StoppedError), stoppable(check):
        checkpoint()
        write_checkpoint(target, llama, recipes, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    out = write_checkpoint(target, llama, recipes, tmp_path / "out", progress=lambda *at: seen.append(at))
    assert seen == [(i, 21) for i in range(1, 22)]
    assert out.layers == len(layers) and (out.folder / "README.md").is_file()


def test_a_full_disk_is_told_beforehand_and_in_the_middle(
    llama: Path, layers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says how much is needed, or what the system said; nothing is left."""
    recipes = uniform(layers, "int4_group128")
    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1000))
        with pytest.raises(OSError, match=r"[\d,]+ bytes.* 1,000 "):
            write_checkpoint(TARGET, llama, recipes, tmp_path / "out")

    def full(name: str, weight: Tensor, recipe: Recipe) -> QuantizedTensor:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"out .*No space left on device"):
        write_checkpoint(TARGET, llama, recipes, tmp_path / "out", quantized=full)
    assert not list(tmp_path.iterdir())


def test_the_codes_that_are_given_are_written(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Nothing is rounded a second time; codes by another scheme than was asked for are refused."""
    scheme, given, recipes = SCHEMES["int4_group128"], {}, uniform(layers, "int4_group128")

    def negated(name: str, weight: Tensor, recipe: Recipe) -> QuantizedTensor:
        given[name] = quantize(-2 * weight, scheme)
        return given[name]

    def other(name: str, weight: Tensor, recipe: Recipe) -> QuantizedTensor:
        return quantize(weight, SCHEMES["int8_row"])

    with pytest.raises(ValueError, match=r"by int8_row .* by int4_group128"):
        write_checkpoint(TARGET, llama, recipes, tmp_path / "out", quantized=other)
    assert not list(tmp_path.iterdir())
    written = write_checkpoint(TARGET, llama, recipes, tmp_path / "out", quantized=negated)
    tensors = load_file(written.folder / "model.safetensors")
    for name in layers:
        assert torch.equal(tensors[f"{name}.weight_scale"].float(), given[name].scales.scale)


@pytest.mark.parametrize("target", EXPORTS)
def test_one_tensor_in_its_layout(target: str, llama: Path, layers: list[str], tmp_path: Path) -> None:
    """A file with the target's suffix, and a refusal of what a whole model would be refused."""
    q = quantize(torch.randn(64, 256), SCHEMES[fitting(target, llama, layers)])
    path = write_one(target, q, tmp_path / "one.bin", "layer")
    assert path.name == f"one{EXPORTS[target].suffix}" and path.stat().st_size > q.nbytes
    for other in [s for s in SCHEMES.values() if EXPORTS[target].refusal(s, (8, 256))][:1]:
        with pytest.raises(ValueError, match=f"cannot carry layer by {other}"):
            write_one(target, quantize(torch.randn(8, 256), other), tmp_path / "two", "layer")
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_a_wrong_checkpoint_is_not_put_in_place(
    llama: Path, layers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes in the wrong order: without the comparison the folder would open, with exit code 0."""
    right = integer_words.int32_words
    monkeypatch.setattr(integer_words, "int32_words", lambda codes, bits: right(codes.flip(1), bits))
    out, plan = tmp_path / "out", uniform(layers, "int4_group32")
    with pytest.raises(ValueError, match="computes something else"):
        write_checkpoint("compressed-tensors", llama, plan, out, verified=True)
    assert not list(tmp_path.iterdir())
    assert write_checkpoint("compressed-tensors", llama, plan, out).layers == len(layers)


def test_what_was_written_is_run_once(
    llama: Path, layers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card has the difference of the logits. A network that fails, or says something else though all its
    layers are right, is not put in place."""
    plan = uniform(layers, "int4_group32")
    written = write_checkpoint("compressed-tensors", llama, plan, tmp_path / "right", verified=True)
    assert written.verified and written.verified.forward and written.verified.forward.difference < 1e-5
    card = (written.folder / "README.md").read_text()
    assert f"logits differ by {written.verified.forward.difference:.1e}" in card
    opened = verify._opened

    def other_norms(*asked: Any) -> Any:
        network = opened(*asked)
        network.model.norm.register_forward_hook(lambda *given: given[2].flip(-1))
        return network

    def fails(*asked: Any) -> Any:
        network = opened(*asked)
        network.model.norm.register_forward_hook(lambda *given: given[2].double())
        return network

    for broken, words in ((other_norms, "logits differ"), (fails, "cannot run it")):
        monkeypatch.setattr(verify, "_opened", broken)
        with pytest.raises(ValueError, match=words):
            write_checkpoint("compressed-tensors", llama, plan, tmp_path / "wrong", verified=True)
        assert not (tmp_path / "wrong").exists()


def test_a_target_without_a_reader_is_not_verified(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """That is known before anything is written; where it is not asked for, the folder is written."""
    plan = uniform(layers, fitting("gptq", llama, layers))
    with pytest.raises(ValueError, match="cannot be verified"):
        write_checkpoint("gptq", llama, plan, tmp_path / "out", verified=True)
    assert not list(tmp_path.iterdir())
    made = write_checkpoint("gptq", llama, plan, tmp_path / "out", verified=None)
    assert made.verified is None and made.layers == len(layers)


@pytest.mark.parametrize("target", [TARGET, "gguf", "bitsandbytes"])
def test_changed_tensors_are_written(llama: Path, layers: list[str], target: str, tmp_path: Path) -> None:
    """A norm that took in factors, a weight that is kept, and one that is rounded: the reader finds those."""
    rounded, kept, norm = "mlp.up_proj", "mlp.down_proj", "input_layernorm"
    own = load(llama)
    named = [f"model.layers.{i}.{part}.weight" for i in (0, 1) for part in (rounded, kept, norm)]
    changed = {name: own[name] * 2 for name in named}
    chosen = uniform([n for n in layers if not n.endswith(kept)], fitting(target, llama, layers))
    seen: dict[str, Tensor] = {}

    def codes(name: str, weight: Tensor, recipe: Recipe) -> QuantizedTensor:
        seen[f"{name}.weight"] = weight
        return quantize(weight.float(), recipe.scheme)

    written = write_checkpoint(
        target, llama, chosen, tmp_path / "out", quantized=codes, changed=changed, verified=None
    )
    assert written.verified is not None and written.verified.tensors > 5
    assert all(torch.equal(seen[name], changed[name]) for name in named if rounded in name)
    card = (written.folder / "README.md").read_text()
    assert "`model.layers.N.mlp.up_proj.weight`" in card and " 4 of them " in card
    if target == TARGET:
        found = load(written.folder)
        assert all(torch.equal(found[name], changed[name]) for name in named if rounded not in name)


def load(model: Path) -> dict[str, Tensor]:
    return {name: tensor for path in model.glob("*.safetensors") for name, tensor in load_file(path).items()}
