"""Survey layers as Ray tasks, on this machine or a cluster; ``requirements-cluster.txt`` installs Ray.

A task is a layer: it opens the model on its machine, reads that layer's bytes, and returns its row. Ray
decides which machine runs it, and repeats the tasks of a lost worker. Every machine needs the explorer, and
the model under the same path or Hub id.
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
"""Address that starts a Ray on this machine for the survey."""
AHEAD = 2
"""Number of tasks for each processor that Ray holds at a time: their data waits in its memory."""
_PAUSE = 0.5
"""Seconds between two checks for a request to stop."""


def on_ray(address: str = HERE) -> Rows:
    """Return ``rows`` for ``survey_model`` that runs on Ray at ``address`` ("auto" finds a running one).

    ``ValueError`` without Ray, and if the address does not answer.
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
    """Yield rows as their tasks end; running tasks are cancelled if the survey is stopped."""
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
    """Open the model once per worker."""
    return open_source(model, revision)
