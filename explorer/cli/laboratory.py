"""Commands that are the laboratory's now: in a checkout they still work under their former names."""

from __future__ import annotations

import subprocess
import sys

import typer

from explorer.paths import checkout

app = typer.Typer()
MOVED = ("docs", "conformance")
BENCHES = ("methods", "analysis", "sizes", "page")
"""Former commands of ``explorer bench``."""
_PASSED = {"ignore_unknown_options": True, "help_option_names": []}


def forward(to: typer.Typer, name: str) -> None:
    """Add the hidden command ``name``, which runs that of ``python -m lab``; ``ValueError`` outside a
    checkout."""

    @to.command(name, hidden=True, context_settings={**_PASSED, "allow_extra_args": True})
    def run(context: typer.Context) -> None:
        command = [sys.executable, "-m", "lab", name, *context.args]
        raise typer.Exit(subprocess.run(command, cwd=checkout()).returncode)


for _name in MOVED:
    forward(app, _name)
