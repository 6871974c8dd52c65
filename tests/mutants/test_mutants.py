"""What ``make mutants`` counts and writes, without a run of it.

If these fail, a mutant counts as killed that no test noticed, or a recorded page loses what it said.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.mutants import run
from tests.mutants import sample as sample_module
from tests.mutants.known import Reason
from tests.mutants.run import (
    HEADING,
    Outcome,
    Run,
    Timed,
    chosen,
    report,
    traced_in,
    wilson,
    with_section,
)
from tests.mutants.sample import Mutant, change_in_words, function_at, same_program

SOURCE = """from __future__ import annotations

from functools import cached_property

LIMIT: int | None = 3


class Row:
    @property
    def size(self: Row) -> int | None:
        return max(n for n in (1, 2))

    @cached_property
    def kept(self) -> int:
        return 7
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("int | None = 3", "int & None = 3", True),
        ("-> int | None:", "-> int & None:", True),
        ("= 3", "= 4", False),
        ("    @property\n", "", False),
        ("max(", "min(", False),
    ],
)
def test_annotations_are_no_program(old: str, new: str, same: bool) -> None:
    """A change that is not evaluated cannot be noticed, and would count as a survivor."""
    assert SOURCE.count(old) == 1 and same_program(SOURCE, SOURCE.replace(old, new)) == same


def test_what_is_no_program_is_no_mutant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An operator also meets the asterisk of a signature: such a file ended the run, and all verdicts with
    it."""
    source = "def f(a, *, b):\n    return a\n"
    (tmp_path / "f.py").write_text(source)
    texts = iter([source.replace("*", "&"), source.replace("return a", "return b")])
    mutants = [Mutant("f.py", (line, 0), "name", 0) for line in (1, 2)]
    monkeypatch.setattr(sample_module, "mutants_of", lambda source, path: mutants)
    monkeypatch.setattr(Mutant, "apply", lambda mutant, source: next(texts))
    assert len(list(sample_module.sample(tmp_path, ["f.py"], 0))) == 1


@pytest.mark.parametrize(("line", "first"), [(5, None), (9, 9), (10, 9), (11, 9), (15, None)])
def test_the_function_around_a_line(line: int, first: int | None) -> None:
    """Python counts a function from its first decorator; what is cached is called once for all tests."""
    assert function_at(SOURCE, line) == first


def test_verdicts_outlive_a_run(tmp_path: Path) -> None:
    """A run that ends before its time goes on where it was, of the same seed and commit alone."""
    kept = run.Kept(tmp_path, seed=3, commit="abc")
    outcome = Outcome(Mutant("f.py", (1, 0), "name", 0), "`a` → `b`", "", 4)
    assert kept.outcomes == []
    kept.add(outcome)
    again = run.Kept(tmp_path, 3, "abc")
    again.add(outcome)
    assert 0 < again.seconds < (both := run.Kept(tmp_path, 3, "abc")).seconds
    assert both.outcomes == [outcome, outcome]
    assert run.Kept(tmp_path, 4, "abc").outcomes == run.Kept(tmp_path, 3, "abd").outcomes == []


def test_a_change_is_its_line() -> None:
    assert change_in_words(SOURCE, SOURCE.replace("(1, 2)", "(1, 3)")) == (
        "`return max(n for n in (1, 2))` → `return max(n for n in (1, 3))`"
    )
    assert change_in_words(SOURCE, SOURCE.replace("@property", "")) == "`@property` → left out"


def test_tests_that_call_the_function_quickest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to so many seconds, one at least."""
    monkeypatch.setattr(run, "TESTS_SECONDS", 2.0)
    calls = ["a.py:9", "a.py:1", "a.py:9", "a.py:9"]
    tests = [
        Timed(f"t{i}", seconds, frozenset([call]))
        for i, (seconds, call) in enumerate(zip((0.5, 0.6, 1.0, 9.0), calls, strict=True))
    ]
    assert [t.name for t in chosen(tests, "a.py", 9)] == ["t0", "t2"]
    assert (
        [t.name for t in chosen(tests, "a.py", None)]
        == ["t0", "t1"]
        == [t.name for t in chosen(tests, "a.py", 5)]
    ), "what is called by no test may run as it is imported"
    table = Timed("t9", 0.9, frozenset())
    assert [t.name for t in chosen([*tests, table], "a.py", None)] == ["t9", "t0", "t1"], "it looks at tables"
    assert [t.name for t in chosen(tests[3:], "a.py", 9)] == ["t3"]
    assert [t.name for t in chosen(tests, "b.py", None)] == ["t0", "t1"], "a table has no functions"


BASE = "explorer/formats/base.py"
OUTCOMES = (
    Outcome(Mutant(BASE, (9, 4), "core/NumberReplacer", 0), "`a | 1` → `a | 2`", "", 3),
    Outcome(Mutant(BASE, (3, 0), "core/NumberReplacer", 0), "`1` → `2`", "tests/a::b", 3),
    Outcome(Mutant("explorer/core/flat.py", (7, 0), "core/NumberReplacer", 0), "`3` → `4`", "", 8),
    Outcome(Mutant("explorer/core/flat.py", (8, 0), "core/NumberReplacer", 0), "`5` → `6`", "time: 9 s", 8),
)


def test_the_page_names_every_survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason; the rest of the page stays as it is, however often the section is written."""
    monkeypatch.setitem(run.WHY, (BASE, "`a | 1` → `a | 2`"), Reason("the bit is set", equivalent=True))
    text = report(Run(5, 12.3, "a CPU", OUTCOMES))
    assert "4 mutants, seed 5, in 12 min: **50 % killed** (15.0 to 85.0). One survivor is equivalent" in text
    assert "of the other 3, **67 % are killed** (20.8 to 93.9). Measured on\na CPU." in text
    assert "| `formats` | 2 | 50 % (9.5 to 90.5) | 0 | 1 | 1 | 0 |" in text
    assert "| `core` | 2 | 50 % (9.5 to 90.5) | 1 | 1 | 0 | 0 |" in text
    assert "None was dropped at the deadline." in text
    assert "| `explorer/formats/base.py:9` | `a \\| 1` → `a \\| 2` | equivalent: the bit is set |" in text
    assert (
        "| `explorer/core/flat.py:7` | `3` → `4` | not explained yet: 8 tests ran |" in text
        and "tests/a" not in text
    )
    page = "# Title\n\ntext\n\n## Before\n\nb\n\n## After\n\na\n"
    once = with_section(page, text)
    assert once.startswith(page.rstrip()) and with_section(once, text) == once
    middle = once + "\n## Last\n\nl\n"
    assert with_section(middle, f"{HEADING}\n\nnew\n") == f"{page}\n{HEADING}\n\nnew\n\n## Last\n\nl\n"


@pytest.mark.parametrize("reason", run.WHY.values(), ids=lambda reason: reason.why[:40])
def test_a_survivor_is_equivalent_or_a_test_notices_it_now(reason: Reason) -> None:
    """If this fails, the page names a survivor that no result tells, and does not count it as equivalent."""
    noticed = re.fullmatch(r"a test written since notices it, in `(tests/[\w/]+\.py)`", reason.why)
    assert reason.equivalent or (noticed and (run.ROOT / noticed[1]).is_file())


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"),
    [(33, 33, 0.8957, 1.0), (0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_the_interval_of_a_share(part: int, whole: int, low: float, high: float) -> None:
    """Worked values; the last is that of R. G. Newcombe (Statistics in Medicine, 1998), table I."""
    assert wilson(part, whole) == pytest.approx((low, high), abs=6e-5)


def test_a_mutant_without_a_verdict_is_no_survivor() -> None:
    """What the deadline cut off is counted apart and lowers no share, but the page says how low it could
    be; a package that has nothing else keeps its row."""
    flat = Mutant("explorer/core/flat.py", (9, 0), "core/NumberReplacer", 0)
    cut = [Outcome(flat, "`7` → `8`", "", 8, dropped=True)]
    text = report(Run(5, 12.3, "a CPU", (*OUTCOMES, *cut, *cut)))
    assert "4 mutants, seed 5" in text and "**50 % killed**" in text and "`7`" not in text
    assert (
        "2 more were dropped at the deadline, without a verdict: if all that were dropped survived, "
        "33 % would be killed." in text
    )
    assert "| `core` | 2 | 50 % (9.5 to 90.5) | 1 | 1 | 0 | 2 |" in text
    assert "One more was dropped" in report(Run(5, 12.3, "a CPU", (*OUTCOMES, *cut)))
    assert "| `core` | 0 | none | 0 | 0 | 0 | 1 |" in report(Run(5, 12.3, "a CPU", tuple(cut)))


def test_the_page_is_what_was_recorded(tmp_path: Path) -> None:
    """With the reasons of today; and a recording comes back as it was written."""
    kept = Run(5, 12.3, "a CPU", OUTCOMES)
    kept.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == kept
    if run.RECORDED.is_file():
        page = (run.ROOT / run.PAGE).read_text(encoding="utf-8")
        found = Run.read(run.RECORDED)
        assert with_section(page, report(found)) == page, "python -m tests.mutants.run --page"


def test_what_the_deadline_cuts_off_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beyond the deadline there is no verdict; within it, too long a run is a hang."""
    (tmp_path / "explorer/core").mkdir(parents=True)
    (tmp_path / "explorer/core/a.py").write_text("x = 1\n")

    class Change(Mutant):
        def apply(self, source: str) -> str:
            return source.replace("1", "2")

    monkeypatch.setattr(run, "pytest", lambda *_: (None, ""))
    mutant, tests = Change("explorer/core/a.py", (1, 0), "", 0), [Timed("t", 0.1, frozenset())]
    late = run.try_one(tmp_path, mutant, tests, time.monotonic() + 1)
    hung = run.try_one(tmp_path, mutant, tests, time.monotonic() + 1000)
    assert (late.by, late.dropped) == ("", True)
    assert hung.by.startswith(run.HANG) and not hung.dropped
    broken = "ERROR tests/core/test_a.py - ValueError\nERROR: found no collectors for tests/core/test_a.py::t"
    monkeypatch.setattr(run, "pytest", lambda *_: (4, broken))
    assert run.try_one(tmp_path, mutant, tests, time.monotonic() + 1000).by == "tests/core/test_a.py"
    monkeypatch.setattr(run, "pytest", lambda *_: (4, "ERROR: unrecognized arguments"))
    with pytest.raises(RuntimeError, match="without a verdict"):
        run.try_one(tmp_path, mutant, tests, time.monotonic() + 1000)


def test_reach_says_what_a_test_calls(tmp_path: Path) -> None:
    """By the plugin itself, on two cases of one test: the functions of rounding, and the seconds."""
    out, root = tmp_path / "reach.jsonl", Path(__file__).resolve().parents[2]
    names = ["tests/formats/test_formats.py::test_every_code_round_trips[int2]"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.reach"]
    subprocess.run([*command, "--reach", out, *names], cwd=root, check=True, capture_output=True)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": "cut"})[:-1])
    (found,) = traced_in(out)
    source = (root / "explorer/formats/integers.py").read_text(encoding="utf-8").splitlines()
    line = next(i for i, text in enumerate(source, 1) if "def codes_of(" in text)
    assert found.name == names[0] and f"explorer/formats/integers.py:{line}" in found.calls
    assert not any("floats.py" in call and "encode" in call for call in found.calls) and found.seconds < 60


def test_tests_that_a_mutant_takes_away_do_not_decide() -> None:
    """pytest names what it did not find, without its parameters. If this fails, a run of half an hour ends
    with the first mutant that changes a table of tests."""
    said = (
        "ERROR: not found: /tmp/x/copy1/tests/checkpoints/test_every_row.py::test_bits\n"
        "(no match in any of [<Module test_every_row.py>])\n\n"
        "ERROR: not found: /tmp/x/copy1/tests/core/test_ops.py::test_one[a-b]\n"
    )
    assert run.not_found(said) == {
        "tests/checkpoints/test_every_row.py::test_bits",
        "tests/core/test_ops.py::test_one",
    }
    assert not run.not_found("FAILED tests/core/test_ops.py::test_one")
