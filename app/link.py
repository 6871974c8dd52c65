"""The page's address: it carries what is chosen, the place and the section, so that a link shows what its
sender saw.

The address is written by ``assets/state.js`` in the visitor's browser. It is read here when the page is
opened, and when the visitor goes back or forward: that is an act, ``visit``, as a click is one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from app import limits
from app.parts.views import Shown, View, page_words
from app.places import NAMES
from app.sections import run, sizes, speed_machines, survey
from app.sections.speed import OF_LAYER
from app.serving import opened
from app.state.controls import (
    DEFAULT_PRODUCT,
    DEFAULT_RANGE,
    DEFAULT_SAMPLE,
    DEFAULT_SCHEME,
    SOURCES,
    best_tensors,
)
from app.state.record import MOST_LISTED, SEPARATOR, Record
from app.state.selection import file_source
from explorer import words
from explorer.analysis.goals import DEFAULT, GOALS, is_goal
from explorer.checkpoints import EXPORTS
from explorer.checkpoints.inputs import INPUTS
from explorer.methods.recipe import Recipe
from explorer.sources.samples import SAMPLES

_BITS = r"([12]?\d|3[01])(\.\d{1,4})?"
"""Pattern of a budget in the URL, below ``MOST_BITS``: what a survey that is not known here may have."""
_MOST_MICROSECONDS = 1e7
_MICROSECONDS = r"\d{1,7}(\.\d{1,4})?"
"""The same of a budget of time."""
NO_FILE = "This link shows somebody's own file, which a link cannot carry: drop the file in again"
"""Said in the page as long as nothing else is chosen."""
NO_RECORDING = (
    "The link names a recording that is not open here, so the recorded machine is shown, at a shape of its "
    "own: open the file again under Speed"
)


@dataclass(frozen=True)
class Kept(View):
    """Values that sections keep in the URL, by their keys (``Page.keep``); ``target`` is kept as "for"."""

    range: Shown
    machine: Shown
    shape: Shown
    m: Shown
    n: Shown
    k: Shown
    survey: Shown
    budget: Shown
    target: Shown
    keep: Shown
    inputs: Shown
    columns: Shown
    prompt: Shown
    by: Shown
    batch: Shown


@dataclass(frozen=True)
class Visited:
    """What an address says: the record, what sections keep, what it cannot show in words, and the keys whose
    values mean nothing."""

    record: Record
    kept: Kept
    missing: str = ""
    dropped: tuple[str, ...] = ()


_ASIDE = ("__theme", "utm_source", "utm_medium", "utm_campaign", "ranked", "fuse")
"""Keys of an address that choose nothing; the last two are of earlier versions."""
_WRITTEN_ELSEWHERE = ("tab", "section", "row", "column", "list", "for", opened.KEY)
_OF_LEARN = ("format", "code", "number", "step")
"""Keys that ``assets/playground.js`` and ``assets/story.js`` read and write."""
_OF_GRADIO = ("view",)
SECTIONS = (sizes.SECTION,)
KEYS = frozenset(
    {f.name for f in (*fields(Record), *fields(Kept))} - {"element", "shortlist", "file", "target"}
    | {control.key for section in SECTIONS for control in section.controls}
    | {*_WRITTEN_ELSEWHERE, *_OF_LEARN, *_OF_GRADIO, *_ASIDE}
)
"""Every key that an address may have."""
_MOST_NAMED = 3
"""Unknown keys that are named; further ones are counted."""


def visited(
    text: str,
    held: Record,
    upload: str | None,
    first: bool,
    opened_here: speed_machines.OpenedRecordings = (),
) -> Visited:
    """Read the query ``text``; unknown or missing parts keep their defaults. ``held`` is what is shown now,
    ``upload`` the file in the page's file control, ``first`` is true for the address that opens the page,
    ``opened_here`` are the recordings that the visitor opened."""
    query, wrong = dict(parse_qsl(text.removeprefix("?"))), dict[str, str]()
    source, sample = query.get("source", "builtin"), query.get("sample", DEFAULT_SAMPLE)
    for what, value, known in (
        ("source", source, SOURCES),
        ("sample", sample, SAMPLES),
        ("tab", query.get("tab", "tensor"), NAMES),
    ):
        if value not in known:
            wrong[what] = f"The link's {what} {value[:40]!r} is unknown; showing {next(iter(known))} instead"
    if speed_machines.is_missing(query.get("machine", ""), opened_here):
        wrong["machine"] = NO_RECORDING
        if query.get("shape") and not _is_timed(query["shape"]):
            wrong["shape"] = NO_RECORDING
            del query["shape"]
    for what, value, accepted in _nonsense(query):
        said = f"The link's {what} {value[:40]!r} is not valid; using the default. Accepted: {accepted}"
        wrong[what] = said
    own = "A link cannot carry a survey of one's own: open its file again. Until then a recorded one is shown"
    missing = own if query.get("survey") == survey.OWN and first else ""
    file, refused = held.file or upload, ""
    if source == "file" and first:
        file, refused = _opened(query)
    if source == "file" and file and not first and (named := _elsewhere(query, file)):
        missing = ". ".join(filter(None, (missing, named)))
        del query["file_tensor"]
    lost = source == "file" and not file
    row, column = _whole(query.get("row")), _whole(query.get("column"))
    record = Record(
        source="builtin" if lost or source not in SOURCES else source,
        sample=sample if sample in SAMPLES else DEFAULT_SAMPLE,
        file=file,
        file_tensor=_tensor_of(query, file) if source == "file" and file else held.file_tensor,
        model=query.get("model", ""),
        revision=query.get("revision", ""),
        layer=query.get("layer"),
        scheme=_linked_scheme(query.get("scheme", DEFAULT_SCHEME), DEFAULT_SCHEME, wrong, "scheme"),
        second=_linked_scheme(
            query.get("second", "" if "scheme" in query else Record.fresh().second), "", wrong, "second"
        ),
        element="" if row is None or column is None else f"{row},{column}",
        goal=_linked_goal(query.get("goal", ""), wrong),
        shortlist=SEPARATOR.join(_linked_list(query.get("list", ""), wrong)),
    )
    if record.second and record.second == record.scheme:
        wrong["second"] = "The link has one scheme as A and as B; it is shown as A alone"
        record = dataclasses.replace(record, second="")
    kept = Kept(
        range=_share_of(query.get("range")) or DEFAULT_RANGE,
        **_machines_of(query, opened_here),
        shape=_shape(query.get("shape")),
        **{key: _whole(query.get(key)) or usual for key, usual in zip("mnk", DEFAULT_PRODUCT, strict=True)},
        **_survey_of(query),
        **_run_of(query),
    )
    unknown = [key for key in dict(parse_qsl(text.removeprefix("?"), True)) if key not in KEYS]
    told = [(refused or NO_FILE) if lost else missing, *dict.fromkeys(wrong.values()), _unknown(unknown)]
    return Visited(record, kept, ". ".join(part for part in told if part), (*wrong, *unknown))


def _unknown(keys: list[str]) -> str:
    """Words for the keys of a link that no part of the page reads; "" for none."""
    if not keys:
        return ""
    named = ", ".join(f"'{words.plain(key, 40)}'" for key in keys[:_MOST_NAMED])
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return (
        f"The link's key {named} means nothing here and is left out"
        if len(keys) == 1
        else f"The link's keys {named}{more} mean nothing here and are left out"
    )


def says_fresh(text: str) -> bool:
    """True if the query ``text`` shows what a page without a link shows: it chooses nothing, or the same."""
    query = {key: value for key, value in parse_qsl(text.removeprefix("?"), True) if key not in _ASIDE}
    fresh = Record.fresh()
    usual = {
        "tab": "tensor",
        "source": fresh.source,
        "sample": fresh.sample,
        "scheme": fresh.scheme,
        "second": fresh.second,
        "goal": GOALS[DEFAULT].name,
    }
    return query.items() <= usual.items() and ("second" in query or "scheme" not in query)


_OF_RECORD = frozenset({"tab", "source", opened.KEY, "file_tensor", "scheme", "second", "goal"})


def opens_a_file(text: str) -> Record | None:
    """The record that the query ``text`` shows, if it is of the file that the page was started on; None for
    another one, for one that opens further down, and where the page says what is wrong with it."""
    query = {key: value for key, value in parse_qsl(text.removeprefix("?"), True) if key not in _ASIDE}
    if not query.keys() <= _OF_RECORD or query.get("tab", "tensor") != "tensor":
        return None
    if _opened(query)[0] is None:
        return None
    there = visited(text, Record(), None, True)
    return None if there.missing else there.record


def _opened(query: Mapping[str, str]) -> tuple[str | None, str]:
    """The file that the page was started on, if the address names it; else None, and why."""
    try:
        file = opened.linked_file(query)
    except (ValueError, OSError) as error:
        return None, str(error)
    return str(file) if file else None, ""


def _elsewhere(query: Mapping[str, str], file: str) -> str:
    """Words where Back leads to a tensor of a file that another one has replaced; "" where it does not."""
    named = query.get("file_tensor")
    try:
        names = [info.name for info in file_source(file).infos]
    except (ValueError, OSError):  # what shows the tensor says what is wrong with its file
        return ""
    if not named or named in names:
        return ""
    return (
        f"{words.plain(named, 40)!r} is of a file that is not open any more: drop it in again. "
        f"Shown is the file that is open, {words.plain(Path(file).name, 40)}"
    )


def _tensor_of(query: Mapping[str, str], file: str) -> str | None:
    """The tensor of a file that an address names, or the one that an upload shows."""
    return query.get("file_tensor") or next(iter(best_tensors(file_source(file).infos)), None)


def _linked_goal(text: str, wrong: dict[str, str]) -> str:
    """A link's goal; "", and words in ``wrong``, for what is none."""
    if not text or is_goal(text):
        return text.strip()
    wrong["goal"] = (
        f"The link's goal {text[:40]!r} is not valid; using the usual one. Accepted: {', '.join(GOALS)}, "
        "at-most-4.25, at-most-3MB"
    )
    return ""


def _linked_list(text: str, wrong: dict[str, str]) -> list[str]:
    """A link's shortlist without what is no scheme."""
    texts = [name for name in text.split(SEPARATOR)[: 2 * MOST_LISTED] if name]
    names = [_linked_scheme(name, "", wrong, "list") for name in texts]
    return [name for name in dict.fromkeys(names) if name][:MOST_LISTED]


def _survey_of(query: Mapping[str, str]) -> dict[str, Any]:
    """The controls of a model's survey: the usual ones for what is missing or unknown. A visitor's own
    survey stays, because a URL cannot contain it."""
    bits, which, recorded = query.get("budget", ""), query.get("survey"), list(survey.recorded())
    usual = recorded[0] if recorded else survey.OWN
    inputs = query["inputs"] if query.get("inputs") in INPUTS else survey.NOT_QUANTIZED
    by, batch = survey.of_link(query)
    timed = by == survey.TIME
    usual_budget = 0 if timed else survey.USUAL_BITS  # 0: the middle
    return {
        "survey": gr.skip() if which == survey.OWN else which if which in recorded else usual,
        # The ends are those of the recipe before; ``survey.budget`` finds this one's.
        "budget": gr.update(
            value=usual_budget if not bits or _accepted_bits(query, bits) else float(bits),
            minimum=0,
            maximum=_MOST_MICROSECONDS if timed else survey.MOST_BITS,
            step=survey.STEP,
            label=survey.LABELS[by],
            interactive=True,
        ),
        "target": survey.targets_for(inputs, query.get("for", survey.USUAL_TARGET)),
        "keep": query.get("keep", ""),
        "inputs": inputs,
        "by": by,
        "batch": batch,
    }


def _machines_of(query: Mapping[str, str], opened_here: speed_machines.OpenedRecordings) -> dict[str, Any]:
    """The picker of machines: the usual one for what is missing or unknown, and for a recording that the
    visitor has not opened, or has removed."""
    view = query.get("machine", "")
    names = [name for _, name in speed_machines.choices(opened_here)]
    return {"machine": view if view in names else speed_machines.RECORDED}


def _run_of(query: Mapping[str, str]) -> dict[str, Any]:
    """The controls of a run. The prompt stays where a link has none, as it has of a long one."""
    columns, prompt = query.get("columns"), query.get("prompt", "")
    return {
        "columns": columns.split(",") if columns and _columns(columns) else list(run.USUAL_COLUMNS),
        "prompt": prompt if prompt and not _prompt_refused(prompt) else gr.skip(),
    }


def _columns(text: str) -> bool:
    return set(text.split(",")) <= run.COLUMNS.keys()


def _prompt_refused(text: str) -> str:
    """What is accepted, where a link's prompt is not; "" where it is."""
    if limits.current().hosted:
        return "none on a public page: type it in"
    return "" if len(text) <= run.MOST_LINKED else f"at most {run.MOST_LINKED} characters"


def _nonsense(query: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield invalid values of sections in the URL: the key, the value, and the accepted values."""
    share, shape, bits = query.get("range"), query.get("shape"), query.get("budget")
    if bits and (accepted := _accepted_bits(query, bits)):
        yield "budget", bits, accepted
    if share and _share_of(share) is None:
        yield "range", share, "a share of the largest value, 0.02 to 1"
    if shape and _shape_of(shape) is None:
        yield "shape", shape, "M×N×K such as 1x8192x8192"
    columns, prompt = query.get("columns"), query.get("prompt")
    if columns and not _columns(columns):
        yield "columns", columns, f"of {', '.join(run.COLUMNS)}"
    if prompt and (accepted := _prompt_refused(prompt)):
        yield "prompt", prompt, accepted
    machines = [name for _, name in speed_machines.choices()]
    if (name := query.get("machine")) and name not in machines and not speed_machines.is_opened(name):
        yield "machine", name, f"one of {', '.join(machines)}"
    surveys, targets = (*survey.recorded(), survey.OWN), (*EXPORTS, survey.ANY)
    for key, known in (("survey", surveys), ("for", targets), ("inputs", INPUTS)):
        if query.get(key) and query[key] not in known:
            yield key, query[key], f"one of {', '.join(known)}"
    if query.get("by") and query["by"] not in survey.BUDGETS:
        yield "by", query["by"], f"one of {', '.join(survey.BUDGETS)}"
    if query.get("batch") and query["batch"] not in map(str, survey.BATCHES):
        yield "batch", query["batch"], f"one of {', '.join(map(str, survey.BATCHES))}"
    for key in ("row", "column", "m", "n", "k"):
        if query.get(key) and _whole(query[key]) is None:
            yield key, query[key], "a whole number"


def _accepted_bits(query: Mapping[str, str], bits: str) -> str:
    """What a link's budget may be, if ``bits`` is something else; "" if it can be had. The ends are those of
    the link's survey with the link's constraints, of which the slider's are made."""
    timed = survey.of_link(query)[0] == survey.TIME
    number = float(bits) if re.fullmatch(_MICROSECONDS if timed else _BITS, bits) else None
    unit = "µs of all linear layers" if timed else "bits per weight"
    try:
        low, high = survey.ends_of_link(query)
    except ValueError:  # a survey of one's own, or constraints that leave nothing: the section says so
        return "" if number is not None else f"{unit}, such as {'150' if timed else '4.5'}"
    inside = number is not None and low <= number <= high
    ends = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
    return "" if inside else f"{unit}, {ends}, for the survey's budget (Model and hardware)"


def _whole(text: str | None) -> int | None:
    """A row or column of a link, None if it is not a whole number from 0."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def _share_of(text: str | None) -> float | None:
    """A link's range of the visitor's own, None if it is none."""
    number = float(text) if text and re.fullmatch(r"[01]?\.\d{1,4}|1", text) else 0.0
    return number if 0.02 <= number <= 1 else None


def _shape_of(text: str | None) -> str | None:
    """A link's shape as the Speed section's picker has it, None if it is none."""
    if text and re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8}){2}", text):
        return text.replace("x", "×")
    return text if text in OF_LAYER else None


def _is_timed(text: str | None) -> bool:
    """True for a link's shape that the machine whose recordings ship has timed."""
    return _shape_of(text) in speed_machines.shapes_of(speed_machines.shipped().rows)


def _shape(text: str | None) -> Any:
    """The picker of the Speed section's shape, for a link's; it offers the others once it is seen."""
    value = _shape_of(text)
    return gr.update(choices=[value] if value else [], value=value)


def _linked_scheme(text: str, otherwise: str, wrong: dict[str, str], key: str) -> str:
    """A link's recipe as its canonical text; ``otherwise``, and words in ``wrong`` at ``key``, for what is
    none."""
    try:
        return str(Recipe.parse(text)) if text else ""
    except ValueError as error:
        wrong[key] = f"The link's scheme is not usable: {page_words(str(error))}"
        return otherwise
