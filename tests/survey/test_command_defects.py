"""Spellings, hints, broken files and log files of ``explorer survey``, ``recipe`` and ``apply``.

If these fail, a command refuses what another one took, works on half a model, or says nothing for hours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from explorer.cli import main, output
from explorer.cli.options import FILE_SUFFIXES
from explorer.cli.survey import SIGNALS
from explorer.methods.recipe import Recipe
from explorer.sources.source_limits import SUFFIXES
from explorer.survey import SENSITIVITIES, ModelRecipe
from explorer.survey import run as survey_run

pytestmark = pytest.mark.usefixtures("one_thread")
SPELLED = "int8~1x64~asymmetric~float16~minmax"


def test_a_recipe_takes_the_spellings_that_a_survey_takes(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In any case, with spaces, or twice."""
    out = str(tmp_path / "s.jsonl")
    command = ["survey", str(tiny_llama), "--schemes", f"{SPELLED},nvfp4", "--signal", "weight", "--out", out]
    assert main(command) == 0
    for schemes in (SPELLED.upper(), f"{SPELLED.replace('minmax', 'MinMax')}, nvfp4,nvfp4", "NvFp4"):
        capsys.readouterr()
        assert main(["recipe", out, "--bits", "9", "--schemes", schemes, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["recipe"]["schemes"]
        assert sorted(found) == sorted({part.strip().lower() for part in schemes.split(",")})


def test_a_shard_that_is_cut_off_is_an_error(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its layers would be missing in a survey or a checkpoint that looks whole."""
    from transformers import LlamaForCausalLM

    model, out = tmp_path / "model", ["--out", str(tmp_path / "out")]
    LlamaForCausalLM.from_pretrained(tiny_llama).save_pretrained(model, max_shard_size="120KB")
    shards = sorted(model.glob("*.safetensors"))
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    recipe = ModelRecipe(str(model), None, "", {"model.layers.0.mlp.up_proj": Recipe.parse("int8_row")})
    recipe.save(tmp_path / "r.json")
    for command in (
        ["survey", str(model), *out],
        ["apply", str(tmp_path / "r.json"), "--to", "compressed-tensors", *out],
    ):
        assert main(command) == 2
        assert shards[1].name in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_log_file_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """About every tenth, and at least every 30 seconds; the last one; nothing for what is done at once. The
    time left is of the phase that runs: a survey runs the model before it does the layers."""
    now = 0.0
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: now))

    def told() -> list[str]:
        return capsys.readouterr().err.splitlines()

    with output.reporting("tensors", False) as report:
        for done in range(1001):
            now += 0.1
            report(done, 1000)
    lines = told()
    assert len(lines) == 10 and lines[0].startswith("tensors: 100 of 1,000 (10 %), 10.1 s, about 1 min 31 s")
    assert lines[-1].startswith("tensors: 1,000 of 1,000 (100 %)")
    with output.reporting("tensors", False) as report:
        for done in range(4):
            now += 31
            report(done, 1000)
    assert len(told()) == 4
    for quiet in (False, True):
        with output.reporting("tensors", quiet) as report:
            report(5, 5)
    assert not told()
    model, later = output.reporting("running the model", False), output.reporting("layers", False, later=True)
    with model as ran, later as layers:
        for done in range(11):
            ran(done, 10)
            now += 100 if done < 10 else 0
        for done in range(1, 5):
            now += 10
            layers(done, 10)
    assert told()[-1].startswith("layers: 4 of 10 (40 %), 30 s, about 1 min")


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
    for kept in (0, 2):
        left[0] = kept
        assert main(command) == 130 and f"{kept} of 16 layers" in capsys.readouterr().err


def test_what_commands_know_without_torch_is_what_the_modules_know() -> None:
    """If this fails, a signal is unknown, or a missing file is looked for on the Hub."""
    assert set(SIGNALS) == set(SENSITIVITIES) and FILE_SUFFIXES == SUFFIXES


FAST = {
    "survey /nope": "'/nope'",
    "survey . --signal nope": "'nope'",
    "survey . --out /no/such/s.jsonl": "/no/such",
    "survey . --text /no/such.txt": "/no/such.txt",
    "recipe /no/such.jsonl --bits 4": "/no/such.jsonl",
    "recipe README.md": "--bits",
    "recipe README.md --bits 4 --for nope": "compressed-tensors, ",
    "check README.md --text /no/such.txt": "/no/such.txt",
    "apply README.md --to nope --out x": "compressed-tensors, ",
    "apply README.md --to onnx --out x --shard-size 2x": "2x",
    "apply README.md --to gguf --out .": "exists already",
    "quantize none.npy --scheme nvfp4": "none.npy",
    "compare none.PT": "none.PT",
    "picture none.png --schemes nvfp4 --out a.html": "none.png",
}


def test_bad_input_is_refused_without_torch() -> None:
    """Loading it takes seconds, on a cluster's file system minutes, before a typing error is told."""
    code = """
import json, sys
from explorer.cli import main
for command in json.loads(sys.argv[1]):
    print("#", main(command.split()), file=sys.stderr, flush=True)
    assert "torch" not in sys.modules and "transformers" not in sys.modules, command
"""
    command = [sys.executable, "-c", code, json.dumps([*FAST])]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stderr
    for (typed, fact), text in zip(FAST.items(), run.stderr.split("# 2\n"), strict=False):
        assert fact in text, (typed, text)
