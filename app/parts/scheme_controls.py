"""The controls of one scheme, by its name or by its parts, and what a change of each does.

A click runs a handler of this file, which writes the scheme's text; ``page`` then puts the text into the
address and runs what follows the selection.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import limits
from app.parts.views import Shown, View, listen, shows
from app.parts.widgets import JS_BEFORE_CHANGE, LATEST
from app.state.controls import (
    CODES,
    CONVENTIONS,
    DEFAULT_SCHEME,
    GRANULARITIES,
    LARGEST_SIDE,
    MAPPINGS,
    SCALES,
    Parts,
    dropped_choices,
    format_choices,
    parts_of,
    scheme_of,
)
from explorer import CALIBRATORS, SCHEMES
from explorer.methods.recipe import Recipe
from explorer.schemes.calibrators import calibrator_named

COLUMNS, ROWS = "Group size, tile columns", "Tile rows"
"""Names of the inputs for a block's sides, in labels and in messages."""


@dataclass(frozen=True)
class SchemeView(View):
    """The scheme controls: the scheme's text (hidden), the picker of names, the controls of ``Parts``."""

    text: Shown
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


def build_scheme_controls(prefix: str, first: Parts, choices: list[tuple[str, str]]) -> SchemeView:
    """The controls of one scheme; ``prefix`` begins their ids on the page."""
    chosen = choices[0][1] if prefix else DEFAULT_SCHEME
    preset = gr.Dropdown(
        choices, value=chosen, label="Scheme", allow_custom_value=True, elem_id=f"{prefix}preset"
    )
    text = gr.Textbox(chosen, visible=False, label=f"{prefix}scheme")
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
    with gr.Row():
        columns = gr.Number(
            first.columns,
            label=COLUMNS,
            min_width=110,
            elem_id=f"{prefix}size",
        )
        rows = gr.Number(first.rows, label=f"{ROWS} (0: all)", min_width=110)
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
        text=text,
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
    preset = gr.update(value=text, label="Scheme" if text in SCHEMES else "Scheme (custom)")
    return SchemeView(text=text, preset=preset, **{**vars(parts), "codes": list(parts.codes)})


def show_second(text: str) -> SchemeView:
    """Fill the second scheme's controls for its text; without a text, its parts are unchanged."""
    return show_scheme(text) if text else SchemeView.unchanged(text="", preset="")


@shows(SchemeView)
def sync_controls(text: str) -> SchemeView:
    """The controls of a scheme that was chosen elsewhere on the page. Its text stays: another may have been
    chosen since."""
    return dataclasses.replace(show_second(text), text=gr.skip())


@shows(SchemeView)
def chosen_preset(name: str, kept: str) -> SchemeView:
    """Take a scheme by its name or text form; returns what every scheme control shows. An invalid text is
    rejected with a message, and ``kept`` shown again. A picker that is left with what it held is an event,
    too: what is being typed elsewhere stays."""
    if name and name == kept:
        same = show_scheme(kept)
        return SchemeView.unchanged(text=same.text, preset=same.preset)
    try:
        if not name and kept:
            raise ValueError("choose a scheme")
        return show_scheme(name)
    except ValueError as error:
        limits.notify(str(error))
        return show_second(kept)


@shows(SchemeView)
def chosen_second(name: str | None, kept: str) -> SchemeView:
    """``chosen_preset`` for the second scheme, which may also be none: an empty name."""
    return chosen_preset(name, kept) if name else show_second("")


@shows(SchemeView)
def chosen_parts(
    fmt: str,
    granularity: str,
    rows: float | None,
    columns: float | None,
    mapping: str,
    scale: str,
    convention: str,
    wanted: str,
    codes: list[str],
    refit: bool,
    stochastic: bool,
    seed: str,
    kept: str,
) -> SchemeView:
    """Take a scheme by its parts: format, granularity, rows of a tile, columns of a tile or group (0: the
    whole axis of a tile), symmetry, scale format, convention of scales, range, rules for codes, refit,
    stochastic rounding and seed. Impossible combinations fall back to the nearest possible one; a number that
    is refused goes back to that of the scheme ``kept``."""
    words = tuple(codes or ())
    try:
        calibrator_named(wanted)
        sides = (_side(ROWS, rows, 0), _side(COLUMNS, columns, int(granularity in ("group", "flat"))))
        parts = Parts(
            fmt,
            granularity,
            *sides,
            mapping,
            scale,
            convention,
            wanted,
            words,
            refit,
            stochastic,
            _seed(seed),
        )
        scheme = scheme_of(parts)
    except ValueError as error:
        limits.notify(str(error))
        return show_second(kept)
    if notice := dropped_choices(parts, scheme):
        limits.notify(notice)
    return show_scheme(str(scheme))


@shows(SchemeView)
def parts_blurred(kept: str, *parts: Any) -> SchemeView:
    """``chosen_parts`` when a box is left: nothing, if it holds what belongs to the scheme ``kept``, or if
    there is no scheme yet."""
    if not kept or parts == tuple(show_scheme(kept).parts()):
        return SchemeView.unchanged()
    return chosen_parts(*parts, kept)


def _seed(text: str | None) -> int:
    words = (text or "").strip()
    if not re.fullmatch(r"[0-9]{0,20}", words) or int(words or 0) >= 1 << 64:
        raise ValueError(f"Seed: a whole number from 0 to 2^64 - 1, not {words!r}")
    return int(words or 0)


def _side(field: str, value: float | None, least: int) -> int:
    """A side of a block as a whole number of at least ``least``; 0 is the whole axis."""
    if value is None or not math.isfinite(value) or value != int(value) or not least <= value <= LARGEST_SIDE:
        shown = "nothing" if value is None else f"{value:g}"
        whole = "" if least else " (the whole axis)"
        raise ValueError(f"{field}: a whole number from {least}{whole} to {LARGEST_SIDE}, not {shown}")
    return int(value)


def wire_schemes(first: SchemeView, second: SchemeView, changed_by: Callable[[Any], None]) -> None:
    """Run the handlers above when a control of scheme A or B changes, and then what follows the selection:
    ``changed_by(event)``."""
    for view, preset, stem in ((first, chosen_preset, "choose"), (second, chosen_second, "choose_second")):
        by_name = listen(
            view.preset.input,
            preset,
            [view.preset, view.text],
            view,
            js=JS_BEFORE_CHANGE,
            api_name=f"{stem}_scheme",
            **LATEST,
        )
        changed_by(by_name)
        for index, control in enumerate(view.parts()):
            typed = isinstance(control, gr.Number | gr.Textbox)
            name = f"{stem}_parts_{index}" if index else f"{stem}_parts"
            chosen = listen(
                control.submit if typed else control.input,
                chosen_parts,
                [*view.parts(), view.text],
                view,
                js=JS_BEFORE_CHANGE,
                api_name=name,
                api_visibility="undocumented" if index else "public",
                **LATEST,
            )
            changed_by(chosen)
            if typed:
                left = listen(
                    control.blur,
                    parts_blurred,
                    [view.text, *view.parts()],
                    view,
                    js=JS_BEFORE_CHANGE,
                    api_name=f"{name}_blur",
                    api_visibility="undocumented",
                    **LATEST,
                )
                changed_by(left)
