"""The section Budget and the model that it is about. If these fail, it shows another model's layers, a recipe
of another budget, or a prediction as if it were measured."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from app.parts.section import drawn
from app.sections import budget, layers, sizes, subject
from app.serving import uploads
from app.state import files
from app.state.memo import Memo
from app.state.query import Query
from app.state.visits import VisitData
from explorer import SourceError, open_source
from explorer.analysis.memory import estimate
from explorer.checkpoints import EXPORTS
from explorer.progress import stoppable
from explorer.schemes import Scheme
from explorer.sources.models import HubModel
from explorer.survey import Frontier, Survey, load_survey
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import line_of
from explorer.survey.run import SurveyPlan, in_this_process, survey_model
from tests.records import read_record

(RECORDED,) = subject.recorded()
FOUND = load_survey(subject.recorded()[RECORDED])


def seen(**query: str) -> tuple[dict[str, str], Query]:
    """What the section shows of an address, and the address."""
    asked = Query({key.rstrip("_"): value for key, value in query.items()})
    return drawn(budget.view(asked)), asked


def recipe_of(shown: dict[str, str], folder: Path) -> ModelRecipe:
    """The recipe that is downloaded."""
    path = folder / "recipe.json"
    path.write_bytes(base64.b64decode(shown["do"].partition("base64,")[2].partition('"')[0]))
    return ModelRecipe.load(path)


def words(shown: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub("<[^>]+>", "", shown)))


@pytest.fixture(autouse=True)
def none_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """No survey was made here before."""
    monkeypatch.setattr(subject, "_MADE", Memo(1 << 20))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> VisitData:
    """A page that stays open."""
    data = VisitData()
    monkeypatch.setattr(budget, "visit", lambda: data)
    return data


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The visitor's uploads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "uploaded").mkdir()
    return uploads.store()


def test_the_recipe_is_a_file_of_this_budget(tmp_path: Path) -> None:
    """What is downloaded is what is shown: within the budget, a scheme a layer, with the prediction; and A
    and B are what it is held against."""
    shown, _ = seen(for_="any", scheme="nvfp4", second="int8_row")
    recipe = recipe_of(shown, tmp_path)
    assert set(recipe.layers) == {layer.name for layer in FOUND.linear}
    assert recipe.bits is not None and 4.4 < recipe.bits <= 4.5
    said = words(shown["headline"])
    assert f"{recipe.predicted_loss:.3g}, predicted" in said
    nvfp4, int8 = (FOUND.linear and sum(x.cost(FOUND.head.default, name) for x in FOUND.linear)
                   for name in ("nvfp4", "int8_row"))  # fmt: skip
    assert f"{100 * (1 - recipe.predicted_loss / nvfp4):.0f} % less than NVFP4" in said  # type: ignore[operator]
    assert f"{recipe.predicted_loss / int8:.2g} times as much as INT8" in said  # type: ignore[operator]
    titles = dict(re.findall(r'title="([\w.]+): ([^",]+)', unescape(shown["map"])))
    assert titles == {name: one.label.partition(",")[0] for name, one in recipe.layers.items()}


def test_a_layer_opens_under_tensor(minilm: Path) -> None:
    """From the map and from the survey's cells; a layer that ships opens without the model, and one that is
    not here is refused."""
    key = "encoder.layer.0.attention.self.key"
    assert f'data-layer="{key}"' in seen()[0]["map"] and key in drawn(layers.view(Query({})))["layers"]
    here = Query({"model": str(minilm)})
    opened = layers.open_cell(here, {"data": [key, "nvfp4", 0.1]})
    assert opened["source"] == "model" and opened["model"] == str(minilm) and opened["tab"] == ""
    assert (opened["layer"], opened["scheme"], opened["second"]) == (f"{key}.weight", "nvfp4", "")
    shipped = budget.open_layer(Query({}), {"layer": "encoder.layer.3.output.dense", "scheme": "mxfp4"})
    assert shipped["sample"] == "mlp_down" and shipped["second"] == "nvfp4"
    for what, said in (({"layer": "x"}, "no layer 'x'"), ({"layer": key}, "cannot be reached|not in|nor in")):
        with pytest.raises(ValueError, match=said):
            budget.open_layer(Query({}), {"scheme": "nvfp4", **what})


def test_the_recipe_shows_each_layers_method(store: Path) -> None:
    """A survey of methods lets each layer have its own; they may be asked for without one, and then the
    prediction says that it is of rounding. The commands make the same."""
    shares = {"gptq": dict.fromkeys(FOUND.head.schemes, 0.5)}
    rows = [dataclasses.replace(x, methods=shares if x.depth else {}) for x in FOUND.layers]
    head = dataclasses.replace(FOUND.head, methods=("gptq",))
    path = store / "uploaded" / "own.jsonl"
    path.write_text("".join(map(line_of, (head, *rows))))
    own = {"survey": "own", "surveyfile": str(path), "for_": "any", "budget": "4"}
    shown, _ = seen(**own)
    recipe = recipe_of(shown, store)
    assert {name: one.method for name, one in recipe.layers.items()} == {
        x.name: "gptq" if x.depth else "" for x in FOUND.linear
    }
    assert (
        "--methods gptq" in shown["command"]
        and "--method gptq" not in words(shown["command"]).partition("recipe")[2]
    )
    assert not any(one.method for one in recipe_of(seen(**own, codes="rtn")[0], store).layers.values())
    forced, _ = seen(for_="any", codes="gptq")
    assert {one.method for one in recipe_of(forced, store).layers.values()} == {"gptq"}
    assert "before GPTQ" in words(forced["headline"]) and "--method gptq" in words(forced["command"])


def test_a_model_without_a_survey_shows_how_to_make_one(tmp_path: Path) -> None:
    """Its elements, none of them as text; the map of layers says where, in its own place."""
    save_file({"model.layers.0.mlp.up_proj.weight": torch.ones(64, 64)}, tmp_path / "model.safetensors")
    shown, asked = seen(model=str(tmp_path))
    assert "&lt;" not in shown["headline"] and 'data-run="survey"' in shown["headline"]
    assert "under Budget" in str(layers.view(asked)["status"])


def test_memory_and_budget_agree_on_a_model(tmp_path: Path) -> None:
    """Of one scheme for all layers, embedding and head as they are stored; without a survey they are beside
    the linear layers, too."""
    front, one = budget.plan_of(Query({"for": "any"})).got.front, subject.subject(Query({}))
    for single in front.uniform:
        size = front.kept_bytes + single.bits * front.weights / 8
        assert estimate(Scheme.parse(single.scheme), one.stored).linears_only == pytest.approx(size, rel=1e-6)
    parts = {"model.embed_tokens": (96, 64), "lm_head": (96, 64), "model.layers.0.mlp.up_proj": (128, 64)}
    tensors = {f"{name}.weight": torch.ones(shape) for name, shape in parts.items()}
    save_file({**tensors, "model.norm.weight": torch.ones(64)}, tmp_path / "model.safetensors")
    first, beside = subject.about(subject.subject(Query({"model": str(tmp_path)})))
    assert "0.00819 M weights in 1 linear layer " in first
    assert beside == "beside them: embeddings 24.6 kB, output head 24.6 kB, norms, biases and others 256 B"
    table = words(str(sizes.view(Query({"model": str(tmp_path)}))["table"]))
    assert "MB, embedding and head kept" in table


def test_a_budget_beyond_the_ends_is_the_end(tmp_path: Path) -> None:
    """And is said; what is no number is said too, and the usual one shown."""
    for text, bits in (("1", 2.29), ("99", 8.07)):
        shown, asked = seen(for_="any", budget=text)
        said = words(shown["headline"])
        assert f"A budget of {text} bits" in said and "2.28 to 8.07" in said and not asked.problems
        assert "100 % less" not in said
        assert (recipe_of(shown, tmp_path).bits or 0) <= bits
    shown, asked = seen(budget="x")
    assert "2.53 to 8.07 bits" in asked.problems["budget"] and "4.50 bits" in shown["headline"]
    assert "disabled" in seen(for_="gguf")[0]["controls"], "one scheme is left"


def test_a_budget_is_of_bits_a_size_or_a_time() -> None:
    """A size is of the whole model, and kept to; no recipe is slower than its budget; another unit keeps the
    budget."""
    shown, _ = seen(for_="any", by="size", budget="54")
    plan = budget.plan_of(Query({"for": "any", "by": "size", "budget": "54"}))
    assert 0.99 * 54e6 < plan.bytes <= 54e6 and "54 MB" in words(shown["headline"])
    changed = budget.change_unit(Query({"for": "any", "budget": "4.5"}), {"value": "size"})
    again = budget.plan_of(Query({"for": "any", **changed}))
    assert again.got.choice.bits == pytest.approx(
        budget.plan_of(Query({"for": "any"})).got.choice.bits, abs=0.02
    )
    timed = budget.plan_of(Query({"for": "any", "by": "time", "batch": "16"}))
    time = timed.recipe.predicted_time
    assert time is not None and time.seconds <= 1e-6 * timed.at * (1 + 1e-9) and time.batch == 16
    curve = json.loads(seen(for_="any", by="time", batch="16")[0]["budget-curve"])
    assert "NVIDIA H200" in curve["layout"]["xaxis"]["title"]["text"]
    _, asked = seen(by="time", batch="7")
    assert "1, 8, 16, 32, 64" in asked.problems["batch"]


TYPED = [
    ({}, "4.51 bits", {"budget": "4.51", "by": ""}),
    ({}, " 3 BPW ", {"budget": "3", "by": ""}),
    ({"by": "size"}, "4.5", {"budget": "4.5", "by": ""}),
    ({}, "54.25 MB", {"budget": "54.25", "by": "size"}),
    ({}, "100 bits", {"budget": "100", "by": ""}),
    ({"by": "time", "batch": "16"}, "300us", {"budget": "300", "by": "time"}),
]


@pytest.mark.parametrize(("query", "text", "taken"), TYPED)
def test_a_budget_is_typed(query: dict[str, str], text: str, taken: dict[str, str]) -> None:
    assert budget.typed(Query({"for": "any", **query}), {"value": text}) == taken


def test_a_typed_size_is_kept_to_and_nonsense_is_refused() -> None:
    set_ = budget.typed(Query({"for": "any"}), {"value": "54 MB"})
    assert budget.plan_of(Query({"for": "any", **set_})).bytes <= 54e6
    for text, said in (
        ("much", "4.5 bits"),
        ("4,5 bits", "4.5 bits"),
        ("2 kB", "51,417,088"),
        ("1 bit", "2.28"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            budget.typed(Query({"for": "any"}), {"value": text})


def test_the_printed_command_gives_the_recipe_that_is_shown(tmp_path: Path) -> None:
    """Its bits are rounded up: of a recipe that just fits, a little less has another scheme for a layer."""
    for asked in ({"budget": "4.51"}, {"by": "size", "budget": "55"}):
        shown, _ = seen(**asked)
        bits = words(shown["command"]).partition("--bits ")[2].split()[0]
        assert recipe_of(seen(budget=bits)[0], tmp_path).layers == recipe_of(shown, tmp_path).layers


def test_a_target_takes_only_what_it_carries(tmp_path: Path) -> None:
    """Else the export refuses the recipe that the page has offered for it; or it says that it has none. One
    that does not multiply quantized inputs is replaced, and that is said."""
    shapes, served = {layer.name: layer.shape for layer in FOUND.linear}, 0
    for target, row in EXPORTS.items():
        shown, _ = seen(for_=target, budget="8.05")
        if not shown["do"]:
            assert "scheme" in shown["headline"], target
            continue
        recipe, served = recipe_of(shown, tmp_path), served + 1
        assert not any(row.refusal(one.scheme, shapes[name]) for name, one in recipe.layers.items()), target
        assert len({row.family(one.scheme) for one in recipe.layers.values()}) == 1
        assert recipe.target == target
    assert served >= 3
    shown, asked = seen(for_="gguf", inputs="int8_row")
    assert "GGUF" in asked.problems["for"] and recipe_of(shown, tmp_path).target == "compressed-tensors"


def test_a_pattern_of_no_layer_is_said_and_left_out() -> None:
    """A file that is written takes nothing else for it."""
    shown, asked = seen(keep="zzz")
    assert "'zzz'" in asked.problems["keep"] and "At 4.50 bits" in words(shown["headline"])
    with pytest.raises(ValueError, match="zzz"):
        next(budget.write(Query({"keep": "zzz"})))


def test_a_surveys_model_is_no_place_on_a_public_page(
    minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey's file named a folder, and the page handed it out with all that lay in it; or a model of the
    Hub, which was asked for with the machine's token."""
    asked, record = list[str](), {"survey": "own", "for": "compressed-tensors"}
    monkeypatch.setattr(HubModel, "__init__", lambda self, repo, *_, **__: asked.append(repo))
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "store"))
    head, *rest = subject.recorded()["all-MiniLM-L6-v2"].read_text().splitlines(True)
    for place in (str(minilm), "corp/secret"):
        with monkeypatch.context() as patch:
            patch.setenv("EXPLORER_HOSTED", "1")
            own = files.fresh_folder() / "own.jsonl"
            own.write_text("".join([json.dumps(json.loads(head) | {"model": place}) + "\n", *rest]))
            query = Query(record | {"surveyfile": str(own)})
            assert budget.view(query)
            with pytest.raises(ValueError, match="this page opens no folder"):
                list(budget.write(query))
            with pytest.raises(SourceError):
                open_source(str(minilm))
        assert open_source(str(minilm)).paths and not asked


def test_a_name_that_no_text_holds_is_refused(tmp_path: Path) -> None:
    """It was a defect of the page, with a traceback for each request."""
    odd = tmp_path / "odd.jsonl"
    head, first, *rest = subject.recorded()["all-MiniLM-L6-v2"].read_text().splitlines(True)
    name = json.loads(first)["name"]
    odd.write_text("".join([head, first.replace(name, f"{name}\\ud800", 1), *rest]))
    with pytest.raises(ValueError, match="half a character"):
        subject.survey_at(odd)


def test_a_frontier_counts_with_what_is_found_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Memo[Frontier](1 << 30)
    monkeypatch.setattr(budget, "_FRONTIERS", kept)
    front = budget.plan_of(Query({})).got.front
    assert kept._used >= front.room + front.bits.nbytes > 1 << 20


def test_patterns_of_kept_layers_are_few() -> None:
    """Each is compared with each layer's name; the same again is one."""
    many = ",".join(f"*.{n}.*" for n in range(51))
    shown, asked = seen(keep=many)
    assert "51 patterns" in asked.problems["keep"] and "At 4.50 bits" in words(shown["headline"])
    assert not seen(keep=",".join(["layer.0."] * 60))[1].problems


def test_what_is_shown_of_many_layers_can_be_stopped() -> None:
    """Also of a frontier that is known: at each layer, in the map and in each file of the table."""
    seen()
    passed = list[None]()
    with stoppable(lambda: passed.append(None)):
        seen()
    assert len(passed) > 6 * len(FOUND.linear)


def test_a_typed_size_that_kept_layers_exceed_is_said() -> None:
    shown, asked = seen(by="size", budget="54", keep="encoder.layer.0.*")
    assert "54 MB of the whole model cannot be met" in words(shown["headline"]) and not asked.problems


def test_kept_and_fused_layers(tmp_path: Path) -> None:
    """What is kept is not in the recipe; query, key and value of a block have one scheme."""
    names = recipe_of(seen(for_="vllm", keep="layer.0.")[0], tmp_path).layers
    assert not any(".0." in name for name in names)
    groups: dict[str, set[str]] = {}
    for name, one in names.items():
        if name.rpartition(".")[2] in ("query", "key", "value"):
            groups.setdefault(name.rpartition(".")[0], set()).add(str(one.scheme))
    assert groups and all(len(schemes) == 1 for schemes in groups.values())


def test_a_model_is_opened_once(minilm: Path, store: Path, kept: VisitData) -> None:
    """By folder, whose weights have a recorded survey; another model's survey is left out, and said; what is
    no model or survey is refused, and the one before stays."""
    one = subject.subject(Query({"model": str(minilm)}))
    assert one.which == RECORDED and one.named and one.place == str(minilm)
    link = subject.open_model(
        Query({"source": "model", "model": "a/b", "layer": "x"}), {"value": str(minilm)}
    )
    assert link["model"] == str(minilm) and link["survey"] == link["layer"] == link["source"] == ""
    assert subject.open_model(Query({}), {"value": ""})["model"] == ""
    with pytest.raises(ValueError, match="no folder"):
        subject.open_model(Query({}), {"value": "/nope"})
    other = Query({"survey": "x"})
    assert subject.subject(other).which == RECORDED and RECORDED in other.problems["survey"]
    lost = Query({"survey": "own"})
    assert subject.subject(lost).which == RECORDED and "cannot carry" in lost.problems["survey"]
    path = store / "uploaded" / "x.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="no survey"):
        subject.take_survey(Query({}), {"path": str(path)})
    path.write_text("".join(Path(subject.recorded()[RECORDED]).read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(ValueError, match="after 3 of"):
        subject.take_survey(Query({}), {"path": str(path)})
    with pytest.raises(ValueError, match="not here"):
        subject.take_survey(Query({}), {"path": "/etc/passwd"})


def test_the_report_is_of_this_recipe(store: Path, kept: VisitData) -> None:
    """With the command that makes the same, and without what was measured of another recipe."""
    kept.checks["another recipe"] = object()  # type: ignore[assignment]
    *_, last = budget.report(Query({"for": "any", "budget": "4"}))
    assert "explorer report survey all-MiniLM-L6-v2 --bits 4.0" in words(str(last["report"]))
    (page,) = store.glob("made-*/*.html")
    found = read_record(page)["recipe"]
    assert found["kind"] == "survey" and found["check_model"] is False


@pytest.mark.thorough
def test_a_stopped_survey_goes_on(minilm: Path, monkeypatch: pytest.MonkeyPatch, kept: VisitData) -> None:
    """In the same file; when it is done, it is the model's."""
    few = ("int4_group32_asym", "int8_row")
    monkeypatch.setattr(
        budget, "SurveyPlan", lambda where, revision: SurveyPlan(where, None, few, ("weight",))
    )
    go_on, ended = threading.Event(), threading.Event()

    def held(*job: Any) -> Iterator[Any]:
        """The layers; the third only once the visitor has stopped the survey."""
        for number, layer in enumerate(in_this_process(*job)):
            assert number < 2 or go_on.wait(60)
            yield layer

    def survey_two(*asked: Any) -> Survey:
        try:
            return survey_model(*asked, rows=held)
        finally:
            ended.set()

    asked = Query({"model": str(minilm)})
    with monkeypatch.context() as at_first:
        at_first.setattr(budget, "survey_model", survey_two)
        steps = budget.survey_it(asked)
        for shown in steps:
            if "layers" in str(shown["status"]) and "a second" in str(shown["status"]):
                break
        steps.close()  # type: ignore[attr-defined]
        go_on.set()
        assert ended.wait(60)
    (path,) = kept.unfinished.values()
    assert path.read_text().count("\n") == 4, "the head, two layers, and the one that was under way"
    *_, last = budget.survey_it(asked)
    assert load_survey(path).complete and not kept.unfinished and str(path.name) in str(last["survey-file"])
    assert subject.subject(asked).which == subject.OWN


@pytest.mark.thorough
def test_the_recipe_is_measured_and_written(minilm: Path, kept: VisitData, store: Path) -> None:
    """4.16 bits by the recipe lose a quarter less than INT4 asymmetric on sentences that it did not see."""
    asked = Query({"model": str(minilm), "for": "any", "budget": "4.16"})
    *_, end = budget.measure(asked)
    assert "measured" in words(str(end["headline"])) and "Not measured" not in str(end["truth"])
    (check,) = kept.checks.values()
    losses = {row.name: row.loss.value for row in check.rows}
    assert check.rows[0].loss.value < 0.75 * losses["int4_group128_asym"]
    *_, done = budget.write(Query({"model": str(minilm), "for": "gguf", "budget": "4.25"}))
    (archive,) = store.glob("made-*/*.zip")
    assert archive.stat().st_size > 1e6 and archive.name in str(done["written"])
