"""A scheme and the method that chooses its codes, as one text, as in the page's links. In EBNF::

    recipe = scheme [ "+" method ] ;        int4_group128_asym+gptq, nvfp4+rotation+gptq

``scheme`` is read by ``Scheme.parse``, and has no "+"; ``method`` is a name of ``METHODS`` or a combination
"a+b+c", read by ``names_in``. Without a method, and by ``rtn``, every weight is rounded to nearest. In a URL
"+" is escaped as %2B; an unescaped one arrives as a blank, and is read as "+".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from explorer.methods import RTN, label_of, names_in
from explorer.schemes import Scheme

SEPARATOR = "+"


@dataclass(frozen=True)
class Recipe:
    """Scheme, and the method that chooses its codes; empty for round to nearest."""

    scheme: Scheme
    method: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``text`` as a recipe; its ``str`` is the canonical text. ``ValueError`` names the invalid
        part and the accepted values."""
        plain, separator, method = text.strip().replace(" ", SEPARATOR).partition(SEPARATOR)
        scheme = Scheme.parse(plain)
        if not separator:
            return cls(scheme)
        name = SEPARATOR.join(row.name for row in names_in(method.lower()))
        return cls(scheme, "" if name == RTN.name else name)

    def __str__(self) -> str:
        return f"{self.scheme}{SEPARATOR}{self.method}" if self.method else str(self.scheme)

    @property
    def label(self) -> str:
        """Label of scheme and method."""
        return f"{self.scheme.label} by {label_of(self.method)}" if self.method else self.scheme.label

    def describe(self) -> str:
        """Describe the scheme in a sentence, and the method."""
        if not self.method:
            return self.scheme.describe()
        why = " and ".join(row.why for row in names_in(self.method))
        return f"{self.scheme.describe()} {label_of(self.method)} {why}."
