"""Spellings, hints, broken files and log files of ``explorer survey``, ``recipe`` and ``apply``.

If these fail, a command refuses what another one took, gives advice that leads nowhere, works on half a
model, or says nothing for hours.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from explorer.checkpoints import Plan
from explorer.cli import main, output
from explorer.cli.options import FILE_SUFFIXES
from explorer.cli.survey import SIGNALS, _check_together
from explorer.methods.recipe import Recipe
from explorer.sources.source_limits import SUFFIXES
from explorer.survey import SENSITIVITIES, ModelRecipe
from explorer.survey import run as survey_run

pytestmark = pytest.mark.usefixtures("one_thread")
SPELLED = "int8~1x64~asymmetric~float16~minmax"


def surveyed(model: Path, out: Path, schemes: str) -> str:
    """The survey of a model's weights."""
    assert main(["survey", str(model), "--schemes", schemes, "--signal", "weight", "--out", str(out)]) == 0
    return str(out)


@pytest.mark.parametrize(
    "schemes",
    [
        SPELLED,
        SPELLED.upper(),
        f"{SPELLED},NVFP4",
        "int8~1x64~asymmetric~float16~MinMax, nvfp4,nvfp4",
        "NvFp4",
    ],
)
def test_a_recipe_takes_the_spellings_that_a_survey_takes(
    schemes: str, tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    survey = surveyed(tiny_llama, tmp_path / "s.jsonl", f"{SPELLED},nvfp4")
    assert main(["recipe", survey, "--bits", "9", "--schemes", schemes, "--json"]) == 0, capsys.readouterr()
    asked = {part.strip().lower() for part in schemes.split(",")}
    out = capsys.readouterr().out
    recipe = json.loads(out[out.index('{\n  "recipe"') :])["recipe"]
    assert set(recipe["schemes"]) == asked and len(recipe["schemes"]) == len(asked)


@pytest.mark.parametrize(
    ("together", "hinted"),
    [
        (lambda plan: "one scheme for all" if len(plan.schemes) > 1 else "", True),
        (lambda plan: "graphs are built of other models", False),
    ],
    ids=["a mixture", "the model"],
)
def test_other_schemes_are_advised_where_they_help(
    together: Callable[[Plan], str], hinted: bool, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model's architecture is the reason, no list of schemes changes that."""
    monkeypatch.setattr("explorer.checkpoints.EXPORTS", {"this": SimpleNamespace(together=together)})
    parts = zip(("up", "down"), ("int8_row", "nvfp4"), strict=True)
    layers = {f"model.layers.0.mlp.{part}_proj": Recipe.parse(scheme) for part, scheme in parts}
    with pytest.raises(ValueError, match=r"^this: ") as refused:
        _check_together("this", ModelRecipe(str(tiny_llama), None, "", layers), ("int8_row", "nvfp4"))
    assert ("--schemes names those to choose from" in str(refused.value)) is hinted


@pytest.mark.parametrize("command", ["survey", "apply"])
def test_a_shard_that_is_cut_off_is_an_error(
    command: str, tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its layers would be missing in a survey that looks whole."""
    from transformers import LlamaForCausalLM

    model = tmp_path / "model"
    LlamaForCausalLM.from_pretrained(tiny_llama).save_pretrained(model, max_shard_size="120KB")
    shards = sorted(model.glob("*.safetensors"))
    assert len(shards) > 1
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    recipe = ModelRecipe(str(model), None, "", {"model.layers.0.mlp.up_proj": Recipe.parse("int8_row")})
    recipe.save(tmp_path / "r.json")
    out = ["--out", str(tmp_path / "out")]
    typed = (
        ["survey", str(model), *out]
        if command == "survey"
        else ["apply", str(tmp_path / "r.json"), "--to", "compressed-tensors", *out]
    )
    assert main(typed) == 2
    assert f"{shards[1].name} is cut short" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_log_file_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """About every tenth, and at least every 30 seconds; the last one; nothing for what is done at once."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with output.reporting("tensors", False) as report:
        for done in range(1001):
            now += 0.1
            report(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines[0].startswith("tensors: 100 of 1,000 (10 %), 10.1 s, about 1 min 31 s left")
        and len(lines) == 10
    )
    assert lines[-1].startswith("tensors: 1,000 of 1,000 (100 %)")
    with output.reporting("tensors", False) as report:
        for done in range(4):
            now += 31
            report(done, 1000)
    assert len(capsys.readouterr().err.splitlines()) == 4
    with output.reporting("tensors", False) as report:
        report(5, 5)
    with output.reporting("tensors", True) as report:
        report(5, 5)
    assert capsys.readouterr().err == ""


def test_the_time_left_is_of_the_phase_that_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A survey runs the model before it does the layers. If this fails, the time that took counts as that of
    the first layers, and a minute that is left is half an hour."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    model, later = output.reporting("running the model", False), output.reporting("layers", False, later=True)
    with model as ran, later as layers:
        for done in range(11):
            ran(done, 10)
            now += 100 if done < 10 else 0
        for done in range(1, 5):
            now += 10
            layers(done, 10)
    assert capsys.readouterr().err.splitlines()[-1] == "layers: 4 of 10 (40 %), 30 s, about 1 min left"


def test_a_stopped_survey_says_what_it_keeps(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, Ctrl-C seems to lose the layers that were done."""
    out, found = tmp_path / "s.jsonl", survey_run.survey_layer
    left = [0]

    def stops(*given: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return found(*given)

    monkeypatch.setattr(survey_run, "survey_layer", stops)
    command = ["survey", str(tiny_llama), "--schemes", "int8_row", "--signal", "weight", "--out", str(out)]
    assert main(command) == 130 and "keeps 0 of 16 layers" in capsys.readouterr().err
    left[0] = 2
    assert main(command) == 130
    said = capsys.readouterr().err
    assert "s.jsonl keeps 2 of 16 layers: the same command" in said and said.endswith("stopped\n")


FAST = [
    ("survey /nope", "no folder '/nope' here"),
    ("survey . --signal nope", "no signal 'nope'"),
    ("survey . --out /no/such/s.jsonl", "no folder /no/such"),
    ("survey . --text /no/such.txt", "no such file"),
    ("recipe /no/such.jsonl --bits 4", "no such file"),
    ("recipe README.md", "name one budget"),
    ("recipe README.md --bits 4 --for nope", "no checkpoint format 'nope'; there are compressed-tensors, "),
    ("check /no/such.json", "no such file"),
    ("check README.md --text /no/such.txt", "no such file"),
    ("apply /no/such.json --to gguf --out x", "no such file"),
    ("apply README.md --to nope --out x", "no checkpoint format 'nope'; there are compressed-tensors, "),
    ("apply README.md --to onnx --out x --shard-size 2x", "is no size"),
    ("apply README.md --to gguf --out .", "exists already"),
    ("quantize none.npy --scheme nvfp4", "none.npy: no such file"),
    ("quantize x/none.safetensors --scheme nope", "none.safetensors: no such file"),
    ("compare none.PT", "none.PT: no such file"),
    ("calibrate none.npz", "none.npz: no such file"),
    ("picture none.png --schemes nvfp4 --out a.html", "none.png: no such file"),
]


def test_the_signals_of_the_command_are_those_of_the_table() -> None:
    """The command names them without the table, whose module imports torch."""
    assert set(SIGNALS) == set(SENSITIVITIES)


def test_the_suffixes_of_the_command_are_those_of_the_readers() -> None:
    """If this fails, a missing file is looked for on the Hub, or one that can be read is refused."""
    assert FILE_SUFFIXES == SUFFIXES


def test_bad_input_is_refused_without_torch() -> None:
    """Loading it takes seconds, on a cluster's file system minutes, before a typing error is told."""
    code = """
import json, sys
from explorer.cli import main
for command, _ in json.loads(sys.argv[1]):
    print("#", main(command.split()), file=sys.stderr, flush=True)
    assert "torch" not in sys.modules and "transformers" not in sys.modules, command
"""
    run = subprocess.run(
        [sys.executable, "-c", code, json.dumps(FAST)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 0, run.stderr
    said = run.stderr.split("# 2\n")
    for (command, words), text in zip(FAST, said, strict=False):
        assert words in text, (command, text)
