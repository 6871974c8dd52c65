"""Output of the commands: lines, a table that fits the terminal, or JSON; progress on standard error.

Commands print only through this module, because names of layers, files and models are untrusted text.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from explorer import words

T = TypeVar("T")
_QUIET, _AT_ONCE = 30.0, 2.0
"""Seconds after which a log gets another line, and within which work needs none."""
UNLIMITED = 100_000
"""Columns of a pipe or a file: their lines are not wrapped."""


@dataclass(frozen=True)
class PrintedTable:
    """Column names, and rows of one cell per column: text, a number, or None for an empty cell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def table_of(rows: Iterable[Mapping[str, object]]) -> PrintedTable:
    """Return a table of ``rows`` with their keys as columns; all have the same."""
    found = list(rows)
    return PrintedTable(tuple(found[0]) if found else (), [tuple(row.values()) for row in found])


def emit(as_json: bool, records: object, *shown: PrintedTable | str | None) -> None:
    """Print ``records`` as JSON, or else the tables and lines of ``shown``; None is skipped."""
    if as_json:
        print_json(records)
        return
    for part in shown:
        if isinstance(part, PrintedTable):
            print_table(part)
        elif part:
            say(part)


def written(path: object) -> str | None:
    """Return a line with the file that a command wrote; None without one."""
    return f"written: {path}" if path else None


def print_json(value: object) -> None:
    """Print ``value`` on standard output; dataclasses become objects whose keys are their fields."""
    from explorer.core.serialize import to_json

    text = json.dumps(to_json(value), indent=2, ensure_ascii=False)
    # Characters that are not seen are written as escapes: the value is the same.
    _print("".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text))


def say(*lines: str, error: bool = False) -> None:
    """Print each of ``lines`` as a separate line on standard output, or on standard error."""
    for line in lines:
        _print(words.plain(line), error)


def stream(text: str) -> None:
    """Print a piece of text at once, without a line's end. Line breaks and tabs are kept; other characters
    that are not seen are written as escapes."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else words.plain(c) for c in text)
    print(shown, end="", flush=True)


def _print(text: str, error: bool = False) -> None:
    print(text, file=sys.stderr if error else sys.stdout)


def print_table(table: PrintedTable) -> None:
    """Print ``table`` on standard output, at most as wide as the terminal."""
    console = Console()
    _print(render(table, console.width if console.is_terminal else UNLIMITED))


def render(table: PrintedTable, width: int) -> str:
    """Return ``table`` at most ``width`` columns wide: texts are wrapped, numbers are right-aligned."""
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(table.columns):
        numeric = all(row[index] is None or isinstance(row[index], int | float) for row in table.rows)
        grid.add_column(Text(words.plain(name)), justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(_cell(value)) for value in row))
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        console.print(grid)
    return "\n".join(line.rstrip() for line in text.get().rstrip().splitlines())


def _cell(value: object) -> str:
    """Return a cell as text of one line: floats to six digits, None as nothing."""
    if isinstance(value, float):
        return words.number(value, 6)
    return "" if value is None else words.plain(str(value))


class _Rate(ProgressColumn):
    """Rate per second, or seconds per item if that is the larger number."""

    def render(self, task: Task) -> Text:
        speed = task.speed or 0.0
        if speed >= 1:
            return Text(f"{words.number(speed)}/s")
        return Text(f"{words.duration(1 / speed)} each" if speed else "")


class _Lines:
    """Progress for a log file: a line each tenth, and after half a minute; none for work that is done at
    once. ``later``: time begins with the first reported step, because another phase runs before it."""

    def __init__(self, label: str, in_bytes: bool, later: bool) -> None:
        self._label, self._shown = label, words.bytes_ if in_bytes else words.count
        self._start = self._said = time.monotonic()
        self._tenth, self._first, self._waits = 0, 0, later

    def report(self, done: int, total: int) -> None:
        """Take the next step, and print it if it is time for a line."""
        now, tenth = time.monotonic(), 10 * done // max(total, 1)
        if self._waits:
            self._start, self._said, self._first, self._waits = now, now, done, False
        taken, own = now - self._start, done - self._first
        if taken < _AT_ONCE or not (tenth > self._tenth or now - self._said >= _QUIET):
            return
        self._said, self._tenth = now, max(tenth, self._tenth)
        amount = f"{self._shown(done)} of {self._shown(total)} ({100 * done // max(total, 1)} %)"
        left = f", about {words.duration(taken / own * (total - done))} left" if own and done < total else ""
        say(f"{self._label}: {amount}, {words.duration(taken)}{left}", error=True)


@contextmanager
def reporting(
    label: str, as_json: bool, in_bytes: bool = False, later: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with (done, total): it shows a bar with rate and time left on standard error,
    or lines where that is no terminal. Silent with ``--json``. ``later``: another phase runs first, whose
    time is its own."""
    if as_json:
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():
        yield _Lines(label, in_bytes, later).report
        return
    amounts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(), _Rate())
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def counted(label: str, items: Iterable[T], total: int, as_json: bool) -> list[T]:
    """Return all ``items``, with a progress bar of ``total`` while they come."""
    results: list[T] = []
    with reporting(label, as_json) as show:
        show(0, total)
        for item in items:
            results.append(item)
            show(len(results), max(total, len(results)))
    return results


def hide_words_of_torchao() -> None:
    """Silence torchao, which transformers imports where it is installed: it warns of its kernels that do not
    load and of calls that torch has deprecated, and this program uses neither."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def hide_bars_of_transformers(as_json: bool) -> None:
    """Silence the progress bars of transformers where ours are silent; to call before huggingface_hub is
    imported, which reads the setting."""
    if as_json or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
