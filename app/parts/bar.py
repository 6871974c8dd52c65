"""The bar: which tensor, and which one or two schemes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import gradio as gr

from app.parts.scheme_controls import SchemeView, build_scheme_controls
from app.parts.tensor_controls import TensorControls, build_tensor_controls
from app.parts.views import Control, Shown, View
from app.parts.widgets import JS_BEFORE_CHANGE, block
from app.state.controls import DEFAULT_SCHEME, parts_of, scheme_choices
from app.state.selection import Selection
from explorer import Scheme


@dataclass(frozen=True)
class PairView(View):
    """Both schemes as texts; the second is empty where there is none."""

    begins: ClassVar[str | None] = JS_BEFORE_CHANGE
    scheme: Shown
    second: Shown


@dataclass(frozen=True)
class Bar:
    """The bar's components: its buttons, the tensor, scheme A (``scheme``) and scheme B (``second``)."""

    chips: Control
    tensor: TensorControls
    scheme: SchemeView
    second: SchemeView

    def selection(self) -> list[Control]:
        """The components that hold a ``Selection``, in the order of its fields."""
        own = vars(self.tensor) | {"scheme": self.scheme.text, "second": self.second.text}
        return [own[f.name] for f in dataclasses.fields(Selection)]

    def pair(self) -> PairView:
        """The two texts, for a handler that changes them."""
        return PairView(scheme=self.scheme.text, second=self.second.text)


def build_bar(words: str) -> Bar:
    """Lay out the bar: buttons, which begin with ``words``, each with a panel of controls that the page's
    script opens."""
    with gr.Column(elem_id="bar"):
        chips = block(words, elem_id="chips", js_on_load="explorer.chips(element)")
        with gr.Column(elem_id="panel-tensor", elem_classes="drawer"):
            tensor = build_tensor_controls()
        with gr.Column(elem_id="panel-a", elem_classes="drawer"):
            first = build_scheme_controls("", parts_of(Scheme.parse(DEFAULT_SCHEME)), scheme_choices())
        with gr.Column(elem_id="panel-b", elem_classes="drawer"):
            none = [("no second scheme", ""), *scheme_choices()]
            second = build_scheme_controls("second-", parts_of(Scheme.parse(DEFAULT_SCHEME)), none)
    return Bar(chips, tensor, first, second)
