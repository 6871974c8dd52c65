"""The package as ``pip install .`` makes it: complete, and at home outside a checkout."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from playwright.sync_api import Browser, expect

import explorer
from tests.covering import THOROUGH, sampled
from tests.page.acts import at_rest, new_context

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of a fresh environment that holds the wheel; what it depends on comes from this one."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    site = next((home / "lib").glob("python*")) / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    return home / "bin"


def outside(command: list[str], folder: Path) -> str:
    """Standard output of a command that runs in ``folder`` and cannot see the checkout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout


@THOROUGH
def test_the_installed_command_works_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    """Samples, kernels and recordings are in the package: else it breaks where there is no checkout."""
    command = str(installed / "explorer")
    assert [row["name"] for row in json.loads(outside([command, "formats", "--json"], tmp_path))] == list(
        explorer.FORMATS
    )
    report = json.loads(
        outside([command, "quantize", "sample:mlp_up", "--scheme", "nvfp4", "--json"], tmp_path)
    )["report"]
    x = explorer.load_matrix("sample:mlp_up").values
    assert report["sqnr_db"] == explorer.compare(x, explorer.quantize(x, explorer.SCHEMES["nvfp4"])).sqnr_db
    where = "import explorer, explorer.paths as p; print(explorer.__file__, p.ASSETS, p.KERNELS, sep='\\n')"
    for path in outside([str(installed / "python"), "-c", where], tmp_path).splitlines():
        assert Path(path).is_relative_to(installed.parent) and Path(path).exists()


WHAT_IT_READS = (
    ("kernels", (".cu", ".cuh")),
    ("assets", (".safetensors", ".txt", ".json", ".jsonl", ".js", ".css", ".woff2")),
)


def test_the_wheel_holds_what_the_library_reads(wheel: Path, tmp_path: Path) -> None:
    """Every kernel and data file of the checkout, the page, the type marker, and no top-level package but
    explorer: an environment may hold another package ``app``. Pictures of the page are for its readers."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, suffixes in WHAT_IT_READS:
        files = [p for p in (ROOT / folder).rglob("*") if p.suffix in suffixes]
        assert files and {f"explorer/{p.relative_to(ROOT)}" for p in files} <= names
    page = [p for p in (ROOT / "app").rglob("*") if p.suffix in (".py", ".html")]
    assert page and {f"explorer/_page/{p.relative_to(ROOT)}" for p in page} <= names
    assert not [name for name in names if "screenshots" in name or name.endswith((".pyi", ".pyc"))]
    assert "explorer/py.typed" in names and wheel.stat().st_size < 9 << 20
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"explorer"}
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import explorer, sys; print(explorer.__file__, explorer.load_matrix('sample:mlp_up').values.shape)"
    )
    path, shape = outside([sys.executable, "-c", code], tmp_path / "site").split(maxsplit=1)
    assert Path(path).is_relative_to(tmp_path) and shape == "torch.Size([1536, 384])\n"


def _as_a_terminal_does() -> None:
    """Take Ctrl-C, which what a shell starts in the background ignores, and all that is started by it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def page_of(command: list[str], folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that the started page prints, and its process; stopped in the end."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GRADIO_SERVER_PORT")}
    environment |= {"HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": str(folder / "store")}
    server = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_as_a_terminal_does,
    )
    assert server.stdout and server.stderr
    try:
        said = server.stdout.readline()
        assert said.startswith("Quantization Explorer: http://localhost:"), server.stderr.read()
        yield said.split()[-1].replace("localhost", "127.0.0.1"), server
    finally:
        server.kill()
        server.communicate()


@THOROUGH
def test_the_installed_page_opens_on_a_file(installed: Path, tmp_path: Path, browser: Browser) -> None:
    """``explorer page layer.npy`` where the folder has another ``app``: if this fails, whoever has installed
    the package has no page, or sees a tensor that is not the file's. Ctrl-C ends it in order."""
    (tmp_path / "app").mkdir()
    for wrong in ("app/__init__.py", "app.py"):
        (tmp_path / wrong).write_text("raise RuntimeError('this is another app')")
    x = np.random.default_rng(7).standard_normal((48, 256)).astype(np.float32)
    np.save(tmp_path / "layer.npy", x)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # With -m the current folder comes before all others; of the command ``explorer`` it is not looked at.
    command = [str(installed / "python"), "-m", "explorer", "page", "layer.npy", "--port", port]
    with page_of(command, tmp_path) as (address, server):
        assert f":{port}/?source=file&opened=" in address
        context = new_context(browser)
        page = context.new_page()
        page.goto(address)
        at_rest(page)
        w = explorer.load_matrix(str(tmp_path / "layer.npy")).values
        report = explorer.compare(w, explorer.quantize(w, explorer.SCHEMES["int4_group128_asym"]))
        for name, painted in ((".tensor-card", "layer"), ("#shortlist tr.is-a", f"{report.sqnr_db:.1f}")):
            part = page.locator(name)
            expect(part).to_contain_text(painted)
            expect(part).to_be_in_viewport()
        assert page.evaluate("document.fonts.check('16px Inter')")
        page.reload()
        at_rest(page)
        expect(page.locator(".tensor-card")).to_contain_text("layer 48 × 256")
        context.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
    assert not list((tmp_path / "store").glob("quantization-explorer-*"))


def requirements(file: str) -> dict[str, Requirement]:
    lines = (line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return {canonicalize_name(r.name): r for r in (Requirement(line) for line in lines if line)}


def test_the_tested_versions_lie_in_the_ranges() -> None:
    """requirements*.txt pin what pyproject allows: else pip would install what was never tested."""
    extras = PROJECT["optional-dependencies"]
    declared = [
        *PROJECT["dependencies"],
        *(r for name in ("page", "gpu", "export", "gguf", "run", "cluster", "dev") for r in extras[name]),
    ]
    files = (
        "requirements.txt",
        "requirements-gpu.txt",
        "requirements-cluster.txt",
        "requirements-export.txt",
        "tests/requirements.txt",
    )
    pins = {name: pin for file in files for name, pin in requirements(file).items()}
    for requirement in map(Requirement, declared):
        if requirement.name != PROJECT["name"]:
            (pin,) = pins[canonicalize_name(requirement.name)].specifier
            assert pin.operator == "==" and pin.version in requirement.specifier, requirement


def test_the_extra_page_has_the_tested_versions() -> None:
    """The page's figures are plotly's: another version may show nothing. Of Gradio a range is allowed: the
    page looks for what it needs as it starts (``app.serving.internals``)."""
    pins = requirements("requirements.txt")
    extra = {r.name: r.specifier for r in map(Requirement, PROJECT["optional-dependencies"]["page"])}
    assert str(extra.pop("gradio")) == "<7,>=6.31" and "plotly" in extra
    assert extra == {name: pins[canonicalize_name(name)].specifier for name in extra}


def test_the_lock_is_of_these_requirements() -> None:
    """requirements.lock installs what requirements.txt pins, each file by its hash; after a change of a pin
    ``make lock`` has to be run."""
    locked = re.findall(
        r"^(\S+)==(\S+).*\\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)",
        (ROOT / "requirements.lock").read_text(),
        re.MULTILINE,
    )
    versions = {canonicalize_name(name): version for name, version, _ in locked}
    for name, requirement in requirements("requirements.txt").items():
        (pin,) = requirement.specifier
        assert versions.get(name) == pin.version, f"{name}: run `make lock`"
    assert len(locked) == len(re.findall(r"^\S+==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))


ELSEWHERE = {
    "in_vllm.py": ("vllm",),
}
"""Files that are run by a Python that has these."""


def test_the_library_imports_only_what_it_declares() -> None:
    """An import without a dependency works here, where everything is installed, and nowhere else."""
    extras = PROJECT["optional-dependencies"]
    optional = [*extras["gpu"], *extras["export"], *extras["gguf"], *extras["cluster"], *extras["report"]]
    optional += [*extras["texts"], *extras["pictures"], *extras["run"], *extras["cpu"], *extras["peers"]]
    declared = map(Requirement, [*PROJECT["dependencies"], *optional])
    allowed = {canonicalize_name(requirement.name) for requirement in declared}
    of_module = packages_distributions()
    for path in (ROOT / "explorer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for top in {module.split(".")[0] for module in modules} - sys.stdlib_module_names - {"explorer"}:
                names = {canonicalize_name(name) for name in of_module.get(top, [top])}
                elsewhere = top in ELSEWHERE.get(path.name, ())
                assert names & allowed or elsewhere, f"{path.relative_to(ROOT)} imports {top}"


HEAVY = ("transformers", "gradio", "plotly", "pandas", "scipy", "torch._dynamo", "onnx", "yaml", "httpx2")
HUB = ("huggingface_hub.file_download", "huggingface_hub.hf_api", "huggingface_hub.errors")
WITHOUT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--help", ("torch", "numpy", "pydantic", *HEAVY, *HUB)),
    ("quantize --help", ("torch", "numpy", *HEAVY, *HUB)),
    ("schemes", ("explorer.sources", "explorer.core.backend", *HEAVY, *HUB)),
    ("quantize x.npy --scheme nvfp4", (*HEAVY, *HUB)),
    ("quantize x.npy --scheme nope", ("explorer.sources", *HEAVY, *HUB)),
    ("compare x.npy --schemes nvfp4,int8_row", (*HEAVY, *HUB)),
    (
        f"recipe {ROOT}/assets/surveys/all-MiniLM-L6-v2.jsonl --bits 5",
        ("scipy.stats", *(set(HEAVY) - {"scipy"}), *HUB),
    ),
)


@pytest.mark.parametrize(("command", "unneeded"), sampled(WITHOUT, WITHOUT[3:4]))
def test_a_command_imports_only_what_it_needs(
    command: str, unneeded: tuple[str, ...], tmp_path: Path
) -> None:
    """If this fails, a small answer waits for packages that it does not use."""
    np.save(tmp_path / "x.npy", np.ones((2, 32), np.float32))
    code = f"""
import contextlib, io, sys
from explorer.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main({command.split()!r})
print({set(unneeded)!r} & set(sys.modules))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "set()"
