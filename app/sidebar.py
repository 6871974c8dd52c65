"""The sidebar: which tensor, and which scheme by name or by its parts."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.controls import (
    CODES,
    CONVENTIONS,
    DEFAULT_SAMPLE,
    DEFAULT_SCHEME,
    GRANULARITIES,
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
from app.limits import notify
from app.selection import Selection, file_source, model_source
from app.views import Control, Shown, View, shows
from app.widgets import PRIVATE
from explorer import CALIBRATORS, SCHEMES, Scheme, SourceError
from explorer.sources.models import layers
from explorer.sources.samples import SAMPLES
from explorer.sources.tensors import SUFFIXES, TensorInfo


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
    """The tensors of an uploaded file, and the source that an upload switches to."""

    file_tensor: Shown
    source: Shown


@dataclass(frozen=True)
class Sidebar:
    """The sidebar's components."""

    source: Control
    sample: Control
    file: Control
    file_tensor: Control
    model: Control
    revision: Control
    list_layers: Control
    layer: Control
    scheme: SchemeView

    def selection(self) -> list[Control]:
        """The components that hold a ``Selection``, in the order of its fields."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"scheme": self.scheme.text}
        return [own[f.name] for f in dataclasses.fields(Selection)]


def build_sidebar() -> Sidebar:
    """Lay the sidebar out."""
    source = gr.Dropdown(
        [(label, key) for key, label in SOURCES.items()],
        value="builtin",
        label="Tensor from",
        elem_id="source",
    )
    with gr.Column(visible=True) as of_builtin:
        samples = [(f"{s.label}{' (synthetic)' if s.synthetic else ''}", s.name) for s in SAMPLES.values()]
        sample = gr.Dropdown(samples, value=DEFAULT_SAMPLE, label="Built-in tensor", elem_id="sample")
    with gr.Column(visible=False) as of_file:
        file = gr.File(
            label=f"Tensor file ({', '.join(SUFFIXES)})",
            file_types=list(SUFFIXES),
            height=150,
            elem_id="file",
        )
        file_tensor = gr.Dropdown(
            [], value=None, label="Tensor", allow_custom_value=True, elem_id="file-tensor"
        )
    with gr.Column(visible=False) as of_model:
        model = gr.Textbox(label="Folder or Hub id", placeholder="owner/name", max_lines=1, elem_id="model")
        revision = gr.Textbox(label="Revision (optional)", placeholder="main", max_lines=1)
        list_layers = gr.Button("List layers", size="sm")
        layer = gr.Dropdown(
            [], value=None, label="Layer (type to filter)", allow_custom_value=True, elem_id="layer"
        )
    columns = {"builtin": of_builtin, "file": of_file, "model": of_model}
    source.change(
        lambda chosen: [gr.update(visible=chosen == name) for name in columns],
        source,
        list(columns.values()),
        queue=False,
        **PRIVATE,
    )
    return Sidebar(
        source, sample, file, file_tensor, model, revision, list_layers, layer, _build_scheme_controls()
    )


def _build_scheme_controls() -> SchemeView:
    first = parts_of(Scheme.parse(DEFAULT_SCHEME))
    preset = gr.Dropdown(
        scheme_choices(), value=DEFAULT_SCHEME, label="Scheme", allow_custom_value=True, elem_id="preset"
    )
    text = gr.Textbox(DEFAULT_SCHEME, visible=False, label="scheme")
    fmt = gr.Dropdown(format_choices(), value=first.format, label="Number format", elem_id="format")
    granularity = gr.Dropdown(
        [(label, key) for key, label in GRANULARITIES.items()],
        value=first.granularity,
        label="One scale for",
        elem_id="granularity",
    )
    with gr.Row():
        columns = gr.Number(
            first.columns,
            label="Group size, tile columns",
            minimum=0,
            min_width=110,
            elem_id="size",
        )
        rows = gr.Number(first.rows, label="Tile rows (0: all)", minimum=0, min_width=110)
    mapping = gr.Dropdown(
        [(label, key) for key, label in MAPPINGS.items()],
        value=first.mapping,
        label="Symmetry",
        elem_id="mapping",
    )
    with gr.Accordion("Scales and rounding", open=False):
        scale = gr.Dropdown(
            [(label, key) for key, label in SCALES.items()], value=first.scale, label="Scale stored as"
        )
        convention = gr.Dropdown(
            [(label, key) for key, label in CONVENTIONS.items()],
            value=first.convention,
            label="Scales by the rules of",
            elem_id="convention",
        )
        codes = gr.Dropdown(
            [(label, key) for key, label in CODES.items()],
            value=list(first.codes),
            multiselect=True,
            label="Codes as other libraries round them",
            elem_id="codes",
        )
        calibrator = gr.Dropdown(
            [(c.label, c.name) for c in CALIBRATORS.values()], value=first.range, label="Range"
        )
        refit = gr.Checkbox(first.refit, label="Refit scales by least squares")
        stochastic = gr.Checkbox(first.stochastic, label="Stochastic rounding")
        # A browser's numbers are exact up to 2^53 only, a seed goes up to 2^64 - 1.
        seed = gr.Textbox(str(first.seed), label="Seed", max_lines=1)
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
    """What the scheme controls show for a scheme's name or text form."""
    scheme = Scheme.parse(text)
    text, parts = str(scheme), parts_of(scheme)
    preset = gr.update(value=text, label="Scheme" if text in SCHEMES else "Scheme (custom)")
    return SchemeView(text=text, preset=preset, **{**vars(parts), "codes": list(parts.codes)})


@shows(SchemeView)
def chosen_preset(name: str) -> SchemeView:
    """Take a scheme by its name or text form; returns what every scheme control shows."""
    if not name:
        raise ValueError("choose a scheme")
    return show_scheme(name)


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
) -> SchemeView:
    """Take a scheme by its parts: format, granularity, rows of a tile, columns of a tile or group (0: the
    whole axis), symmetry, scale format, convention of scales, range, rules for codes, refit, stochastic
    rounding and seed. Impossible combinations fall back to the nearest possible one."""
    if not re.fullmatch(r"\s*[0-9]{0,20}\s*", seed or ""):
        raise ValueError(f"a seed is a whole number from 0 to 2^64 - 1, not {seed!r}")
    number, sides = int((seed or "").strip() or 0), (_side(rows), _side(columns))
    words = tuple(codes or ())
    parts = Parts(
        fmt, granularity, *sides, mapping, scale, convention, wanted, words, refit, stochastic, number
    )
    scheme = scheme_of(parts)
    if notice := taken_back(parts, scheme):
        notify(notice)
    return show_scheme(str(scheme))


def _side(value: float | None) -> int:
    if value is None or value != int(value):
        shown = "nothing" if value is None else f"{value:g}"
        raise ValueError(f"a side of a block is a whole number from 0 (the whole axis), not {shown}")
    return int(value)


@shows(FileView)
def opened_file(path: str | None) -> FileView:
    """List the tensors of an uploaded file and choose the first matrix.

    Of a file that cannot be read there are none; why is said by the tab that is to show it.
    """
    try:
        choices = _tensor_choices(file_source(path).infos)
    except SourceError:
        choices = gr.update(choices=[], value=None)
    return FileView(file_tensor=choices, source="file")


@shows()
def opened_model(model: str, revision: str) -> Any:
    """List the layers of a model (folder or Hub id) from its headers and choose the first matrix."""
    return _tensor_choices(layers(model_source(model, revision)))


def _tensor_choices(infos: tuple[TensorInfo, ...]) -> Any:
    """A dropdown of tensors with shapes; the first weight matrix that is no embedding is chosen."""
    labels = [(f"{i.name}  {'×'.join(map(str, i.shape))} {i.dtype}", i.name) for i in infos]
    matrices = [i for i in infos if len(i.shape) >= 2 and min(i.shape) > 1]
    inner = [i for i in matrices if "embed" not in i.name.lower()]
    best = (inner or matrices or list(infos))[:1]
    return gr.update(choices=labels, value=best[0].name if best else None)
