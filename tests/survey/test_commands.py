"""``explorer survey``, ``recipe``, ``check`` and ``apply`` as their user types them, on a tiny model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from explorer.checkpoints import EXPORTS
from explorer.checkpoints.write import WEIGHT_FILES
from explorer.cli import main
from explorer.methods import METHODS
from explorer.methods.recipe import Recipe
from explorer.models.skeleton import skeleton_of
from explorer.survey import ModelRecipe, load_survey
from explorer.survey.rows import SURVEYS
from explorer.survey.times import PredictedTime
from explorer.words import byte_size

pytestmark = pytest.mark.usefixtures("one_thread")
SCHEMES = "int3_group64_asym,int4_group64,nvfp4,int8_row"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def files(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Texts, and the survey and the recipe of a tiny model."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "seen.txt").write_text("the cat sleeps on the warm roof\n\nthe train was late again\n")
    (folder / "held-out.txt").write_text("she counts the ships\nthe lamp was late\n")
    (folder / "blank.txt").write_text("\n \n")
    (folder / "odd.json").write_text("{}")
    rows = [{"body": "the cat sleeps", "kind": "prose"}, {"body": "the roof", "kind": "code"}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, {"body": "cat"})))
    names = {p.stem: str(p) for p in folder.iterdir()} | {"model": str(tiny_llama), "folder": str(folder)}
    names["new"] = str(folder / "new.jsonl")
    names |= {"survey": str(folder / "s.jsonl"), "recipe": str(folder / "r.json")}
    survey = (
        "survey",
        names["model"],
        "--text",
        names["seen"],
        "--schemes",
        SCHEMES,
        "--out",
        names["survey"],
    )
    assert main([*survey, "--json"]) == 0
    assert main(["recipe", names["survey"], "--bits", "4.6", "--out", names["recipe"], "--json"]) == 0
    return names


def test_a_survey_is_a_table_and_a_file(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The same command again opens the file; JSON has the keys of the file."""
    command = (
        "survey",
        files["model"],
        "--text",
        files["seen"],
        "--schemes",
        SCHEMES,
        "--out",
        files["survey"],
    )
    code, out, err = run(capsys, *command)
    assert code == 0 and "nvfp4" in out and "written: " in out and "━" not in err
    code, out, _ = run(capsys, *command, "--json")
    found = json.loads(out)
    survey = load_survey(files["survey"])
    assert found["head"]["default"] == survey.head.default == "fisher_diagonal"
    assert [x["name"] for x in found["layers"]] == [x.name for x in survey.layers]


def test_a_recipe_is_within_its_budget(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """By bits, size or loss; fused and kept layers as asked; and a file that opens."""
    code, out, _ = run(capsys, "recipe", files["survey"], "--bits", "4.6", "--fuse", "--keep", "layers.0.")
    assert code == 0 and "not written" in out and "layers.0." not in out
    recipe = ModelRecipe.load(files["recipe"])
    assert recipe.bits is not None and recipe.bits <= 4.6 and recipe.model == files["model"]
    for budget in (("--size", "80kB"), ("--loss", "0.05")):
        code, out, _ = run(capsys, "recipe", files["survey"], *budget, "--json")
        found = json.loads(out)
        assert code == 0 and found["choice"]["loss"] == found["recipe"]["predicted_loss"]
        assert budget[0] == "--size" or found["choice"]["loss"] <= 0.05
    code, out, err = run(capsys, "recipe", files["survey"], "--bits", "4.6")
    assert code == 0 and " by the calibration texts; no choice of this size" in out
    code, out, err = run(capsys, "recipe", files["survey"], "--bits", "4.6", "--signal", "weight")
    assert code == 0 and "error, not a loss" in out and "says next to nothing of which layer" in err


def test_a_recipe_is_within_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By itself, with bits, and as a rate; the file says whose time it is and how it is known."""
    (shipped,), out = SURVEYS.glob("*.jsonl"), tmp_path / "fast.json"
    timed = ("--batch", "16", "--on", "h200")
    code, text, _ = run(capsys, "recipe", str(shipped), "--time", "155us", *timed, "--out", str(out))
    time = ModelRecipe.load(out).predicted_time
    assert code == 0 and time is not None and time.seconds <= 155e-6 and time.batch == 16
    assert "in a step of batch 16 (NVIDIA H200, modelled, ±" in text and "sampling are not counted" in text
    both = ("--tokens-per-second", "6000", "--bits", "4.4", "--json")
    code, text, _ = run(capsys, "recipe", str(shipped), *both, *timed)
    found = json.loads(text)["recipe"]
    assert code == 0 and found["bits"] <= 4.4 and found["predicted_time"]["seconds"] <= 1 / 6000
    assert found["predicted_time"]["how"] == "modelled" and 0 < found["predicted_time"]["error"] < 1


TIMES = [
    (
        "--time 10us --batch 16",
        "10 µs are less than the linear layers take by these schemes: 146 µs at least",
    ),
    ("--time 12", "'12' is no time: write it like 12ms"),
    ("--time 1ms --on h100", "recorded: h200; 'here' measures this machine's GPU"),
    ("--time 1ms --on here", "need a GPU"),
    ("--time 1ms --tokens-per-second 80", "say the same: give one"),
    ("--time 1ms --loss 0.1", "--loss goes with no budget of time"),
    ("--bits 4.5 --batch 16", "--batch and --on are of a budget of time"),
    ("--tokens-per-second 0", "a number above 0"),
    ("--time 1ms --bits 1", "these schemes take at least"),
    ("--time 1ms --batch 100000", "recorded with"),
]


@pytest.mark.parametrize(("options", "words"), TIMES, ids=[options for options, _ in TIMES])
def test_a_budget_of_time_that_cannot_be_had_is_one_line(
    options: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code 2, and what there is instead."""
    monkeypatch.setenv("EXPLORER_DEVICE", "cpu")
    (shipped,) = SURVEYS.glob("*.jsonl")
    code, out, err = run(capsys, "recipe", str(shipped), *options.split())
    assert code == 2 and out == "" and words in err and len(err.strip().splitlines()) == 1


def test_a_check_says_the_truth_and_a_verdict(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    timed = Path(files["recipe"]).with_name("timed.json")
    time = PredictedTime(1e-3, 16, "NVIDIA H200", how="measured")
    replace(ModelRecipe.load(files["recipe"]), predicted_time=time).save(timed)
    command = ("check", str(timed), "--text", files["held-out"], "--survey", files["survey"])
    command += ("--device", "cpu")
    code, out, _ = run(capsys, *command)
    assert code == 0 and "one scheme for all layers" in out and "nats of KL a token, over 2 texts" in out
    assert "of batch 16: predicted 1 ms (NVIDIA H200, measured); it is predicted only" in out
    code, out, _ = run(capsys, *command, "--json")
    checked = json.loads(out)
    rows, of_time = checked["rows"], checked["time"]
    assert of_time["predicted"]["seconds"] == 1e-3 and of_time["measured"] is None and of_time["why"]
    assert code == 0 and rows[0]["what"] == "recipe" and rows[0]["loss"]["value"] > 0


def test_texts_are_read_as_the_options_say(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By columns and kinds, with a table of kinds, and the texts that could not be used counted."""
    texts = ("--text", files["rows"], "--column", "body")
    code, out, err = run(capsys, "check", files["recipe"], *texts)
    assert code == 0 and "kind of text" in out and "prose" in out and "kl p99" in out, err
    assert "over 2 of 3 texts, 5 tokens" in out
    code, out, _ = run(capsys, "check", files["recipe"], *texts, "--samples", "1", "--json")
    assert code == 0 and json.loads(out)["rows"][0]["loss"]["texts"] == 1
    survey = ("survey", files["model"], *texts, "--schemes", "nvfp4", "--out", str(tmp_path / "s.jsonl"))
    code, _, err = run(capsys, *survey)
    head = load_survey(tmp_path / "s.jsonl").head
    assert code == 0 and (head.texts, head.texts_left_out) == (2, 1), err
    code, _, err = run(capsys, *survey, "--samples", "1")
    assert code == 2 and "is another survey: the texts" in err


BAD = [
    ("survey MODEL --text ROWS", "it has body, kind: name one by --column"),
    ("survey MODEL --text SEEN --column a", "has no columns"),
    ("survey MODEL --samples 4", "are of a file of texts: name one"),
    ("survey MODEL --text SEEN --sequence-length 8 --signal fisher --out NEW", "has no end token"),
    ("check RECIPE --text SEEN --sequence-length 100", "100 tokens are longer than the 64 positions"),
    ("survey /nope", "no folder '/nope' here"),
    ("survey MODEL --schemes ,", "expected a comma-separated list"),
    ("survey MODEL --schemes int4_grup128", "did you mean int4_group128"),
    ("survey MODEL --signal nope", "no signal 'nope'"),
    ("survey MODEL --text BLANK", "has no line of text"),
    ("survey MODEL --out /no/such/s.jsonl", "no folder /no/such"),
    ("survey MODEL --out FOLDER", "is no regular file"),
    ("survey MODEL --out SEEN", "is no JSON"),
    ("survey MODEL --schemes nvfp4 --out SURVEY", "is another survey: the schemes"),
    ("recipe SURVEY", "name one budget: --bits, --size or --loss"),
    ("recipe SURVEY --bits 4 --size 1GB", "name one budget"),
    ("recipe SURVEY --bits 1", "these schemes take at least"),
    ("recipe SURVEY --size 3.2XB", "is no size"),
    ("recipe SURVEY --loss 1e-12", "no choice of these schemes"),
    ("recipe SURVEY --bits 4.6 --signal output", "has no signal 'output'"),
    ("recipe SURVEY --bits 4.6 --method nope", "no method 'nope'"),
    ("recipe SURVEY --bits 4.6 --out FOLDER", "is no regular file"),
    ("recipe RECIPE --bits 4.6", "r.json is a recipe, no survey"),
    ("recipe SURVEY --bits 4.6 --keep nosuch", "no layer's name matches 'nosuch'"),
    ("recipe /no/such.jsonl --bits 4.6", "no such file"),
    ("recipe SURVEY --size 0MB", "--size is the size of the whole model, more than 0 bytes"),
    ("check ODD", "odd.json: this is no recipe"),
    ("check RECIPE --text /no/such.txt", "no such file"),
    ("check RECIPE --model BERT", "are not those that the recipe was made for"),
    (
        "apply RECIPE --to gguf --model BERT --out /tmp/is-not-made",
        "are not those that the recipe was made for",
    ),
]


@pytest.mark.parametrize(("command", "words"), BAD, ids=[command for command, _ in BAD])
def test_bad_input_is_one_line_and_code_2(
    files: dict[str, str], tiny_bert: Path, command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {**files, "bert": str(tiny_bert)}
    typed = [places.get(word.lower(), word) if word.isupper() else word for word in command.split()]
    code, _, err = run(capsys, *typed)
    last = err.strip().splitlines()[-1]
    assert code == 2 and last.startswith("error: ") and words in last, err


SIZES = [("3.2GB", 3.2e9), ("800 MB", 8e8), ("60 mb", 6e7), ("12", 12), ("1k", 1e3), ("12 B", 12),
         ("57 MiB", 57 * 2**20), ("2gib", 2**31)]  # fmt: skip


@pytest.mark.parametrize(("text", "size"), SIZES, ids=[text for text, _ in SIZES])
def test_sizes_are_read_in_powers_of_1000_or_1024(text: str, size: float) -> None:
    """A budget in the units that file managers and llama.cpp print is that budget."""
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "4,5 MB", "-3 MB", "12 iB", "3 PB", "1e3"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size: write it like 3\.2GB, 800 MB or 2 GiB"):
        byte_size(text)


def test_another_target_is_refused_before_the_model_is_loaded(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large model that takes half a minute, and the message is the same."""
    recipe = str(tmp_path / "r.json")
    budget = ("--bits", "6", "--schemes", "int4_group64,int8_row", "--for", "compressed-tensors")
    assert run(capsys, "recipe", files["survey"], *budget, "--method", "gptq", "--out", recipe)[0] == 0

    def load(*_: object, **__: object) -> None:
        pytest.fail("the model was loaded")

    monkeypatch.setattr("explorer.models.capture.load_model", load)
    code, _, err = run(capsys, "apply", recipe, "--to", "awq", "--out", str(tmp_path / "x"))
    assert code == 2 and "cannot carry" in err and "INT8" in err


def test_apply_writes_what_the_recipe_says(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint whose configuration names the schemes; methods' codes too; refusals before anything is
    written."""
    pytest.importorskip("explorer.checkpoints")
    recipe, out = str(tmp_path / "r.json"), tmp_path / "made"
    budget = ("--bits", "6", "--schemes", "int4_group64,int8_row", "--for", "compressed-tensors", "--fuse")
    code, *_ = run(capsys, "recipe", files["survey"], *budget, "--method", "gptq", "--out", recipe)
    assert code == 0
    command = (
        "apply",
        recipe,
        "--to",
        "compressed-tensors",
        "--calibration",
        files["seen"],
        "--out",
        str(out),
    )
    code, text, err = run(capsys, *command)
    assert code == 0 and "written: " in text, err
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert {g["weights"]["num_bits"] for g in config["config_groups"].values()} == {4, 8}
    assert "Fisher" in (out / "README.md").read_text()
    for wrong, words in (
        (("apply", recipe, "--to", "nope", "--out", str(tmp_path / "x")), "no checkpoint format 'nope'"),
        (("apply", recipe, "--to", "awq", "--out", str(tmp_path / "x")), "INT8"),
        (("recipe", files["survey"], "--bits", "6", "--for", "nope"), "no checkpoint format 'nope'"),
    ):
        code, _, err = run(capsys, *wrong)
        assert code == 2 and words in err and not (tmp_path / "x").exists()


@pytest.mark.parametrize(("target", "read"), [("compressed-tensors", True), ("onnx", False)])
def test_a_card_has_what_was_measured(
    files: dict[str, str], target: str, read: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A card without a loss says nothing of the model; its numbers are those of `check` on the same texts,
    and its bytes those of the files."""
    recipe, out = str(tmp_path / "r.json"), tmp_path / "out"
    made = ("recipe", files["survey"], "--bits", "7", "--for", target, "--out", recipe)
    assert run(capsys, *made)[0] == 0
    measured = ("--measure", "--text", files["held-out"], "--verify" if read else "--no-verify")
    code, _, err = run(capsys, "apply", recipe, "--to", target, "--out", str(out), *measured)
    assert code == 0, err
    card = (out / "README.md").read_text()
    code, said, _ = run(capsys, "check", recipe, "--text", files["held-out"], "--json")
    loss = json.loads(said)["rows"][0]["loss"]
    (row,) = [line for line in card.splitlines() if line.startswith("| all |")]
    shown = [cell.strip() for cell in row.strip("|").split("|")]
    assert shown[1] == "2" and float(shown[3]) == pytest.approx(loss["value"], rel=0.1 if read else 1e-3)
    assert float(shown[6]) == pytest.approx(loss["scores"]["perplexity"], rel=0.01)
    assert (
        ("as its reader opened it" in card) == read and "2 texts (" in card and "explorer check" not in card
    )
    kept = [path.stat().st_size for path in out.iterdir() if path.suffix in WEIGHT_FILES]
    assert f"which take {sum(kept):,} bytes" in card


def test_texts_to_measure_on_need_a_measurement(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts that are silently ignored would leave a card without a loss."""
    asked = (
        "apply",
        files["recipe"],
        "--to",
        "onnx",
        "--out",
        str(tmp_path / "x"),
        "--text",
        files["held-out"],
    )
    code, _, err = run(capsys, *asked)
    assert code == 2 and err.startswith("error: --text names the texts of --measure: add that, or --verify")


def test_a_loss_on_calibration_texts_is_called_so(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A card or verdict that calls them held out would flatter every model."""
    recipe = str(tmp_path / "r.json")
    made = ("recipe", files["survey"], "--bits", "7", "--for", "onnx", "--out", recipe)
    assert run(capsys, *made)[0] == 0
    for text, flattered in ((files["seen"], True), (files["held-out"], False)):
        code, said, err = run(capsys, "check", recipe, "--text", text)
        assert code == 0 and ("on the calibration texts themselves" in said) == flattered, err
        assert ("on texts that were not calibrated by" in said) != flattered
        out = tmp_path / f"{flattered}"
        asked = ("apply", recipe, "--to", "onnx", "--no-verify", "--measure")
        assert run(capsys, *asked, "--text", text, "--out", str(out))[0] == 0
        card = (out / "README.md").read_text()
        assert ("the calibration texts themselves, which flatters it" in card) == flattered


@pytest.mark.parametrize(
    "more",
    [("--inputs", "int8_row"), ("--method", "awq"), pytest.param((), marks=pytest.mark.thorough)],
)
def test_a_loss_is_of_what_was_written(
    files: dict[str, str], more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no reader gave a network: with quantized inputs and folded factors, as `check` does."""
    recipe, out = str(tmp_path / "r.json"), tmp_path / "out"
    made = ("recipe", files["survey"], "--bits", "8.6", "--for", "compressed-tensors", "--out", recipe)
    assert run(capsys, *made, *more)[0] == 0
    asked = ("apply", recipe, "--to", "compressed-tensors", "--no-verify", "--measure")
    code, _, err = run(capsys, *asked, "--text", files["held-out"], "--out", str(out))
    assert code == 0, err
    (row,) = [line for line in (out / "README.md").read_text().splitlines() if line.startswith("| all |")]
    code, said, err = run(capsys, "check", recipe, "--text", files["held-out"], "--json")
    assert code == 0, err
    first = json.loads(said)["rows"][0]["loss"]["value"]
    assert float(row.split("|")[4]) == pytest.approx(first, rel=2e-3)


@pytest.mark.parametrize("command", ["apply", "recipe"])
def test_the_help_names_every_checkpoint_format(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From the table, so that a new row stands there; and where one is missing."""
    code, out, _ = run(capsys, command, "--help")
    words = out.replace("│", " ").split()
    assert code == 0 and {f"{name}" for name in EXPORTS} <= {word.strip(",.") for word in words}
    if command == "apply":
        assert f"The checkpoint format: {', '.join(EXPORTS)}." in run(capsys, command, "x", "--out", "y")[2]


@pytest.mark.parametrize("command", ["methods", "embed", "recipe"])
def test_the_help_names_every_method(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From the table, so that a new row stands there."""
    code, out, _ = run(capsys, command, "--help")
    assert code == 0 and {*METHODS} <= {word.strip(",.;") for word in out.replace("│", " ").split()}


@pytest.mark.thorough
def test_a_terminated_apply_leaves_nothing(minilm: Path, tmp_path: Path) -> None:
    """A batch system ends a job by SIGTERM: what was written so far would fill the disk for good."""
    network = skeleton_of(minilm)
    assert network is not None
    layers = dict.fromkeys(network.linear, Recipe.parse("nvfp4"))
    ModelRecipe(str(minilm), None, "", layers).save(tmp_path / "r.json")
    command = f"apply {tmp_path}/r.json --to compressed-tensors --out {tmp_path}/out".split()
    run = subprocess.Popen(
        [sys.executable, "-m", "explorer", *command], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL
    )
    while not list(tmp_path.glob(".out.*.partial/*.part")):
        assert run.poll() is None, "it was done before it could be stopped"
        time.sleep(0.002)
    run.terminate()
    assert run.wait(60) == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_survey_without_a_targets_schemes_is_advised(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The usual schemes are of other targets: what to survey instead is said, and why little is to choose."""
    code, _, err = run(capsys, "recipe", files["survey"], "--bits", "6", "--for", "bitsandbytes")
    assert code == 2 and "Survey the model by schemes that bitsandbytes carries: nf4_block64" in err
    code, _, err = run(capsys, "recipe", files["survey"], "--bits", "9", "--for", "onnx-nbits")
    assert "onnx-nbits carries 1 of the 4 surveyed schemes; a survey with --schemes int4_group64," in err
