"""A picker of several schemes, which takes those of the bar beside the named ones."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from app.parts.page import Page
from app.parts.views import Control, listen, shows
from app.parts.widgets import PRIVATE
from app.state.controls import scheme_choices
from explorer.methods.recipe import Recipe


def build_scheme_picker(page: Page, names: Sequence[str], label: str, elem_id: str) -> Control:
    """Lay out the picker, with ``names`` chosen, and the button that adds A and B to it.

    A scheme without a name may also be typed, as the text that its link carries.
    """
    with gr.Column(min_width=260):
        picker = gr.Dropdown(
            scheme_choices(),
            value=list(names),
            multiselect=True,
            allow_custom_value=True,
            label=label,
            elem_id=elem_id,
        )
        button = gr.Button("Add A and B", size="sm", elem_id=f"{elem_id}-add")
    listen(button.click, _added, [picker, *page.pair], picker, **PRIVATE)
    return picker


@shows()
def _added(names: list[str] | None, first: str, second: str) -> list[str]:
    """The chosen schemes, and those of A and B."""
    own = [str(Recipe.parse(text).scheme) for text in (first, second) if text]
    return list(dict.fromkeys([*(names or []), *own]))
