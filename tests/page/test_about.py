"""Getting about the page: the list of sections, the picker of schemes, the largest errors; paper and motion.

If these fail, a visitor scrolls 8,000 px for what is one click away, or finds no scheme by its name.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from explorer import SCHEMES
from tests.covering import sampled
from tests.page.test_address import wait_for_query
from tests.page.test_bar import phone  # noqa: F401  (a fixture)
from tests.page.test_browser import drawn, frames, open_page, open_panel

pytestmark = pytest.mark.browser
CONTENTS = ".contents button"
LAST = {"tensor": "Take away", "model": "Sizes", "learn": "Reference"}


@pytest.mark.shared_page
@pytest.mark.parametrize("place", sampled([*LAST], ["model"]))
def test_the_bar_leads_to_every_section(page: Page, url: str, place: str) -> None:
    """One piece for all places: it stays on the screen, the address has the section, which is marked."""
    open_page(page, url, "" if place == "tensor" else f"tab={place}")
    wanted = page.locator(CONTENTS, has_text=LAST[place])
    wanted.focus()
    page.keyboard.press("Enter")
    key = LAST[place].lower().replace(" ", "-")
    wait_for_query(page, f"section={key}")
    expect(page.locator(f"#section-{key}")).to_be_in_viewport()
    expect(wanted).to_have_attribute("aria-current", "location")
    expect(page.locator(f"{CONTENTS}[aria-current]")).to_have_count(1)
    expect(page.locator(".contents")).to_be_in_viewport(ratio=1)
    # A section counts whose heading is in the window's upper third, not only right below the bar.
    name = page.locator(CONTENTS).nth(1).get_attribute("data-section")
    page.wait_for_function(
        """name => {
          scrollBy(0, document.getElementById('section-' + name).getBoundingClientRect().top - 155);
          const now = document.querySelector('.contents [aria-current]').dataset.section;
          return now === name && explorer.sectionAtTop() === name;
        }""",
        arg=name,
    )
    page.mouse.move(700, 600)
    page.mouse.wheel(0, -30_000)
    expect(page.locator(CONTENTS).first).to_have_attribute("aria-current", "location")


def test_on_a_phone_the_list_is_in_the_bar(phone: Page, url: str) -> None:  # noqa: F811
    """It scrolls sideways to what is marked, and a finger hits it."""
    open_page(phone, url)
    wanted = phone.locator(CONTENTS, has_text="Range")
    wanted.tap()
    wait_for_query(phone, "section=calibration")
    expect(phone.locator(f"{CONTENTS}[aria-current]")).to_have_text("Range")
    expect(wanted).to_be_in_viewport(ratio=1)
    assert (size := wanted.bounding_box()) and size["height"] >= 44
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.shared_page
def test_dark_has_an_accent_of_its_own(page: Page, url: str) -> None:
    """The page's and the first look's: that of the light page is too dim on dark, and Gradio's theme sets it
    by a longer selector than one class."""
    open_page(page, url)
    light, dark, first = page.evaluate(
        """() => {
          const look = document.body.appendChild(document.createElement('first-look'));
          const accent = element => getComputedStyle(element).getPropertyValue('--color-accent').trim();
          const light = accent(document.body), was = document.body.classList.contains('dark');
          document.body.classList.add('dark');
          look.classList.add('dark');
          const found = [light, accent(document.querySelector('.goals')), accent(look)];
          document.body.classList.toggle('dark', was);
          look.remove();
          return found;
        }"""
    )
    assert light == "#0072b2" and dark == first == "#3793d1"


@pytest.mark.shared_page
def test_nothing_moves_where_no_motion_is_wanted(page: Page, url: str) -> None:
    """Gradio's own transitions included: the tests' browser asks for reduced motion."""
    open_page(page, url)
    frames(page)
    moving = page.evaluate("""[...document.querySelectorAll('*')].filter(e => {
      const s = getComputedStyle(e);
      return s.animationName !== 'none' || s.transitionDuration.split(',').some(t => parseFloat(t) > 0);
    }).map(e => e.tagName + '.' + e.className)""")
    assert not moving


@pytest.mark.shared_page
def test_paper_cuts_nothing(page: Page, url: str) -> None:
    """On a sheet of A4 figures are at most as wide as it, and no other place is printed; then all is as it
    was."""
    open_page(page, url, "scheme=int4_group32&second=nvfp4")
    drawn(page, "error-map")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wide = (
        "() => [...document.querySelectorAll('.figure .main-svg')].map(e => e.getBoundingClientRect().right)"
    )
    for _ in range(20):  # a figure follows the width of its card
        frames(page, 3)
    edges = page.evaluate(wide)
    assert len(edges) >= 2 and max(edges) <= 718
    assert page.locator("#place-tensor").is_visible() and not page.locator("#place-learn").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate("document.querySelector('#error-map .figure').style.zoom") == ""


@pytest.mark.shared_page
def test_a_section_that_is_folded_is_opened(page: Page, url: str) -> None:
    """The list led to a closed drawer, as if there were nothing."""
    open_page(page, url, "scheme=int4_group32")
    page.locator("#contents [data-section=compare]").click()
    expect(page.locator("#compare-status")).to_be_visible()


@pytest.mark.shared_page
def test_a_click_marks_the_scheme_and_typing_finds_another(page: Page, url: str) -> None:
    """What is typed replaces the text; Enter on the only match takes it; Escape gives the text back."""
    open_page(page, url, "scheme=int4_group32")
    open_panel(page, "a")
    field = page.locator("#preset input")
    field.click()
    expect(page.locator("#panel-a [role=group] .group-name").first).to_have_text(
        "Chosen, shortlisted, recent"
    )
    page.keyboard.type("rceil mxfp4")
    expect(page.locator("#panel-a [role=option]")).to_have_text(["MXFP4 (RCEIL)"])
    expect(page.locator("#panel-a .explained")).to_contain_text("the exponent is rounded up")
    page.keyboard.press("Escape")
    expect(field).to_have_value(SCHEMES["int4_group32"].label)
    field.press("m")
    page.keyboard.type("xfp4_rceil")
    page.keyboard.press("Enter")
    expect(page.locator("#chip-a")).to_have_text("MXFP4 (RCEIL)")
    expect(field).to_have_value("MXFP4 (RCEIL)")
    page.locator("#panel-a").get_by_role("button", name="RCEIL").click()
    expect(page.locator("#explanation")).to_contain_text("NVIDIA")
    page.keyboard.press("Escape")


@pytest.mark.thorough
@pytest.mark.shared_page
def test_a_refused_scheme_leaves_the_name_of_what_is_shown(page: Page, url: str) -> None:
    """The line below the bar says what was wrong with the text."""
    open_page(page, url, "scheme=int4_group32")
    open_panel(page, "a")
    page.locator("#preset input").click()
    page.keyboard.type("int99_nothing")
    page.keyboard.press("Enter")
    expect(page.locator("#notice .status")).to_contain_text("int99_nothing")
    expect(page.locator("#preset input")).to_have_value(SCHEMES["int4_group32"].label)
