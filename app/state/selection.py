"""Selection of tensor and schemes, and the tensor that it names.

Handlers keep no state: every one receives the whole selection from its visitor's own page, so nothing
of one visitor can reach another. Uploaded files arrive as paths that Gradio has checked to be uploads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from app import limits
from app.serving.sessions import current_request
from app.state.controls import DEFAULT_SAMPLE, DEFAULT_SCHEME
from app.state.gpu_lock import room
from app.state.memo import Memo
from app.state.places import Places
from explorer import SourceError
from explorer.core.backend import place
from explorer.methods.recipe import Recipe
from explorer.sources import load_sample, open_tensors
from explorer.sources.models import folder_stamp, open_model
from explorer.sources.safetensors_header import bytes_of
from explorer.sources.stamped import stamp_of
from explorer.sources.tensors import Matrix, Progress, TensorInfo, TensorSource

NO_FILE = "upload a file first, or choose a built-in tensor"


@dataclass(frozen=True)
class Selection:
    """The tensor and the schemes A and B that an address chooses."""

    source: str = "builtin"
    sample: str = DEFAULT_SAMPLE
    file: str | None = None
    file_tensor: str | None = None
    model: str = ""
    revision: str = ""
    layer: str | None = None
    scheme: str = DEFAULT_SCHEME
    second: str = ""

    @property
    def schemes(self) -> tuple[str, ...]:
        """The texts of scheme A and, if there is one, scheme B."""
        return (self.scheme, self.second) if self.second else (self.scheme,)

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Recipes of A and B: a scheme, and optionally a method."""
        return tuple(map(Recipe.parse, self.schemes))


class NothingChosenError(SourceError):
    """A form that has been opened and not yet filled in: said where results stand, and no warning."""


_MATRICES = Memo[Matrix](512 << 20)
_SOURCES = Memo[TensorSource](256 << 20)
_REFUSED = Memo[str](1 << 20)
"""Why a file was refused."""
Opened = TypeVar("Opened")
_OPENING, _READING, _VISITING = Places(2, 8), Places(1, 4), Places(2, 8)
"""Files that are opened, tensors of them that are read, and models that are opened."""
_OF_CODES = 32
"""Bytes that it takes to restore an element of a weight of codes."""


def matrix_of(chosen: Selection, progress: Progress | None = None) -> Matrix:
    """The selected tensor, read once. Raises ``SourceError`` in words for the visitor."""

    def load() -> Matrix:
        if chosen.source == "builtin":
            return load_sample(chosen.sample)
        if chosen.source == "file":
            if not chosen.file:
                raise NothingChosenError(NO_FILE)
            return read_within(file_source(chosen.file), chosen.file_tensor)
        if not chosen.layer:
            raise NothingChosenError("choose a layer of the model")
        return read_within(model_source(chosen.model, chosen.revision), chosen.layer, progress)

    def read() -> Matrix:
        matrix = load()
        return dataclasses.replace(matrix, values=place(matrix.values).move(matrix.values))

    key = tensor_key(chosen)
    if chosen.source != "file":
        return _MATRICES.get(key, read)
    return opened_once(key, lambda: _MATRICES.peek(key), lambda: _MATRICES.get(key, read), _READING)


def read_within(source: TensorSource, name: str | None, progress: Progress | None = None) -> Matrix:
    """A tensor, or its first rows, as many as the limits have."""
    info = source.info(name)
    most = limits.current().most_of(info)
    parts = sum(map(bytes_of, source.parts_of(info.name)))
    with room(_OF_CODES * min(info.elements, most or info.elements) + parts if parts else 0):
        return source.matrix(info.name, most, progress)


def is_read(chosen: Selection) -> bool:
    """True if ``matrix_of`` has the tensor at hand."""
    return _MATRICES.peek(tensor_key(chosen)) is not None


def info_of(chosen: Selection) -> TensorInfo | None:
    """The header's entry of the selected tensor; None for a built-in one."""
    if chosen.source == "file":
        return file_source(chosen.file).info(chosen.file_tensor)
    if chosen.source == "model":
        if not chosen.layer:
            raise NothingChosenError("choose a layer of the model")
        return model_source(chosen.model, chosen.revision).info(chosen.layer)
    return None


def file_source(path: str | None) -> TensorSource:
    """The uploaded file, opened once for all who ask for it: the others wait. ``SourceError`` if it is
    refused, without opening it again."""
    if not path:
        raise SourceError(NO_FILE)
    bounds = limits.current().sources
    key = ("file", path, stamp := _stamp(path), bounds)

    def known() -> TensorSource | None:
        if (why := _REFUSED.peek(key)) is not None:
            raise SourceError(why)
        return _SOURCES.peek(key)

    def opened() -> TensorSource:
        try:
            return _SOURCES.get(key, lambda: open_tensors(path, limits=bounds), _kept_bytes)
        except SourceError as error:
            if stamp is not None and not _may_pass(error.__cause__):
                _REFUSED.keep(key, str(error))
            raise

    return opened_once(key, known, opened)


def opened_once(
    key: Hashable,
    known: Callable[[], Opened | None],
    make: Callable[[], Opened],
    places: Places = _OPENING,
) -> Opened:
    """What ``known`` has of a file, or what ``make`` makes of it, by one of all who ask at once; few files of
    one address at a time."""
    if (found := known()) is not None:
        return found
    address = current_request().address
    for _ in places.taking(address, key):
        if (found := known()) is not None:
            return found
    try:
        return make() if (found := known()) is None else found
    finally:
        places.give_back(address, key)


def _may_pass(cause: BaseException | None) -> bool:
    """True for what the system lacks now, and may have later."""
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)


def model_source(model: str, revision: str) -> TensorSource:
    """The named model, its headers read once."""
    bounds, commit = limits.current().sources, revision.strip()
    key = ("model", model.strip(), commit, folder_stamp(model, bounds), bounds)

    def opened() -> TensorSource:
        return _SOURCES.get(key, lambda: open_model(model, commit or None, bounds), _kept_bytes)

    return opened_once(key, lambda: _SOURCES.peek(key), opened, _VISITING)


def _kept_bytes(source: TensorSource) -> int:
    return source.kept_bytes


def tensor_key(chosen: Selection) -> tuple[Hashable, ...]:
    """Cache key of the selected tensor, for caches shared by all visitors: path, size and modification
    time of a file, or of a folder's weights, and how much of it is read."""
    bounds = limits.current()
    if chosen.source == "builtin":
        return ("builtin", chosen.sample, bounds.elements)
    if chosen.source == "file":
        return ("file", chosen.file, _stamp(chosen.file), chosen.file_tensor, bounds.elements)
    stamp = folder_stamp(chosen.model, bounds.sources)
    return ("model", chosen.model.strip(), chosen.revision.strip(), stamp, chosen.layer, bounds.elements)


def _stamp(path: str | None) -> Hashable:
    """Stamp of a file, which changes with it, so that a new upload under an old name is read again."""
    try:
        return stamp_of(Path(path)) if path else None
    except (OSError, ValueError):
        return None
