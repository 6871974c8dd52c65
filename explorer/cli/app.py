"""Assembly of the commands. An error becomes one line on standard error and exit code 2."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated

import typer

from explorer.cli import bench, models, page, recipe, report, run, survey, tensors
from explorer.cli.commands import naming_rows
from explorer.cli.options import COMMAND
from explorer.cli.output import hide_words_of_torchao, say
from explorer.version import __version__
from explorer.words import without_python

app = typer.Typer(
    name="explorer",
    help="Compare number formats: the error on a tensor, a layer or a model, and the speed on a GPU.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (page.app, tensors.app, report.app, models.app, survey.app, recipe.app, run.app, bench.top):
    app.add_typer(group)
app.add_typer(bench.app, name="bench", rich_help_panel="Measuring")


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"explorer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compare number formats: the error on a tensor, a layer or a model, and the speed on a GPU."""


WAITING = "PASSIVE"
"""Torch's threads wait for each other asleep; torch reads the setting once, as it is loaded.

By default they spin. On a machine whose cores are all busy a waiting thread then holds the core that the
other thread needs: on two cores with five times as much to do, all named schemes on 512 x 512 values took
58 s of CPU instead of 4, and 160 s instead of 9 by the clock. ``OMP_WAIT_POLICY`` in the environment wins.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 when it worked, 1 when a check failed, 2 and one line on stderr for bad input."""
    os.environ.setdefault("OMP_WAIT_POLICY", WAITING)
    hide_words_of_torchao()
    return run_command(app, list(sys.argv[1:] if argv is None else argv), "explorer")


ENDING = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has one of them
"""Signals that end a command as an exception does, so that temporary folders are removed."""


def run_command(commands: typer.Typer, arguments: Sequence[str], name: str) -> int:
    """Run one of ``commands`` of the program ``name``; exit codes are those of ``main``."""
    try:
        with COMMAND, ExitStack() as after:
            if threading.current_thread() is threading.main_thread():
                for number in ENDING:
                    if (before := signal.getsignal(number)) is not signal.SIG_IGN:  # as nohup sets it
                        after.callback(signal.signal, number, before)
                        signal.signal(number, _end)
            command = typer.main.get_command(commands)
            code = command(list(arguments) or ["--help"], prog_name=name, standalone_mode=False)
    except (typer.TyperException, ValueError, OSError) as error:
        return _refuse(error)
    except RuntimeError as error:
        if not _is_kernel_error(error):
            raise
        return _refuse(error)
    if code == 130:
        say("stopped", error=True)
    return code or 0


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


def _refuse(error: Exception) -> int:
    say(f"error: {' '.join(_words(error).split())}", error=True)
    return 2


def _words(error: Exception) -> str:
    """Return the message of the error; for an unknown name, also the accepted names."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    if not isinstance(error, typer.TyperException):
        return without_python(str(error))
    message, usage = error.format_message(), vars(error)
    if message == "Missing command.":
        group = usage["ctx"].command
        shown = [name for name, command in group.commands.items() if not command.hidden]
        return f"{message} It is one of {', '.join(shown)}."
    return f"{message} {naming_rows(usage['param'].help)}" if message.startswith("Missing ") else message


def _is_kernel_error(error: RuntimeError) -> bool:
    from explorer.gpu import KernelError

    return isinstance(error, KernelError)
