"""Two checkpoints: a model, and the same model as somebody else quantized it, layer by layer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from app import limits
from app.parts import html
from app.parts.controls import Select, TextInput
from app.parts.section import Section, Shown
from app.state.choices import OF_ANALYSIS
from app.state.files import write_table
from app.state.gpu_lock import gpu_lock, locked_steps
from app.state.memo import Memo
from app.state.query import Query
from app.state.visits import ComparedCheckpoints, visit
from explorer import words
from explorer.analysis.tensor import Analysis, Side
from explorer.checkpoints.diff import (
    LayerDiff,
    Opened,
    Row,
    analysis_of,
    assembled,
    compared,
    open_pair,
    ordered,
)
from explorer.checkpoints.diff_words import COLUMNS, flat, line, sentences, shown
from explorer.core.serialize import to_json
from explorer.figures.diff import depth_figure
from explorer.figures.error_map import error_map_figure
from explorer.figures.errors import error_figure
from explorer.figures.values import values_figure
from explorer.sources.models import folder_stamp

ONE = TextInput(key="one", label="Original: folder or Hub id", hint="the model in the bar", most=1000)
OTHER = TextInput(
    key="other", label="Quantized: folder, .gguf file or Hub id", hint="e.g. owner/name-AWQ", most=1000
)
ORDER = Select(
    key="order",
    label="Order of the table",
    usual="name",
    options={"name": "as in the model", "db": "lowest SQNR first", "bits": "most bits first"},
)
WEIGHT = TextInput(key="weight", label="Weight shown before and after", most=1000)
SHOWN_EVERY_S = 0.7
IN_TIME = 0.9
"""Share of a run's time limit after which it ends by itself, with what was done."""
COMPARED, LAYER = (
    ("sentence", "table", "files", "pair-depth"),
    ("layer", "pair-values", "pair-errors", "pair-map"),
)
"""Slots of the comparison, and of one of its weights."""
Layer = tuple[Tensor, Analysis, LayerDiff]
_OPENED = Memo[Opened](128 << 20)
_LAYERS = Memo[Layer](64 << 20)


def view(query: Query) -> Shown:
    """Show the comparison that the visitor has run of these two checkpoints, and one of its weights before
    and after."""
    names, kept = _names(query), visit().compared
    found, layer = dict[str, Any].fromkeys(COMPARED, ""), dict[str, Any].fromkeys(LAYER, "")
    if kept is not None and kept.names == names:
        found |= _compared(query, kept)
    if (weight := WEIGHT.of(query)) and names[0] and names[2]:
        try:
            layer |= _layer(names, weight)
        except ValueError as error:
            query.problems[WEIGHT.key] = words.plain(str(error), 300)
    return {**found, **layer}


def compare(query: Query) -> Iterator[Shown]:
    """Compare a quantized checkpoint with its original, layer by layer: what is stored, in how many bits, and
    its error. Stopping keeps what is there."""
    names = _names(query)
    for name, which in zip(names[::2], ("the original", "the quantized one"), strict=True):
        if not name:
            folders = limits.current().sources.folders
            accepted = "a folder, a .gguf file or a Hub id" if folders else "a Hub id (owner/name)"
            raise ValueError(f"name {which}: {accepted}")
    yield {"status": html.status("Reading the headers of both …")}
    opened, rows, last = _opened(names), list[Row](), 0.0
    pairs, most = opened.pairs.pairs, limits.current().elements
    end = time.monotonic() + IN_TIME * limits.current().run_seconds

    def so_far(said: str, files: bool = False) -> Shown:
        visit().compared = kept = ComparedCheckpoints(names, assembled(opened, pairs, rows))
        return {"status": html.status(said), **_compared(query, kept, files)}

    for row in locked_steps(compared(opened, pairs, most), partial(gpu_lock, OF_ANALYSIS * most)):
        rows.append(row)
        if time.monotonic() > end and len(rows) < len(pairs):
            yield so_far(f"Stopped: the time limit of a run here. {len(rows)} of {len(pairs)} weights.", True)
            return
        if time.monotonic() - last > SHOWN_EVERY_S and len(rows) < len(pairs):
            yield so_far(f"{len(rows)} of {len(pairs)} weights · now {words.plain(row.name, 200)}")
            last = time.monotonic()
    yield so_far(f"{len(rows)} weights of {opened.original.origin} and {opened.quantized.origin}.", True)


def _names(query: Query) -> tuple[str, str, str]:
    """The original and its revision, which are the bar's unless another one is named, and the quantized
    checkpoint."""
    one, other = ONE.of(query).strip(), OTHER.of(query).strip()
    model, revision = (query.get(key, "").strip() for key in ("model", "revision"))
    return (one, "", other) if one else (model, revision, other)


def _opened(names: tuple[str, str, str]) -> Opened:
    """Both checkpoints, their headers read once. ``ValueError`` for what may not be opened here."""
    (one, revision, other), bounds = names, limits.current().sources

    def opened() -> Opened:
        return open_pair(one, other, bounds, original_revision=revision or None)

    return _OPENED.get(_key(names), opened)


def _key(names: tuple[str, str, str]) -> tuple[object, ...]:
    bounds = limits.current().sources
    return (*names, *(folder_stamp(name, bounds) for name in names[::2]), bounds)


def _compared(query: Query, kept: ComparedCheckpoints, files: bool = True) -> Shown:
    """The conclusion, the table, its files and the figure along the depth."""
    found, weight = kept.found, WEIGHT.of(query)
    rows = [line(layer) for layer in ordered(shown(found.layers), ORDER.of(query))]
    return {
        "sentence": html.sentence(" ".join(sentences(found))),
        "table": html.render("diff_table", head=COLUMNS, rows=rows, chosen=weight),
        "files": html.downloads(_files(kept)) if files else "",
        "pair-depth": depth_figure(found.layers, found.quantized),
    }


def _files(kept: ComparedCheckpoints) -> tuple[Path, ...]:
    """The CSV and JSON of a comparison, written once; none while nothing is compared."""
    found = kept.found
    if found.layers and not kept.files:
        records = to_json({**vars(found), "layers": list(found.layers)})
        kept.files = write_table(f"diff {found.quantized}", list(map(flat, found.layers)), records)
    return kept.files


def _layer(names: tuple[str, str, str], weight: str) -> Shown:
    """One weight before and after, as figures of a tensor."""
    opened, most = _opened(names), limits.current().elements

    def load() -> Layer:
        with gpu_lock(OF_ANALYSIS * most):
            return analysis_of(opened, weight, most)

    x, analysis, row = _LAYERS.get((*_key(names), weight, most), load)
    side, file = Side(row.kind, analysis), f"{row.name} {opened.quantized.origin}"
    return {
        "layer": html.status(_about(row)),
        "pair-values": values_figure(analysis.before, [side], [np.empty(0)], file),
        "pair-errors": error_figure([side], file),
        "pair-map": error_map_figure(x, [side], row.max_error_at, file),
    }


def _about(row: LayerDiff) -> str:
    """One line over the figures of a layer."""
    shape = " × ".join(f"{n:,}" for n in row.shape)
    at = f"{words.number(row.max_error)} at row {row.max_error_at[0]:,}, column {row.max_error_at[1]:,}"
    steps = "" if row.max_error_steps is None else f" ({words.number(row.max_error_steps)} steps)"
    remark = f" {row.note[0].upper()}{row.note[1:]}." if row.note else ""
    error = "an exact copy" if row.equal else f"{words.number(row.sqnr_db, 4)} dB; largest error {at}{steps}"
    return f"{row.name}, {shape}: {row.kind}, {words.number(row.bits, 4)} bits per weight, {error}.{remark}"


def show_weight(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Show the weight of a point of the figure, which has its name first."""
    data = what.get("data")
    return {WEIGHT.key: data[0]} if isinstance(data, list) and data and isinstance(data[0], str) else {}


SECTION = Section(
    name="checkpoints",
    title="Two checkpoints",
    follows=("model", "revision"),
    controls=(ONE, OTHER, ORDER, WEIGHT),
    view=view,
    runs={"compare": compare},
    acts={"point": show_weight},
)
