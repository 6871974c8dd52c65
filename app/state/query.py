"""The record of the address: texts by key, from which every section computes what it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.serving import opened, uploads
from app.serving.values import checked_texts
from app.state.controls import DEFAULT_SAMPLE, DEFAULT_SCHEME, SOURCES, best_tensors
from app.state.record import MOST_LISTED, SEPARATOR, Record
from app.state.selection import file_source
from explorer import words
from explorer.analysis.goals import GOALS, is_goal
from explorer.cached import cached_property
from explorer.methods.recipe import Recipe
from explorer.sources.coded import STORED
from explorer.sources.samples import SAMPLES

NO_FILE = "This link shows somebody's own file, which a link cannot carry: drop the file in again"
TENSOR = ("source", "sample", "file", "opened", "file_tensor", "model", "revision", "layer")
"""Keys that choose the tensor; ``file`` is the path of an upload, which no address holds."""
SCHEMES_KEYS = ("scheme", "second")
ELEMENT = ("row", "column")
ASKED = ("goal", "list")
"""Keys that choose the shortlist."""


class Query(Mapping[str, str]):
    """Texts of an address by key. ``problems``: words by key for values that are not valid; each is then
    read as the usual one.

    ``ValueError`` for anything but texts (``checked_texts``).
    """

    def __init__(self, given: object) -> None:
        self._texts = checked_texts(given)
        self.problems: dict[str, str] = {}

    def __getitem__(self, key: str) -> str:
        return self._texts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def wrong(self, key: str, accepted: str) -> None:
        """Note that the value of ``key`` is not valid, and what is accepted."""
        said = words.plain(self[key], 40)
        self.problems[key] = f"{key} {said!r} is not valid: the usual one is shown. Accepted: {accepted}"

    def one_of(self, key: str, accepted: Mapping[str, object], usual: str) -> str:
        """The value of ``key`` if it is among ``accepted``, else ``usual``."""
        text = self.get(key) or usual
        if text in accepted:
            return text
        self.wrong(key, ", ".join(accepted))
        return usual

    @cached_property
    def record(self) -> Record:
        """The tensor, the schemes, the element, the goal and the shortlist that the address chooses."""
        source = self.one_of("source", SOURCES, "builtin")
        sample = self.one_of("sample", SAMPLES, DEFAULT_SAMPLE)
        file = self._file() if source == "file" else None
        if source == "file" and file is None:
            source = "builtin"
        scheme = self._scheme("scheme", DEFAULT_SCHEME)
        second = self._scheme("second", "" if "scheme" in self else Record.fresh().second)
        if second and second == scheme:
            self.problems["second"] = "The link has one scheme as A and as B; it is shown as A alone"
            second = ""
        row, column = self._whole("row"), self._whole("column")
        tensor = self._tensor_of(file) if file else self.get("file_tensor")
        return Record(
            source=source,
            sample=sample,
            file=file,
            file_tensor=tensor,
            model=self.get("model", ""),
            revision=self.get("revision", ""),
            layer=self.get("layer") or None,
            scheme=scheme,
            second=second,
            element="" if row is None or column is None else f"{row},{column}",
            goal=self._goal(),
            shortlist=SEPARATOR.join(self._list()),
        )

    def _file(self) -> str | None:
        """The path of the visitor's file: an upload, or the file that the page was started on."""
        try:
            if (started_on := opened.linked_file(self)) is not None:
                return str(started_on)
            if self.get("file"):
                return str(uploads.of_visitor(self["file"]))
        except (ValueError, OSError) as error:
            self.problems["source"] = str(error)
            return None
        self.problems["source"] = NO_FILE
        return None

    def _tensor_of(self, file: str) -> str | None:
        """The named tensor of the file; its best one where none is named, or one that the file does not
        hold."""
        try:
            infos = file_source(file).infos
        except (ValueError, OSError):  # what shows the tensor says what is wrong with its file
            return self.get("file_tensor")
        named = self.get("file_tensor")
        if named and named not in {info.name for info in infos} and not named.endswith(STORED):
            self.problems["file_tensor"] = (
                f"{words.plain(named, 40)!r} is of a file that is not open any more: drop it in again. Shown "
                f"is the file that is open, {words.plain(Path(file).name, 40)}"
            )
            named = None
        return named or next(iter(best_tensors(infos)), None)

    def _scheme(self, key: str, usual: str) -> str:
        text = self.get(key, usual)
        try:
            return str(Recipe.parse(text)) if text else ""
        except ValueError as error:
            self.problems[key] = f"The link's scheme is not usable: {page_words(str(error))}"
            return usual

    def _whole(self, key: str) -> int | None:
        text = self.get(key, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
        if text:
            self.wrong(key, "a whole number from 0")
        return None

    def _goal(self) -> str:
        text = self.get("goal", "").strip()
        if not text or is_goal(text):
            return text
        self.wrong("goal", f"{', '.join(GOALS)}, at-most-4.25, at-most-3MB")
        return ""

    def _list(self) -> list[str]:
        texts = [text for text in self.get("list", "").split(SEPARATOR)[: 2 * MOST_LISTED] if text]
        names: list[str] = []
        for text in texts:
            try:
                names.append(str(Recipe.parse(text)))
            except ValueError:
                self.wrong("list", "schemes, separated by commas")
        return list(dict.fromkeys(names))[:MOST_LISTED]


def page_words(message: str) -> str:
    """A message of the library without what is of use only in Python or on the command line."""
    return _LISTS_SCHEMES.sub(r"\1 " + SCHEMES_ARE_CHOSEN, words.without_python(message))


SCHEMES_ARE_CHOSEN = "Choose one at A or B in the bar, such as int4_group128_asym or nvfp4"
_LISTS_SCHEMES = re.compile(r"([.?]) `explorer schemes` lists the names.*$", re.DOTALL)


def texts_of(record: Record) -> dict[str, str]:
    """The keys and texts of an address that chooses ``record``; empty where it is what a page without a link
    shows. An upload and a model that another tensor has replaced stay known: Back leads to them."""
    fresh = Record.fresh()
    row, _, column = record.element.partition(",")
    texts = {
        **dict.fromkeys(("source", "sample", "opened", "file_tensor", "layer"), ""),
        "model": record.model,
        "revision": record.revision,
        "scheme": record.scheme,
        "second": record.second,
        "row": row,
        "column": column,
        "goal": record.goal,
        "list": record.shortlist,
    }
    if record.source != "builtin":
        texts["source"] = record.source
    elif record.sample != fresh.sample:
        texts["sample"] = record.sample
    if record.source == "file":
        started_on = opened.name_of(record.file)
        texts |= {"opened": started_on} if started_on else {"file": record.file or ""}
        texts["file_tensor"] = record.file_tensor or ""
    if record.source == "model":
        texts["layer"] = record.layer or ""
    if record.schemes == fresh.schemes:
        texts |= {"scheme": "", "second": ""}
    return texts
