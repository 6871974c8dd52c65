"""A report as one HTML file: figures interactive, script and fonts inside, nothing asked of any network."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import plotly
from plotly.io import to_json

from explorer.paths import ASSETS
from explorer.reports.content import Content, Table

TEMPLATE = Path(__file__).with_name("report.html.j2")
NUMBERS_ID = "explorer-report"
"""The element that holds the report's numbers and how it was made."""


def as_html(content: Content) -> str:
    """The whole file. Texts of the tensor's source are escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["cell"] = cell
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        content=content,
        figures={name: _figure_json(fig) for part in content.parts for name, fig, _ in part.figures},
        record=script_json(record_of(content)),
        record_id=NUMBERS_ID,
        plotly=_plotly(),
        inter=_font("inter-latin-wght-normal.woff2"),
        mono=_font("jetbrains-mono-latin-wght-normal.woff2"),
    )


def record_of(content: Content) -> dict[str, Any]:
    """Data needed to rebuild the report and to compare its numbers."""
    return {
        "recipe": content.recipe,
        "sha256": content.sha256,
        "versions": content.versions,
        "numbers": content.numbers,
    }


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no text in it ends the element."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def cell(value: Any) -> str:
    """A number in six digits, a text as it is."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def tables_of(content: Content) -> list[Table]:
    """Every table, in the order of the file."""
    return [table for part in (*content.parts, *content.appendix) for table in part.tables]


def _figure_json(figure: Any) -> str:
    return str(to_json(figure)).replace("<", "\\u003c")


@cache
def _plotly() -> str:
    script = Path(plotly.__file__).with_name("package_data") / "plotly.min.js"
    return script.read_text(encoding="utf-8").replace("</script", "<\\/script")


@cache
def _font(name: str) -> str:
    return base64.b64encode((ASSETS / "fonts" / name).read_bytes()).decode()
