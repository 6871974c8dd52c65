"""Controls that the address keeps: each is declared once, with its key, its parser and its usual value.

The page shows it as a native element; the address, Back, links and the endpoints of programs follow from it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.parts import html
from app.state.query import Query


@dataclass(frozen=True, kw_only=True)
class Control(ABC):
    """One value of the address.

    key: in the address, and the name of the endpoint's parameter. usual: the text of a fresh page, which the
    address leaves out. linked: False for values that no address should hold; of texts also the number of
    characters up to which it does.
    """

    key: str
    label: str
    usual: str = ""
    about: str = ""
    linked: bool | int = True

    @abstractmethod
    def read(self, text: str) -> Any:
        """The value of ``text``; ``ValueError`` that says what is accepted."""

    def of(self, query: Query) -> Any:
        """The value in an address; the usual one, and words in ``query.problems``, where it is not valid."""
        text = query.get(self.key) or self.usual
        try:
            return self.read(text)
        except ValueError as error:
            query.wrong(self.key, str(error))
            return self.read(self.usual)

    def taken(self, query: Query) -> Any:
        """``of`` for a run: ``ValueError`` where it is not valid, as a run takes nothing else for it."""
        try:
            return self.read(query.get(self.key) or self.usual)
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from error

    def markup(self, text: str | None = None, **changed: Any) -> Markup:
        """The native element, holding ``text``. ``changed``: fields that differ here, such as ``options``."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values = {"chips": False, "unit": "", "slider": False, **own, **changed}
        holds = self.usual if text is None else text
        return html.render("control", kind=type(self).__name__.lower(), holds=holds, c=values)


Options = Mapping[str, str]
"""Labels by value."""


@dataclass(frozen=True, kw_only=True)
class Select(Control):
    """One of several values. ``chips``: all are shown side by side, instead of a list that opens."""

    options: Options | Callable[[], Options]
    chips: bool = False

    def offered(self) -> Options:
        return self.options() if callable(self.options) else self.options

    def read(self, text: str) -> str:
        offered = self.offered()
        if text not in offered:
            raise ValueError(", ".join(offered))
        return text

    def markup(self, text: str | None = None, **changed: Any) -> Markup:
        return super().markup(text, **{"options": self.offered()} | changed)


@dataclass(frozen=True, kw_only=True)
class MultiSelect(Select):
    """Any number of several values, separated by commas, each once; ``usual`` at least."""

    def read(self, text: str) -> list[str]:  # type: ignore[override]
        return [super(MultiSelect, self).read(part) for part in dict.fromkeys(text.split(",")) if part]


@dataclass(frozen=True, kw_only=True)
class NumberInput(Control):
    """A number from ``low`` to ``high``. ``slider``: it is dragged. ``unit`` stands behind it."""

    low: float
    high: float
    step: float | str = "any"
    unit: str = ""
    slider: bool = False

    def read(self, text: str) -> float:
        accepted = f"a number from {self.low:,g} to {self.high:,g}"
        try:
            number = float(text)
        except ValueError:
            raise ValueError(accepted) from None
        if not math.isfinite(number) or not self.low <= number <= self.high:
            raise ValueError(accepted)
        return number


@dataclass(frozen=True, kw_only=True)
class IntegerInput(NumberInput):
    """A whole number from ``low`` to ``high``."""

    step: float | str = 1

    def read(self, text: str) -> int:
        number = super().read(text)
        if number != int(number):
            raise ValueError(f"a whole number from {self.low:,g} to {self.high:,g}")
        return int(number)


@dataclass(frozen=True, kw_only=True)
class TextInput(Control):
    """A text of at most ``most`` characters; of several ``lines``."""

    most: int = 200
    lines: int = 1
    hint: str = ""

    def read(self, text: str) -> str:
        if len(text) > self.most:
            raise ValueError(f"at most {self.most:,} characters")
        return text


@dataclass(frozen=True, kw_only=True)
class Switch(Control):
    """On, "1", or off, "0"."""

    usual: str = "0"

    def read(self, text: str) -> bool:
        if text not in ("0", "1"):
            raise ValueError("0 or 1")
        return text == "1"
