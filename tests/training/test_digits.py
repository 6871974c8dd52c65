"""Accuracy against bits on real images, and which gradients float16 loses.

If these fail, the Training section shows something else than was trained.
"""

from __future__ import annotations

import pytest
import torch

from explorer.training import digits
from explorer.training.digits import (
    FLOAT,
    LONGER,
    LSQ,
    POST,
    STRAIGHT,
    AccuracyRow,
    Trained,
    accuracy,
    accuracy_rows,
    count,
    data,
    fit,
    gradient_magnitudes,
    network,
    stages,
    train,
    underflow,
    underflow_summary,
)
from tests.covering import THOROUGH

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_data_are_real_and_the_split_is_fixed() -> None:
    """Else accuracies of two runs cannot be compared."""
    x, y, x_test, y_test = data()
    assert x.shape == (1347, 64) and x_test.shape == (450, 64) and float(x.max()) == 1.0
    assert sorted(set(y.tolist())) == list(range(10)) and len(y_test) == 450


@THOROUGH
def test_training_through_rounding_wins_back_what_rounding_lost() -> None:
    """QAT beats PTQ by three points where few bits are left, and LSQ moves its step sizes."""
    widths = ["8", "2", "binary"]
    results = list(train(widths, seeds=1, epochs=12, again=5))
    trained = {(r.width, r.stage): r for r in results}
    assert trained["32", FLOAT].accuracy > 0.9 and ("32", LONGER) in trained
    assert trained["8", POST].accuracy > trained["32", FLOAT].accuracy - 0.02
    for width, stage in (("2", STRAIGHT), ("2", LSQ), ("binary", STRAIGHT)):
        assert trained[width, stage].accuracy > trained[width, POST].accuracy + 0.03
    moved = trained["2", LSQ].steps
    assert len(moved) == 3 and all(a > 0 and b > 0 for a, b in moved)
    assert any(abs(a - b) > 0.01 * a for a, b in moved)
    assert ("binary", LSQ) not in trained and len(trained) == count(widths, 1)


def test_a_run_can_be_repeated_and_disturbs_nobody() -> None:
    """The same seed gives the same curve, and the global generator, which others share, stays where it
    was."""
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    models = [network(3), network(3)]
    curves = [list(fit(m, 2, 5)) for m in models]
    assert curves[0] == curves[1] and accuracy(models[0]) == curves[0][-1]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_rows_are_mean_and_spread() -> None:
    """A row per width and stage in the order of training, whatever order the results come in."""
    results = [Trained("4", POST, s, a, ()) for s, a in enumerate((0.8, 0.9))]
    results.append(Trained("32", FLOAT, 0, 0.95, ()))
    rows = accuracy_rows(results)
    assert rows[0].width == "32"
    assert rows[1] == AccuracyRow("4", POST, pytest.approx(0.85), 0.8, 0.9, 2)  # type: ignore[arg-type]
    assert stages(results) == [FLOAT, POST]
    assert list(digits.WIDTHS) == ["8", "7", "6", "5", "4", "3", "2", "ternary", "binary"]


def test_float16_loses_gradients_that_a_loss_scale_rescues() -> None:
    """Exact on chosen magnitudes: float16 flushes up to 2^-25, its largest is 65504; bfloat16 keeps them."""
    rows = underflow(torch.tensor([2.0**-26, 2.0**-25, 2.0**-24, 1.0]), [0, 2, 17])
    assert [r.lost for r in rows] == [0.5, 0.0, 0.0] and [r.overflowed for r in rows] == [0.0, 0.0, 0.25]
    assert all(r.lost_bf16 == 0 for r in rows)
    real = underflow(gradient_magnitudes(epochs=3))
    assert real[0].lost >= real[1].lost >= real[2].lost and real[-1].overflowed > 0
    assert f"{100 * real[0].lost:.2f} %" in underflow_summary(real)
