"""What a visitor takes along: the quantized tensor, the numbers, and the command that computes them again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from app import html
from app.analyses import analyses_of
from app.files import fresh_folder
from app.page import Page
from app.sections.layer_inputs import LAYERS
from app.selection import Selection
from app.views import Shown, StatusView, listen, shows
from app.widgets import LATEST, QUIET, block
from explorer.checkpoints import EXPORTS, write_one
from explorer.core.serialize import to_json
from explorer.figures.style import file_name
from explorer.methods.files import save_layer
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.methods.repaired import RepairedAnalysis
from explorer.reports import as_html
from explorer.reports import build as build_report
from explorer.sources.tensors import Matrix

OWN = "own"
"""The layout of this project's files: codes, scales, and what a method stores beside them."""


@dataclass(frozen=True)
class FilesView(StatusView):
    """The finished files, and a line about them."""

    files: Shown


@shows(told=True)
def command(chosen: Selection, layout: str = OWN) -> str:
    """The commands that compute the page's numbers again, and write the tensor in a checkpoint's
    ``layout``."""
    place = _place(chosen)
    parts = [str(place.pop("file"))]
    for option, value in place.items():
        parts += [f"--{option}", value] if value else []
    words = shlex.join(parts)
    return html.commands([_command(chosen, words, recipe, layout) for recipe in chosen.recipes])


def _place(chosen: Selection) -> dict[str, str | None]:
    """Where the tensor lies, as the command line's file and options; a visitor's own file by a name to
    replace."""
    where = {"builtin": f"sample:{chosen.sample}", "model": chosen.model}
    return {
        "file": where.get(chosen.source, "YOUR_FILE"),
        "tensor": {"model": chosen.layer, "file": chosen.file_tensor}.get(chosen.source),
        "revision": chosen.revision if chosen.source == "model" else None,
    }


def _command(chosen: Selection, place: str, recipe: Recipe, layout: str) -> str:
    scheme = shlex.quote(str(recipe.scheme))
    if not recipe.method:
        written = "" if layout == OWN else f" --layout {layout} --out Q{EXPORTS[layout].suffix}"
        return f"explorer quantize {place} --scheme {scheme}{written}"
    wanted = f"--inputs {_inputs(chosen)} --schemes {scheme} --methods {recipe.method}"
    return f"explorer methods {place} {wanted} --out Q.safetensors"


def _inputs(chosen: Selection) -> str:
    """Where the command finds the layer's inputs; those of a model have to be captured first."""
    if chosen.source == "builtin":
        return f"sample:{LAYERS[chosen.sample][1]}" if chosen.sample in LAYERS else "YOUR_INPUTS"
    if chosen.source == "file":
        name = (chosen.file_tensor or "weight").removesuffix("weight") + "activations"
        return f"YOUR_FILE --inputs-tensor {shlex.quote(name)}"
    return "YOUR_INPUTS"


@shows(FilesView)
def make(chosen: Selection, kinds: Sequence[str], layout: str = OWN) -> FilesView:
    """The quantized tensor by each scheme, in this project's or a checkpoint's ``layout``, and the report
    (.json), as files to download."""
    if not kinds:
        raise ValueError("choose at least one kind of file")
    matrix, pairs = analyses_of(chosen)
    folder, files = fresh_folder(), list[str]()
    left_out = ""
    if "page" in kinds:
        try:
            files.append(str(_report(chosen, matrix, folder)))
        except ValueError as refused:
            if list(kinds) == ["page"]:
                raise
            left_out = f" No report: {refused}."
    for recipe, analysis in pairs:
        name = file_name(f"{matrix.name} {recipe}")
        if "tensor" in kinds:
            layer = analysis.layer if isinstance(analysis, RepairedAnalysis) else QuantizedLayer(analysis.q)
            files.append(str(_write(layer, file_name(matrix.name), layout, folder / name, str(recipe))))
        if "report" in kinds:
            path = folder / f"{name}.json"
            record = {"tensor": matrix.description, "scheme": str(recipe), **to_json(analysis.report)}
            path.write_text(json.dumps(record, indent=2), encoding="utf-8")
            files.append(str(path))
    return FilesView(
        status=html.status(f"{len(files)} file{'s' * (len(files) > 1)}.{left_out}"),
        files=gr.update(value=files, visible=True),
    )


def _report(chosen: Selection, matrix: Matrix, folder: Path) -> Path:
    """The report of A and B as one HTML file; ``ValueError`` for results of methods, which it does not
    hold."""
    repaired = [recipe.label for recipe in chosen.recipes if recipe.method]
    if repaired:
        raise ValueError(f"a report holds schemes rounded to nearest, and {repaired[0]} is a method's result")
    schemes = list(dict.fromkeys(recipe.scheme for recipe in chosen.recipes))
    names = " ".join(map(str, schemes))
    path = folder / f"{file_name(f'{matrix.name} {names}')} report.html"
    path.write_text(as_html(build_report(matrix, schemes, _place(chosen))), encoding="utf-8")
    return path


def _write(layer: QuantizedLayer, tensor: str, layout: str, path: Path, recipe: str) -> Path:
    """One file at ``path`` plus the layout's suffix; ``ValueError`` where the layout can't carry this."""
    if layout == OWN:
        path = path.with_name(f"{path.name}.safetensors")
        save_layer(layer, path, tensor)
        return path
    if not layer.plain:
        raise ValueError(
            f"{recipe} stores more than codes and scales, which only this project's layout carries; "
            "choose it, or a method that chooses codes alone"
        )
    whole = path.with_name(f"{path.name} {layout}{EXPORTS[layout].suffix}")
    return write_one(layout, layer.q, whole, f"{tensor}.weight")


def build(page: Page) -> None:
    """Lay the section out: the command follows the selection, files are made when asked for."""
    commands = block(elem_id="commands")
    with gr.Row(elem_classes="tight stacked"):
        kinds = gr.CheckboxGroup(
            [("quantized tensor", "tensor"), ("all numbers (.json)", "report"), ("report (.html)", "page")],
            value=["tensor"],
            label="Files of A and B",
            elem_id="take-kinds",
        )
        layouts = [("this project's (.safetensors)", OWN)]
        layouts += [(f"{row.label} ({row.suffix})", row.name) for row in EXPORTS.values()]
        layout = gr.Dropdown(layouts, value=OWN, label="Layout of the tensor", elem_id="take-layout")
        start = gr.Button("Make the files", variant="primary", min_width=140, elem_id="take")
    page.follow(command, [layout], commands, api_name="command")
    inputs = [*page.selection, layout]
    unlisted: dict[str, Any] = {**LATEST, "api_visibility": "undocumented"}
    listen(layout.input, command, inputs, commands, api_name="command_layout", **unlisted)
    status = block(elem_id="take-status")
    files = gr.Files(visible=False, interactive=False, label="Your files", elem_id="take-files")
    listen(
        start.click,
        make,
        [*page.selection, kinds, layout],
        FilesView(status=status, files=files),
        api_name="take",
        **QUIET,
    )
