"""The first screen, used as a new visitor would: own numbers in, the answer out, by mouse, keys and touch.

If these fail, the answer takes more than four actions, does not fit its screen, or its parts disagree.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.test_browser import frames, idle, look_at, open_page, visit

pytestmark = pytest.mark.browser
SHOWN = "#answer, #frontier .main-svg, #shortlist, #drop, .samples, .tensor-card, .goals"
"""The parts of the first screen."""
OVERLAPS = """parts => { const boxes = [...document.querySelectorAll(parts)]
  .filter(e => e.offsetParent || e.closest('svg')).map(e => [e.id || e.className.baseVal || e.className,
  e.getBoundingClientRect()]), out = [];
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && tall > 1 && one !== other) out.push([one, other, wide, tall]);
  })); return out; }"""
CUT = """parts => [...document.querySelectorAll(parts)].filter(e => e.offsetParent && !e.closest('.unseen')
  && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
  .map(e => e.outerHTML.slice(0, 120))"""


def drop(page: Page, path: Path) -> None:
    """Drop a file onto the page."""
    transfer = page.evaluate_handle(
        """([name, bytes]) => { const t = new DataTransfer();
        t.items.add(new File([new Uint8Array(bytes)], name)); return t; }""",
        [path.name, list(path.read_bytes())],
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


def settled(page: Page) -> None:
    """Wait until all that was asked for is shown."""
    page.wait_for_function("!explorer.sent && !explorer.acts.length", timeout=60_000)
    idle(page)


def rows(page: Page) -> list[str]:
    return page.locator("#shortlist tr[data-scheme]").evaluate_all("all => all.map(e => e.dataset.scheme)")


def agree(page: Page) -> dict[str, Any]:
    """What bar, sentence, table, figure and address say of A and B; they have to be the same."""
    record = page.evaluate("explorer.record")
    for letter, key in (("a", "scheme"), ("b", "second")):
        if not record[key]:
            continue
        row = page.locator(f"#shortlist tr.is-{letter}")
        expect(row).to_have_count(1)
        assert row.get_attribute("data-scheme") == record[key]
        name = (row.locator("th").inner_text()).replace(", asym.", "")
        assert name in page.locator("#answer").inner_text()
        assert name in page.locator(f"#chip-{letter}").inner_text()
    ringed = page.evaluate(
        """document.querySelector('#frontier .figure').data.filter(t => ['A', 'B'].includes(t.name))
        .map(t => [t.name, t.customdata[0][1]])"""
    )
    assert dict(ringed)["A"] == record["scheme"] and dict(ringed).get("B", "") == record["second"]
    query = page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    assert query["scheme"] == record["scheme"] and query.get("second", "") == record["second"]
    assert query.get("goal", "") == record["goal"] and query.get("list", "") == record["shortlist"]
    return dict(record)


def test_own_file_to_the_answer_in_four_actions(page: Page, url: str, tmp_path: Path) -> None:
    """Drop the file, say what for, click A, Shift-click B: the answer, on one screen without scrolling."""
    values = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    np.save(tmp_path / "layer.npy", values)
    open_page(page, url)
    drop(page, tmp_path / "layer.npy")
    expect(page.locator(".tensor-card h2")).to_contain_text("256 × 512")
    page.get_by_role("button", name="8-bit weights").click()
    expect(page.locator("#shortlist tr[data-scheme=int8_row]")).to_be_visible()
    page.locator("#shortlist tr[data-scheme=q8_0] td.num").first.click()
    expect(page.locator("#shortlist tr.is-a")).to_have_attribute("data-scheme", "q8_0")
    page.locator("#shortlist tr[data-scheme=int8_group128] td.num").first.click(modifiers=["Shift"])
    expect(page.locator("#shortlist tr.is-b")).to_have_attribute("data-scheme", "int8_group128")
    settled(page)
    record = agree(page)
    assert (record["source"], record["goal"]) == ("file", ""), "A means the goal: the address need not"
    expect(page.locator(".goals [aria-pressed=true]")).to_have_text("8-bit weights")
    assert page.evaluate("scrollY") == 0
    for part in ("#answer", "#frontier", "#shortlist", ".goals", "#drop"):
        expect(page.locator(part)).to_be_in_viewport(ratio=1)
    assert "…" not in page.locator("#shortlist tbody").inner_text()
    expect(page.locator("#elsewhere-block")).to_contain_text("in the sentence encoder all-MiniLM-L6-v2")
    assert " its " not in page.locator("#verdict").inner_text()


@pytest.mark.shared_page
def test_the_screen_holds_the_answer(page: Page, url: str) -> None:
    """At 1440 × 900 all of it, at 390 in one column: nothing lies over another part or is cut."""
    open_page(page, url, "second=nvfp4&scheme=int4_group128_asym")
    settled(page)
    expect(page.locator("#frontier .main-svg").first).to_be_visible()
    for part in SHOWN.split(", "):
        expect(page.locator(part).first).to_be_in_viewport(ratio=1)
    for width in (1440, 1100, 390):
        page.set_viewport_size({"width": width, "height": 900})
        frames(page, 10)
        assert page.evaluate(OVERLAPS, SHOWN) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT, "#answer *, #drop *, .sample *, .tensor-card h2, .goals h2") == [], width
    tops = [page.locator(part).first.bounding_box() for part in ("#answer", "#frontier", ".tensor-card")]
    assert tops[0] and tops[1] and tops[2] and tops[0]["y"] < tops[1]["y"] < tops[2]["y"]


@pytest.mark.shared_page
def test_goals_list_and_crop(page: Page, url: str) -> None:
    """A goal crops the figure, "all" does not; a size may be typed; a row goes and comes, and Back."""
    open_page(page, url)
    settled(page)
    edge = "document.querySelector('#frontier .figure')._fullLayout.xaxis.range[1]"
    assert page.evaluate(edge) == pytest.approx(6)
    page.locator("#frontier-head [data-all=true]").click()
    page.wait_for_function("document.querySelector('#frontier .figure')._fullLayout.xaxis.type === 'log'")
    page.locator("#frontier-head [data-all=false]").click()
    page.wait_for_function(f"Math.abs({edge} - 6) < .01")
    page.locator("[data-remove=mxfp4]").click()
    expect(page.locator("#shortlist tr[data-scheme]")).to_have_count(4)
    page.wait_for_function("location.search.includes('list=')")
    page.locator("[data-add=int4_group32]").click()
    expect(page.locator("#shortlist tr[data-scheme=int4_group32]")).to_be_visible()
    settled(page)
    agree(page)
    page.go_back()
    page.go_back()
    expect(page.locator("#shortlist tr[data-scheme=mxfp4]")).to_be_visible()
    page.locator("[data-goal-size]").fill("3.5 bits")
    page.keyboard.press("Enter")
    page.wait_for_function("location.search.includes('goal=at-most-3.5')")
    settled(page)
    record = agree(page)
    assert record["scheme"] != "int4_group128_asym", "A and B are the goal's"
    bits = page.locator("#shortlist tbody td:nth-child(4)").all_inner_texts()
    assert bits and all(float(b) <= 3.5 for b in bits)


@pytest.mark.shared_page
def test_keys_take_rows_and_keep_their_place(page: Page, url: str) -> None:
    """Without a mouse: the row's A and B, after which the focus is where it was."""
    open_page(page, url, "scheme=int4_group128_asym&second=nvfp4")
    settled(page)
    page.locator("#shortlist [data-take=mxfp4][data-side=b]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#shortlist tr.is-b")).to_have_attribute("data-scheme", "mxfp4")
    settled(page)
    assert page.evaluate("[document.activeElement.dataset.take, document.activeElement.dataset.side]") == [
        "mxfp4",
        "b",
    ]
    agree(page)


@pytest.mark.shared_page
def test_a_picture_leads_to_an_element(page: Page, url: str) -> None:
    """A click on the tensor's picture inspects what lies there; so does a worst error."""
    open_page(page, url, "scheme=int4_group128_asym&second=nvfp4")
    settled(page)
    box = page.locator(".tensor-card .picture img").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    expect(page.locator("#inspector h3")).to_contain_text(re.compile(r"Element \(3[78]\d, "))
    expect(page.locator("#element")).to_be_in_viewport()
    page.evaluate("scrollTo(0, 0)")
    worst = page.locator("#shortlist tr.is-b [data-element]")
    at = (worst.get_attribute("data-element") or "").strip()
    worst.click()
    expect(page.locator("#inspector h3")).to_contain_text(f"Element {at}")
    page.evaluate("scrollTo(0, 0)")
    visit(page, "second=mxfp4")
    settled(page)
    frames(page, 30)
    assert page.evaluate("scrollY") == 0, "the way to the element goes on after another address was gone to"


@pytest.mark.thorough
def test_paste_and_pick(page: Page, url: str, tmp_path: Path) -> None:
    """Numbers out of a spreadsheet or a terminal, a file of the picker; words are refused in the page."""
    open_page(page, url)
    paste = """text => { const data = new DataTransfer(); data.setData('text', text);
      document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true})); }"""
    page.evaluate(paste, "[[1.5 -2. 3e-1]\n [4 5 6]]")
    expect(page.locator(".tensor-card h2")).to_contain_text("2 × 3")
    page.evaluate(paste, "1,5;2\n3;4\n5;6")
    expect(page.locator(".tensor-card h2")).to_contain_text("3 × 2")
    page.evaluate(paste, "some words")
    expect(page.locator(".page-notice")).to_contain_text("no table of numbers")
    np.save(tmp_path / "mine.npy", np.ones((8, 16), np.float32))
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="File…").click()
    chooser.value.set_files(str(tmp_path / "mine.npy"))
    expect(page.locator(".tensor-card h2")).to_contain_text("8 × 16")
    page.locator(".sample[data-sample=mlp_down]").click()
    expect(page.locator(".tensor-card h2")).to_contain_text("384 × 1,536")
    expect(page.locator(".sample[data-sample=mlp_down]")).to_have_attribute("aria-pressed", "true")
    settled(page)
    page.get_by_role("button", name="Layer of a model…").click()
    expect(page.locator("#model")).to_be_visible()
    expect(page.locator("#source input")).to_have_value("Layer of a model")


def test_touch_chooses_a_and_b(browser: Browser, url: str) -> None:
    """A finger has no Shift: the row's buttons, and the switch at the figure."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    phone = context.new_page()
    open_page(phone, url)
    settled(phone)
    phone.locator("#shortlist [data-take=mxfp4][data-side=a]").tap()
    expect(phone.locator("#shortlist tr.is-a")).to_have_attribute("data-scheme", "mxfp4")
    phone.locator("#frontier-head [data-takes=b]").tap()
    expect(phone.locator("#frontier-head [data-takes=b]")).to_have_attribute("aria-pressed", "true")
    settled(phone)
    look_at(phone.locator("#frontier"))
    spot = phone.evaluate(
        """() => { const p = document.querySelector('#frontier .figure'), box = p.getBoundingClientRect();
        const l = p._fullLayout;
        for (const t of p._fullData) if (t.customdata) for (const [i, who] of t.customdata.entries())
          if (who[1] === 'q4_k') return [box.left + l._size.l + l.xaxis.d2p(t.x[i]),
            box.top + l._size.t + l.yaxis.d2p(t.y[i])]; }"""
    )
    phone.touchscreen.tap(*spot)
    expect(phone.locator("#shortlist tr.is-b")).to_have_attribute("data-scheme", "q4_k")
    settled(phone)
    select_by_touch(phone)
    context.close()


def select_by_touch(phone: Page) -> None:
    """A part of the error map, dragged out by a finger once Zoom was pressed: the histogram is of that part,
    and the next drag scrolls again."""
    figure, box = phone.locator("#error-map .figure"), phone.locator("#error-map")
    look_at(figure)
    expect(figure.locator(".main-svg").first).to_be_visible()
    zoom = box.get_by_role("button", name="Zoom", exact=True)
    zoom.tap()
    expect(zoom).to_have_attribute("aria-pressed", "true")
    left, top, wide, tall = phone.evaluate(
        """() => { const p = document.querySelector('#error-map .figure'), l = p._fullLayout;
        p.scrollIntoView({block: 'center'});
        const b = p.getBoundingClientRect(), x = l.xaxis, y = l.yaxis;
        return [b.left + x._offset, b.top + y._offset, x._length, y._length]; }"""
    )
    touch = phone.context.new_cdp_session(phone)
    ends = [(left + wide * part, top + tall * part) for part in (0.25, 0.4, 0.6)]
    for kind, at in (
        ("touchStart", ends[0]),
        ("touchMove", ends[1]),
        ("touchMove", ends[2]),
        ("touchEnd", None),
    ):
        points = [{"x": at[0], "y": at[1]}] if at else []
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    expect(box.get_by_role("button", name="Reset zoom")).to_be_visible()
    expect(zoom).to_have_attribute("aria-pressed", "false")
    look_at(phone.locator("#error-plot .figure"))
    expect(phone.locator("#error-plot .annotation-text").first).to_contain_text("only rows")
