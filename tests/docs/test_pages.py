"""README, docs/, the notebook and docstrings say what works.

If these fail, somebody who copies a line from them gets an error, or a number that is no longer true.
"""

from __future__ import annotations

import doctest
import functools
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import typer

import explorer
from explorer.cli import main
from explorer.cli.app import app
from lab.cli import app as lab
from tests.covering import THOROUGH, sampled
from tests.docs.test_contributing import blocks, run_python

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
NOTEBOOK = ROOT / "examples" / "library.ipynb"


def test_guarantees_name_tests_that_exist() -> None:
    """A guarantee that no test shows is none."""
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    guarantees, _, _ = (ROOT / "SECURITY.md").read_text().partition("## What each limit")
    named = {bullet: re.findall(r"`(test_\w+)`", bullet) for bullet in guarantees.split("\n* **")[1:]}
    assert len(named) > 20 and all(named.values())
    assert {name for names in named.values() for name in names} <= tests


PROGRAMS = {"explorer": app, "lab": lab}


def commands(path: Path, program: str = "explorer") -> list[str]:
    """The lines of a page's shell blocks that call ``program``, without that word and comments."""
    text = "\n".join(re.findall(r"^```bash\n(.*?)^```", path.read_text(), re.S | re.M))
    return [line.strip() for line in re.findall(rf"^(?:python -m )?{program} ([^#\n]*)", text, re.M)]


def help_examples(program: str) -> list[str]:
    """The examples in the help of every command that its program lists."""
    top = PROGRAMS[program]
    groups = [top, *(group.typer_instance for group in top.registered_groups if group.typer_instance)]
    epilogs = [
        command.epilog for group in groups for command in group.registered_commands if not command.hidden
    ]
    assert all(epilogs), "every command shows an example"
    shown = rf"^\$ (?:python -m )?{program} (.*)$"
    return [line for epilog in epilogs for line in re.findall(shown, epilog or "", re.M)]


@functools.cache
def commands_of(program: str) -> Any:
    """The commands of a program, built once."""
    return typer.main.get_command(PROGRAMS[program])


def parse(program: str, arguments: list[str]) -> None:
    """Parse a command line down to its last word, and do not run it."""
    command, context, name = commands_of(program), None, program
    while True:
        context = command.make_context(name, arguments, parent=context)
        if not hasattr(command, "resolve_command"):
            return
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_that_is_shown_is_one(program: str) -> None:
    """Command, arguments and option names, by the parser of the command line itself."""
    for line in [*(line for path in PAGES for line in commands(path, program)), *help_examples(program)]:
        if "--install-completion" not in line and not line.endswith(("--help", "--version")):
            parse(program, shlex.split(line))


@pytest.mark.parametrize(
    "line", [line for line in commands(README) if re.match(r"formats|\w+ sample:", line)]
)
def test_the_commands_of_the_readme_run(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that need neither network nor GPU nor files; what they write lies where they are typed."""
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out


WITH_PYTHON = [p for p in PAGES if p.name != "CONTRIBUTING.md" and blocks(p.read_text())]


@pytest.mark.parametrize("path", sampled(WITH_PYTHON, [README]), ids=lambda p: p.name)
def test_the_python_of_the_pages_runs(path: Path) -> None:
    """Block after block as in one session; blocks that talk to a running page are left out (see below)."""
    code = [block for block in blocks(path.read_text()) if "gradio_client" not in block]
    run_python("\n".join(code))


def test_the_endpoints_of_the_readme_exist() -> None:
    """Programs that call the page by the README's names reach it."""
    from app import ui

    named = set(re.findall(r'api_name="/(\w+)"', README.read_text()))
    assert named and named <= {str(endpoint.api_name) for endpoint in ui.build().fns.values()}


def test_links_and_paths_lead_somewhere() -> None:
    """Every relative link, and every path in backticks that starts with a folder of this repository, and
    every file that a string of the page names."""
    folders, linked = "app|explorer|lab|kernels|assets|tests|docs|examples", set[Path]()
    for path in PAGES:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
        linked |= {path.parent / link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)}
        if path.name != "CHANGELOG.md":  # it names what was renamed
            linked |= {ROOT / name for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", text)}
    for path in (ROOT / "app").rglob("*.py"):
        named = re.findall(r"\b(?:explorer|kernels|assets|docs)/[\w./-]*\w\.\w+", path.read_text())
        linked |= {ROOT / name for name in named}
    assert not [str(target) for target in linked if not target.exists()]


TOURS = ("from a click to a code", "from a recipe to the bytes of a file")


def steps_of(tour: str) -> list[tuple[str, str]]:
    """(file, the name in backquotes that its row begins with, empty if none) of each row of a tour."""
    text = (ROOT / "docs" / "design.md").read_text()
    part = text.partition(f"## A tour: {tour}\n")[2].partition("\n## ")[0]
    return [(file, name) for file, name in re.findall(r"^\| \d+ \| `([\w/.]+)` \| (?:`(\w+)`)?", part, re.M)]


@pytest.mark.parametrize("tour", TOURS)
def test_the_tour_names_what_is_there(tour: str) -> None:
    """If this fails, a newcomer looks for a function that is elsewhere."""
    found = steps_of(tour)
    assert found
    for file, name in found:
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), f"{file} has no {name}"


@THOROUGH
def test_the_tour_is_what_runs() -> None:
    """From the handler of the page to the code, the functions of the tour are called in its order."""
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from app.sections import answer, bar\n"
        "from app.state.query import Query\n"
        "entered = {}\n"
        "def note(frame, event, _):\n"
        "  if event == 'call':\n"
        "    code = frame.f_code\n"
        "    entered.setdefault(f'{code.co_filename}:{code.co_name}', len(entered))\n"
        "act = {'do': 'scheme', 'side': 'b', 'text': 'int4~1x24~symmetric~float16~minmax'}\n"
        "threading.setprofile(note)  # analyses run in a thread\n"
        "sys.setprofile(note)\n"
        "answer.view(Query(bar.choose(Query({}), {'acts': [act]})))\n"
        "sys.setprofile(None)\n"
        "print('\\n'.join(sorted(entered, key=entered.get)))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    entered = [str(Path(line).relative_to(ROOT)) for line in run.stdout.split() if line.startswith(str(ROOT))]
    tour = [f"{file}:{name}" for file, name in steps_of("from a click to a code")[1:]]
    assert [call for call in entered if call in tour] == tour


@THOROUGH
def test_the_notebook_shows_what_it_computes(tmp_path: Path) -> None:
    """The notebook runs from the top, and prints what it was saved with."""
    code = (
        "import nbclient, nbformat, sys\n"
        "notebook = nbformat.read(sys.argv[1], 4)\n"
        "nbclient.NotebookClient(notebook, timeout=600, kernel_name='python3').execute()\n"
        "nbformat.write(notebook, sys.argv[2])\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(tmp_path),
        "EXPLORER_DEVICE": "cpu",
    }
    command = [sys.executable, "-c", code, str(NOTEBOOK), str(tmp_path / "run.ipynb")]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    saved, again = (printed(path) for path in (NOTEBOOK, tmp_path / "run.ipynb"))
    assert again == saved and len(saved) == 10 and all(saved)


def printed(path: Path) -> list[str]:
    """What each code cell of a notebook printed."""
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    return ["".join(o.text for o in cell.outputs if o.get("name") == "stdout") for cell in cells]


def modules_with_examples() -> list[str]:
    """Modules of the library whose docstrings have ``>>>``."""
    folder = ROOT / "explorer"
    names = [info.name for info in pkgutil.walk_packages([str(folder)], "explorer.") if not info.ispkg]
    packages = [".".join(p.parent.relative_to(ROOT).parts) for p in folder.rglob("__init__.py")]
    files = {name: ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names}
    files |= {name: ROOT.joinpath(*name.split(".")) / "__init__.py" for name in packages}
    return sorted(name for name, file in files.items() if ">>> " in file.read_text())


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings(name: str) -> None:
    """Each ``>>>`` gives the line below it; public names of the library are known there."""
    public = {key: getattr(explorer, key) for key in explorer.__all__}
    module = importlib.import_module(name)
    assert (
        doctest.testmod(module, extraglobs={k: v for k, v in public.items() if not hasattr(module, k)}).failed
        == 0
    )
