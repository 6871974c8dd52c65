"""Keys and values of a model's attention while it reads a text, as a file that opens as a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.parts import html
from app.parts.controls import IntegerInput, TextInput
from app.parts.section import Shown
from app.state.files import fresh_folder
from app.state.layers import MOST_TOKENS, TOKENS, documents
from app.state.models import runnable_model
from app.state.query import Query
from explorer import SourceError
from explorer.export.files import write_tensors
from explorer.figures.style import file_name
from explorer.survey.cache import CacheSurvey, captured_cache, labelled_cache

TEXT = TextInput(
    key="cachetext",
    label="Text",
    hint="empty: built-in texts; else one document per line",
    lines=2,
    most=60_000,
    linked=False,
)
KEPT = IntegerInput(key="cachetokens", label="Tokens to keep", usual=str(TOKENS), low=2, high=MOST_TOKENS)


def capture(query: Query) -> Iterator[Shown]:
    """Run the causal model in the bar on a text; the file has all layers' keys and values, and those of the
    middle layer are offered first."""
    where, lines, most = query.get("model", "").strip(), documents(TEXT.taken(query)), KEPT.taken(query)
    if query.get("revision", "").strip():
        raise SourceError("a model runs at its default revision here: open it without one")
    if not where:
        raise SourceError("open a causal language model in the bar")
    yield {"cached": "", "capture-status": html.status(f"Loading {where} …")}
    found = CacheSurvey(runnable_model(where, head=True), lines)
    on = f"{len(lines)} texts" if lines else "the built-in texts"
    yield {"capture-status": html.status(f"Running {found.model.name} on {on} …")}
    tensors = labelled_cache(captured_cache(found.model, found.texts, most))
    path = fresh_folder() / f"{file_name(found.model.name)}-keys-and-values.safetensors"
    write_tensors(tensors, path, {"model": found.model.name})
    rows, columns = next(iter(tensors.values())).shape
    place = {"tab": "", "section": "", "source": "file", "file": str(path), "row": "", "column": ""}
    links = [(name, {**place, "file_tensor": name}) for name in _middle_first(tensors)]
    yield {
        "capture-status": html.status(f"{len(tensors)} tensors of {rows} tokens, {columns} channels."),
        "cached": html.render("captured", links=links) + html.downloads([path]),
    }


def _middle_first(tensors: Mapping[str, object]) -> list[str]:
    """The names of the tensors, from those of the middle layer on."""
    names = list(tensors)
    keys = [name for name in names if name.startswith("keys") and not name.endswith("before rotary")]
    first = names.index(keys[len(keys) // 2])
    return names[first:] + names[:first]
