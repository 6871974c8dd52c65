"""What stands in the address: a link, Back and Forward lead to what was seen, also while an answer is on its
way.

If these fail, a link shows its receiver something else than its sender saw, or Back leads nowhere.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from explorer import SCHEMES
from tests.covering import THOROUGH
from tests.page.acts import (
    Held,
    at_rest,
    filled,
    in_another_window,
    look_at,
    open_page,
    open_panel,
    wait_for_copied_link,
    wait_for_query,
)  # fmt: skip


def numbers(page: Page) -> list[str]:
    """The table of the shortlist, as a visitor reads it."""
    filled(page)
    return page.locator("#shortlist tr").all_inner_texts()


def test_a_link_reproduces_a_view(page: Page, url: str) -> None:
    """B in three clicks; the address says both schemes. In another window the numbers are the sender's; Back
    takes B away, Forward gives it back."""
    open_page(page, url, "scheme=int4_group32")
    open_panel(page, "b")
    page.locator("#pick-b").click()
    page.locator("#panel-b").get_by_role("option", name=SCHEMES["nvfp4"].label, exact=True).first.click()
    expect(page.locator("#shortlist tr.is-b")).to_have_attribute("data-scheme", "nvfp4")
    wait_for_query(page, "second=nvfp4")
    other = in_another_window(page, url)
    expect(other.locator("#chip-b")).to_have_text(SCHEMES["nvfp4"].label)
    assert numbers(other) == numbers(page)
    other.close()
    page.go_back()
    expect(page.locator("#shortlist tr.is-b")).to_have_count(0)
    page.go_forward()
    expect(page.locator("#shortlist tr.is-b")).to_have_count(1)


@THOROUGH
def test_back_and_forward_through_places_and_machines(page: Page, url: str) -> None:
    """A machine is a step of Back, as is a place, whose link can be copied. If this fails, Back leads past
    the machine, or to a machine with another's shape."""
    open_page(page, url, "tab=speed&shape=4096x4096x4096")
    source = page.locator("#section-speed [data-slot=source]")
    shape, machine = page.get_by_label("Tokens × outputs × inputs"), page.get_by_label("Times")
    expect(source).to_contain_text("NVIDIA H200")
    before = page.evaluate("history.length")
    machine.select_option("amd-epyc-2-threads")
    expect(source).to_contain_text("256×4096×4096, the nearest")
    wait_for_query(page, "machine=amd-epyc", "shape=4096x4096x4096")
    assert page.evaluate("history.length") == before + 1
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.locator("#place-learn")).to_be_visible()
    expect(page.locator("#chips")).to_be_hidden()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    wait_for_copied_link(page)
    page.go_back()
    expect(page.locator("#place-speed")).to_be_visible()
    expect(machine).to_have_value("amd-epyc-2-threads")
    page.go_back()
    expect(machine).to_have_value("nearest")
    expect(shape).to_have_value("4096x4096x4096")
    wait_for_query(page, "shape=4096x4096x4096", "!machine")
    page.go_forward()
    expect(source).to_contain_text("AMD EPYC")


FIRST = "scheme=int4_row"


@pytest.mark.shared_page
def test_back_while_an_answer_is_on_its_way(page: Page, url: str) -> None:
    """An answer to what was chosen before does not write the address gone to."""
    open_page(page, url, FIRST)
    page.keyboard.press("]")
    at_rest(page)
    stepped = page.locator("#chip-a").inner_text()
    assert stepped != SCHEMES["int4_row"].label
    held = Held(page)
    held.during(lambda: page.keyboard.press("]"))
    page.go_back()
    held.end()
    at_rest(page)
    expect(page.locator("#chip-a")).to_have_text(SCHEMES["int4_row"].label)
    assert page.evaluate("explorer.query().scheme") == "int4_row"
    expect(page.locator("#shortlist tr.is-a")).to_have_attribute("data-scheme", "int4_row")
    page.go_forward()
    expect(page.locator("#chip-a")).to_have_text(stepped)
    filled(page)
    page.evaluate(
        """() => { const {server} = window.list = explorer.sections.get('frontier'), {view} = server;
        list.answered = () => { server.view = view; list.ask(); };
        server.view = () => new Promise(() => {}); list.ask(); list.ask(true); }"""
    )
    expect(page.locator("#section-frontier[data-behind]")).to_have_count(1)  # more of one that never came
    page.evaluate("list.answered()")
    expect(page.locator("#section-frontier[data-behind]")).to_have_count(0)


LINKS = {
    "nonsense": ("scheme=%3Cscript%3E&sample=zzz&tab=what&source=file", "tensor", "answer"),
    "nonsense for Learn": ("tab=learn&format=what&number=pear&step=99", "learn", "place-learn"),
    "nonsense for Speed": ("tab=speed&range=7&shape=9x9&m=-3", "speed", "section-speed"),
    "steps": ("tab=model&section=steps", "speed", "section-speed-more"),
    "tensor": ("tab=tensor&scheme=nvfp4", "tensor", "answer"),
    "formats": ("tab=formats", "learn", "section-formats"),
    "compare": ("tab=compare&sample=mlp_down", "tensor", "section-frontier"),
    "calibration": ("tab=calibration", "tensor", "section-methods"),
    "methods": ("tab=methods", "tensor", "section-methods"),
    "training": ("tab=training", "learn", "section-training"),
    "a section that moved": ("tab=model&section=speed", "speed", "place-speed"),
    "a survey": ("tab=model&section=survey&budget=4.25", "model", "place-model"),
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
            assert "19.5" in numbers(page)[1]
        elif name == "nonsense for Learn":
            expect(page.locator("#toy-value")).to_have_text("8")
            look_at(page.locator("#section-story"))
            expect(page.locator(".steps-list button").first).to_have_attribute("aria-current", "step")
        elif name == "nonsense for Speed":
            expect(page.locator("#section-speed [data-slot=status]")).to_contain_text("64x8192x8192")
            expect(page.locator("#notice")).to_contain_text("'m'")


@pytest.mark.thorough
def test_the_open_section(page: Page, url: str) -> None:
    """Scrolling writes the section at the top into the address, without entries of its own; a link leads
    there until a hand scrolls away, and so does Back, also from another place, whose button was out of
    sight."""
    open_page(page, url)
    entries = page.evaluate("history.length")
    name = "values"
    top = f"document.getElementById('section-{name}').getBoundingClientRect().top"
    page.wait_for_function(
        f"""() => {{ if ({top} > 110) scrollBy(0, {top} - 100);
        return location.search.includes('section={name}'); }}"""
    )
    assert page.evaluate("history.length") == entries
    other = in_another_window(page, url)
    other.wait_for_function(f"Math.abs({top} - 92) < 60")
    other.mouse.move(700, 500)
    other.mouse.wheel(0, -30_000)
    wait_for_query(other, "!section")
    assert other.evaluate("scrollY") == 0
    other.close()
    page.locator("#bar nav button", has_text="Rounding").click()
    wait_for_query(page, "section=methods")
    at_rest(page)
    page.go_back()
    wait_for_query(page, f"section={name}")
    assert page.evaluate("history.length") == entries + 1
    at_rest(page)
    page.mouse.move(700, 500)
    for _ in range(2):
        page.mouse.wheel(0, -500)
        at_rest(page)
    page.get_by_role("button", name="Speed", exact=True).click()
    wait_for_query(page, "tab=speed", "!section")
    page.go_back()
    wait_for_query(page, f"section={name}")
    page.wait_for_function(f"Math.abs({top} - 92) < 60")
