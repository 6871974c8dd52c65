"""Runs a seeded sample of mutants for some minutes, and writes what became of them.

    python -m tests.mutants.run --minutes 30 [--seed 1] [--jobs 2] [--packages formats,core] [--record]
                                [--traces FOLDER] [--page]

First the tests of the packages run once, as they are: which functions each calls, and how long it takes. Then
each mutant is made in a copy of the project, and the tests that call the changed function run, the quickest
first, up to ``TESTS_SECONDS`` of them (``chosen``). A mutant is killed by a failure, an error, or by taking
``SLOWER`` times as long; else it survives.
``--traces`` keeps the first run's files, and takes those that are there: on a slow machine it takes longer
than all mutants.
A mutant whose tests had not ended by the deadline has no verdict: it is counted apart, and the share killed
is also given as if all of these had survived, since those that survive or hang take the longest.
``--record`` writes ``recorded.json`` and the section "Mutants" of docs/correctness.md; ``--page`` writes the
section again, after survivors were given their reasons (``known.WHY``).
"""

from __future__ import annotations

import argparse
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
from tests.mutants.known import WHY, Reason
from tests.mutants.sample import Mutant, change_in_words, function_at, sample

ROOT = Path(__file__).resolve().parents[2]
PAGE, HEADING = "docs/correctness.md", "## Mutants"
RECORDED = ROOT / "tests/mutants/recorded.json"
TESTS = {
    "formats": ["tests/formats", "tests/core", "tests/analysis", "tests/test_values.py"],
    "schemes": ["tests/schemes", "tests/core", "tests/analysis", "tests/test_values.py"],
    "core": ["tests/core", "tests/schemes", "tests/analysis", "tests/methods", "tests/test_values.py"],
    "methods": ["tests/methods", "tests/test_values.py"],
    "checkpoints": ["tests/checkpoints", "tests/test_values.py"],
}
"""By package of the library the tests that ought to notice a change of it."""
QUICK = "not gpu and not thorough and not browser"
TESTS_SECONDS, SLOWER, STARTING = 20.0, 6.0, 120.0
"""Seconds of tests that are run on a mutant, as they took unchanged; how many times that counts as a hang,
beside the seconds that Python, torch and the collection of tests may take."""
ENDS = (0, 1, 2)
"""How pytest ends with a verdict: passed; failed; a file of tests that cannot be imported any more. Other
codes (no tests collected, a wrong option) say nothing of the mutant, unless conftest.py cannot
be imported."""
USAGE = 4
"""How pytest ends where a test that it was asked for is not there."""
NOT_IMPORTED = ("conftest", "ERROR: found no collectors for")
"""What pytest says, beside a code that is none of ``ENDS``, where a file of tests cannot be imported."""
HANG = "time:"
"""How ``Outcome.by`` begins where a mutant took too long; on a busy machine some that were not noticed do."""
WARM_SHARE = 0.5
"""Share of the time after which the tests that have not run by then are left out."""


@dataclass(frozen=True)
class Timed:
    """A test that passes, its seconds, and the functions that it calls ("path:first line")."""

    name: str
    seconds: float
    calls: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: ``by`` is the test that noticed it, or how else it was killed; empty if it
    survived ``tests`` tests, or was ``dropped``: the deadline came before its verdict."""

    mutant: Mutant
    change: str
    by: str
    tests: int
    dropped: bool = False


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
    """Verdicts of a seed at a commit, a line each in a file of ``folder``: a run that ended before its time
    goes on where it was."""

    def __init__(self, folder: Path, seed: int, commit: str) -> None:
        self.seed, self._file = seed, folder / f"verdicts-{seed}-{commit or 'unknown'}.jsonl"
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        rows = list(map(json.loads, lines))
        ends = {row.pop("run"): row.pop("at") for row in rows}
        self._start, self._run = time.monotonic(), len(ends)
        self.outcomes = [Outcome(**{**row, "mutant": _mutant(row["mutant"])}) for row in rows]
        self.seconds = sum(ends.values())
        """What earlier runs took, each to its last verdict."""

    def add(self, outcome: Outcome) -> None:
        """Write one that was not dropped, with the seconds since this run began."""
        self.outcomes.append(outcome)
        if not outcome.dropped:
            row = asdict(outcome) | {"run": self._run, "at": time.monotonic() - self._start}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _mutant(fields: dict[str, Any]) -> Mutant:
    return Mutant(**{**fields, "place": tuple(fields["place"])})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="for all, the tests' first run included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes beside each other")
    parser.add_argument("--packages", default=",".join(TESTS), help=f"of {', '.join(TESTS)}")
    parser.add_argument(
        "--traces", type=Path, help="keep the first run and verdicts here, and use what is there"
    )
    parser.add_argument("--record", action="store_true", help=f"write the section {HEADING!r} of {PAGE}")
    parser.add_argument("--page", action="store_true", help="write that section of what was recorded")
    asked = parser.parse_args()
    if asked.page:
        write_page(Run.read(RECORDED))
        return 0
    packages = asked.packages.split(",")
    if wrong := [name for name in packages if name not in TESTS]:
        parser.error(f"no package {', '.join(wrong)}; accepted: {', '.join(TESTS)}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        traces = asked.traces or Path(folder)
        traces.mkdir(parents=True, exist_ok=True)
        kept = Kept(traces, asked.seed, this_machine(CPU).commit)
        outcomes = run(Path(folder), traces, packages, kept, start + 60 * asked.minutes, asked.jobs)
    minutes = (time.monotonic() - start + kept.seconds) / 60
    machine = this_machine(CPU, ("cosmic-ray", "pytest")).describe()
    found = Run(asked.seed, minutes, machine, tuple(outcomes))
    print(report(found))
    if asked.record:
        found.write(RECORDED)
        write_page(found)
    return 0 if outcomes else 1


def write_page(found: Run) -> None:
    """Write the section of docs/."""
    page = ROOT / PAGE
    page.write_text(with_section(page.read_text(encoding="utf-8"), report(found)), encoding="utf-8")


def run(
    folder: Path, traces: Path, packages: Sequence[str], kept: Kept, deadline: float, jobs: int
) -> list[Outcome]:
    """What became of as many mutants of ``packages`` as fit until ``deadline`` (of ``time.monotonic``), those
    of ``kept`` first."""
    original, *copies = (copied(folder / f"copy{i}") for i in range(jobs + 1))
    first = time.monotonic() + WARM_SHARE * (deadline - time.monotonic())
    tests = {name: found for name, found in first_run(traces, copies, packages, first).items() if found}
    paths = [
        path.relative_to(ROOT).as_posix()
        for name in tests
        for path in sorted((ROOT / "explorer" / name).glob("*.py"))
    ]
    for name, found in tests.items():
        print(f"{name}: {len(found)} tests pass unchanged", file=sys.stderr)
    known, lock = {outcome.mutant for outcome in kept.outcomes}, threading.Lock()
    mutants = (mutant for mutant in sample(original, paths, kept.seed) if mutant not in known)

    def work(copy: Path) -> None:
        while time.monotonic() < deadline:
            with lock:
                mutant = next(mutants, None)
            if mutant is None:
                return
            outcome = try_one(copy, mutant, tests[Path(mutant.path).parts[1]], deadline)
            with lock:
                kept.add(outcome)
                print(f"{len(kept.outcomes)}: {_line(outcome)}", file=sys.stderr)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, copies))
    return kept.outcomes


def copied(folder: Path) -> Path:
    """A copy of the project: what git tracks or would, as it is now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def first_run(
    traces: Path, copies: Sequence[Path], packages: Sequence[str], deadline: float
) -> dict[str, list[Timed]]:
    """By package the tests that pass unchanged, of those that end until ``deadline``, the quickest first. A
    group of tests with a file in ``traces`` is not run again."""
    groups = list(dict.fromkeys(group for name in packages for group in TESTS[name]))
    files = {group: traces / f"{group.replace('/', '-')}.jsonl" for group in groups}
    traces.mkdir(parents=True, exist_ok=True)
    free = list(copies)

    def trace(group: str) -> None:
        copy, left = free.pop(), max(1.0, deadline - time.monotonic())
        command = ["-p", "tests.mutants.reach", "--reach", str(files[group]), group]
        if pytest(copy, command, left)[0] is None:
            print(f"{group}: what did not run in {left:.0f} s is left out", file=sys.stderr)
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


def try_one(copy: Path, mutant: Mutant, tests: Sequence[Timed], deadline: float) -> Outcome:
    """What became of one mutant by ``deadline``."""
    file = copy / mutant.path
    source = file.read_text(encoding="utf-8")
    changed = mutant.apply(source)
    change = change_in_words(source, changed)
    own = chosen(tests, mutant.path, function_at(source, mutant.place[0]))
    names = copy.with_suffix(".tests")
    names.write_text("\n".join(test.name for test in own), encoding="utf-8")
    limit = SLOWER * sum(test.seconds for test in own) + STARTING
    left = deadline - time.monotonic()
    try:
        _write(file, changed)
        code, said = pytest(copy, ["-x", f"@{names}"], min(limit, max(left, 1.0)))
        if missing := not_found(said) if code == USAGE else set():
            # A table of tests has other rows now. The whole suite would not notice: the others decide.
            own = [test for test in own if test.name.partition("[")[0] not in missing]
            names.write_text("\n".join(test.name for test in own), encoding="utf-8")
            left = deadline - time.monotonic()
            code, said = pytest(copy, ["-x", f"@{names}"], min(limit, max(left, 1.0))) if own else (0, "")
    finally:
        _write(file, source)
    if code is None:
        hangs = limit <= left
        return Outcome(mutant, change, f"{HANG} {limit:.0f} s" if hangs else "", len(own), dropped=not hangs)
    if code not in ENDS and not any(words in said for words in NOT_IMPORTED):
        raise RuntimeError(
            f"pytest ended with {code} on {place_of(mutant)}, without a verdict:\n{said[-2000:]}"
        )
    return Outcome(mutant, change, "" if code == 0 else _killer(said, code), len(own))


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


def pytest(copy: Path, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """The exit code of a run of tests in a copy of the project, None after so many seconds; what it
    printed."""
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m", QUICK]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def place_of(mutant: Mutant) -> str:
    """File and line."""
    return f"{mutant.path}:{mutant.place[0]}"


def _line(outcome: Outcome) -> str:
    place = place_of(outcome.mutant)
    ended = f"killed by {outcome.by}" if outcome.by else f"survived {outcome.tests} tests"
    ended = "dropped at the deadline" if outcome.dropped else ended
    return f"{place} {outcome.change}: {ended}"


def report(run: Run) -> str:
    """The section of the page: shares by package, and every survivor with what is known of it."""
    outcomes = run.outcomes
    known = [one for one in outcomes if not one.dropped]
    same = sum(_reason(one).equivalent for one in known if not one.by)
    killed, dropped = sum(bool(one.by) for one in known), len(outcomes) - len(known)
    lines = [
        HEADING,
        "",
        "`make mutants` makes one small change at a time (cosmic-ray's operators: a number, a comparison, an "
        "operation,",
        "a decorator), and runs the tests that call the changed function, the quickest first,",
        f"up to {TESTS_SECONDS:.0f} s of them. A change that no test notices survives.",
        "",
        f"{len(known)} mutants, seed {run.seed}, in {run.minutes:.0f} min: "
        f"**{_share(killed, len(known))} killed**{_interval(killed, len(known))}. "
        f"{_equivalent_in_words(same, killed, len(known))}Measured on",
        f"{run.machine}.",
        _dropped_in_words(dropped, killed, len(outcomes)),
        "They are a sample of all mutants: the interval in brackets is Wilson's, of 95 %.",
        "",
        "| package | mutants | killed | of them by time | survived | of them equivalent | dropped |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in TESTS:
        all_ = [one for one in outcomes if Path(one.mutant.path).parts[1] == name]
        own = [one for one in all_ if not one.dropped]
        if all_:
            dead = sum(bool(one.by) for one in own)
            late = sum(one.by.startswith(HANG) for one in own)
            share = f"{_share(dead, len(own))}{_interval(dead, len(own))}"
            equal = sum(_reason(one).equivalent for one in own if not one.by)
            counts = f"{late} | {len(own) - dead} | {equal} | {len(all_) - len(own)}"
            lines.append(f"| `{name}` | {len(own)} | {share} | {counts} |")
    alive = [one for one in known if not one.by]
    lines += ["", "| survivor | change | why |", "|---|---|---|"] if alive else []
    for one in sorted(alive, key=lambda one: (one.mutant.path, one.mutant.place)):
        reason, change = _reason(one), one.change.replace("|", "\\|")
        why = f"equivalent: {reason.why}" if reason.equivalent else reason.why
        lines.append(f"| `{one.mutant.path}:{one.mutant.place[0]}` | {change} | {why} |")
    return "\n".join(lines) + "\n"


def _reason(outcome: Outcome) -> Reason:
    unknown = Reason(f"not explained yet: {outcome.tests} tests ran")
    return WHY.get((outcome.mutant.path, outcome.change), unknown)


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


def _dropped_in_words(dropped: int, killed: int, mutants: int) -> str:
    if not dropped:
        return "None was dropped at the deadline."
    what = "One more was" if dropped == 1 else f"{dropped} more were"
    return (
        f"{what} dropped at the deadline, without a verdict: if all that were dropped survived, "
        f"{_share(killed, mutants)} would be killed."
    )


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
