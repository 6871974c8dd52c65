"""Analyses of the selected tensor under the selected schemes: round to nearest, or a method on the layer's
own inputs."""

from __future__ import annotations

import contextvars
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar, cast

from app.serving.cores import share_of_this_request, take_share
from app.serving.sessions import current_request
from app.state.choices import bytes_of, check_cost
from app.state.gpu_lock import gpu_lock
from app.state.layers import own_layer
from app.state.memo import Memo
from app.state.places import Places
from app.state.selection import Selection, file_source, is_read, matrix_of, tensor_key
from app.state.visits import visit
from explorer import SourceError
from explorer.analysis.report import Report, sqnr_of
from explorer.analysis.sliced import analyse_anywhere
from explorer.analysis.spread import Own, own_values
from explorer.analysis.tensor import Analysis, Side
from explorer.methods import apply, label_of
from explorer.methods.evaluate import halves
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.methods.repaired import RepairedAnalysis, analyse_layer
from explorer.progress import Progress, checkpoint
from explorer.sources.tensors import Matrix

Result = TypeVar("Result")
Step = TypeVar("Step")
Said = TypeVar("Said")
Pairs = list[tuple[Recipe, Analysis]]
_ANALYSES = Memo[Analysis](256 << 20)
_LAYERS = Memo[QuantizedLayer](256 << 20)
_OUTPUTS = Memo[float](4 << 20)
_OWN = Memo[Own](8 << 20)
REPORTED_EVERY_S = 0.3
SAID_AGAIN_S = 0.5
OF_ONE, OF_ALL = 4, 16
"""Computations of one address and of all visitors in threads of their own, stopped ones to their end."""


def analyses_of(chosen: Selection, progress: Progress | None = None) -> tuple[Matrix, Pairs]:
    """The selected tensor, and what each of the one or two selected recipes does to it.

    A method calibrates on the first half of the layer's own inputs, as in the Methods section. ``progress``
    is that of a method that has not run yet. ``SourceError`` where a method is asked for and the tensor has
    no inputs.
    """
    recipes = chosen.recipes
    matrix = matrix_of(chosen)
    return matrix, [(recipe, _analysis_of(chosen, matrix, recipe, progress)) for recipe in recipes]


def analysis_of(chosen: Selection, recipe: Recipe) -> Analysis:
    """What ``recipe`` does to the selected tensor; not kept without a method, as A and B need the place."""
    matrix, known = matrix_of(chosen), _ANALYSES.peek(_key(chosen, recipe))
    if known is not None or not recipe.method:
        return known or _analyse(chosen, matrix, recipe, None)
    return _analysis_of(chosen, matrix, recipe, None)


def known_report(chosen: Selection, recipe: Recipe) -> Report | None:
    """The report of ``recipe`` on all of the selected tensor, if its analysis is at hand."""
    analysis = _ANALYSES.peek(_key(chosen, recipe))
    return None if analysis is None else analysis.report


QUICK = 1 << 20
"""Elements of a tensor that is read and quantized within a moment."""
_SMALL_BLOCK, _QUICK_SMALL = 8, 1 << 15
"""Smaller blocks take seconds where larger ones take a moment: the bound of a tensor with them."""


def at_hand(chosen: Selection) -> bool:
    """True if ``analyses_of`` takes no longer than a moment. ``SourceError`` if it has failed."""
    if (why := visit().failed.get((tensor_key(chosen), chosen.schemes))) is not None:
        raise SourceError(why)
    if all(_ANALYSES.peek(_key(chosen, recipe)) is not None for recipe in chosen.recipes):
        return is_read(chosen)
    if any(recipe.method for recipe in chosen.recipes):
        return False
    blocks = [recipe.scheme.block for recipe in chosen.recipes if recipe.scheme.scale is not None]
    small = any((rows or QUICK) * (columns or QUICK) < _SMALL_BLOCK for rows, columns in blocks)
    quick = _QUICK_SMALL if small else QUICK
    if chosen.source == "builtin" or is_read(chosen):
        values = matrix_of(chosen).values
        return values.device.type != "cpu" or values.numel() <= quick
    if chosen.source == "file":
        return file_source(chosen.file).info(chosen.file_tensor).elements <= quick
    return False


def keep_at_hand(chosen: Selection, pairs: Pairs) -> None:
    """Make what ``analyses_of`` found the newest in the caches, while the rest of what is seen is computed:
    on a crowded page others' tensors push it out."""
    matrix_of(chosen)
    for recipe, analysis in pairs:
        _ANALYSES.keep(_key(chosen, recipe), analysis)


def sides_of(pairs: Sequence[tuple[Recipe, Analysis]]) -> list[Side]:
    """The analyses as figures take them, by their recipes' labels."""
    return [Side(recipe.label, analysis) for recipe, analysis in pairs]


def analysing(chosen: Selection) -> Generator[str, None, tuple[Matrix, Pairs]]:
    """``analyses_of``, as the return value; yields in words how far the tensor's reading is, and what
    has not been computed yet. That runs in a thread of its own: it can be given up before it ends."""
    if not is_read(chosen):
        yield from reading(chosen)
    new = [r for r in chosen.recipes if _ANALYSES.peek(_key(chosen, r)) is None]
    if not new:
        return analyses_of(chosen)
    missing = [r for r in new if r.method and _LAYERS.peek(_key(chosen, r)) is None]
    if not missing:
        what = f"Quantizing to {' and '.join(recipe.label for recipe in new)}"
        return (yield from loading(what, lambda progress: analyses_of(chosen, progress)))
    label = " and ".join(label_of(recipe.method) for recipe in missing)
    steps = reported(lambda progress: analyses_of(chosen, progress))
    found = yield from each(
        steps, lambda step: f"{label} on this layer's inputs: {step[0]} of {step[1]} steps"
    )
    return found


def reading(chosen: Selection) -> Generator[str, None, Matrix]:
    """``matrix_of``, as the return value; yields in words how far it is."""
    name = chosen.file_tensor if chosen.source == "file" else chosen.layer
    what = f"Reading {name or chosen.sample}" if chosen.source != "builtin" else "Making the tensor"
    return (yield from loading(what, lambda progress: matrix_of(chosen, progress)))


def loading(
    what: str, load: Callable[[Progress], Result], room: AbstractContextManager[object] | None = None
) -> Generator[str, None, Result]:
    """Run ``load`` in a thread of its own and return its result; yield ``what``, and how far it is, if that
    takes longer than a moment: as a share where ``load`` reports one, else by the seconds. It uses
    ``room``."""
    began = time.monotonic()

    def say(step: tuple[int, int]) -> str:
        done, total = step
        if total:
            return f"{what}: {100 * done / total:.0f} %"
        seconds = time.monotonic() - began
        return f"{what} … {seconds:.0f} s" if seconds >= 1 else f"{what} …"

    return (yield from each(reported(load, silent=(0, 0), room=room), say))


def each(steps: Generator[Step, None, Result], say: Callable[[Step], Said]) -> Generator[Said, None, Result]:
    """Map ``say`` over the steps; returns the result of the steps."""
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return cast(Result, end.value)
        yield say(step)


_PLACES = Places(OF_ONE, OF_ALL)


def reported(
    compute: Callable[[Progress], Result],
    silent: tuple[int, int] | None = None,
    room: AbstractContextManager[object] | None = None,
) -> Generator[tuple[int, int], None, Result]:
    """Run ``compute`` in a thread of its own; yield (done, total) of what it reports, at most so often, and
    return its result. Closing the generator stops it at its next report; until then it holds a place, for
    which the next ones wait (``OF_ONE``), and uses ``room``.

    Between reports the last one comes again, before the first one ``silent``, if that is given: Gradio ends a
    stopped run only where it yields, and until then the page takes no click that starts the next one.
    """
    said: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
    results: list[Result] = []
    errors: list[Exception] = []
    closed, address, held = threading.Event(), current_request().address, ExitStack()

    def progress(done: int, total: int) -> None:
        if closed.is_set():
            raise InterruptedError("stopped")
        take_share()
        said.put((done, total))

    def run() -> None:
        try:
            with share_of_this_request():
                results.append(compute(progress))
        except Exception as error:  # raised again below, in the thread that waits for it
            errors.append(error)
        finally:
            held.close()
            said.put(None)

    for _ in _PLACES.taking(address):
        if silent is not None:
            yield silent
    held.callback(_PLACES.give_back, address)
    if room is not None:
        held.enter_context(room)
    try:
        # In the context of the caller: it has the check which stops the work when its visitor leaves.
        threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
    except RuntimeError:  # the system has no thread left
        held.close()
        raise
    try:
        shown = 0.0
        last = silent
        while True:
            try:
                step = said.get(timeout=SAID_AGAIN_S)
            except queue.Empty:
                checkpoint()
                if last is not None:
                    yield last
                continue
            if step is None:
                break
            last = step
            if time.monotonic() - shown > REPORTED_EVERY_S:
                yield step
                shown = time.monotonic()
    finally:
        closed.set()
    if errors:
        raise errors[0]
    return results[0]


def keep_layer(chosen: Selection, recipe: Recipe, layer: QuantizedLayer) -> None:
    """Cache the result of ``recipe`` for the selected layer, so that it is not computed again."""
    _LAYERS.keep(_key(chosen, recipe), dataclasses.replace(layer, snapshots=None))


def output_sqnr(chosen: Selection, pairs: Sequence[tuple[Recipe, Analysis]]) -> list[float]:
    """SQNR in dB of the layer's output on the half of its inputs that no method saw, by each recipe; nothing
    where no method is chosen."""
    if not any(recipe.method for recipe, _ in pairs):
        return []
    return [_output_sqnr(chosen, recipe, analysis) for recipe, analysis in pairs]


def output_of(chosen: Selection) -> float:
    """``output_sqnr`` of scheme A, with a method or without. ``SourceError`` where the tensor has no
    inputs."""
    recipe = chosen.recipes[0]
    return _OUTPUTS.get(_key(chosen, recipe), lambda: _output(chosen, analyses_of(chosen)[1][0][1]))


def known_output(chosen: Selection, recipe: Recipe) -> float | None:
    """``output_of`` the recipe, if it was computed."""
    return _OUTPUTS.peek(_key(chosen, recipe))


def _output_sqnr(chosen: Selection, recipe: Recipe, analysis: Analysis) -> float:
    return _OUTPUTS.get(_key(chosen, recipe), lambda: _output(chosen, analysis))


def _output(chosen: Selection, analysis: Analysis) -> float:
    _, w, x = own_layer(chosen)
    held = halves(x)[1]
    layer = analysis.layer if isinstance(analysis, RepairedAnalysis) else QuantizedLayer(analysis.q)
    exact = held.double() @ w.double().t()
    with gpu_lock():
        return sqnr_of(exact, layer.output(held))


def _key(chosen: Selection, recipe: Recipe) -> tuple[Hashable, ...]:
    return (*tensor_key(chosen), str(recipe))


def _analysis_of(chosen: Selection, matrix: Matrix, recipe: Recipe, progress: Progress | None) -> Analysis:
    return _ANALYSES.get(_key(chosen, recipe), lambda: _analyse(chosen, matrix, recipe, progress))


def _analyse(chosen: Selection, matrix: Matrix, recipe: Recipe, progress: Progress | None) -> Analysis:
    if not recipe.method:
        with gpu_lock(bytes_of(matrix.values, [recipe.scheme])):
            return analyse_anywhere(matrix.values, recipe.scheme, lambda: _own_values(chosen, matrix))
    layer = _LAYERS.get(_key(chosen, recipe), lambda: _repair(chosen, matrix, recipe, progress))
    with gpu_lock(bytes_of(matrix.values, [recipe.scheme])):
        return analyse_layer(matrix.values.float().to(layer.q.packed.device), layer, recipe.method)


def _own_values(chosen: Selection, matrix: Matrix) -> Own:
    """What is counted of the tensor once for all its schemes."""
    return _OWN.get(tensor_key(chosen), lambda: own_values(matrix.values))


def _repair(chosen: Selection, matrix: Matrix, recipe: Recipe, progress: Progress | None) -> QuantizedLayer:
    label = label_of(recipe.method)
    try:
        _, w, x = own_layer(chosen)
    except SourceError as error:
        raise type(error)(f"{label} needs the layer's inputs, and {error}") from error
    if tuple(w.shape) != tuple(matrix.values.shape):
        raise SourceError(
            f"{label} works on whole layers, and of this one of {w.shape[0]:,} × {w.shape[1]:,} weights only "
            f"the first {matrix.values.shape[0]:,} rows are shown here"
        )
    check_cost([recipe.method], w)
    with gpu_lock(bytes_of(w, methods=[recipe.method])):
        layer = apply(recipe.method, w, recipe.scheme, halves(x)[0], progress)
    return dataclasses.replace(layer, snapshots=None)
