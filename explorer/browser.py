"""A headless Chromium, for measuring the page and for printing reports."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Browser = Any
"""A browser of playwright, which is imported only where one is needed."""

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
    """Open a headless Chromium; ``ValueError`` tells what to install if there is none."""
    api, path = playwright_api(), chromium_path()
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def playwright_api() -> Any:
    """Return playwright's synchronous interface; ``ValueError`` tells how to install it."""
    try:
        return importlib.import_module("playwright.sync_api")
    except ImportError as error:
        raise ValueError("this needs playwright: pip install playwright") from error


def chromium_path() -> str:
    """Return the browser's executable, ``CHROMIUM`` or the system's; ``ValueError`` if there is none."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise ValueError("this needs Chromium: install it, or set CHROMIUM to its path")
    return path
