"""The bar and its panels under the hand: by mouse, keys and touch, on a desk and on a phone.

If these fail, a visitor chooses without seeing what it does, or cannot choose without a mouse.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from app.places import PLACES
from explorer import SCHEMES
from tests.covering import THOROUGH
from tests.page.acts import (
    at_rest,
    drawn,
    leave_panel,
    look_at,
    open_page,
    point_of,
    visit,
    wait_for_copied_link,
    wait_for_query,
)  # fmt: skip

BOTH = "scheme=int4_group32&second=nvfp4"
LONGEST = sorted(SCHEMES, key=lambda name: len(SCHEMES[name].label))[-4:]
CONTENTS = ".contents button"


def chip(page: Page, side: str, scheme: str) -> None:
    expect(page.locator(f"#chip-{side}")).to_have_text(SCHEMES[scheme].label)


@pytest.mark.shared_page
def test_keys_alone(page: Page, url: str) -> None:
    """A panel opens with its lists closed, as no list hides the controls below; a key opens the first one,
    and what is typed replaces its text; Tab leaves no list open. The page's keys swap, step and show
    themselves, but not in a box; a row is taken and keeps the focus."""
    open_page(page, url, BOTH)
    page.locator("#chips [data-panel=a]").focus()
    page.keyboard.press("Enter")
    field, lists = page.locator("#pick-a"), page.locator("#panel-a ul.option-list")
    expect(field).to_be_focused()
    at_rest(page)
    expect(lists).to_have_count(0)
    page.keyboard.press("ArrowDown")
    expect(lists).to_have_count(1)
    page.keyboard.press("Escape")
    for _ in range(4):
        page.keyboard.press("Tab")
        at_rest(page)
        assert lists.count() <= 1
    field.focus()
    page.keyboard.type("rceil mxfp4")
    expect(page.locator("#panel-a [role=option]")).to_have_text(["MXFP4 (RCEIL)"])
    page.keyboard.press("Escape")
    expect(field).to_have_value(SCHEMES["int4_group32"].label)
    field.press("m")
    page.keyboard.type("xfp4_rceil")
    page.keyboard.press("Enter")
    chip(page, "a", "mxfp4_rceil")
    wait_for_query(page, "scheme=mxfp4_rceil")
    expect(field).to_have_value("MXFP4 (RCEIL)")
    field.press("x")
    chip(page, "a", "mxfp4_rceil")
    leave_panel(page)
    page.keyboard.press("x")
    chip(page, "a", "nvfp4")
    page.keyboard.press("]")
    expect(page.locator("#chip-a")).not_to_have_text(SCHEMES["nvfp4"].label)
    page.keyboard.press("[")
    chip(page, "a", "nvfp4")
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#keys")).not_to_be_visible()
    visit(page, "scheme=int4_group128_asym&second=nvfp4")
    page.locator("#shortlist [data-take=mxfp4][data-side=b]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#shortlist tr.is-b")).to_have_attribute("data-scheme", "mxfp4")
    at_rest(page)
    expect(page.locator("#shortlist [data-take=mxfp4][data-side=b]")).to_be_focused()


def cut(page: Page, selector: str) -> list[str]:
    """The texts of visible boxes and buttons that are wider or higher than what shows them."""
    return page.evaluate(
        """selector => [...document.querySelectorAll(selector)].filter(e => e.offsetWidth
          && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1))
          .map(e => e.value || e.textContent)""",
        selector,
    )


def high(button: Locator, least: float = 44) -> dict[str, float]:
    """A button's place, which a finger hits."""
    size = button.bounding_box()
    assert size and size["height"] >= least
    return dict(size)


def test_a_phone_has_every_act(phone: Page, url: str) -> None:
    """Swap, Remove B, Copy link and the keys are two touches away, and large enough for a finger; the list of
    sections scrolls to what is marked; nothing is cut for the longest names; a sheet that covers what a
    choice does closes after it."""
    open_page(phone, url, f"scheme={LONGEST[-1]}&second={LONGEST[0]}")
    narrow = "document.documentElement.scrollWidth <= 390"
    assert not cut(phone, "#chips .chip")
    for name in ("tensor", "a", "b"):
        phone.locator(f"#chips [data-panel={name}]:visible").tap()
        expect(phone.locator(f"#panel-{name}")).to_be_visible()
        at_rest(phone)
        assert not cut(phone, f"#panel-{name} input[role=combobox]") and phone.evaluate(narrow)
        phone.locator(f"#chips [data-panel={name}]:visible").tap()
    phone.locator("#chips [data-panel=a]").tap()
    phone.locator("#pick-a").tap()
    label = SCHEMES["mxfp4"].label
    phone.locator("#panel-a").get_by_role("option", name=label, exact=True).first.tap()
    expect(phone.locator("#panel-a")).to_be_hidden()
    chip(phone, "a", "mxfp4")
    at_rest(phone)
    for button in phone.locator("#chips button:visible").all():
        size = high(button)
        assert size["width"] >= 44 and size["x"] >= 0 and size["x"] + size["width"] <= 390
    more = phone.get_by_role("button", name="More")
    more.tap()
    acts = phone.locator("#chips .acts button")
    expect(acts).to_have_count(4)
    for button in acts.all():
        high(button)
    phone.get_by_role("button", name="Copy link").tap()
    wait_for_copied_link(phone)
    phone.get_by_role("button", name="Keys").tap()
    phone.locator("dialog#keys button").tap()
    more.tap()
    phone.get_by_role("button", name="Remove B").tap()
    expect(phone.locator("#shortlist tr.is-b")).to_have_count(0)
    expect(phone.locator("#chips .acts")).to_be_hidden()
    wanted = phone.locator(CONTENTS).last
    name = wanted.get_attribute("data-section")
    wanted.tap()
    wait_for_query(phone, f"section={name}")
    expect(phone.locator(f"{CONTENTS}[aria-current]")).to_have_attribute("data-section", str(name))
    expect(wanted).to_be_in_viewport(ratio=1)
    high(wanted)
    assert phone.evaluate(narrow)


@THOROUGH
def test_touch_chooses_a_and_b(phone: Page, url: str) -> None:
    """A finger has no Shift: the row's buttons, and the switch at the figure. A part of the error map is
    dragged out once Zoom was pressed: the histogram is of that part, and the next drag scrolls again."""
    open_page(phone, url)
    phone.locator("#shortlist [data-take=mxfp4][data-side=a]").tap()
    expect(phone.locator("#shortlist tr.is-a")).to_have_attribute("data-scheme", "mxfp4")
    phone.locator("#frontier-card [data-takes=b]").tap()
    expect(phone.locator("#frontier-card [data-takes=b]")).to_have_attribute("aria-pressed", "true")
    look_at(phone.locator("#frontier"))
    phone.touchscreen.tap(*point_of(phone, "q4_k"))
    expect(phone.locator("#shortlist tr.is-b")).to_have_attribute("data-scheme", "q4_k")
    expect(phone.locator("#frontier [data-kind=reset]")).to_be_hidden()
    figure, box = phone.locator("#error-map .figure"), phone.locator("#error-map")
    drawn(phone, "error-map")
    zoom = box.get_by_role("button", name="Zoom", exact=True)
    zoom.tap()
    expect(zoom).to_have_attribute("aria-pressed", "true")
    figure.evaluate("p => p.scrollIntoView({block: 'center'})")
    at_rest(phone)
    left, top, wide, tall = figure.evaluate(
        """p => { const b = p.getBoundingClientRect(), {xaxis: x, yaxis: y} = p._fullLayout;
        return [b.left + x._offset, b.top + y._offset, x._length, y._length]; }"""
    )
    touch = phone.context.new_cdp_session(phone)
    for kind, part in (("touchStart", 0.25), ("touchMove", 0.4), ("touchMove", 0.6), ("touchEnd", None)):
        points = [{"x": left + wide * part, "y": top + tall * part}] if part else []
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    expect(box.get_by_role("button", name="Reset zoom")).to_be_visible()
    expect(zoom).to_have_attribute("aria-pressed", "false")
    look_at(phone.locator("#error-plot .figure"))
    expect(phone.locator("#error-plot .annotation-text").first).to_contain_text("only rows")


@pytest.mark.thorough
@pytest.mark.shared_page
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.NAME)
def test_the_bar_leads_to_every_section(page: Page, url: str, place: Any) -> None:
    """One piece for all places: it stays on the screen, the address has the section, which is marked."""
    open_page(page, url, "" if place.NAME == "tensor" else f"tab={place.NAME}")
    for key in [section.name for section in place.SECTIONS if section.title][-2:]:
        wanted = page.locator(f"{CONTENTS}[data-section={key}]")
        wanted.focus()
        page.keyboard.press("Enter")
        wait_for_query(page, f"section={key}")
        at_rest(page)
        expect(page.locator(f"#section-{key}")).to_be_in_viewport()
        expect(wanted).to_have_attribute("aria-current", "location")
    expect(page.locator(f"{CONTENTS}[aria-current]")).to_have_count(1)
    expect(page.locator(".contents")).to_be_in_viewport(ratio=1)
    page.mouse.move(700, 600)
    page.mouse.wheel(0, -60_000)
    expect(page.locator(CONTENTS).first).to_have_attribute("aria-current", "location")
