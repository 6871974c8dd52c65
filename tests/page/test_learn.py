"""The place Learn in a real browser: the playground, the story, the glossary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from app.learn import playground, story
from app.theme import HEAD
from tests.covering import sampled
from tests.page.test_browser import look_at

SEEN = """() => [...document.querySelectorAll("#toy .bit, #toy-value, #toy .formula")]
  .map(part => part.textContent).join("|")"""


def open_learn(page: Page, url: str) -> None:
    page.goto(f"{url}/?tab=learn")
    expect(page.locator("#toy .bit").first).to_be_visible()


@pytest.fixture
def chapter(browser: Browser) -> Iterator[Page]:
    """The chapters that run in the browser, without the server: nothing of them may need it."""
    page = browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    trouble: list[str] = []
    page.on("pageerror", lambda e: trouble.append(str(e)))
    head = f'<!doctype html><head><meta charset="utf-8">{HEAD}</head>'
    body = f"{head}<body>{playground.playground()}{story.story()}</body>"
    page.route("http://chapters/**", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.route("http://chapters/", lambda route: route.fulfill(body=body, content_type="text/html"))
    page.goto("http://chapters/")
    for start in (playground.ON_LOAD, story.ON_LOAD):
        page.evaluate(f"() => {{ const element = document.body; {start}; }}")
    yield page
    page.close()
    assert not trouble, trouble


def pick(page: Page, fmt: str) -> None:
    page.locator("#format-picker").select_option(fmt)


def test_the_bit_toy(page: Page, url: str) -> None:
    """Click a bit, flip one with the keyboard, type a number."""
    open_learn(page, url)
    value = page.locator("#toy-value")
    expect(value).to_have_text("8")
    page.locator("#toy button[data-bit='0']").click()
    expect(value).to_have_text("9")
    page.locator("#toy button[data-bit='0']").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")
    expect(value).to_have_text("11")
    expect(page.locator("#toy button[data-bit='1']")).to_be_focused()
    page.locator("#number-entry").fill("0.1")
    expect(value).to_have_text("0.1015625")


def test_another_format_keeps_the_number(chapter: Page) -> None:
    """The wide format's bits cut down would be another number; and nothing is lost on the way back."""
    pick(chapter, "float32")
    chapter.locator("#number-entry").fill("3.14159")
    pick(chapter, "int4")
    expect(chapter.locator("#toy-value")).to_have_text("3")
    expect(chapter.locator("#number-entry")).to_have_value("3.14159")
    pick(chapter, "float32")
    expect(chapter.locator("#toy-value")).to_have_text("3.14159")


def test_an_integers_first_bit_is_no_sign(chapter: Page) -> None:
    """0b1011 in INT4 is -8 + 3, not "sign 1, magnitude 3"."""
    pick(chapter, "int4")
    chapter.locator("#number-entry").fill("0b1011")
    expect(chapter.locator("#toy-value")).to_have_text("−5")
    expect(chapter.locator("#toy .formula")).to_have_text("two's complement: −8·1 + 4·0 + 2·1 + 1·1 = −5")
    expect(chapter.locator("#toy button[data-bit='3']")).to_have_attribute(
        "aria-label", "bit 3, two's complement, weight −8"
    )


@pytest.mark.parametrize("entry", ["pear", "0x1FF", "0b2", ""])
def test_a_refused_entry_says_why_and_stays(chapter: Page, entry: str) -> None:
    """The box keeps what was typed and is marked, the message says what is accepted, the number stays."""
    box = chapter.locator("#number-entry")
    box.fill(entry)
    box.press("Enter")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(box).to_have_value(entry)
    expect(chapter.locator("#number-problem")).not_to_be_empty()
    expect(chapter.locator("#toy-value")).to_have_text("8")
    box.fill("2")
    expect(box).to_have_attribute("aria-invalid", "false")
    expect(chapter.locator("#number-problem")).to_be_empty()


def test_nan_without_a_code_for_it_is_said(chapter: Page) -> None:
    chapter.locator("#number-entry").fill("nan")
    pick(chapter, "int4")
    expect(chapter.locator("#number-problem")).to_contain_text("INT4 has no code for NaN")
    pick(chapter, "float8_e4m3fn")
    expect(chapter.locator("#toy-value")).to_have_text("NaN")


def test_the_number_line_gives_its_values(chapter: Page) -> None:
    """Hovering names a value, a click takes it, and the three scales all draw."""
    line = chapter.locator("#number-line")
    for view in ("Log", "Close-up", "Linear"):
        chapter.get_by_role("button", name=view, exact=True).click()
        assert line.locator("path.levels").count() == 9
    look_at(line)
    box = line.bounding_box()
    assert box
    chapter.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 45)
    expect(line.locator(".tip")).to_contain_text("FP4 E2M1: ")
    chapter.mouse.down()
    chapter.mouse.up()
    expect(chapter.locator("#format-picker")).to_have_value("float4_e2m1fn")


def number(page: Page, name: str) -> float:
    """One of the story's numbers, such as "21.0 dB" or "7 of 32"."""
    return float(page.locator(f"[data-number={name}]").inner_text().split()[0].replace("−", "-"))


def test_the_story_moves_under_the_hand(chapter: Page) -> None:
    """Steps by list and buttons; the outlier drawn up by the pointer and by the keyboard; choices."""
    steps = chapter.locator(".steps-list button")
    steps.nth(1).click()
    expect(chapter.get_by_role("heading", name="One outlier")).to_be_visible()
    look_at(chapter.locator("#story-picture"))
    before = number(chapter, "others")
    grip = chapter.locator("#story-picture .handle").bounding_box()
    assert grip
    chapter.mouse.move(grip["x"] + 14, grip["y"] + 14)
    chapter.mouse.down()
    chapter.mouse.move(grip["x"] + 14, grip["y"] + 150, steps=5)
    chapter.mouse.up()
    drawn = number(chapter, "others")
    assert drawn > before + 3
    chapter.locator("[data-slider=outlier] input").press("End")
    assert number(chapter, "others") < drawn
    chapter.locator("#learn-story").get_by_role("button", name="Next").click()
    expect(steps.nth(2)).to_have_attribute("aria-current", "step")
    options = chapter.locator("#learn-story .options button")
    options.first.click()
    one = number(chapter, "sqnr")
    options.last.click()
    assert number(chapter, "sqnr") > one
    chapter.locator("#learn-story").get_by_role("button", name="Back").click()
    expect(steps.nth(1)).to_have_attribute("aria-current", "step")


def test_a_click_is_answered_before_it_returns(chapter: Page) -> None:
    """Bits, value and formula are right when the click's own task ends, without a request: how long that
    takes is measured by ``python -m lab page``."""
    asked: list[str] = []
    chapter.on("request", lambda request: asked.append(request.url))
    before, after = chapter.evaluate(
        f"""() => {{
             const seen = {SEEN}, first = seen();
             document.querySelector("#toy button[data-bit='1']").click();
             return [first, seen()];
           }}"""
    )
    assert before != after
    expect(chapter.locator("#toy-value")).to_have_text("10")
    assert chapter.evaluate(SEEN) == after and not asked, "nothing comes later, and nobody was asked"


def test_a_term_explains_itself(chapter: Page) -> None:
    """A click opens the explanation, Escape closes it and gives the focus back; related terms open in it."""
    term = chapter.locator(".term[data-term='number-format']").first
    term.click()
    card = chapter.locator("#explanation")
    expect(card).to_be_visible()
    expect(card).to_contain_text("The rule that maps codes")
    card.get_by_role("button", name="INT4").click()
    expect(card.locator("h2")).to_have_text("INT4")
    chapter.keyboard.press("Escape")
    expect(card).to_be_hidden()
    expect(term).to_be_focused()
    chapter.keyboard.press("Enter")
    expect(card).to_be_visible()


@pytest.mark.parametrize("width", sampled([390, 1024, 1440], [390]))
def test_nothing_scrolls_sideways(page: Page, url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    open_learn(page, url)
    for fmt in ("float8_e4m3fn", "float32"):
        pick(page, fmt)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    pick(page, "float8_e4m3fn")
    tops = page.evaluate("[...document.querySelectorAll('#toy .bit')].map(b => b.offsetTop)")
    assert len(tops) == 8 and len(set(tops)) == 1, "a byte fits on one line"
