"""A scheme and the method that chooses its codes, as one text: what the page's links carry. In EBNF::

    recipe = scheme [ "+" method ] ;        int4_group128_asym+gptq, nvfp4+rotation+gptq

``scheme`` is what ``Scheme.parse`` reads, which knows no "+"; ``method`` is a name of ``METHODS`` or a
combination "a+b+c" as ``names_in`` reads it. Without a method, and by ``rtn``, every weight is rounded to
nearest. In a URL "+" is escaped as %2B; a blank is read as the "+" that it stands for where it was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from explorer.methods import RTN, label_of, names_in
from explorer.schemes import Scheme

SEPARATOR = "+"


@dataclass(frozen=True)
class Recipe:
    """``scheme``, and the ``method`` by whose codes a layer is stored; empty for round to nearest."""

    scheme: Scheme
    method: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``text`` as a recipe; its ``str`` is the canonical text. ``ValueError`` names the invalid
        part and the accepted values.
        """
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
        """In words, for people."""
        return f"{self.scheme.label} by {label_of(self.method)}" if self.method else self.scheme.label

    def describe(self) -> str:
        """The scheme in a sentence, and what the method does."""
        if not self.method:
            return self.scheme.describe()
        why = " and ".join(row.why for row in names_in(self.method))
        return f"{self.scheme.describe()} {label_of(self.method)} {why}."
