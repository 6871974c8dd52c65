"""The architecture is a test: imports point one way, nothing lies about, every module says what it is for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEVELS = [
    {
        "explorer.cached",
        "explorer.error_sums",
        "explorer.export.files",
        "explorer.paths",
        "explorer.progress",
        "explorer.threads",
        "explorer.words",
    },
    {"explorer.gpu", "explorer.formats"},
    {"explorer.schemes", "explorer.sources"},
    {"explorer.core", "explorer.recordings"},
    {"explorer.analysis", "explorer.export"},
    {"explorer.products", "explorer.methods", "explorer.training"},
    {"explorer.models"},
    {"explorer.checkpoints"},
    {"explorer.cpu"},
    {"explorer.survey"},
    {"explorer.running"},
    {"explorer.bench"},
    {"explorer.figures"},
    {"explorer.reports"},
    {"explorer.cli"},
    {"app", "explorer.__main__", "lab"},
]
"""A module may import from its own package and from levels above in this list; those of one level do not know
each other."""


FLOORS = [
    {"app.glossary"},
    {"app.scheme_groups"},
    {"app.limits", "app.theme"},
    {"app.serving"},
    {"app.state"},
    {"app.parts"},
    {"app.sections", "app.learn"},
    {"app.places"},
    {"app.api"},
    {"app.ui"},
    {"app.start"},
]
"""The same within the page, floor by floor: what a visitor has chosen knows nothing of the components that
show it, and no piece of a section knows the place it stands in."""


SCHEME_FLOORS = [
    {
        "explorer.schemes.rules",
        "explorer.schemes.search",
        "explorer.schemes.k_search",
        "explorer.schemes.sorted_part",
    },
    {"explorer.schemes.calibrators"},
    {"explorer.schemes.parts", "explorer.schemes.observer"},
    {"explorer.schemes.labels", "explorer.schemes.named", "explorer.schemes.text"},
    {"explorer.schemes.names"},
    {"explorer.schemes.scheme"},
    {"explorer.schemes.levels"},
    {"explorer.schemes.scales"},
]
"""The same within the schemes: parts, their texts and the table of names lie below ``Scheme``, which reads
them."""


def package_of(module: str, levels: list[set[str]] = LEVELS) -> str | None:
    """The package that a dotted module name lies in; None for what is not in ``levels``."""
    for level in levels:
        for name in level:
            if module == name or module.startswith(name + "."):
                return name
    return None


def level_of(name: str, levels: list[set[str]] = LEVELS) -> int:
    return next(i for i, level in enumerate(levels) if name in level)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def python_files() -> list[Path]:
    return sorted(p for folder in ("app", "explorer", "lab") for p in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


OUTSIDE = ("explorer", "explorer.__main__", "explorer.version", "explorer.browser", "lab.__main__")
"""Modules on no level: they import nothing of the project, or everything."""


def test_imports_point_one_way() -> None:
    wrong = []
    for path in python_files():
        module = module_of(path)
        home = package_of(module)
        assert home or module in OUTSIDE, f"{module} is on no level"
        if home is None:
            continue
        names = imported(path)
        for name in names:
            other = package_of(name)
            if other and other != home and level_of(other) >= level_of(home):
                wrong.append(f"{module} imports {name}, which is not below it")
        if not module.startswith(("app", "lab")) and any(n.split(".")[0] in ("gradio", "app") for n in names):
            wrong.append(f"{module} knows the page")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("folder", "floors"), [("app", FLOORS), ("explorer/schemes", SCHEME_FLOORS)], ids=["page", "schemes"]
)
def test_packages_have_floors(folder: str, floors: list[set[str]]) -> None:
    """If this fails, a handler can no longer be read without the sections that use it, and a scheme's text
    not without the table."""
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        module = module_of(path)
        home = package_of(module, floors)
        assert home or (path.parent == ROOT / folder and path.stem == "__init__"), (
            f"{module} stands on no floor"
        )
        for name in imported(path):
            other = package_of(name, floors)
            if home and other and other != home and level_of(other, floors) >= level_of(home, floors):
                wrong.append(f"{module} imports {name}, which is not below it")
    assert not wrong, "\n".join(wrong)


def test_schemes_import_at_the_top() -> None:
    """An import within a function of the schemes would hide a circle."""
    for path in sorted((ROOT / "explorer" / "schemes").glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                inner = [n for n in ast.walk(function) if isinstance(n, ast.Import | ast.ImportFrom)]
                assert not inner, f"{path.name}: {function.name}"


def test_pycuda_is_imported_by_the_compiler_and_the_runtime_alone() -> None:
    for path in python_files():
        if path not in (ROOT / "explorer" / "gpu" / "compile.py", ROOT / "explorer" / "gpu" / "runtime.py"):
            assert not any(n.split(".")[0] == "pycuda" for n in imported(path)), path


BACKEND = ROOT / "explorer" / "core" / "backend.py"
ASKS_FOR_A_GPU = re.compile(
    r"cuda\.(is_available|current_device|device_count|mem_get_info)|\bavailable\(\)|\.is_cuda\b|\.cuda\(\)"
    r"""|device\(["']cuda|device=["']cuda"""
)


def test_one_file_asks_whether_there_is_a_gpu() -> None:
    """Who decides on a device anywhere else makes page, command line and library disagree."""
    asking = {
        path.relative_to(ROOT)
        for path in [*python_files(), ROOT / "app.py"]
        if path != BACKEND
        and ROOT / "explorer" / "gpu" not in path.parents
        and ASKS_FOR_A_GPU.search(path.read_text())
    }
    assert ASKS_FOR_A_GPU.search(BACKEND.read_text()) and not asking


REACHES_KERNELS = {"backend", "builds", "cuda", "lowering"}


def test_the_reference_knows_no_kernels() -> None:
    """Only the choice of a backend and what starts kernels know ``explorer.gpu``."""
    for path in sorted((ROOT / "explorer" / "core").glob("*.py")):
        if any(name.startswith("explorer.gpu") for name in imported(path)):
            assert path.stem in REACHES_KERNELS, path


def test_kernels_is_no_python_package() -> None:
    """Hugging Face's ``kernels`` package must be found by programs that run from this folder."""
    assert not list((ROOT / "kernels").rglob("*.py"))


def test_public_classes_have_names_of_their_own() -> None:
    """Two classes of one name are mixed up by whoever reads, searches or imports them."""
    homes: dict[str, list[str]] = {}
    for path in python_files():
        if "lab" not in path.relative_to(ROOT).parts[:1]:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(module_of(path))
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}
