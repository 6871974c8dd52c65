"""A headless Chromium, for measuring the page and for printing reports."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Browser = Any
"""Of playwright, which is needed for few things and not imported before them."""

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-frame-rate-limit",
    "--disable-gpu-vsync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; ``ValueError`` that names what to install where there is none."""
    api, path = playwright_api(), chromium_path()
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def playwright_api() -> Any:
    """playwright's synchronous interface; ``ValueError`` with installation instructions if it is missing."""
    try:
        return importlib.import_module("playwright.sync_api")
    except ImportError as error:
        raise ValueError("this needs playwright: pip install playwright") from error


def chromium_path() -> str:
    """The browser's executable: ``CHROMIUM``, or the system's; ``ValueError`` if there is none."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise ValueError("this needs Chromium: install it, or set CHROMIUM to its path")
    return path
