"""One visitor as a browser is one: uploads a file, asks as the page's own controls do, and checks what comes
back against what the library computes for this visitor's own tensor."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import random
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx
import torch
from safetensors.torch import save
from torch import Tensor

from explorer import SCHEMES, compare_schemes
from explorer.sources import load_sample

NAME = "w.safetensors"
"""Every visitor's file has this name, and one tensor called ``w``."""
SCHEMES_ASKED = ("nvfp4", "int4_group32", "int8_row", "fp8_e4m3_128x128", "mxfp4", "nf4_block64")


@dataclass(frozen=True)
class Answer:
    """One request: its kind, seconds until the last of the answer, and how it ended: "right", "wrong: …",
    "refused: …" (said by the server, with a reason), "lost" (no answer), "error: …" or "aborted"."""

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
    """A session with a tensor of its own: random, of this visitor's spread and shape."""

    def __init__(self, server: Server, seed: int, most_bytes: int) -> None:
        self.server, self.session = server, uuid.uuid4().hex
        self.random = random.Random(seed)
        height = max(16, min(most_bytes // (4 * 1024), 16384))
        generator = torch.Generator().manual_seed(seed)
        self.tensor: Tensor = torch.randn(height, 1024, generator=generator)
        self.tensor[:, seed % 1024] *= 3 + seed % 7
        rows = compare_schemes(self.tensor, [SCHEMES[name] for name in SCHEMES_ASKED])
        self.expected = {row.scheme.name: row.report.sqnr_db for row in rows}
        self.path = ""

    async def visit(self, until: float) -> AsyncIterator[Answer]:
        """Requests one after another until the monotonic time ``until``."""
        yield await self._timed("upload", self.upload)
        kinds = {
            "tensor": (20, self.look),
            "frontier": (30, self.frontier),
            "values": (6, self.values),
            "report": (8, self.report),
            "hostile": (6, self.hostile),
            "abort": (6, self.abort),
            "reload": (4, self.reload),
            "page": (6, self.page),
            "upload": (4, self.upload),
        }
        names, weights = list(kinds), [weight for weight, _ in kinds.values()]
        while time.monotonic() < until:
            kind = self.random.choices(names, weights)[0]
            yield await self._timed(kind, kinds[kind][1])
            await asyncio.sleep(self.random.expovariate(1))

    async def _timed(self, kind: str, act: Callable[[], Coroutine[Any, Any, str]]) -> Answer:
        start = time.monotonic()
        try:
            how = await act()
        except httpx.HTTPError as error:
            how = f"lost: {type(error).__name__}"
        return Answer(kind, time.monotonic() - start, how)

    # --- what a visitor does ----------------------------------------------------------------------------

    async def upload(self) -> str:
        body = save({"w": self.tensor})
        answer = await self.server.client.post("gradio_api/upload", files={"files": (NAME, body)})
        if answer.status_code in (413, 503):
            return f"refused: {answer.json()['detail']}"
        if answer.status_code != 200:
            return f"error: {answer.status_code}"
        self.path = answer.json()[0]
        return "right"

    async def look(self) -> str:
        scheme = self.random.choice(SCHEMES_ASKED)
        data = await self._send("tensor", self._selection(scheme))
        return data if isinstance(data, str) else self._judge(json.dumps(data), scheme)

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
        slots = await self._view("values", self.random.choice(SCHEMES_ASKED))
        return slots if isinstance(slots, str) else "right" if slots.get("values-plot") else "wrong: empty"

    async def report(self) -> str:
        """A built-in tensor, the same for everybody."""
        data = await self._send("report", ["mlp_up", "nvfp4,int8_row"])
        if isinstance(data, str):
            return data
        found = {row["scheme"]: row["sqnr_db"] for row in data[0]}
        return "right" if found == _built_in() else f"wrong: {found}"

    async def hostile(self) -> str:
        """A file that is none: it is refused in words, and nothing else changes."""
        body = io.BytesIO(bytes(self.random.randrange(256) for _ in range(2000))).getvalue()
        answer = await self.server.client.post("gradio_api/upload", files={"files": ("j.npy", body)})
        if answer.status_code != 200:
            return f"refused: {answer.status_code}"
        slots = await self._view("frontier", "nvfp4", file=answer.json()[0], file_tensor="")
        if isinstance(slots, str):
            return slots
        return "wrong: a junk file was shown" if slots["listed"] else "right"

    async def abort(self) -> str:
        """Asks for something long and leaves."""
        session, self.session = self.session, uuid.uuid4().hex
        number, data = self.server.numbers["tensor"], self._selection("nvfp4")
        body = {"data": data, "fn_index": number, "session_hash": self.session}
        answer = await self.server.client.post("gradio_api/queue/join", json=body)
        if answer.status_code == 200:
            parameters = {"session_hash": self.session}
            async with self.server.client.stream("GET", "gradio_api/queue/data", params=parameters) as lines:
                async for _ in lines.aiter_lines():
                    break
        self.session = session
        return "aborted"

    async def reload(self) -> str:
        self.session = uuid.uuid4().hex
        return await self.look()

    async def page(self) -> str:
        answer = await self.server.client.get("")
        return "right" if answer.status_code == 200 and "<html" in answer.text else "error: no page"

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
            if answer.status_code in (413, 422, 429):
                return f"refused: {answer.json()['detail']}"
            if answer.status_code != 200:
                return f"error: {answer.status_code} {answer.text[:200]}"
            said = answer.json() or {}
            if "waits" not in said:
                return said["slots"] if "slots" in said else f"refused: {said.get('refused')}"
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
        if answer.status_code in (413, 422, 429):
            return f"refused: {answer.json()['detail']}"
        if answer.status_code != 200:
            return f"error: {answer.status_code} {answer.text[:200]}"
        event, last = answer.json()["event_id"], None
        parameters = {"session_hash": self.session}
        async with self.server.client.stream("GET", "gradio_api/queue/data", params=parameters) as lines:
            async for line in lines.aiter_lines():
                message = json.loads(line[6:]) if line.startswith("data: ") else {}
                if message.get("event_id") != event:
                    continue
                if message["msg"] == "process_generating" and last is None:
                    last = message["output"].get("data")
                if message["msg"] == "process_completed":
                    if not message["success"]:
                        said = str(message["output"].get("error"))
                        return f"refused: {said}" if "has waited for" in said else f"error: {said}"
                    return message["output"].get("data") or last or []
        return "lost: the stream ended"

    def _judge(self, shown: str, scheme: str) -> str:
        """Whether the page shows this tensor's SQNR in its key numbers."""
        wanted = self.expected[scheme]
        if "Still shown" in shown:
            return "wrong: refused a good file"
        near = {f"{wanted + step:.2f}" for step in (-0.005, 0, 0.005)} | {f"{wanted:.1f}"}
        return "right" if any(text in shown for text in near) else f"wrong: no {wanted:.2f} dB of {scheme}"


@functools.cache
def _built_in() -> dict[str, float]:
    rows = compare_schemes(load_sample("mlp_up").values, [SCHEMES[name] for name in ("nvfp4", "int8_row")])
    return {row.scheme.name: row.report.sqnr_db for row in rows}
