"""``explorer run`` as its user types it, on a small model."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from explorer.bench import runs
from explorer.cli import main
from explorer.cli import run as command
from explorer.recordings.runs import RunTiming
from lab.runs import runs_table
from tests.running.conftest import PROMPT, recipe_of


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["run", *arguments, "--device", "cpu"])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_text_and_its_figures(
    llama: Path, layers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe's text beside the original's, in words and as JSON with the same content."""
    recipe = tmp_path / "recipe.json"
    recipe_of(layers, "int3_group64_asym", "int2_group64").save(recipe)
    asked = (str(llama), "--recipe", str(recipe), "--prompt", PROMPT, "--tokens", "6", "--compare")
    code, out, _ = run(capsys, *asked)
    assert code == 0 and all(words in out for words in ("torch", PROMPT, "tokens/s", "KL"))
    code, out, _ = run(capsys, *asked, "--json")
    found: dict[str, Any] = json.loads(out)
    changed, original = found["runs"]
    assert code == 0 and [changed["name"], original["name"]] == ["recipe", "original"]
    for one in (changed, original):
        assert len(one["ids"]) == len(one["tokens"]) == 6
        assert one["text"] == "".join(token["text"] for token in one["tokens"])
        assert len(one["tokens"][0]["top"]) == 5 and one["figures"]["tokens_per_second"] > 0
    assert not found["stopped"] and changed["stored_bytes"] < original["stored_bytes"]
    assert len(found["comparison"]["steps"]) == 6 and found["comparison"]["mean_kl"] > 0


def test_ctrl_c_ends_a_text_with_what_there_is(
    llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written and measured so far is printed; the exit code is that of a stopped command."""
    seen: list[str] = []

    def stream(text: str) -> None:
        seen.append(text)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command, "stream", stream)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    code, out, err = run(capsys, str(llama), "--prompt", PROMPT, "--tokens", "90")
    signal.signal(signal.SIGINT, before)
    assert code == 130 and "stopped" in err and seen[0].startswith(PROMPT)
    (row,) = (line for line in out.splitlines() if line.startswith("original   torch"))
    assert "3" in row.split() and "tokens/s" in out


BAD = {
    "--recipe none.json --prompt a": "none.json",
    "--scheme q8_0 --recipe r.json --prompt a": "--recipe or --scheme",
    "--prompt a --compare": "--original MODEL",
    "--prompt a --engine vllm": "'auto', 'torch', 'llama.cpp'",
    "--prompt a --tokens 0": "--tokens",
    "--prompt a --scheme int9": "int9",
    "--tokens 4": "--prompt",
}


def test_bad_input_is_one_line_and_code_2(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty prompt is refused before a model is loaded."""
    for options, words in BAD.items():
        code, out, err = run(capsys, str(llama), *options.split())
        assert code == 2 and not out and len(err.splitlines()) == 1 and words in err, options
    code, out, err = run(capsys, "owner/name", "--prompt", "  ")
    assert code == 2 and not out and "empty" in err


def test_a_model_is_measured_by_every_engine_that_runs_it(
    llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schemes that no GGUF file holds by torch alone; KL is that of the weights, whichever engine runs."""
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(runs, "usual_prompt", lambda: PROMPT)
    asked = ("--schemes", "q8_0,int3_group64", "--tokens", "4", "--repeats", "2", "--device", "cpu", "--json")
    assert main(["bench", "model", str(llama), *asked]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    both = [("", None), ("", None), ("q8_0", rows[2]["kl"]), ("q8_0", rows[2]["kl"])]
    assert [(row["scheme"], row["kl"]) for row in rows] == [*both, ("int3_group64", rows[4]["kl"])]
    assert [row["engine"] for row in rows] == ["torch", "llama.cpp", "torch", "llama.cpp", "torch"]
    assert 0 < rows[2]["kl"] < rows[4]["kl"] and all(row["tokens_per_second"] > 0 for row in rows)
    table = runs_table([RunTiming(**row) for row in rows]).splitlines()
    assert len(table) == 2 + len(rows) and table[2].startswith("| original | torch |")
