"""A small page behind everything that the real one is behind."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio.routes import App
from starlette.testclient import TestClient

from app import limits


@pytest.fixture(autouse=True)
def _local(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request from another machine makes the page public, for its test alone."""
    monkeypatch.setattr(limits, "_found", [])


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages shown to the visitor."""
    messages: list[str] = []
    monkeypatch.setattr(limits, "notify", messages.append)
    return messages


@pytest.fixture
def entry() -> Any:
    """What serves the page."""
    return importlib.import_module("app.start")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """The endpoint ``wait`` of ``client`` answers once this is set."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: Any, release: threading.Event
) -> Iterator[TestClient]:
    """A visitor of a page with one endpoint that waits and one that takes a file."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "store"))
    monkeypatch.delenv("SPACE_ID", raising=False)
    monkeypatch.delenv("EXPLORER_HOSTED", raising=False)
    with monkeypatch.context() as patch, gr.Blocks() as blocks:
        patch.setattr(App, "create_app", lambda *_, **__: None)  # Gradio makes three that nobody asks
        name = gr.Textbox()
        file = gr.File()
        name.submit(lambda text: release.wait(60) and text, name, name, api_name="wait")
        file.upload(lambda path: str(path), file, name, api_name="take")
        name.blur(None, js="() => 0")  # in the browser alone
        blocks.queue(**entry.queue_options())
    blocks.max_file_size = limits.current().upload_bytes  # as ``launch`` sets it
    made = App.create_app(blocks, app_kwargs=entry.launch_options()["app_kwargs"])
    blocks.config = blocks.get_config_file() | {"body_css": {}}  # as by ``launch``
    with TestClient(made, base_url="http://localhost", client=("127.0.0.1", 5)) as client:
        yield client
        release.set()
