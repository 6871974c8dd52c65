"""The Hub as an adversary: slow, endless or senseless answers are refusals in the explorer's words, in time.

If this fails, one repository with a bad server behind it holds a place in the queue for good, fills the
memory, or shows a traceback.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from pathlib import Path

import huggingface_hub.constants
import pytest
from lying_hub import FLOODS, ODD, SLOW, LyingHub, body, info, named, repository, serve

from explorer import SourceError
from explorer.progress import StoppedError, stoppable
from explorer.sources.models import HubModel, open_model
from explorer.sources.source_limits import HOSTED, LOCAL, SourceLimits
from tests.covering import sampled
from tests.fuzz.bounds import fault

PATIENT = dataclasses.replace(HOSTED, request_seconds=60, visit_seconds=120, tensors=20_000)
LIMITS = dataclasses.replace(PATIENT, request_seconds=0.4, visit_seconds=0.8)


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))


def read_first(hub: LyingHub, limits: SourceLimits) -> None:
    model = HubModel("a/b", endpoint=hub.url, limits=limits)
    model.matrix(model.infos[0].name, max_elements=1 << 20)


@pytest.mark.parametrize("name", sampled(SLOW, ["silent", "dripping head", "stalled weights"]))
def test_a_slow_hub_is_given_up(name: str) -> None:
    """However slowly bytes come, the visit ends at its deadline, which is named; ``fault`` bounds it."""
    said = list[str]()

    def visit() -> None:
        try:
            read_first(hub, LIMITS)
        except SourceError as refusal:
            said.append(str(refusal))
            raise

    with serve(SLOW[name]()) as hub:
        assert fault(visit, (SourceError,), seconds=6, megabytes=100) is None
    assert re.search(r"within|more than 0\.8 s", said[0])


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_refused(name: str) -> None:
    """Bytes, files and tensors beyond the limits: refused after few requests, in little memory."""
    with serve(FLOODS[name]()) as hub:
        assert fault(lambda: read_first(hub, PATIENT), (SourceError,), seconds=10, megabytes=200) is None
        assert len(hub.asked) < 12


def test_an_answer_of_many_keys_is_not_parsed() -> None:
    """A million took 400 MB, and Python's lock for a second."""
    many = json.dumps(dict.fromkeys(map(str, range(30_000)))).encode()
    with serve({"": body(many)}) as hub, pytest.raises(SourceError, match="more parts than 20,000 tensors"):
        read_first(hub, PATIENT)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_a_refusal(name: str) -> None:
    """Never a TypeError, JSONDecodeError or IndexError of what came from outside."""
    with serve(ODD[name]()) as hub, pytest.raises(SourceError):
        read_first(hub, PATIENT)


def test_the_token_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a hosted page a visitor must not read what only its owner may; a server that the Hub redirects to
    gets no token."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for allowed, sent in ((LOCAL, "Bearer hf_secret"), (HOSTED, None)):
        with serve(repository()) as other:
            moved = body(b"", 302, Location=f"{other.url}/model.safetensors")
            with serve(repository(moved)) as hub:
                HubModel("a/b", endpoint=hub.url, limits=allowed)
        for server, got in ((hub, sent), (other, None)):
            assert {asked.headers.get("authorization") for asked in server.asked} == {got}


NO_REVISIONS = ("../blobs/w", "..", "a/../b", "/etc", "a//b", ".hidden", "a/.b", "a\\b", "a\0b", "a b", "",
                "x" * 300, "é", "-x")  # fmt: skip
REVISIONS = ("main", "v1.0", "refs/pr/1", "0" * 40, "feature/a-b_c.d+1")


def test_a_revision_is_no_path() -> None:
    """One that leaves the cache's folder, or the API's path, is refused beforehand; branches, tags, pull
    requests and commits stay possible."""
    with serve({**repository(), "": info(named("model.safetensors"))}) as hub:
        for revision in NO_REVISIONS:
            for opened in (open_model, lambda name, revision: HubModel(name, revision, hub.url)):
                with pytest.raises(SourceError, match="revision"):
                    opened("a/b", revision)
        assert not hub.asked
        for revision in REVISIONS:
            before = len(hub.asked)
            HubModel("a/b", revision, hub.url, PATIENT)
            assert revision.rsplit("/", 1)[-1] in hub.asked[before].path


@pytest.mark.parametrize("only_in_threads", [False, True])
def test_leaving_ends_what_is_asked_of_the_hub(only_in_threads: bool) -> None:
    """Noticed between two pieces, also by the threads that read headers at once."""

    def left() -> None:
        if not only_in_threads or threading.current_thread() is not threading.main_thread():
            raise StoppedError("left")

    with serve(repository()) as hub, stoppable(left), pytest.raises(StoppedError, match="left"):
        HubModel("a/b", endpoint=hub.url, limits=PATIENT)
