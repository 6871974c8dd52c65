"""Texts from files: .txt, .jsonl, .json, .csv and .parquet.

A row of a table is a document: text in the column "text", a dialogue in "messages" or "conversations", or a
dialogue of two turns in "prompt" and "completion" (or "response"). A column "kind" names the document's kind.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from explorer.models.texts import Document, Texts, texts_of
from explorer.paths import ASSETS

FOLDER = ASSETS / "texts"
COLUMNS = ("text", "messages", "conversations")
ANSWERS = ("completion", "response")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}
"""ShareGPT's roles -> the roles of chat templates."""
_NEEDED = ", ".join((*COLUMNS, "prompt with completion or response"))
Row = Mapping[str, Any]


def read_texts(
    path: str | Path,
    column: str | None = None,
    sequence_length: int | None = None,
    samples: int | None = None,
) -> Texts:
    """Read the documents of a file, by its suffix; with an unknown suffix each line is a document.

    ``column`` of a table holds the text or dialogues. ``sequence_length``, ``samples``: see ``Texts``.
    ``ValueError`` for invalid UTF-8 or an unreadable table, a missing column (with the names of the columns),
    a cell that is neither text nor a dialogue, and no text at all.
    """
    path = Path(path)
    rows_of = _TABLES.get(path.suffix.lower())
    try:
        if rows_of is None:
            if column is not None:
                raise ValueError(
                    f"has no columns: each of its lines is a document; {', '.join(_TABLES)} have columns"
                )
            found = Texts(tuple(path.read_text(encoding="utf-8").splitlines()))
        else:
            found = _of_rows(rows_of(path), column)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
    if not (found := texts_of(found)):
        raise ValueError(f"{path} has no {'line' if rows_of is None else 'row'} of text")
    return replace(found, sequence_length=sequence_length, samples=samples)


@cache
def built_in(name: str) -> Texts:
    """Load the texts ``assets/texts/<name>.jsonl``, with their kinds."""
    return read_texts(FOLDER / f"{name}.jsonl")


def _of_json(path: Path) -> list[Row]:
    """Read the rows of a JSON array of objects, or of an object a line."""
    text = path.read_text(encoding="utf-8")
    pieces = [("it", text)]
    if not text.lstrip().startswith("["):  # splitlines() would cut within strings
        pieces = [(f"line {n}", line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    found: list[Row] = []
    for where, piece in pieces:
        try:
            parsed = json.loads(piece)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is no JSON: {where}: {str(error)[:100]}") from error
        found += parsed if where == "it" else [parsed]
    for number, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise ValueError(f"holds no table: row {number} is no JSON object")
    return found


def _of_frame(read: str, **options: Any) -> Callable[[Path], list[Row]]:
    """Read rows by pandas' function ``read``."""

    def rows(path: Path) -> list[Row]:
        try:
            import pandas
        except ImportError as error:
            raise ValueError("needs pandas: pip install pandas") from error
        try:
            frame = getattr(pandas, read)(path, **options)
        except ImportError as error:
            raise ValueError("needs pyarrow: pip install pyarrow") from error
        except (OSError, UnicodeDecodeError):
            raise
        except Exception as error:  # parsers have errors of their own, some of them ValueErrors
            raise ValueError(f"could not be read: {str(error).strip().splitlines()[0][:200]}") from error
        missing = frame.astype(object).where(frame.notna(), None)
        found: list[Row] = missing.to_dict("records")
        return found

    return rows


_TABLES: dict[str, Callable[[Path], list[Row]]] = {
    ".jsonl": _of_json,
    ".json": _of_json,
    ".csv": _of_frame("read_csv", dtype=str, keep_default_na=False, encoding="utf-8"),
    ".parquet": _of_frame("read_parquet"),
}
"""Suffix -> reader of rows."""


def _of_rows(rows: Sequence[Row], column: str | None) -> Texts:
    if not rows:
        raise ValueError("has no row")
    names = list(dict.fromkeys(name for row in rows for name in row))
    document, documents = _reader(names, column), list[Document]()
    for number, row in enumerate(rows, 1):
        try:
            documents.append(document(row))
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
    kinds = tuple(str(row.get("kind") or "") for row in rows) if "kind" in names else ()
    return Texts(tuple(documents), kinds)


def _reader(names: Sequence[str], column: str | None) -> Callable[[Row], Document]:
    """Make a function that reads the document of a row with columns ``names``."""
    there = f"it has {', '.join(map(str, names))}"
    if column is not None:
        if column not in names:
            raise ValueError(f"has no column {column!r}; {there}")
        return lambda row: _cell(row, column)
    answer = next((name for name in ANSWERS if name in names), None)
    usual = [name for name in COLUMNS if name in names]
    if not usual and not ("prompt" in names and answer):
        raise ValueError(f"has no column that is read by default ({_NEEDED}); {there}: name one by --column")

    def first_filled(row: Row) -> Document:
        """Read the first column that the row fills: rows of a table may be of several sorts."""
        if name := next((name for name in usual if row.get(name) is not None), None):
            return _cell(row, name)
        if answer is None or row.get("prompt") is None:
            return ""
        said = (("user", _cell(row, "prompt")), ("assistant", _cell(row, answer)))
        turns = (((role, cell),) if isinstance(cell, str) else cell for role, cell in said)
        return tuple(itertools.chain(*turns))

    return first_filled


def _cell(row: Row, name: str) -> Document:
    """Read a cell, which is text or a dialogue; an empty one is an empty text."""
    value = row.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    if hasattr(value, "tolist"):  # Parquet's lists are arrays
        value = value.tolist()
    if isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value):
        return tuple(_turn(turn, name) for turn in value)
    raise ValueError(f"{name!r} is neither text nor a list of turns, but {type(value).__name__}")


def _turn(turn: Mapping[str, Any], name: str) -> tuple[str, str]:
    role, said = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if not isinstance(role, str):
        raise ValueError(f"a turn of {name!r} has no role: it has {', '.join(map(str, turn)) or 'nothing'}")
    if said is not None and not isinstance(said, str):
        said = _of_parts(said, name)
    return _ROLES.get(role, role), said or ""


def _of_parts(parts: Any, name: str) -> str:
    """Join the text of content that comes in parts: {"type": "text", "text": ...}."""
    parts = parts.tolist() if hasattr(parts, "tolist") else parts
    if not isinstance(parts, Iterable) or not all(isinstance(part, Mapping) for part in parts):
        raise ValueError(f"the content of a turn of {name!r} is neither text nor parts with text")
    texts = (part.get("text") for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))
