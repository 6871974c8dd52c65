"""The bar and its panels under the hand: by mouse, keys and touch, on a desk and on a phone.

If these fail, a visitor chooses without seeing what it does, or is left with a number that is not obeyed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from explorer import SCHEMES
from tests.covering import sampled
from tests.page.test_browser import choose, frames, look_at, open_page, open_panel, until_held

pytestmark = pytest.mark.browser
BOTH = "scheme=int4_group32&second=nvfp4"
LONGEST = sorted(SCHEMES, key=lambda name: len(SCHEMES[name].label))[-4:]


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    """A phone of 390 x 844 px with a touch screen."""
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, reduced_motion="reduce"
    )
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context.new_page()
    context.close()


def box(part: Locator) -> dict[str, float]:
    """Where a part of the page is painted: left, top, right, bottom."""
    at = part.bounding_box()
    assert at, "it is painted"
    return {"left": at["x"], "top": at["y"], "right": at["x"] + at["width"], "bottom": at["y"] + at["height"]}


def covers(upper: Locator, lower: Locator) -> bool:
    """Whether two parts of the page overlap on the screen."""
    a, b = box(upper), box(lower)
    aside = a["left"] >= b["right"] or b["left"] >= a["right"]
    return not (aside or a["top"] >= b["bottom"] or b["top"] >= a["bottom"])


SIZES = [
    ("-5", "group", "Group size", "from 1"),
    ("0", "group", "Group size", "from 1"),
    ("", "group", "Group size", "from 1"),
    ("2.5", "group", "Group size", "from 1"),
    ("-5", "tile", "Group size (columns)", "from 0"),
]


@pytest.mark.shared_page
@pytest.mark.parametrize(
    ("typed", "granularity", "field", "accepted"), sampled(SIZES, SIZES[2:3] + SIZES[4:])
)
def test_a_refused_size_is_named_and_goes_back(
    page: Page, url: str, typed: str, granularity: str, field: str, accepted: str
) -> None:
    """The message names the field and what it takes; the box shows again what holds; the scheme stays."""
    scheme = {"group": "int4_group32", "tile": "int8~32x32~symmetric~float32~minmax"}[granularity]
    open_page(page, url, f"scheme={scheme}")
    open_panel(page, "a")
    size = page.locator("#size input")
    size.fill(typed)
    size.press("Enter")
    toast = page.locator(".toast-body")
    expect(toast).to_contain_text(field)
    expect(toast).to_contain_text(accepted)
    expect(size).to_have_value("32")
    assert f"scheme={scheme}" in page.url
    assert page.locator(".wrap .error").locator("visible=true").count() == 0, "no error pills"


@pytest.mark.thorough
@pytest.mark.shared_page
def test_a_row_that_is_no_row_goes_back(page: Page, url: str) -> None:
    """An emptied box shows the inspected row again, -5 the first one; both are said."""
    open_page(page, url, "row=10&column=20")
    row = page.locator("#position").get_by_label("Row")
    row.fill("")
    row.press("Enter")
    expect(page.locator(".toast-body").first).to_contain_text("Row")
    expect(row).to_have_value("10")
    row.fill("-5")
    row.press("Enter")
    expect(row).to_have_value("0")
    expect(page.locator("#inspector h3")).to_contain_text("Element (0, 20)")
    expect(page.locator(".toast-body").last).to_contain_text("rows 0 to 1535")


@pytest.mark.shared_page
@pytest.mark.parametrize("name", sampled(["tensor", "a", "b"], ["b"]))
@pytest.mark.parametrize("width", sampled([1440, 1024, 700], [700]))
def test_a_panel_covers_neither_verdict_nor_notice(page: Page, url: str, name: str, width: int) -> None:
    """What a choice does is read while choosing."""
    page.set_viewport_size({"width": width, "height": 900})
    open_page(page, url, f"{BOTH}&row=10&column=20")
    page.evaluate("""() => document.querySelector('#notice .html-container, #notice > *, #notice')
      .insertAdjacentHTML('beforeend', '<div class="status" role="status" id="put">was refused</div>')""")
    open_panel(page, name)
    panel = page.locator(f"#panel-{name}")
    for part in ("#answer .says", "#notice .status", "#chips"):
        assert not covers(panel, page.locator(part)), part
    expect(page.locator("#answer .says")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.getElementById('put').remove()")


@pytest.mark.thorough
@pytest.mark.shared_page
@pytest.mark.parametrize("name", sampled(["a", "b"], ["b"]))
def test_what_is_typed_into_an_opened_panel_is_chosen(page: Page, url: str, name: str) -> None:
    """The first control shows a focus ring: typing replaces its text without another click."""
    open_page(page, url)
    page.locator(f"#chips [data-panel={name}]").click()
    expect(page.locator(f"#panel-{name} input:visible").first).to_be_focused()
    page.keyboard.type("int4_group48_asym", delay=20)
    page.keyboard.press("Enter")
    key = {"a": "scheme", "b": "second"}[name]
    text = "int4~1x48~asymmetric~float16~minmax"
    page.wait_for_function(f"new URLSearchParams(location.search).get('{key}') === '{text}'")


@pytest.mark.shared_page
@pytest.mark.parametrize("name", sampled(["tensor", "a", "b"], ["a"]))
def test_a_panel_opens_with_its_lists_closed(page: Page, url: str, name: str) -> None:
    """The first control has the focus, and no list hides those below; a key or a click opens it."""
    open_page(page, url, BOTH)
    open_panel(page, name)
    first = page.locator(f"#panel-{name} input:visible").first
    expect(first).to_be_focused()
    frames(page)
    lists = page.locator(f"#panel-{name} ul.option-list")
    expect(lists).to_have_count(0)
    page.keyboard.press("ArrowDown")
    expect(lists).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    open_panel(page, name)
    first.click()
    expect(lists).to_have_count(1)
    first.press("Escape")


IN_SIGHT = """() => new Promise(resolve => {
  let frames = 0;
  const look = () => {
    const list = document.querySelector('#panel-a ul.option-list');
    const around = list.getBoundingClientRect();
    const inner = list.querySelector('[aria-selected=true]').getBoundingClientRect();
    frames = around.top <= inner.top && inner.bottom <= around.bottom ? frames + 1 : 0;
    frames < 60 ? requestAnimationFrame(look) : resolve(true);
  };
  look();
})"""
"""Resolves when what is chosen has been in sight for sixty frames."""


@pytest.mark.thorough
@pytest.mark.shared_page
@pytest.mark.parametrize("scheme", sampled(["int4_group32", "q4_k", "mxfp4"], ["q4_k"]))
def test_an_opened_list_shows_what_is_chosen(page: Page, url: str, scheme: str) -> None:
    """Among some ninety schemes the chosen one and its neighbours are in sight."""
    open_page(page, url, f"scheme={scheme}")
    open_panel(page, "a")
    page.locator("#preset input").click()
    chosen = page.locator("#panel-a ul.option-list [aria-selected=true]")
    expect(chosen).to_contain_text(SCHEMES[scheme].label)
    page.wait_for_function(IN_SIGHT, timeout=60_000)


def cut(page: Page, selector: str) -> list[str]:
    """The texts of visible boxes and buttons that are wider or higher than what shows them."""
    return page.evaluate(
        """selector => [...document.querySelectorAll(selector)].filter(e => e.offsetWidth
          && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1))
          .map(e => e.value || e.textContent)""",
        selector,
    )


@pytest.mark.thorough
def test_a_long_value_can_be_read(page: Page, url: str) -> None:
    """What a picker cannot show whole, it says under the mouse."""
    open_page(page, url, "scheme=q4_k")
    open_panel(page, "a")
    page.locator("#panel-a").get_by_role("button", name="Scales and rounding").click()
    expect(page.locator("#convention input")).to_be_visible()
    for text in cut(page, "#panel-a input[role=combobox]"):
        picker = page.locator("#panel-a input[role=combobox]:visible")
        match = next(one for one in picker.all() if one.input_value() == text)
        match.hover()
        expect(match).to_have_attribute("title", text)
    assert "groups along the row" not in cut(page, "#panel-a input[role=combobox]")


@pytest.mark.parametrize("scheme", sampled(LONGEST, LONGEST[-1:]))
def test_nothing_is_cut_on_a_phone(phone: Page, url: str, scheme: str) -> None:
    """In the bar and in its sheets, for the schemes with the longest names."""
    open_page(phone, url, f"scheme={scheme}&second={LONGEST[0]}")
    assert not cut(phone, "#chips .chip")
    for name in ("tensor", "a", "b"):
        phone.locator(f"#chips [data-panel={name}]").tap()
        expect(phone.locator(f"#panel-{name}")).to_be_visible()
        assert not cut(phone, f"#panel-{name} input[role=combobox]")
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
        phone.locator(f"#chips [data-panel={name}]").tap()


CHOSEN_BY_TOUCH = [
    ("a", "preset", SCHEMES["mxfp4"].label),
    ("tensor", "sample", "attention query, layer 0"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("panel", "picker", "option"),
    sampled(CHOSEN_BY_TOUCH, CHOSEN_BY_TOUCH[:1]),
)
def test_a_sheet_closes_after_a_choice_by_touch(
    phone: Page, url: str, panel: str, picker: str, option: str
) -> None:
    """It covers what the choice does; on a desk it covers nothing and stays."""
    open_page(phone, url)
    phone.locator(f"#chips [data-panel={panel}]").tap()
    phone.locator(f"#{picker} input").tap()
    phone.locator(f"#panel-{panel}").get_by_role("option", name=option, exact=True).first.tap()
    expect(phone.locator(f"#panel-{panel}")).to_be_hidden()
    expect(phone.locator(f"#chip-{panel}")).to_have_text(option)
    phone.set_viewport_size({"width": 1280, "height": 844})
    phone.locator(f"#chips [data-panel={panel}]").click()
    phone.locator(f"#{picker} input").click()
    phone.locator(f"#panel-{panel} ul.option-list").get_by_role("option").nth(1).click()
    frames(phone)
    expect(phone.locator(f"#panel-{panel}")).to_be_visible()


def test_a_phone_has_every_act(phone: Page, url: str) -> None:
    """Swap, Remove B, Copy link and the keys are two touches away, and large enough for a finger."""
    open_page(phone, url, BOTH)
    more = phone.get_by_role("button", name="More")
    for button in phone.locator("#chips button:visible").all():
        assert (size := button.bounding_box()) and size["height"] >= 44 and size["width"] >= 44
        assert size["x"] >= 0 and size["x"] + size["width"] <= 390
    more.tap()
    acts = phone.locator("#chips .acts button")
    expect(acts).to_have_count(4)
    for button in acts.all():
        assert (size := button.bounding_box()) and size["height"] >= 44
    phone.get_by_role("button", name="Copy link").tap()
    expect(phone.locator("#chips [data-act=copy]")).to_have_text("Copied")
    assert phone.evaluate("navigator.clipboard.readText()") == phone.url
    phone.get_by_role("button", name="Keys").tap()
    expect(phone.locator("dialog#keys")).to_be_visible()
    phone.locator("dialog#keys button").tap()
    more.tap()
    phone.get_by_role("button", name="Remove B").tap()
    expect(phone.locator("#kpis .side-b")).to_have_count(0)
    expect(phone.locator("#chips .acts")).to_be_hidden()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.shared_page
def test_learn_has_its_link_too(page: Page, url: str) -> None:
    """The bar is not there, the number in the address is."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, url, "tab=learn&format=int4")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert "format=int4" in page.evaluate("navigator.clipboard.readText()")


def load_file(page: Page, path: Path) -> None:
    """Put a file into the file control, whatever it holds."""
    clear = page.locator("#file button[aria-label*='lear'], #file button[aria-label*='emove']")
    if clear.count():
        clear.first.click()
    page.locator("#file input[type=file]").set_input_files(str(path))


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", sampled([".npy", ".npz", ".pt", ".csv", ".safetensors"], [".npy"]))
def test_after_a_bad_file_everything_names_what_is_shown(
    page: Page, url: str, tmp_path: Path, suffix: str
) -> None:
    """Bar, pickers, file box, verdict, frontier and address; the notice says what was wrong."""
    bad = tmp_path / f"bad{suffix}"
    bad.write_bytes(b"\x93\x00junk\xff\xfe that is no tensor at all" * 9)
    good = tmp_path / "good.npy"
    np.save(good, np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32))
    open_page(page, url)
    open_panel(page, "tensor")
    choose(page, "source", "Your file")
    load_file(page, bad)
    notice = page.locator("#notice .status")
    expect(notice).to_contain_text(re.compile(r"^bad\b"))
    expect(notice).to_contain_text("Still shown")
    expect(page.locator("#chip-tensor")).to_contain_text("MLP up-projection")
    expect(page.locator("#source input")).to_have_value("Built-in tensor")
    choose(page, "source", "Your file")
    expect(page.locator("#file")).not_to_contain_text("bad")
    load_file(page, good)
    expect(page.locator("#which .tensor")).to_contain_text("24×40")
    expect(notice).to_have_count(0)
    load_file(page, bad)
    expect(notice).to_contain_text(re.compile(r"^bad\b"))
    expect(page.locator("#which .tensor")).to_contain_text("24×40")
    expect(page.locator("#chip-tensor")).to_contain_text("good")
    expect(page.locator("#file")).to_contain_text("good")
    expect(page.locator("#file-tensor input")).to_have_value(re.compile("^good"))
    page.wait_for_function("location.search.includes('source=file')")
    look_at(page.locator("#frontier"))
    expect(page.locator("#frontier-status")).to_contain_text("schemes", timeout=60_000)
    expect(notice).to_contain_text(re.compile(r"^bad\b"))
    look_at(page.locator("#chips [data-act=swap], #chip-a").first)
    page.keyboard.press("Escape")
    page.keyboard.press("]")
    expect(notice).to_have_count(0)
    expect(page.locator("#which .tensor")).to_contain_text("24×40")


def test_the_first_sight_is_not_empty(page: Page, url: str) -> None:
    """What comes with the page itself is the first answer's words; they do not move afterwards."""
    page.add_init_script("""window.shift = 0;
      new PerformanceObserver(list => { for (const e of list.getEntries()) if (!e.hadRecentInput)
        window.shift += e.value; }).observe({type: 'layout-shift', buffered: true});""")
    held: list[Route] = []
    page.route(re.compile("queue/join"), lambda route: held.append(route), times=1)
    page.goto(url)
    page.locator("#kpis .v").first.wait_for()
    expect(page.locator("#which .words")).to_contain_text("4-bit weights")
    expect(page.locator("#chip-tensor")).to_contain_text("MLP up-projection")
    until_held(page, held)
    assert not page.evaluate("window.explorer.ready"), "no answer has come yet"
    held[0].continue_()
    page.wait_for_function("window.explorer?.ready")
    frames(page)
    assert page.evaluate("window.shift") <= 0.05


def test_a_link_does_not_show_another_view_first(page: Page, url: str) -> None:
    """Until its own answer comes, the places of the words are kept, and none of the fresh page's are read."""
    held: list[Route] = []
    page.route(re.compile("queue/join"), lambda route: held.append(route), times=1)
    page.goto(f"{url}/?scheme=nvfp4&sample=mlp_down")
    page.locator("#kpis .v").first.wait_for(state="attached")
    expect(page.locator("#which .words")).to_be_hidden()
    expect(page.locator("#chip-a")).to_be_hidden()
    assert not page.evaluate("window.explorer.ready")
    until_held(page, held)
    held[0].continue_()
    page.wait_for_function("window.explorer?.ready")
    expect(page.locator("#which .words")).to_be_visible()
    expect(page.locator("#chip-a")).to_contain_text("NVFP4")
