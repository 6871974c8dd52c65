"""The page's address: it carries the selection, the inspected element, the place and the section, so that a
link shows what its sender saw.

The address is written by ``assets/explorer.js`` in the visitor's browser and read here when the page is
opened, and when the visitor goes back or forward.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from app import limits
from app.parts.bar import SchemeView, show_scheme, show_second
from app.parts.views import Shown, shows
from app.places import NAMES
from app.sections import survey
from app.sections.speed import OF_LAYER
from app.state.controls import DEFAULT_PRODUCT, DEFAULT_RANGE, DEFAULT_SAMPLE, DEFAULT_SCHEME, SOURCES
from app.state.selection import Selection
from explorer.checkpoints import EXPORTS
from explorer.sources.samples import SAMPLES
from explorer.survey import SENSITIVITIES

_FIELDS = json.dumps([field.name for field in dataclasses.fields(Selection)])
_BITS = r"([12]?\d|3[01])(\.\d{1,4})?"
"""Of a budget in the address, below ``MOST_BITS``."""
CHANGED = f"(...values) => explorer.changed({_FIELDS}, values, true)"
"""JavaScript for a listener after a change; its inputs are the selection. Back leads to what was there
before."""
VISITED = f"(...values) => explorer.changed({_FIELDS}, values, false)"
"""``CHANGED`` for a selection that came from the address."""
ANSWERED = "(...position) => explorer.answered(...position)"
"""JavaScript for a listener that ends an answer; its inputs are the position of the inspected element."""

SPELLED = "() => explorer.began([new URLSearchParams(location.search).get('%s') || ''])"
"""JavaScript before a listener that spells a scheme: its input becomes what the address has under a key."""


@dataclass(frozen=True)
class LinkView(SchemeView):
    """What a link sets: scheme A, scheme B, the tensor, the inspected element, and what sections keep in the
    address, under their keys."""

    second_text: Shown
    second_preset: Shown
    second_format: Shown
    second_granularity: Shown
    second_rows: Shown
    second_columns: Shown
    second_mapping: Shown
    second_scale: Shown
    second_convention: Shown
    second_range: Shown
    second_codes: Shown
    second_refit: Shown
    second_stochastic: Shown
    second_seed: Shown
    source: Shown
    sample: Shown
    file_tensor: Shown
    model: Shown
    revision: Shown
    layer: Shown
    row: Shown
    column: Shown
    follow: Shown
    of_range: Shown
    of_shape: Shown
    of_m: Shown
    of_n: Shown
    of_k: Shown
    of_survey: Shown
    of_ranked: Shown
    of_budget: Shown
    of_for: Shown
    of_keep: Shown
    of_fuse: Shown


@shows(LinkView)
def read_link(request: gr.Request) -> LinkView:
    """What the page shows for a link's query; unknown or missing parts keep their defaults."""
    return _linked(dict(request.query_params), first=True)


@shows(LinkView)
def visited(query: str) -> LinkView:
    """``read_link`` for ``query``, of the address that the visitor went back or forward to."""
    return _linked(dict(parse_qsl(query.removeprefix("?"))), first=False)


def _linked(query: Mapping[str, str], first: bool) -> LinkView:
    source, sample = query.get("source", "builtin"), query.get("sample", DEFAULT_SAMPLE)
    place = query.get("tab", "tensor")
    if source == "file" and first:
        limits.notify(
            "A link cannot carry your file: drop it in again. Showing a built-in tensor until then."
        )
    for what, value, known in (
        ("source", source, SOURCES),
        ("sample", sample, SAMPLES),
        ("tab", place, NAMES),
    ):
        if value not in known:
            limits.notify(f"The link's {what} {value!r} is unknown; showing {next(iter(known))} instead.")
    for what, wrong, accepted in _nonsense(query):
        limits.notify(f"The link's {what} {wrong[:40]!r} is none, and the usual one is shown: {accepted}.")
    if query.get("survey") == survey.OWN and first:
        limits.notify(
            "A link cannot carry your survey: open its file again. Showing a recorded one until then."
        )
    second = _linked_scheme(query.get("second", ""))
    of_file = source == "file" and not first
    row, column = _whole(query.get("row")), _whole(query.get("column"))
    return LinkView(
        **vars(_linked_scheme(query.get("scheme", DEFAULT_SCHEME), DEFAULT_SCHEME)),
        **{f"second_{name}": value for name, value in vars(second).items()},
        source=source if source in ("builtin", "model") or of_file else "builtin",
        sample=sample if sample in SAMPLES else DEFAULT_SAMPLE,
        file_tensor=query.get("file_tensor") if of_file else gr.skip(),
        model=query.get("model", ""),
        revision=query.get("revision", ""),
        layer=query.get("layer"),
        row=row,
        column=column,
        follow=row is None or column is None,
        of_range=_share_of(query.get("range")) or DEFAULT_RANGE,
        of_shape=_shape(query.get("shape")),
        **{
            f"of_{key}": _whole(query.get(key)) or usual
            for key, usual in zip("mnk", DEFAULT_PRODUCT, strict=True)
        },
        **_survey_of(query),
    )


def _survey_of(query: Mapping[str, str]) -> dict[str, Any]:
    """The controls of a model's survey: the usual ones for what is missing or unknown. A survey of one's own
    stays, which no address can carry."""
    bits, which, recorded = query.get("budget", ""), query.get("survey"), list(survey.recorded())
    usual = recorded[0] if recorded else survey.OWN
    return {
        "of_survey": gr.skip() if which == survey.OWN else which if which in recorded else usual,
        "of_ranked": query.get("ranked") if query.get("ranked") in SENSITIVITIES else None,
        # The ends are those of the recipe before; ``survey.budget`` finds this one's.
        "of_budget": gr.update(
            value=float(bits) if re.fullmatch(_BITS, bits) else survey.USUAL_BITS,
            minimum=0,
            maximum=survey.MOST_BITS,
            interactive=True,
        ),
        "of_for": query.get("for") if query.get("for") in EXPORTS else survey.ANY,
        "of_keep": query.get("keep", ""),
        "of_fuse": query.get("fuse") == "true",
    }


def _nonsense(query: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """What sections keep in the address and cannot read: its key, what it holds, and what is accepted."""
    share, shape, bits = query.get("range"), query.get("shape"), query.get("budget")
    if bits and not re.fullmatch(_BITS, bits):
        yield "budget", bits, "bits a weight, such as 4.5"
    if share and _share_of(share) is None:
        yield "range", share, "a share of the largest value, 0.02 to 1"
    if shape and _shape_of(shape) is None:
        yield "shape", shape, "M×N×K such as 1x8192x8192"
    surveys = (*survey.recorded(), survey.OWN)
    for key, known in (("survey", surveys), ("ranked", SENSITIVITIES), ("for", EXPORTS)):
        if query.get(key) and query[key] not in known:
            yield key, query[key], f"one of {', '.join(known)}"
    for key in ("row", "column", "m", "n", "k"):
        if query.get(key) and _whole(query[key]) is None:
            yield key, query[key], "a whole number"


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


def _shape(text: str | None) -> Any:
    """The picker of the Speed section's shape, for a link's; it offers the others once it is seen."""
    value = _shape_of(text)
    return gr.update(choices=[value] if value else [], value=value)


def _linked_scheme(text: str, otherwise: str = "") -> SchemeView:
    try:
        return show_second(text)
    except ValueError as error:
        limits.notify(f"The link's scheme is not usable: {error}")
        return show_scheme(otherwise) if otherwise else show_second("")
