"""Survey layers as Ray tasks, on this machine or a cluster; ``requirements-cluster.txt`` has Ray.

A task is a layer: it opens the model where it runs, reads that layer's bytes, and answers with its row. Ray
decides which machine runs it, and runs the tasks of a lost worker again. Every machine needs the explorer,
and the model under the same path or Hub id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from explorer.progress import checkpoint
from explorer.schemes import Scheme
from explorer.sources import open_source
from explorer.sources.base import TensorSource
from explorer.survey.rows import Layer
from explorer.survey.run import Rows, SurveyJob, SurveyPlan, survey_layer

HERE = "local"
"""The address that stands for a Ray of this machine's own, started for the survey."""
AHEAD = 2
"""Tasks for each processor that are handed to Ray at a time: what they carry waits in its memory."""
_PAUSE = 0.5
"""Seconds between two looks at whether the work is to stop."""


def on_ray(address: str = HERE) -> Rows:
    """``rows`` for ``survey_model`` that runs on the Ray of ``address`` ("auto" finds one that runs here).

    ``ValueError`` without Ray, and where the address does not answer.
    """
    ray = _ray()

    def rows(plan: SurveyPlan, source: TensorSource, jobs: Sequence[SurveyJob]) -> Iterator[Layer]:
        own = not ray.is_initialized()
        try:
            if own:
                where = {} if address == HERE else {"address": address}
                ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False, **where)
            yield from _collected(ray, plan, jobs)
        except (ConnectionError, ray.exceptions.RaySystemError) as error:
            raise ValueError(f"no Ray answers at {address}: {str(error).splitlines()[0][:200]}") from error
        finally:
            if own:
                ray.shutdown()

    return rows


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ValueError("Ray is not installed: pip install -r requirements-cluster.txt") from error
    return ray


def _collected(ray: Any, plan: SurveyPlan, jobs: Sequence[SurveyJob]) -> Iterator[Layer]:
    """Rows as the tasks end; those that run are cancelled if the survey is stopped."""
    resources = ray.cluster_resources()
    task = ray.remote(num_gpus=1 if resources.get("GPU") else 0)(layer_there)
    waiting = list(jobs)[::-1]
    running: list[Any] = []
    most = AHEAD * max(int(resources.get("CPU", 1)), 1)
    try:
        while waiting or running:
            checkpoint()
            while waiting and len(running) < most:
                running.append(task.remote(plan, waiting.pop()))
            done, running = ray.wait(running, timeout=_PAUSE)
            for one in done:
                yield _answer(ray, one)
    finally:
        for one in running:
            ray.cancel(one, force=True)


def _answer(ray: Any, one: Any) -> Layer:
    try:
        layer: Layer = ray.get(one)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    return layer


def layer_there(plan: SurveyPlan, job: SurveyJob) -> Layer:
    """Survey ``job`` in a task."""
    schemes = {text: Scheme.parse(text) for text in plan.schemes}
    return survey_layer(_source(plan.model, plan.revision), job, schemes, plan.methods)


@cache
def _source(model: str, revision: str | None) -> TensorSource:
    """The model as this worker opened it."""
    return open_source(model, revision)
