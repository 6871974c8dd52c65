"""Controls whose values belong together: a handler takes them as one record."""

from __future__ import annotations

import dataclasses
from typing import Any, Self


class Form:
    """Values of controls, by name. A frozen dataclass derives from it; a handler's parameter of that type
    takes the values of the controls in the order of the fields."""

    @classmethod
    def size(cls) -> int:
        """Number of values."""
        return len(dataclasses.fields(cls))  # type: ignore[arg-type]

    @classmethod
    def of(cls, *values: Any) -> Self:
        """The record that the controls hold: "" for a text that is not there; ``ValueError`` for what is no
        text where one belongs."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        given = zip(fields, values, strict=True)
        return cls(*(as_text(f.name, value) if f.type == "str" else value for f, value in given))


def as_text(name: str, value: Any) -> str:
    """A text as it is, "" for None, and a number as it is written; ``ValueError`` that calls it ``name`` for
    what is no text at all: only programs send that."""
    if value is None or isinstance(value, int | float):
        return "" if value is None else str(value)
    if not isinstance(value, str):
        raise ValueError(f"{name} is a text, not {str(value)[:40]}")
    return value
