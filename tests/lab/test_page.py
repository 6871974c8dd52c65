"""What the measurement of the page makes of its numbers, without a browser.

If these fail, `python -m lab page` says something else than it measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from explorer import browser
from lab import page
from lab.benchmarks import first_numbers_line, page_line
from lab.first_numbers import KEY, FirstNumbers, random_file, row_of
from lab.page import Answer, PageTiming, _printed, summary
from lab.tables import first_numbers_table

ANSWERS = [
    Answer(whole=300, first=90, shift=0.0, task=60, received=5000),
    Answer(whole=100, first=50, shift=0.02, task=0, received=7000),
    Answer(whole=200, first=70, shift=0.01, task=110, received=6000),
]


def test_a_row_has_medians_and_the_worst() -> None:
    """Times and bytes by their median, shifts and tasks by their worst: one jump is one too many."""
    row = summary("swap A and B", "mlp_up", ANSWERS)
    assert row == PageTiming("swap A and B", "mlp_up", 3, 0.2, 0.1, 0.3, 0.07, 6000, 0.02, 0.11)
    line = page_line(row)
    assert line["painted"] == "200 ms" and line["received"] == "6 kB" and line["longest task"] == "110 ms"
    assert line["heap"] is None
    assert page_line(summary("updates", "mlp_up", ANSWERS, 1.04))["heap"] == "1.04×"
    with pytest.raises(ValueError, match="nothing was measured of 'swap'"):
        summary("swap", "mlp_up", [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((["nope"], ["swap A and B"], 1, 0), "no built-in tensor 'nope'"),
        (([], ["swap A and B"], 1, 0), "at least one built-in tensor"),
        ((["mlp_up"], ["dance"], 1, 0), "no action 'dance'; there are scheme A by key"),
        ((["mlp_up"], [], 0, 0), "repeats from 1"),
        ((["mlp_up"], [], 1, -1), "updates from 0"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[list[str], list[str], int, int], words: str) -> None:
    """Before a server and a browser are started for it."""
    with pytest.raises(ValueError, match=words):
        page.check(*arguments)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a browser nor playwright comes with the package."""
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(browser.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="install it, or set CHROMIUM"):
        browser.chromium_path()
    monkeypatch.setitem(page.sys.modules, "playwright.sync_api", None)
    with pytest.raises(ValueError, match="pip install playwright"):
        browser.playwright_api()


def test_first_numbers_have_medians_and_extremes(tmp_path: Path) -> None:
    """Pairs of the first and of all numbers; the file holds what its shape says, from one seed."""
    row = row_of(KEY, (4, 4), [(0.5, 9.0), (0.3, 5.0), (0.4, 7.0)])
    assert row == FirstNumbers(KEY, (4, 4), 3, 0.4, 0.3, 0.5, 7.0)
    assert first_numbers_line(row)["first numbers"] == "400 ms"
    assert "300 ms to 500 ms (3)" in first_numbers_table([row])
    with pytest.raises(ValueError, match="nothing was measured"):
        row_of(KEY, (4, 4), [])
    assert _printed(["a line\n", "Quantization Explorer: http://x/?a=b\n"]) == "http://x/?a=b"
    with pytest.raises(ValueError, match="did not start"):
        _printed(["a line\n"])
    values = np.load(random_file(tmp_path / "x.npy", (300, 8)))
    assert values.shape == (300, 8) and values.dtype == np.float32
    large = np.abs(values).mean(1) > 8
    assert abs(float(values[~large].std()) - 1) < 0.05 and len(np.unique(values)) > 2300
    assert np.flatnonzero(large).tolist() == [75, 150, 225]
