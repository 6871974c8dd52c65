"""Results as files for a visitor to download; each in a separate folder, deleted after a while."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from app import limits
from app.serving import uploads
from explorer.export.tables import write_records
from explorer.figures.style import file_name


class Downloads(NamedTuple):
    """Updates of the two download buttons of a result."""

    csv: Any
    json: Any


NOTHING_YET = Downloads(gr.skip(), gr.skip())
_TAKEN_BACK = gr.update(value=None, interactive=False)
NONE_NOW = Downloads(_TAKEN_BACK, _TAKEN_BACK)
"""Where nothing is shown, after something was: what the buttons had is of that."""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Folder for results before Gradio copies them to its own cache; deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="explorer-")


def fresh_folder() -> Path:
    """A new folder for one visitor's files; folders older than ``Limits.keep_seconds`` are deleted.
    ``ValueError`` if the store is full."""
    uploads.check_room()
    results = Path(_folder().name)
    oldest = time.time() - limits.current().keep_seconds
    for folder in results.iterdir():
        if folder.stat().st_mtime < oldest:
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(dir=results))


def downloads(name: str, table: list[dict[str, Any]], records: Any) -> Downloads:
    """Write a CSV of flat rows and a JSON of everything; return updates of their download buttons."""
    folder = fresh_folder()
    sheet, data = folder / f"{file_name(name)}.csv", folder / f"{file_name(name)}.json"
    write_records(sheet, table)
    data.write_text(json.dumps(records, indent=2), encoding="utf-8")
    return Downloads(
        gr.update(value=str(sheet), interactive=True), gr.update(value=str(data), interactive=True)
    )
