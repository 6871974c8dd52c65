"""What is chosen on the page: one record, and ``next_record``, the only function that makes the next one.

An act is what a visitor does: {"do": name, …}. The page's script sends acts in the order in which they were
done, as JSON; ``ACTS`` says what each takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from app import limits
from app.state.analyses import analyses_of
from app.state.controls import DEFAULT_SAMPLE, DEFAULT_SCHEME, best_tensors, text_of_parts
from app.state.known import known_rows
from app.state.layers import inputs_of
from app.state.selection import (
    NO_FILE,
    NothingChosenError,
    Selection,
    file_source,
    info_of,
    is_read,
    matrix_of,
    model_source,
)
from explorer import SourceError, mark_frontier
from explorer.analysis.goals import DEFAULT, GOALS, Goal, goal_of, nearest_goal
from explorer.methods.recipe import Recipe
from explorer.sources.models import layers

MOST_ACTS = 100
MOST_LISTED = 5
"""Schemes of the shortlist."""
SEPARATOR = ","
TRIED = 8
"""Tensors of a file that are tried until one can be shown."""
GPTQ = "gptq"
CODES = ("", GPTQ)
"""How a shortlist's codes are chosen: rounded, or by GPTQ."""
Act = Mapping[str, Any]


@dataclass(frozen=True)
class Record(Selection):
    """All that is chosen: the tensor, schemes A and B, the inspected element, the goal and the shortlist.

    element: "row,column", or empty where A's largest error is followed. goal: a name of ``GOALS``, empty for
    the usual one. shortlist: recipes as texts, separated by commas; empty for the goal's own.
    """

    element: str = ""
    goal: str = ""
    shortlist: str = ""

    @classmethod
    def fresh(cls) -> Self:
        """What a page without a link shows: the first built-in tensor by A and B of the usual goal."""
        return cls(scheme=GOALS[DEFAULT].a, second=GOALS[DEFAULT].b)

    @property
    def position(self) -> tuple[int, int] | None:
        """Row and column of the inspected element; None where A's largest error is followed."""
        if not self.element:
            return None
        row, _, column = self.element.partition(",")
        return int(row), int(column)

    @property
    def listed(self) -> tuple[str, ...]:
        """The shortlist's recipes."""
        return tuple(text for text in self.shortlist.split(SEPARATOR) if text)

    @property
    def codes(self) -> str:
        """The method that chooses the codes of A, or of B, if it is GPTQ; empty for rounding."""
        return GPTQ if any(recipe.method == GPTQ for recipe in self.recipes) else ""

    def usual_list(self, goal: Goal) -> str:
        """The shortlist of ``goal``, its codes chosen as A's and B's are."""
        return SEPARATOR.join(coded(str(Recipe.parse(name)), self.codes) for name in goal.schemes)


def next_record(held: Record, act: Act, upload: str | None) -> Record:
    """The record after ``act``. ``upload``: the file in the page's file control.

    ``ValueError`` in words for the visitor, also for an act that is unknown or says too little.
    """
    name = act.get("do")
    if not isinstance(name, str) or name not in ACTS:
        raise ValueError(f"no act {str(name)[:40]!r}; accepted: {', '.join(ACTS)}")
    return ACTS[name](held, act, upload)


def _text(act: Act, key: str) -> str:
    """A text of an act, "" for null; ``ValueError`` for what is none."""
    value = act.get(key)
    if not isinstance(value, str | None):
        raise ValueError(f"{key} is a text, not {str(value)[:40]}")
    return value or ""


def _side(act: Act) -> str:
    """The field of the record that ``side`` names: "a" or "b"."""
    sides = {"a": "scheme", "b": "second"}
    side = act.get("side", "a")
    if side not in ("a", "b"):
        raise ValueError(f"side is a or b, not {str(side)[:40]!r}")
    return sides[side]


def _with_scheme(held: Record, field: str, text: str) -> Record:
    """The record with the recipe of ``text``, as its canonical text; B may be none."""
    if not text and field == "scheme":
        raise ValueError("choose a scheme")
    recipe = str(Recipe.parse(text)) if text else ""
    return listing(dataclasses.replace(held, **{field: recipe}))


def listing(held: Record) -> Record:
    """The record with A and B in its shortlist: they take the places of the last that are neither."""
    if not held.shortlist:
        return held
    own = [text for text in held.schemes if text]
    names = list(held.listed)
    for text in own:
        if text in names:
            continue
        others = [name for name in names if name not in own]
        if len(names) >= MOST_LISTED and others:
            names[names.index(others[-1])] = text
        else:
            names.append(text)
    return dataclasses.replace(held, shortlist=SEPARATOR.join(names[:MOST_LISTED]))


def _scheme(held: Record, act: Act, upload: str | None) -> Record:
    return _with_scheme(held, _side(act), _text(act, "text").strip())


def _parts(held: Record, act: Act, upload: str | None) -> Record:
    values = act.get("parts")
    if not isinstance(values, list):
        raise ValueError("parts are a list of the controls' values")
    return _with_scheme(held, _side(act), text_of_parts(values))


def _swap(held: Record, act: Act, upload: str | None) -> Record:
    if not held.second:
        return held
    return dataclasses.replace(held, scheme=held.second, second=held.scheme)


def _clear(held: Record, act: Act, upload: str | None) -> Record:
    return dataclasses.replace(held, second="")


def _step(held: Record, act: Act, upload: str | None) -> Record:
    """The next or the previous scheme in ``walk``, in a circle, without the other side's; from a scheme that
    is not there the first one."""
    field, by = _side(act), 1 if act.get("do") == "next" else -1
    text, other = getattr(held, field), held.second if field == "scheme" else held.scheme
    names = [name for name in walk(held) if name != other]
    at = names.index(text) + by if text in names else 0
    return _with_scheme(held, field, names[at % len(names)]) if names else held


def walk(held: Record) -> list[str]:
    """Recipes in the order of ``]``: the shortlist, then the frontier of the schemes that are known of the
    tensor and that the goal takes, from the fewest bits on."""
    goal = goal_now(held, shape_of(held))
    rows = [row for row in known_rows(held).values() if goal.takes(row.scheme)]
    rows = sorted(
        (row for row in mark_frontier(rows) if row.on_frontier), key=lambda row: row.report.bits.total
    )
    frontier, usual = [coded(row.text, held.codes) for row in rows], held.usual_list(goal).split(SEPARATOR)
    # A scheme of the frontier takes a place in the shortlist once it is chosen; the walk goes on from it.
    first = [text for text in held.listed or usual if text in usual or text not in frontier]
    return list(dict.fromkeys([*first, *frontier]))


def _sample(held: Record, act: Act, upload: str | None) -> Record:
    return dataclasses.replace(held, source="builtin", sample=_text(act, "name") or DEFAULT_SAMPLE)


def _file(held: Record, act: Act, upload: str | None) -> Record:
    """The uploaded file, with the first of its tensors that can be shown, weight matrices first."""
    if not upload:
        raise NothingChosenError(NO_FILE)
    names = best_tensors(file_source(upload).infos)
    refused: ValueError | None = None
    plain = Recipe.parse(held.scheme).scheme
    for name in names[:TRIED]:
        wanted = dataclasses.replace(held, source="file", file=upload, file_tensor=name)
        try:
            matrix_of(wanted)
        except ValueError as error:
            refused = refused or error
            continue
        try:
            # Values that are not finite are refused only when scales are computed from them.
            analyses_of(dataclasses.replace(wanted, scheme=str(plain), second=""))
            return wanted
        except ValueError as error:
            why = f"scheme A ({plain.label}) cannot be computed: {error}"
            refused = refused or of_file(upload, why, name if len(names) > 1 else None)
    raise refused or SourceError("the file has no tensors")


def first_of_file(held: Record, upload: str) -> Record:
    """The record of an uploaded file that is tried first: its best tensor by name and shape. ``ValueError``
    where the file cannot be opened."""
    name = next(iter(best_tensors(file_source(upload).infos)), None)
    return dataclasses.replace(held, source="file", file=upload, file_tensor=name)


class FileRefusedError(SourceError):
    """A file that is not opened: the page says so at the place of the file and in the line over the page."""


def of_file(upload: str, words: str, tensor: str | None = None) -> SourceError:
    """The refusal of a file, by its name, or of one ``tensor`` of several in it."""
    name = Path(upload).name
    return SourceError(f"{name}, {tensor}: {words}" if tensor else f"{name}: {words}")


def _tensor(held: Record, act: Act, upload: str | None) -> Record:
    """Another tensor of the uploaded file."""
    if not upload:
        raise NothingChosenError(NO_FILE)
    return dataclasses.replace(held, source="file", file=upload, file_tensor=_text(act, "name") or None)


def _model(held: Record, act: Act, upload: str | None) -> Record:
    """A model, with the first of its layers that is a weight matrix and no embedding."""
    model, revision = _text(act, "model"), _text(act, "revision")
    names = best_tensors(layers(model_source(model, revision)))
    if not names:
        raise SourceError(f"{model} has no tensors")
    return dataclasses.replace(held, source="model", model=model, revision=revision, layer=names[0])


def _layer(held: Record, act: Act, upload: str | None) -> Record:
    """A layer of a model."""
    model, revision, layer = (_text(act, key) for key in ("model", "revision", "layer"))
    if not layer:
        raise NothingChosenError("choose a layer of the model")
    return dataclasses.replace(held, source="model", model=model, revision=revision, layer=layer)


def _codes(held: Record, act: Act, upload: str | None) -> Record:
    """The shortlist, with A and B, by codes that GPTQ chooses, or by rounding."""
    codes = _text(act, "codes")
    if codes not in CODES:
        raise ValueError(f"codes are rounded ('') or chosen by 'gptq', not {codes[:40]!r}")
    if codes:
        inputs_of(held)
    a, b, *names = (coded(text, codes) for text in (held.scheme, held.second, *held.listed))
    listed = SEPARATOR.join(dict.fromkeys(names))
    return listing(dataclasses.replace(held, scheme=a, second=b, shortlist=listed))


def coded(text: str, codes: str) -> str:
    """The recipe ``text`` by codes that are rounded, or chosen by GPTQ if that can: it needs rows, or groups
    along them. Recipes of other methods are returned as they are."""
    recipe = Recipe.parse(text) if text else None
    if recipe is None or recipe.method not in CODES:
        return text
    scheme = recipe.scheme
    fits = scheme.scale is not None and scheme.block[0] == 1
    return str(Recipe(scheme, codes if fits else ""))


def _goal(held: Record, act: Act, upload: str | None) -> Record:
    """What the tensor has to be good enough for; the shortlist becomes that goal's, and so do A and B, unless
    the visitor has chosen others than those of the goal before."""
    shape = shape_of(held)
    before, after, codes = goal_now(held, shape), goal_of(_text(act, "name") or DEFAULT, shape), held.codes
    held = dataclasses.replace(held, goal=after.name, shortlist="")
    if {coded(text, "") for text in held.schemes} <= {before.a, before.b, DEFAULT_SCHEME}:
        return dataclasses.replace(held, scheme=coded(after.a, codes), second=coded(after.b, codes))
    return held


def listed(held: Record, goal: Goal) -> tuple[str, ...]:
    """The texts of the table's rows: the record's list, or the goal's, with A and B in it."""
    return listing(dataclasses.replace(held, shortlist=held.shortlist or held.usual_list(goal))).listed


def shape_of(held: Record) -> tuple[int, int]:
    """Rows and columns of the record's tensor, from its file's header where it was not read yet."""
    if not is_read(held) and (info := info_of(held)) is not None:
        rows, columns = info.within(limits.current().most_of(info)).matrix_shape
        return max(rows, 1), columns
    rows, columns = matrix_of(held).values.shape
    return rows, columns


def goal_now(held: Record, shape: tuple[int, int]) -> Goal:
    """The goal of a record whose tensor has ``shape``; where it names none, the one nearest to A."""
    return goal_of(held.goal, shape) if held.goal else nearest_goal(held.recipes[0].scheme, shape)


def keeping_goal(held: Record, wanted: Record, shape: tuple[int, int]) -> Record:
    """``wanted``, whose tensor has ``shape``, with the goal of ``held`` where none was chosen, and A alone
    would make it another one."""
    before, after = (nearest_goal(one.recipes[0].scheme, shape) for one in (held, wanted))
    if wanted.goal or before.name == after.name:
        return wanted
    return dataclasses.replace(wanted, goal=before.name)


def without_implied_goal(wanted: Record) -> Record:
    """The record without the name of a goal that A alone means: the address has nothing to say then."""
    implied = (
        wanted.goal in GOALS and nearest_goal(wanted.recipes[0].scheme, shape_of(wanted)).name == wanted.goal
    )
    return dataclasses.replace(wanted, goal="") if implied else wanted


def _list(held: Record, act: Act, upload: str | None) -> Record:
    """Another shortlist: at most ``MOST_LISTED`` recipes."""
    texts = act.get("texts")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a shortlist is a list of schemes' texts")
    names = list(dict.fromkeys(str(Recipe.parse(text)) for text in texts))
    if len(names) > MOST_LISTED:
        raise ValueError(f"a shortlist has at most {MOST_LISTED} schemes: take one out first")
    return dataclasses.replace(held, shortlist=SEPARATOR.join(names))


ACTS: Mapping[str, Callable[[Record, Act, str | None], Record]] = {
    "scheme": _scheme,
    "parts": _parts,
    "swap": _swap,
    "clear": _clear,
    "next": _step,
    "previous": _step,
    "sample": _sample,
    "file": _file,
    "tensor": _tensor,
    "model": _model,
    "layer": _layer,
    "codes": _codes,
    "goal": _goal,
    "list": _list,
}
"""By what an act may ``do``: what becomes of the record."""
