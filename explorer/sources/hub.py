"""A model on the Hub, read by HTTP range requests; nothing is stored on disk.

Headers are read here rather than by ``HfApi.get_safetensors_metadata``, which asks for the first 100 kB of
every file, takes a whole file from a server that ignores ranges, and returns the spans that a header claims
without comparing them with shapes and dtypes.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from huggingface_hub import constants
from torch import Tensor

from explorer.progress import Progress
from explorer.sources.base import SourceError, TensorInfo
from explorer.sources.coded import CONFIG
from explorer.sources.hub_requests import Visit
from explorer.sources.index import INDEX, ShardedSource, is_plain_name, weight_files, weight_map
from explorer.sources.safetensors_header import PREFIX, Entry, decode, entries, header_length, parse_json
from explorer.sources.source_limits import LOCAL, SourceLimits, within

_CONNECTIONS = 4
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


class HubModel(ShardedSource):
    """The safetensors files at the top level of a Hub repository, at one commit.

    ``endpoint`` replaces HF_ENDPOINT. ``files`` are the names of all files of the repository, ``sizes`` the
    bytes of each weight file, as far as its header describes them. Raises ``SourceError`` for a repository
    that is missing, gated, unreachable or too slow, or has no safetensors files.
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
        limits = within(limits)
        self.origin = f"{repo_id}@{revision}" if revision else repo_id
        self._id, self._endpoint, self._limits = repo_id, endpoint, limits
        visit = self.visit()
        answer = visit.about(revision)
        try:
            self.commit: str = answer["sha"]
            self.files: list[str] = [sibling["rfilename"] for sibling in answer["siblings"] or []]
            good = _COMMIT.fullmatch(self.commit) and all(isinstance(name, str) for name in self.files)
        except (KeyError, TypeError):
            good = False
        if not good:
            raise SourceError(f"{self.origin}: the Hub's answer names no commit and files")
        index = visit.file(INDEX, self.commit, limits.header_bytes) if INDEX in self.files else None
        promised = {} if index is None else weight_map(index, self.origin, limits)
        here = [name for name in self.files if name.endswith(".safetensors") and is_plain_name(name)]
        names = weight_files(promised, here, self.origin, limits)
        self._headers = {
            name: {entry.info.name: entry for entry in listed}
            for name, listed in zip(names, self._all_entries(visit, names), strict=True)
        }
        self.sizes = {
            name: max((entry.stop for entry in listed.values()), default=0)
            for name, listed in self._headers.items()
        }
        infos = {name: [entry.info for entry in listed.values()] for name, listed in self._headers.items()}
        self.gather(infos, promised, limits)

    def config(self) -> dict[str, Any]:
        """Read config.json (``TensorSource.config``); ``SourceError`` for invalid JSON."""
        if CONFIG not in self.files:
            return {}
        raw = self.visit().file(CONFIG, self.commit, self._limits.header_bytes)
        config = parse_json(raw, self.origin, CONFIG, self._limits)
        return config if isinstance(config, dict) else {}

    @property
    def identity(self) -> str:
        """Identity of this model's bytes: endpoint, id and commit."""
        return f"{self._endpoint or constants.ENDPOINT} {self._id} {self.commit}"

    def visit(self) -> Visit:
        """Begin to use the Hub: the time is limited from now on."""
        return Visit(self._id, self.origin, self._endpoint, self._limits)

    def _all_entries(self, visit: Visit, names: list[str]) -> list[tuple[Entry, ...]]:
        """Read the headers of all files, some at a time; the first refusal ends the rest.

        Each thread runs in a copy of the caller's context, so that it sees the caller's checkpoints.
        """
        copied = copy_context().copy
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            try:
                lengths = list(pool.map(lambda name: copied().run(self._header_length, visit, name), names))
                if sum(lengths) > self._limits.header_bytes:
                    raise SourceError(
                        f"{self.origin}: the headers have {sum(lengths):,} bytes, more than "
                        f"{self._limits.header_bytes:,}"
                    )
                return list(pool.map(lambda *of: copied().run(self._entries_of, visit, *of), names, lengths))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _header_length(self, visit: Visit, name: str) -> int:
        prefix = visit.span(name, self.commit, 0, PREFIX)
        return header_length(prefix, f"{self.origin}: {name}", self._limits)

    def _entries_of(self, visit: Visit, name: str, length: int) -> tuple[Entry, ...]:
        header = visit.span(name, self.commit, PREFIX, PREFIX + length)
        return entries(header, None, f"{self.origin}: {name}", self._limits)

    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        name = self.file_of[info.name]
        entry = self._headers[name][info.name]
        size, shape = entry.first(rows)
        data = self.visit().span(name, self.commit, entry.start, entry.start + size, progress)
        return decode(info, shape, data, self.origin)
