"""The metadata of a quantized tensor's file (``core.file``): name, shape and scheme, checked on reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from explorer.schemes import Scheme

KEY = "quantization_explorer"
"""The metadata key that holds the record as JSON."""


@dataclass(frozen=True)
class SchemeRecord:
    """The recorded scheme. Files of earlier versions have no ``text``."""

    name: str
    text: str = ""

    def scheme(self) -> Scheme:
        """Resolve the record. Earlier versions wrote a name, or a text in its place, and no ``text``.

        They counted MXINT8's exponents for elements q instead of q / 64.
        """
        text = self.text or self.name
        return Scheme.parse("int8~1x32~symmetric~floor~minmax" if text == "mxint8" else text)


@dataclass(frozen=True)
class About:
    """Metadata of a file's tensors: the stem of their names, the matrix's [rows, columns], the scheme."""

    name: str
    shape: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
    scheme: SchemeRecord


_ADAPTER = TypeAdapter(About)


def read_about(metadata: Mapping[str, str] | None) -> About:
    """Read the record in a file's metadata; ``ValueError`` names missing or invalid entries."""
    text = (metadata or {}).get(KEY)
    if text is None:
        raise ValueError(f"its metadata holds no {KEY!r}")
    try:
        return _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise ValueError(f"its metadata is damaged: {place}: {first['msg']}") from error
