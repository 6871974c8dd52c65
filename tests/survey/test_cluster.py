"""A survey on Ray: the same rows as in one process, also when a worker is lost.

If these fail, layers of a lost machine are missing from a survey, or counted twice.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from explorer.survey import Layer, cluster, load_survey
from explorer.survey.run import SurveyJob, SurveyPlan, survey_model

NAMES = ("int3_group64_asym", "nvfp4")


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_a_lost_workers_layers_run_again(
    two_workers: None, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two workers is killed in the midst of a layer; rows and costs are those of one process."""
    plan = SurveyPlan(
        str(tiny_llama), None, NAMES, ("weight", "fisher_diagonal"), ("the cat sleeps on the roof",)
    )
    killed, there = str(tmp_path / "killed"), cluster.layer_there

    def layer_there(plan: SurveyPlan, job: SurveyJob, signals: tuple[str, ...]) -> Layer:
        if "layers.1.mlp.up_proj" in job.info.name and not os.path.exists(killed):  # noqa: PTH110
            with open(killed, "w") as file:
                file.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return there(plan, job, signals)

    monkeypatch.setattr(cluster, "layer_there", layer_there)
    seen: list[int] = []
    found = survey_model(
        plan, tmp_path / "s.jsonl", progress=lambda done, _: seen.append(done), rows=cluster.on_ray()
    )
    assert Path(killed).exists() and found.complete and seen == list(range(1, found.head.layers + 1))
    alone = {x.name: replace(x, seconds=0) for x in survey_model(plan, tmp_path / "t.jsonl").layers}
    for layer in found.layers:
        want = alone[layer.name]
        assert replace(layer, seconds=0, costs={}, squares=0) == replace(want, costs={}, squares=0)
        for name, cells in want.costs.items():
            assert layer.costs[name] == pytest.approx(cells, rel=1e-5)


def test_what_a_task_refuses_is_said_as_here(
    two_workers: None, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of the task, without Ray's; and signals that need the whole model are refused."""

    def layer_there(plan: SurveyPlan, job: SurveyJob, signals: tuple[str, ...]) -> Layer:
        raise ValueError("a layer of NaN")

    monkeypatch.setattr(cluster, "layer_there", layer_there)
    with pytest.raises(ValueError, match=r"^a layer of NaN$"):
        survey_model(
            SurveyPlan(str(tiny_llama), None, NAMES, ("weight",)), tmp_path / "s.jsonl", rows=cluster.on_ray()
        )
    assert load_survey(tmp_path / "s.jsonl").layers == ()
    plan = SurveyPlan(str(tiny_llama), None, NAMES, ("measured",), ("the cat sleeps",))
    with pytest.raises(ValueError, match="is not computed on Ray"):
        survey_model(plan, tmp_path / "t.jsonl", rows=cluster.on_ray())


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install -r requirements-cluster\.txt"):
        cluster.on_ray()
