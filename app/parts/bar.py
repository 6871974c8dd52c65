"""The bar: which tensor, and which one or two schemes, by name or by their parts."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import gradio as gr

from app import limits
from app.parts.views import Control, Shown, View, shows
from app.parts.widgets import BEGAN, PRIVATE, block
from app.state.controls import (
    CODES,
    CONVENTIONS,
    DEFAULT_SAMPLE,
    DEFAULT_SCHEME,
    GRANULARITIES,
    LARGEST_SIDE,
    MAPPINGS,
    SCALES,
    SOURCES,
    Parts,
    format_choices,
    parts_of,
    scheme_choices,
    scheme_of,
    taken_back,
)
from app.state.selection import Selection, file_source, matrix_of, model_source
from explorer import CALIBRATORS, SCHEMES, Scheme
from explorer.methods.recipe import Recipe
from explorer.schemes.calibrators import calibrator_named
from explorer.sources.models import layers
from explorer.sources.samples import SAMPLES
from explorer.sources.tensors import TensorInfo

COLUMNS, ROWS = "Group size, tile columns", "Tile rows"
"""What the boxes of a block's sides are called, in their labels and in messages."""


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
        """What belongs to ``Parts``, in the order of its fields."""
        return [getattr(self, f.name) for f in dataclasses.fields(Parts)]


@dataclass(frozen=True)
class FileView(View):
    """An uploaded file and its tensors, the source that an upload switches to, and why it was refused."""

    file: Shown
    file_tensor: Shown
    source: Shown
    told: Shown


@dataclass(frozen=True)
class PairView(View):
    """Both schemes as texts; the second is empty where there is none."""

    begins: ClassVar[str | None] = BEGAN
    scheme: Shown
    second: Shown


@dataclass(frozen=True)
class Bar:
    """The bar's components: the tensor, scheme A (``scheme``) and scheme B (``second``)."""

    chips: Control
    source: Control
    sample: Control
    file: Control
    file_tensor: Control
    model: Control
    revision: Control
    list_layers: Control
    layer: Control
    scheme: SchemeView
    second: SchemeView

    def selection(self) -> list[Control]:
        """The components that hold a ``Selection``, in the order of its fields."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        own |= {"scheme": self.scheme.text, "second": self.second.text}
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
            tensor = _build_tensor_controls()
        with gr.Column(elem_id="panel-a", elem_classes="drawer"):
            first = _build_scheme_controls("", parts_of(Scheme.parse(DEFAULT_SCHEME)), scheme_choices())
        with gr.Column(elem_id="panel-b", elem_classes="drawer"):
            none = [("no second scheme", ""), *scheme_choices()]
            second = _build_scheme_controls("second-", parts_of(Scheme.parse(DEFAULT_SCHEME)), none)
    return Bar(chips=chips, **tensor, scheme=first, second=second)


def _build_tensor_controls() -> dict[str, Control]:
    source = gr.Dropdown(
        [(label, key) for key, label in SOURCES.items()],
        value="builtin",
        label="Tensor from",
        elem_id="source",
    )
    with gr.Column(elem_classes="of-source of-builtin"):
        samples = [(f"{s.label}{' (synthetic)' if s.synthetic else ''}", s.name) for s in SAMPLES.values()]
        sample = gr.Dropdown(samples, value=DEFAULT_SAMPLE, label="Built-in tensor", elem_id="sample")
    with gr.Column(elem_classes="of-source of-file"):
        accepted = limits.current().sources.suffixes
        file = gr.File(
            label=f"Tensor file ({', '.join(accepted)})",
            file_types=list(accepted),
            height=150,
            elem_id="file",
        )
        file_tensor = gr.Dropdown(
            [], value=None, label="Tensor", allow_custom_value=True, elem_id="file-tensor"
        )
    with gr.Column(elem_classes="of-source of-model"):
        model = gr.Textbox(label="Folder or Hub id", placeholder="owner/name", max_lines=1, elem_id="model")
        revision = gr.Textbox(label="Revision (optional)", placeholder="main", max_lines=1)
        list_layers = gr.Button("List layers", size="sm")
        layer = gr.Dropdown(
            [], value=None, label="Layer (type to filter)", allow_custom_value=True, elem_id="layer"
        )
    source.change(None, source, None, js="source => explorer.showSource(source)", **PRIVATE)
    return {
        "source": source,
        "sample": sample,
        "file": file,
        "file_tensor": file_tensor,
        "model": model,
        "revision": revision,
        "list_layers": list_layers,
        "layer": layer,
    }


def _build_scheme_controls(prefix: str, first: Parts, choices: list[tuple[str, str]]) -> SchemeView:
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
                label="Scales by the rules of",
                min_width=150,
                elem_id=f"{prefix}convention",
            )
        codes = gr.Dropdown(
            [(label, key) for key, label in CODES.items()],
            value=list(first.codes),
            multiselect=True,
            label="Codes as other libraries round them",
            elem_id=f"{prefix}codes",
        )
        with gr.Row():
            calibrator = gr.Dropdown(
                [(c.label, c.name) for c in CALIBRATORS.values()],
                value=first.range,
                label="Range",
                allow_custom_value=True,  # share0.31, a range of one's own
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
    """What the scheme controls show for a scheme's name or text form, with or without a method: the parts are
    the scheme's."""
    recipe = Recipe.parse(text)
    text, parts = str(recipe), parts_of(recipe.scheme)
    preset = gr.update(value=text, label="Scheme" if text in SCHEMES else "Scheme (custom)")
    return SchemeView(text=text, preset=preset, **{**vars(parts), "codes": list(parts.codes)})


def show_second(text: str) -> SchemeView:
    """What the second scheme's controls show for its text; for none, its parts stay as they are."""
    return show_scheme(text) if text else SchemeView.unchanged(text="", preset="")


@shows(SchemeView)
def spelled(text: str) -> SchemeView:
    """The controls of a scheme that was chosen elsewhere on the page. Its text stays: another may have been
    chosen since."""
    return dataclasses.replace(show_second(text), text=gr.skip())


@shows(SchemeView)
def chosen_preset(name: str, kept: str) -> SchemeView:
    """Take a scheme by its name or text form; returns what every scheme control shows. A text that is no
    scheme is refused in words, and ``kept`` shown again. A picker that is left with what it held is an
    event, too: what is being typed elsewhere stays."""
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
    if notice := taken_back(parts, scheme):
        limits.notify(notice)
    return show_scheme(str(scheme))


@shows(SchemeView)
def left_parts(kept: str, *parts: Any) -> SchemeView:
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


@shows(FileView)
def opened_file(path: str | None, shown: tuple[str, str | None, str | None] | None) -> FileView:
    """List the tensors of an uploaded file and choose the first matrix.

    A file that cannot be read, or whose only tensor cannot be shown, is refused: the controls go back to what
    is ``shown`` (source, file, tensor).
    """
    try:
        infos = file_source(path).infos
        choices = _tensor_choices(infos)
        if len(infos) == 1:
            matrix_of(Selection(source="file", file=path, file_tensor=choices["value"]))
    except (ValueError, OSError) as error:
        limits.notify(str(error))
        source, file, tensor = shown or ("builtin", None, None)
        kept = gr.update(value=tensor) if file else gr.update(choices=[], value=None)
        return FileView(file=file, file_tensor=kept, source=source, told=str(error))
    return FileView(file=gr.skip(), file_tensor=choices, source="file", told="")


@shows()
def opened_model(model: str, revision: str) -> Any:
    """List the layers of a model (folder or Hub id) from its headers and choose the first matrix."""
    return _tensor_choices(layers(model_source(model, revision)))


def _tensor_choices(infos: tuple[TensorInfo, ...]) -> Any:
    """A dropdown of tensors with shapes; the first weight matrix that is no embedding is chosen. Of very many
    the first are listed; others can be typed."""
    most = limits.current().listed
    if len(infos) > most:
        limits.notify(f"The first {most:,} of {len(infos):,} tensors are listed: type the name of another.")
    labels = [(f"{i.name}  {'×'.join(map(str, i.shape))} {i.dtype}", i.name) for i in infos[:most]]
    matrices = [i for i in infos if len(i.shape) >= 2 and min(i.shape) > 1]
    inner = [i for i in matrices if "embed" not in i.name.lower()]
    best = (inner or matrices or list(infos))[:1]
    return gr.update(choices=labels, value=best[0].name if best else None)
