"""The bar: which tensor, and which one or two schemes."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from app.parts import html
from app.parts.scheme_controls import SchemeView, build_scheme_controls, wire_schemes
from app.parts.tensor_controls import TensorControls, build_tensor_controls
from app.parts.views import Control
from app.parts.widgets import block
from app.state.controls import DEFAULT_SCHEME, parts_of
from explorer import Scheme


@dataclass(frozen=True)
class Bar:
    """The bar's components: its buttons, and the controls of the tensor, scheme A (``scheme``) and scheme B
    (``second``). What they hold may not be shown yet; what is shown is ``Page.record``."""

    chips: Control
    tensor: TensorControls
    scheme: SchemeView
    second: SchemeView


def build_bar(words: str) -> Bar:
    """Lay out the bar: buttons, which begin with ``words``, each with a panel of controls that the page's
    script opens, and the list of the place's sections."""
    with gr.Column(elem_id="bar"):
        chips = block(words, elem_id="chips", js_on_load="explorer.chips(element)")
        block(html.render("contents"), elem_id="contents", js_on_load="explorer.contents.start(element)")
        with gr.Column(elem_id="panel-tensor", elem_classes="drawer"):
            tensor = build_tensor_controls()
        with gr.Column(elem_id="panel-a", elem_classes="drawer"):
            first = build_scheme_controls("", parts_of(Scheme.parse(DEFAULT_SCHEME)))
        with gr.Column(elem_id="panel-b", elem_classes="drawer"):
            parts = parts_of(Scheme.parse(DEFAULT_SCHEME))
            second = build_scheme_controls("second-", parts, none="no second scheme")
    wire_schemes(first, second)
    return Bar(chips, tensor, first, second)
