"""The page's address: it carries the selection, the inspected element, the place and the section, so that a
link shows what its sender saw.

The address is written by ``assets/explorer.js`` in the visitor's browser and read here when the page is
opened, and when the visitor goes back or forward.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from app import limits
from app.parts.page import JS_VISITED, Page
from app.parts.scheme_controls import SchemeView, show_scheme, show_second
from app.parts.views import Shown, View, listen, shows
from app.parts.widgets import LATEST, PRIVATE, hidden
from app.places import NAMES
from app.sections import survey
from app.sections.speed import OF_LAYER
from app.state.controls import DEFAULT_PRODUCT, DEFAULT_RANGE, DEFAULT_SAMPLE, DEFAULT_SCHEME, SOURCES
from explorer.checkpoints import EXPORTS
from explorer.sources.samples import SAMPLES
from explorer.survey import SENSITIVITIES

_BITS = r"([12]?\d|3[01])(\.\d{1,4})?"
"""Pattern of a budget in the URL, below ``MOST_BITS``."""


@dataclass(frozen=True)
class TensorChoice(View):
    """Tensor named by a link; a link cannot contain a visitor's uploaded file."""

    source: Shown
    sample: Shown
    file_tensor: Shown
    model: Shown
    revision: Shown
    layer: Shown


@dataclass(frozen=True)
class Position(View):
    """The inspected element: its row and column, or that the largest error is followed instead."""

    row: Shown
    column: Shown
    follow: Shown


@dataclass(frozen=True)
class Kept(View):
    """Values that sections keep in the URL, by their keys (``Page.keep``); ``target`` is kept as "for"."""

    range: Shown
    shape: Shown
    m: Shown
    n: Shown
    k: Shown
    survey: Shown
    ranked: Shown
    budget: Shown
    target: Shown
    keep: Shown
    fuse: Shown


@dataclass(frozen=True)
class LinkView(View):
    """Values set by a link: the tensor, scheme A, scheme B, the inspected element, and values that
    sections keep in the URL."""

    tensor: TensorChoice
    scheme: SchemeView
    second: SchemeView
    position: Position
    kept: Kept


@shows(LinkView)
def read_link(request: gr.Request) -> LinkView:
    """Read a link's query into a view; unknown or missing parts keep their defaults."""
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
        limits.notify(
            f"The link's {what} {wrong[:40]!r} is not valid; using the default. Accepted: {accepted}."
        )
    if query.get("survey") == survey.OWN and first:
        limits.notify(
            "A link cannot carry your survey: open its file again. Showing a recorded one until then."
        )
    of_file = source == "file" and not first
    row, column = _whole(query.get("row")), _whole(query.get("column"))
    return LinkView(
        tensor=TensorChoice(
            source=source if source in ("builtin", "model") or of_file else "builtin",
            sample=sample if sample in SAMPLES else DEFAULT_SAMPLE,
            file_tensor=query.get("file_tensor") if of_file else gr.skip(),
            model=query.get("model", ""),
            revision=query.get("revision", ""),
            layer=query.get("layer"),
        ),
        scheme=_linked_scheme(query.get("scheme", DEFAULT_SCHEME), DEFAULT_SCHEME),
        second=_linked_scheme(query.get("second", "")),
        position=Position(row=row, column=column, follow=row is None or column is None),
        kept=Kept(
            range=_share_of(query.get("range")) or DEFAULT_RANGE,
            shape=_shape(query.get("shape")),
            **{
                key: _whole(query.get(key)) or usual
                for key, usual in zip("mnk", DEFAULT_PRODUCT, strict=True)
            },
            **_survey_of(query),
        ),
    )


def _survey_of(query: Mapping[str, str]) -> dict[str, Any]:
    """The controls of a model's survey: the usual ones for what is missing or unknown. A visitor's own
    survey stays, because a URL cannot contain it."""
    bits, which, recorded = query.get("budget", ""), query.get("survey"), list(survey.recorded())
    usual = recorded[0] if recorded else survey.OWN
    return {
        "survey": gr.skip() if which == survey.OWN else which if which in recorded else usual,
        "ranked": query.get("ranked") if query.get("ranked") in SENSITIVITIES else None,
        # The ends are those of the recipe before; ``survey.budget`` finds this one's.
        "budget": gr.update(
            value=float(bits) if re.fullmatch(_BITS, bits) else survey.USUAL_BITS,
            minimum=0,
            maximum=survey.MOST_BITS,
            interactive=True,
        ),
        "target": query.get("for") if query.get("for") in EXPORTS else survey.ANY,
        "keep": query.get("keep", ""),
        "fuse": query.get("fuse") == "true",
    }


def _nonsense(query: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield invalid values of sections in the URL: the key, the value, and the accepted values."""
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


def wire_link(blocks: gr.Blocks, page: Page) -> None:
    """Read the address when the page is opened and when the visitor goes back, and keep it up to date."""
    tensor = page.bar.tensor
    chosen = TensorChoice(**{f.name: getattr(tensor, f.name) for f in dataclasses.fields(TensorChoice)})
    kept = Kept(**{"target" if key == "for" else key: control for key, control in page.kept.items()})
    outputs = LinkView(chosen, page.bar.scheme, page.bar.second, Position(*page.position), kept)
    linked = listen(blocks.load, read_link, None, outputs, **PRIVATE)
    started = linked.then(None, None, None, js="() => explorer.start()", **PRIVATE)
    page.into_address(started, JS_VISITED)
    history: Any = hidden("explorer.onVisit(() => trigger('visit'))")
    query = gr.Textbox(visible=False, label="address")
    again = listen(history.visit, visited, query, outputs, js="() => [location.search]", **LATEST | PRIVATE)
    page.into_address(again, JS_VISITED)
