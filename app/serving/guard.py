"""Requests rejected before Gradio reads them: addresses that are not served, too large bodies, files named
by a URL, more waiting requests than one visitor's share of the queue, and too long waits. The response has
the reason in ``detail``. Requests that come too fast wait."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, ValuesView
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from time import thread_time
from typing import Any

from gradio.queueing import Queue
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import limits
from app.serving import addresses, uploads
from app.serving.allowance import Allowance
from app.serving.cores import SECONDS, Metered, has_had
from app.serving.kept import SILENCE
from app.serving.listeners import counted, listening, session_of
from app.serving.measure import REFUSED
from app.serving.sessions import CurrentRequest, answering
from app.serving.visitors import address_of, note_proxies, of_another_site
from app.serving.waiting import next_turn, take_turns

FIELD_BYTES = 1 << 16
"""Total size of a form's fields other than files."""
FORM_BYTES = 1 << 20
"""Added to the largest upload: headers of a form's parts and their boundaries."""
TOO_MANY = 429
"""Status of rejections that may be retried later. For a 503, Gradio's page would show its own message."""
QUERY_BYTES, QUERY_VALUES = 1 << 13, 200
"""Longest query of an address; the page's own links have a few hundred bytes and some ten values."""
UNREAD = (b"x-gradio-server", b"cookie")
"""Headers that Gradio would read. The page has no users, and to parse a cookie can take Python .25 s. Nor is
a range of several parts read, of which a hundred take 22 ms."""
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
STREAMS = tuple(
    f"{addresses.API_PREFIX}/{part}" for part in ("heartbeat/", "queue/data", "upload_progress", "call/")
)
"""How the addresses begin that are answered by streams of events."""
_streams: Counter[str] = Counter()
"""Open streams, by address."""
REQUESTS_AT_ONCE, REQUESTS_A_SECOND = 2_000, 100
"""Requests of one address to a public page: so many, then so many a second. To open the page takes some
hundred, a visitor who drags a slider makes some ten a second, and several visitors may share an address."""
A_REQUEST_SECONDS = 0.001
"""Time of the thread that reads all requests; one that takes more of it there counts as several."""
PACED_SECONDS = 10.0
"""The longest that a request waits because its address makes more."""
COMMAS, VALUES = 10_000, 2_000
"""Commas and brackets in a request, those of its texts among them, and its values; the page's own has some
hundred of both."""
DEPTH = 60
"""Levels of lists and objects in a request; the page's own have five."""
DIGITS = 40
"""Characters of a number in a request; those of a float64 that is written whole are 24."""
VALUES_OF = "explorer.values"
"""Key of a request's values in its scope, for who answers it: they are parsed once."""


REQUESTS = "explorer.requests"
"""Key of the allowance of requests in a scope."""


class TooMuchError(Exception):
    """A request that is refused: status, the sentence for the visitor, and the seconds after which asking
    again may help (0: it will not)."""

    def __init__(self, status: int, message: str, reason: str, again: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.reason, self.again = status, message, reason, again

    def answer(self) -> JSONResponse:
        headers = {"connection": "close"} | ({"retry-after": str(self.again)} if self.again else {})
        return JSONResponse({"detail": self.message}, self.status, headers)


class Paced:
    """Lets the requests of one address through at ``REQUESTS_A_SECOND``, before anything answers one: Gradio
    answers preflights before any middleware of a page."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._requests = Allowance(REQUESTS_AT_ONCE, REQUESTS_A_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REQUESTS] = self._requests
        if scope["type"] == "http" and (too_fast := await self._paced(scope)) is not None:
            await _refuse(too_fast, scope, _Body(receive), send)
        elif limits.current().hosted:
            who = address_of(scope)
            steps = self.app(scope, receive, send)
            await Metered(steps, lambda seconds: self._requests.use(who, seconds / A_REQUEST_SECONDS))
        else:
            await self.app(scope, receive, send)

    async def _paced(self, scope: Scope) -> TooMuchError | None:
        """Wait until the address may make one more request of a public page; the refusal of one that would
        wait for longer than ``PACED_SECONDS``. What is refused for other reasons counts: it takes time."""
        if not limits.current().hosted:
            return None
        who = address_of(scope)
        if (seconds := self._requests.seconds_until(who, 1)) > PACED_SECONDS:
            message = (
                f"your address makes more than {REQUESTS_A_SECOND} requests a second, which is the limit"
            )
            return TooMuchError(TOO_MANY, message, "requests", math.ceil(seconds - PACED_SECONDS))
        self._requests.use(who, 1)
        if seconds:
            await asyncio.sleep(seconds)
        return None


class Guard:
    """Rejects requests that no visitor of the page needs, before any data is kept."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused: TooMuchError | None
        if of_another_site(scope):
            refused = TooMuchError(403, "this page answers no other site", "origin")
        elif (refused := _unreadable(scope)) is None and not addresses.served(scope):
            refused = TooMuchError(404, addresses.UNKNOWN, "route")
        if refused is not None:
            await _refuse(refused, scope, _Body(receive), send)
            return
        note_proxies(scope)
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if name not in UNREAD and not (name == b"range" and b"," in value)
        ]
        if scope["method"] in ("POST", "PUT", "PATCH"):
            await self._changing(scope, receive, send)
        else:
            await self._reading(scope, receive, send)

    async def _reading(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A stream of events is that of a session which has asked for something; all else goes on."""
        if addresses.asked(scope)[0].startswith(STREAMS):
            who, most = address_of(scope), limits.current().streams
            if _streams[who] >= most:
                message = (
                    f"{most} streams of events to your address are open, which is the limit for one visitor"
                )
                refused = TooMuchError(TOO_MANY, message, "streams", 1)
                REFUSED.labels(refused.reason).inc()
                await refused.answer()(scope, receive, send)
                return
            with counted(_streams, who):
                await self._streaming(scope, receive, send)
        else:
            with suppress(ClientDisconnect):
                await self._streaming(scope, receive, _as_requests(scope, receive, send))

    async def _streaming(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = session_of(scope, _queue(scope))
        if session is None:
            await self.app(scope, receive, send)
            return
        if session not in _queue(scope).pending_messages_per_session:
            REFUSED.labels("session").inc()
            await JSONResponse({"detail": NOT_ASKED}, 404)(scope, receive, send)
            return
        with listening(session) as stream:
            try:
                await self.app(scope, receive, stream.watched(send))
            except RuntimeError as error:  # another stream has had the session's last answer meanwhile
                if not isinstance(error.__cause__, HTTPException):
                    raise
                await send({"type": ENDS})

    async def _changing(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An upload or a call: what it holds is checked, and it has a turn, before the app sees it."""
        started, place, body = False, ExitStack(), _Body(receive)
        route, _ = addresses.asked(scope)

        async def sent(message: Message) -> None:
            nonlocal started
            started = True
            place.close()
            await send(message)

        try:
            if route == addresses.UPLOAD:
                async with _room(scope) as upload:
                    await self.app(scope, _checked_form(scope, body, upload), sent)
                return
            checked, values = await _checked_json(scope, body)
            scope[VALUES_OF] = values
            if route == addresses.CANCEL and isinstance(values, dict):
                _end(_queue(scope), values)
            with place:
                if route == addresses.JOIN or route.startswith(addresses.CALL):
                    _check_turn(scope, values)
                    session = str(values.get("session_hash")) if isinstance(values, dict) else ""
                    SILENCE.broken(_queue(scope), session)
                    place.callback(take_turns, _queue(scope))  # by then its place is one of the queue's
                    place.enter_context(_place_in_share(scope))
                with answering(CurrentRequest(address=address_of(scope))):
                    await self.app(scope, checked, sent)
        except ClientDisconnect:
            return  # a body that was broken off: nobody reads an answer
        except TooMuchError as refused:
            if not started:
                await _refuse(refused, scope, body, send)
            elif not uploads.removed():  # Gradio moves files once it has answered
                raise


LARGE = 1 << 14
"""Bytes of a part of an answer that waits as the requests of its address do."""


def _as_requests(scope: Scope, receive: Receive, send: Send) -> Send:
    """``send`` that waits with large parts as the requests of its address do, and ends once its client has
    left: a download on its way takes time of the thread that reads all requests."""

    async def sent(message: Message) -> None:
        seconds = _seconds_left(scope) if len(message.get("body", b"")) >= LARGE else 0.0
        if seconds and await _leaves(receive, min(seconds, PACED_SECONDS)):
            raise ClientDisconnect
        await send(message)

    return sent


async def _leaves(receive: Receive, seconds: float) -> bool:
    """Wait so long, or until the client of an answer leaves; True if it has."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (await receive())["type"] != "http.disconnect":
                pass
            return True
    return False


def _end(queue: Queue, values: dict[str, Any]) -> None:
    """End the request that a session cancels at its next checkpoint: Gradio waits up to a minute until a
    generator's step is over. Refused for another session's: Gradio would begin it anew."""
    event = queue.event_ids_to_events.get(str(values.get("event_id")))
    if event is None:
        return
    if event.session_hash != values.get("session_hash"):
        raise TooMuchError(404, NOT_ASKED, "session")
    event.alive = False


async def _refuse(refused: TooMuchError, scope: Scope, body: _Body, send: Send) -> None:
    """Say why, and read on what still comes."""
    REFUSED.labels(refused.reason).inc()
    headers = Headers(scope=scope)
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        await refused.answer()(scope, body, send)
        return

    async def last(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == ENDS else message)
        if message["type"] == ENDS:
            await body.read_on(scope)
            await send({"type": ENDS})

    await refused.answer()(scope, body, last)


class _Body:
    """The messages of a request's body, and whether its last one has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._ended = receive, False

    async def __call__(self) -> Message:
        message = await self._receive()
        self._ended = not message.get("more_body", False)
        return message

    async def read_on(self, scope: Scope) -> None:
        """Read what still comes, for ``LINGER_SECONDS`` at most, of few requests of one address. A connection
        that is closed with unread bytes is reset, and its client never reads the answer."""
        who = address_of(scope)
        if _read_on[who] >= READ_ON:
            return
        with counted(_read_on, who), suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._ended and not _seconds_left(scope):
                    await self()


def _seconds_left(scope: Scope) -> float:
    """Seconds until the address of a request to a public page may make one again; what is read of requests on
    their way counts as requests."""
    requests: Allowance | None = scope.get(REQUESTS)
    if requests is None or not limits.current().hosted:
        return 0.0
    return requests.seconds_until(address_of(scope))


def _unreadable(scope: Scope) -> TooMuchError | None:
    """The refusal of a request with an address that Gradio could not parse: it would answer with an error and
    a traceback."""
    headers = Headers(scope=scope)
    names = [headers.get("host", ""), *headers.get("x-forwarded-host", "").split(",")]
    if any(name.strip() and _HOST.fullmatch(name.strip()) is None for name in names):
        return TooMuchError(400, "a host is a name or an address, and perhaps a port", "host")
    query = scope.get("query_string", b"")
    if len(query) > QUERY_BYTES or query.count(b"&") >= QUERY_VALUES:
        most = f"{QUERY_BYTES:,} bytes and {QUERY_VALUES} values"
        return TooMuchError(414, f"a query has at most {most}", "query")
    return None


def _bounded(scope: Scope, receive: Receive, most: int, what: str) -> Receive:
    """``receive`` that stops at ``most`` bytes; at once, if the request says that it is longer."""
    left = _bounded_claim(scope, most, what)

    async def bounded() -> Message:
        nonlocal left
        part = await receive()
        left -= len(part.get("body", b""))
        if left < 0:
            raise TooMuchError(413, _too_long(what, most), "body")
        return part

    return bounded


def _bounded_claim(scope: Scope, most: int, what: str) -> int:
    """``most``; refused, if the request says that it is longer."""
    claimed = _claimed(scope)
    if (claimed is None and "content-length" in Headers(scope=scope)) or (claimed or 0) > most:
        raise TooMuchError(413, _too_long(what, most), "body")
    return most


def _too_long(what: str, most: int) -> str:
    return f"{what} may have at most {most:,} bytes here"


NOT_ASKED = "nothing was asked in this session, or nobody listened for its answer for too long"
_uploading: Counter[str] = Counter()
"""By address: uploads that are on their way."""
STALLED_SECONDS = 30.0
"""An upload of which no byte comes for so long is ended."""
FILES = 16
"""Maximum number of files in one upload; the page sends one."""
ENDS = "http.response.body"
LINGER_SECONDS, READ_ON = 10.0, 8
"""The longest that a refused request is read on, and how many of one address are at once."""
_read_on: Counter[str] = Counter()


@asynccontextmanager
async def _room(scope: Scope) -> AsyncIterator[uploads.Upload]:
    """Hold the room of one upload in the store, and one of its visitor's places, until it has ended."""
    who, most = address_of(scope), limits.current().uploads
    if _uploading[who] >= most:
        raise TooMuchError(
            TOO_MANY,
            f"{most} files from your address are being uploaded, which is the limit for one visitor; the "
            "next is accepted when one of them has finished",
            "share",
            1,
        )
    _bounded_claim(scope, limits.current().upload_bytes + FORM_BYTES, "an upload")
    with counted(_uploading, who):
        try:
            with uploads.Upload(who, _claimed(scope)) as upload:
                await run_in_threadpool(upload.find_room)
                yield upload
        except uploads.FullError as error:
            raise TooMuchError(503, str(error), "store", 60) from error
        except OSError as error:
            if uploads.removed():
                raise TooMuchError(503, "the page ends and takes no more files", "store", 60) from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            full = "the disk for uploads is full; try again in some minutes"
            raise TooMuchError(503, full, "disk", 60) from error


def _claimed(scope: Scope) -> int | None:
    """The length that a request announces; None, if it does not."""
    claimed = Headers(scope=scope).get("content-length", "")
    return int(claimed) if claimed.isdecimal() and len(claimed) < 20 else None


def _checked_form(scope: Scope, receive: Receive, upload: uploads.Upload) -> Receive:
    """An upload as it comes in, its bytes counted; and its form's fields: Gradio keeps those in memory."""
    allowed = limits.current()
    bounded = _bounded(scope, receive, allowed.upload_bytes + FORM_BYTES, "an upload")
    said, who = Headers(scope=scope).get("content-type", ""), address_of(scope)
    if len(said) > KIND_BYTES:
        raise TooMuchError(400, f"a form's content type has at most {KIND_BYTES} characters", "body")
    kind, options = parse_options_header(said)
    form = kind == b"multipart/form-data" and options.get(b"charset", b"utf-8").lower() == b"utf-8"
    if not form or b"boundary" not in options:
        raise TooMuchError(400, "an upload is a form with a file", "body")
    try:
        fields = _Fields(options[b"boundary"])
    except ValueError as error:
        raise TooMuchError(400, f"the form cannot be read: {error}", "body") from error

    async def checked() -> Message:
        try:
            part = await asyncio.wait_for(bounded(), STALLED_SECONDS)
        except TimeoutError as error:
            message = f"the upload has stalled for {STALLED_SECONDS:.0f} s and is ended"
            raise TooMuchError(408, message, "stalled") from error
        if not upload.add(len(part.get("body", b""))):
            await run_in_threadpool(upload.find_room)
        began = thread_time()
        fields.add(part.get("body", b""))
        SECONDS.use(who, 2 * (thread_time() - began))  # Gradio reads it again
        while has_had(who) or _seconds_left(scope):
            await asyncio.sleep(_PAUSE_SECONDS)
        return part

    return checked


KIND_BYTES, SEMICOLONS = 256, 50
"""Of a form's content type, and in the header of one of its parts."""
_PAUSE_SECONDS = 0.1
"""Between two looks whether an upload goes on: what it takes to read counts as its visitor's."""


class _Fields:
    """Counts the bytes of a form's parts that are no files."""

    def __init__(self, boundary: bytes) -> None:
        self._bytes, self._files, self._is_file = 0, 0, False
        self._name, self._value, self._disposition = b"", b"", b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._field_of_header,
                "on_header_value": self._value_of_header,
                "on_header_end": self._end_of_header,
                "on_headers_finished": self._end_of_headers,
                "on_part_data": self._data,
            },
        )

    def add(self, body: bytes) -> None:
        try:
            self._parser.write(body)
        except ValueError as error:
            raise TooMuchError(400, f"the form cannot be read: {error}", "body") from error

    def _begin(self) -> None:
        self._is_file, self._disposition = False, b""

    def _field_of_header(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _value_of_header(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        if len(self._name) + len(self._value) > FIELD_BYTES:
            raise TooMuchError(413, f"a form's headers have at most {FIELD_BYTES:,} bytes", "body")

    def _end_of_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _end_of_headers(self) -> None:
        """A part is a file where Gradio takes it for one. Python's parser takes a time that grows with the
        square of semicolons."""
        if self._disposition.count(b";") > SEMICOLONS:
            raise TooMuchError(400, f"a file's header has at most {SEMICOLONS} semicolons", "body")
        self._is_file = b"filename" in parse_options_header(self._disposition)[1]
        self._files += 1
        if not self._is_file:
            raise TooMuchError(400, "every part of an upload is a file, with its name", "body")
        if self._files > FILES:
            raise TooMuchError(413, f"an upload has at most {FILES} files", "body")

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._bytes += 0 if self._is_file else end - start
        if self._bytes > FIELD_BYTES:
            raise TooMuchError(413, f"a form's fields have at most {FIELD_BYTES:,} bytes", "body")


_bodies: Counter[str] = Counter()
"""Requests with a body on its way, by address."""
BODY_SECONDS = 20.0
"""Time in which the body of a request that is no upload has to arrive."""


async def _whole_body(scope: Scope, receive: Receive) -> bytes | None:
    """Read the body; None if it was broken off. ``TooMuchError`` for too many at once, or a slow one."""
    allowed, who, parts, more = limits.current(), address_of(scope), list[bytes](), True
    bounded = _bounded(scope, receive, allowed.request_bytes, "a request")
    if _bodies[who] >= allowed.bodies:
        most = f"{allowed.bodies} requests from your address are on their way"
        raise TooMuchError(TOO_MANY, f"{most}, which is the limit for one visitor", "bodies", 1)
    with counted(_bodies, who):
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more:
                    message = await bounded()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError as error:
            slow = f"the request did not arrive within {BODY_SECONDS:.0f} s"
            raise TooMuchError(408, slow, "stalled") from error
    return b"".join(parts)


async def _checked_json(scope: Scope, receive: Receive) -> tuple[Receive, Any]:
    """The whole body, which is small, read and looked at; then handed on. Also its values (None: it was
    broken off)."""
    body = await _whole_body(scope, receive)
    if body is None:
        return receive, None
    values = _values(body)
    handed = False

    async def again() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again, values


def _values(body: bytes) -> Any:
    """Parse a request's JSON."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") > COMMAS:
        raise TooMuchError(413, f"a request has at most {COMMAS:,} commas and brackets", "body")
    try:
        whole = body.decode() or "null"
        values = json.loads(whole, parse_constant=_number, parse_float=_number, parse_int=_whole)
        if b"\\u" in body:  # half a character is none in any answer or file
            json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise TooMuchError(
            400,
            f"a request's body must be JSON, its values nested at most {DEPTH} deep, its numbers of at most "
            f"{DIGITS} characters",
            "body",
        ) from error
    for name in ("session_hash", "event_id"):  # Gradio keeps them
        text = values.get(name) if isinstance(values, dict) else None
        if isinstance(text, str) and not addresses.is_name(text):
            most = f"1 to {addresses.NAME_LENGTH} letters, digits, and . _ : -"
            raise TooMuchError(422, f"{name} has {most}", "body")
    _check_parts(values)
    return values


def _number(text: str) -> float:
    """A number of JSON, which has no others than finite ones."""
    if len(text) > DIGITS or not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is no number of JSON, or too long")
    return number


def _whole(text: str) -> int:
    """A whole number. To read one takes a time that grows with the square of its digits."""
    if len(text) > DIGITS:
        raise ValueError(f"{text[:20]}… is too long")
    return int(text)


def _check_parts(values: Any) -> None:
    """Refuse too many values, and values that are nested too deeply; and what Gradio takes for a file: it
    would open or fetch it."""
    level, seen = [values], 0
    for _ in range(DEPTH):
        seen += len(level)
        if seen > VALUES:
            raise TooMuchError(413, f"a request has at most {VALUES:,} values", "body")
        if any(isinstance(value, dict) and "path" in value for value in level):
            message = (
                "a file is uploaded first (POST /upload); its path, which that answers, is sent as a text"
            )
            raise TooMuchError(422, message, "address")
        parts = (value.values() if isinstance(value, dict) else value for value in level)
        level = [item for part in parts if isinstance(part, list | ValuesView) for item in part]
        if not level:
            return
    raise TooMuchError(400, f"a request's values are nested at most {DEPTH} deep", "body")


async def refuse_unfit(request: Request, error: Any) -> JSONResponse:
    """Say what is wrong with a request whose values FastAPI does not take (``RequestValidationError``). Its
    own answer repeats the whole request for each mistake, in the thread that answers everybody."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])[:100]
    return TooMuchError(422, f"{where}: {first['msg'][:200]}", "body").answer()


def _queue(scope: Scope) -> Queue:
    """Gradio's queue of waiting and running requests."""
    queue: Queue = scope["app"].get_blocks()._queue
    return queue


def _named(scope: Scope, values: Any) -> Any:
    """The function that a request names; refused if the page has none such. Gradio would fail at those, and
    take a number in quotes for that number. None for a body that is no object, or says nothing of a
    function: Gradio refuses it."""
    blocks, (route, given) = scope["app"].get_blocks(), addresses.asked(scope)
    called = route.startswith(addresses.CALL)
    number = values.get("fn_index") if isinstance(values, dict) and not called else None
    if number is None:
        if not called:
            return None
        name = given["api_name"]
        function = next((f for f in blocks.fns.values() if f.api_name == name), None)
    else:
        if type(number) is not int:  # True is an int, too
            raise TooMuchError(422, "fn_index is the number of a function of this page", "function")
        function = blocks.fns.get(number)
    if function is None or function.fn is None:  # one of the browser's alone, too
        raise TooMuchError(404, "this page has no such function", "function")
    if route.startswith(addresses.CALL_BY_NAME) and isinstance(values, dict):
        _check_names(blocks, name, values)
    return function


@functools.lru_cache(maxsize=1)
def _endpoints(blocks: Any) -> dict[str, Any]:
    """Parameter names of each function that a program may call by name."""
    found: dict[str, Any] = blocks.get_api_info()["named_endpoints"]
    return found


def _check_names(blocks: Any, name: str, values: dict[str, Any]) -> None:
    """Refuse values by other names than the function called ``name`` has, and where one is missing."""
    endpoint = _endpoints(blocks).get(f"/{name}")
    if endpoint is None:
        raise TooMuchError(404, "this function takes no values by name", "function")
    parameters = endpoint["parameters"]
    known = [one["parameter_name"] for one in parameters]
    missing = [
        one["parameter_name"]
        for one in parameters
        if not one.get("parameter_has_default") and one["parameter_name"] not in values
    ]
    if missing or not values.keys() <= {*known, "oauth_token"}:
        takes = ", ".join(known)[:200] or "none"
        raise TooMuchError(422, f"the values of this function are called: {takes}", "function")


def _check_turn(scope: Scope, values: Any) -> None:
    """Refuse a request that names no function, or would wait longer than ``Limits.wait_seconds``."""
    longest, function = limits.current().wait_seconds, _named(scope, values)
    if function is None:
        return
    queue = _queue(scope)
    turn, waiting, most = next_turn(queue, function, address_of(scope)), len(queue), queue.max_size
    if turn.seconds > longest:
        raise TooMuchError(TOO_MANY, turn.refusal(longest), "busy", turn.until_free(longest))
    if most is not None and waiting >= most:
        again = max(1, math.ceil(turn.seconds))
        message = (
            f"The page is busy: {waiting} requests are waiting, which is the limit, and you would be number "
            f"{turn.place} in your queue; try again in {again} s"
        )
        raise TooMuchError(TOO_MANY, message, "full", again)


_joining: Counter[str] = Counter()
"""By address: requests that are on their way into the queue."""


@contextmanager
def _place_in_share(scope: Scope) -> Iterator[None]:
    """Hold one of a visitor's ``Limits.share`` places until Gradio has put the request into its queue.

    Nothing is awaited between the count and the hold: of requests that come at once, each sees the others.
    """
    queue, who, most = _queue(scope), address_of(scope), limits.current().share
    waiting = [event for line in queue.event_queue_per_concurrency_id.values() for event in line.queue]
    running = [event for jobs in queue.active_jobs if jobs for event in jobs]
    queued = sum(address_of(event.request.scope) == who for event in (*waiting, *running) if event.alive)
    theirs = queued + _joining[who]
    if theirs >= most:
        raise TooMuchError(
            TOO_MANY,
            f"{theirs} requests from your address are waiting or running, which is the limit for one "
            "visitor; the next is accepted when one of them has ended",
            "share",
            1,
        )
    with counted(_joining, who):
        yield
