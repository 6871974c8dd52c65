"""The real page on a free port, and a real browser that refuses every address but the page's."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, ViewportSize, expect

ROOT = Path(__file__).resolve().parents[2]
HANGS = 60_000
"""Milliseconds after which what a test waits for hangs, on a page that shares two cores with other tests."""
expect.set_options(timeout=HANGS)
START_SECONDS = 180
"""After which a page that does not answer hangs: it takes some five seconds on a free core."""


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``python app.py`` as a user starts it; waits for the first answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_TEMP_DIR": str(tmp_path_factory.mktemp("gradio")),
        "HF_HUB_OFFLINE": "1",
        "EXPLORER_PREPARE": "0",  # else each test's server computes what few tests look at
    }
    environment.pop("SPACE_ID", None)
    server = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address, server)
        yield address
    finally:
        server.terminate()
        server.wait(60)


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    """Return once the page answers; fail if it has ended, or has not answered for ``START_SECONDS``."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(address, timeout=10).close()
            return
        except OSError:
            assert server.poll() is None, "the page did not start"
            assert time.monotonic() < end, f"the page did not answer for {START_SECONDS} s"
            time.sleep(0.1)


SIZE: ViewportSize = {"width": 1440, "height": 900}


@pytest.fixture
def page(request: pytest.FixtureRequest, context: BrowserContext, url: str) -> Iterator[Page]:
    """A page at 1440 x 900. Fails afterwards on any console error, page error or outside request.

    A page of its own, not yet opened; for a test marked ``shared_page`` the one that all of its module share:
    such a test leaves nothing behind but what an address holds, and so it can begin with a visit, which takes
    a fraction of the seconds that opening takes.
    """
    if request.node.get_closest_marker("shared_page"):
        page, trouble = request.getfixturevalue("opened")
        page.set_viewport_size(SIZE)
        page.mouse.move(5, 5)
        page.evaluate(
            """() => { explorer.closePanels(); document.activeElement?.blur(); scrollTo(0, 0);
            for (const close of document.querySelectorAll('.toast-close')) close.click(); }"""
        )
        expect(page.locator(".toast-body")).to_have_count(0)  # messages of the test before
        yield page
    else:
        with _watched(context, url) as (page, trouble):
            yield page
    meant = request.node.get_closest_marker("expects_errors")
    unexpected = [words for words in trouble if meant is None or not re.search(meant.args[0], words)]
    assert not unexpected, unexpected


@pytest.fixture(scope="module")
def opened(context: BrowserContext, url: str) -> Iterator[tuple[Page, list[str]]]:
    """A page that was opened once, and what has gone wrong on it."""
    with _watched(context, url) as (page, trouble):
        page.goto(url)
        page.wait_for_function("window.explorer?.ready", timeout=60_000)
        yield page, trouble


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What all pages share: the page's scripts, fetched and compiled once. The page itself stores nothing in
    a browser (``test_nothing_is_stored``), so that no test meets what another left."""
    context = browser.new_context(viewport=SIZE, reduced_motion="reduce", accept_downloads=True)
    context.set_default_timeout(HANGS)
    yield context
    context.close()


@contextmanager
def _watched(context: BrowserContext, url: str) -> Iterator[tuple[Page, list[str]]]:
    """A new page, and the list that is filled with what goes wrong on it. Requests to elsewhere are named;
    that no name but the page's is resolved is one of ``FLAGS`` (to stop them here would turn off the cache
    of the browser)."""
    page = context.new_page()
    page.set_viewport_size(SIZE)
    trouble: list[str] = []
    page.on("console", lambda m: trouble.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda e: trouble.append(f"page error: {e}"))

    def check(request: Request) -> None:
        if not request.url.startswith((url, "data:", "blob:")):
            trouble.append(f"outside request: {request.url}")

    page.on("request", check)
    yield page, trouble
    page.close()
