"""axe-core finds nothing on any place of the page, light or dark, nor in what opens over it."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.covering import sampled
from tests.page.test_browser import look_at, open_page

pytestmark = pytest.mark.browser

PLACES = {"learn": "tab=learn", "tensor": "scheme=int4_group32&second=nvfp4", "model": "tab=model"}
THEMES = sampled(["light", "dark"], ["light"])
GRADIO = {
    ("scrollable-region-focusable", ".virtual-table-viewport"): (
        "the grid around it takes the focus and scrolls by arrow keys; an empty one has no cell to move to"
    ),
}
"""What is Gradio's own and cannot be mended from outside: (rule, part of a selector) -> why."""
STILL = """() => new Promise(resolve => {
  let last = performance.now();
  const watch = new MutationObserver(() => { last = performance.now(); });
  watch.observe(document.body, {childList: true, subtree: true, characterData: true});
  const began = last, look = () => performance.now() - last > 600 || performance.now() - began > 15000
    ? resolve(watch.disconnect()) : setTimeout(look, 100);
  look();
})"""
"""Resolves when the page has not changed for a while."""


def seen(page: Page) -> None:
    """Every section on the screen once, so that all of them are filled."""
    for section in page.locator(".section").all():
        if section.is_visible():
            look_at(section)
    page.evaluate(STILL)
    page.evaluate("scrollTo(0, 0)")


def check(page: Page, part: str = "") -> None:
    """No violation of axe-core's rules on the page, or in the element that the selector ``part`` names."""
    found = Axe().run(page, context=part or None, options={"resultTypes": ["violations"]}).response
    wrong = [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
        if not any(rule["id"] == known and at in str(node["target"]) for known, at in GRADIO)
    ]
    assert found["passes"] and not wrong, "\n".join(wrong)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("place", sampled(PLACES, ["tensor"]))
def test_a_place(page: Page, url: str, place: str, theme: str) -> None:
    """If it fails, somebody with a screen reader, a keyboard or weak sight misses what ``axe`` names."""
    open_page(page, url, f"{PLACES[place]}&__theme={theme}")
    seen(page)
    check(page)


@pytest.mark.thorough
@pytest.mark.parametrize("theme", THEMES)
def test_what_opens_over_the_page(page: Page, url: str, theme: str) -> None:
    """The bar's panels with all their controls, the keys, and a term's explanation."""
    open_page(page, url, f"{PLACES['tensor']}&__theme={theme}")
    for name in ("tensor", "a", "b"):
        page.locator(f"#chips [data-panel={name}]").click()
        panel = page.locator(f"#panel-{name}")
        expect(panel).to_be_visible()
        for closed in panel.get_by_role("button", name="Scales and rounding").all():
            closed.click()
        check(page, f"#panel-{name}")
        page.keyboard.press("Escape")
    page.keyboard.press("?")
    check(page, "#keys")
    page.keyboard.press("Escape")
    page.locator("nav [data-place=learn]").click()
    page.locator("[data-term]:visible").first.click()
    check(page, "#explanation")


@pytest.mark.thorough
def test_on_a_phone(page: Page, url: str) -> None:
    """One column and the bar at the bottom: what scrolls can be reached by keyboard there, too."""
    page.set_viewport_size({"width": 390, "height": 844})
    open_page(page, url, PLACES["tensor"])
    seen(page)
    check(page)
    page.locator("#chips [data-panel=a]").click()
    check(page, "#bar")
