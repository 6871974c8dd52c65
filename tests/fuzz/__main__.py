"""``python -m tests.fuzz``: many seeded cases, each bounded in time and memory.

A failure is a hang, more memory than the bound, or an exception that is not the project's own; a crash ends
the run, and its case is the last that was begun (``--trace``). ``--case FAMILY:SEED:NUMBER`` repeats one.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.run import run, run_case


def main() -> int:
    """Run what the command line asks for; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one family")
    parser.add_argument("--case", help="repeat one case, as a failure names it")
    parser.add_argument("--trace", action="store_true", help="print each case before it is run")
    asked = parser.parse_args()
    if asked.case:
        wrong = run_case(asked.case)
        print(wrong or "nothing is wrong")
        return int(wrong is not None)
    started = time.monotonic()
    counts, failures = run(asked.cases, asked.seed, asked.only, asked.trace)
    for family, count in counts.items():
        print(f"{family:10} {count:7,} cases  {sum(f.startswith(family + ':') for f in failures):4} failures")
    print(f"{sum(counts.values()):,} cases in {time.monotonic() - started:.0f} s, {len(failures)} failures")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
