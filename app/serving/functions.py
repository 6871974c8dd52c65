"""Server functions: what the script of a section calls, answered here in place of Gradio's own route.

``gr.HTML(server_functions=[view])`` lets the component's script call ``view`` by a POST to
``component_server``. Gradio's route takes any attribute of any component and any JSON, and runs it at once,
in the threads that its queue needs. Here a call names one of the functions that were declared, has a flat
object of texts as its argument, and waits in a line with a place for few.

A call ends at its next checkpoint after ``Limits.run_seconds``, when its client has left, and when the same
session calls the same function of the same component again. Nobody reads the answer then: it is ``null``.
"""

from __future__ import annotations

import asyncio
import gzip
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import gradio as gr
import orjson
from anyio import CapacityLimiter, to_thread
from gradio.routes import API_PREFIX
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app import limits
from app.serving.cores import SECONDS, charged, has_had, share_of_cores
from app.serving.guard import TOO_MANY, VALUES_OF, TooMuchError
from app.serving.headers import in_pieces, takes_gzip
from app.serving.listeners import counted
from app.serving.measure import LOG, measured
from app.serving.sessions import CurrentRequest, answering
from app.serving.values import DEFECT, checked_texts, logged
from app.serving.visitors import address_of
from app.serving.waiting import most_of_all
from app.serving.work import LeftError, OvertakenError, awaited, check_of_this_run
from explorer.progress import StoppedError, stoppable

AT_ONCE = 16
"""Calls that run at once, of all visitors. They have threads of their own, so that slow ones take none from
the queue."""
WAITING = 64
"""Calls of one address that wait for a place."""
WAIT_SECONDS = 10.0
"""The longest that a call waits for a place."""
ZIPPED_BYTES = 2_000
"""From which on an answer is compressed, for a client that takes it so."""
LOOK_SECONDS = 0.25
"""Between two looks at the calls that wait: their addresses have got more, or others have ended."""
_TOO_BUSY = "try again when one of them has ended"


@dataclass(frozen=True)
class CalledFunction:
    """What a call names: session, component, function and its argument."""

    session: str
    component: gr.HTML
    function: Callable[[dict[str, str]], Any]
    query: dict[str, str]

    @property
    def label(self) -> str:
        """The name in metrics and the log: it is one of the page's own."""
        return f"{self.component.elem_id or self.component.get_block_name()}.{self.function.__name__}"

    @property
    def kind(self) -> tuple[str, int, str]:
        """What a newer call overtakes."""
        return self.session, self.component._id, self.function.__name__


def named_by(components: Mapping[int, Any], body: Any) -> CalledFunction:
    """What the body of a call names among the page's ``components``; ``TooMuchError`` for anything else."""
    if not isinstance(body, dict):
        raise _refusal("a call of a server function is an object", "body")
    session, number, name = (body.get(key) for key in ("session_hash", "component_id", "fn_name"))
    if not isinstance(session, str):  # its letters are checked for every request
        raise _refusal("session_hash is a text", "body")
    if type(number) is not int or not isinstance(name, str):  # True is an int, too
        raise _refusal("component_id is a number, and fn_name is a text", "function")
    component = components.get(number)
    functions = {one.__name__: one for one in component.server_fns} if isinstance(component, gr.HTML) else {}
    if component is None or name not in functions:
        raise _refusal("this component has no such function", "function", 404)
    return CalledFunction(session, component, functions[name], _query_of(body.get("data")))


def _query_of(data: Any) -> dict[str, str]:
    """The argument of a call: one object of texts, or a list of it."""
    try:
        return checked_texts(data[0] if isinstance(data, list) and len(data) == 1 else data)
    except ValueError as error:
        raise _refusal(str(error), "values") from error


def _refusal(message: str, reason: str, status: int = 422) -> TooMuchError:
    return TooMuchError(status, message, reason)


class Call:
    """A call that waits or runs, and why its answer is no longer wanted."""

    def __init__(self, named: CalledFunction, address: str) -> None:
        self.named, self.address = named, address
        self.change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the call gets a place, or is ended before it has one."""
        self.reason: StoppedError | None = None

    def end(self, reason: StoppedError) -> None:
        """End the call, at its next checkpoint if it runs. To be called in the server's own thread."""
        self.reason = self.reason or reason
        self.notice()

    def notice(self) -> None:
        if not self.change.done():
            self.change.set_result(None)

    def check(self) -> None:
        """Raise the reason why the call has ended: a new error, because one that was raised holds the frames
        that hold the call and its request."""
        if self.reason is not None:
            raise type(self.reason)(*self.reason.args)

    def answer(self, zipped: bool) -> Response:
        """What the function returns, as JSON, by gzip if ``zipped`` and it is long; numbers that JSON does
        not know are null. To be called in a thread, and raises nothing: anyio keeps an error of a thread, and
        with it the request, until Python looks for cycles."""
        try:
            with charged():
                text = self._computed()
                zipped = zipped and len(text) >= ZIPPED_BYTES
                return _Answer(gzip.compress(text, 5) if zipped else text, zipped, self.address)
        except Exception as error:
            return self.refused(error)

    def refused(self, error: Exception) -> Response:
        """The answer of a call that failed: ``ValueError`` and ``StoppedError`` are refusals in words, of too
        large an answer as well."""
        if isinstance(error, LeftError | OvertakenError):
            return JSONResponse(None)
        if isinstance(error, ValueError | StoppedError):
            return JSONResponse({"detail": str(error)}, 422)
        LOG.error("%s failed: %s", self.named.label, logged(error))
        return JSONResponse({"detail": DEFECT}, 500)

    def _computed(self) -> bytes:
        with measured(self.named.label) as outcome:
            try:
                with awaited(), share_of_cores(), stoppable(check_of_this_run()):
                    found = self.named.function(self.named.query)
            except (LeftError, OvertakenError):
                outcome.how = "left"
                raise
            if isinstance(found, dict) and "refused" in found:
                outcome.how = "refused"
            text = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
            limits.check_answer(len(text))
        return text


class Line:
    """Calls that run, and those that wait: of the addresses with the fewest running calls, the one that came
    first is next. While another address is computed for, one that has used up its processor seconds is not.
    Everything happens in the server's own thread."""

    def __init__(self) -> None:
        self.running = Counter[str]()
        self.waiting: list[Call] = []
        self._look: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def place(self, call: Call) -> AsyncIterator[None]:
        """Hold a place for a call. ``TooMuchError`` after ``WAIT_SECONDS`` or if too many wait already;
        ``StoppedError`` if the call is ended meanwhile."""
        who, most = call.address, most_of_all()
        if sum(one.address == who for one in self.waiting) >= WAITING:
            message = f"{WAITING} views wait for your address, which is the limit for one visitor"
            raise TooMuchError(TOO_MANY, f"{message}; {_TOO_BUSY}", "views", 1)
        self.waiting.append(call)
        self._next()
        try:
            await asyncio.wait([call.change], timeout=WAIT_SECONDS)
            if call in self.waiting:
                call.check()
                if has_had(who):
                    again = math.ceil(SECONDS.seconds_until(who))
                    message = "others compute here, and your address has taken more than its part"
                    raise TooMuchError(TOO_MANY, f"{message}; try again in {again} s", "seconds", again)
                message = f"{most} views of your address or {AT_ONCE} of all visitors are being computed"
                raise TooMuchError(TOO_MANY, f"{message}, which is the limit; {_TOO_BUSY}", "views", 1)
            yield
        finally:
            if call in self.waiting:
                self.waiting.remove(call)
            else:
                self.running[who] -= 1
                self.running += Counter()  # an address that has none is not kept
            self._next()

    def _next(self) -> None:
        """Give free places to those who wait, and look again soon if there are others."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._give(most_of_all())
        if self.waiting:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._next)

    def _give(self, most: int) -> None:
        had = {address for address in {one.address for one in self.waiting} if has_had(address)}
        while self.running.total() < AT_ONCE:
            able = [
                one
                for one in self.waiting
                if one.reason is None and one.address not in had and self.running[one.address] < most
            ]
            if not able:
                return
            first = min(able, key=lambda one: self.running[one.address])
            self.waiting.remove(first)
            self.running[first.address] += 1
            first.notice()


UNSENT = Counter[str]()
"""By address: bytes of answers that its clients have not taken."""


class _Answer(Response):
    """JSON that is sent as its client takes it, and counts as its ``address``'s until then."""

    def __init__(self, body: bytes, zipped: bool, address: str) -> None:
        encoding = {"vary": "Accept-Encoding"} | ({"content-encoding": "gzip"} if zipped else {})
        super().__init__(body, headers=encoding, media_type="application/json")
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with counted(UNSENT, self._address, len(self.body)):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await in_pieces(bytes(self.body), send)


LINE = Line()
_latest: dict[tuple[str, int, str], Call] = {}
"""By session, component and function: the call that is answered."""
_THREADS = CapacityLimiter(AT_ONCE)


async def answer(request: Request) -> Response:
    """Answer a call: what the function returns as JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise TooMuchError(415, "a server function takes JSON, and no form", "body")
    named = named_by(request.app.get_blocks().blocks, request.scope[VALUES_OF])
    call = Call(named, address_of(request.scope))
    if (earlier := _latest.get(named.kind)) is not None:
        earlier.end(OvertakenError("stopped: something else was asked for"))
    _latest[named.kind] = call
    leaving = asyncio.create_task(_end_with_client(request, call))
    try:
        async with LINE.place(call):
            _check_unread(call)
            with answering(CurrentRequest(named.session, call.check, call.address)):
                zipped = takes_gzip(request.scope)
                found = await to_thread.run_sync(call.answer, zipped, limiter=_THREADS)
                call.check()  # what met no checkpoint since it was overtaken
                _check_unread(call)
        return found
    except TooMuchError:
        raise
    except Exception as error:
        return call.refused(error)
    finally:
        leaving.cancel()
        with suppress(KeyError):
            if _latest[named.kind] is call:
                del _latest[named.kind]


def _check_unread(call: Call) -> None:
    """``TooMuchError`` where the call's address has as many unread bytes as one answer may have."""
    if UNSENT[call.address] >= limits.current().answer_bytes:
        message = "answers to your address wait to be read, as many bytes as one may have"
        raise TooMuchError(TOO_MANY, f"{message}; {_TOO_BUSY}", "unread", 1)


async def _end_with_client(request: Request, call: Call) -> None:
    """End the call once its client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    call.end(LeftError("stopped: the visitor has left"))


PATH = f"{API_PREFIX}/component_server"
ROUTES = [Route(path, answer, methods=["POST"]) for path in (PATH, f"{PATH}/")]
"""Stand before Gradio's routes of the same addresses."""
