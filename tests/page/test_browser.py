"""The page in a real browser: what a visitor sees, clicks, types, saves and shares."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Error, Locator, Page, Route, expect

from app.learn import training
from app.places import PLACES
from app.sections import compare
from app.sections.speed_machines import choices as machines
from explorer import SCHEMES
from explorer.methods import METHODS
from explorer.recordings.files import Recording, record_to
from explorer.recordings.gemm import recorded_layers
from explorer.recordings.machine import Machine
from explorer.training.digits import count
from tests.covering import THOROUGH, sampled

pytestmark = pytest.mark.browser


def open_page(page: Page, url: str, query: str = "") -> None:
    """Open and wait until the link has been read and shown; a page that is open goes there as by Back."""
    if page.url.startswith(url):
        visit(page, query)
        return
    page.goto(f"{url}/?{query}")
    page.wait_for_function("window.explorer?.ready", timeout=60_000)


def idle(page: Page) -> None:
    """Wait until nothing is asked of the server, and what waits has been drawn."""
    page.wait_for_function("!explorer.stream.open.size", timeout=60_000)
    page.evaluate("explorer.drawing")


def until_held(page: Page, held: Sequence[Route], count: int = 1, seconds: float = 30) -> None:
    """Wait until ``count`` requests are held back; fail after ``seconds``."""
    end = time.monotonic() + seconds
    while len(held) < count:
        assert time.monotonic() < end, f"{len(held)} of {count} requests came in {seconds} s"
        page.wait_for_timeout(20)


def route_requests(page: Page, handler: Callable[[Route], object]) -> None:
    """Give each request to Gradio's queue to ``handler``, from the next one on, on a page that is open.
    Chromium tells a page of its routes some time after ``page.route`` has returned, and two of a hundred
    keys pressed at once got past theirs: so wait until a request that means nothing is held."""

    def handle(route: Route) -> None:
        if "queue/join" in route.request.url.partition("?")[2]:
            route.fulfill(headers={"x-routed": "yes"})
        else:
            handler(route)

    page.route(re.compile("queue/join"), handle)
    probe = "fetch('favicon.ico?queue/join').then(answer => answer.headers.get('x-routed'))"
    for _ in range(1000):
        if page.evaluate(probe):
            return
    raise AssertionError("no request comes by the route")


def frames(page: Page, count: int = 40) -> None:
    """Wait until nothing is asked of the server and so many frames are drawn: for what must not happen, or
    has no sign of its end. A busy machine draws them later, and does the rest later, too."""
    idle(page)
    page.evaluate(
        """count => new Promise(resolve => {
          const next = () => count-- ? requestAnimationFrame(next) : resolve();
          next();
        })""",
        count,
    )


def look_at(target: Locator) -> None:
    """Scroll to ``target`` by hand until it rests on the screen. A hand that scrolls ends the way to a
    section, which would scroll back; what is drawn above the target moves it away."""
    page, rested, before = target.page, 0, None
    page.mouse.wheel(0, 1)
    for _ in range(200):
        try:
            target.scroll_into_view_if_needed()
            page.evaluate(
                "new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))"
            )
            box = target.bounding_box()
        except Error as error:
            if "not attached" not in str(error):
                raise
            box = None  # drawn anew meanwhile
        rested = rested + 1 if box and box == before else 0
        if rested == 3:
            return
        before = box
    raise AssertionError(f"still moving: {target}")


def visit(page: Page, query: str) -> None:
    """Go to an address of the opened page: at once, as a browser does, so that no answer of before that comes
    in between writes the address."""
    idle(page)
    version = page.evaluate("explorer.version")
    page.evaluate(
        """query => { history.pushState(null, '', '?' + query);
        dispatchEvent(new PopStateEvent('popstate')); }""",
        query,
    )
    page.wait_for_function("version => explorer.version > version", arg=version, timeout=60_000)


def choose(page: Page, name: str, text: str) -> None:
    """Pick an option of a dropdown: click into it, type, and take the first that is left."""
    page.locator(f"#{name} input").click()
    page.keyboard.type(text)
    page.get_by_role("option", name=text, exact=False).first.wait_for()
    expect(page.get_by_role("option").filter(has_not_text=text)).to_have_count(0)
    page.keyboard.press("Enter")


def open_panel(page: Page, name: str) -> None:
    """Open one of the bar's panels: "tensor", "a" or "b"."""
    page.locator(f"#chips [data-panel={name}]").click()
    expect(page.locator(f"#panel-{name}")).to_be_visible()


def sqnr(page: Page, side: int = 0) -> str:
    return page.locator("#kpis .v").nth(side).inner_text()


FOLLOWED = """name => { const box = document.getElementById(name).closest('.section');
  const own = [...explorer.sections.values()].find(section => section.box === box);
  return !own || own.shown === explorer.version; }"""
"""Whether the section of a figure has asked for what is chosen."""


def drawn(page: Page, name: str) -> None:
    """Wait until a figure of what is chosen is painted: its section follows when it is seen, and until then
    the one before stands there."""
    look_at(page.locator(f"#{name}"))
    page.wait_for_function(FOLLOWED, arg=name)
    frames(page, 4)
    idle(page)
    expect(page.locator(f"#{name} .main-svg").first).to_be_visible()


def test_alive_on_load(page: Page, url: str) -> None:
    """The first page shows a real layer: the answer, numbers, figures, an inspected element, the frontier."""
    open_page(page, url)
    expect(page.locator("#answer")).to_contain_text("NVFP4 gains +1.0 dB")
    expect(page.locator("#which .tensor")).to_contain_text("all-MiniLM-L6-v2")
    expect(page.locator("#which .words")).to_contain_text("4-bit weights")
    expect(page.locator("#which .scheme").first).to_contain_text("zero point")
    assert "19.47" in sqnr(page)
    for name in ("values-plot", "error-plot", "error-map", "scales-plot", "usage-plot"):
        drawn(page, name)
    expect(page.locator("#inspector")).to_contain_text("zero point")
    page.locator("details.packed summary").first.click()
    expect(page.locator("#bytes").first).to_contain_text(re.compile(r"^[0-9A-F]{2} "))
    look_at(page.locator("#frontier"))
    expect(page.locator("#frontier-status")).to_contain_text(f"{len(SCHEMES)} schemes", timeout=60_000)


@pytest.mark.thorough
@pytest.mark.shared_page
def test_two_schemes_by_the_mouse(page: Page, url: str, browser: Browser) -> None:
    """B in three clicks; numbers stand side by side; the address says both, and in another window shows the
    same; Back takes B away."""
    open_page(page, url, "scheme=int4_group32")
    page.locator("#chips [data-panel=b]").click()
    page.locator("#second-preset input").click()
    page.locator("#panel-b").get_by_role(
        "option", name="NVFP4 (E4M3 block 16, FP32 tensor)", exact=True
    ).first.click()
    expect(page.locator("#kpis .side-b")).to_have_count(6)
    expect(page.locator("#which .words")).to_contain_text("At the same size B has")
    expect(page.locator("#inspector .side-b").first).to_be_attached()
    drawn(page, "error-map")
    page.wait_for_function("location.search.includes('second=nvfp4')")
    other = browser.new_page()
    open_page(other, url, page.url.split("?")[1])
    expect(other.locator("#which .scheme").last).to_contain_text("FP8 E4M3 scale")
    assert [sqnr(other, side) for side in (0, 1)] == [sqnr(page, side) for side in (0, 1)]
    other.close()
    page.go_back()
    expect(page.locator("#kpis .side-b")).to_have_count(0)
    expect(page.locator("#chip-b")).to_have_text("compare with …")
    page.go_forward()
    expect(page.locator("#kpis .side-b")).to_have_count(6)


@pytest.mark.thorough
@pytest.mark.shared_page
def test_keys_swap_and_step(page: Page, url: str) -> None:
    """x swaps A and B, ] and [ step through the schemes, ? shows the keys; typing in a box does neither."""
    open_page(page, url, "scheme=int4_row&second=nvfp4")
    a, b = (sqnr(page, side)[1:] for side in (0, 1))
    page.keyboard.press("x")
    expect(page.locator("#chip-a")).to_contain_text("NVFP4")
    assert [sqnr(page, side)[1:] for side in (0, 1)] == [b, a]
    page.keyboard.press("]")
    expect(page.locator("#chip-a")).not_to_contain_text("NVFP4 (E4M3 block 16")
    page.keyboard.press("[")
    expect(page.locator("#chip-a")).to_contain_text("NVFP4 (E4M3 block 16")
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#keys")).not_to_be_visible()
    open_panel(page, "a")
    page.locator("#preset input").press("x")
    expect(page.locator("#chip-a")).to_contain_text("NVFP4")


@pytest.mark.shared_page
def test_a_scheme_by_keyboard(page: Page, url: str) -> None:
    """Choose a scheme by typing; the address follows."""
    open_page(page, url, "scheme=int4_group128_asym")
    open_panel(page, "a")
    choose(page, "preset", "NVFP4")
    expect(page.locator("#which .scheme")).to_contain_text("FP8 E4M3 scale")
    expect(page.locator("#format input")).to_have_value("FP4 E2M1")
    page.wait_for_function("location.search.includes('scheme=nvfp4')")


@pytest.mark.thorough
@pytest.mark.shared_page
def test_tab_leaves_no_list_open(page: Page, url: str) -> None:
    """A keyboard user walks through the controls: no more than the list that has the focus is open."""
    open_page(page, url)
    open_panel(page, "a")
    page.locator("#preset input").focus()
    for _ in range(4):
        page.keyboard.press("Tab")
        frames(page)
        assert page.locator("#panel-a ul.option-list").count() <= 1
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator("#panel-a")).not_to_be_visible()


@pytest.mark.thorough
@pytest.mark.shared_page
def test_parts_make_a_custom_scheme(page: Page, url: str) -> None:
    """Group size 48 has no name: it becomes a custom scheme that a link can carry."""
    open_page(page, url, "scheme=int4_group128_asym")
    open_panel(page, "a")
    size = page.locator("#size input")
    size.fill("48")
    size.press("Enter")
    expect(page.locator("#which .scheme")).to_contain_text("48 along a row")
    page.wait_for_function("location.search.includes('~1x48~')")
    choose(page, "format", "FP8 E5M2")
    expect(page.locator("#which .scheme")).to_contain_text("FP8 E5M2")


def hover_value(page: Page, at: tuple[float, float]) -> tuple[float, int, int]:
    """What the map says under the mouse: |error|, row and column."""
    area = page.locator("#error-map .nsewdrag").first
    area.evaluate("e => e.scrollIntoView({block: 'center'})")  # the bar lies over the window's top
    box = area.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * at[0], box["y"] + box["height"] * at[1])
    text = page.locator("#section-element .map-tip")
    text.wait_for()
    match = re.search(
        r"\|error\| ([\d.e-]+), [\d.]+ of its block's scale\s*row (\d+), column (\d+)",
        text.text_content() or "",
    )
    assert match, text.text_content()
    return float(match[1]), int(match[2]), int(match[3])


@pytest.mark.shared_page
@pytest.mark.parametrize("at", [(0.6, 0.1), pytest.param((0.25, 0.8), marks=THOROUGH)])
def test_a_click_on_the_map_opens_the_error_that_it_shows(
    page: Page, url: str, at: tuple[float, float]
) -> None:
    """Each cell stands for many elements: the one with the cell's colour is opened, and the zoom stays."""
    open_page(page, url, "scheme=mxfp4")
    drawn(page, "error-map")
    value, row, column = hover_value(page, at)
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#inspector h3")).to_contain_text(f"Element ({row}, {column})")
    error = page.locator("#inspector tr", has_text="error").last.inner_text()
    shown = re.search(r"= ([−\d.e-]+)", error)
    assert shown and abs(float(shown[1].replace("−", "-"))) == pytest.approx(value, rel=2e-2)
    page.wait_for_function(f"location.search.includes('row={row}')")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#inspector h3")).to_contain_text(f"Element ({row + 1}, {column})")


@pytest.mark.thorough
@pytest.mark.shared_page
def test_arrow_keys_walk_over_elements(page: Page, url: str) -> None:
    """From the inspected element to its neighbour: its row or column grows by one."""
    open_page(page, url, "row=10&column=20")
    expect(page.locator("#inspector h3")).to_contain_text("Element (10, 20)")
    drawn(page, "error-map")
    page.locator("#error-map .figure").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#inspector h3")).to_contain_text("Element (10, 21)")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#inspector h3")).to_contain_text("Element (11, 21)")
    page.wait_for_function("location.search.includes('row=11')")


def ranges(page: Page, name: str) -> list[float]:
    axis = "document.querySelector('#%s .figure')._fullLayout.xaxis.range"
    return [float(end) for end in page.evaluate(axis % name)]


@pytest.mark.thorough
@pytest.mark.shared_page
def test_zoom_stays_and_is_dropped_choices(page: Page, url: str) -> None:
    """A drag zooms; another scheme leaves the zoom; a button takes it back; bars end at the plot's edge
    although the address has changed since they were drawn."""
    open_page(page, url)
    drawn(page, "error-plot")
    whole = ranges(page, "error-plot")
    box = page.locator("#error-plot .nsewdrag").first.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 45, steps=5)
    page.mouse.up()
    zoomed = ranges(page, "error-plot")
    assert zoomed[1] - zoomed[0] < 0.4 * (whole[1] - whole[0])
    page.mouse.move(5, 5)
    page.keyboard.press("]")
    page.wait_for_function("location.search.includes('scheme=') && !location.search.includes('_asym')")
    idle(page)
    assert ranges(page, "error-plot") == pytest.approx(zoomed)
    for path in page.locator("#error-plot [clip-path]").all():
        name = re.search(r"#([^'\")]+)", path.get_attribute("clip-path") or "")
        assert name and "http" not in (path.get_attribute("clip-path") or ""), "the address is not part of it"
        assert page.locator(f"[id='{name[1]}']").count() == 1
    page.locator("#error-plot [data-kind=reset]").click()
    expect(page.locator("#error-plot [data-kind=reset]")).to_be_hidden()
    now = ranges(page, "error-plot")
    assert now[1] - now[0] > 2 * (zoomed[1] - zoomed[0])


@pytest.mark.thorough
@pytest.mark.shared_page
def test_switches_are_not_covered(page: Page, url: str) -> None:
    """linear and log obey a click in the middle of their letters, and nothing is downloaded."""
    open_page(page, url)
    drawn(page, "error-plot")
    saved: list[object] = []

    def save(file: object) -> None:
        saved.append(file)

    page.on("download", save)
    for kind in ("log", "linear"):
        box = page.locator("#error-plot .updatemenu-button", has_text=kind).bounding_box()
        assert box
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_function(
            f"document.querySelector('#error-plot .figure')._fullLayout.yaxis.type === '{kind}'"
        )
    page.remove_listener("download", save)
    assert not saved, "a switch saved a file"


@pytest.mark.thorough
@pytest.mark.shared_page
def test_figures_take_the_width_there_is(page: Page, url: str) -> None:
    """A narrower window, a turned phone: the figure keeps inside its card, and its colour bar stays."""
    open_page(page, url)
    drawn(page, "error-map")
    for width in (1000, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            """() => { const wide = name => document.querySelector(name).getBoundingClientRect().width;
            return Math.abs(wide('#error-map') - wide('#error-map .main-svg')) < 3; }"""
        )
        expect(page.locator("#error-map .cbfill").first).to_be_visible()


def test_upload_choose_and_a_bad_file(page: Page, url: str, tmp_path: Path) -> None:
    """Two tensors in a file: the first matrix is shown; a broken file is one message, and bar, numbers and
    figures go on naming the same tensor."""
    np.savez(
        tmp_path / "mine.npz",
        first=np.random.default_rng(0).standard_normal((32, 64)),
        second=np.ones((8, 8)),
    )
    open_page(page, url)
    open_panel(page, "tensor")
    choose(page, "source", "Your file")
    expect(page.locator(".toast-body")).to_have_count(0)
    page.locator("#file input[type=file]").set_input_files(str(tmp_path / "mine.npz"))
    expect(page.locator("#which .tensor")).to_contain_text("mine.npz · first · 32×64")
    choose(page, "file-tensor", "second")
    expect(page.locator("#which .tensor")).to_contain_text("second · 8×8")
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    expect(page.locator("#frontier-status")).to_contain_text("schemes", timeout=60_000)
    height = "document.querySelector('#file').getBoundingClientRect().height"
    with_file = page.evaluate(height)
    page.locator("#file button[aria-label*='lear'], #file button[aria-label*='emove']").first.click()
    page.locator("#file input[type=file]").wait_for(state="attached")
    assert page.evaluate(height) == with_file, "the page below moves as a file comes and goes"
    page.evaluate(MOVED)
    page.wait_for_function(RESTS)  # what taking the file away moves is no refusal's
    page.evaluate("window.moved = []")
    page.locator("#file input[type=file]").set_input_files(str(tmp_path / "bad.npy"))
    expect(page.locator("#notice")).to_contain_text("no valid .npy header")
    refused = page.locator("#drop .refused")
    expect(refused).to_be_visible()
    expect(refused).to_contain_text(re.compile(r"Not opened: bad\.npy.*no valid \.npy header"))
    expect(page.locator(".toast-body")).to_have_count(0)  # there, and in the line over the page
    assert page.evaluate("window.moved") == [], "a refusal moves nothing"
    expect(page.locator("#which .tensor")).to_contain_text("second · 8×8")
    expect(page.locator("#chip-tensor")).to_contain_text("second")
    assert page.locator(".wrap .error").locator("visible=true").count() == 0, "no error pills"
    page.keyboard.press("x")
    expect(page.locator("#notice .status")).to_have_count(0)
    expect(refused).to_be_visible()
    refused.get_by_role("button", name="Dismiss").click()
    expect(refused).to_be_hidden()
    page.evaluate("explorer.openFile(new File(['nonsense'], 'worse.npy'))")
    expect(page.locator("#notice")).to_contain_text("worse.npy has no valid .npy header")
    page.evaluate("explorer.openFile(new File(['1'], 'notes.txt'))")
    expect(page.locator("#notice .status")).to_have_count(0)  # of the file before
    expect(refused).to_contain_text(re.compile(r"Not opened: notes\.txt.*\.safetensors"))
    expect(page.locator("#chip-tensor")).to_contain_text("second")
    expect(page.locator("#file")).to_contain_text("mine")
    page.evaluate("explorer.openFile(new File(['1,2\\n3,4'], 'good.csv'))")
    expect(page.locator("#which .tensor")).to_contain_text("good.csv")
    expect(refused).to_be_hidden()


MOVED = """window.moved = []; new PerformanceObserver(list => { for (const e of list.getEntries())
  if (e.value > 0.01 && !e.hadRecentInput)
    window.moved.push(e.sources.map(s => s.node?.id || s.node?.nodeName));
}).observe({type: 'layout-shift'});"""
"""Collects in ``window.moved`` what moves by itself, by more than a hundredth of the window."""
RESTS = """() => {
  const shown = [...document.querySelectorAll('#answer *, #which *, #drop *')];
  const places = shown.map(e => e.getBoundingClientRect().y);
  const now = performance.now(), key = places.join();
  if (key !== window.lastPlaces) { window.lastPlaces = key; window.since = now; }
  return now - window.since > 800;
}"""
"""Whether nothing of the first screen has moved for .8 s."""


def test_a_file_dropped_anywhere(page: Page, url: str, tmp_path: Path) -> None:
    """The whole page is the target: the first thing that a visitor tries."""
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).standard_normal((16, 48)).astype(np.float32))
    open_page(page, url, "tab=learn")
    data = (tmp_path / "mine.npy").read_bytes()
    transfer = page.evaluate_handle(
        """bytes => { const t = new DataTransfer();
        t.items.add(new File([new Uint8Array(bytes)], 'mine.npy')); return t; }""",
        list(data),
    )
    page.dispatch_event("h1", "dragover", {"dataTransfer": transfer})
    expect(page.locator("html[data-drop]")).to_have_count(1)
    page.dispatch_event("h1", "drop", {"dataTransfer": transfer})
    expect(page.locator("#which .tensor")).to_contain_text("mine.npy · mine · 16×48")
    expect(page.locator("#chip-tensor")).to_be_visible()


@pytest.mark.thorough
def test_a_layer_of_a_model(page: Page, url: str, minilm: Path) -> None:
    """A folder's layers are listed, the first matrix is shown, and another can be chosen by typing."""
    open_page(page, url)
    open_panel(page, "tensor")
    choose(page, "source", "Layer of a model")
    page.locator("#model textarea, #model input").first.fill(str(minilm))
    page.get_by_role("button", name="List layers").first.click()
    expect(page.locator("#which .tensor")).to_contain_text("encoder.layer.0")
    choose(page, "layer", "layer.5.intermediate.dense.weight")
    expect(page.locator("#which .tensor")).to_contain_text(
        "encoder.layer.5.intermediate.dense.weight · 1536×384"
    )


def test_the_frontier_answers_a_click(page: Page, url: str) -> None:
    """A point becomes B with Shift; A and B are ringed; a custom scheme is among them."""
    open_page(page, url, "goal=8-bit&scheme=int4~1x48~SYMMETRIC~float16~minmax")
    expect(page.locator("#frontier-status")).to_contain_text(f"{len(SCHEMES)} schemes", timeout=60_000)
    drawn(page, "frontier")
    points = page.evaluate(
        """() => { const p = document.querySelector('#frontier .figure'), box = p.getBoundingClientRect();
        const l = p._fullLayout, out = [];
        for (const t of p._fullData) if (t.customdata) t.customdata.forEach((who, i) => out.push([who[1],
          box.left + l._size.l + l.xaxis.d2p(t.x[i]), box.top + l._size.t + l.yaxis.d2p(t.y[i])]));
        return out; }"""
    )
    assert any("1x48" in text for text, _, _ in points)
    _, x, y = next(p for p in points if p[0] == "fp8_e4m3_row")
    page.mouse.move(x, y)
    page.locator("#frontier .hovertext").first.wait_for()
    page.keyboard.down("Shift")
    page.mouse.click(x, y)
    page.keyboard.up("Shift")
    expect(page.locator("#chip-b")).to_contain_text("FP8 E4M3")
    page.wait_for_function("location.search.includes('second=fp8')")


def column(page: Page, table: str, heading: str) -> list[str]:
    """A table's column under ``heading``, from the top down as far as it is drawn."""
    place = page.locator(f"#{table} th[title='{heading}']").get_attribute("aria-colindex")
    return page.locator(f"#{table} [role=gridcell][aria-colindex='{place}']").all_inner_texts()


@pytest.mark.thorough
def test_a_click_on_a_heading_sorts(page: Page, url: str) -> None:
    """By the numbers, not by their letters: first up, then down. Rows stay whole."""
    open_page(page, url, "scheme=int4_group128_asym&section=compare")
    page.get_by_text("All numbers as a table").click()
    page.get_by_role("button", name="Compare these").click()
    usual = len(compare.USUAL)
    expect(page.locator("#compare-status")).to_contain_text(f"{usual} of {usual}")
    expect(page.locator("#compare-table [role=gridcell]").first).to_have_text(compare.USUAL[0])
    names, numbers = column(page, "compare-table", "scheme"), column(page, "compare-table", "SQNR dB")
    sqnr_db = {name: float(number) for name, number in zip(names, numbers, strict=True)}
    assert list(sqnr_db) == list(compare.USUAL), "the whole table is drawn"
    for reverse in (False, True):
        page.locator("#compare-table th[title='SQNR dB']").click()
        wanted = sorted(sqnr_db, key=lambda name: sqnr_db[name], reverse=reverse)
        expect(page.locator("#compare-table [role=gridcell]").first).to_have_text(wanted[0])
        assert column(page, "compare-table", "scheme") == wanted
        assert [float(n) for n in column(page, "compare-table", "SQNR dB")] == [sqnr_db[n] for n in wanted]


@pytest.mark.thorough
def test_compare_download_and_take_over(page: Page, url: str) -> None:
    """Results appear, files download, a click on a row makes its scheme B, another tensor clears them."""
    open_page(page, url, "scheme=int4_group128_asym&section=compare")
    page.get_by_text("All numbers as a table").click()
    page.get_by_role("button", name="Compare these").click()
    usual = len(compare.USUAL)
    expect(page.locator("#compare-status")).to_contain_text(f"{usual} of {usual}")
    with page.expect_download() as download:
        page.locator("#compare").get_by_role("button", name="Download CSV").click()
    assert download.value.suggested_filename.endswith(".csv")
    assert Path(download.value.path()).read_text().splitlines()[0].startswith("scheme,")
    page.locator("#compare-table").get_by_text("mxfp4", exact=True).first.click()
    expect(page.locator("#chip-b")).to_contain_text("MXFP4")
    page.wait_for_function("location.search.includes('second=mxfp4')")
    open_panel(page, "tensor")
    choose(page, "sample", "attention query")
    look_at(page.locator("#compare-status"))  # a section follows when it is seen
    expect(page.locator("#compare-status")).to_contain_text("Nothing compared yet")
    expect(page.locator("#compare-table [role=gridcell]", has_text="mxfp4")).to_have_count(0)


@pytest.mark.thorough
def test_a_comparison_ends_with_stop_and_with_its_tensor(page: Page, url: str) -> None:
    """Stop leaves what is finished. Another tensor stops too: rows of the one before must not come in under
    its name. A visitor's own list is not overwritten by a comparison of all."""
    open_page(page, url, "section=compare&sample=normal_4096")
    page.get_by_text("All numbers as a table").click()
    own = page.locator("#compare-schemes").inner_text()
    every, status = (
        page.get_by_role("button", name=re.compile("Compare all")),
        page.locator("#compare-status"),
    )
    stop = page.locator("#compare").get_by_role("button", name="Stop")
    every.click()
    expect(status).to_contain_text(re.compile(r"[1-9]\d* of \d+"), timeout=60_000)
    assert page.locator("#compare-schemes").inner_text() == own
    stop.click()
    expect(page.locator("#compare-stopped")).to_contain_text("Stopped")
    expect(every).to_be_enabled()
    finished = status.inner_text()
    assert f" of {len(SCHEMES)} schemes" in finished
    assert not finished.startswith(f"{len(SCHEMES)} of"), "it had ended by itself"
    every.click()
    expect(status).to_contain_text("1 of", timeout=60_000)
    open_panel(page, "tensor")
    choose(page, "sample", "attention query")
    expect(page.locator("#which .tensor")).to_contain_text("attention query", timeout=60_000)
    idle(page)
    expect(status).to_contain_text("Nothing compared yet")
    expect(stop).to_be_hidden()
    expect(every).to_be_enabled()
    expect(page.locator("#compare-table [role=gridcell]", has_text="fp")).to_have_count(0)


@pytest.mark.thorough
@pytest.mark.shared_page
def test_calibration_is_there_when_it_is_seen(page: Page, url: str) -> None:
    """Scrolled to, it calibrates; another scheme is calibrated at once; the range that a hand drags is the
    slider's; a method is written back into B."""
    open_page(page, url, "scheme=int8_tensor&tab=calibration")
    expect(page.locator("#calibration-sentence")).to_contain_text("one scale for all", timeout=60_000)
    expect(page.locator("#calibration-table")).to_contain_text("entropy (KL)")
    page.keyboard.press("]")
    expect(page.locator("#chip-a")).to_contain_text("asymmetric")
    idle(page)
    drawn(page, "ranges")
    before = page.locator("#own-range input").first.input_value()
    line = page.evaluate(
        """() => { const p = document.querySelector('#ranges .figure'), box = p.getBoundingClientRect();
        const s = p._fullLayout.shapes.find(s => s.name === 'high'), l = p._fullLayout;
        return [box.left + l._size.l + l.xaxis.d2p(s.x0), box.top + l._size.t + l._size.h / 2,
          l._size.w]; }"""
    )
    page.mouse.move(line[0], line[1])
    page.mouse.down()
    page.mouse.move(line[0] + line[2] * 0.1, line[1], steps=8)
    page.mouse.up()
    expect(page.locator("#own-range input").first).not_to_have_value(before)
    page.locator("#use-range").get_by_role("button", name="Compare it as B").click()
    page.wait_for_function("/second=[^&]*mse/.test(location.search)")


@pytest.mark.thorough
def test_methods_run_refuse_and_repair_b(page: Page, url: str) -> None:
    """Nothing but the choice stands there before a run; they run on the page's own layer by A; the best
    result becomes B with its own weight; a missing file loses nothing; another tensor takes results away."""
    open_page(page, url, "tab=methods&sample=attention_query&scheme=int3_group128")
    section = page.locator("#section-methods")
    expect(page.locator("#methods-status")).to_be_visible()
    expect(page.locator("#methods-bars")).to_be_hidden()
    box = section.bounding_box()
    assert box and box["height"] < 700, "no empty figures"
    section.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#methods-sentence")).to_contain_text("leaves the least error", timeout=90_000)
    drawn(page, "methods-bars")
    expect(page.locator("#methods-table")).to_contain_text(METHODS["gptq_order"].label)
    expect(section.get_by_role("button", name="Stop")).to_be_hidden()
    page.locator("#use-method").get_by_role("button", name="Compare it as B").click()
    expect(page.locator("#chip-b")).to_contain_text("by AWQ")
    expect(page.locator("#which .words")).to_contain_text("The layer's output, which a method optimises")
    page.wait_for_function("location.search.includes('second=int3_group128%2Bawq_clip')")
    expect(page.locator("#inspector .side").last).to_contain_text("by AWQ, duo scaling and clipping →")
    page.get_by_label("my file").check()
    section.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#methods-status")).to_contain_text("upload a file first")
    expect(page.locator("#methods-table")).to_contain_text(METHODS["gptq_order"].label)
    page.locator("#chips [data-act=clear]").click()
    open_panel(page, "tensor")
    choose(page, "sample", "MLP up-projection")
    expect(page.locator("#which .tensor")).to_contain_text("MLP up-projection")
    look_at(section)
    expect(page.locator("#methods-status")).to_contain_text("Not run yet")
    expect(page.locator("#methods-bars")).to_be_hidden()


@pytest.mark.thorough
def test_training_runs_and_stops(page: Page, url: str) -> None:
    """Each network is shown as it is trained, and a stop keeps those that are done."""
    open_page(page, url, "tab=training")
    look_at(page.locator("#loss-scaling-words"))
    expect(page.locator("#loss-scaling-words")).to_contain_text("BF16 has float32's range")
    page.get_by_role("button", name="Train", exact=True).click()
    networks = count(training.USUAL, training.USUAL_SEEDS)
    expect(page.locator("#training-status")).to_contain_text(
        re.compile(rf"([2-9]|\d\d) of {networks} networks · seed")
    )
    page.locator("#section-training").get_by_role("button", name="Stop").click()
    expect(page.locator("#training-stopped")).to_contain_text("Stopped")
    expect(page.locator("#training-table")).to_contain_text("float32, trained on")


@pytest.mark.thorough
def test_speed_recorded_then_measured_here(page: Page, url: str) -> None:
    """The section is full without a GPU; a run on this machine replaces the recorded numbers and says so."""
    open_page(page, url, "tab=speed")
    expect(page.locator("#speed-source")).to_contain_text("Recorded on one NVIDIA H200")
    expect(page.locator("#speed-advice")).to_contain_text("decode")
    expect(page.locator("#speed-bars .js-plotly-plot .main-svg").first).to_be_visible()
    expect(page.locator("#speed-bars .js-plotly-plot .scatterlayer .point")).not_to_have_count(0)
    page.get_by_text("Measure on this machine").click()
    page.get_by_role("button", name="N and K of the layer").click()
    expect(page.get_by_label("N", exact=True)).to_have_value("1536")
    page.locator("#section-speed").get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#speed-status")).to_contain_text(
        re.compile("(products|timings) at 512×1536×384"), timeout=60_000
    )
    expect(page.locator("#speed-source")).to_contain_text("Measured now")
    page.get_by_label(machines()[0][0]).check()
    expect(page.locator("#speed-source")).to_contain_text("Recorded on one NVIDIA H200")


@pytest.mark.thorough
def test_a_recording_is_opened_and_stands_beside_another(page: Page, url: str, tmp_path: Path) -> None:
    """What is no recording leaves the section as it is; one that is becomes the machine shown, for this
    visitor; the second machine is kept in the address, and Back leads to the recording, until it is
    removed."""
    shapes = (64, 4096, 4096), (16, 4096, 4096)
    rows = tuple(row for row in recorded_layers().rows if row.shape in shapes)
    good = record_to(tmp_path / "mine.json", Recording(Machine(gpu="NVIDIA A100"), rows))
    bad = tmp_path / "bad.json"
    bad.write_text("[1]")
    open_page(page, url, "tab=speed&shape=64x4096x4096&beside=gemm-layers")
    two, source = page.locator("#speed-two"), page.locator("#speed-source")
    expect(two).to_contain_text("NVIDIA H200 is")
    page.get_by_text("Open a recording of another machine").click()
    file = page.locator("#speed-recording input[type=file]")
    file.set_input_files(bad)
    expect(page.locator("#speed-opened")).to_contain_text("bad.json was not opened: this is no recording")
    expect(source).to_contain_text("Recorded on one NVIDIA H200")
    file.set_input_files(good)
    expect(page.locator("#speed-opened")).to_contain_text("Opened: mine.json")
    expect(source).to_contain_text("From a file that you opened. Recorded on one NVIDIA A100")
    expect(page.get_by_label("Opened: NVIDIA A100")).to_be_checked()
    expect(two).to_contain_text("takes as long as")
    other = page.context.new_page()  # another visitor, with this one's address
    open_page(other, url, page.url.partition("?")[2])
    expect(other.locator("#speed-source")).to_contain_text("Recorded on one NVIDIA H200")
    expect(other.locator("#notice")).to_contain_text("open its file again under Speed")
    expect(other.get_by_label("Opened: NVIDIA A100")).to_have_count(0)
    other.close()
    page.locator("#speed-shape input").click()
    page.get_by_role("option", name="16×4096×4096").click()
    expect(page.locator("#speed-advice")).to_contain_text("16×4096×4096")
    page.get_by_label(machines()[0][0]).check()
    expect(source).to_contain_text("Recorded on one NVIDIA H200")
    page.go_back()
    expect(page.get_by_label("Opened: NVIDIA A100")).to_be_checked()
    expect(source).to_contain_text("From a file that you opened. Recorded on one NVIDIA A100")
    expect(page.locator("#speed-shape input")).to_have_value(re.compile("^16×4096×4096"))
    page.locator("#speed-remove").click()
    expect(source).to_contain_text("Recorded on one NVIDIA H200")
    expect(page.get_by_label("Opened: NVIDIA A100")).to_have_count(0)


@pytest.mark.thorough
def test_this_cpu_answers_within_seconds_and_stops(page: Page, url: str) -> None:
    """One click, and the first sentence is about this machine; Stop keeps and shows what was measured."""
    open_page(page, url, "tab=speed")
    expect(page.locator("#speed-source")).to_contain_text("Recorded on one NVIDIA H200")
    page.locator("#speed-cpu").click()
    expect(page.locator("#speed-status")).to_contain_text(
        "At one token, 4 bits by torch take", timeout=60_000
    )
    page.locator("#section-speed").get_by_role("button", name="Stop").click()
    expect(page.locator("#speed-source")).to_contain_text("Measured now", timeout=30_000)
    expect(page.locator("#speed-advice")).to_contain_text("of float32's time on this CPU")
    expect(page.locator("#speed-shape input")).to_have_value(re.compile("^1×4096×4096"))


@pytest.mark.thorough
def test_shapes_are_typed_and_wrong_ones_corrected(page: Page, url: str) -> None:
    """A shape with x between its numbers is found and modelled, *Measured here* keeps it, the recorded
    machine goes to the nearest that it has, and a number that is refused is explained and leaves Run to be
    pressed again."""
    open_page(page, url, "tab=speed")
    source, shape = page.locator("#speed-source"), page.locator("#speed-shape input")
    expect(source).to_contain_text("Recorded on one NVIDIA H200")
    shape.click()
    page.keyboard.press("Control+a")
    page.keyboard.type("64x8192x8200")
    page.keyboard.press("Enter")
    expect(source).to_contain_text("times are modelled")
    expect(shape).to_have_value("64×8192×8200")
    page.get_by_label("Measured here").check()
    expect(source).to_contain_text("Nothing measured here yet")
    expect(shape).to_have_value("64×8192×8200")
    page.get_by_label(machines()[0][0]).check()
    expect(source).to_contain_text("not timed on this machine: shown is 64×8192×8192")
    expect(shape).to_have_value(re.compile("^64×8192×8192"))
    page.get_by_text("Measure on this machine").click()
    run = page.locator("#section-speed").get_by_role("button", name="Run", exact=True)
    page.locator("#speed-preset input").click()
    page.keyboard.type("64x8192x8192")
    page.keyboard.press("Enter")
    for name, value in (("M (tokens)", "64"), ("N", "8192"), ("K", "8192")):
        expect(page.get_by_label(name, exact=True)).to_have_value(value)
    tokens = page.get_by_label("M (tokens)", exact=True)
    tokens.click()
    page.keyboard.press("Control+a")
    page.keyboard.type("-5")
    run.click()
    expect(page.locator("#speed-status")).to_contain_text("M, N and K are whole numbers of at least 1")
    expect(run).to_be_enabled()
    tokens.click()
    page.keyboard.press("Control+a")
    page.keyboard.type("8")
    page.keyboard.press("Tab")
    expect(run).to_be_enabled()


@pytest.mark.thorough
@pytest.mark.shared_page
def test_figures_save_under_a_name_that_says_what_they_show(page: Page, url: str) -> None:
    """As SVG and as PNG, called after tensor, scheme and figure."""
    open_page(page, url)
    drawn(page, "error-plot")
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            page.locator("#error-plot").get_by_role("button", name=kind).click()
        assert (
            download.value.suggested_filename
            == f"MLP-up-projection-layer-3-int4-group128-asym-nvfp4-error.{kind.lower()}"
        )


def scroll_through(page: Page) -> None:
    """From top to bottom, as a reader does, so that every section is shown."""
    height = page.evaluate("document.documentElement.scrollHeight")
    for top in range(0, height, 700):
        page.evaluate(f"scrollTo(0, {top})")
        page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


@pytest.mark.shared_page
@pytest.mark.parametrize("place", sampled([place.NAME for place in PLACES], ["model"]))
def test_no_sideways_scrolling(page: Page, url: str, place: str) -> None:
    """On a phone, a small laptop and a desk: if a place is wider than the screen, its right side is lost."""
    open_page(page, url, f"tab={place}&second=nvfp4")
    for width in (1440, 1024, 390):
        page.set_viewport_size({"width": width, "height": 900})
        scroll_through(page)
        idle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


OLD_LINKS = [
    ("tab=tensor&scheme=nvfp4", "tensor", "answer"),
    ("tab=formats", "learn", "section-formats"),
    ("tab=compare&sample=mlp_down", "tensor", "section-frontier"),
    ("tab=calibration", "tensor", "section-calibration"),
    ("tab=methods", "tensor", "section-methods"),
    ("tab=training", "learn", "section-training"),
    ("tab=speed", "model", "section-speed"),
]


@pytest.mark.shared_page
@pytest.mark.parametrize(("query", "place", "element"), sampled(OLD_LINKS, OLD_LINKS[2:3]))
def test_links_of_the_earlier_page(page: Page, url: str, query: str, place: str, element: str) -> None:
    """What a link called a tab is scrolled to now, in the place that holds it."""
    open_page(page, url, query)
    assert page.evaluate("document.documentElement.dataset.place") == place
    expect(page.locator(f"#{element}")).to_be_in_viewport(timeout=15_000)


@pytest.mark.thorough
@pytest.mark.shared_page
def test_places_and_back(page: Page, url: str) -> None:
    """Places change without a request, stand in the address, and Back leads to the last one."""
    open_page(page, url)
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.locator("#place-learn")).to_be_visible()
    expect(page.locator("#chips")).to_be_hidden()
    page.get_by_role("button", name="Model and hardware").click()
    expect(page.locator("#place-model")).to_be_visible()
    page.go_back()
    expect(page.locator("#place-learn")).to_be_visible()
    page.go_back()
    expect(page.locator("#place-tensor")).to_be_visible()
    assert "19.47" in sqnr(page)


def test_dark_mode_reaches_the_plots(page: Page, url: str) -> None:
    """Axis text is light on dark: plotly's own colours would be unreadable."""
    open_page(page, url, "__theme=dark")
    look_at(page.locator("#error-plot"))
    fill = page.locator("#error-plot .xtitle").evaluate("e => getComputedStyle(e).fill")
    assert min(int(n) for n in re.findall(r"\d+", fill)[:3]) > 150
    background = page.locator(".gradio-container").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert max(int(n) for n in re.findall(r"\d+", background)[:3]) < 60


def test_a_link_with_nonsense_still_opens(page: Page, url: str) -> None:
    """An old, cut or hostile link shows the defaults, and its words are not run."""
    open_page(page, url, "scheme=%3Cscript%3E&sample=zzz&tab=what&source=file")
    expect(page.locator("#which .tensor")).to_contain_text("MLP up-projection")
    assert "19.47" in sqnr(page)
