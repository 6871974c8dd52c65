"""A model on the Hub, read by HTTP range requests; nothing is stored on disk.

Headers are read here rather than by ``HfApi.get_safetensors_metadata``, which asks for the first 100 kB of
every file, takes a whole file from a server that ignores ranges, and gives the spans that a header claims
without comparing them with shapes and dtypes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from huggingface_hub import constants
from torch import Tensor

from explorer.progress import Progress
from explorer.sources.base import SourceError, TensorInfo
from explorer.sources.coded import CONFIG, CodedSource
from explorer.sources.hub_requests import Visit
from explorer.sources.index import INDEX, broken_promise, file_names, is_plain_name, weight_map
from explorer.sources.safetensors_header import PREFIX, Entry, decode, entries, header_length, parse_json
from explorer.sources.source_limits import LOCAL, SourceLimits

_CONNECTIONS = 8
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w.+-]*(/[\w.+-]+)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_REVISION = 200


def is_hub_id(where: str) -> bool:
    """True if ``where`` has the form of a repository's id: a name, or owner/name."""
    return _HUB_ID.fullmatch(where) is not None and ".." not in where


def check_revision(revision: str | None) -> None:
    """``SourceError`` unless ``revision`` is None or could be a branch, a tag or a commit."""
    if revision is None:
        return
    well_formed = len(revision) <= _LONGEST_REVISION and _REVISION.fullmatch(revision)
    if not well_formed or ".." in revision or any(part.startswith(".") for part in revision.split("/")):
        raise SourceError(
            f"{revision[:80]!a} is no revision; accepted are a branch, a tag or a commit, such as main"
        )


@dataclass(frozen=True)
class Repository:
    """Repository information from the Hub: the commit of a revision, and the files."""

    commit: str
    files: tuple[str, ...]


def repository(visit: Visit, repo_id: str, revision: str | None, origin: str) -> Repository:
    """Ask the Hub; ``SourceError`` for an answer that is none."""
    answer = visit.api(
        f"models/{repo_id}" + (f"/revision/{revision.replace('/', '%2F')}" if revision else "")
    )
    try:
        commit = answer["sha"]
        files = tuple(_file_name(sibling) for sibling in answer["siblings"] or [])
        good = isinstance(commit, str) and _COMMIT.fullmatch(commit)
    except (AttributeError, KeyError, TypeError) as error:
        raise SourceError(f"{origin}: the Hub's answer names no commit and files") from error
    if not good:
        raise SourceError(f"{origin}: the Hub's answer names no commit and files")
    return Repository(commit, files)


def _file_name(sibling: dict[str, Any]) -> str:
    name = sibling["rfilename"]
    if not isinstance(name, str):
        raise TypeError(name)
    return name


class HubModel(CodedSource):
    """The safetensors files at the top level of a Hub repository, at one commit.

    ``endpoint`` replaces HF_ENDPOINT. Raises ``SourceError`` for a repository that is missing, gated,
    unreachable or too slow, or has no safetensors files.
    """

    def __init__(
        self,
        repo_id: str,
        revision: str | None = None,
        endpoint: str | None = None,
        limits: SourceLimits = LOCAL,
    ) -> None:
        if not is_hub_id(repo_id):
            raise SourceError(f"{repo_id[:200]!a} is no Hub id (owner/name)")
        check_revision(revision)
        self.origin = f"{repo_id}@{revision}" if revision else repo_id
        self._id, self._endpoint, self._limits = repo_id, endpoint, limits
        visit = self.visit()
        found = repository(visit, repo_id, revision, self.origin)
        self.commit, self.files = found.commit, found.files
        self._promised: dict[str, str] = {}
        self.weights = self._shards(visit)
        self._entries: dict[str, tuple[str, Entry]] = {}
        self._sizes: dict[str, int] = {}
        for name, listed in zip(self.weights, self._all_entries(visit), strict=True):
            self._add(name, listed)
        self.broken += broken_promise(self._promised, self._entries)
        self.stored = tuple(entry.info for _, entry in self._entries.values())
        self.find_codes()

    def config(self) -> dict[str, Any]:
        """``TensorSource.config``; ``SourceError`` if it is no JSON."""
        if CONFIG not in self.files:
            return {}
        raw = self.file(self.visit(), CONFIG, self._limits.header_bytes)
        config = parse_json(raw, self.origin, CONFIG, self._limits)
        return config if isinstance(config, dict) else {}

    def promised(self) -> Iterable[str]:
        return self._promised

    @property
    def identity(self) -> str:
        """Identity of this model's bytes: endpoint, id and commit."""
        return f"{self._endpoint or constants.ENDPOINT} {self._id} {self.commit}"

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each weight file, as far as its header describes them."""
        return dict(self._sizes)

    @property
    def weight_bytes(self) -> int:
        """Total size of all weight files."""
        return sum(self._sizes.values())

    def visit(self) -> Visit:
        """A use of the Hub, whose time begins now."""
        return Visit(self.origin, self._endpoint, self._limits)

    def file(self, visit: Visit, name: str, most: int) -> bytearray:
        """A whole file of the repository, of at most ``most`` bytes."""
        return visit.file(self._id, name, self.commit, most)

    def span(self, visit: Visit, name: str, start: int, stop: int) -> bytearray:
        """The bytes [start, stop) of a file of the repository."""
        return visit.span(self._id, name, self.commit, start, stop)

    def _shards(self, visit: Visit) -> list[str]:
        if INDEX in self.files:
            index = self.file(visit, INDEX, self._limits.header_bytes)
            self._promised = weight_map(index, self.origin, self._limits)
            return sorted(set(self._promised.values()))
        here = file_names(n for n in self.files if n.endswith(".safetensors") and is_plain_name(n))
        if not here:
            raise SourceError(
                f"{self.origin} has no safetensors files at its top level; other formats are not read"
            )
        if len(here) > self._limits.shards:
            raise SourceError(
                f"{self.origin} has {len(here):,} files; accepted are up to {self._limits.shards:,}"
            )
        return here

    def _all_entries(self, visit: Visit) -> list[tuple[Entry, ...]]:
        """The headers of all files, some at a time; the first refusal ends the rest. A thread sees the
        checkpoints of who asked in a copy of its context."""
        context = copy_context()
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            try:
                lengths = list(
                    pool.map(lambda name: context.copy().run(self._header_length, visit, name), self.weights)
                )
                if sum(lengths) > self._limits.header_bytes:
                    raise SourceError(
                        f"{self.origin}: the headers have {sum(lengths):,} bytes, more than "
                        f"{self._limits.header_bytes:,}"
                    )
                pairs = zip(self.weights, lengths, strict=True)
                return list(pool.map(lambda pair: context.copy().run(self._entries_of, visit, *pair), pairs))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _header_length(self, visit: Visit, name: str) -> int:
        prefix = visit.span(self._id, name, self.commit, 0, PREFIX)
        return header_length(prefix, f"{self.origin}: {name}", self._limits)

    def _entries_of(self, visit: Visit, name: str, length: int) -> tuple[Entry, ...]:
        header = visit.span(self._id, name, self.commit, PREFIX, PREFIX + length)
        return entries(header, None, f"{self.origin}: {name}", self._limits)

    def _add(self, name: str, listed: tuple[Entry, ...]) -> None:
        """A file's tensors without those that the index has in another file; of a name that an earlier file
        has, that one stays, and it is said."""
        own = [entry for entry in listed if self._promised.get(entry.info.name, name) == name]
        twice = [entry.info.name for entry in own if entry.info.name in self._entries]
        if twice:
            self.broken += (f"{name}: an earlier file holds {twice[0]} too ({len(twice)} left out)",)
        self._sizes[name] = max((entry.stop for entry in listed), default=0)
        for entry in own:
            self._entries.setdefault(entry.info.name, (name, entry))
        if len(self._entries) > self._limits.tensors:
            raise SourceError(f"{self.origin} lists more than {self._limits.tensors:,} tensors")

    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        name, entry = self._entries[info.name]
        size, shape = entry.first(rows)
        data = self.visit().span(self._id, name, self.commit, entry.start, entry.start + size, progress)
        return decode(info, shape, data, self.origin)
