"""One visitor as a browser is one: uploads a file, asks as the page's own controls do, and checks what comes
back against what the library computes for this visitor's own tensor."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import random
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx
import torch
from safetensors.torch import save
from torch import Tensor

from explorer import SCHEMES, compare_schemes
from explorer.analysis.sliced import analyse_anywhere
from explorer.analysis.tensor import Side
from explorer.figures.errors import error_figure
from explorer.sources import load_sample

NAME = "w.safetensors"
"""Every visitor's file has this name, and one tensor called ``w``."""
SCHEMES_ASKED = ("nvfp4", "int4_group32", "int8_row", "fp8_e4m3_128x128", "mxfp4", "nf4_block64")
KINDS = {
    "tensor": 20, "frontier": 30, "values": 6, "report": 8, "hostile": 6, "abort": 6, "reload": 4, "page": 6,
    "upload": 4,
}  # fmt: skip
"""A visitor's kinds of requests, by the names of its methods, and how often each comes."""
REFUSALS = (413, 429, 503)
"""The statuses of a good request that is too much here or now; the answer's ``detail`` says why."""
LIMITS = ("has waited for", "the time limit of a run here")
"""What a refusal by the page's limits of time says, where it has no status."""
LARGEST = 4.0
"""Every tensor's largest magnitude."""


@dataclass(frozen=True)
class Answer:
    """One request: its kind, seconds until the last of the answer, and how it ended: "right", "wrong: …",
    "refused: …" (by a limit, which the server names), "lost: …" (no answer), "error: …" or "aborted"."""

    kind: str
    seconds: float
    how: str


@dataclass
class Server:
    """The page's address and the numbers of its functions by API name."""

    client: httpx.AsyncClient
    numbers: dict[str, int] = field(default_factory=dict)
    sections: dict[str, int] = field(default_factory=dict)
    """Numbers of the sections' components, by their ids."""

    async def learn(self) -> None:
        config = (await self.client.get("config")).json()
        self.numbers = {d["api_name"]: d["id"] for d in config["dependencies"] if d["api_name"]}
        self.sections = {one["props"].get("elem_id"): one["id"] for one in config["components"]}
        frontier = [self.sections["section-frontier"], "run"]
        self.numbers["frontier run"] = next(
            one["id"] for one in config["dependencies"] if frontier in one["targets"]
        )


class Visitor:
    """A session with a tensor of its own. By each of ``SCHEMES_ASKED`` its SQNR is another than that of every
    visitor with another ``seed``, in what the page rounds too."""

    def __init__(self, server: Server, seed: int, most_bytes: int) -> None:
        self.server, self.session = server, uuid.uuid4().hex
        self.random = random.Random(seed)
        height = max(16, min(most_bytes // (4 * 1024), 16384))
        self.own = own_tensor(seed, height)
        self.expected: dict[str, float] = {}
        self.drawn: dict[str, object] = {}
        """By scheme, the SQNR in dB and what the figure of the errors draws."""
        for name in SCHEMES_ASKED:
            analysis = analyse_anywhere(self.own, SCHEMES[name])
            self.expected[name] = analysis.report.sqnr_db
            figure = error_figure([Side(SCHEMES[name].label, analysis)], NAME)
            self.drawn[name] = json.loads(str(figure.to_json()))["data"]
        self.path = ""

    async def visit(self, until: float) -> AsyncIterator[Answer]:
        """Requests one after another until the monotonic time ``until``."""
        while not self.path and time.monotonic() < until:
            yield await self.ask("upload")
            await asyncio.sleep(self.random.expovariate(1))
        while time.monotonic() < until:
            yield await self.ask(self.random.choices(list(KINDS), list(KINDS.values()))[0])
            await asyncio.sleep(self.random.expovariate(1))

    async def ask(self, kind: str) -> Answer:
        """One request of ``KINDS``, and how it ends."""
        start = time.monotonic()
        try:
            how = await getattr(self, kind)()
        except httpx.HTTPError as error:
            how = f"lost: {type(error).__name__}"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            how = f"wrong: an answer of another form: {error!r}"
        return Answer(kind, time.monotonic() - start, how)

    # --- what a visitor does ----------------------------------------------------------------------------

    async def upload(self) -> str:
        """The last bytes of what was sent are read back."""
        body = save({"w": self.own})
        answer = await self.server.client.post("gradio_api/upload", files={"files": (NAME, body)})
        if answer.status_code != 200:
            return _failure(answer)
        path, last = answer.json()[0], {"range": "bytes=-64"}
        answer = await self.server.client.get(f"gradio_api/file={path}", headers=last)
        if answer.status_code != 206:
            return _failure(answer)
        if answer.content != body[-64:]:
            return "wrong: another file's bytes"
        self.path = path
        return "right"

    async def tensor(self) -> str:
        scheme = self.random.choice(SCHEMES_ASKED)
        data = await self._send("tensor", self._selection(scheme))
        return data if isinstance(data, str) else self._judge(data, scheme)

    async def frontier(self) -> str:
        """The first screen until it has this tensor's own error; before, that of a sample."""
        scheme = self.random.choice(SCHEMES_ASKED)
        for _ in range(20):
            slots = await self._view("frontier", scheme)
            if isinstance(slots, str):
                return slots
            row = re.search(rf'data-scheme="{scheme}".*?strong">(.*?)</td>', slots["listed"], re.DOTALL)
            shown = re.sub("<[^>]*>", "", row[1]) if row else "nothing"
            numbers, expected = [float(text) for text in re.findall(r"[\d.]+", shown)], self.expected[scheme]
            if "≈" in shown:  # 95 % are within the interval, all within three times that
                right = abs(numbers[0] - expected) <= 3 * numbers[1] + 0.05
            else:
                right = shown == "…" or numbers == [round(expected, 1)]
            if not right or numbers == [round(expected, 1)]:
                return "right" if right else f"wrong: {shown} for {expected:.2f} dB of {scheme}"
            if isinstance(how := await self._fill(scheme), str):
                return how
        return "lost: it is computed for ever"

    async def values(self) -> str:
        """The errors of all elements, as the library draws them."""
        scheme = self.random.choice(SCHEMES_ASKED)
        slots = await self._view("values", scheme)
        if isinstance(slots, str):
            return slots
        right = json.loads(slots["error-plot"])["data"] == self.drawn[scheme] and slots["values-plot"]
        return "right" if right else f"wrong: another figure of the errors by {scheme}"

    async def report(self) -> str:
        """A built-in tensor, the same for everybody."""
        data = await self._send("report", ["mlp_up", "nvfp4,int8_row"])
        if isinstance(data, str):
            return data
        found = {row["scheme"]: row["sqnr_db"] for row in data[0]}
        return "right" if found == _built_in() else f"wrong: {found}"

    async def hostile(self) -> str:
        """A file that is none: it is refused in words, and nothing else changes."""
        body = self.random.randbytes(2000)
        answer = await self.server.client.post("gradio_api/upload", files={"files": ("j.npy", body)})
        if answer.status_code != 200:
            return _failure(answer)
        slots = await self._view("frontier", "nvfp4", file=answer.json()[0], file_tensor="")
        if isinstance(slots, str):
            return slots
        return "right" if slots["said"] and not slots["listed"] else "wrong: a junk file was shown"

    async def abort(self) -> str:
        """Asks for something long and leaves."""
        session = uuid.uuid4().hex
        number, data = self.server.numbers["tensor"], self._selection("nvfp4")
        body = {"data": data, "fn_index": number, "session_hash": session}
        answer = await self.server.client.post("gradio_api/queue/join", json=body)
        if answer.status_code != 200:
            return _failure(answer)
        async with self._stream(session) as lines:
            if lines.status_code != 200:
                await lines.aread()
                return _failure(lines)
            async for line in lines.aiter_lines():
                return "aborted" if line.startswith("data: {") else f"wrong: {line[:200]}"
        return "lost: the stream ended"

    async def reload(self) -> str:
        self.session = uuid.uuid4().hex
        return await self.tensor()

    async def page(self) -> str:
        """The page, and the script that it names, whose address is its digest."""
        answer = await self.server.client.get("")
        if answer.status_code != 200:
            return _failure(answer)
        named = re.search(r'<script src="(page\.js\?v=([0-9a-f]{16}))">', answer.text)
        if named is None or 'content="Quantization Explorer"' not in answer.text:
            return "wrong: another page"
        script = await self.server.client.get(named[1])
        if script.status_code != 200:
            return _failure(script)
        right = hashlib.sha256(script.content).hexdigest().startswith(named[2])
        return "right" if right else "wrong: another script"

    # --- the protocol -----------------------------------------------------------------------------------

    def _selection(self, scheme: str) -> list[str]:
        return ["file", "mlp_up", self.path, "w", "", "", "", scheme, ""]

    async def _view(self, section: str, scheme: str, **changed: str) -> dict[str, str] | str:
        """What a section shows of this visitor's tensor under ``scheme``, or in words how it ended; what it
        waits for is computed by the first screen's run."""
        body = {
            "data": {**self._query(scheme), **changed},
            "fn_name": "view",
            "component_id": self.server.sections[f"section-{section}"],
            "session_hash": self.session,
        }
        for _ in range(20):
            answer = await self.server.client.post("gradio_api/component_server", json=body)
            if answer.status_code != 200:
                return _failure(answer)
            said = answer.json()
            if said is None:
                return "lost: null"
            if "waits" not in said:
                return said["slots"] if "slots" in said else _ended(said["refused"])
            if isinstance(how := await self._fill(scheme), str):
                return how
        return "lost: it is computed for ever"

    def _query(self, scheme: str) -> dict[str, str]:
        return {"source": "file", "file": self.path, "file_tensor": "w", "scheme": scheme, "second": ""}

    async def _fill(self, scheme: str) -> list[Any] | str:
        """Have the page compute what its first screen waits for, as it asks for it by itself."""
        run = {"run": "filling", "number": "1", "query": self._query(scheme)}
        return await self._send("frontier run", [], event_data=run)

    async def _send(self, name: str, data: list[Any], **more: object) -> list[Any] | str:
        """The last data of an answer, or in words how it ended."""
        body = {"data": data, "fn_index": self.server.numbers[name], "session_hash": self.session, **more}
        answer = await self.server.client.post("gradio_api/queue/join", json=body)
        if answer.status_code != 200:
            return _failure(answer)
        event, last = answer.json()["event_id"], None
        async with self._stream(self.session) as lines:
            if lines.status_code != 200:
                await lines.aread()
                return _failure(lines)
            async for line in lines.aiter_lines():
                message = json.loads(line[6:]) if line.startswith("data: ") else {}
                if message.get("event_id") != event:
                    continue
                if message["msg"] == "process_generating" and last is None:
                    last = message["output"].get("data")
                if message["msg"] == "process_completed":
                    if not message["success"]:
                        return _ended(str(message["output"].get("error")))
                    return message["output"].get("data") or last or []
        return "lost: the stream ended"

    def _stream(self, session: str) -> AbstractAsyncContextManager[httpx.Response]:
        """What the queue tells a session."""
        parameters = {"session_hash": session}
        return self.server.client.stream("GET", "gradio_api/queue/data", params=parameters)

    def _judge(self, data: list[Any], scheme: str) -> str:
        """Whether the endpoint ``tensor`` reports this tensor's SQNR by the scheme that was asked for."""
        (found,) = data[0]
        shown, wanted = found["report"]["sqnr_db"], self.expected[scheme]
        if found["scheme"] == scheme and abs(shown - wanted) <= 1e-6:
            return "right"
        return f"wrong: {shown} dB of {found['scheme']} for {wanted} dB of {scheme}"


def own_tensor(seed: int, height: int) -> Tensor:
    """A tensor [height, 1024] of normal values, of which a share by the seed is ±``LARGEST``: schemes hold
    these with hardly an error, so that every seed has about 0.4 dB more than the one before."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(height * 1024, generator=generator).clamp_(-LARGEST, LARGEST)
    gain = 10 ** ((3 + 0.4 * seed) / 10) - 1
    count = int(len(values) * gain / (LARGEST**2 + gain))
    at = torch.randperm(len(values), generator=generator)[:count]
    values[at] = LARGEST * values[at].sign()
    return values.reshape(height, 1024)


def _failure(answer: httpx.Response) -> str:
    """How a request ended that a good server may refuse by a limit alone."""
    try:
        said = answer.json()["detail"] if answer.status_code in REFUSALS else ""
    except (ValueError, LookupError, TypeError):
        said = ""
    return f"refused: {said}" if said else f"error: {answer.status_code} {answer.text[:200]}"


def _ended(said: str) -> str:
    """How a request ended of which the page says so much."""
    return f"refused: {said}" if any(limit in said for limit in LIMITS) else f"error: {said}"


@functools.cache
def _built_in() -> dict[str, float]:
    rows = compare_schemes(load_sample("mlp_up").values, [SCHEMES[name] for name in ("nvfp4", "int8_row")])
    return {row.scheme.name: row.report.sqnr_db for row in rows}
