"""The file that the page was started on (``explorer page FILE``): whoever has the printed address gets it.

It lies in the store, as an upload does, in a folder with a secret name; the address says that name. A page
that other machines can reach opens no file of its own.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from app import limits
from app.serving import uploads

KEY = "opened"
"""Of the address's query; its value is the secret name."""
_FILES: dict[str, Path] = {}
"""By secret name, the file where its owner keeps it."""


def register(file: Path) -> str:
    """Put ``file`` into the store; returns its secret name.

    ``ValueError`` on a page that other machines can reach, and if the file cannot be read or stored.
    """
    if limits.current().hosted:
        raise ValueError(
            f"{file.name} is not opened: others can reach this page ({limits.why()}); drop the file in there"
        )
    name = secrets.token_urlsafe(24)
    _FILES[name] = file.resolve()
    path_of(name)
    return name


def query_of(name: str) -> str:
    """The query of the address that opens the registered file."""
    return urlencode({"source": "file", KEY: name})


def linked_file(query: Mapping[str, str]) -> Path | None:
    """The file in the store that an address's query opens; None if it opens none, and for everybody on a page
    that others can reach. ``ValueError`` if the file is gone."""
    name = query.get(KEY)
    if query.get("source") != "file" or name not in _FILES or limits.current().hosted:
        return None
    return path_of(name)


def name_of(path: str | None) -> str:
    """The secret name of the registered file at ``path`` in the store; "" for any other file."""
    return next((name for name in _FILES if path and Path(path).parent.name == name), "")


def path_of(name: str) -> Path:
    """Where the registered file lies in the store; it is put there again if a sweep has deleted it.

    A file of the same disk is linked, so that nothing is copied; any other is copied.
    """
    file = _FILES[name]
    path = uploads.store() / uploads.OPENED / name / file.name
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _link_or_copy(file, path)
        except OSError as error:
            raise ValueError(
                _NOT_STORED.format(file.name, uploads.store(), error.strerror or error)
            ) from error
    return path


_NOT_STORED = "{} cannot be put into {}: {}; GRADIO_TEMP_DIR may name a folder on the disk of the file"


def _link_or_copy(file: Path, path: Path) -> None:
    file.open("rb").close()
    try:
        os.link(file, path)
    except OSError:  # another disk, or one that knows no links
        shutil.copyfile(file, path)
