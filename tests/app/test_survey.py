"""The survey section's handlers. If these fail, it shows another model's layers, a recipe of another budget,
or a prediction as if it were measured."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from app.parts.slider import FreeSlider
from app.sections import survey
from explorer.checkpoints import EXPORTS
from explorer.survey import Survey, load_survey
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import line_of
from explorer.survey.run import in_this_process

(RECORDED,) = survey.recorded()
FOUND = load_survey(survey.recorded()[RECORDED])


def bought(
    bits: float | None,
    target: str = "any",
    keep: str = "",
    inputs: str = "none",
    by: str = "bits",
    batch: int = 1,
) -> Any:
    return survey.budget(RECORDED, None, target, keep, bits, inputs, by, batch)


def test_the_recipe_is_a_file_of_this_budget() -> None:
    """What is downloaded is what is shown: within the budget, a scheme a layer, with the prediction."""
    out = bought(4.5)
    recipe = ModelRecipe.load(out.recipe["value"])
    assert set(recipe.layers) == {layer.name for layer in FOUND.linear}
    assert recipe.bits is not None and 4.4 < recipe.bits <= 4.5
    assert f"{recipe.predicted_loss:.3g}" in out.sentence
    blocks = [cell for bar in json.loads(out.strip)["data"] for cell in bar["customdata"]]
    assert {name: str(recipe.layers[name].scheme) for name in recipe.layers} == dict(blocks)


def test_the_recipe_shows_each_layers_method(tmp_path: Path) -> None:
    """In the strip, hatched by method, in the sentence and in the file; the commands make the same survey."""
    shares = {"gptq": dict.fromkeys(FOUND.head.schemes, 0.5)}
    rows = [dataclasses.replace(x, methods=shares if x.depth else {}) for x in FOUND.layers]
    head = dataclasses.replace(FOUND.head, methods=("gptq",))
    path = tmp_path / "own.jsonl"
    path.write_text("".join(map(line_of, (head, *rows))))
    out = survey.budget(survey.OWN, str(path), "any", "", 4.0, "none", "bits", 1)
    recipe = ModelRecipe.load(out.recipe["value"])
    by = {x.name: "gptq" if x.depth else "" for x in FOUND.linear}
    assert {name: one.method for name, one in recipe.layers.items()} == by
    bars = json.loads(out.strip)["data"]
    for bar in bars:
        assert {by[name] for name, _ in bar["customdata"]} == {"gptq" if " by GPTQ" in bar["name"] else ""}
    hatches = {(" by GPTQ" in bar["name"], bar["marker"]["pattern"]["shape"]) for bar in bars}
    assert len(hatches) == 2 and len(dict(hatches)) == 2
    assert f"{sum(map(bool, by.values()))} layers" in out.sentence
    assert "--methods gptq" in out.command and "--methods" not in bought(4.0).command


def test_a_budget_beyond_the_ends_is_the_end(said: list[str]) -> None:
    """A slider at its stop still shows a recipe; what is no number is an error."""
    for bits in (-1.0, 0.0, 99.0, None):
        out = bought(bits)
        assert not said and out.bits["minimum"] <= out.bits["value"] <= out.bits["maximum"]
        assert out.bits["interactive"]
    rests = bought(4.5, target="gguf")  # one scheme is left: equal ends are what Gradio refuses
    assert len(set(map(str, ModelRecipe.load(rests.recipe["value"]).layers.values()))) == 1
    assert rests.bits["minimum"] < rests.bits["maximum"] and not rests.bits["interactive"]
    slider = FreeSlider(2, 9, value=4.5, label="Budget")
    assert slider.get_block_name() == "slider" and slider.preprocess(99.0) == 99.0
    for wrong in ("x", None, float("nan"), [1]):
        with pytest.raises(gr.Error, match="Budget"):
            slider.preprocess(wrong)  # type: ignore[arg-type]


TYPED = [
    ("4.5 bits", 4.5, None),
    ("4.5", 4.5, None),
    (" 3 BPW ", 3.0, None),
    ("99 bits", None, None),
    ("54 MB", None, 54e6),
    ("0.0533GB", None, 53.3e6),
    ("1 TB", None, 1e12),
]


def test_a_budget_is_typed_in_bits_or_as_a_size(said: list[str]) -> None:
    """A size is of the whole model. The shown recipe keeps to it, as does what Check and Export get."""
    asked = (RECORDED, None, "any", "", 6.0, "none", "bits", 1)
    for text, bits, most in TYPED:
        out = survey.typed(*asked, text)
        recipe = ModelRecipe.load(out.recipe["value"])
        assert not said and recipe.bits is not None
        assert bits is None or (out.bits["value"] == bits and recipe.bits <= bits)
        one = survey.Budget(*asked[:4], out.bits["value"], *asked[5:]).bought()
        assert one.recipe.layers == recipe.layers
        size = one.front.kept_bytes + one.choice.bytes
        assert most is None or size <= most
        assert most is None or size > 0.99 * most or out.bits["value"] == out.bits["maximum"]


def test_the_printed_command_gives_the_recipe_that_is_shown() -> None:
    """Its bits are rounded up: of a recipe that just fits, a little less has another scheme for a layer."""
    asked = (RECORDED, None, "compressed-tensors", "", 6.0, "none", "bits", 1)
    for text in ("99 bits", "4.51 bits", "55 MB"):
        out = survey.typed(*asked, text)
        bits = float(out.command.partition("--bits ")[2].split()[0])
        again = survey.Budget(*asked[:4], bits, *asked[5:]).bought()
        assert again.recipe.layers == ModelRecipe.load(out.recipe["value"]).layers


def test_what_is_no_budget_is_said(said: list[str]) -> None:
    """Below the field; the recipe before it stays. More than can be used is the most, which is said too."""
    asked = (RECORDED, None, "any", "", 6.0, "none", "bits", 1)
    for text, words in (
        ("much", "4.5 bits"),
        (" 4,5 bits", "4.5 bits"),
        ("2 kB", "51,417,088"),
        ("1 bit", "2.28"),
    ):
        out = survey.typed(*asked, text)
        assert words in out.told and out.sentence == out.recipe == out.curve == out.bits == gr.skip()
    assert "8.07" in survey.typed(*asked, "99 bits").told
    assert survey.typed(*asked, "5 bits").told == survey.dragged(*asked).told == ""
    assert survey.typed(*asked, " ").sentence == gr.skip() and not said
    timed = survey.typed(*asked[:6], "time", 16, "300us")
    assert timed.bits["minimum"] <= timed.bits["value"] <= timed.bits["maximum"] and not said
    assert survey.dragged(*asked).typed == ""


def test_the_budget_is_of_bits_or_of_time(said: list[str]) -> None:
    """The switch changes slider, curve, recipe and command; no recipe is slower than its slider says."""
    asked = (RECORDED, None, "any", "", 4.5, "none")
    timed = survey.switched(*asked, "time", 16)
    low, high, value = (timed.bits[key] for key in ("minimum", "maximum", "value"))
    assert low < value < high and "µs" in timed.bits["label"] and not said
    recipe = ModelRecipe.load(timed.recipe["value"])
    time = recipe.predicted_time
    assert time is not None and time.seconds <= 1e-6 * value * (1 + 1e-9) and time.batch == 16
    assert time.source in timed.sentence
    curve = json.loads(timed.curve)
    assert time.source in curve["layout"]["xaxis"]["title"]["text"] and "NVIDIA H200" in time.source
    assert curve["data"][-1]["x"] == [pytest.approx(1e6 * time.seconds)]
    for beyond, end in ((1.0, low), (1e6, high)):
        out = bought(beyond, by="time", batch=16)
        assert out.bits["value"] == end and not said
    typed = timed.command.partition("--time ")[2].split()
    assert typed[1:3] == ["--batch", "16"]
    again = bought(float(typed[0].removesuffix("us")), by="time", batch=16)
    assert ModelRecipe.load(again.recipe["value"]).layers == recipe.layers
    back = survey.switched(*asked, "bits", 16)
    assert back.bits["value"] == 4.5 and back.bits["label"] == "Budget, bits per weight"
    assert "µs" not in json.loads(back.curve)["layout"]["xaxis"]["title"]["text"]
    bought(4.5, by="time", batch=7)
    assert "1, 8, 16, 32, 64" in said[0] and "7" in said[0]


def test_a_target_takes_only_what_it_carries(said: list[str]) -> None:
    """Else the export refuses the recipe that the page has offered for it; or it says that it has none."""
    shapes, served = {layer.name: layer.shape for layer in FOUND.linear}, 0
    for target, row in EXPORTS.items():
        out = bought(8.5, target=target)
        if said:
            assert "scheme" in said.pop(), target
            continue
        recipe, served = ModelRecipe.load(out.recipe["value"]), served + 1
        assert not any(row.refusal(one.scheme, shapes[name]) for name, one in recipe.layers.items()), target
        assert len({row.family(one.scheme) for one in recipe.layers.values()}) == 1
        assert recipe.target == target
    assert served >= 3


@pytest.mark.thorough
def test_a_stopped_survey_goes_on(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same file, of the same model only."""
    plan, few = survey.SurveyPlan, ("int4_group32_asym", "int8_row")
    monkeypatch.setattr(survey, "SurveyPlan", lambda where: plan(where, None, few, ("weight",)))
    surveyed, go_on, ended = survey.survey_model, threading.Event(), threading.Event()

    def held(*job: Any) -> Iterator[Any]:
        """The layers; the third only once the visitor has stopped the survey."""
        for number, layer in enumerate(in_this_process(*job)):
            assert number < 2 or go_on.wait(60)
            yield layer

    def survey_two(*asked: Any) -> Survey:
        try:
            return surveyed(*asked, rows=held)
        finally:
            ended.set()

    with monkeypatch.context() as at_first:
        at_first.setattr(survey, "survey_model", survey_two)
        steps = survey.run(str(minilm), None)
        begun = next(steps).unfinished
        for out in steps:
            if "layers" in out.status and "a second" in out.status:
                break
        steps.close()
        go_on.set()
        assert ended.wait(60)
    path = Path(begun[1])
    lines = path.read_text().count("\n")
    assert lines == 4, "the head, two layers, and the one that was under way"
    *_, done = survey.run(str(minilm), begun)
    assert done.own == begun[1] and done.file["value"] == begun[1] and done.unfinished is None
    assert load_survey(begun[1]).complete and path.read_text().count("\n") > lines

    def begins_anew(where: str) -> bool:
        with closing(survey.run(where, begun)) as steps:
            file = next(steps).unfinished  # of this run: it changes where the run takes another one
            return file[1] != begun[1] or any(file[1] != begun[1] for _ in steps)

    assert begins_anew(f"{minilm}/")
    head, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(head.replace(load_survey(path).head.weights_sha256, "0" * 64) + rest[0])
    assert begins_anew(str(minilm)), "the model is another one than when it was begun"


def test_kept_and_fused_layers() -> None:
    """What is kept is not in the recipe; query, key and value of a block have one scheme."""
    out = bought(4.5, "vllm", keep="layer.0.")
    layers = ModelRecipe.load(out.recipe["value"]).layers
    assert not any(".0." in name for name in layers)
    groups: dict[str, set[str]] = {}
    for name, one in layers.items():
        if name.rpartition(".")[2] in ("query", "key", "value"):
            groups.setdefault(name.rpartition(".")[0], set()).add(str(one.scheme))
    assert groups and all(len(schemes) == 1 for schemes in groups.values())


def test_a_file_that_is_no_survey_is_refused(tmp_path: Path, said: list[str]) -> None:
    """In words, and the box is free for another one; what was open stays."""
    path, recorded = tmp_path / "x.jsonl", survey.recorded()[RECORDED]
    path.write_text('{"a": 1}\n')
    out = survey.opened(str(path))
    assert said.pop() in out.status and out.upload is None
    path.write_text("".join(Path(recorded).read_text().splitlines(keepends=True)[:4]))
    out = survey.opened(str(path))
    assert "after 3 of" in said[0] and out.upload is None and out.own == gr.update()
    own = survey.opened(str(recorded))
    assert own.own == str(recorded) and own.which["value"] == survey.OWN


@pytest.mark.thorough
def test_the_recipe_is_checked_and_exported(minilm: Path, said: list[str]) -> None:
    """4.16 bits by the recipe lose a quarter less than INT4 asymmetric on sentences that it did not see."""
    asked = (RECORDED, None, "any", "", 4.16, "none", "bits", 1, str(minilm))
    *_, end = survey.check(*asked)
    rows = {line[1]: line for line in end.table}
    true = list(survey.COLUMNS).index("true loss")
    assert end.table[0][0] == "recipe"
    assert end.table[0][true] < 0.75 * rows["INT4 group 128, asymmetric"][true]
    *_, done = survey.export(RECORDED, None, "gguf", "", 8.5, "none", "bits", 1, str(minilm))
    assert Path(done.archive["value"]).stat().st_size > 1e6 and not said
