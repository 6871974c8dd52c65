"""Downloads: the quantized tensor, the numbers, and the command that reproduces them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from app.parts import html, report_files
from app.parts.page import Page
from app.parts.report_files import KINDS
from app.parts.views import Shown, StatusView, listen, shows
from app.parts.widgets import LATEST, PRIVATE, QUIET, RunButtons, block, hidden, stop_button
from app.state.analyses import Pairs, analysing, each
from app.state.controls import DEFAULT_RANGE
from app.state.files import fresh_folder
from app.state.gpu_lock import gpu_lock
from app.state.layers import LAYERS, own_layer
from app.state.selection import Selection, tensor_key
from app.state.visits import Owner, visit
from explorer.checkpoints import EXPORTS, write_one
from explorer.core.serialize import to_json
from explorer.figures.style import file_name
from explorer.methods.evaluate import Outcome
from explorer.methods.files import save_layer
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.methods.repaired import RepairedAnalysis
from explorer.progress import Progress
from explorer.reports import Content, tensor_report
from explorer.reports.tensor import Methods, More
from explorer.sources.tensors import Matrix

OWN = "own"
"""The layout of this project's files: codes, scales, and further tensors of a method."""


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
    lines = [_command(chosen, words, recipe, layout) for recipe in chosen.recipes]
    schemes = ",".join(dict.fromkeys(map(str, chosen.recipes)))
    inputs = f" --inputs {_inputs(chosen)}" if any(recipe.method for recipe in chosen.recipes) else ""
    return html.commands([*lines, f"explorer report {words} --schemes {shlex.quote(schemes)}{inputs}"])


def _place(chosen: Selection) -> dict[str, str | None]:
    """Location of the tensor, as file and options of the command line; a placeholder for an uploaded file."""
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
    """``_inputs_place`` as the command line takes it, after ``--inputs``."""
    place = _inputs_place(chosen)
    tensor = place["inputs_tensor"]
    return f"{place['inputs']}" + (f" --inputs-tensor {shlex.quote(tensor)}" if tensor else "")


def _inputs_place(chosen: Selection) -> dict[str, str | None]:
    """Location of the layer's inputs for the command; those of a model have to be captured first."""
    place, tensor = "YOUR_INPUTS", None
    if chosen.source == "builtin" and chosen.sample in LAYERS:
        place = f"sample:{LAYERS[chosen.sample][1]}"
    elif chosen.source == "file":
        place = "YOUR_FILE"
        tensor = (chosen.file_tensor or "weight").removesuffix("weight") + "activations"
    return {"inputs": place, "inputs_tensor": tensor}


@shows(FilesView)
def make(
    chosen: Selection,
    kinds: Sequence[str],
    layout: str = OWN,
    own: float | None = None,
    method_results: Owner | None = None,
) -> Iterator[FilesView]:
    """The quantized tensor by each scheme, in this project's or a checkpoint's ``layout``, its numbers
    (.json), and the report of A and B, as files to download. The report holds the visitor's ``own`` range (a
    share of min-max) where it was moved, what methods left of this layer, and what was timed for the
    visitor."""
    if not kinds:
        raise ValueError("choose at least one kind of file")
    matrix, pairs = yield from each(analysing(chosen), _status)
    folder, files = fresh_folder(), list[str]()
    left_out = ""
    reports = [kind for kind in KINDS if kind in kinds]
    if reports:
        more = _more(chosen, pairs, own, method_results)
        written = report_files.steps_of(lambda step: _report(chosen, matrix, more, step), reports, folder)
        try:
            found = yield from each(written, _status)
            files, left_out = [*found.paths], found.left_out
        except ValueError as refused:
            if set(kinds) <= set(KINDS):
                raise
            left_out = str(refused)
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
    yield FilesView(
        status=html.status(f"{len(files)} file{'s' * (len(files) > 1)}. {left_out}".strip()),
        files=gr.update(value=files, visible=True),
    )


def _status(words: str) -> FilesView:
    return FilesView.unchanged(status=html.status(words))


def _more(chosen: Selection, pairs: Pairs, own: float | None, method_results: Owner | None) -> More:
    """Further results of the visitor's runs, in addition to the schemes: for methods, only those of this
    layer."""
    here = method_results if method_results and method_results.tensor == tensor_key(chosen) else None
    methods = _whole_run(here.outcomes, here.activations) if here else None
    needed = methods is not None or any(recipe.method for recipe, _ in pairs)
    return More(
        own=own if own is not None and own != DEFAULT_RANGE else None,
        inputs=own_layer(chosen)[2] if needed else None,
        methods=methods,
        timings=visit().gemm_timings,
        analyses=tuple(analysis for _, analysis in pairs),
    )


def _whole_run(outcomes: Sequence[Outcome], activations: str) -> Methods | None:
    """Results as the command makes them, every method under every scheme: of a run that was stopped the
    schemes that are done, or of the first one the methods."""
    schemes = list(dict.fromkeys(o.scheme for o in outcomes))
    names = list(dict.fromkeys(o.method for o in outcomes))
    whole = [s for s in schemes if sum(o.scheme == s for o in outcomes) == len(names)]
    kept = tuple(o for o in outcomes if o.scheme in whole)
    return Methods(tuple(names), tuple(whole), activations, kept) if kept else None


def _report(chosen: Selection, matrix: Matrix, more: More, progress: Progress) -> Content:
    """The report of A and B; the same scheme twice is one."""
    recipes, analyses = [], []
    for recipe, analysis in zip(chosen.recipes, more.analyses or (), strict=True):
        if recipe not in recipes:
            recipes.append(recipe)
            analyses.append(analysis)
    source = _place(chosen) | _inputs_place(chosen)
    with gpu_lock():
        return tensor_report(matrix, recipes, source, replace(more, analyses=tuple(analyses)), progress)


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
        choices = [("quantized tensor", "tensor"), ("all numbers (.json)", "report")]
        choices += [(label, kind) for kind, label in KINDS.items()]
        kinds = gr.CheckboxGroup(choices, value=["tensor"], label="Files of A and B", elem_id="take-kinds")
        layouts = [("this project's (.safetensors)", OWN)]
        layouts += [(f"{row.label} ({row.suffix})", row.name) for row in EXPORTS.values()]
        layout = gr.Dropdown(layouts, value=OWN, label="Layout of the tensor", elem_id="take-layout")
        start = gr.Button("Make the files", variant="primary", min_width=140, elem_id="take")
        stop = stop_button()
    inputs = [*page.selection, layout]
    unlisted: dict[str, Any] = {**LATEST, "api_visibility": "undocumented"}
    # At once, not when the section is on the screen: commands of another scheme would stand there meanwhile.
    chosen_anew: Any = hidden("explorer.onChosen(() => trigger('chosen'))")
    listen(chosen_anew.chosen, command, inputs, commands, api_name="command", **LATEST)
    listen(layout.input, command, inputs, commands, api_name="command_layout", **unlisted)
    stopped = block(elem_id="take-stopped")
    status = block(elem_id="take-status")
    files = gr.Files(visible=False, interactive=False, label="Your files", elem_id="take-files")
    buttons = RunButtons((start,), stop, stopped)
    buttons.begin_on(start.click)
    # The files before are not those of what is chosen now.
    start.click(lambda: ["", gr.update(visible=False)], None, [status, files], queue=False, **PRIVATE)
    running = listen(
        start.click,
        make,
        [*page.selection, kinds, layout, page.kept["range"], page.method_results],
        FilesView(status=status, files=files),
        api_name="take",
        concurrency_id="report",
        **QUIET,
    )
    halted = buttons.end_with(running, message="Stopped: no files were made.")
    halted.then(lambda: "", None, status, **PRIVATE)
