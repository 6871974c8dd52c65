"""What stands in the address: a link, Back and Forward lead to what was seen, also while an answer is on its
way.

If these fail, a link shows its receiver something else than its sender saw, or Back leads nowhere.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.sections.speed_machines import choices as machines
from explorer import SCHEMES
from tests.covering import THOROUGH
from tests.page.acts import (
    JOIN,
    Held,
    at_rest,
    in_another_window,
    look_at,
    open_page,
    open_panel,
    wait_for_copied_link,
    wait_for_query,
)  # fmt: skip


def numbers(page: Page) -> list[str]:
    return page.locator("#kpis .v").all_inner_texts()


def test_a_link_reproduces_a_view(page: Page, url: str) -> None:
    """B in three clicks; the address says both schemes and the element. In another window no other view is
    shown before the link's, whose numbers are the sender's; Back takes B away, Forward gives it back."""
    open_page(page, url, "scheme=int4_group32&row=10&column=20")
    open_panel(page, "b")
    page.locator("#second-preset input").click()
    page.locator("#panel-b").get_by_role("option", name=SCHEMES["nvfp4"].label, exact=True).first.click()
    expect(page.locator("#kpis .side-b")).to_have_count(6)
    wait_for_query(page, "second=nvfp4")
    at_rest(page)
    other = page.context.new_page()
    held: list[Any] = []
    other.route(JOIN, lambda route: held.append(route), times=1)
    with other.expect_request(JOIN):
        other.goto(page.url)
    other.locator("#kpis .v").first.wait_for(state="attached")
    for part in ("#which .words", "#chip-a"):
        expect(other.locator(part)).to_be_hidden()
    assert not other.evaluate("window.explorer.ready")
    held[0].continue_()
    at_rest(other)
    expect(other.locator("#chip-b")).to_have_text(SCHEMES["nvfp4"].label)
    expect(other.locator("#inspector h3")).to_contain_text("(10, 20)")
    assert numbers(other) == numbers(page)
    other.close()
    page.go_back()
    expect(page.locator("#kpis .side-b")).to_have_count(0)
    page.go_forward()
    expect(page.locator("#kpis .side-b")).to_have_count(6)


@THOROUGH
@pytest.mark.shared_page
def test_back_and_forward_through_places_and_machines(page: Page, url: str) -> None:
    """A machine is a step of Back, with the shape that it is shown at, as is a
    place, whose link can be copied. If this fails, Back leads past the machine, or to a machine with
    another's shape."""
    open_page(page, url, "tab=speed&shape=4096x4096x4096")
    source, shape = page.locator("#speed-source"), page.locator("#speed-shape input")
    look_at(source)
    expect(source).to_contain_text("NVIDIA H200")
    before = page.evaluate("history.length")
    page.get_by_label("Recorded on AMD EPYC").check()
    wait_for_query(page, "machine=amd-epyc", "!shape=4096x4096x4096", "shape=")
    near = shape.input_value()
    assert page.evaluate("history.length") == before + 1
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.locator("#place-learn")).to_be_visible()
    expect(page.locator("#chips")).to_be_hidden()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    wait_for_copied_link(page)
    page.go_back()
    expect(page.locator("#place-model")).to_be_visible()
    expect(shape).to_have_value(near)
    page.go_back()
    expect(page.get_by_label(machines()[0][0])).to_be_checked()
    expect(shape).to_have_value(re.compile("^4096×4096×4096"))
    wait_for_query(page, "shape=4096x4096x4096", "!machine")
    page.go_forward()
    expect(source).to_contain_text("AMD EPYC")
    expect(shape).to_have_value(near)


GOING = "document.documentElement.hasAttribute('data-going')"
FIRST = "scheme=int4_row&row=3&column=4"


def shows(page: Page, scheme: str, element: str) -> None:
    """Every name of the scheme and the element is this one."""
    at_rest(page)
    label = SCHEMES[scheme].label
    expect(page.locator("#chip-a")).to_have_text(label)
    expect(page.locator("#which .scheme").first).to_contain_text(label)
    expect(page.locator("#preset input")).to_have_value(label)
    expect(page.locator("#inspector h3")).to_contain_text(f"({element})")
    row, column = element.split(", ")
    wait_for_query(page, f"scheme={scheme}&", f"row={row}", f"column={column}")


@pytest.mark.shared_page
def test_back_while_an_answer_is_on_its_way(page: Page, url: str) -> None:
    """Where Back leads is said until it is there, and the view that is left is dimmed. An answer to what was
    chosen before does not write the address gone to, and the page does not count it as shown."""
    open_page(page, url, FIRST)
    page.keyboard.press("]")
    at_rest(page)
    held = Held(page)
    held.during(lambda: page.keyboard.press("]"))
    page.go_back()
    line = page.locator(".page-notice")
    expect(line).to_contain_text("int4_row")
    assert page.evaluate(GOING)
    expect(page.locator("#which")).to_have_css("opacity", "0.35")
    held.during(held.let_go)
    expect(line).to_contain_text("int4_row")
    held.end()
    shows(page, "int4_row", "3, 4")
    expect(line).to_have_count(0)
    assert not page.evaluate(GOING)
    held = Held(page)
    held.during(lambda: page.keyboard.press("]"))
    version = page.evaluate(
        """query => { history.pushState(null, '', '?' + query);
        dispatchEvent(new PopStateEvent('popstate'));
        return explorer.version; }""",
        there := "scheme=int4_row&row=7&column=8",
    )
    held.during(held.let_go)
    expect(page.locator("#chip-a")).not_to_have_text(SCHEMES["int4_row"].label)
    assert page.evaluate("[explorer.version, location.search]") == [version, f"?{there}"]
    held.end()
    shows(page, "int4_row", "7, 8")


@THOROUGH
@pytest.mark.shared_page
def test_a_server_that_hangs_is_said(page: Page, url: str) -> None:
    """With the seconds, which go on; what was asked is shown when the answer comes after all, and the line
    goes. A connection that breaks after the answer takes nothing back."""
    open_page(page, url, FIRST)
    usual = page.evaluate("explorer.silentMs")
    held = Held(page)
    page.evaluate("explorer.silentMs = 300")
    held.during(lambda: page.keyboard.press("]"))
    line = page.locator(".page-notice")
    said = re.compile(r"for (\d+) s")
    expect(line).to_contain_text(said)
    first = said.search(line.inner_text())
    assert first
    expect(line).not_to_contain_text(first[0])
    expect(line).to_contain_text(said)
    expect(page.locator("#chip-a")).to_have_text(SCHEMES["int4_row"].label)
    held.end()
    expect(line).to_have_count(0)
    expect(page.locator("#chip-a")).not_to_have_text(SCHEMES["int4_row"].label)
    page.evaluate("usual => { explorer.silentMs = usual; }", usual)
    at_rest(page)
    record = page.evaluate("JSON.stringify(explorer.record)")
    page.evaluate(
        """() => {
            const number = explorer.requests += 1;
            explorer.sent = {number, acts: [{do: 'step', name: 'a', by: 1}], visits: explorer.visits};
            const held = (explorer.held || []).map(() => null);
            explorer.answer = {number, record: {...explorer.record, source: 'answered'}, held};
            explorer.lost();
        }"""
    )
    page.wait_for_function("explorer.sent === null")
    expect(line).to_have_count(0)
    assert page.evaluate("explorer.record.source") == "answered"
    page.evaluate("record => { explorer.record = JSON.parse(record); }", record)


LINKS = {
    "nonsense": ("scheme=%3Cscript%3E&sample=zzz&tab=what&source=file", "tensor", "answer"),
    "nonsense for Learn": ("tab=learn&format=what&number=pear&step=99", "learn", "place-learn"),
    "nonsense for Speed": ("tab=speed&range=7&shape=9x9&m=-3&n=1.5&k=x", "model", "section-speed"),
    "tensor": ("tab=tensor&scheme=nvfp4", "tensor", "answer"),
    "formats": ("tab=formats", "learn", "section-formats"),
    "compare": ("tab=compare&sample=mlp_down", "tensor", "section-frontier"),
    "calibration": ("tab=calibration", "tensor", "section-calibration"),
    "methods": ("tab=methods", "tensor", "section-methods"),
    "training": ("tab=training", "learn", "section-training"),
}


@THOROUGH
@pytest.mark.parametrize(
    "links", [[*LINKS][:2], pytest.param([*LINKS][2:], marks=pytest.mark.thorough)], ids=len
)
def test_old_and_broken_links(page: Page, url: str, links: list[str]) -> None:
    """A mistyped or hostile link shows the defaults, and its words are not run; what a link of an earlier
    page called a tab is scrolled to now, in the place that holds it."""
    for name in links:
        query, place, element = LINKS[name]
        open_page(page, url, query)
        assert page.evaluate("document.documentElement.dataset.place") == place, name
        expect(page.locator(f"#{element}")).to_be_in_viewport()
        if name == "nonsense":
            assert "19.47" in numbers(page)[0]
        elif name == "nonsense for Learn":
            expect(page.locator("#toy-value")).to_have_text("8")
            expect(page.locator(".steps-list button").first).to_have_attribute("aria-current", "step")
        elif name == "nonsense for Speed":
            expect(page.locator("#speed-shape input")).to_have_value(re.compile("^4096×4096×4096"))
            page.get_by_text("Measure on this machine").click()
            for label, value in (("M (tokens)", "512"), ("N", "1536"), ("K", "384")):
                expect(page.get_by_label(label, exact=True)).to_have_value(value)


@pytest.mark.thorough
def test_the_open_section(page: Page, url: str) -> None:
    """Scrolling writes the section at the top into the address, without entries of its own; a link leads
    there until a hand scrolls away, and so does Back."""
    open_page(page, url)
    entries = page.evaluate("history.length")
    arrived = "Math.abs(document.getElementById('section-element').getBoundingClientRect().top - 70) < 40"
    page.wait_for_function(
        """() => { const box = document.getElementById('section-element').getBoundingClientRect();
        if (box.top > 75) scrollBy(0, box.top - 70);
        return location.search.includes('section=element'); }"""
    )
    assert page.evaluate("history.length") == entries
    other = in_another_window(page, url)
    other.wait_for_function(arrived)
    other.mouse.move(700, 500)
    other.mouse.wheel(0, -30_000)
    wait_for_query(other, "!section")
    assert other.evaluate("scrollY") == 0
    other.close()
    page.get_by_role("button", name="Model and hardware").click()
    wait_for_query(page, "tab=model", "!section")
    page.go_back()
    wait_for_query(page, "section=element")
    page.wait_for_function(arrived)
    assert page.evaluate("history.length") == entries + 1
