"""The Hub as an adversary: slow, endless or senseless answers are refusals in the explorer's words, in time.

If this fails, one repository with a bad server behind it holds a place in the queue for good, fills the
memory, or shows a traceback.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from lying_hub import (
    FLOODS,
    ODD,
    SLOW,
    WEIGHTS,
    Asked,
    LyingHub,
    body,
    head,
    info,
    named,
    ranged,
    repository,
    serve,
    stalled,
)

from explorer import SourceError
from explorer.progress import StoppedError, stoppable
from explorer.sources.models import HubModel, open_model
from explorer.sources.source_limits import HOSTED, SourceLimits
from tests.covering import sampled
from tests.fuzz.bounds import fault
from tests.sources.hostile import entry, safetensors

PATIENT = dataclasses.replace(HOSTED, request_seconds=60, visit_seconds=120, tensors=20_000)
LIMITS = dataclasses.replace(PATIENT, request_seconds=0.4, visit_seconds=0.8)


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))


def read_first(hub: LyingHub, limits: SourceLimits) -> None:
    model = HubModel("a/b", endpoint=hub.url, limits=limits)
    model.matrix(model.infos[0].name, max_elements=1 << 20)


def test_the_good_repository_is_read() -> None:
    """The stand-in answers well when it is told to: what the other tests change is the only thing wrong."""
    with serve(repository()) as hub:
        read_first(hub, PATIENT)


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


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_a_refusal(name: str) -> None:
    """Never a TypeError, JSONDecodeError or IndexError of what came from outside."""
    with serve(ODD[name]()) as hub, pytest.raises(SourceError):
        read_first(hub, PATIENT)


def test_requests_at_once_are_bounded() -> None:
    """Many shards do not open as many connections: three run together, and none until one has its answer."""
    files = [f"{i}.safetensors" for i in range(20)]
    lock, running, most, three = threading.Lock(), 0, 0, threading.Event()

    def late(asked: Asked) -> Iterator[bytes]:
        nonlocal running, most
        with lock:
            running, most = running + 1, max(most, running + 1)
            if running == 3:
                three.set()
        assert three.wait(60)
        with lock:
            running -= 1
        yield from ranged(WEIGHTS)(asked)

    answers = {"api/models/a/b": info(named(*files)), ".safetensors": late}
    with serve(answers) as hub:
        HubModel("a/b", endpoint=hub.url, limits=dataclasses.replace(PATIENT, requests=3))
    assert most == 3, "of 20 shards"


def test_after_a_refusal_no_more_files_are_asked_for() -> None:
    """The first broken header ends the visit; the others are not read for nothing."""
    files = [f"{i}.safetensors" for i in range(150)]
    with serve({"api/models/a/b": info(named(*files)), ".safetensors": body(b"", 500)}) as hub:
        with pytest.raises(SourceError, match="answered 500"):
            HubModel("a/b", endpoint=hub.url, limits=PATIENT)
        assert len(hub.asked) < 40


def test_the_token_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a hosted page a visitor must not read what only its owner may."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for token, sent in ((True, "Bearer hf_secret"), (False, None)):
        with serve(repository()) as hub:
            HubModel("a/b", endpoint=hub.url, limits=dataclasses.replace(PATIENT, token=token))
            assert {asked.headers.get("authorization") for asked in hub.asked} == {sent}


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


def test_two_files_with_one_name() -> None:
    """The first file's tensor keeps its own bytes and shape; the second is named as left out."""
    second = safetensors({"w": entry([2], 0, 8)}, b"\1" * 8)
    answers = {
        "api/models/a/b": info(named("1.safetensors", "2.safetensors")),
        "1.safetensors": ranged(WEIGHTS),
        "2.safetensors": ranged(second),
    }
    with serve(answers) as hub:
        model = HubModel("a/b", endpoint=hub.url, limits=PATIENT)
        assert [info.shape for info in model.infos] == [(4,)]
        assert model.read("w").tolist() == [0, 0, 0, 0] and "2.safetensors" in model.broken[0]


def test_a_stop_ends_a_slow_download() -> None:
    """The visitor's Stop works between two pieces, and comes through as what it is."""

    def stop(done: int, total: int) -> None:
        raise OSError("stopped by the visitor")

    def weights(asked: Asked) -> Iterator[bytes]:
        if asked.span == (len(WEIGHTS) - 16, len(WEIGHTS)):
            return stalled(head(206, Content_Length=16) + b"ab")(asked)
        return ranged(WEIGHTS)(asked)

    with serve(repository(weights)) as hub:
        model = HubModel("a/b", endpoint=hub.url, limits=PATIENT)
        with pytest.raises(OSError, match="stopped by the visitor"):
            model.read("w", progress=stop)


@pytest.mark.parametrize("only_in_threads", [False, True])
def test_leaving_ends_what_is_asked_of_the_hub(only_in_threads: bool) -> None:
    """Noticed between two pieces, also by the threads that read headers at once."""

    def left() -> None:
        if not only_in_threads or threading.current_thread() is not threading.main_thread():
            raise StoppedError("left")

    with serve(repository()) as hub, stoppable(left), pytest.raises(StoppedError, match="left"):
        HubModel("a/b", endpoint=hub.url, limits=PATIENT)
