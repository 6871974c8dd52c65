"""The Hub as an adversary: slow, endless or senseless answers are refusals in the explorer's words, in time.

If this fails, one repository with a bad server behind it holds a place in the queue for good, fills the
memory, or shows a traceback.
"""

from __future__ import annotations

import dataclasses
import threading
import time
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
from tests.fuzz.bounds import fault
from tests.sources.hostile import entry, safetensors

LIMITS = dataclasses.replace(HOSTED, request_seconds=0.4, visit_seconds=0.8, tensors=20_000)
PATIENT = dataclasses.replace(HOSTED, request_seconds=5, visit_seconds=10, tensors=20_000)


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
        assert HubModel("a/b", endpoint=hub.url, limits=PATIENT).matrix("w").values.shape == (1, 4)


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_hub_is_given_up(name: str) -> None:
    """However slowly bytes come, the visit ends at its deadline."""
    with serve(SLOW[name]()) as hub:
        assert fault(lambda: read_first(hub, LIMITS), (SourceError,), seconds=4, megabytes=100) is None
        started = time.monotonic()
        with pytest.raises(SourceError, match=r"did not answer within|took more than"):
            read_first(hub, LIMITS)
        assert time.monotonic() - started < 8, "0.8 s, on a machine that may be busy"


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_refused(name: str) -> None:
    """Bytes, files and tensors beyond the limits: refused after few requests, in little memory."""
    with serve(FLOODS[name]()) as hub:
        assert fault(lambda: read_first(hub, PATIENT), (SourceError,), seconds=10, megabytes=200) is None
        with pytest.raises(SourceError):
            read_first(hub, PATIENT)
        assert len(hub.asked) < 12


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_a_refusal(name: str) -> None:
    """Never a TypeError, JSONDecodeError or IndexError of what came from outside."""
    with serve(ODD[name]()) as hub, pytest.raises(SourceError):
        read_first(hub, PATIENT)


def test_requests_at_once_are_bounded() -> None:
    """Many shards do not open as many connections."""
    files = [f"{i}.safetensors" for i in range(60)]

    def late(asked: Asked) -> Iterator[bytes]:
        time.sleep(0.05)
        yield from ranged(WEIGHTS)(asked)

    answers = {"api/models/a/b": info(named(*files)), ".safetensors": late}
    few = dataclasses.replace(PATIENT, requests=3)
    with serve(answers) as hub:
        HubModel("a/b", endpoint=hub.url, limits=few)
        # The hub counts a request until its thread has ended, a moment after its last byte.
        assert 1 < hub.most_at_once <= 6, "of 60 shards"


def test_after_a_refusal_no_more_files_are_asked_for() -> None:
    """The first broken header ends the visit; the others are not read for nothing."""
    files = [f"{i}.safetensors" for i in range(150)]
    with serve({"api/models/a/b": info(named(*files)), ".safetensors": body(b"", 500)}) as hub:
        with pytest.raises(SourceError, match="answered 500"):
            HubModel("a/b", endpoint=hub.url, limits=PATIENT)
        assert len(hub.asked) < 40


@pytest.mark.parametrize("token, sent", [(True, "Bearer hf_secret"), (False, None)])
def test_the_machines_token_is_not_lent_to_visitors(
    token: bool, sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a hosted page a visitor must not read what only its owner may."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert not HOSTED.token
    with serve(repository()) as hub:
        HubModel("a/b", endpoint=hub.url, limits=dataclasses.replace(PATIENT, token=token))
        assert {asked.headers.get("authorization") for asked in hub.asked} == {sent}


@pytest.mark.parametrize(
    "revision",
    [
        "../blobs/w",
        "..",
        "a/../b",
        "/etc",
        "a//b",
        ".hidden",
        "a/.b",
        "a\\b",
        "a\0b",
        "a b",
        "",
        "x" * 300,
        "é",
        "-x",
    ],
)
def test_a_revision_is_no_path(revision: str) -> None:
    """A revision that leaves the cache's folder, or the API's path, is refused beforehand."""
    with serve(repository()) as hub:
        for opened in (lambda: open_model("a/b", revision), lambda: HubModel("a/b", revision, hub.url)):
            with pytest.raises(SourceError, match="is no revision"):
                opened()
        assert not hub.asked


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/1", "0" * 40, "feature/a-b_c.d+1"])
def test_revisions_that_are_some(revision: str) -> None:
    """Branches, tags, pull requests and commits stay possible."""
    answers = {**repository(), "": info(named("model.safetensors"))}
    with serve(answers) as hub:
        HubModel("a/b", revision, hub.url, PATIENT)
        assert revision.rsplit("/", 1)[-1] in hub.asked[0].path


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
    """Who has left the page is noticed between two pieces, also by the threads that read headers at once:
    else a visitor who reloads keeps the Hub and a place in the queue busy until the deadline."""

    def left() -> None:
        if not only_in_threads or threading.current_thread() is not threading.main_thread():
            raise StoppedError("left")

    with serve(repository()) as hub, stoppable(left), pytest.raises(StoppedError, match="left"):
        HubModel("a/b", endpoint=hub.url, limits=PATIENT)
