"""Take the pictures of a running page: ``python tests/page/take_screenshots.py [URL [FOLDER]]``.

Without a folder they go to ``assets/screenshots``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "screenshots"
FLAGS = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
BOTH = "scheme=int4_group32&second=nvfp4"


class Picture(NamedTuple):
    """What is shown: the address's query, the element that begins it, and one that says it is done."""

    query: str
    top: str
    done: str


PICTURES = {
    "tensor": Picture("second=nvfp4&scheme=int4_group128_asym", "#head", "#frontier-status :text('schemes')"),
    "error": Picture(BOTH, "#section-element", "#error-map .main-svg"),
    "values": Picture(BOTH, "#section-values", "#values-plot .main-svg"),
    "calibration": Picture(f"tab=calibration&{BOTH}", "#section-calibration", "#amount .main-svg"),
    "methods": Picture(f"tab=methods&{BOTH}", "#section-methods", "#methods-sentence p"),
    "learn": Picture("tab=learn", "#head", "#section-picture img"),
    "story": Picture("tab=learn&section=story", "#section-story", "#section-story svg"),
    "survey": Picture("tab=model&section=survey", "#section-survey", "#survey-heat .main-svg"),
    "speed": Picture(f"tab=speed&{BOTH}", "#head", "#speed-bars .main-svg"),
}
THEMES = {"light": (1440, 1180), "dark": (1440, 1180), "phone": (390, 844)}


def take(page: Page, name: str, path: Path) -> None:
    """One picture of an open page."""
    picture = PICTURES[name]
    page.locator(picture.top).scroll_into_view_if_needed()
    if name == "methods":
        page.locator("#section-methods").get_by_role("button", name="Run", exact=True).click()
    # On a phone it may be further down than what is computed at once.
    page.locator(picture.done.split()[0].rstrip(",")).first.scroll_into_view_if_needed()
    page.locator(picture.done).first.wait_for(state="attached")
    page.locator(picture.top).evaluate(
        "e => scrollTo(0, e.getBoundingClientRect().top + scrollY - explorer.contents.bottom() - 12)"
    )
    page.wait_for_timeout(2000)
    page.screenshot(path=path)


def main(url: str = "http://127.0.0.1:7860", folder: str | Path = FOLDER) -> None:
    """Each picture, light and dark at 1440 px, and light at 390 px."""
    Path(folder).mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for theme, (width, height) in THEMES.items():
            for name, picture in PICTURES.items():
                phone = theme == "phone"
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    reduced_motion="reduce",
                    has_touch=phone,
                    is_mobile=phone,
                )
                page = context.new_page()
                page.set_default_timeout(120_000)
                page.goto(f"{url}/?{picture.query}&__theme={'dark' if theme == 'dark' else 'light'}")
                page.wait_for_function("window.explorer?.ready")
                take(page, name, Path(folder) / f"{name}-{theme}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
