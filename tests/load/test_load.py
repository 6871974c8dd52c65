"""A short run of ``make load``, and how its numbers are judged.

If these fail, the recorded page of docs/ may show a server that mixes visitors up, or grows without end.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.load.run import FLAT, Sample, Seen, bad, report, run, slopes
from tests.load.visitor import Answer

VISITORS, SECONDS = 8, 30


@pytest.mark.thorough
def test_eight_visitors_for_half_a_minute(tmp_path: Path) -> None:
    """No answer is wrong or lost, and the server prints no traceback; each kind of request was made."""
    seen = Seen()
    with ThreadPoolExecutor(1) as pool:  # in this thread a browser test may have left a loop running
        failures = pool.submit(run, VISITORS, SECONDS, 4 << 20, tmp_path, seen).result()
    assert not [answer for answer in seen.answers if bad(answer)] and failures == 0
    assert {"tensor", "take", "hostile", "upload"} <= {answer.kind for answer in seen.answers}
    right = [answer for answer in seen.answers if answer.how == "right"]
    assert len(right) > len(seen.answers) / 2, report(VISITORS, SECONDS / 60, seen.answers, seen.samples)


ENDS = {
    "right": False,
    "refused: busy": False,
    "aborted": False,
    "wrong: 1 for 2 dB": True,
    "lost: ReadError": True,
    "error: 500": True,
}


@pytest.mark.parametrize(("how", "wrong"), ENDS.items())
def test_what_counts_as_bad(how: str, wrong: bool) -> None:
    assert bad(Answer("tensor", 1.0, how)) is wrong


def test_a_server_that_grows_is_not_flat() -> None:
    """A megabyte each half minute after the caches are full; before that, growth does not count."""
    steady = [Sample(float(at), min(at, 300) * 10**6, 8, 20, 0) for at in range(0, 3600, 5)]
    growing = [Sample(s.at, int(s.memory + s.at / 30 * 1e6), 8, 20, 0) for s in steady]
    assert slopes(steady)["memory"] == pytest.approx(0, abs=1)
    assert slopes(growing)["memory"] == pytest.approx(120, abs=1)
    assert 1 < FLAT["memory"] < 119
