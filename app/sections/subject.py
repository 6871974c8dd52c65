"""The model that the place is about: opened once, kept in the address, and taken from there by sections.

``model`` and ``revision`` name its weights (a folder, a Hub id or a .gguf file), ``survey`` what is known of
its layers: a recorded survey, or ``OWN`` with the path of an uploaded file at ``surveyfile``, which no
address holds. Without a survey's name the visitor's own of these weights is taken, or a recorded one of
the same weights. Without a model the survey's own is meant; without both, the first recorded survey.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from app import limits
from app.parts import html
from app.parts.refusals import words_of
from app.parts.section import Section, Shown
from app.serving import uploads
from app.state.memo import Memo
from app.state.query import Query
from app.state.selection import model_source, opened_once
from explorer import SourceError, words
from explorer.analysis.cache import CacheShape
from explorer.analysis.memory import StoredModel
from explorer.models.files import Role, itemsize, role_of, weights_sha256
from explorer.sources.base import TensorSource
from explorer.sources.models import folder_stamp
from explorer.sources.stamped import stamp_of
from explorer.survey import SURVEYS, Survey, load_survey
from explorer.survey.budget import check_complete

KEYS = ("model", "revision", "survey", "surveyfile")
"""Keys of the record that choose the model."""
OWN = "own"
"""The value of ``survey`` for the visitor's own file."""
NO_OWN = "A link cannot carry a survey of one's own: open its file again. Until then a recorded one is shown"
ANOTHER = "The survey {} is of {}, and is not shown with {}"
MOST_NAME = 400
TABLES = (Role.EMBEDDING, Role.HEAD)
BESIDE = {Role.EMBEDDING: "embeddings", Role.OTHER_EMBEDDING: "embeddings", Role.HEAD: "output head",
          Role.EXPERTS: "stacked experts"}  # fmt: skip
"""What stands beside the linear layers, by its role."""
_AT_REVISION = re.compile(r"([\w.-]+/[\w.-]+)@(\S+)")
"""A Hub id with a revision."""
_SURVEYS = Memo[Survey | str](128 << 20)
_SUBJECTS = Memo["ModelSubject"](128 << 20)
_MADE = Memo[dict[str, Path]](1 << 20)
"""Files of surveys that were made here."""
_HASHED = 1 << 30
"""The largest model whose weights are hashed to find a recorded survey of them."""


@dataclass(frozen=True)
class ModelSubject:
    """A model as sections take it.

    name: its last part, for headings. place: where its weights are, as ``model_source`` and
    ``runnable_model`` take it, with ``revision``; of a survey alone, where it was surveyed. which: the
    recorded survey's name, ``OWN``, or "" without a survey. stored: its linear layers, and what is beside
    them; ``beside``: bytes of that, by kind. bytes: of all its tensors, as they are stored. named: True if
    the address names the model, and not a survey alone. stamp: changes with its survey. cache: what its
    config says of keys and values.
    """

    name: str
    place: str
    revision: str
    survey: Survey | None
    which: str
    stored: StoredModel
    beside: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    named: bool = False
    stamp: Hashable = None
    cache: CacheShape | None = None

    @property
    def kind(self) -> str:
        """What kind of model it is, as far as its survey knows."""
        loss = self.survey.head.loss if self.survey else ""
        return {"embedding": "encoder", "next token": "language model"}.get(loss, "")


def recorded() -> dict[str, Path]:
    """The surveys that ship with the explorer, by their names."""
    return {path.stem: path for path in sorted(SURVEYS.glob("*.jsonl"))}


def survey_at(path: str | Path) -> Survey:
    """The complete survey in a file, read once; ``ValueError`` says what is wrong with it, and is kept: a
    long file that breaks off takes seconds to refuse."""

    def load() -> Survey | str:
        try:
            found = load_survey(path)
            check_complete(found)
            "".join([found.head.model, *(one.name for one in found.layers)]).encode()
        except UnicodeEncodeError:
            return f"{Path(path).name} has a name with half a character, which no page can show"
        except ValueError as error:
            return str(error)
        return found

    key = (str(path), stamp_of(Path(path)))
    found = opened_once(key, partial(_SURVEYS.peek, key), partial(_SURVEYS.get, key, load))
    if isinstance(found, str):
        raise ValueError(found)
    return found


def subject(query: Query) -> ModelSubject:
    """The model of an address. ``ValueError``, in words, where it cannot be opened; a survey of another
    model, and one that is not here, are left out, with words in ``query.problems``."""
    place, revision = query.get("model", "").strip(), query.get("revision", "").strip()
    which, path = _survey_file(query, place)
    if place:
        return _of_model(query, place, revision, which, path)
    if path is None:
        raise SourceError("open a model: a folder, a Hub id, a .gguf file, or a survey's file")
    return _of_survey(which, path)


def _survey_file(query: Query, place: str) -> tuple[str, Path | None]:
    """The name and file of the survey that an address asks for; "" and None for the one that fits."""
    names, asked = recorded(), query.get("survey", "")
    first = ("", None) if place else next(iter(names.items()), ("", None))
    if asked == OWN:
        try:
            return OWN, uploads.of_visitor(query.get("surveyfile", ""))
        except (ValueError, OSError):
            query.problems["survey"] = NO_OWN
            return first
    if asked and asked not in names:
        query.wrong("survey", ", ".join((*names, OWN)))
        return first
    return (asked, names[asked]) if asked else first


def _of_survey(which: str, path: Path) -> ModelSubject:
    def made() -> ModelSubject:
        found = survey_at(path)
        return _surveyed(found, which, path, found.head.model, found.head.revision or "", named=False)

    return _SUBJECTS.get((which, str(path), stamp_of(path)), made)


def _surveyed(found: Survey, which: str, path: Path, place: str, revision: str, named: bool) -> ModelSubject:
    head = found.head
    size = head.kept_bytes + sum(layer.stored_bytes for layer in found.layers if layer.bits)
    beside = dict(head.kept_parts or _kept_of(found))
    for one in found.layers:
        if one.bits and (what := BESIDE.get(one.role) or "" if one.reached else "layers without effect"):
            beside[what] = beside.get(what, 0) + one.stored_bytes
    used = [x for x in found.layers if x.role in TABLES or (x.role is Role.LINEAR and x.bits and x.reached)]
    return ModelSubject(
        name=_short(head.model),
        place=place,
        revision=revision,
        survey=found,
        which=which,
        stored=_stored([(x.role, x.shape, x.stored_bytes) for x in used], size),
        beside=beside,
        bytes=size,
        named=named,
        stamp=(place, str(path), stamp_of(path)),
    )


def _kept_of(found: Survey) -> dict[str, int]:
    """Bytes of what stays as it is, of a survey that does not say its kinds."""
    tables = sum(layer.stored_bytes for layer in found.layers if not layer.bits)
    parts = {"embeddings": tables, "norms and biases": found.head.kept_bytes - tables}
    return {what: size for what, size in parts.items() if size > 0}


def _of_model(query: Query, place: str, revision: str, which: str, path: Path | None) -> ModelSubject:
    """The model at a place, with the survey that is asked for, the visitor's own, or a recorded one."""
    source = model_source(place, revision)
    own = surveyed_here(place, revision).get("file")
    if path is None and own is not None and own.exists():
        which, path = OWN, own
    if path is not None and not _fits(survey_at(path), source):
        head = survey_at(path).head
        query.problems["survey"] = ANOTHER.format(which, head.model, place)
        path = None
    stamp = stamp_of(path) if path else None
    key: tuple[Hashable, ...] = (place, revision, folder_stamp(place, limits.current().sources), which, stamp)

    def made() -> ModelSubject:
        name, file = (which, path) if path else _recorded_of(source)
        if file is None:
            found = _unsurveyed(source, place, revision)
        else:
            found = _surveyed(survey_at(file), name, file, place, revision, named=True)
        return replace(found, cache=CacheShape.of_config(source.config()))

    return _SUBJECTS.get(key, made)


def surveyed_here(place: str, revision: str) -> dict[str, Path]:
    """The file of the survey that was made here of a model as it is now, under "file", by the built-in texts:
    a page that is opened anew, or by somebody else who names the model, has it too."""
    key = (place, revision, folder_stamp(place, limits.current().sources))
    return _MADE.get(key, dict)


def _fits(found: Survey, source: TensorSource) -> bool:
    """True if the model has the survey's layers, in their shapes."""
    shapes = {info.name.removesuffix(".weight"): info.shape for info in source.infos}
    return all(shapes.get(layer.name) == layer.shape for layer in found.linear)


def _recorded_of(source: TensorSource) -> tuple[str, Path | None]:
    """The recorded survey of the same weights, by their hash."""
    if sum(info.elements * itemsize(info.dtype) for info in source.infos) <= _HASHED:
        for name, path in recorded().items():
            found = survey_at(path)
            if _fits(found, source) and weights_sha256(source) == found.head.weights_sha256:
                return name, path
    return "", None


def _unsurveyed(source: TensorSource, place: str, revision: str) -> ModelSubject:
    """What the headers of a model say; which matrices are multiplied is told by their names."""
    matrices, total = [], 0.0
    beside: dict[str, float] = {}
    for info in source.infos:
        size, role = info.elements * itemsize(info.dtype), role_of(info)
        total += size
        if role in (Role.LINEAR, *TABLES):
            matrices.append((role, info.shape, size))
        if role is not Role.LINEAR:
            what = BESIDE[role] if role else "norms, biases and others"
            beside[what] = beside.get(what, 0.0) + size
    return ModelSubject(
        name=_short(place),
        place=place,
        revision=revision,
        survey=None,
        which="",
        stored=_stored(matrices, total),
        beside={what: round(size) for what, size in beside.items()},
        bytes=round(total),
        named=True,
    )


def _stored(matrices: Sequence[tuple[Role | None, tuple[int, ...], float]], total: float) -> StoredModel:
    """The matrices of a model of ``total`` bytes, each with its role, shape and bytes."""
    linears = Counter(shape for role, shape, _ in matrices if role is Role.LINEAR)
    tables = Counter(shape for role, shape, _ in matrices if role in TABLES)
    of_tables = sum(size for role, _, size in matrices if role in TABLES)
    rest = total - sum(size for *_, size in matrices)
    both = [tuple((n, k, count) for (n, k), count in found.items()) for found in (linears, tables)]
    return StoredModel(both[0], both[1], round(of_tables), round(rest))


def _short(place: str) -> str:
    return place.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or place


def name_of(query: Query) -> str:
    """The name of an address's model, without opening it."""
    return _short(query.get("model", "").strip() or query.get("survey") or next(iter(recorded()), ""))


def about(one: ModelSubject) -> tuple[str, str]:
    """Two lines on a model: its size, and what is beside its linear layers."""
    linears = one.stored.linears
    weights, layers = sum(n * k * count for n, k, count in linears), sum(count for *_, count in linears)
    parts = [
        f"{_many(weights)} weights in {layers} linear layer{'s' * (layers != 1)}",
        words.bytes_(one.bytes),
    ]
    largest = sorted(one.beside.items(), key=lambda part: (-part[1], part[0]))
    beside = ", ".join(f"{what} {words.bytes_(size)}" for what, size in largest)
    return " · ".join([*parts, *([one.kind] if one.kind else [])]), f"beside them: {beside or 'nothing'}"


def _many(count: int) -> str:
    """A number of weights in millions or billions."""
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def panel(query: Query) -> str:
    """The model that is open, and native controls to open another one; its section has ``ACTS``."""
    folders = limits.current().sources.folders
    shown: dict[str, Any] = {"title": "", "about": (), "which": "", "refused": ""}
    try:
        one = subject(query)
        shown |= {"title": one.name, "about": about(one), "which": one.which}
    except (ValueError, OSError) as error:
        shown["refused"] = words_of(error)
    return html.render(
        "subject",
        accepted="a folder, a .gguf file or a Hub id" if folders else "a Hub id (owner/name)",
        model=query.get("model", ""),
        revision=query.get("revision", ""),
        recorded=tuple(recorded()),
        own=OWN,
        **shown,
    )


def open_model(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Open the model that was typed: what is wrong with it is refused, and the one before stays."""
    text = str(what.get("value", "")).strip()
    if len(text) > MOST_NAME:
        raise ValueError(f"the name of a model has at most {MOST_NAME} characters")
    named = _AT_REVISION.fullmatch(text)
    place, revision = named.groups() if named else (text, "")
    if place:
        model_source(place, revision)
    return {"model": place, "revision": revision, "survey": "", **_without_layer(query)}


def take_survey(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Take a recorded survey, or an uploaded file's, and the model that it is of."""
    name, path = str(what.get("value", "")), str(what.get("path", ""))
    if path:
        survey_at(uploads.of_visitor(path))
        name = OWN
    elif name not in recorded():
        raise ValueError(f"a survey is one of {', '.join(recorded())}")
    file = {"surveyfile": path} if path else {}
    return {"survey": name, "model": "", "revision": "", **file, **_without_layer(query)}


def _without_layer(query: Query) -> dict[str, str]:
    """Changes that close a layer of the model before."""
    return {"source": "", "layer": "", "row": "", "column": ""} if query.get("source") == "model" else {}


ACTS = {"open-model": open_model, "take-survey": take_survey}
"""Acts of the panel's controls."""


def _view(query: Query) -> Shown:
    """Describe the model that is open: its layers, its size, its survey."""
    return {"subject": panel(query)}


SECTION = Section(name="subject", follows=KEYS, view=_view, says=("survey",), acts=ACTS)
"""The panel alone, for the bar."""
