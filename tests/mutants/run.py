"""Runs a seeded sample of mutants, and writes what became of them.

    python -m tests.mutants.run --count 200 [--seed 1] [--jobs 2] [--packages formats,core] [--record]
                                [--traces FOLDER] [--before FILE] [--page]

First the tests of the packages run once, as they are: which functions each calls, and how long it takes. Then
each mutant is made in a copy of the project, and the tests of ``make test`` that call the changed function
run, the quickest first, up to ``TESTS_SECONDS`` of them (``chosen``). A mutant is killed by a failure, an
error, or by taking ``SLOWER`` times as long; else it survives. What survives, and a test of the run of before
killed (``--before``), meets that test once more, if ``make test-all`` has it.
``--traces`` keeps the first run's files and the verdicts of a commit, and takes those that are there.
``--record`` writes ``recorded.json`` and the section "Mutants" of docs/correctness.md; ``--page`` writes the
section again, after survivors were given their reasons (``known.json``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from explorer.core.backend import CPU
from explorer.recordings.machine import this_machine
from tests.mutants.sample import Mutant, change_in_words, function_at, sample
from tests.mutants.zygote import Zygote

ROOT = Path(__file__).resolve().parents[2]
PAGE, HEADING = "docs/correctness.md", "## Mutants"
RECORDED, BEFORE = (ROOT / f"tests/mutants/{name}.json" for name in ("recorded", "before"))
TESTS = {
    "formats": ["tests/formats", "tests/schemes", "tests/core", "tests/analysis", "tests/test_values.py"],
    "schemes": ["tests/schemes", "tests/core", "tests/analysis", "tests/test_values.py"],
    "core": ["tests/core", "tests/schemes", "tests/analysis", "tests/methods", "tests/test_values.py"],
    "methods": ["tests/methods", "tests/test_values.py"],
    "analysis": ["tests/analysis", "tests/figures", "tests/test_values.py"],
    "checkpoints": ["tests/checkpoints", "tests/test_values.py"],
    "survey": ["tests/survey", "tests/test_values.py"],
}
"""By package of the library the tests that ought to notice a change of it."""
QUICK, THOROUGH = "not gpu and not thorough and not browser", "thorough and not gpu and not browser"
"""The tests of ``make test``, and what ``make test-all`` adds; the page's are of the page."""
TESTS_SECONDS, SLOWER, STARTING = 20.0, 6.0, 120.0
"""Seconds of tests that are run on a mutant, as they took unchanged; how many times that counts as a hang,
beside the seconds that the collection of tests may take."""
FAILS = (1, 2, 3)
"""How pytest ends with a test that failed, with a file of tests that cannot be imported any more, and with an
error of its own; a process that a signal ended has a negative code."""
USAGE = 4
"""How pytest ends where a test that it was asked for is not there."""
NOT_IMPORTED = ("conftest", "ERROR: found no collectors for")
"""What pytest says, beside ``USAGE``, where a file of tests cannot be imported."""
HANG = "time:"
"""How ``Outcome.by`` begins where a mutant took too long; on a busy machine some that were not noticed do."""


@dataclass(frozen=True)
class Reason:
    """Why a survivor survives, in words; ``equivalent``: no input has another result."""

    why: str
    equivalent: bool = False


WHY = {
    (row.pop("path"), row.pop("change")): Reason(**row)
    for row in json.loads((ROOT / "tests/mutants/known.json").read_text(encoding="utf-8"))
}
"""By file and change."""


@dataclass(frozen=True)
class Timed:
    """A test that passes, its seconds, and the functions that it calls ("path:first line")."""

    name: str
    seconds: float
    calls: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: ``by`` is the test that noticed it, or how else it was killed; empty if it
    survived ``tests`` tests. ``thorough`` is a test of ``make test-all`` alone that notices it."""

    mutant: Mutant
    change: str
    by: str
    tests: int
    thorough: str = ""


@dataclass(frozen=True)
class Run:
    """What became of the mutants of a seed, in so many minutes on a machine."""

    seed: int
    minutes: float
    machine: str
    outcomes: tuple[Outcome, ...]

    def write(self, path: Path) -> None:
        """As JSON, an outcome a line."""
        head = {"seed": self.seed, "minutes": round(self.minutes, 1), "machine": self.machine}
        lines = ",\n".join(json.dumps(asdict(one), ensure_ascii=False) for one in self.outcomes)
        path.write_text(f'{json.dumps(head)[:-1]}, "outcomes": [\n{lines}\n]}}\n', encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Run:
        """What ``write`` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        outcomes = tuple(
            Outcome(**{**one, "mutant": _mutant(one["mutant"])}) for one in found.pop("outcomes")
        )
        return cls(**found, outcomes=outcomes)


class Kept:
    """Verdicts of a seed, a line each in a file of ``folder``: a run that was ended goes on where
    it was."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._file = folder / f"verdicts-{seed}.jsonl"
        self.seed, lines = seed, self._file.read_text("utf-8").splitlines() if self._file.exists() else []
        self.outcomes = [
            Outcome(**{**row, "mutant": _mutant(row["mutant"])}) for row in map(json.loads, lines)
        ]

    def add(self, outcome: Outcome) -> None:
        """Write one."""
        self.outcomes.append(outcome)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")


def _mutant(fields: dict[str, Any]) -> Mutant:
    return Mutant(**{**fields, "place": tuple(fields["place"])})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes beside each other")
    parser.add_argument("--packages", default=",".join(TESTS), help=f"of {', '.join(TESTS)}")
    parser.add_argument(
        "--traces", type=Path, help="keep the first run and verdicts here, and use what is there"
    )
    parser.add_argument("--before", type=Path, default=BEFORE, help="a run to compare with, of the same seed")
    parser.add_argument("--record", action="store_true", help=f"write the section {HEADING!r} of {PAGE}")
    parser.add_argument("--page", action="store_true", help="write that section of what was recorded")
    asked = parser.parse_args()
    if asked.page:
        write_page(Run.read(RECORDED), Run.read(asked.before))
        return 0
    packages = asked.packages.split(",")
    if wrong := [name for name in packages if name not in TESTS]:
        parser.error(f"no package {', '.join(wrong)}; accepted: {', '.join(TESTS)}")
    start, before = time.monotonic(), Run.read(asked.before)
    machine, commit = this_machine(CPU, ("cosmic-ray", "pytest")).describe(), this_machine(CPU).commit
    command = ["git", "status", "--porcelain", "explorer", "tests"]
    changed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    if asked.record and changed:
        parser.error(f"what is recorded is of a commit; not committed are:\n{changed}")
    killers = {one.mutant: one.by for one in before.outcomes}
    with tempfile.TemporaryDirectory() as folder:
        traces = (asked.traces or Path(folder)) / (commit if commit and not changed else "not-committed")
        traces.mkdir(parents=True, exist_ok=True)
        kept = Kept(traces, asked.seed)
        run(Path(folder), traces, packages, kept, asked.count, asked.jobs, killers)
    found = Run(asked.seed, (time.monotonic() - start) / 60, machine, tuple(kept.outcomes))
    print(report(found, before))
    if asked.record:
        found.write(RECORDED)
        write_page(found, before)
    return 0


def write_page(found: Run, before: Run) -> None:
    """Write the section of docs/."""
    page = ROOT / PAGE
    page.write_text(with_section(page.read_text(encoding="utf-8"), report(found, before)), encoding="utf-8")


def run(
    folder: Path,
    traces: Path,
    packages: Sequence[str],
    kept: Kept,
    count: int,
    jobs: int,
    killers: dict[Mutant, str],
) -> None:
    """Add to ``kept`` until it holds ``count`` mutants of ``packages``."""
    original, *copies = (copied(folder / f"copy{i}") for i in range(jobs + 1))
    tests = first_run(traces, copies, packages)
    paths = [
        path.relative_to(ROOT).as_posix()
        for name in tests
        for path in sorted((ROOT / "explorer" / name).glob("*.py"))
    ]
    for name, found in tests.items():
        print(f"{name}: {len(found)} tests pass unchanged", file=sys.stderr)
    known, lock = {outcome.mutant for outcome in kept.outcomes}, threading.Lock()
    mutants = itertools.islice(sample(original, paths, kept.seed), count)

    def work(copy: Path) -> None:
        zygote = Zygote()
        while True:
            with lock:
                mutant = next((mutant for mutant in mutants if mutant not in known), None)
            if mutant is None:
                return
            own = tests[Path(mutant.path).parts[1]]
            outcome = try_one(zygote, copy, mutant, own, killers.get(mutant, ""))
            with lock:
                kept.add(outcome)
                print(f"{len(kept.outcomes)}: {_line(outcome)}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, copies))


def copied(folder: Path) -> Path:
    """A copy of the project: what git tracks or would, as it is now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def first_run(traces: Path, copies: Sequence[Path], packages: Sequence[str]) -> dict[str, list[Timed]]:
    """By package the tests that pass unchanged, the quickest first. A group of tests with a file in
    ``traces`` is not run again."""
    groups = list(dict.fromkeys(group for name in packages for group in TESTS[name]))
    files = {group: traces / f"{group.replace('/', '-')}.jsonl" for group in groups}
    free = list(copies)

    def trace(group: str) -> None:
        copy = free.pop()
        command = [sys.executable, "-m", "pytest", *OPTIONS, "-m", QUICK, "-p", "tests.mutants.reach"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        command += ["--reach", str(files[group]), group]
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        if ended.returncode:
            files[group].unlink(missing_ok=True)
            raise SystemExit(f"{group}: its tests do not pass unchanged\n{ended.stdout[-2000:]}")
        free.append(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(trace, [group for group in groups if not files[group].exists()]))
    of_group = {group: traced_in(file) for group, file in files.items() if file.exists()}
    return {
        name: sorted(
            (test for group in TESTS[name] for test in of_group.get(group, [])), key=lambda t: t.seconds
        )
        for name in packages
    }


def traced_in(file: Path) -> list[Timed]:
    """The tests that passed, from what ``reach`` wrote."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]  # a run that was ended cuts its last
    return [Timed(row["test"], row["seconds"], frozenset(row["calls"])) for row in rows if row["passed"]]


def chosen(tests: Sequence[Timed], path: str, function: int | None) -> list[Timed]:
    """Of ``tests``, the quickest first, those that call the function, up to ``TESTS_SECONDS``, at least one.
    Where none does, as for None, it runs as it is imported: first those that call no function, for they look
    at tables or at the source itself, then those that call any of the file, then the others."""
    reaching = [test for test in tests if f"{path}:{function}" in test.calls]

    def elsewhere(test: Timed) -> int:
        here = any(call.startswith(f"{path}:") for call in test.calls)
        return 0 if not test.calls else 1 if here else 2

    found, seconds = list[Timed](), 0.0
    for test in reaching or sorted(tests, key=elsewhere):
        if found and seconds + test.seconds > TESTS_SECONDS:
            break
        found.append(test)
        seconds += test.seconds
    return found


def try_one(zygote: Zygote, copy: Path, mutant: Mutant, tests: Sequence[Timed], killer: str) -> Outcome:
    """What became of one mutant, which ``killer`` noticed before."""
    file = copy / mutant.path
    source = file.read_text(encoding="utf-8")
    changed = mutant.apply(source)
    change = change_in_words(source, changed)
    own = chosen(tests, mutant.path, function_at(source, mutant.place[0]))
    limit = SLOWER * sum(test.seconds for test in own) + STARTING
    try:
        _write(file, changed)
        by = noticed(zygote, copy, [test.name for test in own], QUICK, limit)
        function = killer.partition("[")[0]
        thorough = noticed(zygote, copy, [function], THOROUGH, 300) if not by and "::" in function else ""
    finally:
        _write(file, source)
    return Outcome(mutant, change, by, len(own), thorough)


OPTIONS = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed=0")


def noticed(zygote: Zygote, copy: Path, tests: Sequence[str], marked: str, seconds: float) -> str:
    """Which of ``tests`` with these marks notices the change in a copy of the project, or that they take
    longer than ``seconds``; an empty text if none does."""
    names = copy.with_suffix(".tests")
    while tests:
        names.write_text("\n".join(tests), encoding="utf-8")
        code, said = zygote.run(copy, [*OPTIONS, "-m", marked, "-x", f"@{names}"], seconds)
        if code is None:
            return f"{HANG} {seconds:.0f} s"
        if code in FAILS or code < 0 or (code == USAGE and any(words in said for words in NOT_IMPORTED)):
            return _killer(said, code)
        missing = not_found(said) if code == USAGE else set()
        if not missing:
            return ""
        # A table of tests has other rows now. The whole suite would not notice: the others decide.
        tests = [test for test in tests if test.partition("[")[0] not in missing]
    return ""


def not_found(said: str) -> set[str]:
    """The functions of tests that pytest was asked for and did not find, as ``file::function``."""
    return set(re.findall(r"^ERROR: not found: \S*?(tests/\S+?::[^\s\[]+)", said, re.M))


_written = 0


def _write(file: Path, text: str) -> None:
    """Write a source file with a time that no other version of it had: Python keeps what it compiled by the
    time, in seconds, and the length."""
    global _written
    file.write_text(text, encoding="utf-8")
    _written += 1
    os.utime(file, (time.time(), 1_000_000_000 + _written))


def _killer(said: str, code: int) -> str:
    """The test that failed, from pytest's summary."""
    lines = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else f"pytest ended with {code}"


def place_of(mutant: Mutant) -> str:
    """File and line."""
    return f"{mutant.path}:{mutant.place[0]}"


def _line(outcome: Outcome) -> str:
    place = place_of(outcome.mutant)
    ended = f"killed by {outcome.by}" if outcome.by else f"survived {outcome.tests} tests"
    ended += f", killed by {outcome.thorough}" if outcome.thorough else ""
    return f"{place} {outcome.change}: {ended}"


def report(run: Run, before: Run | None = None) -> str:
    """The section of the page: shares by package, and every survivor with what is known of it."""
    outcomes = run.outcomes
    same = sum(_reason(one).equivalent for one in outcomes if not one.by)
    killed = sum(bool(one.by) for one in outcomes)
    lines = [
        HEADING,
        "",
        "`make mutants` makes one small change at a time (cosmic-ray's operators: a number, a comparison, an "
        "operation,",
        "a decorator), and runs tests of `make test` that call the changed function: those in the folders of",
        f"its package, without a browser, the quickest first, up to {TESTS_SECONDS:.0f} s of them.",
        "A change that none of them notices survives.",
        "",
        f"{len(outcomes)} mutants, seed {run.seed}, in {run.minutes:.0f} min: "
        f"**{_share(killed, len(outcomes))} killed**{_interval(killed, len(outcomes))}. "
        f"{_equivalent_in_words(same, killed, len(outcomes))}Measured on",
        f"{run.machine}.",
        "They are a sample of all mutants: the interval in brackets is Wilson's, of 95 %.",
        *([_before_in_words(run, before)] if before and before.seed == run.seed else []),
        "",
        "| package | mutants | killed | of them by time | survived | of them equivalent |",
        "|---|---|---|---|---|---|",
    ]
    for name in TESTS:
        own = [one for one in outcomes if Path(one.mutant.path).parts[1] == name]
        if own:
            dead = sum(bool(one.by) for one in own)
            late = sum(one.by.startswith(HANG) for one in own)
            equal = sum(_reason(one).equivalent for one in own if not one.by)
            share = f"{_share(dead, len(own))}{_interval(dead, len(own))}"
            lines.append(f"| `{name}` | {len(own)} | {share} | {late} | {len(own) - dead} | {equal} |")
    alive = [one for one in outcomes if not one.by]
    lines += ["", "| survivor | change | why |", "|---|---|---|"] if alive else []
    for one in sorted(alive, key=lambda one: (one.mutant.path, one.mutant.place)):
        reason, change = _reason(one), one.change.replace("|", "\\|")
        why = f"equivalent: {reason.why}" if reason.equivalent else reason.why
        lines.append(f"| `{one.mutant.path}:{one.mutant.place[0]}` | {change} | {why} |")
    return "\n".join(lines) + "\n"


def _before_in_words(run: Run, before: Run) -> str:
    """How another suite did on the same mutants."""
    now = {one.mutant: one for one in run.outcomes}
    both = [one for one in before.outcomes if one.mutant in now]
    dead, alive = sum(bool(one.by) for one in both), sum(bool(now[one.mutant].by) for one in both)
    late = sum(bool(one.thorough) for one in run.outcomes)
    return (
        f"Of {len(both)} of the same mutants the tests of commit {before.machine.split()[-1]} killed "
        f"{_share(dead, len(both))}, these {_share(alive, len(both))}; "
        f"of those that only the former killed, thorough tests kill {late}."
    )


def _reason(outcome: Outcome) -> Reason:
    unknown = f"not explained yet: {outcome.tests} tests ran"
    if outcome.thorough:
        unknown = f"killed by a thorough test alone, `{outcome.thorough.partition('[')[0]}`"
    return WHY.get((outcome.mutant.path, outcome.change), Reason(unknown))


def _equivalent_in_words(same: int, killed: int, mutants: int) -> str:
    """The share of mutants that a test can notice."""
    if not same:
        return ""
    what = "One survivor is" if same == 1 else f"{same} survivors are"
    rest = mutants - same
    return (
        f"{what} equivalent, since no result changes for any input: of the other {rest}, "
        f"**{_share(killed, rest)} are killed**{_interval(killed, rest)}. "
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


def _interval(part: int, whole: int) -> str:
    """ " (89.6 to 100)", in per cent; empty without a sample."""
    if not whole:
        return ""
    low, high = wilson(part, whole)
    return f" ({100 * low:.1f} to {100 * high:.1f})"


def wilson(part: int, whole: int) -> tuple[float, float]:
    """The 95 % interval of a share of which ``part`` of ``whole`` draws were found (E. B. Wilson, "Probable
    inference, the law of succession, and statistical inference", 1927)."""
    z = 1.96
    middle = (part + z * z / 2) / (whole + z * z)
    half = z / (whole + z * z) * math.sqrt(part * (whole - part) / whole + z * z / 4)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def with_section(page: str, section: str) -> str:
    """``page`` with its section of the same heading replaced, or with ``section`` at its end."""
    before, found, rest = page.partition(f"{HEADING}\n")
    if not found:
        return f"{page.rstrip()}\n\n{section}"
    _, after, following = rest.partition("\n## ")
    return f"{before}{section}" + (f"\n## {following}" if after else "")


if __name__ == "__main__":
    sys.exit(main())
