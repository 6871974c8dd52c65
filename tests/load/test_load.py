"""A short run of ``make load``, and how its answers and its numbers are judged.

If these fail, the recorded page of docs/ may show a server that mixes visitors up, or grows without end.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer import SCHEMES, compare_schemes
from tests.covering import THOROUGH
from tests.load.run import JUDGED_SECONDS, Seen, bad, refused_mostly, report, right, run
from tests.load.visitor import KINDS, REFUSALS, SCHEMES_ASKED, Answer, Server, Visitor, own_tensor

VISITORS, SECONDS = 8, 30
NUMBERS, SECTIONS = (
    {"tensor": 1, "report": 2, "frontier run": 3},
    {"section-frontier": 1, "section-values": 2},
)


@pytest.fixture(scope="module")
def visitors() -> list[Visitor]:
    return [Visitor(Server(httpx.AsyncClient()), seed, 1 << 18) for seed in range(3)]


def ended(visitor: Visitor, kind: str, answers: Callable[[httpx.Request], httpx.Response]) -> Answer:
    """How a request of the visitor ends whose server is ``answers``."""

    async def asked() -> Answer:
        transport = httpx.MockTransport(answers)
        async with httpx.AsyncClient(base_url="http://page/", transport=transport) as client:
            visitor.server = Server(client, NUMBERS, SECTIONS)
            return await visitor.ask(kind)

    return in_a_thread(lambda: asyncio.run(asked()))


def in_a_thread(function: Callable[[], Any]) -> Any:
    """In this thread a browser test may have left a loop running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def same(status: int = 200, **content: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(status, **content)


def server_of(owner: Visitor) -> Callable[[httpx.Request], httpx.Response]:
    """A server that takes every visitor for ``owner``."""

    def answer(request: httpx.Request) -> httpx.Response:
        address, asked = request.url.path, json.loads(request.content or b"{}")
        if address.endswith("join"):
            owner.path = asked["data"][7]  # the scheme, for the stream that follows
            return httpx.Response(200, json={"event_id": "e"})
        if address.endswith("data"):
            shown = {"scheme": owner.path, "report": {"sqnr_db": owner.expected[owner.path]}}
            message = {"event_id": "e", "msg": "process_completed", "success": True}
            return httpx.Response(
                200, text=f"data: {json.dumps(message | {'output': {'data': [[shown]]}})}\n\n"
            )
        scheme = asked["data"]["scheme"]
        shown = f'data-scheme="{scheme}"><td class="strong">{owner.expected[scheme]:.1f}</td>'
        drawn = json.dumps({"data": owner.drawn[scheme]})
        return httpx.Response(
            200, json={"slots": {"listed": shown, "values-plot": "{}", "error-plot": drawn}}
        )

    return answer


def test_no_two_visitors_are_to_be_shown_the_same() -> None:
    """Of 64, by any scheme, in what the page rounds to a tenth of a decibel."""
    shown = defaultdict[str, set[float]](set)
    for seed in range(64):
        for row in compare_schemes(own_tensor(seed, 64), [SCHEMES[name] for name in SCHEMES_ASKED]):
            shown[row.scheme.name].add(round(row.report.sqnr_db, 1))
    assert {name: len(found) for name, found in shown.items()} == dict.fromkeys(SCHEMES_ASKED, 64)


@pytest.mark.parametrize("kind", ["tensor", "reload", "frontier", "values"])
def test_an_answer_is_right_for_its_own_visitor_alone(visitors: list[Visitor], kind: str) -> None:
    for owner in visitors:
        for other in visitors:
            answer = ended(other, kind, server_of(owner))
            assert answer.how.startswith("right" if other is owner else "wrong: "), answer


DEFECTS = {
    "an error": same(500, text="defect"),
    "a refusal of a good request": same(422, json={"detail": "this page has no such function"}),
    "a refusal without words": same(429, text="<html>busy</html>"),
    "null": same(content=b"null"),
    "a page that says an error": same(text="<html>500 Internal Server Error</html>"),
    "another form": same(json={"slots": {"values-plot": "another", "listed": "another"}}),
    "refused in a view": same(json={"refused": "upload the file again"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_bad(visitors: list[Visitor], kind: str, defect: str) -> None:
    answer = ended(visitors[0], kind, DEFECTS[defect])
    assert bad(answer) and not right(answer), answer


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_is_a_refusal(visitors: list[Visitor], kind: str) -> None:
    for status in REFUSALS:
        answer = ended(visitors[0], kind, same(status, json={"detail": "busy"}))
        assert answer.how == "refused: busy"
        assert not bad(answer) and not right(answer)


def test_a_lost_connection_is_bad(visitors: list[Visitor]) -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("broken off")

    assert ended(visitors[0], "values", broken).how == "lost: ReadError"


def test_a_run_that_was_refused_mostly_fails() -> None:
    good, refused = Answer("page", 1, "right"), Answer("frontier", 1, "refused: busy")
    assert refused_mostly([refused] * 100, 60) == refused_mostly([], 60) == ["all"]
    assert not refused_mostly([good, refused], 60)
    assert refused_mostly([good, refused], JUDGED_SECONDS) == ["frontier"]
    assert not refused_mostly([good, refused, Answer("frontier", 1, "right")], JUDGED_SECONDS)


@THOROUGH
def test_eight_visitors_for_half_a_minute(tmp_path: Path) -> None:
    """No answer is wrong or lost, and the server prints no traceback; each kind of request was made."""
    seen = Seen()
    failures = in_a_thread(lambda: run(VISITORS, SECONDS, 4 << 20, tmp_path, seen))
    assert not [answer for answer in seen.answers if bad(answer)] and failures == 0
    assert {"tensor", "frontier", "hostile", "upload"} <= {answer.kind for answer in seen.answers}
    shown = report(VISITORS, SECONDS / 60, seen.answers, seen.samples)
    assert not refused_mostly(seen.answers, SECONDS), shown
