"""Take the pictures of a running page: ``python -m tests.page.take_screenshots [URL [FOLDER]]``.

Without a folder those of ``assets/screenshots``, which the README shows, are taken anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.conftest import FLAGS
from tests.page.acts import at_rest, filled, look_at, new_context

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "screenshots"
BOTH = "scheme=int4_group32&second=nvfp4"
DECODED = r"""() => Promise.all([...document.querySelectorAll('*')]
  .map(e => e.currentSrc || getComputedStyle(e).backgroundImage.match(/^url\("(.*)"\)$/)?.[1])
  .filter(Boolean).map(src => Object.assign(new Image(), {src}).decode().catch(() => src)))"""
"""Resolves when the pictures of the page are there."""

PICTURES = {
    "tensor": ("second=nvfp4&scheme=int4_group128_asym", "#head"),
    "error": (BOTH, "#section-element"),
    "values": (BOTH, "#section-values"),
    "calibration": (f"tab=calibration&{BOTH}", "#section-calibration"),
    "methods": (f"tab=methods&{BOTH}", "#section-methods"),
    "learn": ("tab=learn", "#head"),
    "story": ("tab=learn&section=story", "#section-story"),
    "survey": ("tab=model", "#section-budget"),
    "speed": (f"tab=speed&{BOTH}", "#head"),
}
"""What is shown: the address's query, and the element that begins it."""
RUNS = {"methods": "Run", "calibration": "Compare the ranges"}
"""Buttons that are pressed before."""
THEMES = {"light": (1440, 1180), "dark": (1440, 1180), "phone": (390, 844)}


def take(page: Page, name: str, path: Path) -> None:
    """One picture of an open page."""
    top = page.locator(PICTURES[name][1])
    look_at(top)
    if name in RUNS:
        page.locator(PICTURES[name][1]).get_by_role("button", name=RUNS[name], exact=True).click()
    filled(page)
    page.evaluate(DECODED)
    top.evaluate(
        "e => scrollTo(0, e.getBoundingClientRect().top + scrollY - explorer.contents.bottom() - 12)"
    )
    at_rest(page)
    page.screenshot(path=path)


def main(url: str = "http://127.0.0.1:7860", folder: str | Path = FOLDER) -> None:
    """Each picture, light and dark at 1440 px, and light at 390 px."""
    Path(folder).mkdir(exist_ok=True)
    shown = {path.stem for path in FOLDER.glob("*.png")} if folder == FOLDER else None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for theme, (width, height) in THEMES.items():
            for name, (query, _) in PICTURES.items():
                if shown is not None and f"{name}-{theme}" not in shown:
                    continue
                phone = theme == "phone"
                size = {"width": width, "height": height}
                context = new_context(browser, viewport=size, has_touch=phone, is_mobile=phone)
                page = context.new_page()
                page.goto(f"{url}/?{query}&__theme={'dark' if theme == 'dark' else 'light'}")
                take(page, name, Path(folder) / f"{name}-{theme}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
