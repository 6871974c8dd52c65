"""A Hub that lies, stalls and floods: a server on localhost whose answers are chosen byte by byte."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.sources.hostile import entry, framed, safetensors

COMMIT = "0" * 40
Answer = Callable[["Asked"], Iterator[bytes]]
"""The pieces of an answer, head and body; the connection is closed at its end."""


@dataclass(frozen=True)
class Asked:
    """A request: its path without the query, its headers in lower case; ``over`` once nobody serves."""

    path: str
    headers: Mapping[str, str]
    over: threading.Event

    @property
    def span(self) -> tuple[int, int] | None:
        """The bytes [start, stop) that are asked for."""
        asked = self.headers.get("range")
        if asked is None:
            return None
        start, stop = asked.removeprefix("bytes=").split("-")
        return int(start), int(stop) + 1


@dataclass
class LyingHub:
    """``url`` is its endpoint; ``asked`` holds the requests."""

    url: str
    asked: list[Asked] = field(default_factory=list)


def head(status: int = 200, **headers: object) -> bytes:
    """A status line and headers."""
    lines = [f"HTTP/1.1 {status} X", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin1")


def body(data: bytes, status: int = 200, **headers: object) -> Answer:
    """A whole answer."""
    return lambda asked: iter([head(status, Content_Length=len(data), **headers), data])


def as_json(value: object, **headers: object) -> Answer:
    return body(json.dumps(value).encode(), **headers)


def ranged(data: bytes) -> Answer:
    """A file, by the ranges that are asked for."""

    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.span is None:
            yield from body(data)(asked)
        else:
            yield from body(data[slice(*asked.span)], 206)(asked)

    return answer


def slowly(data: bytes) -> Answer:
    """A byte at a time, for ever: after its end it begins again."""

    def answer(asked: Asked) -> Iterator[bytes]:
        for value in itertools.cycle(data):
            yield bytes([value])
            asked.over.wait(0.02)

    return answer


def stalled(data: bytes = b"") -> Answer:
    """``data``, then silence."""

    def answer(asked: Asked) -> Iterator[bytes]:
        yield data
        asked.over.wait()

    return answer


def endless(first: bytes) -> Answer:
    """``first``, then zeros without end."""

    def answer(asked: Asked) -> Iterator[bytes]:
        yield first
        while True:
            yield bytes(1 << 20)

    return answer


def info(files: object, commit: object = COMMIT) -> Answer:
    """The API's answer about a repository."""
    return as_json({"id": "a/b", "sha": commit, "siblings": files})


def named(*files: str) -> list[dict[str, str]]:
    return [{"rfilename": name} for name in files]


WEIGHTS = safetensors({"w": entry([4], 0, 16)}, bytes(16))


def repository(weights: Answer | None = None, **files: Answer) -> dict[str, Answer]:
    """Answers by the end of a path: a good repository, one part of which may be replaced."""
    names = ["model.safetensors", *(name.replace("__", ".") for name in files)]
    return {
        "api/models/a/b": info(named(*names)),
        "model.safetensors": weights or ranged(WEIGHTS),
        **{name.replace("__", "."): answer for name, answer in files.items()},
    }


def _only(answer: Answer) -> dict[str, Answer]:
    return {"": answer}


def _of_weights(answer: Answer) -> dict[str, Answer]:
    return repository(answer)


def _indexed(index: Answer) -> dict[str, Answer]:
    return {"api/models/a/b": info(named("model.safetensors.index.json")), "index.json": index}


def _many_shards(count: int) -> dict[str, Answer]:
    weight_map = {f"w{i}": f"model-{i:05}.safetensors" for i in range(count)}
    return {
        "api/models/a/b": info(named("model.safetensors.index.json")),
        "index.json": as_json({"weight_map": weight_map}),
        ".safetensors": ranged(WEIGHTS),
    }


def _many_files(count: int) -> dict[str, Answer]:
    files = named(*(f"{i}.safetensors" for i in range(count)))
    return {"api/models/a/b": info(files), ".safetensors": ranged(WEIGHTS)}


SLOW = {
    "silent": lambda: _only(stalled()),
    "dripping head": lambda: _only(slowly(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 1000)),
    "stalled weights": lambda: _of_weights(stalled(head(206, Content_Length=8) + b"abc")),
    "dripping weights": lambda: _of_weights(slowly(head(206, Content_Length=8) + b"\xff" * 4000)),
}
"""Each would hold a visitor for ever."""

FLOODS = {
    "endless info": lambda: _only(endless(head())),
    "endless weights": lambda: _of_weights(endless(head(206))),
    "endless head": lambda: _only(endless(b"HTTP/1.1 200 OK\r\nX: ")),
    "claimed header": lambda: _of_weights(ranged(b"\xff" * 7 + b"\x7f" + bytes(100))),
    "5,000 shards": lambda: _many_shards(5000),
    "5,000 files": lambda: _many_files(5000),
    "too many tensors": lambda: _of_weights(
        ranged(safetensors({str(i): entry([0], 0, 0) for i in range(25_000)}))
    ),
}  # fmt: skip
"""Each would take memory or requests without bound."""

ODD = {
    "no JSON": lambda: _only(body(b"<html>")),
    "deep JSON": lambda: _only(body(b"[" * 100_000)),
    "null": lambda: _only(as_json(None)),
    "a path as sha": lambda: _only(info(named("model.safetensors"), "../../../etc")),
    "files are numbers": lambda: _only(info([1, 2])),
    "a file's name is null": lambda: _only(info([{"rfilename": None}])),
    "newline in a name": lambda: _only(info(named("a\r\nb.safetensors"))),
    "a path as name": lambda: _only(info(named("../x.safetensors"))),
    "500": lambda: _only(body(b"", 500)),
    "429": lambda: _only(body(b"{}", 429, Retry_After="9" * 50, RateLimit='"x";r=-1;t=zz')),
    "redirect loop": lambda: _only(body(b"", 302, Location="/again")),
    "redirect to a file": lambda: _only(body(b"", 302, Location="file:///etc/passwd")),
    "no HTTP": lambda: _only(lambda asked: iter([b"SSH-2.0-x\r\n" * 10])),
    "bad length": lambda: _only(lambda asked: iter([b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"])),
    "gzip that is none": lambda: _only(body(b"{}", Content_Encoding="gzip")),
    "short weights": lambda: _of_weights(body(b"abc", 206)),
    "long weights": lambda: _of_weights(body(bytes(9), 206)),
    "offsets of text": lambda: _of_weights(ranged(safetensors({"w": entry([4], "0", "16")}))),
    "shape of NaN": lambda: _of_weights(
        ranged(framed(b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}'))
    ),
    "ends before its data": lambda: _of_weights(ranged(safetensors({"w": entry([4], 0, 16)}))),
    "no index": lambda: _indexed(body(b"", 404)),
    "index of numbers": lambda: _indexed(as_json({"weight_map": {"w": 5}})),
}  # fmt: skip
"""Each is no answer of a Hub."""


@contextlib.contextmanager
def serve(answers: Mapping[str, Answer]) -> Iterator[LyingHub]:
    """Answer each path by the first entry that it ends with ("" ends all), until the block ends."""
    hub = LyingHub("")
    over = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            lines = iter(lambda: self.rfile.readline().decode("latin1").strip(), "")
            first = next(lines, "")
            if not first:
                return
            headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
            asked = Asked(first.split()[1].split("?")[0], headers, over)
            hub.asked.append(asked)
            answer = next((a for end, a in answers.items() if asked.path.endswith(end)), body(b"", 404))
            with contextlib.suppress(OSError):  # the client may leave
                for piece in answer(asked):
                    self.wfile.write(piece)
                    self.wfile.flush()
                    if over.is_set():
                        return

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address, daemon_threads, block_on_close, request_queue_size = True, True, False, 128

    with Server(("127.0.0.1", 0), Handler, bind_and_activate=True) as server:
        server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield hub
        finally:
            over.set()
            server.shutdown()
