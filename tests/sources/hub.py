"""A stand-in for the Hub on localhost: model info, redirects to storage, ranges. It counts bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.sources import lying_hub
from tests.sources.lying_hub import Answer, Asked, as_json, body


@dataclass
class Hub:
    """``models`` maps an id to the folder that holds it; ``sent`` counts body bytes of weight files."""

    url: str
    models: dict[str, Path]
    sent: int = 0
    honour_ranges: bool = True
    gated: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, asked: Asked) -> Iterator[bytes]:
        """Of every path."""
        path = asked.path.strip("/")
        if path.startswith("api/models/"):
            return self._info(path.removeprefix("api/models/"))(asked)
        if path.startswith("storage/"):
            return self._file(path.removeprefix("storage/"), asked.span)(asked)
        model, _, rest = path.partition("/resolve/")
        return body(b"", 302, Location=f"{self.url}/storage/{model}/{rest.split('/', 1)[1]}")(asked)

    def _info(self, rest: str) -> Answer:
        model, _, revision = rest.partition("/revision/")
        if model in self.gated:
            return _refused(403, "GatedRepo")
        if model not in self.models:
            return _refused(404, "RepoNotFound")
        if revision not in ("", "main"):
            return _refused(404, "RevisionNotFound")
        files = [{"rfilename": path.name} for path in sorted(self.models[model].iterdir())]
        return as_json({"id": model, "sha": lying_hub.COMMIT, "siblings": files})

    def _file(self, rest: str, span: tuple[int, int] | None) -> Answer:
        model, _, file = rest.rpartition("/")
        data, ranged = (self.models[model] / file).read_bytes(), span is not None and self.honour_ranges
        part = data[slice(*span)] if span is not None and ranged else data
        with self._lock:  # each request has its own thread: without it counts would be lost
            self.sent += len(part)
        return body(part, 206 if ranged else 200)


def _refused(status: int, code: str) -> Answer:
    return body(b"{}", status, X_Error_Code=code, X_Error_Message=code)


@contextmanager
def serve(models: dict[str, Path]) -> Iterator[Hub]:
    """Serve ``models`` until the block ends."""
    hub = Hub("", models)
    with lying_hub.serve({"": hub.answer}) as server:
        hub.url = server.url
        yield hub
