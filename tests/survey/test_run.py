"""Surveys of tiny models: signals against their definitions, files that go on, and what is refused.

If these fail, a layer's cost is not what its signal says, or a survey that was stopped starts over or lies.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from explorer import SCHEMES, SourceError, quantize
from explorer.core.backend import container_limits
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, load_model
from explorer.models.files import role_of
from explorer.progress import StoppedError
from explorer.sources import open_source
from explorer.sources.base import TensorSource
from explorer.survey import SENSITIVITIES, Layer, Role, frontier, load_survey
from explorer.survey import run as running
from explorer.survey.assemble import assemble
from explorer.survey.budget import Constraints, recipe_of
from explorer.survey.evidence import gather, weights_of
from explorer.survey.loss import reference_for
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import FIRST, head_differs
from explorer.survey.run import SurveyPlan, survey_model
from tests.survey.conftest import SEEN as TEXTS

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("int3_group64_asym", "nvfp4", "int8_row")


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_bert"])
def surveyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model's folder, and the file of its survey by every signal."""
    folder: Path = request.getfixturevalue(request.param)
    out = tmp_path_factory.mktemp("surveys") / "s.jsonl"
    survey_model(SurveyPlan(str(folder), None, NAMES, tuple(SENSITIVITIES), TEXTS), out)
    return folder, out


def test_every_layer_has_every_cell(surveyed: tuple[Path, Path]) -> None:
    """Linear layers, the head and the tokens' embeddings with sizes and costs, other embeddings listed, the
    pooler known to be idle."""
    folder, out = surveyed
    survey = load_survey(out)
    tensors = load_file(folder / "model.safetensors")
    assert survey.complete and survey.head.signals == tuple(SENSITIVITIES)
    assert survey.head.parameters == sum(t.numel() for t in tensors.values())
    matrices = {n.removesuffix(".weight") for n, t in tensors.items() if t.dim() == 2}
    assert {layer.name for layer in survey.layers} == matrices
    for layer in survey.layers:
        weight = tensors[f"{layer.name}.weight"]
        assert layer.shape == tuple(weight.shape)
        if layer.role is Role.OTHER_EMBEDDING:
            assert not layer.bits and not layer.costs and layer.reached
            continue
        for name in NAMES:
            q = quantize(weight, SCHEMES[name])
            assert layer.bits[name] == pytest.approx(q.bits_per_element.total, rel=1e-6)
            want = float((q.dequantize() - weight).double().square().sum())
            assert layer.costs["weight"][name] == pytest.approx(want, rel=1e-6)
        if not layer.reached:
            assert layer.name == "pooler.dense" and set(layer.costs) == {"weight"}
    assert {layer.role for layer in survey.layers} >= {Role.LINEAR, Role.EMBEDDING}
    assert len(frontier(survey).at(8.5).schemes) == sum(x.role is Role.LINEAR for x in survey.linear)


def test_fishers_diagonal_predicts_a_loss(surveyed: tuple[Path, Path]) -> None:
    """Of small errors: within a factor of two of the measured single losses in sum, and nearly their
    order."""
    survey, model = load_survey(surveyed[1]), load_model(str(surveyed[0]), head=True)
    reference, cells = reference_for(model, TEXTS), []
    for layer in survey.linear:
        for name in ("nvfp4", "int8_row"):
            made = assemble(model, {layer.name: Recipe(SCHEMES[name])}, TEXTS).network
            cells.append((reference.measure(made).value, layer.costs["fisher_diagonal"][name]))
    measured, diagonal = (torch.tensor(column) for column in zip(*cells, strict=True))
    ratio = float(diagonal.sum() / measured.sum())
    ranks = [t.argsort().argsort().double() for t in (measured, diagonal)]
    assert 0.5 < ratio < 2, ratio
    assert float(torch.corrcoef(torch.stack(ranks))[0, 1]) > 0.8


def test_fisher_is_the_mean_squared_gradient(tiny_llama: Path) -> None:
    """Over texts that are each run forward and backward, per token; the diagonal's mean is the number."""
    model = load_model(str(tiny_llama), head=True)
    reference = reference_for(model, TEXTS)
    linear = {
        n: (m.out_features, m.in_features)
        for n, m in model.network.named_modules()
        if hasattr(m, "in_features")
    }
    modules = weights_of(model.network, linear)
    assert {n: held.module for n, held in modules.items()} == {n: n for n in linear} and "lm_head" in modules
    found = gather(model, reference, modules)
    up = found["model.layers.0.mlp.up_proj"]
    assert up.fisher == pytest.approx(float(up.fisher_diagonal.mean()), rel=1e-5)
    assert all(p.grad is None for p in model.network.parameters())
    assert all(p.requires_grad for p in model.network.parameters()), "what the caller set stays"

    # Of the head's weight E g² of log p(y) can be summed exactly: p (1 - p) x², token by token.
    head = torch.zeros_like(model.network.lm_head.weight)
    for text in TEXTS:
        ids = model.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            x = model.network.model(input_ids=ids).last_hidden_state[0]
            p = model.network.lm_head(x).softmax(-1)
        head += (p * (1 - p)).t() @ x.square()
    exact = float(head.mean()) / reference.tokens
    assert found["lm_head"].fisher == pytest.approx(exact, rel=0.5)


def test_a_stopped_survey_goes_on(tiny_llama: Path, tmp_path: Path) -> None:
    """What is in the file is not computed again, a line that was cut off is, and the end is the same."""
    plan, out = SurveyPlan(str(tiny_llama), None, NAMES, None, TEXTS), tmp_path / "s.jsonl"
    seen: list[tuple[int, int]] = []

    def stop_after_three(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 3:
            raise StoppedError("enough")

    with pytest.raises(StoppedError):
        survey_model(plan, out, progress=stop_after_three)
    stopped = load_survey(out)
    assert len(stopped.layers) == 3 and not stopped.complete and seen[-1] == (3, stopped.head.layers)
    with out.open("a") as file:
        file.write('{"name":"cut o')
    seen.clear()
    survey = survey_model(plan, out, progress=lambda *done: seen.append(done))
    assert survey.complete and seen[0][0] == 4 and survey.layers[:3] == stopped.layers
    whole = survey_model(plan, tmp_path / "whole.jsonl")
    assert [replace(x, seconds=0) for x in survey.layers] == [replace(x, seconds=0) for x in whole.layers]


def test_a_finished_survey_opens_without_running(
    surveyed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is loaded or rounded again."""
    folder, out = surveyed
    monkeypatch.setattr(running, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    plan = SurveyPlan(str(folder), None, NAMES, tuple(SENSITIVITIES), TEXTS)
    before = out.read_bytes()
    assert survey_model(plan, out, progress=lambda *_: pytest.fail("a layer was surveyed")).complete
    assert out.read_bytes() == before


def test_a_file_of_another_survey_is_not_touched(surveyed: tuple[Path, Path], tmp_path: Path) -> None:
    """What differs is named. Of a model on the Hub no weights are on this machine to compare."""
    folder, done = surveyed
    before, other = done.read_bytes(), str(shutil.copytree(folder, tmp_path / "other"))
    plan = SurveyPlan(str(folder), None, NAMES, tuple(SENSITIVITIES), TEXTS)
    for change, words in (
        ({"schemes": ("nvfp4",)}, "the schemes"),
        ({"signals": ("weight",)}, "the signals"),
        ({"texts": ("other words",)}, "the texts"),
        ({"model": other}, "the model"),
    ):
        with pytest.raises(ValueError, match=f"s.jsonl .*: {words}"):
            survey_model(replace(plan, **change), done)  # type: ignore[arg-type]
        assert done.read_bytes() == before
    head = load_survey(done).head
    assert list(head_differs(head, replace(head, revision="v2"))) == ["the revision (None there, v2 now)"]


def test_changed_weights_and_versions_are_another_survey(tiny_bert: Path, tmp_path: Path) -> None:
    """Going on would mix layers of two models, or numbers of two versions."""
    folder, out = tmp_path / "m", tmp_path / "s.jsonl"
    shutil.copytree(tiny_bert, folder)
    plan = SurveyPlan(str(folder), None, NAMES, ("weight",))
    survey_model(plan, out)
    head, *rest = out.read_text().splitlines()
    older = {**json.loads(head), "versions": {"explorer": "0.0.1"}}
    (tmp_path / "older.jsonl").write_text("\n".join([json.dumps(older), *rest]) + "\n")
    with pytest.raises(ValueError, match="the versions"):
        survey_model(plan, tmp_path / "older.jsonl")
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t + 1 for n, t in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="the weights"):
        survey_model(plan, out)


OLD, TODAY = "int4~1x16~ASYMMETRIC~float16~minmax", "int4~1x16~asymmetric~float16~minmax"


def test_surveys_and_recipes_with_texts_of_earlier_versions_are_read(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """Mappings stood in upper case: such a survey goes on, and its recipe is one of today's schemes."""
    out, plan = tmp_path / "s.jsonl", SurveyPlan(str(tiny_llama), None, (OLD, "int8_row"), ("weight",))
    assert plan.schemes == (TODAY, "int8_row")
    whole = survey_model(plan, out)
    lines = out.read_text().replace(TODAY, OLD).splitlines()
    out.write_text("\n".join(lines[:-2]) + "\n")
    resumed = survey_model(plan, out)
    assert resumed.head.schemes == whole.head.schemes == plan.schemes and resumed.complete
    assert [layer.costs for layer in resumed.layers] == [layer.costs for layer in whole.layers]
    constraints = Constraints(schemes=(OLD,))
    choice = frontier(resumed, "weight", constraints).at(9)
    recipe = recipe_of(resumed, choice, "weight", constraints=constraints)
    assert set(choice.schemes.values()) == {TODAY} and recipe.schemes == (TODAY,)
    assert ModelRecipe.from_json(recipe.to_json().replace(TODAY, OLD)) == recipe


def test_weights_alone_where_the_model_cannot_be_run(tmp_path: Path) -> None:
    """Without a config or tokenizer there is ``weight``, and the file says why; other signals are refused."""
    (tmp_path / "m").mkdir()
    draw = torch.Generator().manual_seed(0)
    tensors = {f"blocks.{i}.q_proj.weight": torch.randn(32, 64, generator=draw) for i in range(2)}
    save_file(tensors | {"norm.weight": torch.ones(64)}, tmp_path / "m" / "model.safetensors")
    survey = survey_model(SurveyPlan(str(tmp_path / "m"), None, NAMES), tmp_path / "s.jsonl")
    assert survey.head.signals == ("weight",) and "config.json" in survey.head.why and not survey.head.loss
    assert [(x.kind, x.depth) for x in survey.layers] == [("query", 0), ("query", 1)]
    with pytest.raises(SourceError, match=r"config\.json"):
        survey_model(SurveyPlan(str(tmp_path / "m"), None, NAMES, ("fisher_diagonal",)), tmp_path / "t.jsonl")
    assert not (tmp_path / "t.jsonl").exists()


def test_a_model_too_large_to_run_has_weights_alone(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file says why."""
    plan = SurveyPlan(str(tiny_bert), None, ("nvfp4",), texts=TEXTS)
    parameters = survey_model(plan, tmp_path / "a.jsonl").head.parameters
    monkeypatch.setattr(running, "work_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(running, "memory_bytes", lambda: 4 * parameters * 2)
    least = survey_model(plan, tmp_path / "b.jsonl")
    assert least.head.signals == ("weight",) and "do not fit" in least.head.why


def test_what_cannot_be_surveyed_is_said(tmp_path: Path) -> None:
    """Unknown names before anything is read; no linear layer; and NaN, by the name of its layer."""
    for plan, words in (
        ({"signals": ("nope",)}, "'nope'.*weight, fisher_diagonal"),
        ({"schemes": ("int4_nope",)}, "'int4_nope'"),
        ({"schemes": ()}, "at least one"),
    ):
        with pytest.raises(ValueError, match=words):
            SurveyPlan("model", **plan)  # type: ignore[arg-type]
    for name, tensors in {
        "norms": {"norm.weight": torch.ones(8)},
        "nan": {"a.q_proj.weight": torch.full((8, 8), float("nan"))},
    }.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    with pytest.raises(SourceError, match="norms"):
        survey_model(SurveyPlan(str(tmp_path / "norms")), tmp_path / "s.jsonl")
    with pytest.raises(ValueError, match=r"a\.q_proj, by int3_group64_asym: .*NaN"):
        survey_model(SurveyPlan(str(tmp_path / "nan"), None, NAMES), tmp_path / "t.jsonl")


def test_layers_are_values() -> None:
    layer = Layer("a", (2, 3), "F32", Role.LINEAR, "other", None, 8.0, {"s": 4.0}, {"weight": {"s": 2.0}})
    assert layer.weights == 6 and layer.sqnr_db("s") == pytest.approx(6.0206, abs=1e-4)


def test_a_survey_cut_off_in_its_first_line_is_begun_anew(tiny_bert: Path, tmp_path: Path) -> None:
    """Else the same command fails for good. What is no survey is not overwritten: a name typed wrong would
    lose a file."""
    out, plan = tmp_path / "s.jsonl", SurveyPlan(str(tiny_bert), None, NAMES, ("weight",))
    for left in ("", "{", '{"model":', '{"model":"cut o'):
        out.write_text(left)
        assert survey_model(plan, out).complete and out.read_bytes().startswith(FIRST)
    for left in ("precious\n", "notes of mine, one line", '{"key": 1}', "{x"):
        out.write_text(left)
        with pytest.raises(ValueError, match=r"s\.jsonl"):
            survey_model(plan, out)
        assert out.read_text() == left


def test_two_surveys_do_not_write_one_file(
    surveyed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their lines mix, and a layer is there twice; one that ends while another begins is not erased."""
    folder, finished = surveyed
    out = tmp_path / "s.jsonl"
    out.write_text("".join(finished.read_text().splitlines(keepends=True)[:2]))
    plan = SurveyPlan(str(folder), None, load_survey(finished).head.schemes, texts=TEXTS)
    text = out.read_text()
    with out.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="written by another survey"):
            survey_model(plan, out)
        assert out.read_text() == text
    finish = running.weights_sha256

    def finished_meanwhile(source: TensorSource) -> str:
        out.write_text(finished.read_text())
        return finish(source)

    monkeypatch.setattr(running, "weights_sha256", finished_meanwhile)
    with pytest.raises(ValueError, match="written by another survey meanwhile"):
        survey_model(plan, out)
    assert out.read_text() == finished.read_text()
    monkeypatch.setattr(running, "weights_sha256", finish)
    out.write_text(text)
    assert survey_model(plan, out).complete


def test_transposed_layers_and_nan_are_not_surveyed(tiny_llama: Path, tmp_path: Path) -> None:
    """GPT-2 stores [inputs, outputs]: blocks along its rows would lie across the inputs. One NaN in a weight
    was a traceback out of the sampler."""
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(SourceError, match="transposed"):
        survey_model(SurveyPlan(str(folder), None, NAMES, ("weight",)), tmp_path / "s.jsonl")
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(SourceError, match="NaN"):
        survey_model(SurveyPlan(str(folder), None, NAMES, ("fisher_diagonal",)), tmp_path / "s.jsonl")


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    """Else a backward pass is begun that the kernel ends by killing the process."""
    bounds = {"two": "1073741824\n", "none": "max\n"}
    files = [tmp_path / name for name in (*bounds, "missing")]
    for path in files[:2]:
        path.write_text(bounds[path.name])
    assert container_limits(files) == [1 << 30]


def test_layers_that_the_network_lacks_are_not_called_idle(llama: Model, tiny_llama: Path) -> None:
    """transformers fuses experts: without a gradient they would be left out as without effect."""
    infos = [info for info in open_source(str(tiny_llama)).infos if role_of(info) is Role.LINEAR]
    assert len(running._weights(llama, dict.fromkeys(infos, Role.LINEAR))) == len(infos)
    experts = [replace(info, name=info.name.replace("mlp.", "mlp.experts.0.")) for info in infos]
    with pytest.raises(SourceError, match="experts"):
        running._weights(llama, dict.fromkeys(experts, Role.LINEAR))
