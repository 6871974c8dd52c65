"""How the page looks and is reached: light, dark, on paper, narrow, without motion, and by axe-core.

If these fail, somebody with a screen reader, a keyboard, weak sight, a phone or a printer loses part of it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from app.places import PLACES
from explorer.version import __version__
from tests.covering import THOROUGH, sampled
from tests.page.acts import at_rest, drawn, look_at, open_page, open_panel

BOTH = "scheme=int4_group32&second=nvfp4"
QUERIES = {"learn": "tab=learn", "tensor": BOTH, "model": "tab=model"}
GRADIO = {
    ("scrollable-region-focusable", ".virtual-table-viewport"): (
        "the grid around it takes the focus and scrolls by arrow keys; an empty one has no cell to move to"
    ),
}
"""What is Gradio's own and cannot be mended from outside: (rule, part of a selector) -> why."""


def seen(page: Page) -> None:
    """Every section on the screen once, so that all of them are filled."""
    for section in page.locator(".section").all():
        if section.is_visible():
            look_at(section)
    page.evaluate("scrollTo(0, 0)")
    at_rest(page)


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


@THOROUGH
@pytest.mark.parametrize(
    ("place", "theme"),
    sampled([(place, theme) for place in QUERIES for theme in ("light", "dark")], [("tensor", "light")]),
)
def test_accessibility(page: Page, url: str, place: str, theme: str) -> None:
    """If it fails, somebody misses what ``axe`` names."""
    open_page(page, url, f"{QUERIES[place]}&__theme={theme}")
    seen(page)
    check(page)


@pytest.mark.thorough
@pytest.mark.parametrize("theme", sampled(["light", "dark"], ["light"]))
def test_accessibility_of_what_opens_over_the_page(page: Page, url: str, theme: str) -> None:
    """The bar's panels with all their controls, the keys, and a term's explanation."""
    open_page(page, url, f"{BOTH}&__theme={theme}")
    for name in ("tensor", "a", "b"):
        open_panel(page, name)
        for closed in page.locator(f"#panel-{name}").get_by_role("button", name="Scales and rounding").all():
            closed.click()
        check(page, f"#panel-{name}")
        page.keyboard.press("Escape")
    page.keyboard.press("?")
    check(page, "#keys")
    page.keyboard.press("Escape")
    page.locator("nav [data-place=learn]").click()
    page.locator("[data-term]:visible").first.click()
    check(page, "#explanation")


@THOROUGH
def test_dark(page: Page, url: str) -> None:
    """Axis text is light on dark: plotly's own colours would be unreadable. The accent is one of its own, as
    that of the light page is too dim. What is not to move does not, Gradio's transitions included."""
    open_page(page, url, "__theme=dark")
    drawn(page, "error-plot")
    fill = page.locator("#error-plot .xtitle").evaluate("e => getComputedStyle(e).fill")
    assert min(int(n) for n in re.findall(r"\d+", fill)[:3]) > 150
    for name in ("body", ".gradio-container"):  # the body's is seen beside the bar that scrolls
        background = page.locator(name).first.evaluate("e => getComputedStyle(e).backgroundColor")
        assert max(int(n) for n in re.findall(r"\d+", background)[:3]) < 60
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    dark, light = page.evaluate(
        """() => {
          const accent = element => getComputedStyle(element).getPropertyValue('--color-accent').trim();
          const found = [accent(document.querySelector('.goals'))];
          document.body.classList.remove('dark');
          found.push(accent(document.body));
          document.body.classList.add('dark');
          return found;
        }"""
    )
    assert light == "#0072b2" and dark == "#3793d1"
    moving = page.evaluate("""[...document.querySelectorAll('*')].filter(e => {
      const s = getComputedStyle(e);
      return s.animationName !== 'none' || s.transitionDuration.split(',').some(t => parseFloat(t) > 0);
    }).map(e => e.tagName + '.' + e.className)""")
    assert not moving


@pytest.mark.shared_page
def test_paper_cuts_nothing(page: Page, url: str) -> None:
    """On a sheet of A4 figures are at most as wide as it, and no other place is printed; then all is as it
    was."""
    open_page(page, url, BOTH)
    drawn(page, "error-map")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(
        """() => { const edges = [...document.querySelectorAll('.figure .main-svg')]
        .map(e => e.getBoundingClientRect().right).filter(right => right > 0);
        return edges.length >= 2 && Math.max(...edges) <= 718; }"""
    )
    assert page.locator("#place-tensor").is_visible() and not page.locator("#place-learn").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen", reduced_motion="reduce")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate("document.querySelector('#error-map .figure').style.zoom") == ""


def test_a_figure_of_the_dark_page_is_saved_for_a_paper(page: Page, url: str) -> None:
    """A light SVG of the chosen width, with its font, title and caption, and none of the page's buttons; the
    page itself prints light, too."""
    open_page(page, url, f"{BOTH}&__theme=dark")
    drawn(page, "error-plot")
    box = page.locator("#error-plot")
    box.locator(".updatemenu-button", has_text="log").click()
    for width in ("85", "174"):
        box.get_by_label("Width of the saved figure").select_option(width)
        with page.expect_download() as download:
            box.get_by_role("button", name="SVG").click()
        svg = Path(download.value.path()).read_text(encoding="utf-8")
        assert f'width="{width}mm"' in svg[:300] and download.value.suggested_filename.endswith(
            f"-{width}mm.svg"
        )
        assert 'fill="#ffffff"' in svg and svg.count("font-family:Inter;font-weight:") == 2
        assert "updatemenu" not in svg and ">linear<" not in svg and "Errors of the elements</text>" in svg
        words = " ".join(re.findall(r"<text x=\"4\"[^>]*>([^<]*)", svg))
        assert "B: NVFP4" in words and f"n = {384 * 1536:,} elements" in words and __version__ in words
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = "getComputedStyle(document.querySelector('.figure-title h2')).color"
    assert page.evaluate(ink) == "rgb(29, 36, 51)"
    left_out = page.evaluate(
        "[...explorer.sections.values()].filter(each => !each.drawn).map(each => each.box.offsetHeight)"
    )
    assert left_out and not any(left_out), "what was not looked at yet"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.body.className") == "dark"


def scroll_through(page: Page) -> None:
    """From top to bottom, as a reader does, so that every section is shown."""
    for top in range(0, page.evaluate("document.documentElement.scrollHeight"), 700):
        page.evaluate(f"scrollTo(0, {top})")
        page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    at_rest(page)


@THOROUGH
@pytest.mark.shared_page
@pytest.mark.parametrize("place", sampled([place.NAME for place in PLACES], ["model"]))
def test_no_sideways_scrolling(page: Page, url: str, place: str) -> None:
    """On a phone, a small laptop and a desk: if a place is wider than the screen, its right side is lost."""
    open_page(page, url, f"tab={place}&second=nvfp4")
    for width in (1440, 1024, 390):
        page.set_viewport_size({"width": width, "height": 900})
        scroll_through(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


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


def box(part: Locator) -> dict[str, float]:
    """Where a part of the page is painted."""
    at = part.bounding_box()
    assert at, "it is painted"
    return dict(at)


def covers(upper: Locator, lower: Locator) -> bool:
    """Whether two parts of the page overlap on the screen."""
    a, b = box(upper), box(lower)
    across = a["x"] < b["x"] + b["width"] and b["x"] < a["x"] + a["width"]
    return across and a["y"] < b["y"] + b["height"] and b["y"] < a["y"] + a["height"]


@THOROUGH
@pytest.mark.shared_page
def test_the_screen_holds_the_answer(page: Page, url: str) -> None:
    """At 1440 × 900 all of it, at 390 in one column: nothing lies over another part or is cut. What a choice
    does is read while choosing: a panel covers neither verdict nor notice."""
    open_page(page, url, "second=nvfp4&scheme=int4_group128_asym")
    for part in SHOWN.split(", "):
        expect(page.locator(part).first).to_be_in_viewport(ratio=1)
    for width in (1440, 1100, 390):
        page.set_viewport_size({"width": width, "height": 900})
        at_rest(page)
        assert page.evaluate(OVERLAPS, SHOWN) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT, "#answer *, #drop *, .sample *, .tensor-card h2, .goals h2") == [], width
    tops = [box(page.locator(part).first)["y"] for part in ("#answer", "#frontier", ".tensor-card")]
    assert tops == sorted(tops)
    page.evaluate("""() => document.querySelector('#notice .html-container, #notice > *, #notice')
      .insertAdjacentHTML('beforeend', '<div class="status" role="status" id="put">was refused</div>')""")
    for width in (700, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        for name in ("tensor", "a", "b"):
            open_panel(page, name)
            at_rest(page)
            for part in ("#answer .says", "#notice .status", "#chips"):
                assert not covers(page.locator(f"#panel-{name}"), page.locator(part)), (width, part)
            expect(page.locator("#answer .says")).to_be_in_viewport(ratio=1)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.keyboard.press("Escape")
    page.evaluate("document.getElementById('put').remove()")
