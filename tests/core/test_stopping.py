"""Long work can be ended from outside, wherever it is.

If these fail, a visitor who has left, or a run past its time, goes on to hold a core of the server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from explorer import CALIBRATORS, SCHEMES, compare_schemes, quantize
from explorer.analysis.calibration import compare_calibrators
from explorer.analysis.survey import survey
from explorer.analysis.tensor import analyse
from explorer.methods import METHODS, evaluate
from explorer.models.capture import capture, load_model
from explorer.progress import StoppedError, checkpoint, stoppable
from explorer.training import digits

X = torch.randn(96, 1024, generator=torch.Generator().manual_seed(0))
GROUPS = SCHEMES["int4_group128_asym"]


def calibrators() -> dict[str, Callable[[], object]]:
    plain = {name: SCHEMES["nvfp4" if name == "four_over_six" else "int4_row"] for name in CALIBRATORS}
    return {
        name: partial(quantize, X, dataclasses.replace(scheme, calibrator=CALIBRATORS[name]))
        for name, scheme in plain.items()
    }


def of_method(name: str) -> object:
    return list(evaluate.evaluate_all([name], [GROUPS], X[:32, :256], X[:, :256]))


def of_model(folder: Path) -> Callable[[], object]:
    model = load_model(str(folder), device="cpu")
    return lambda: capture(model, ["a few words"] * 3, ["encoder.layer.0.attention.self.query"])


WORK: dict[str, dict[str, Callable[[], object]]] = {
    "calibrators": calibrators(),
    "methods": {name: partial(of_method, name) for name in METHODS},
    "analysis": {
        "analysis": lambda: analyse(X, GROUPS),
        "comparison": lambda: list(compare_schemes(X, [GROUPS, SCHEMES["nvfp4"]])),
        "frontier": lambda: list(survey(X, [GROUPS, SCHEMES["nvfp4"]])),
        "calibration": lambda: compare_calibrators(X[:4], GROUPS, 0.5),
    },
    "training": {"training": lambda: list(digits.fit(digits.network(0), 1, 0))},
}


@pytest.mark.parametrize("kind", [*WORK, pytest.param("capture", marks=pytest.mark.thorough)])
def test_work_stops_at_a_checkpoint(kind: str, request: pytest.FixtureRequest) -> None:
    """Every kind of long work comes by checkpoints, and ends at any of them."""
    capturing = {} if kind in WORK else {kind: of_model(request.getfixturevalue("minilm"))}
    for name, work in WORK.get(kind, capturing).items():
        passed = 0

        def count() -> None:
            nonlocal passed
            passed += 1
            if passed == 2:
                raise StoppedError("stopped")

        with stoppable(count), pytest.raises(StoppedError):
            work()
        assert passed == 2, name


def test_without_a_check_nothing_stops() -> None:
    """Library users have none; one check inside another is put back afterwards."""
    checkpoint()
    calls: list[str] = []
    with stoppable(lambda: calls.append("outer")):
        with stoppable(lambda: calls.append("inner")):
            checkpoint()
        checkpoint()
    checkpoint()
    assert calls == ["inner", "outer"]
