"""``explorer survey``, ``recipe``, ``check`` and ``apply`` as their user types them, on a tiny model."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.write import WEIGHT_FILES
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.survey import ModelRecipe, Survey, load_survey
from explorer.survey.rows import SURVEYS
from explorer.survey.times import PredictedTime
from explorer.words import byte_size
from tests.survey.conftest import SURVEYED, UP

pytestmark = pytest.mark.usefixtures("one_thread")
(SHIPPED,) = SURVEYS.glob("*.jsonl")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that succeeds prints."""
    capsys.readouterr()
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_a_survey_is_a_table_and_a_file(
    files: dict[str, str], tiny_survey: Survey, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command again opens the file; JSON has the keys of the file."""
    command = ("survey", files["model"], "--text", files["seen"], "--schemes", ",".join(SURVEYED))
    command += ("--out", files["survey"])
    assert set(SURVEYED) <= set(re.findall(r"\w+", run(capsys, *command)))
    found = json.loads(run(capsys, *command, "--json"))
    assert found["head"]["default"] == tiny_survey.head.default == "fisher_diagonal"
    assert [x["name"] for x in found["layers"]] == [x.name for x in tiny_survey.layers]


def test_a_recipe_is_within_its_budget(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """By bits or size; kept layers as asked; and a file that opens."""
    out = run(capsys, "recipe", files["survey"], "--bits", "4.6", "--keep", "layers.0.")
    assert "layers.0." not in out and "layers.1." in out
    recipe = ModelRecipe.load(files["recipe"])
    assert recipe.bits is not None and recipe.bits <= 4.6 and recipe.model == files["model"]
    found = json.loads(run(capsys, "recipe", files["survey"], "--size", "80kB", "--json"))
    assert found["choice"]["loss"] == found["recipe"]["predicted_loss"]


def test_a_recipe_is_within_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU here the times are recorded ones: the file says whose time it is and how it is known."""
    monkeypatch.setattr("explorer.core.backend.gpu_device", lambda: None)
    out = tmp_path / "fast.json"
    run(capsys, "recipe", str(SHIPPED), "--time", "240us", "--batch", "16", "--out", str(out))
    time = ModelRecipe.load(out).predicted_time
    assert time is not None and time.seconds <= 240e-6 and time.batch == 16 and time.machine == "NVIDIA H200"
    assert time.how == "scaled"


def test_a_check_stands_beside_its_prediction(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of loss and time; a loss on the calibration texts is told from one on others."""
    timed = tmp_path / "timed.json"
    time = PredictedTime(1e-3, 16, "NVIDIA H200", how="measured")
    replace(ModelRecipe.load(files["recipe"]), predicted_time=time).save(timed)
    command = ("check", str(timed), "--survey", files["survey"], "--device", "cpu", "--json", "--text")
    found = json.loads(run(capsys, *command, files["held-out"]))
    first, of_time = found["rows"][0], found["time"]
    assert of_time["predicted"]["seconds"] == 1e-3 and of_time["measured"] is None and of_time["why"]
    assert first["what"] == "recipe" and first["loss"]["value"] > 0 and first["loss"]["texts"] == 3
    assert [
        json.loads(run(capsys, *command, files[name]))["calibrated"] for name in ("seen", "held-out")
    ] == [
        True,
        False,
    ]


def test_texts_are_read_as_the_options_say(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By columns and kinds, with a table of kinds, and the texts that could not be used counted."""
    texts = ("--text", files["rows"], "--column", "body")
    out = run(capsys, "check", files["recipe"], *texts)
    assert "prose" in out and "2 of 3 texts, 5 tokens" in out
    found = json.loads(run(capsys, "check", files["recipe"], *texts, "--samples", "1", "--json"))
    assert found["rows"][0]["loss"]["texts"] == 1
    survey = ("survey", files["model"], *texts, "--schemes", "nvfp4", "--out", str(tmp_path / "s.jsonl"))
    run(capsys, *survey)
    head = load_survey(tmp_path / "s.jsonl").head
    assert (head.texts, head.texts_left_out) == (2, 1)
    assert main([*survey, "--samples", "1"]) == 2 and "s.jsonl" in capsys.readouterr().err


REFUSED = [
    ("survey MODEL --text ROWS", "body, kind"),
    ("survey MODEL --text SEEN --column a", "seen.txt"),
    ("survey MODEL --text SEEN --sequence-length 8 --signal fisher_diagonal --out NEW", "end token"),
    ("survey MODEL --text BLANK", "blank.txt"),
    ("survey MODEL --out FOLDER", "is a folder"),
    ("survey MODEL --out SEEN", "seen.txt"),
    ("survey MODEL --schemes nvfp4 --out SURVEY", "the schemes"),
    ("survey MODEL --methods gptq,awq --out NEW", "--method awq"),
    ("recipe SURVEY", "--bits, --size or --time"),
    ("recipe SURVEY --bits 4 --size 1MB", "--bits, --size or --time"),
    ("recipe SURVEY --size 0MB", "--size"),
    ("recipe RECIPE --bits 4.6", "recipe, no survey"),
    ("recipe SURVEY --bits 6 --for bitsandbytes", "nf4_block64"),
    ("recipe SURVEY --bits 9 --inputs int4_row", "int8_row, "),
    ("recipe SURVEY --bits 9 --keep-inputs down", "give --inputs"),
    ("recipe SURVEY --bits 9 --inputs int8_row --keep-inputs nope", "'nope'"),
    ("recipe SURVEY --bits 9 --inputs int8_row --for awq", "compressed-tensors or vllm"),
    ("recipe SURVEY --bits 9 --inputs int8_row --schemes int4_group64", "INT8 weights by row or tensor"),
    ("recipe SHIPPED --time 10us --batch 16", "226.2 µs"),
    ("recipe SHIPPED --bits 4.5 --batch 16", "--batch"),
    ("check ODD", "odd.json"),
    ("check RECIPE --text SEEN --sequence-length 100", "64 positions"),
    ("check RECIPE --model BERT", "made for"),
    ("check RECIPE --recent 3", "--cache"),
    ("apply RECIPE --to gguf --model BERT --out NEW", "made for"),
    ("apply RECIPE --to onnx --text SEEN --out NEW", "--measure"),
    ("cache MODEL --schemes int8_column", "int8_column"),
    ("check RECIPE --cache int8_row", "two schemes"),
]
"""Commands, and the fact that the reader needs."""


@pytest.mark.parametrize(("command", "fact"), REFUSED, ids=[command for command, _ in REFUSED])
def test_bad_input_is_one_line_and_code_2(
    files: dict[str, str],
    tiny_bert: Path,
    command: str,
    fact: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is written."""
    monkeypatch.setenv("EXPLORER_DEVICE", "cpu")
    places = {**files, "bert": str(tiny_bert), "shipped": str(SHIPPED)}
    assert main([places.get(word.lower(), word) if word.isupper() else word for word in command.split()]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ") and fact in last and not Path(files["new"]).exists()


def test_sizes_are_read_in_powers_of_1000_or_1024() -> None:
    """A budget in the units that file managers and llama.cpp print is that budget."""
    sizes = {"3.2GB": 3.2e9, "800 MB": 8e8, "60 mb": 6e7, "12": 12, "1k": 1e3, "12 B": 12}
    sizes |= {"57 MiB": 57 * 2**20, "2gib": 2**31}
    assert {text: byte_size(text) for text in sizes} == sizes
    for text in ("", "MB", "4,5 MB", "-3 MB", "12 iB", "3 PB", "1e3"):
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            byte_size(text)


def test_apply_writes_what_the_recipe_says(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint whose configuration names the schemes, with a method's codes. A target that cannot carry
    it is refused before the model is loaded: of a large one that takes half a minute."""
    recipe, out = str(tmp_path / "r.json"), tmp_path / "made"
    budget = ("--bits", "6", "--schemes", "int4_group64,int8_row", "--for", "compressed-tensors")
    run(capsys, "recipe", files["survey"], *budget, "--method", "gptq", "--out", recipe)
    seen = ("--calibration", files["seen"])
    run(capsys, "apply", recipe, "--to", "compressed-tensors", *seen, "--out", str(out))
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert {g["weights"]["num_bits"] for g in config["config_groups"].values()} == {4, 8}
    monkeypatch.setattr("explorer.models.capture.load_model", lambda *_, **__: pytest.fail("it was loaded"))
    assert main(["apply", recipe, "--to", "awq", "--out", str(tmp_path / "x")]) == 2
    assert "INT8" in capsys.readouterr().err and not (tmp_path / "x").exists()


CARDS = [
    ("compressed-tensors", True, ()),
    pytest.param("onnx", False, (), marks=pytest.mark.thorough),
    ("compressed-tensors", False, ("--inputs", "int8_row")),
    pytest.param("compressed-tensors", False, ("--method", "awq"), marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("target", "read", "more"), CARDS)
def test_a_card_has_what_was_measured(
    files: dict[str, str],
    target: str,
    read: bool,
    more: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its numbers are those of `check` on the same texts, also where no reader gave a network: with quantized
    inputs and folded factors; its bytes are those of the files."""
    recipe, out = str(tmp_path / "r.json"), tmp_path / "out"
    run(capsys, "recipe", files["survey"], "--bits", "8.6", "--for", target, "--out", recipe, *more)
    measured = ("--measure", "--text", files["held-out"], "--verify" if read else "--no-verify")
    run(capsys, "apply", recipe, "--to", target, "--out", str(out), *measured)
    card = (out / "README.md").read_text()
    said = json.loads(run(capsys, "check", recipe, "--text", files["held-out"], "--json"))
    loss = said["rows"][0]["loss"]
    (row,) = [line for line in card.splitlines() if line.startswith("| all |")]
    shown = [cell.strip() for cell in row.strip("|").split("|")]
    assert shown[1] == "3" and float(shown[3]) == pytest.approx(loss["value"], rel=0.1 if read else 2e-3)
    assert float(shown[6]) == pytest.approx(loss["scores"]["perplexity"], rel=0.01)
    kept = [path.stat().st_size for path in out.iterdir() if path.suffix in WEIGHT_FILES]
    assert f"{sum(kept):,} bytes" in card


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_apply_leaves_nothing(
    number: int, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system ends a job by SIGTERM, a terminal that is closed by SIGHUP: what was written so far
    would fill the disk for good. ``nohup`` ignores a signal."""
    ignored = ({signal.SIGTERM, signal.SIGHUP} - {number}).pop()
    before = signal.signal(ignored, signal.SIG_IGN)
    read, begun = ModelFolder.read, list[Path]()

    def ended(self: ModelFolder, name: str) -> Tensor:
        begun.extend(tmp_path.glob(".out.*.partial"))
        if begun:
            signal.raise_signal(ignored)
            signal.raise_signal(number)
        return read(self, name)

    monkeypatch.setattr(ModelFolder, "read", ended)
    recipe = tmp_path / "r.json"
    ModelRecipe(files["model"], None, "", {UP: Recipe.parse("int8_row")}).save(recipe)
    command = ["apply", str(recipe), "--to", "compressed-tensors", "--no-verify"]
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--out", str(tmp_path / "out")])
    signal.signal(ignored, before)
    assert stopped.value.code == 128 + number and begun and list(tmp_path.iterdir()) == [recipe]
