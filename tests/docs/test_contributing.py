"""CONTRIBUTING.md as a newcomer follows it, in a copy of the project: each sample goes where its first line
says, then come the commands of the guide, the checks of CI and the tests.

If these fail, the guide tells people to do what does not work, or an addition needs more than the guide says.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.covering import THOROUGH

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = dict(
    re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (ROOT / "CONTRIBUTING.md").read_text(), re.S | re.M)
)
PLACE = re.compile(r"# (?P<file>\S+\.py)(, (?P<where>last in|above) (?P<name>\w+))?\n")
"""The first line of a sample that belongs into a file."""
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "*.pyi", ".*_cache", ".hypothesis", "shared")
"""Compiled modules are copied: a fresh copy would compile every module and rewrite every test again."""
ADDED = ("float8_e3m4", "float8_ue5m3fn", "int8_64x64", "sigma3", "clip_search", "w8a16_group128", "npz")
"""What the samples add, by the names that tests have in their ids."""
TESTS = (
    "tests/formats", "tests/core/test_scale_formats.py", "tests/schemes/test_schemes.py",
    "tests/schemes/test_calibrators.py", "tests/methods/test_registry.py", "tests/products/test_gemms.py",
    "tests/checkpoints/test_every_row.py", "tests/app/test_functions.py", "tests/lab/test_docs.py",
)  # fmt: skip
"""Where tests read the tables."""
RECORDED = "tests/lab/test_exports.py::test_what_is_promised_is_stored"
"""What asks for a recording (`python -m lab exports`) that nobody made of an addition."""


@dataclass(frozen=True)
class Sample:
    """Python of the guide: what belongs into ``file`` (empty: what shows the addition), as a whole (``where``
    empty), above a table, or last in a table or function."""

    code: str
    file: str = ""
    where: str = ""
    name: str = ""

    @classmethod
    def of(cls, block: str) -> Sample:
        """A block of the guide."""
        place = PLACE.match(block)
        if place is None:
            return cls(block)
        code = block[place.end() :]
        return cls(code, place["file"], place["where"] or "", place["name"] or "")

    def put(self, root: Path) -> None:
        """Write it where it belongs in the project at ``root``."""
        path = root / self.file
        if not self.where:
            assert not path.exists(), f"{self.file} exists already"
            path.write_text(self.code, encoding="utf-8")
            return
        lines = path.read_text(encoding="utf-8").splitlines()
        imports, code = split_imports(self.code)
        first, last, indent = span_of("\n".join(lines), self.name)
        if self.where == "above":
            lines[first:first] = [*code, "", ""]
        else:
            code[-1] += "" if self.name == "build" else ","
            lines[last:last] = [" " * indent + line if line else "" for line in code]
        after = last_import("\n".join(lines))
        lines[after:after] = imports
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def blocks(text: str) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)


def samples(title: str) -> list[Sample]:
    """The samples of a section, in order."""
    return [Sample.of(block) for block in blocks(SECTIONS[title])]


def run_python(code: str, root: Path = ROOT) -> None:
    """Run ``code`` in a process of its own, with the project at ``root``."""
    run_in(root, "-c", code)


def run_in(root: Path, *command: str) -> str:
    """Run Python with ``command`` in the project at ``root``; what it printed. Fails where it does."""
    own = {"PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | own
    run = subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{' '.join(command)[:200]}\n{run.stdout[-6000:]}\n{run.stderr[-3000:]}"
    return run.stdout


def split_imports(code: str) -> tuple[list[str], list[str]]:
    """The lines of imports at the beginning, and the others."""
    lines = code.splitlines()
    count = sum(line.startswith(("import ", "from ")) for line in lines)
    return lines[:count], lines[count + 1 if count else 0 :]


def last_import(source: str) -> int:
    """How many lines a module has up to the end of its imports."""
    return max(
        n.end_lineno or 0 for n in ast.parse(source).body if isinstance(n, ast.Import | ast.ImportFrom)
    )


def span_of(source: str, name: str) -> tuple[int, int, int]:
    """Of the table or function ``name``: the lines before it, the lines up to where another row or statement
    belongs, and how far that is indented."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node.lineno - 1, node.end_lineno or 0, node.body[-1].col_offset
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            rows = node.value  # type: ignore[attr-defined]
            rows = rows.generators[0].iter if isinstance(rows, ast.DictComp) else rows
            return node.lineno - 1, rows.end_lineno - 1, rows.elts[-1].col_offset
    raise AssertionError(f"there is no table or function {name}")


SHOWN = [title for title in SECTIONS if samples(title)]


@dataclass(frozen=True)
class Copy:
    """A copy of the project with every sample of the guide in its place."""

    root: Path
    changed: tuple[str, ...]

    def run(self, *command: str) -> str:
        """``run_in`` the copy."""
        return run_in(self.root, *command)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    root = tmp_path_factory.mktemp("copy") / "project"
    shutil.copytree(ROOT, root, ignore=NOT_COPIED)
    placed = [sample for title in SHOWN for sample in samples(title) if sample.file]
    for sample in placed:
        sample.put(root)
    made = Copy(root, tuple(dict.fromkeys(sample.file for sample in placed)))
    made.run("-m", "ruff", "format", "-q", ".")
    made.run("-m", "ruff", "check", "-q", "--fix", ".")
    made.run("-m", "lab", "docs")
    return made


@THOROUGH
def test_the_quick_checks_of_ci_pass(copy: Copy) -> None:
    """Ruff, of the whole copy."""
    copy.run("-m", "ruff", "check", ".")
    copy.run("-m", "ruff", "format", "--check", ".")


@THOROUGH
def test_the_types_of_the_additions_are_right(copy: Copy) -> None:
    """mypy reads what changed, and from its cache what did not."""
    cache = copy.root / ".mypy_cache"
    if (ROOT / cache.name).is_dir() and not cache.exists():
        shutil.copytree(ROOT / cache.name, cache)
    copy.run("-m", "mypy", *(file for file in copy.changed if not file.startswith("tests/")))


@THOROUGH
def test_the_examples_show_what_they_say(copy: Copy) -> None:
    """The samples without a place, one after another."""
    shown = [sample.code for title in SHOWN for sample in samples(title) if not sample.file]
    run_python("\n".join(shown), copy.root)


@THOROUGH
def test_all_tests_pass_with_the_additions(copy: Copy) -> None:
    """Of what reads the tables, thorough ones of the additions too, but for browsers and GPUs."""
    for command in (("init", "-q"), ("add", "-A")):  # some tests ask git which files there are
        subprocess.run(["git", *command], cwd=copy.root, check=True)
    out = copy.run("-m", "pytest", "-v", "-m", "not gpu", "-k", " or ".join(ADDED), *TESTS)
    assert not [name for name in ADDED if name not in out]
    quick = ("-q", "-m", "not gpu and not thorough and not browser", "-n", "2", "--dist", "loadgroup")
    copy.run("-m", "pytest", *quick, "--deselect", RECORDED)


def test_an_addition_takes_as_many_files_as_the_table_says() -> None:
    """Files of the package: a target's reader is one of the tests."""
    table = dict(re.findall(r"^\| (An? .+?) \| (\d):", (ROOT / "CONTRIBUTING.md").read_text(), re.M))
    files = {t: {s.file for s in samples(t) if s.file and not s.file.startswith("tests/")} for t in SHOWN}
    assert table.pop("A scale format") == "1" and {t: int(n) for t, n in table.items()} == {
        title: len(found) for title, found in files.items() if found
    }


def test_one_addition_is_met(tmp_path: Path) -> None:
    """The guide's format, by the tests of formats, and its example."""
    shutil.copytree(ROOT, tmp_path / "project", ignore=NOT_COPIED)
    copy = Copy(tmp_path / "project", ())
    for sample in samples("A format"):
        if sample.file:
            sample.put(copy.root)
    run_python("\n".join(sample.code for sample in samples("A format") if not sample.file), copy.root)
    out = copy.run("-m", "pytest", "-v", "-m", "not gpu", "-k", ADDED[0], "tests/formats/test_formats.py")
    assert ADDED[0] in out
