"""The first look, which a browser paints from the page's HTML before Gradio has built the page.

If these fail, a visitor looks at an empty page for seconds, what was clicked meanwhile is lost, or the page
jumps when the first look is taken away. Gradio's script is held back until a test lets it go, so that none
depends on how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.covering import THOROUGH, sampled
from tests.page.acts import at_rest

ROOT = "explorer.firstLook.root"
SCRIPT = "**/assets/index-*.js"
"""Gradio's script, which builds the page."""
PARTS = (
    "#head, .chips, .contents, #drop, .samples, .tensor-card, .goals, .footnote, #answer, "
    ".frontier-title, #frontier .figure, #frontier .figure-tools, #shortlist"
)
JUMP = f"""() => {{
  const boxes = root => Object.fromEntries('{PARTS}'.split(', ').map(part => {{
    const box = root.querySelector(part).getBoundingClientRect();
    return [part, [box.x, box.y, box.width, box.height]];
  }}));
  const look = explorer.firstLook, end = look.end;
  look.end = () => {{
    if (!look.host) return;
    const painted = Boolean(document.querySelector('#frontier .main-svg'));
    window.jumped = {{before: boxes(look.root), painted}};
    end.call(look);
    jumped.after = boxes(document);
    jumped.seen = document.elementFromPoint(700, 200)?.closest('.first') !== null;
  }};
}}"""
"""Notes where the parts are just before and after the first look is taken away, in one frame."""


def hold(page: Page, url: str, query: str = "") -> Callable[[], None]:
    """Open the page without Gradio's script; returns what lets the script go."""
    held: list[Route] = []
    page.route(SCRIPT, lambda route: held.append(route))
    with page.expect_request(SCRIPT):
        page.goto(f"{url}/?{query}", wait_until="commit")
    page.wait_for_function("window.explorer?.firstLook?.host")
    return lambda: held[0].continue_()


def gone(page: Page) -> None:
    """Wait until the first look was taken away."""
    page.wait_for_function("explorer.ready && !explorer.firstLook.host")


def spot(page: Page, selector: str) -> tuple[float, float]:
    """The middle of a part of the first look, where the pointer meets it."""
    x, y = page.evaluate(
        f"""selector => {{ const box = {ROOT}.querySelector(selector).getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2]; }}""",
        selector,
    )
    assert page.evaluate("([x, y]) => document.elementFromPoint(x, y).id", [x, y]) == "first-look"
    return x, y


@pytest.mark.parametrize("width", sampled([1440, 390], [1440]))
def test_the_answer_is_there_before_gradio_and_does_not_jump(page: Page, url: str, width: int) -> None:
    """Sentence, figure and table, from the HTML alone; the page then stands where the first look stood."""
    page.set_viewport_size({"width": width, "height": 900})
    let_go = hold(page, url)
    assert page.locator("#answer").count() == 0, "the page itself is not there yet"
    said, rows, points, seen = page.evaluate(
        f"""() => {{ const root = {ROOT}; return [root.querySelector('.says').textContent,
        [...root.querySelectorAll('#shortlist tr[data-scheme]')].map(row => row.dataset.scheme),
        [...root.querySelectorAll('.figure [data-scheme]')].map(point => point.dataset.scheme),
        getComputedStyle(explorer.firstLook.host).visibility]; }}"""
    )
    assert "1.0 dB higher" in said and seen == "visible"
    assert len(rows) == 5 and set(points) >= {"int4_group128_asym", "nvfp4"}
    page.evaluate(JUMP)
    let_go()
    gone(page)
    jumped: dict[str, Any] = page.evaluate("jumped")
    assert jumped["painted"] and jumped["seen"]
    for part, before in jumped["before"].items():
        assert before == pytest.approx(jumped["after"][part], abs=1), part
    assert page.locator("first-look").count() == 0 and page.evaluate("scrollY") == 0


@THOROUGH
def test_clicks_before_the_page_are_done(page: Page, url: str) -> None:
    """A sample, a row and a point with Shift are marked, and done in their order once the page can."""
    let_go = hold(page, url)
    page.mouse.click(*spot(page, "[data-sample=mlp_down]"))
    page.mouse.click(*spot(page, "tr[data-scheme=mxfp4] td.num"))
    page.keyboard.down("Shift")
    page.mouse.click(*spot(page, ".figure [data-scheme=int4_group128_asym]"))  # no other lies over it
    page.keyboard.up("Shift")
    assert page.evaluate(f"{ROOT}.querySelectorAll('[data-waiting]').length") == 3
    let_go()
    gone(page)
    expect(page.locator(".tensor-card h2")).to_contain_text("384 × 1,536")
    expect(page.locator("#shortlist tr.is-a")).to_have_attribute("data-scheme", "mxfp4")
    at_rest(page)
    assert page.evaluate("[explorer.record.sample, explorer.record.second]") == [
        "mlp_down",
        "int4_group128_asym",
    ]


@pytest.mark.thorough
@pytest.mark.expects_errors("503|Too Many|Failed to load")
def test_it_goes_where_the_page_cannot_answer(page: Page, url: str) -> None:
    """Else it would hide the line that says so, for ever."""
    page.route("**/queue/join**", lambda route: route.fulfill(status=503, json={"detail": "busy"}))
    let_go = hold(page, url)
    let_go()
    page.wait_for_function("explorer.firstLook.host === null")
    expect(page.locator(".page-notice")).to_be_visible()
