"""The file of ``explorer page FILE``: its owner's address opens it, and nobody else's does.

If these fail, a visitor sees a file of somebody else, or the owner's address shows a sample.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest

from app import limits
from app.link import NO_FILE, Visited, visited
from app.serving import opened, uploads
from app.state.record import Record


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the visitor is told."""
    messages: list[str] = []
    monkeypatch.setattr(limits, "notify", messages.append)
    return messages


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page of this machine alone, with a store of its own and no file yet."""
    for name in ("SPACE_ID", "EXPLORER_HOSTED", "GRADIO_SERVER_NAME", "GRADIO_SHARE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "store"))
    monkeypatch.setattr(limits, "_found", [])
    monkeypatch.setattr(opened, "_FILES", {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A vector and two matrices, in this order."""
    path = tmp_path / "several.npz"
    np.savez(path, bias=np.ones(8, "f4"), up=np.eye(8, 4, dtype="f4"), down=np.eye(4, 8, dtype="f4"))
    return path


def visit(**query: str) -> Visited:
    return visited(urlencode(query), Record(), None, first=True)


def address_of(name: str) -> dict[str, str]:
    return dict(parse_qsl(opened.query_of(name)))


def test_the_address_opens_the_first_matrix_by_the_usual_scheme(file: Path, said: list[str]) -> None:
    """As an upload does, by a fresh page's schemes, and a reload keeps the tensor that was chosen since."""
    query = address_of(opened.register(file))
    shown = visit(**query)
    stored = Path(shown.record.file or "")
    assert shown.record.source == "file" and shown.record.file_tensor == "up" and not shown.missing
    assert stored.read_bytes() == file.read_bytes() and stored.is_relative_to(uploads.store())
    assert shown.record.schemes == Record.fresh().schemes
    assert visit(**query, file_tensor="down").record.file_tensor == "down"
    assert said == []


WITHOUT: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("no name", {"opened": ""}, {}),
    ("another name", {"opened": "x" * 32}, {}),
    ("the file's name", {"opened": "several.npz"}, {}),
    ("a hosted page", {}, {"EXPLORER_HOSTED": "1"}),
    ("a shared page", {}, {"GRADIO_SHARE": "True"}),
    ("other machines", {}, {"GRADIO_SERVER_NAME": "0.0.0.0"}),
]


@pytest.mark.parametrize(("query", "environment"), [row[1:] for row in WITHOUT], ids=[r[0] for r in WITHOUT])
def test_nobody_else_gets_the_file(
    query: dict[str, str],
    environment: dict[str, str],
    file: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its secret name, and with it once others can reach the page: a built-in tensor, and why."""
    address = address_of(opened.register(file)) | query
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shown = visit(**address)
    assert shown.record.source == "builtin" and shown.record.file is None and shown.missing == NO_FILE


def test_a_page_that_a_proxy_is_in_front_of_opens_no_file(file: Path, said: list[str]) -> None:
    """A page may find out that it is public while it runs."""
    address = address_of(opened.register(file))
    limits.found_hosted("a request carries x-forwarded-for")
    assert visit(**address).record.source == "builtin" and visit(**address).missing


def test_a_hosted_page_takes_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    with pytest.raises(ValueError, match=r"several\.npz is not opened: others can reach this page"):
        opened.register(file)


def test_another_source_in_the_address_is_that_source(file: Path) -> None:
    """The name may stay in an address whose tensor is another."""
    address = address_of(opened.register(file)) | {"source": "builtin", "sample": "mlp_down"}
    assert visit(**address).record.source == "builtin"


def test_the_file_outlives_sweeps_and_its_owner_keeps_it(file: Path) -> None:
    """An old file is swept no sooner than the page ends; what a sweep of Gradio's took is put back."""
    name = opened.register(file)
    stored = opened.path_of(name)
    assert uploads.sweep(time.time() + 10 * limits.current().keep_seconds) == 0 and stored.exists()
    stored.unlink()
    assert opened.path_of(name).exists() and file.exists()


def test_nothing_is_copied_on_one_disk(file: Path) -> None:
    """A model's file may be larger than what the disk has left."""
    assert opened.path_of(opened.register(file)).samefile(file)


def test_a_file_that_is_gone_is_said(file: Path, said: list[str]) -> None:
    """A reload after the file was deleted shows the samples, and says why."""
    name = opened.register(file)
    opened.path_of(name).unlink()
    file.unlink()
    shown = visit(**address_of(name))
    assert shown.record.source == "builtin" and shown.missing.startswith("several.npz cannot be put into")
    assert "no such file" in shown.missing.lower()
