"""The Calibration section's handlers. If these fail, it shows nothing, or another range than was chosen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from app.sections import calibration
from app.state.selection import Selection
from explorer import CALIBRATORS
from explorer.analysis.calibration import SHOWN
from tests.app.acting import plots_of, selection, unchanged
from tests.covering import sampled


@pytest.mark.parametrize(
    ("sample", "scheme"),
    sampled([("mlp_up", "int8_tensor"), ("outlier_channels", "nvfp4")], [("outlier_channels", "nvfp4")]),
)
def test_the_tab_shows_every_method(sample: str, scheme: str) -> None:
    """A line for every calibrator that chooses a range, and one for the visitor's own."""
    out = calibration.show(*selection(sample=sample, scheme=scheme), 0.4)
    assert out.sentence and "dynamic" in out.held
    assert len(plots_of(out)) == 3 and all(json.loads(o)["data"] for o in plots_of(out))
    assert sum(map(len, plots_of(out))) < 200_000
    rows = {row[0]: dict(zip(calibration.COLUMNS, row, strict=True)) for row in out.table}
    assert list(rows) == [*(CALIBRATORS[name].label for name in SHOWN), "your range"]
    widest, best = rows[CALIBRATORS["minmax"].label], rows[CALIBRATORS["mse"].label]
    assert rows["your range"]["high"] == pytest.approx(0.4 * widest["high"], rel=1e-3)
    assert best["SQNR dB"] >= widest["SQNR dB"]


def test_a_cast_is_refused_in_words(said: list[str]) -> None:
    """A scheme without scales has no range to calibrate; nobody asked for it: no notification."""
    assert 'class="status refusal"' in calibration.show(*selection(scheme="bf16"), 0.5).sentence and not said
    assert "int4_group32_asym" in calibration.show(*selection(scheme="q4_k"), 0.5).sentence, "what would do"


def test_a_new_upload_under_an_old_path_is_calibrated_anew(tmp_path: Path) -> None:
    """If this fails, figures of the file that lay there before are shown for the new one."""
    held = []
    for scale in (1.0, 100.0):
        values = np.random.default_rng(0).standard_normal((33 if scale == 1 else 32, 64)).astype(np.float32)
        values[0, 0] *= scale
        np.save(tmp_path / "w.npy", values)
        chosen = Selection(source="file", file=str(tmp_path / "w.npy"), scheme="int8_tensor")
        held.append(calibration.show(*dataclasses.astuple(chosen), 0.5).held)
    assert held[0] != held[1]


def test_the_own_range_becomes_a_scheme(said: list[str]) -> None:
    """The dragged range can be written into A or B like any method's; what A has already is only said."""
    (out,) = json.loads(calibration.written("own", 0.31, "b", "int8_tensor"))
    assert out["side"] == "b" and "~share0.31" in out["text"] and "0.31" in said.pop()
    assert unchanged(calibration.written("own", 0.31, "a", out["text"])) and said.pop()
    assert unchanged(calibration.written("minmax", 0.31, "a", "int8_tensor")) and said.pop()
