"""The bar: which tensor and which one or two schemes, a panel for each, and the acts that change them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app import limits
from app.parts import html
from app.parts.section import RECORD, SELECTION, Section, Shown
from app.sections import subject
from app.serving import uploads
from app.state.controls import (
    CODES,
    COLUMNS,
    CONVENTIONS,
    GRANULARITIES,
    MAPPINGS,
    ROWS,
    SCALES,
    SOURCES,
    format_choices,
    multiplied,
    parts_of,
)
from app.state.estimates import estimated
from app.state.query import Query, texts_of
from app.state.record import (
    MOST_ACTS,
    Record,
    first_of_file,
    goal_now,
    keeping_goal,
    next_record,
    shape_of,
    without_implied_goal,
)
from app.state.selection import file_source, model_source
from explorer import CALIBRATORS, words
from explorer.methods.recipe import Recipe
from explorer.progress import checkpoint
from explorer.sources.base import TensorSource
from explorer.sources.coded import STORED
from explorer.sources.models import layers
from explorer.sources.samples import SAMPLES

MOST_OFFERED = 1000
"""Tensors in a panel's list; the name of another can be typed."""
ASIDE = frozenset(
    {"tab", "section", "__theme", "view", "utm_source", "utm_medium", "utm_campaign", "ranked", "fuse"}
)
"""Keys of an address that no section reads; the last two are of earlier versions."""
_MOST_NAMED = 3


def tensor_name(chosen: Record) -> str:
    """The tensor's name, from the record alone."""
    if chosen.source == "builtin":
        return SAMPLES[chosen.sample].label
    return (chosen.file_tensor if chosen.source == "file" else chosen.layer) or "no tensor"


def view(query: Query) -> Shown:
    """Show the chips, and hand the record's facts to the page's scripts."""
    chosen = query.record
    facts = {name: value or "" for name, value in dataclasses.asdict(chosen).items()}
    of_model = chosen.source == "model"
    chips = html.chips(tensor_name(chosen), chosen.recipes, subject.name_of(query), of_model)
    return {"chips": chips, "record": json.dumps(facts).replace("<", "\\u003c")}


def choose(query: Query, what: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what the acts under "acts" of ``what`` (``app.state.record.ACTS``) change in the address.

    A goal that cannot be is said and left out, where there are other acts: those were done before it.
    """
    held, acts = query.record, what.get("acts")
    right = isinstance(acts, list) and all(isinstance(act, dict) for act in acts)
    if not right or not 0 < len(acts) <= MOST_ACTS:  # type: ignore[arg-type]
        raise ValueError(f"acts are a list of 1 to {MOST_ACTS:,} objects")
    wanted = held
    for act in acts:  # type: ignore[union-attr]
        checkpoint()
        try:
            wanted = _after(wanted, act)
        except ValueError as error:
            if act.get("do") != "goal" or len(acts) == 1:  # type: ignore[arg-type]
                raise
            limits.notify(str(error))
    return {k: v for k, v in texts_of(_with_goal(held, wanted)).items() if v != query.get(k, "")}


def _after(held: Record, act: Mapping[str, Any]) -> Record:
    """The record after one act. A file that a sample of is shown first is not read before."""
    if act.get("do") != "file":
        return next_record(held, act, held.file)
    path = str(uploads.of_visitor(str(act.get("path") or "")))
    first = first_of_file(held, path)
    try:
        if estimated(first) is not None:
            return first
    except ValueError:  # the whole file is read, to say exactly why, or to find a tensor that can be shown
        pass
    return next_record(held, act, path)


def _with_goal(held: Record, wanted: Record) -> Record:
    """The record with a goal that its tensor can have: a size that nothing fits is taken away, and said."""
    shape = shape_of(wanted)
    if wanted.position is not None:
        row, column = (min(at, size - 1) for at, size in zip(wanted.position, shape, strict=True))
        wanted = dataclasses.replace(wanted, element=f"{row},{column}")
    try:
        goal_now(wanted, shape)
    except ValueError as error:
        limits.notify(f"{error}; the usual goal instead")
        return dataclasses.replace(wanted, goal="", shortlist="")
    return without_implied_goal(keeping_goal(held, wanted, shape))


def unknown_keys(query: Query, known: Iterable[str]) -> dict[str, str]:
    """Words for the keys of a link that no part of the page reads."""
    keys = [key for key in query if key not in ASIDE and key not in set(known)]
    if not keys:
        return {}
    named = ", ".join(f"'{words.plain(key, 40)}'" for key in keys[:_MOST_NAMED])
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    one = "key {} means nothing here and is" if len(keys) == 1 else "keys {} mean nothing here and are"
    said = f"The link's {one.format(named + more)} left out"
    return dict.fromkeys(keys, said)


def check_place(
    query: Query, sections: Mapping[str, Sequence[str]], moved: Mapping[str, tuple[str, str]]
) -> None:
    """Note a place, or a section of it, that the page does not have. ``sections``: by what a link calls a
    place; ``moved``: sections that are found whatever the place."""
    tab, section = query.one_of("tab", sections, "tensor"), query.get("section", "")
    if section and section not in moved and section not in sections[tab]:
        query.wrong("section", ", ".join(sections[tab]))


def bar(
    known: Iterable[str], sections: Mapping[str, Sequence[str]], moved: Mapping[str, tuple[str, str]]
) -> Section:
    """The bar of a page whose sections read the keys ``known``; of the others see ``check_place``."""
    every = {*known, *RECORD, *subject.KEYS}

    def shown(query: Query) -> Shown:
        query.problems |= unknown_keys(query, every)
        check_place(query, sections, moved)
        return view(query)

    return Section(
        name="bar",
        follows=(*RECORD, *subject.KEYS),
        view=shown,
        says=None,
        acts={"choose": choose},
        script="explorer.barSection",
        eager=True,
        element_id="bar-section",
    )


# --- panels -------------------------------------------------------------------------------------------------


def tensor_panel(query: Query) -> Shown:
    """Show the pickers of the tensor; only those of the chosen source are visible."""
    chosen = query.record
    model, tensors, chosen_layer = query.get("model", ""), list[tuple[str, str]](), chosen.layer or ""
    listed: list[tuple[str, str]] = []
    if chosen.file:
        tensors = _offered(file_source(chosen.file))
    if model and chosen.source == "model":
        listed = _offered(model_source(chosen.model, chosen.revision), of_model=True)
    samples = {s.name: f"{s.label}{' (synthetic)' if s.synthetic else ''}" for s in SAMPLES.values()}
    return {
        "pickers": html.render(
            "tensor_panel",
            sources=SOURCES,
            samples=samples,
            chosen=chosen,
            tensors=tensors,
            layers=listed,
            layer=chosen_layer,
            suffixes=limits.current().sources.suffixes,
        )
    }


def _offered(source: TensorSource, of_model: bool = False) -> list[tuple[str, str]]:
    """Names of tensors with their shapes and types, then the codes of restored weights; the first of very
    many. ``of_model``: those that are multiplied."""
    codes = (source.info(f"{name}{STORED}") for name in sorted(source.restored))
    infos = (*(multiplied(layers(source)) if of_model else layers(source)), *codes)
    if len(infos) > MOST_OFFERED:
        limits.notify(
            f"The first {MOST_OFFERED:,} of {len(infos):,} tensors are listed: type the name of another."
        )
    return [(i.name, f"{'×'.join(map(str, i.shape))} {i.dtype}") for i in infos[:MOST_OFFERED]]


def scheme_panel(side: str) -> Section:
    """The panel of scheme A or B, ``side`` "a" or "b": the picker of names, and the scheme's parts."""

    def shown(query: Query) -> Shown:
        text = query.record.scheme if side == "a" else query.record.second
        parts = parts_of(Recipe.parse(text or query.record.scheme).scheme)
        return {"parts": html.render("scheme_parts", parts=parts, **_PARTS), "chosen": text}

    return Section(
        name=f"panel-{side}",
        follows=("scheme", "second"),
        view=shown,
        shares={"side": side, "none": "no second scheme" if side == "b" else ""},
        script="explorer.schemePanel",
        element_id=f"panel-{side}",
        classes="drawer",
        template="scheme_panel",
    )


_PARTS = {
    "formats": {name: label for label, name in format_choices()},
    "granularities": GRANULARITIES,
    "mappings": MAPPINGS,
    "scales": SCALES,
    "conventions": CONVENTIONS,
    "codes": CODES,
    "ranges": {c.name: c.label for c in CALIBRATORS.values()},
    "columns_label": COLUMNS,
    "rows_label": ROWS,
}

TENSOR_PANEL = Section(
    name="panel-tensor",
    follows=SELECTION,
    view=tensor_panel,
    element_id="panel-tensor",
    classes="drawer",
    template="panel_tensor",
)
MODEL_PANEL = dataclasses.replace(
    subject.SECTION, name="panel-model", element_id="panel-model", classes="drawer", template="subject"
)
PANELS = (TENSOR_PANEL, MODEL_PANEL, scheme_panel("a"), scheme_panel("b"))
