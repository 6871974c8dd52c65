"""The commands put together, and what an error becomes: one line on standard error and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from explorer.cli import bench, compile, conformance, docs, models, tensors, train
from explorer.cli.device import COMMAND
from explorer.version import __version__

app = typer.Typer(
    name="explorer",
    help="What a number format does to a tensor, a layer or a model, and what it buys on a GPU.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (tensors, models, train, compile, docs, conformance):
    app.add_typer(group.app)
app.add_typer(bench.app, name="bench", rich_help_panel="Measuring")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"explorer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What a number format does to a tensor, a layer or a model, and what it buys on a GPU."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 when it worked, 1 when a check failed, 2 and one line on stderr for bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with COMMAND:
            code = app(arguments or ["--help"], prog_name="explorer", standalone_mode=False)
    except (typer.TyperException, ValueError, OSError) as error:
        return _refuse(error)
    except RuntimeError as error:
        if not _is_kernel_error(error):
            raise
        return _refuse(error)
    if code == 130:
        print("error: stopped", file=sys.stderr)
    return code or 0


def _refuse(error: Exception) -> int:
    message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    print("error:", " ".join(message.split()), file=sys.stderr)
    return 2


def _is_kernel_error(error: RuntimeError) -> bool:
    from explorer.gpu import KernelError

    return isinstance(error, KernelError)
