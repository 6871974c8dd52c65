"""The port that the page is served at: bad settings are one line before anything is loaded.

If these fail, whoever starts the page reads a traceback of Gradio's instead of what to set.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from app import start
from app.serving.port import server_port
from tests.conftest import ROOT


def test_a_port_that_is_no_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for port in ("abc", "70000", "-1", ""):
        monkeypatch.setenv("GRADIO_SERVER_PORT", port)
        with pytest.raises(ValueError, match="GRADIO_SERVER_PORT"):
            server_port()


def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("GRADIO_SERVER_PORT", str(port))
        with pytest.raises(ValueError, match=rf"port {port} .*--port"):
            server_port()
    assert server_port() == port == server_port(port)


def test_the_page_says_it_in_one_line() -> None:
    """Gradio reads the variable while it is imported: the check must come first."""
    environment = {**os.environ, "GRADIO_SERVER_PORT": "abc"}
    command = [sys.executable, "app.py"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: GRADIO_SERVER_PORT")
    assert len(done.stderr.splitlines()) == 1


COMPUTING = """
import threading, torch
from app import start
from app.serving import uploads
print(uploads.make_store(), flush=True)
begun = threading.Barrier(5)
def compute():
    torch.randn(400, 400) @ torch.randn(400, 400)
    begun.wait(60)
    while True:
        torch.randn(400, 400) @ torch.randn(400, 400)
for _ in range(4):
    threading.Thread(target=compute, daemon=True).start()
begun.wait(60)
start.end()
"""


@pytest.mark.thorough
def test_the_page_ends_while_a_visitors_thread_computes(tmp_path: Path) -> None:
    """By code 0, and without its store: torch aborts, or hangs, where the interpreter ends under a thread."""
    environment = os.environ | {"GRADIO_TEMP_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPUTING]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-500:]
    assert run.stdout.startswith(str(tmp_path)) and not list(tmp_path.iterdir())


def test_what_ends_the_page_is_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a page that failed looks to whoever started it like one that was asked to end."""
    monkeypatch.setattr(start, "end", sys.exit)
    for raised, code in ((None, 0), (KeyboardInterrupt(), 0), (SystemExit(0), 0), (RuntimeError("x"), 1)):
        served = SimpleNamespace(block_thread=Mock(side_effect=raised), server=None)
        with pytest.raises(SystemExit) as ended:
            start.wait(served)
        assert ended.value.code == code
        assert bool(caplog.records) == bool(code), "the reason is in the log"
