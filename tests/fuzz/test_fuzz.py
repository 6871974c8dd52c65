"""A short run of ``make fuzz``: some hundred cases of every family, and the bounds themselves."""

from __future__ import annotations

import time

import pytest

from tests.fuzz.bounds import fault
from tests.fuzz.families import FAMILIES
from tests.fuzz.run import run

CASES = {"files": 150, "headers": 150, "schemes": 100, "entries": 100, "links": 60, "places": 60}


@pytest.mark.usefixtures("one_thread")  # a second one spins on cores that others use, until the bound
@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_cases_of_each_family(family: str) -> None:
    """What one of them finds is printed with its seed: ``python -m tests.fuzz --case NAME`` repeats it."""
    counts, failures = run(CASES.get(family, 25), 1, family)
    assert counts[family] > 0 and not failures


def _hangs() -> None:
    while True:
        try:
            time.sleep(0.01)
        except Exception:  # like code that swallows what ends it: the bound must hold all the same
            continue


@pytest.mark.parametrize(
    "case, words",
    [
        (_hangs, "still running"),
        (lambda: bytearray(b"x" * (150 << 20)), "MB of memory"),
        (lambda: bytearray(1 << 40), "builtins.MemoryError"),
        (lambda: {}["missing"], "builtins.KeyError"),
    ],
    ids=["hang", "memory", "claim", "exception"],
)
def test_the_bounds_see_what_they_are_for(case: object, words: str) -> None:
    """A fuzzer that sees nothing finds nothing."""
    found = fault(case, (ValueError,), seconds=0.05 if case is _hangs else 20, megabytes=100)  # type: ignore[arg-type]
    assert found is not None and words in found
