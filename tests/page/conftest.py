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
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.page.acts import HANGS, SIZE, new_context, open_page

ROOT = Path(__file__).resolve().parents[2]
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
        server.wait(HANGS / 1000)


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    """Return once the page answers; fail if it has ended, or has not answered for ``START_SECONDS``."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(address, timeout=HANGS / 1000).close()
            return
        except OSError:
            assert server.poll() is None, "the page did not start"
            assert time.monotonic() < end, f"the page did not answer for {START_SECONDS} s"
            time.sleep(0.1)


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What all pages share: the page's scripts, fetched and compiled once."""
    context = new_context(browser, accept_downloads=True)
    yield context
    context.close()


class Watched:
    """A page, and what goes wrong on it. Requests to elsewhere are named; that no name but the page's is
    resolved is one of the browser's ``FLAGS`` (to stop them here would turn off its cache)."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page, self.trouble = context.new_page(), list[str]()
        note, own = self.trouble.append, (url, "data:", "blob:")
        self.page.on("console", lambda m: note(f"console: {m.text}") if m.type == "error" else None)
        self.page.on("pageerror", lambda e: note(f"page error: {e}"))
        self.page.on(
            "request", lambda r: None if r.url.startswith(own) else note(f"outside request: {r.url}")
        )


@pytest.fixture(scope="session")
def opened(context: BrowserContext, url: str) -> Watched:
    """A page that was opened once a worker, for tests marked ``shared_page``: each begins with a visit, which
    takes a fraction of the seconds that opening takes, and leaves nothing but what an address holds. They
    count no steps of its history: Chromium keeps 50."""
    watched = Watched(context, url)
    open_page(watched.page, url)
    return watched


@pytest.fixture
def page(request: pytest.FixtureRequest, context: BrowserContext, url: str) -> Iterator[Page]:
    """A page at 1440 x 900, of the test's own and not yet opened, or the shared one. Fails afterwards on any
    console error, page error or outside request."""
    shared = request.node.get_closest_marker("shared_page") is not None
    watched = request.getfixturevalue("opened") if shared else Watched(context, url)
    page, trouble = watched.page, watched.trouble
    if shared:
        page.set_viewport_size(SIZE)
        page.mouse.move(5, 5)
        page.evaluate(
            """() => { explorer.closePanels(); document.activeElement?.blur(); scrollTo(0, 0);
            for (const close of document.querySelectorAll('.toast-close')) close.click(); }"""
        )
        expect(page.locator(".toast-body")).to_have_count(0)  # messages of the test before
    yield page
    found = [*trouble]
    trouble.clear()
    if not shared:
        page.close()
    meant = request.node.get_closest_marker("expects_errors")
    unexpected = [words for words in found if meant is None or not re.search(meant.args[0], words)]
    assert not unexpected, unexpected


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    """A phone of 390 x 844 px with a touch screen."""
    context = new_context(browser, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context.new_page()
    context.close()
