"""The Calibration section's handlers. If these fail, it shows nothing, or another range than was chosen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from app import limits
from app.sections import calibration
from app.state.selection import Selection
from app.theme import ASSETS
from explorer import CALIBRATORS
from explorer.analysis.calibration import SHOWN
from tests.app.asked import page
from tests.app.test_handlers import plots_of, selection, unchanged


@pytest.mark.parametrize(
    ("sample", "scheme"),
    [("mlp_up", "int8_tensor"), ("mlp_up_in", "int4_group128_asym"), ("outlier_channels", "nvfp4")],
)
def test_the_tab_shows_every_method(sample: str, scheme: str) -> None:
    """A line for every calibrator that chooses a range, and one for the visitor's own."""
    out = calibration.show(*selection(sample=sample, scheme=scheme), 0.4)
    assert "one scale for all" in out.sentence
    assert len(plots_of(out)) == 3 and all(json.loads(o)["data"] for o in plots_of(out))
    assert sum(map(len, plots_of(out))) < 200_000
    rows = {row[0]: dict(zip(calibration.COLUMNS, row, strict=True)) for row in out.table}
    assert list(rows) == [*(CALIBRATORS[name].label for name in SHOWN), "your range"]
    widest, best = rows[CALIBRATORS["minmax"].label], rows[CALIBRATORS["mse"].label]
    assert rows["your range"]["high"] == pytest.approx(0.4 * widest["high"], rel=1e-3)
    assert best["SQNR dB"] >= widest["SQNR dB"]
    assert "held-out" in out.held and "dynamic" in out.held


def test_cards_that_are_computed_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the conclusion or a refusal stands there: else empty cards look as if nothing were to come."""
    (sentence,) = (b for b in page().blocks.values() if getattr(b, "elem_id", "") == "calibration-sentence")
    assert 'class="status computing"' in sentence.value
    rules = (ASSETS / "style.css").read_text()
    assert ".section:has(.computing) .figure:empty::before" in rules
    monkeypatch.setattr(limits, "notify", lambda _: None)
    for scheme in ("bf16", "int8_tensor"):
        shown = calibration.show(*selection(scheme=scheme, sample="attention_query"), 0.5).sentence
        assert shown and "computing" not in shown


def test_a_cast_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheme without scales has no range to calibrate: the reason is said, and nothing is computed."""
    said: list[str] = []
    monkeypatch.setattr(limits, "notify", said.append)
    out = calibration.show(*selection(scheme="bf16"), 0.5)
    assert "it has no range" in out.sentence and not said, "nobody asked for it: no notification"


def test_a_scheme_without_one_range_has_no_empty_figures() -> None:
    """What the section would fill takes no room beside the reason, and its methods can still be taken."""
    out = calibration.show(*selection(scheme="q4_k"), 0.5)
    assert 'class="status refusal"' in out.sentence and "int4_group32_asym" in out.sentence
    assert ".section:has(.refusal) .of-result { display: none" in (ASSETS / "style.css").read_text()
    kinds = {getattr(b, "elem_id", None): b for b in page().blocks.values()}

    def collapsed(name: str) -> bool:
        box = kinds[name]
        while box is not None and "of-result" not in (getattr(box, "elem_classes", None) or ()):
            box = box.parent
        return box is not None

    assert all(map(collapsed, ("ranges", "objectives", "own-range", "calibration-table", "amount")))
    assert not collapsed("use-range") and not collapsed("calibration-sentence")


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


def test_the_own_range_becomes_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dragged range can be written into A or B like any method's; what A has already is only said."""
    said: list[str] = []
    monkeypatch.setattr(limits, "notify", said.append)
    monkeypatch.setattr(limits, "inform", said.append)
    (out,) = json.loads(calibration.written("own", 0.31, "b", "int8_tensor"))
    assert out["side"] == "b" and "~share0.31" in out["text"] and "0.31 of min-max" in said.pop()
    again = calibration.written("own", 0.31, "a", out["text"])
    assert unchanged(again) and "already" in said.pop()
    calibration.written("minmax", 0.31, "a", "int8_tensor")
    assert "already" in said.pop()
