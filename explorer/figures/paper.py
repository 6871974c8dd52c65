"""Files of figures, drawn outside the page by its own script, ``assets/paper.js``, in a browser."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from typing import Any

import plotly.graph_objects as go

from explorer.paths import ASSETS, PLOTLY

Page = Any
"""Page of playwright."""
WIDE = 174
"""Millimetres of two columns of a paper."""


@cache
def scripts() -> str:
    """Return the scripts that draw a figure, for a script element."""
    paper = (ASSETS / "paper.js").read_text(encoding="utf-8")
    text = f"{PLOTLY.read_text(encoding='utf-8')}\nconst explorer = {{}};\n{paper}"
    return text.replace("</script", "<\\/script")


def faces(family: str, url: Callable[[str], str]) -> str:
    """Return the style sheet of Inter as ``family``, in the two weights that figures have. ``url`` gives the
    address of a file of assets/fonts. Of a variable font, a browser prints outlines that some publishers
    refuse."""
    return "".join(
        f"@font-face{{font-family:'{family}';font-weight:{weight};"
        f"src:url({url(f'inter-latin-{weight}-normal.woff2')}) format('woff2')}}"
        for weight in (400, 700)
    )


def font(name: str) -> str:
    """Return a font of assets/fonts as a data URL."""
    data = base64.b64encode((ASSETS / "fonts" / name).read_bytes()).decode()
    return f"data:font/woff2;base64,{data}"


def blank() -> str:
    """Return an empty HTML page on which figures are drawn."""
    return f"<style>{faces('Inter', font)}</style><script>{scripts()}</script>"


def svg_of(page: Page, figure: go.Figure) -> str:
    """Return ``figure`` as an SVG file two columns wide; ``page`` has ``scripts`` and the font."""
    return str(
        page.evaluate(
            "([json, mm]) => explorer.paper.draw(JSON.parse(json), mm).then(d => d.svg)",
            [figure.to_json(engine="json"), WIDE],
        )
    )
