"""Both engines: the same model as the one that is measured, the same text as other programs write, and texts
that end when they are told to.

If these fail, a text that is read and a loss that is measured are of two models.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from explorer import SourceError
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, load_model
from explorer.progress import StoppedError, stoppable
from explorer.running import Engine, Sampling, Token, open_engine, subject, subject_of
from explorer.running.choice import NAMES
from explorer.running.compare import parting_of
from explorer.running.llama_engine import LlamaEngine
from explorer.running.torch_engine import TorchEngine
from explorer.schemes import SCHEMES
from explorer.survey import ModelRecipe
from explorer.survey.check import check_recipe
from explorer.survey.loss import reference_for
from tests.checkpoints.reading import Expected
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled
from tests.running.conftest import PROMPT, recipe_of

CPU = torch.device("cpu")
TEXTS = ("Every layer of a model is rounded", "by a scheme of its own")


def torch_engine(model: Path, recipe: ModelRecipe | Recipe | None = None) -> TorchEngine:
    return TorchEngine.load(subject_of(str(model), recipe), CPU, TEXTS)


@pytest.mark.parametrize("scheme", ["int4_group64", "int4_group64+gptq"])
def test_an_engine_keeps_one_network(llama: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network without the recipe stayed as well: twice the memory, for as long as the text was
    written."""
    loaded: list[weakref.ref[torch.nn.Module]] = []

    def load(*args: Any, **options: Any) -> Model:
        model = load_model(*args, **options)
        loaded.append(weakref.ref(model.network))
        return model

    monkeypatch.setattr(subject, "load_model", load)
    engine = torch_engine(llama, Recipe.parse(scheme))
    assert loaded[0]() is (None if "gptq" in scheme else engine.network)
    assert engine.model.network is engine.network


def written(engine: Engine, tokens: int = 16, sampling: Sampling | None = None) -> list[Token]:
    with engine.write(PROMPT, tokens, sampling or Sampling()) as writing:
        return list(writing)


RECIPES: dict[str, Callable[[list[str]], ModelRecipe]] = {
    "mixed": lambda layers: recipe_of(layers, "nvfp4", "int4_group64_asym", "q4_k"),
    "methods": lambda layers: recipe_of(layers[:4], "int3_group64+gptq", "int4_group64"),
    "inputs": lambda layers: dataclasses.replace(recipe_of(layers, "int8_row"), inputs=SCHEMES["int8_row"]),
    "fused": lambda layers: dataclasses.replace(recipe_of(layers, "nvfp4"), fused=True),
}


@pytest.mark.parametrize("kind", sampled(RECIPES, ["mixed", "inputs"]))
def test_the_network_is_the_one_that_check_measures(
    kind: str, llama: Path, layers: list[str], tokens: Tensor, expected: Expected
) -> None:
    """Its loss is equal to the last bit; and its logits are those of weights rounded one by one."""
    recipe = dataclasses.replace(RECIPES[kind](layers), schemes=("int8_row",))
    engine, model = torch_engine(llama, recipe), load_model(str(llama), head=True)
    checked = check_recipe(recipe, model, TEXTS, calibration=TEXTS).rows[0].loss
    found = reference_for(model, TEXTS).measure(engine.network)
    assert found.value == checked.value > 1e-6 and found.scores == checked.scores
    if kind == "mixed":
        with torch.no_grad():
            ours = expected(recipe.layers, torch.float32)(tokens).logits[0]
        assert torch.equal(engine.logits(tokens[0].tolist(), tokens.shape[1]), ours)


@pytest.mark.parametrize("scheme", [pytest.param(None, marks=pytest.mark.thorough), "int4_group64"])
def test_greedy_text_is_that_of_transformers(
    scheme: str | None, llama: Path, layers: list[str], expected: Expected
) -> None:
    """The same tokens as ``generate``, and its distributions up to the rounding of float32 sums."""
    engine = torch_engine(llama, Recipe.parse(scheme) if scheme else None)
    theirs = expected(dict.fromkeys(layers, Recipe.parse(scheme)) if scheme else {}, torch.float32)
    ids = torch.tensor([engine.encode(PROMPT)])
    answer = theirs.generate(
        ids, max_new_tokens=16, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    tokens = written(engine)
    assert [token.id for token in tokens] == answer.sequences[0, ids.shape[1] :].tolist()
    for token, logits in zip(tokens, answer.logits, strict=True):
        best = logits[0].log_softmax(-1).topk(5)
        assert [one.log_probability for one in token.top] == pytest.approx(best.values.tolist(), abs=2e-5)
        assert [one.id for one in token.top] == best.indices.tolist()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(llama)
    everything = tokenizer.decode([*ids[0], *(token.id for token in tokens)], skip_special_tokens=True)
    assert PROMPT + "".join(token.text for token in tokens) == everything


def test_a_text_ends_where_the_model_ends_it(ending_llama: Path) -> None:
    """The token that ends a text is the last one of both engines, and adds nothing to it."""
    pytest.importorskip("xllamacpp")
    with open_engine(subject_of(str(ending_llama)), "llama.cpp", CPU) as engine:
        theirs = written(engine)
    ours = written(torch_engine(ending_llama))
    assert 1 < len(ours) < 16 and [one.id for one in theirs] == [one.id for one in ours]
    assert (ours[-1].id, ours[-1].text) == (theirs[-1].id, theirs[-1].text) == (1, "")
    assert [one.ends for one in ours] == [one.ends for one in theirs] == [False] * (len(ours) - 1) + [True]


@pytest.mark.parametrize("scheme", sampled(["q8_0", "q4_0"], ["q4_0"]))
def test_llama_cpp_writes_what_torch_writes(scheme: str, llama: Path) -> None:
    """Up to its rounding of inputs to 8 bits; texts part only between two candidates that are as good."""
    pytest.importorskip("xllamacpp")
    subject = subject_of(str(llama), Recipe.parse(scheme))
    with open_engine(subject, device=CPU) as engine, open_engine(subject, "torch", CPU) as reference:
        assert isinstance(engine, LlamaEngine) and engine.why
        assert isinstance(reference, TorchEngine) and engine.stored_bytes < reference.held_bytes
        theirs, ours = engine.write(PROMPT, 12), reference.write(PROMPT, 12)
        pairs = list(zip(theirs, ours, strict=True))
        figures = theirs.figures
        assert figures.prompt_tokens == ours.figures.prompt_tokens == len(reference.encode(PROMPT))
        assert figures.told and figures.told.tokens_per_second and figures.tokens == 12
        for there, here in pairs:
            known = {one.id: one.log_probability for one in here.top}
            shared = [one for one in there.top if one.id in known]
            assert len(shared) >= 2
            for one in shared:
                assert one.log_probability == pytest.approx(known[one.id], abs=0.15)
            if there.id != here.id:
                assert here.top[0].log_probability - known[there.id] < 0.3
                break
            assert there.text == here.text
        else:
            assert theirs.text == ours.text


def token(id: int | None, text: str = "x") -> Token:
    return Token(id, text, (), 0.0)


PARTINGS: list[tuple[list[Token], list[Token], int | None]] = [
    ([token(1), token(2)], [token(1), token(2)], None),
    ([token(1), token(2)], [token(1), token(3)], 1),
    ([token(1)], [token(1), token(3)], 1),
    ([token(None, "a")], [token(7, "a")], None),
    ([token(None, "a")], [token(7, "b")], 0),
]


def test_the_first_difference_is_found() -> None:
    """Also where one text is longer, and where llama.cpp gives a token no id."""
    for original, changed, index in PARTINGS:
        found = parting_of(original, changed)
        assert (found and found.index) == index
        if found:
            assert (found.original, found.changed) == list(zip_longest(original, changed))[found.index]


@pytest.mark.parametrize("name", NAMES[1:])
def test_texts_of_one_engine_do_not_meet(
    name: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time are what each is alone; a closed one keeps what it has; a seed repeats its text."""
    if name == LlamaEngine.name:
        pytest.importorskip("xllamacpp")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_engine(subject_of(str(llama), Recipe.parse("q8_0")), name, CPU) as engine:
        assert bool(list(tmp_path.rglob("*.gguf"))) is (name == LlamaEngine.name)
        alone = written(engine, 8)
        first, second = engine.write(PROMPT, 8), engine.write("by a scheme", 8)
        mixed = list(zip(first, second, strict=True))
        assert [one.id for one, _ in mixed] == [one.id for one in alone]
        assert first.text != second.text
        part = engine.write(PROMPT, 64)
        assert [next(part).id, next(part).id] == [one.id for one in alone[:2]]
        part.close()
        assert list(part) == [] and part.figures.tokens == 2 and part.figures.tokens_per_second
        assert part.figures.prompt_tokens and part.figures.prompt_per_second
        hot = Sampling(1.5, 7)
        drawn, again = (["".join(t.text for t in written(engine, 8, hot))] for _ in range(2))
        assert drawn == again != ["".join(one.text for one in alone)]

        def stop() -> None:
            raise StoppedError("the visitor has gone")

        stopped = engine.write(PROMPT, 8)
        next(stopped)
        with stoppable(stop), pytest.raises(StoppedError), stopped:
            next(stopped)
        assert len(stopped.tokens) == 1
    assert not list(tmp_path.iterdir()), "a closed engine leaves no file"


CHECKPOINTS = {
    "compressed-tensors": ("int4_group64_asym", 0.0),
    "gptq": ("int4_group64", 1e-3),
    "awq": ("int4_group128_asym", 1e-3),
    "bitsandbytes": ("nf4_block64", 1e-3),
    "gguf": ("q4_0", 0.0),
}
"""Target -> a scheme that it carries, and the largest relative difference: of scales in float16."""


@pytest.mark.parametrize("target", sampled(CHECKPOINTS, ["compressed-tensors", "gptq"]))
def test_checkpoints_run_too(target: str, llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Written by this project and read back, with the weights of the recipe that they were written by."""
    name, accepted = CHECKPOINTS[target]
    recipe = recipe_of(layers, name)
    out = write_checkpoint(target, llama, recipe.layers, tmp_path / "out").folder
    subject = subject_of(str(out))
    with open_engine(subject, "torch", CPU) as engine:
        assert isinstance(engine, TorchEngine)
        with torch_engine(llama, recipe) as ours:
            for layer in layers:
                weight, mine = (one.network.get_submodule(layer).weight.detach() for one in (engine, ours))
                assert float((weight - mine).abs().max()) <= accepted * float(mine.abs().max()), layer
            if accepted == 0:
                assert [one.id for one in written(engine)] == [one.id for one in written(ours)]
        assert engine.stored_bytes < ours.subject.original.stored_bytes / 2
        assert len(written(engine, 4)) == 4


LIES = {"block_count": (0, 2**31 - 1), "attention.head_count": (0, 7), "context_length": (0, 2**32 - 1)}
"""Numbers of a GGUF file's metadata, most of which end llama.cpp's process."""


@pytest.mark.parametrize("key", LIES)
def test_a_hostile_file_ends_llama_cpp_alone(key: str, llama: Path, tmp_path: Path) -> None:
    """Each number is refused, or computed with. If this fails, a file ends the command or the page."""
    pytest.importorskip("xllamacpp")
    recipes = {"model.layers.0.mlp.up_proj": Recipe.parse("q4_0")}
    file = write_checkpoint("gguf", llama, recipes, tmp_path / "gguf").folder / "model.gguf"
    whole, entry = file.read_bytes(), f"llama.{key}".encode()
    at = whole.index(entry) + len(entry) + 4
    for number in LIES[key]:
        file.write_bytes(whole[:at] + number.to_bytes(4, "little") + whole[at + 4 :])
        with suppress(ValueError), open_engine(subject_of(str(file)), LlamaEngine.name, CPU) as engine:
            assert len(written(engine, 2)) == 2 and key == "context_length"


def test_a_process_that_ends_ends_its_texts(llama: Path) -> None:
    """Killed while it writes, and before: both are refusals that name the signal. One that says nothing can
    be stopped."""
    pytest.importorskip("xllamacpp")
    with open_engine(subject_of(str(llama), Recipe.parse("q8_0")), LlamaEngine.name, CPU) as engine:
        assert isinstance(engine, LlamaEngine) and engine._server is not None
        process, writing = engine._server._process, engine.write(PROMPT, 64)
        next(writing)
        process.send_signal(signal.SIGSTOP)
        stopped, checks = engine.write(PROMPT, 2), iter([None])

        def stop() -> None:  # the second look, while llama.cpp says nothing
            if next(checks, 0) == 0:
                raise StoppedError("the visitor has gone")

        with stoppable(stop), pytest.raises(StoppedError):
            next(stopped)
        process.kill()
        for text in (writing, engine.write(PROMPT, 2)):
            with pytest.raises(ValueError, match="SIGKILL"):
                list(text)


def test_bytes_are_those_of_the_file(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Codes and scales of a recipe's layers and all other tensors, as a file of its format has them."""
    recipe = recipe_of(layers, "q8_0", "q4_0")
    out = write_checkpoint("gguf", llama, recipe.layers, tmp_path / "out").folder
    file = subject_of(str(out / "model.gguf"))
    assert subject_of(str(llama), recipe).stored_bytes == file.stored_bytes


def test_what_cannot_run_is_refused(
    llama: Path, tmp_path: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with what was wrong; nothing is loaded for it in vain."""
    (bare := tmp_path / "bare").mkdir()
    for path in llama.iterdir():
        if not path.name.startswith("tokenizer"):
            (bare / path.name).symlink_to(path)
    model, coded, cast = str(llama), tmp_path / "coded", Recipe.parse("int4_group64")
    layer = "model.layers.0.mlp.up_proj"
    write_checkpoint("compressed-tensors", llama, {layer: cast}, coded)
    write_checkpoint("gguf", llama, {layer: Recipe.parse("q4_0")}, tmp_path / "gguf")
    for name, wrong in (("types", {"num_hidden_layers": "2"}), ("padding", {"pad_token_id": 10**9})):
        shutil.copytree(llama, tmp_path / name)
        config = tmp_path / name / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | wrong))
    other = dataclasses.replace(recipe_of([layer], "q4_0"), weights_sha256="ab" * 32)
    unknown = recipe_of(["model.layers.9.mlp.up_proj"], "int4_group64")
    subject, nvfp4 = subject_of(model), subject_of(model, Recipe.parse("nvfp4"))
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: subject_of(str(minilm)), "no text"),
        (lambda: subject_of(str(bare)), "no tokenizer"),
        (lambda: subject_of(str(tmp_path / "none")), "none"),
        (lambda: subject_of(model, other), "recipe"),
        (lambda: torch_engine(llama, unknown), "'model.layers.9"),
        (lambda: subject_of(str(tmp_path / "gguf" / "model.gguf"), cast), "as it is"),
        (lambda: subject_of(str(tmp_path / "types")), r"cannot read its config\.json: .*num_hidden_layers"),
        (lambda: torch_engine(tmp_path / "padding"), "padding"),
        (lambda: open_engine(subject, "vllm"), "auto, torch, llama.cpp"),
        (lambda: open_engine(nvfp4, "llama.cpp"), "ggml"),
        (lambda: open_engine(subject_of(str(coded)), "llama.cpp"), "in no GGUF file"),
    ]
    for attempt, words in attempts:
        with pytest.raises(ValueError, match=words):
            attempt()
            pytest.fail(words)
    monkeypatch.setattr(LlamaForCausalLM, "forward", Mock(side_effect=AssertionError))  # bitsandbytes' too
    with pytest.raises(SourceError, match="fails at the first token"):
        torch_engine(llama)


@pytest.mark.parametrize("name", NAMES[1:])
def test_what_cannot_be_written_is_refused(name: str, llama: Path) -> None:
    """An empty prompt, no token, more tokens than the model has positions: the same by each engine."""
    if name == LlamaEngine.name:
        pytest.importorskip("xllamacpp")
    with open_engine(subject_of(str(llama), Recipe.parse("q8_0")), name, CPU) as engine:
        for prompt, tokens, words in (
            (" \n", 4, "empty"),
            (PROMPT, 0, "at least 1 token"),
            (PROMPT, 128, r"\+ 128 tokens, tiny-llama has 128 positions"),
            (PROMPT * 20, 4, r"\+ 4 tokens, tiny-llama has 128 positions"),
        ):
            with pytest.raises(ValueError, match=words):
                list(engine.write(prompt, tokens))
        assert len(written(engine, 2)) == 2
    if name == LlamaEngine.name:
        late = engine.write(PROMPT, 2)
        with pytest.raises(ValueError, match="closed"):
            next(late)
    for heat, seed in ((-1.0, 0), (float("nan"), 0), (1.0, -1)):
        with pytest.raises(ValueError, match=r"temperature|seed"):
            Sampling(heat, seed)


def test_a_temperature_as_small_as_a_number_can_be_is_greedy(llama: Path) -> None:
    """Logits divided by it are infinite, and their softmax is NaN."""
    engine = torch_engine(llama)
    assert [one.id for one in written(engine, 4, Sampling(1e-310))] == [one.id for one in written(engine, 4)]
