"""Take away: the quantized tensor, its numbers, a report of the page, and the commands that make them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from app.parts import html, report_files
from app.parts.controls import MultiSelect, Select
from app.parts.report_files import KINDS
from app.parts.section import SELECTION, Section, Shown
from app.sections.ranges import RANGE
from app.state.analyses import Pairs, analysing, each
from app.state.choices import bytes_of
from app.state.files import fresh_folder
from app.state.gpu_lock import gpu_lock
from app.state.layers import LAYERS, own_layer
from app.state.query import Query
from app.state.selection import Selection, tensor_key
from app.state.visits import visit
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
TENSOR, NUMBERS = "tensor", "numbers"
FILES = MultiSelect(
    key="take",
    label="Files of A and B",
    usual=TENSOR,
    options={TENSOR: "quantized tensor", NUMBERS: "all numbers (.json)", **KINDS},
    chips=True,
)
LAYOUT = Select(
    key="layout",
    label="Layout of the tensor",
    usual=OWN,
    options={OWN: "this project's (.safetensors)"}
    | {row.name: f"{row.label} ({row.suffix})" for row in EXPORTS.values()},
)


def view(query: Query) -> Shown:
    """Show the commands that compute the page's numbers again, and the files that were made of this tensor
    and these schemes."""
    taken = visit().taken
    files = taken[1] if taken is not None and taken[0] == _key(query) else ()
    return {"commands": commands(query.record, LAYOUT.of(query)), "files": html.downloads(files)}


def _key(query: Query) -> tuple[Hashable, ...]:
    """What files are made of."""
    chosen = query.record
    return (tensor_key(chosen), chosen.schemes, query.get(FILES.key), query.get(LAYOUT.key), _range(query))


def commands(chosen: Selection, layout: str = OWN) -> str:
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


def make(query: Query) -> Iterator[Shown]:
    """Make the chosen files: the quantized tensor by each scheme, in this project's or a checkpoint's layout,
    its numbers (.json), and the report of A and B. The report holds the visitor's own range (a share of
    min-max) where it was moved, what methods left of this layer, and what was timed for the visitor."""
    yield {"files": ""}  # those before are not of what is chosen now
    chosen, kinds, layout, mine = query.record, FILES.of(query), LAYOUT.of(query), visit()

    def say(words: str) -> Shown:
        return {"status": html.status(words)}

    matrix, pairs = yield from each(analysing(chosen), say)
    folder, files, left_out = fresh_folder(), list[Path](), ""
    if reports := [kind for kind in KINDS if kind in kinds]:
        compose = _composed(chosen, matrix, _more(query, pairs))
        try:
            found = yield from each(report_files.steps_of(compose, reports, folder), say)
            files, left_out = found.paths, found.left_out
        except ValueError as refused:
            if set(kinds) <= set(KINDS):
                raise
            left_out = str(refused)
    for recipe, analysis in pairs:
        name = file_name(f"{matrix.name} {recipe}")
        if TENSOR in kinds:
            layer = analysis.layer if isinstance(analysis, RepairedAnalysis) else QuantizedLayer(analysis.q)
            files.append(_write(layer, file_name(matrix.name), layout, folder / name, str(recipe)))
        if NUMBERS in kinds:
            path = folder / f"{name}.json"
            record = {"tensor": matrix.description, "scheme": str(recipe), **to_json(analysis.report)}
            path.write_text(json.dumps(record, indent=2), encoding="utf-8")
            files.append(path)
    mine.taken = _key(query), tuple(files)
    said = f"{len(files)} file{'s' * (len(files) > 1)}. {left_out}".strip()
    yield {**say(said), "files": html.downloads(files)}


def _range(query: Query) -> float | None:
    """The visitor's own range of values, as a share of min-max, where it was moved."""
    share: float = RANGE.of(query)
    return share if share != float(RANGE.usual) else None


def _more(query: Query, pairs: Pairs) -> More:
    """Further results of the visitor's runs, in addition to the schemes: for methods, only those of this
    layer."""
    chosen, here = query.record, visit().method_results
    if here is not None and here.tensor != tensor_key(chosen):
        here = None
    methods = _whole_run(here.outcomes, here.activations) if here else None
    needed = methods is not None or any(recipe.method for recipe, _ in pairs)
    return More(
        own=_range(query),
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


def _composed(chosen: Selection, matrix: Matrix, more: More) -> Callable[[Progress], Content]:
    """What makes the report of A and B; the same scheme twice is one."""
    pairs = dict(zip(chosen.recipes, more.analyses or (), strict=True))
    source = _place(chosen) | _inputs_place(chosen)

    def compose(progress: Progress) -> Content:
        with gpu_lock(bytes_of(matrix.values, [recipe.scheme for recipe in pairs])):
            found = replace(more, analyses=tuple(pairs.values()))
            return tensor_report(matrix, list(pairs), source, found, progress)

    return compose


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


SECTION = Section(
    name="take-away",
    title="Take away",
    follows=(*SELECTION, "range"),
    controls=(FILES, LAYOUT),
    view=view,
    runs={"make": make},
)
