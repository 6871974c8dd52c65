"""The command that starts the page.

The page is the package ``app`` in a folder of its own. That folder is put before all others, because the
environment may have another package of that name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from functools import partial
from pathlib import Path

import typer

from explorer.cli.commands import add_command
from explorer.cli.options import check_readable
from explorer.paths import CHECKOUT, PAGE

app = typer.Typer()
command = partial(add_command, app, None)
NEEDED = ("gradio", "plotly", "prometheus_client")
"""Packages of the extra ``page`` without which it does not start."""
INSTALL = "pip install 'quantization-explorer[page]'"


@command("page", "page layer.npy --open", "page --port 8080")
def page(
    file: str | None = typer.Argument(None, metavar="[FILE]", help="A tensor file that the page opens on."),
    port: int | None = typer.Option(
        None, min=1, max=65535, help="Port of the address.", show_default="GRADIO_SERVER_PORT, else 7860"
    ),
    open_browser: bool = typer.Option(False, "--open", help="Open the page in a browser."),
    share: bool = typer.Option(
        False, "--share", help="Also open the page at a public address of Gradio's servers; without FILE."
    ),
) -> None:
    """Start the page in this process; Ctrl-C ends it."""
    if file and share:
        raise ValueError(
            "FILE is opened on a page that only this machine can reach: leave out --share, or leave out FILE "
            "and drop it in on the page"
        )
    _check_installed()
    _check_file(file)
    sys.path.insert(0, str(PAGE))
    free = importlib.import_module("app.serving.port").server_port(port)
    # Gradio reads its settings as it is imported.
    os.environ["GRADIO_SERVER_PORT"] = str(free)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    if share:
        os.environ["GRADIO_SHARE"] = "true"
    importlib.import_module("app.start").serve(free, Path(file) if file else None, open_browser)


def _check_file(file: str | None) -> None:
    """``ValueError`` or ``OSError``, before the page is loaded, for a file that holds no readable tensor."""
    check_readable(file)
    if file is not None:
        from explorer.sources import open_tensors

        open_tensors(file)


def _check_installed() -> None:
    """``ValueError`` with the command that installs what the page needs, if something is missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        command = INSTALL if CHECKOUT is None else "pip install -r requirements.txt"
        raise ValueError(f"the page needs {', '.join(missing)}, not installed here: {command}")
