"""The port that the page is served at: bad settings are one line before anything is loaded.

If these fail, whoever starts the page reads a traceback of Gradio's instead of what to set.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app import start
from app.serving.port import server_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("port", ["abc", "70000", "-1", ""])
def test_a_port_that_is_no_port_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_SERVER_PORT", port)
    with pytest.raises(ValueError, match=r"GRADIO_SERVER_PORT is .*, expected a whole number"):
        server_port()


def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("GRADIO_SERVER_PORT", str(port))
        with pytest.raises(
            ValueError, match=rf"port {port} .*\(address already in use\); choose another by --port"
        ):
            server_port()
    assert server_port() == port == server_port(port)


def test_the_page_says_it_in_one_line() -> None:
    """Gradio reads the variable while it is imported: the check must come first."""
    done = subprocess.run(
        [sys.executable, "app.py"],
        env={**os.environ, "GRADIO_SERVER_PORT": "abc"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.startswith("error: GRADIO_SERVER_PORT")
    assert len(done.stderr.splitlines()) == 1


COMPUTING = """
import sys, threading, time, torch
from app import start
from app.serving import uploads
print(uploads.make_store(), flush=True)
def compute():
    while True:
        torch.randn(400, 400) @ torch.randn(400, 400)
for _ in range(4):
    threading.Thread(target=compute, daemon=True).start()
time.sleep(0.3)
start.end()
"""


def test_the_page_ends_while_a_visitors_thread_computes(tmp_path: Path) -> None:
    """By code 0, and without its store: torch aborts, or hangs, where the interpreter ends under a thread."""
    environment = os.environ | {"GRADIO_TEMP_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", COMPUTING],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr[-500:]
    assert run.stdout.startswith(str(tmp_path)) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raised", "code"), [(None, 0), (KeyboardInterrupt(), 0), (SystemExit(0), 0), (RuntimeError("x"), 1)]
)
def test_what_ends_the_page_is_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, raised: BaseException | None, code: int
) -> None:
    """Else a page that failed looks to whoever started it like one that was asked to end."""

    class Served:
        def block_thread(self) -> None:
            if raised:
                raise raised

    monkeypatch.setattr(start, "end", sys.exit)
    with pytest.raises(SystemExit) as ended:
        start.wait(Served())
    assert ended.value.code == code
    assert bool(caplog.records) == bool(code), "the reason is in the log"
