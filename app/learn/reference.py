"""The tables to look things up in: all formats, and all terms."""

from __future__ import annotations

from app.parts import html
from app.parts.section import Section

SECTION = Section(
    name="reference",
    title="Reference",
    follows=(),
    shares={"table": html.format_table(), "terms": html.glossary.terms()},
)
