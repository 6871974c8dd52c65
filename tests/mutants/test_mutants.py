"""What ``make mutants`` counts and writes, without a run of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutants import run
from tests.mutants.run import Outcome, Reason, Run, Timed, chosen, report, wilson, with_section
from tests.mutants.sample import Mutant, function_at, mutants_of

SOURCE = "LIMIT: int | None = 3\n\n\ndef f(a, *, b):\n    return a < b\n"


def test_mutants_are_counted_and_survivors_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small source: its mutants, the tests that each would meet, and the section of the page. The page
    of docs/ is that of the recorded run."""
    found = {mutant.apply(SOURCE) for mutant in mutants_of(SOURCE, "explorer/core/a.py")}
    assert SOURCE.replace("a < b", "a <= b") in found and SOURCE.replace("= 3", "= 4") in found
    assert function_at(SOURCE, 5) == 4 and function_at(SOURCE, 1) is None
    tests = [Timed(f"t{i}", 15.0 * i, frozenset([f"explorer/core/a.py:{4 + i % 2}"])) for i in range(5)]
    assert [test.name for test in chosen(tests, "explorer/core/a.py", 4)] == ["t0"]
    assert [test.name for test in chosen(tests[2:], "explorer/core/a.py", 4)] == ["t2"]
    assert run.not_found("ERROR: not found: /x/copy1/tests/core/test_a.py::test_b[c-d]") == {
        "tests/core/test_a.py::test_b"
    }
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=6e-5)  # Newcombe 1998, table I
    mutant = Mutant("explorer/core/a.py", (5, 0), "core/Comparison", 0)
    monkeypatch.setitem(run.WHY, (mutant.path, "`a` → `b`"), Reason("nothing reads it", equivalent=True))
    same = Outcome(mutant, "`a` → `b`", "", 3)
    dead = replace(same, mutant=replace(mutant, occurrence=1), by="tests/a::b")
    late = replace(same, mutant=replace(mutant, occurrence=2), change="`c` → `d`", thorough="tests/a::c")
    now = Run(5, 12.3, "a CPU, commit abc", (same, dead, late))
    before = replace(now, outcomes=(same, dead, replace(late, by="tests/a::c", thorough="")))
    text = report(now, before)
    assert "| `core` | 3 | 33 % (6.1 to 79.2) | 0 | 2 | 1 |" in text and "of commit abc killed 67 %" in text
    assert "`a` → `b` | equivalent: nothing reads it |" in text and "alone, `tests/a::c` |" in text
    page = (run.ROOT / run.PAGE).read_text(encoding="utf-8")
    assert with_section(with_section(page, text), report(now)) == with_section(page, report(now))
    recorded, was = Run.read(run.RECORDED), Run.read(run.BEFORE)
    assert with_section(page, report(recorded, was)) == page, "python -m tests.mutants.run --page"
