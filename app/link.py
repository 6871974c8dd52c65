"""The page's address: it carries the selection and the open tab, so that a link shows what its sender saw.

The address is written by ``assets/explorer.js`` in the visitor's browser and read here when the page is
opened.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from urllib.parse import unquote

import gradio as gr

from app import limits
from app.controls import DEFAULT_SAMPLE, DEFAULT_SCHEME, SOURCES
from app.selection import Selection
from app.sidebar import SchemeView, show_scheme
from app.tabs import TABS
from app.views import Shown, shows
from explorer.sources.samples import SAMPLES

_FIELDS = json.dumps([field.name for field in dataclasses.fields(Selection)])
WRITE_SELECTION = f"(...values) => explorer.writeSelection({_FIELDS}, values)"
"""JavaScript for a listener whose inputs are the selection."""


def write_tab(name: str) -> str:
    """JavaScript for a listener: the tab called ``name`` has been opened."""
    return f"() => explorer.writeTab({json.dumps(name)})"


@dataclass(frozen=True)
class LinkView(SchemeView):
    """What a link sets, beside the scheme."""

    source: Shown
    sample: Shown
    model: Shown
    revision: Shown
    layer: Shown
    tabs: Shown


@shows(LinkView)
def read_link(request: gr.Request) -> LinkView:
    """What the sidebar shows for a link's query; unknown or missing parts keep their defaults."""
    query = {key: unquote(value) for key, value in dict(request.query_params).items()}
    source, sample = query.get("source", "builtin"), query.get("sample", DEFAULT_SAMPLE)
    tab, names = query.get("tab", TABS[0].NAME), [tab.NAME for tab in TABS]
    if source == "file":
        limits.notify(
            f"A link cannot carry your file: choose “{SOURCES['file']}” under “Tensor from” and drop it in "
            "again. Showing a built-in tensor until then."
        )
    for what, value, known in (("source", source, SOURCES), ("sample", sample, SAMPLES), ("tab", tab, names)):
        if value not in known:
            limits.notify(f"The link's {what} {value!r} is unknown; showing {next(iter(known))} instead.")
    return LinkView(
        **vars(_linked_scheme(query.get("scheme", DEFAULT_SCHEME))),
        source=source if source in ("builtin", "model") else "builtin",
        sample=sample if sample in SAMPLES else DEFAULT_SAMPLE,
        model=query.get("model", ""),
        revision=query.get("revision", ""),
        layer=query.get("layer"),
        tabs=gr.Tabs(selected=tab if tab in names else names[0]),
    )


def _linked_scheme(text: str) -> SchemeView:
    try:
        return show_scheme(text)
    except ValueError as error:
        limits.notify(f"The link's scheme is not usable: {error}")
        return show_scheme(DEFAULT_SCHEME)
