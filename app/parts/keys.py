"""Keys and buttons that act on the whole page: swap the schemes, step through them, walk over elements."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.parts.bar import PairView
from app.parts.page import Page
from app.parts.views import listen, shows
from app.parts.widgets import LATEST, PRIVATE, hidden
from explorer import SCHEMES
from explorer.methods.recipe import Recipe

STEPS = {"next": 1, "previous": -1}
MOST_ACTS = 1000


@shows(PairView)
def acted(first: str, second: str, acts: str) -> PairView:
    """Both schemes after ``acts``, one after another, such as "next a,swap a": "swap", "clear" (no second
    one), or "next" and "previous" among the named schemes, each with the side that it is for ("a" or "b").
    Others change nothing."""
    texts = {"a": first, "b": second}
    for words in acts.split(",")[:MOST_ACTS]:
        act, _, side = words.partition(" ")
        if act == "swap" and texts["b"]:
            texts = {"a": texts["b"], "b": texts["a"]}
        elif act == "clear":
            texts["b"] = ""
        elif act in STEPS and side in texts:
            texts[side] = _neighbour(texts[side], STEPS[act])
    return PairView(scheme=texts["a"], second=texts["b"])


def _neighbour(text: str, step: int) -> str:
    """The named scheme ``step`` places further, in a circle; from a scheme without a name, the first. From a
    repaired one it is the plain one that follows."""
    names, plain = list(SCHEMES), str(Recipe.parse(text).scheme) if text else ""
    return names[(names.index(plain) + step) % len(names)] if plain in names else names[0]


def build(page: Page) -> None:
    """Wire what ``assets/explorer.js`` reports."""
    keys: Any = hidden("explorer.onAct(() => trigger('act'))")
    pair, acts = page.bar.pair(), gr.Textbox(visible=False, label="acts")
    acting = listen(
        keys.act,
        acted,
        [*pair.in_order(), acts],
        pair,
        js="(first, second) => explorer.began([first, second, explorer.takeActs()])",
        api_name="act",
        api_visibility="undocumented",
        **LATEST,
    )
    page.pair_changed_by(acting, "act")
    acting.then(None, None, None, js="() => explorer.sendActs.done()", **PRIVATE)
