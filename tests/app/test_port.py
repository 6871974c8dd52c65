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
        with pytest.raises(ValueError, match=rf"port {port} .*set GRADIO_SERVER_PORT"):
            server_port()
    assert server_port() == port


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
