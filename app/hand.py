"""Keys and buttons that act on the whole page: swap the schemes, step through them, walk over elements."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.bar import PairView
from app.page import Page
from app.views import listen, shows
from app.widgets import LATEST, hidden
from explorer import SCHEMES
from explorer.methods.recipe import Recipe


@shows(PairView)
def acted(first: str, second: str, event: gr.EventData) -> PairView:
    """Both schemes after ``event.act``: "swap", "clear" (no second one), or "next" and "previous" among the
    named schemes, of the side that ``event.side`` names ("a" or "b")."""
    act, texts = str(event.act), {"a": first, "b": second}
    if act == "swap" and second:
        return PairView(scheme=second, second=first)
    if act == "clear":
        return PairView(scheme=first, second="")
    if act in ("next", "previous"):
        side = "b" if event.side == "b" else "a"
        texts[side] = _neighbour(texts[side], 1 if act == "next" else -1)
    return PairView(scheme=texts["a"], second=texts["b"])


def _neighbour(text: str, step: int) -> str:
    """The named scheme ``step`` places further, in a circle; from a scheme without a name, the first. From a
    repaired one it is the plain one that follows."""
    names, plain = list(SCHEMES), str(Recipe.parse(text).scheme) if text else ""
    return names[(names.index(plain) + step) % len(names)] if plain in names else names[0]


def build(page: Page) -> None:
    """Wire what ``assets/explorer.js`` reports."""
    keys: Any = hidden("explorer.onAct(act => trigger('act', act))")
    pair = page.bar.pair()
    page.pair_changed_by(
        listen(
            keys.act, acted, pair.in_order(), pair, api_name="act", api_visibility="undocumented", **LATEST
        ),
        "act",
    )
