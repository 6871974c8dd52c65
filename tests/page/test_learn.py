"""The place Learn in a real browser: the picture, the playground, the story, the glossary."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from app.learn import playground, story
from app.theme import HEAD, SCRIPT
from tests.covering import THOROUGH
from tests.page.acts import at_rest, open_page

SEEN = """() => [...document.querySelectorAll("#toy .bit, #toy-value, #toy .formula")]
  .map(part => part.textContent).join("|")"""


@pytest.fixture
def chapter(browser: Browser) -> Iterator[Page]:
    """The chapters that run in the browser, without the server: nothing of them may need it."""
    page = browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    trouble: list[str] = []
    page.on("pageerror", lambda e: trouble.append(str(e)))
    head = f'<!doctype html><head><meta charset="utf-8">{HEAD}<script>{SCRIPT}</script></head>'
    sections = (playground.SECTION, story.SECTION)
    built = "".join(f'<div class="block section" id="{s.name}">{s.markup()}</div>' for s in sections)
    body = f"{head}<body>{built}</body>"
    page.route("http://chapters/**", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.route("http://chapters/", lambda route: route.fulfill(body=body, content_type="text/html"))
    page.goto("http://chapters/")
    for section in sections:
        facts = f"{{name: '{section.name}', title: '', keys: {json.dumps(section.keys)}}}"
        page.evaluate(
            f"""() => explorer.mount(document.getElementById('{section.name}'), {{}}, {facts},
                 {section.script}, {{}}, () => {{}}, () => {{}}, () => {{}})"""
        )
        page.locator(f"#{section.name}").scroll_into_view_if_needed()
        page.wait_for_function("name => !explorer.sections.get(name).stale", arg=section.name)
    yield page
    page.close()
    assert not trouble, trouble


def number(page: Page, name: str) -> float:
    """One of the story's numbers, such as "21.0 dB" or "7 of 32"."""
    return float(page.locator(f"[data-number={name}]").inner_text().split()[0].replace("−", "-"))


def test_chapters_need_no_server(chapter: Page) -> None:
    """Another format keeps the number; INT4's first bit is no sign; a refused entry says why and stays; what
    has no code is said. A click is answered before it returns, and nobody is asked. The number line gives its
    values; the story's steps move under the hand; a term explains itself."""
    value, entry = chapter.locator("#toy-value"), chapter.locator("#number-entry")
    problem, formats = chapter.locator("#number-problem"), chapter.locator("#format-picker")
    for text in ("pear", "0x1FF", "0b2", ""):
        entry.fill(text)
        entry.press("Enter")
        expect(entry).to_have_attribute("aria-invalid", "true")
        expect(entry).to_have_value(text)
        expect(problem).not_to_be_empty()
        expect(value).to_have_text("8")
    entry.fill("8")
    expect(entry).to_have_attribute("aria-invalid", "false")
    expect(problem).to_be_empty()
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
    expect(value).to_have_text("10")
    assert chapter.evaluate(SEEN) == after and not asked, "nothing comes later, and nobody was asked"
    formats.select_option("float32")
    entry.fill("3.14159")
    formats.select_option("int4")
    expect(value).to_have_text("3")
    expect(entry).to_have_value("3.14159")
    formats.select_option("float32")
    expect(value).to_have_text("3.14159")
    entry.fill("nan")
    formats.select_option("int4")
    expect(problem).to_contain_text("INT4")
    formats.select_option("float8_e4m3fn")
    expect(value).to_have_text("NaN")
    formats.select_option("int4")
    entry.fill("0b1011")
    expect(value).to_have_text("−5")
    expect(chapter.locator("#toy .formula")).to_contain_text("−8·1 + 4·0 + 2·1 + 1·1 = −5")
    expect(chapter.locator("#toy button[data-bit='3']")).to_have_attribute("aria-label", "bit 3, two's "
        "complement, weight −8")  # fmt: skip
    line = chapter.locator("#number-line")
    for view in ("Log", "Close-up", "Linear"):
        chapter.get_by_role("button", name=view, exact=True).click()
        assert line.locator("path.levels").count() == 9
    line.scroll_into_view_if_needed()
    box = line.bounding_box()
    assert box
    chapter.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 45)
    expect(line.locator(".tip")).to_contain_text("FP4 E2M1: ")
    chapter.mouse.down()
    chapter.mouse.up()
    expect(formats).to_have_value("float4_e2m1fn")
    told_by_the_story(chapter)
    term = chapter.locator(".term[data-term='number-format']").first
    term.click()
    card = chapter.locator("#explanation")
    card.get_by_role("button", name="INT4").click()
    expect(card.locator("h2")).to_have_text("INT4")
    chapter.keyboard.press("Escape")
    expect(card).to_be_hidden()
    expect(term).to_be_focused()
    chapter.keyboard.press("Enter")
    expect(card).to_be_visible()


def told_by_the_story(chapter: Page) -> None:
    """Steps by list and buttons; the outlier drawn up by the pointer and by the keyboard; choices."""
    steps, told = chapter.locator(".steps-list button"), chapter.locator("#story")
    steps.nth(1).click()
    chapter.locator("#story-picture").scroll_into_view_if_needed()
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
    told.get_by_role("button", name="Next").click()
    expect(steps.nth(2)).to_have_attribute("aria-current", "step")
    options = told.locator(".options button")
    options.first.click()
    one = number(chapter, "sqnr")
    options.last.click()
    assert number(chapter, "sqnr") > one
    told.get_by_role("button", name="Back").click()
    expect(steps.nth(1)).to_have_attribute("aria-current", "step")


AROUND = 30
"""Pixels to each side of the divider that its grip covers."""


def painted(box: Locator) -> np.ndarray:
    """[rows, columns]: red, which in a grey picture is all there is; without the rows of the labels."""
    image = Image.open(io.BytesIO(box.screenshot())).convert("RGB")
    return np.asarray(image)[: image.height - 50, :, 0].astype(int)


def choose_sight(page: Page, scheme: str) -> None:
    page.locator(f".sights input[value={scheme}] + span").click()
    root = page.evaluate("new URL('picture/', location.href).href")
    expect(page.locator(".before-after .after")).to_have_js_property("src", f"{root}{scheme}.png")
    page.wait_for_function("[...document.querySelectorAll('.before-after img')].every(i => i.complete)")
    at_rest(page)


def is_divided(now: np.ndarray, left: np.ndarray, right: np.ndarray, at: float) -> None:
    """``now`` is ``left`` before the share ``at`` of its width and ``right`` behind it, the grip left out."""
    column = round(at * now.shape[1])
    before, behind = slice(AROUND, column - AROUND), slice(column + AROUND, -AROUND)
    assert (now[:, before] == left[:, before]).all()
    assert (now[:, behind] == right[:, behind]).all()


@THOROUGH
def test_learn_by_mouse_and_keys(page: Page, url: str) -> None:
    """Bits by click and key, a number that is typed. The picture's divider shows all of one picture at each
    end, and the original left of it; sentence, enlarged cut and outlines follow a button;
    the cut's pixels are square. A phone has it too, a byte on one line."""
    open_page(page, url, "tab=learn")
    value = page.locator("#toy-value")
    page.locator("#toy button[data-bit='0']").click()
    expect(value).to_have_text("9")
    page.locator("#toy button[data-bit='0']").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")
    expect(value).to_have_text("11")
    expect(page.locator("#toy button[data-bit='1']")).to_be_focused()
    page.locator("#number-entry").fill("0.1")
    expect(value).to_have_text("0.1015625")
    box, slider = page.locator(".before-after"), page.get_by_role("slider", name="Divider")
    choose_sight(page, "int2_group32")
    slider.focus()
    page.keyboard.press("Home")
    rounded = painted(box)
    page.keyboard.press("End")
    original = painted(box)
    assert np.abs(original - rounded)[:, AROUND:-AROUND].mean() > 25
    area = box.bounding_box()
    assert area
    width, middle = area["width"], area["y"] + area["height"] / 2
    page.mouse.move(area["x"] + width - 2, middle)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.3 * width, middle, steps=6)
    page.mouse.up()
    expect(slider).to_have_value("30")
    is_divided(painted(box), original, rounded, 0.3)
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    expect(slider).to_have_value("50")
    expect(slider).to_have_attribute("aria-valuetext", "50 % original, 50 % INT2 group 32, amax/2")
    is_divided(painted(box), original, rounded, 0.5)
    cut = page.locator(".cuts figure").nth(1)
    choose_sight(page, "int4_tensor")
    expect(page.locator(".seen")).to_contain_text("INT4 per tensor")
    expect(cut.locator("figcaption")).to_contain_text("INT4 per tensor")
    assert not cut.locator(".block").get_attribute("d"), "one scale has no outlines"
    shot = np.asarray(Image.open(io.BytesIO(cut.locator("svg").screenshot())).convert("L")).astype(int)
    assert len(np.unique(shot[20:-20, 20:-20])) <= 8, "one scale of INT4 has eight greys"
    page.set_viewport_size({"width": 390, "height": 844})
    area = box.bounding_box()
    assert area and area["width"] > 250
    box.scroll_into_view_if_needed()
    area = box.bounding_box()
    assert area
    page.mouse.click(area["x"] + 0.8 * area["width"], area["y"] + area["height"] / 2)
    expect(slider).to_have_value("80")
    for fmt in ("float32", "float8_e4m3fn"):
        page.locator("#format-picker").select_option(fmt)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    tops = page.evaluate("[...document.querySelectorAll('#toy .bit')].map(b => b.offsetTop)")
    assert len(tops) == 8 and len(set(tops)) == 1, "a byte fits on one line"
