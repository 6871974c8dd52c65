"""A survey on Ray: the same rows as in one process, also when a worker is lost.

If these fail, layers of a lost machine are missing from a survey, or counted twice.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from explorer.progress import StoppedError
from explorer.survey import Layer, Survey, cluster, load_survey
from explorer.survey.run import SurveyJob, SurveyPlan, survey_model

NAMES = ("int3_group64_asym", "nvfp4")


class TaskError(Exception):
    """What Ray raises for an error of a task."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class InThisProcess:
    """As much of Ray as a survey asks for: tasks run where they are asked for, the last first."""

    exceptions = SimpleNamespace(RayTaskError=TaskError, RaySystemError=OSError)

    def __init__(self) -> None:
        self.most, self.cancelled, self.running = 0, 0, False

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **_: Any) -> None:
        self.running = True

    def shutdown(self) -> None:
        self.running = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, num_gpus: int) -> Callable[[Any], Any]:
        assert num_gpus == 0
        return lambda function: SimpleNamespace(remote=lambda *given: lambda: function(*given))

    def wait(self, running: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(running))
        return running[-1:], running[:-1]

    def get(self, one: Callable[[], Layer]) -> Layer:
        try:
            return one()
        except ValueError as error:
            raise TaskError(error) from error

    def cancel(self, one: Any, force: bool) -> None:
        self.cancelled += 1


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> InThisProcess:
    made = InThisProcess()
    monkeypatch.setitem(sys.modules, "ray", made)  # type: ignore[arg-type]
    return made


def same_rows(found: Survey, plan: SurveyPlan, folder: Path) -> None:
    """Those of one process, in whatever order tasks ended."""
    alone = {x.name: replace(x, seconds=0) for x in survey_model(plan, folder / "alone.jsonl").layers}
    assert found.complete and {layer.name for layer in found.layers} == set(alone)
    for layer in found.layers:
        want = alone[layer.name]
        assert replace(layer, seconds=0, costs={}, squares=0) == replace(want, costs={}, squares=0)
        for name, cells in want.costs.items():
            assert layer.costs[name] == pytest.approx(cells, rel=1e-5)


def test_tasks_are_layers(stub: InThisProcess, tiny_llama: Path, tmp_path: Path) -> None:
    """Two for each processor are under way at most; what is stopped is cancelled, and Ray ends."""
    plan = SurveyPlan(str(tiny_llama), None, NAMES, ("weight",))
    same_rows(survey_model(plan, tmp_path / "s.jsonl", rows=cluster.on_ray()), plan, tmp_path)
    assert (stub.most, stub.cancelled, stub.running) == (4, 0, False)

    def stops(done: int, _: int) -> None:
        raise StoppedError("enough")

    with pytest.raises(StoppedError):
        survey_model(plan, tmp_path / "t.jsonl", progress=stops, rows=cluster.on_ray())
    assert stub.cancelled == 3 and not stub.running


def test_what_a_task_refuses_is_said_as_here(
    stub: InThisProcess, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of the task; an absent Ray is refused."""
    plan = SurveyPlan(str(tiny_llama), None, NAMES, None, ("the cat sleeps",))

    def layer_there(*_: Any) -> Layer:
        raise ValueError("a layer of NaN")

    monkeypatch.setattr(cluster, "layer_there", layer_there)
    with pytest.raises(ValueError, match=r"^a layer of NaN$"):
        survey_model(replace(plan, signals=("weight",)), tmp_path / "s.jsonl", rows=cluster.on_ray())
    assert load_survey(tmp_path / "s.jsonl").layers == ()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"requirements-cluster\.txt"):
        cluster.on_ray()


@pytest.mark.thorough
def test_a_lost_workers_layers_run_again(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two real workers is killed in the midst of a layer; rows and costs are those of one process."""
    ray = pytest.importorskip("ray")
    texts = ("the cat sleeps on the roof",)
    plan = SurveyPlan(str(tiny_llama), None, NAMES, ("weight", "fisher_diagonal"), texts)
    killed, there = str(tmp_path / "killed"), cluster.layer_there

    def layer_there(plan: SurveyPlan, job: SurveyJob) -> Layer:
        if "layers.1.mlp.up_proj" in job.info.name and not os.path.exists(killed):  # noqa: PTH110
            with open(killed, "w") as file:
                file.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return there(plan, job)

    monkeypatch.setattr(cluster, "layer_there", layer_there)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        found = survey_model(plan, tmp_path / "s.jsonl", rows=cluster.on_ray())
    finally:
        ray.shutdown()
    assert Path(killed).exists()
    same_rows(found, plan, tmp_path)
