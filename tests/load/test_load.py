"""A short run of ``make load``, and how its numbers are judged.

If these fail, the recorded page of docs/ may show a server that mixes visitors up, or grows without end.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.covering import THOROUGH
from tests.load.run import Seen, bad, report, run

VISITORS, SECONDS = 8, 30


@THOROUGH
def test_eight_visitors_for_half_a_minute(tmp_path: Path) -> None:
    """No answer is wrong or lost, and the server prints no traceback; each kind of request was made."""
    seen = Seen()
    with ThreadPoolExecutor(1) as pool:  # in this thread a browser test may have left a loop running
        failures = pool.submit(run, VISITORS, SECONDS, 4 << 20, tmp_path, seen).result()
    assert not [answer for answer in seen.answers if bad(answer)] and failures == 0
    assert {"tensor", "frontier", "hostile", "upload"} <= {answer.kind for answer in seen.answers}
    right = [answer for answer in seen.answers if answer.how == "right"]
    assert len(right) > len(seen.answers) / 2, report(VISITORS, SECONDS / 60, seen.answers, seen.samples)
