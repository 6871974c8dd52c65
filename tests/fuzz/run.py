"""Run seeded cases of the families and collect what went wrong."""

from __future__ import annotations

import random
import sys

from tests.fuzz.bounds import fault
from tests.fuzz.families import FAMILIES


def run_case(name: str) -> str | None:
    """What is wrong with the case FAMILY:SEED:NUMBER, None if nothing is."""
    family = FAMILIES[name.split(":")[0]]
    case = family.make(random.Random(name))
    return fault(case, family.own)


def run(
    cases: int, seed: int, only: str | None = None, trace: bool = False
) -> tuple[dict[str, int], list[str]]:
    """How many cases of each family were run, and the failures, each printed as it happens."""
    shares = {name: f.share for name, f in FAMILIES.items() if only in (None, name)}
    counts = {name: round(cases * share / sum(shares.values())) for name, share in shares.items()}
    failures = []
    for family, count in counts.items():
        for number in range(count):
            name = f"{family}:{seed}:{number}"
            if trace:
                print(name, flush=True)
            wrong = run_case(name)
            if wrong is not None:
                failures.append(f"{name}: {wrong}")
                print(failures[-1], file=sys.stderr, flush=True)
    return counts, failures
