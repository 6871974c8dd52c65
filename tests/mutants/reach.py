"""A plugin of pytest that writes which functions of the library each test calls, and how long it takes.

    python -m pytest -p tests.mutants.reach --reach FILE tests/formats

One line of JSON a test: ``test`` (its node id), ``seconds``, ``passed``, and ``calls``, the functions as
"path:first line". What a fixture of a module calls counts for all tests of that module.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Reach:
    """Traces calls, and only those: no line of a function that was entered is traced."""

    def __init__(self, out: Path) -> None:
        self.out, self.seen = out, set[CodeType]()
        self.of_fixtures: dict[str, set[CodeType]] = defaultdict(set)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        self.seen.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        before, self.seen = self.seen, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.of_fixtures[request.node.nodeid.split("::")[0]] |= self.seen
            self.seen |= before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.seen, self.passed, self.seconds = set(), True, 0.0
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self._write(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        self.passed = self.passed and report.outcome == "passed"

    def _write(self, item: pytest.Item) -> None:
        codes = self.seen | self.of_fixtures[item.nodeid.split("::")[0]]
        line = {
            "test": item.nodeid,
            "seconds": round(self.seconds, 3),
            "passed": self.passed,
            "calls": sorted({place for code in codes if (place := place_of(code))}),
        }
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def place_of(code: CodeType) -> str:
    """ "explorer/formats/base.py:61" of a function of the library, empty for others."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT / "explorer"):
        return ""
    return f"{path.relative_to(ROOT).as_posix()}:{code.co_firstlineno}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reach", type=Path, metavar="FILE", help="write which functions each test calls")


def pytest_configure(config: pytest.Config) -> None:
    if out := config.getoption("--reach"):
        config.pluginmanager.register(Reach(out))
