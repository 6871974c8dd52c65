"""Results as files for a visitor to download; each in a folder of its own, deleted after a while."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from app.serving import uploads
from app.serving.sessions import current_request
from explorer.export.tables import write_records
from explorer.figures.style import file_name


def fresh_folder() -> Path:
    """A new folder of the store for one visitor's files, under a name that nobody guesses; what it holds is
    deleted after ``Limits.keep_seconds``. ``ValueError`` if the store is full."""
    address = current_request().address
    uploads.make_room(address)
    folder = uploads.visitor_folder(address) / f"made-{secrets.token_urlsafe(16)}"
    folder.mkdir(parents=True)
    return folder


def write_table(name: str, rows: list[dict[str, Any]], records: Any) -> tuple[Path, Path]:
    """Write a CSV of flat rows and a JSON of everything; return their paths, for ``html.downloads``."""
    folder = fresh_folder()
    sheet, data = folder / f"{file_name(name)}.csv", folder / f"{file_name(name)}.json"
    write_records(sheet, rows)
    data.write_text(json.dumps(records, indent=2), encoding="utf-8")
    return sheet, data
