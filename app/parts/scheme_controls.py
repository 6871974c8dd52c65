"""The controls of one scheme, by its name or by its parts. A change of one is an act
(``app.state.record``)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import gradio as gr

from app.parts import html
from app.parts.views import Shown, View
from app.parts.widgets import PRIVATE
from app.state.controls import (
    CODES,
    COLUMNS,
    CONVENTIONS,
    DEFAULT_SCHEME,
    GRANULARITIES,
    MAPPINGS,
    ROWS,
    SCALES,
    Parts,
    format_choices,
    parts_of,
)
from explorer import CALIBRATORS
from explorer.methods.recipe import Recipe

_SHOW_SIDES = "value => {{ document.documentElement.setAttribute('data-{prefix}granularity', value); }}"
"""Tells the style sheet which sides of a block there are to choose; boxes without effect are not shown."""


@dataclass(frozen=True)
class SchemeView(View):
    """The scheme controls: the picker of names, and the controls of ``Parts``."""

    preset: Shown
    format: Shown
    granularity: Shown
    rows: Shown
    columns: Shown
    mapping: Shown
    scale: Shown
    convention: Shown
    range: Shown
    codes: Shown
    refit: Shown
    stochastic: Shown
    seed: Shown

    def parts(self) -> list[Shown]:
        """The components of ``Parts``, in the order of its fields."""
        return [getattr(self, f.name) for f in dataclasses.fields(Parts)]


def build_scheme_controls(prefix: str, first: Parts, none: str = "") -> SchemeView:
    """The controls of one scheme; ``prefix`` begins their ids on the page, and is empty for scheme A.
    ``none``: what the picker calls no scheme, if that may be chosen."""
    chosen = "" if none else DEFAULT_SCHEME
    side = "b" if prefix else "a"
    preset = gr.HTML(
        chosen,
        html_template=html.render("picker", side=side),
        js_on_load=f"explorer.picker(element, props, watch, {json.dumps(side)}, {json.dumps(none)})",
        apply_default_css=False,
        padding=False,
        elem_id=f"{prefix}preset",
        elem_classes="scheme-picker",
    )
    with gr.Row():
        fmt = gr.Dropdown(
            format_choices(),
            value=first.format,
            label="Number format",
            min_width=150,
            elem_id=f"{prefix}format",
        )
        granularity = gr.Dropdown(
            [(label, key) for key, label in GRANULARITIES.items()],
            value=first.granularity,
            label="One scale for",
            min_width=150,
            elem_id=f"{prefix}granularity",
        )
    granularity.change(None, granularity, None, js=_SHOW_SIDES.format(prefix=prefix), **PRIVATE)
    with gr.Row():
        columns = gr.Number(
            first.columns,
            label=COLUMNS,
            min_width=110,
            elem_id=f"{prefix}size",
        )
        rows = gr.Number(first.rows, label=f"{ROWS} (0: all)", min_width=110, elem_id=f"{prefix}tile-rows")
        mapping = gr.Dropdown(
            [(label, key) for key, label in MAPPINGS.items()],
            value=first.mapping,
            label="Symmetry",
            min_width=150,
            elem_id=f"{prefix}mapping",
        )
    with gr.Accordion("Scales and rounding", open=False):
        with gr.Row():
            scale = gr.Dropdown(
                [(label, key) for key, label in SCALES.items()],
                value=first.scale,
                label="Scale stored as",
                min_width=150,
            )
            convention = gr.Dropdown(
                [(label, key) for key, label in CONVENTIONS.items()],
                value=first.convention,
                label="Convention for scales",
                min_width=150,
                elem_id=f"{prefix}convention",
            )
        codes = gr.Dropdown(
            [(label, key) for key, label in CODES.items()],
            value=list(first.codes),
            multiselect=True,
            label="Rounding rules of other libraries",
            elem_id=f"{prefix}codes",
        )
        with gr.Row():
            calibrator = gr.Dropdown(
                [(c.label, c.name) for c in CALIBRATORS.values()],
                value=first.range,
                label="Range",
                allow_custom_value=True,  # share0.31, a custom range
                min_width=150,
            )
            # A browser's numbers are exact up to 2^53 only, a seed goes up to 2^64 - 1.
            seed = gr.Textbox(str(first.seed), label="Seed", max_lines=1, min_width=110)
        with gr.Row():
            refit = gr.Checkbox(first.refit, label="Refit scales by least squares", min_width=150)
            stochastic = gr.Checkbox(first.stochastic, label="Stochastic rounding", min_width=150)
    return SchemeView(
        preset=preset,
        format=fmt,
        granularity=granularity,
        rows=rows,
        columns=columns,
        mapping=mapping,
        scale=scale,
        convention=convention,
        range=calibrator,
        codes=codes,
        refit=refit,
        stochastic=stochastic,
        seed=seed,
    )


def show_scheme(text: str) -> SchemeView:
    """Fill the scheme controls for a scheme's name or text form, with or without a method; the parts are
    those of the scheme."""
    recipe = Recipe.parse(text)
    text, parts = str(recipe), parts_of(recipe.scheme)
    return SchemeView(preset=text, **{**vars(parts), "codes": list(parts.codes)})


def show_second(text: str) -> SchemeView:
    """Fill the second scheme's controls for its text; without a text, its parts are unchanged."""
    return show_scheme(text) if text else SchemeView.unchanged(preset="")


def wire_schemes(first: SchemeView, second: SchemeView) -> None:
    """Each control is an act: the parts all together. A box that is left is one only where it holds something
    else than belongs to the scheme. The picker's own script says which name or text was chosen."""
    for view, side in ((first, "a"), (second, "b")):
        parts = f"(...parts) => explorer.chooseParts('{side}', parts)"
        for control in view.parts():
            typed = isinstance(control, gr.Number | gr.Textbox)
            for event in (control.submit, control.blur) if typed else (control.input,):
                event(None, view.parts(), None, js=parts, **PRIVATE)
