"""Take the pictures of a running page: ``python tests/page/take_screenshots.py [URL [FOLDER]]``.

Without a folder they go to ``assets/screenshots``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from app.learn import training
from app.tabs import TABS, compare
from explorer.training.digits import count

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "screenshots"
FLAGS = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]


def prepare(page: Page, tab: str) -> None:
    """Bring the tab into the state worth showing."""
    if tab == "compare":
        page.get_by_role("button", name="Compare these").click()
        page.locator("#compare-status").get_by_text(
            f"{len(compare.USUAL)} of {len(compare.USUAL)}"
        ).wait_for()
    if tab == "calibration":
        page.get_by_role("button", name="Calibrate").click()
        page.get_by_text("one scale for all").wait_for()
    if tab == "methods":
        page.locator("#methods-sentence").get_by_text("leaves the least error").wait_for()
    if tab == "learn":
        page.get_by_role("button", name="Train", exact=True).click()
        networks = count(training.USUAL, training.USUAL_SEEDS)
        page.locator("#training-status").get_by_text(f"{networks} of {networks}").wait_for()
    page.wait_for_timeout(1500)


def main(url: str = "http://127.0.0.1:7860", folder: str | Path = FOLDER) -> None:
    """Each tab, light and dark at 1440 px, and light at 390 px."""
    Path(folder).mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for theme, width, height in (("light", 1440, 1180), ("dark", 1440, 1180), ("light", 390, 844)):
            for tab in (tab.NAME for tab in TABS):
                page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
                page.set_default_timeout(120_000)
                page.goto(f"{url}/?tab={tab}&__theme={theme}")
                page.wait_for_function("window.explorer?.ready")
                if width > 1000 or tab != "compare":
                    prepare(page, tab)
                suffix = theme if width > 1000 else "phone"
                page.screenshot(path=Path(folder) / f"{tab}-{suffix}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
