"""Times of a model's layers on the GPU that is here, with a stub in the place of its clock.

If these fail, `explorer check` says a time that is not that of the recipe's layers, or one without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from explorer.bench import layers
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model
from explorer.recordings.times import TimeSpread
from explorer.schemes import Scheme
from explorer.survey.recipe import ModelRecipe
from explorer.survey.times import UNQUANTIZED, PredictedTime

SHAPES = {"a.q_proj": (32, 64), "a.k_proj": (16, 64), "a.v_proj": (16, 64), "a.o_proj": (64, 32)}
FOUR = Scheme.parse("int4_group32")


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Layers on the CPU stand for those on a GPU: each takes a microsecond an element of Y. Returns what
    every timed call gave."""
    made: list[Tensor] = []

    def time_graph(calls: Sequence[Any], repeats: int) -> TimeSpread:
        found = [call() for call in calls]
        made.extend(found)
        seconds = 1e-6 * found[0].numel()
        return TimeSpread(seconds, seconds, seconds)

    cpu = torch.device("cpu")
    monkeypatch.setattr(layers, "require_gpu", lambda: cpu)
    monkeypatch.setattr(layers, "gpu_device", lambda: cpu)
    monkeypatch.setattr(layers, "buffer_sets", lambda size, device: 3)
    monkeypatch.setattr(layers, "time_graph", time_graph)
    monkeypatch.setattr(layers, "shapes_of", lambda model, names: {name: SHAPES[name] for name in names})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    return made


def recipe(predicted: PredictedTime | None, fused: bool) -> ModelRecipe:
    chosen = {name: Recipe(FOUR) for name in SHAPES if name != "a.o_proj"}
    return ModelRecipe("m", None, "", chosen, fused=fused, predicted_time=predicted)


def test_products_are_timed_at_their_shape(outputs: list[Tensor]) -> None:
    """Once each, over several buffers, in bfloat16; schemes without a kernel only if asked for."""
    times = layers.times_here(4, restored=True)
    first = times.of(FOUR, (32, 64))
    assert first.seconds == pytest.approx(128e-6) and first.kind == "measured" and times.of(FOUR, (32, 64))
    assert [tuple(y.shape) for y in outputs] == [(4, 32)] * 3 and outputs[0].dtype == torch.bfloat16
    plain = times.of(UNQUANTIZED, (64, 32))
    assert plain.seconds == pytest.approx(256e-6) and bool(outputs[-1].float().abs().sum() > 0)
    without = layers.times_here(4)
    assert without.of(FOUR, (32, 64)).seconds is None and without.refusal(FOUR, (32, 64))
    assert without.of(UNQUANTIZED, (64, 32)).seconds is not None
    with pytest.raises(ValueError, match="at least 1 token"):
        layers.times_here(0)


@pytest.mark.parametrize("fused", [False, True])
def test_a_check_measures_what_was_predicted(outputs: list[Tensor], fused: bool) -> None:
    """The recipe's layers, and those that stay, at the batch of the prediction; fused ones as one product."""
    predicted = PredictedTime(1e-3, 4, "NVIDIA H200", "2026-11-23", "scaled", ("a.o_proj",))
    model = cast(Model, SimpleNamespace())
    found = layers.checked_time(recipe(predicted, fused), model)
    assert found is not None and found.measured is not None and not found.why
    assert found.measured.seconds == pytest.approx(4e-6 * (64 + 64)) and found.measured.machine == "a GPU"
    assert found.measured.how == "measured" and found.measured.kept == ("a.o_proj",)
    assert {tuple(y.shape) for y in outputs} == ({(4, 64)} if fused else {(4, 64), (4, 32), (4, 16)})
    assert "1 ms" in found.described and "512 µs" in found.described
    assert layers.checked_time(recipe(None, fused), model) is None
