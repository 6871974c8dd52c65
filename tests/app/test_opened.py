"""The file of ``explorer page FILE``: its owner's address opens it, and nobody else's does.

If these fail, a visitor sees a file of somebody else, or the owner's address shows a sample.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest

from app import limits
from app.serving import addresses, opened, uploads
from app.state.query import NO_FILE, Query
from app.state.record import Record


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page of this machine alone, with a store of its own and no file yet."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "store"))
    monkeypatch.setattr(opened, "_FILES", {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A vector and two matrices, in this order."""
    path = tmp_path / "several.npz"
    np.savez(path, bias=np.ones(8, "f4"), up=np.eye(8, 4, dtype="f4"), down=np.eye(4, 8, dtype="f4"))
    return path


def visit(**query: str) -> Query:
    return Query(query)


def address_of(name: str) -> dict[str, str]:
    return dict(parse_qsl(opened.query_of(name)))


def test_the_address_opens_the_first_matrix_by_the_usual_scheme(file: Path, said: list[str]) -> None:
    """As an upload does, by a fresh page's schemes, and a reload keeps the tensor that was chosen since."""
    query = address_of(opened.register(file))
    assert len(query["opened"]) == 32, "of 64 letters: 192 bits"
    shown = visit(**query)
    stored = Path(shown.record.file or "")
    assert shown.record.source == "file" and shown.record.file_tensor == "up" and not shown.problems
    assert stored.read_bytes() == file.read_bytes() and uploads.of_visitor(str(stored)) == stored
    assert shown.record.schemes == Record.fresh().schemes
    assert visit(**query, file_tensor="down").record.file_tensor == "down"
    assert said == []


WITHOUT: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"opened": ""}, {}), ({"opened": "x" * 32}, {}), ({"opened": "several.npz"}, {}),
    ({}, {"EXPLORER_HOSTED": "1"}), ({}, {"GRADIO_SHARE": "True"}), ({}, {"GRADIO_SERVER_NAME": "0.0.0.0"}),
]  # fmt: skip


def test_nobody_else_gets_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its secret name, and with it once others can reach the page: a built-in tensor, and why."""
    address = address_of(secret := opened.register(file))
    for query, environment in WITHOUT:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            shown = visit(**address | query)
            assert shown.record.source == "builtin" and shown.record.file is None, (query, environment)
            assert shown.problems == {"source": NO_FILE}
    limits.found_hosted("a request carries x-forwarded-for")  # it may be found out while the page runs
    assert visit(**address).record.source == "builtin"
    with pytest.raises(ValueError, match="drop it in again"):
        uploads.of_visitor(str(opened.path_of(secret)))
    assert addresses.file_of(str(opened.path_of(secret))) is None
    with pytest.raises(ValueError, match=r"several\.npz"):
        opened.register(file)


def test_the_file_may_be_left_or_gone(file: Path) -> None:
    """The name may stay in the address of another tensor; a reload after the file was deleted says so."""
    name = opened.register(file)
    address = address_of(name)
    assert visit(**address | {"source": "builtin", "sample": "mlp_down"}).record.source == "builtin"
    opened.path_of(name).unlink()
    file.unlink()
    shown = visit(**address)
    assert shown.record.source == "builtin" and shown.problems["source"].startswith("several.npz")
