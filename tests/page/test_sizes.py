"""Sizes as a visitor sees it: the memory of a model's cache by context.

If this fails, a choice of storage is not drawn, or another model's cache is.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.page.test_browser import open_page

pytestmark = pytest.mark.browser


def test_a_chosen_storage_is_drawn_and_said(page: Page, url: str) -> None:
    """Opened by the mouse; then the model: Mistral-7B has a window, Llama-2-7B none. Both are in
    the address, and Back leads to what was chosen before."""
    open_page(page, url, "tab=model&section=sizes")
    plot = page.locator("#cache-size")
    expect(plot.locator(".legendtext").nth(1)).to_have_text("FP8, one fixed scale a layer")
    page.get_by_label("Keys and values stored as").click()
    page.get_by_role("option", name="NVFP4").click()
    expect(plot.locator(".legendtext").nth(1)).to_have_text("NVFP4")
    sentence = page.locator("#cache-size-said")
    expect(sentence).to_contain_text("17.2 GB in 16 bits and 4.83 GB as chosen")
    page.get_by_label("Model", exact=True).last.click()
    page.get_by_role("option", name="Mistral-7B 0.1").click()
    expect(sentence).to_contain_text("the last 4,096 tokens alone")
    count = page.locator("#sizes-billions input")
    expect(count).to_have_count(0)
    lines = plot.locator(".scatterlayer .js-line")
    expect(lines).to_have_count(2)
    expect(plot.locator(".xtick text", has_text="16,384")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"sized=Mistral-7B.*stored=NVFP4|stored=NVFP4.*sized=Mistral-7B"))
    page.go_back()
    expect(sentence).to_contain_text("17.2 GB in 16 bits and 4.83 GB as chosen")
    page.go_back()
    expect(page.get_by_label("Keys and values stored as")).to_have_value("FP8, one fixed scale a layer")
    expect(plot.locator(".legendtext").nth(1)).to_have_text("FP8, one fixed scale a layer")
    boxes = [line.bounding_box() for line in lines.all()]
    page.get_by_label("Model", exact=True).last.click()
    page.get_by_role("option", name="by parameter count").click()
    for typed, kept in (("3", True), ("-5", False), ("0", False)):
        count.fill(typed)
        count.press("Tab")
        expect(page).to_have_url(re.compile(r"billions=3" if kept else r"^(?!.*billions=)"))
        if not kept:
            expect(page.locator(".toast-body", has_text=f"not {typed}")).to_be_visible()
    assert all(box and box["width"] > 200 and box["height"] > 20 for box in boxes)
