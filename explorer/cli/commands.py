"""Declaration of commands: examples, options in records, and ``--force`` where a file is written."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

OUTPUTS = ("out", "csv", "pdf", "record_to")
"""Parameters that name a file to write."""
FORCE = typer.Option(False, "--force", help="Replace a file that another program made.")
_MARKS = (
    b"quantization_explorer",
    b"Quantization Explorer",
    b"explorer_recipe",
    b'{"model":',
    b'{"machine":',
)
"""Marks in the first or last bytes of files that these commands wrote."""
_LOOKED_AT = 1 << 20


def naming_rows(text: str) -> str:
    """Replace ``{METHODS}`` and ``{EXPORTS}`` by the names in these tables."""
    if "{METHODS}" in text:
        from explorer.methods import METHODS

        text = text.replace("{METHODS}", ", ".join(METHODS))
    if "{EXPORTS}" in text:
        from explorer.checkpoints import EXPORTS

        text = text.replace("{EXPORTS}", ", ".join(EXPORTS))
    return text


class Command(TyperCommand):
    """Command that inserts names from tables only into its help text: the tables import torch."""

    def get_help(self, ctx: Any) -> str:
        for option in self.params:
            option.help = naming_rows(getattr(option, "help", None) or "")  # type: ignore[attr-defined]
        return super().get_help(ctx)


def examples_of(program: str, *commands: str) -> str:
    """Return the end of a command's help: a line for each example."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"$ {program} {command}" for command in commands)])


def add_command(
    app: typer.Typer, panel: str | None, *examples: str, name: str | None = None, program: str = "explorer"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that registers a function as a command in a ``panel`` of the help.

    A parameter whose type is a dataclass stands for the options that its fields declare. A command with a
    parameter of ``OUTPUTS`` also gets ``--force``. It refuses to write over a file that it reads, and without
    ``--force`` over a file that another program made.
    """
    epilog = examples_of(program, *examples)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        records: dict[str, Any] = {key: kind for key, kind in hints.items() if dataclasses.is_dataclass(kind)}

        @functools.wraps(function)
        def run(**given: Any) -> None:
            _check_outputs(given, given.pop("force", False))
            made = {
                key: kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
                for key, kind in records.items()
            }
            function(**given, **made)

        parameters = list(_parameters(function, hints))
        if any(parameter.name in OUTPUTS for parameter in parameters):
            parameters.append(_parameter("force", bool, FORCE))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, cls=Command, rich_help_panel=panel, epilog=epilog)(run)
        return function

    return register


def _parameters(function: Callable[..., None], hints: Mapping[str, Any]) -> Iterable[inspect.Parameter]:
    for name, parameter in inspect.signature(function).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            yield _parameter(name, hints[name], parameter.default)
            continue
        of_record = get_type_hints(hints[name], include_extras=True)
        for field in dataclasses.fields(hints[name]):
            yield _parameter(field.name, of_record[field.name], field.default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _check_outputs(given: Mapping[str, Any], force: bool) -> None:
    """``ValueError`` before any work if a file cannot be written, is also read, or may not be replaced."""
    texts = {name: value for name, value in given.items() if isinstance(value, str | Path) and value}
    read = [value for name, value in texts.items() if name not in OUTPUTS]
    for name in texts.keys() & set(OUTPUTS):
        path = Path(texts[name])
        flag = f"--{name.replace('_', '-')} {path}"
        if not path.parent.is_dir():
            if name == "record_to":  # its folder is made
                continue
            raise ValueError(f"{flag}: there is no folder {path.parent}")
        if path.is_dir():
            raise ValueError(f"{flag} is a folder; name a file")
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"{flag}: the folder {path.parent} cannot be written")
        if not path.exists():
            continue
        if not path.is_file():
            raise ValueError(f"{flag} is no regular file; it is not replaced")
        if any(_holds(where, path) for where in read):
            raise ValueError(f"{flag} is read by this command: name another file")
        if not force and not _made_here(path):
            raise ValueError(f"{flag} exists, and another program made it: --force replaces it")


def _holds(where: str | Path, path: Path) -> bool:
    """True if ``where`` is the file ``path``, or the folder of a model with that file of weights."""
    try:
        found = Path(where).expanduser().resolve()
        weights = path.suffix.lower() in (".safetensors", ".gguf")
        return found == path.resolve() or (weights and found.is_dir() and found == path.resolve().parent)
    except (OSError, RuntimeError, ValueError):  # a text that names no path
        return False


def _made_here(path: Path) -> bool:
    """True if a file has a mark of this program, or is empty."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = file.read(_LOOKED_AT)
        file.seek(max(size - _LOOKED_AT, 0))
        return not size or any(mark in first + file.read() for mark in _MARKS)
