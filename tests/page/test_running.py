"""Stop is on the page while something runs, and at no other time.

If this fails, a visitor sees a button that stops nothing, or cannot stop what runs.
"""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.covering import THOROUGH
from tests.page.acts import click, open_page


@THOROUGH
def test_stop_is_there_while_something_runs(page: Page, url: str) -> None:
    """It goes when the run was stopped; what was said of the stop goes at the next start."""
    open_page(page, url, "tab=learn&section=training&seeds=10&epochs=60&again=60")
    training = page.locator("#section-training")
    start = training.get_by_role("button", name="Train", exact=True)
    stop, status = training.get_by_role("button", name="Stop"), training.locator("[data-slot=status]")
    expect(stop).to_be_hidden()
    click(page, start)
    expect(start).to_be_disabled()
    expect(status).to_contain_text(re.compile("[0-9]"))
    stop.click()
    expect(status).to_contain_text("what was finished is shown")
    expect(stop).to_be_hidden()
    expect(start).to_be_enabled()
    click(page, start)
    expect(status).not_to_contain_text("what was finished is shown")
    stop.click()
    expect(stop).to_be_hidden()
