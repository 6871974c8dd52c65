"""What stands in the address: a link, Back and Forward lead to what was seen, also while an answer is on its
way.

If these fail, a link shows its receiver something else than its sender saw, or Back leads nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from app.sections.speed_machines import choices as machines
from explorer import SCHEMES
from tests.covering import sampled
from tests.page.test_browser import choose, frames, look_at, open_page, open_panel, route_requests, until_held

pytestmark = pytest.mark.browser
LARGE = "normal_4096"
"""A built-in tensor of 4096 x 4096, whose answers take seconds."""


def wait_for_query(page: Page, *parts: str) -> None:
    """Wait until the address holds each of ``parts``, and none of those that begin with "!"."""
    for part in parts:
        wanted = f"location.search.includes('{part.removeprefix('!')}')"
        page.wait_for_function(f"!{wanted}" if part.startswith("!") else wanted)


def in_another_window(page: Page, url: str) -> Page:
    """The address that ``page`` has now, opened by somebody else."""
    other = page.context.new_page()
    open_page(other, url, page.url.partition("?")[2])
    return other


def settled(page: Page) -> None:
    """Wait until what was on its way has come; for what comes later, ``expect`` waits."""
    calm = "explorer.ready && !explorer.sent && !explorer.acts.length"
    page.wait_for_function(calm)
    frames(page)
    page.wait_for_function(calm)


def top_of(page: Page, section: str) -> float:
    return float(page.evaluate(f"document.getElementById('section-{section}').getBoundingClientRect().top"))


@pytest.mark.thorough
def test_the_range_of_ones_own(page: Page, url: str) -> None:
    """A range that was typed stands in the address; the link shows it; Back takes it back."""
    open_page(page, url, "tab=calibration&scheme=int8_row")
    number = page.locator("#own-range input[type=number]")
    expect(page.locator("#calibration-table")).to_contain_text("your range", ignore_case=True, timeout=60_000)
    number.fill("0.31")
    number.press("Tab")
    wait_for_query(page, "range=0.31")
    other = in_another_window(page, url)
    expect(other.locator("#own-range input[type=number]")).to_have_value("0.31")
    other.close()
    page.go_back()
    expect(number).to_have_value("0.5")
    page.go_forward()
    expect(number).to_have_value("0.31")


@pytest.mark.shared_page
def test_a_machine_is_a_step_of_back(page: Page, url: str) -> None:
    """As a shape is, with the shape that it is shown at, and as the second machine is. If this fails, Back
    leads past the machine, or to a machine with another's shape."""
    open_page(page, url, "tab=speed&shape=4096x4096x4096")
    source, shape = page.locator("#speed-source"), page.locator("#speed-shape input")
    look_at(source)
    expect(source).to_contain_text("Recorded on one NVIDIA H200")
    before = page.evaluate("history.length")
    page.get_by_label("Recorded on AMD EPYC").check()
    expect(source).to_contain_text("4096×4096×4096 was not timed on this machine: shown is")
    wait_for_query(page, "machine=amd-epyc", "!shape=4096x4096x4096", "shape=")
    near = shape.input_value()
    page.locator("#speed-beside input").click()
    page.get_by_role("option", name="Recorded on Intel").click()
    expect(page.locator("#speed-two")).to_contain_text("Intel")
    wait_for_query(page, "beside=intel")
    assert page.evaluate("history.length") == before + 2
    page.go_back()
    expect(page.locator("#speed-two")).to_be_empty()
    expect(shape).to_have_value(near)
    page.go_back()
    expect(page.get_by_label(machines()[0][0])).to_be_checked()
    expect(source).to_contain_text("Recorded on one NVIDIA H200")
    expect(shape).to_have_value(re.compile("^4096×4096×4096"))
    wait_for_query(page, "shape=4096x4096x4096", "!machine")
    page.go_forward()
    expect(source).to_contain_text("Recorded on one AMD EPYC")
    expect(shape).to_have_value(near)


OF_ARROWS = """() => [...document.querySelectorAll('#section-speed input[role=combobox]')]
  .filter(input => input.offsetWidth && input.parentElement.querySelector('.dropdown-arrow'))
  .map(input => {
    const arrow = input.parentElement.querySelector('.dropdown-arrow').getBoundingClientRect();
    const end = input.getBoundingClientRect().right - parseFloat(getComputedStyle(input).paddingRight);
    return arrow.left - end;
  })"""


@pytest.mark.shared_page
def test_a_choice_ends_before_its_arrow_on_a_phone(page: Page, url: str) -> None:
    """If this fails, a long shape is painted under the arrow of its list."""
    page.set_viewport_size({"width": 390, "height": 844})
    open_page(page, url, "tab=speed&shape=4096x4096x4096")
    look_at(page.locator("#speed-shape"))
    gaps = page.evaluate(OF_ARROWS)
    assert len(gaps) >= 2 and min(gaps) >= 0


@pytest.mark.thorough
def test_the_shape_of_the_speed_section(page: Page, url: str) -> None:
    """The shape whose numbers are shown, and the one to be measured here."""
    open_page(page, url, "tab=speed")
    expect(page.locator("#speed-source")).to_contain_text("Recorded")
    first = page.locator("#speed-shape input").input_value()
    page.locator("#speed-shape input").click()
    page.get_by_role("option", name="1×8192×8192").click()
    wait_for_query(page, "shape=")
    page.get_by_text("Measure on this machine").click()
    box = page.get_by_label("K", exact=True)
    box.fill("640")
    box.press("Tab")
    wait_for_query(page, "k=640")
    other = in_another_window(page, url)
    expect(other.locator("#speed-shape input")).to_have_value(re.compile("^1×8192×8192"))
    expect(other.locator("#speed-advice")).to_contain_text("1×8192×8192")
    other.get_by_text("Measure on this machine").click()
    expect(other.get_by_label("K", exact=True)).to_have_value("640")
    other.close()
    page.go_back()
    expect(page.locator("#speed-shape input")).to_have_value(first)
    page.go_forward()
    expect(page.locator("#speed-shape input")).to_have_value(re.compile("^1×8192×8192"))


@pytest.mark.thorough
def test_a_tensor_of_ones_own_file(page: Page, url: str, tmp_path: Path) -> None:
    """Back over the choice of another tensor of a file leads to the one before."""
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    np.savez(path, first=rng.standard_normal((32, 64)), second=rng.standard_normal((8, 16)))
    open_page(page, url)
    open_panel(page, "tensor")
    choose(page, "source", "Your file")
    page.locator("#file input[type=file]").set_input_files(str(path))
    shown = page.locator("#which .tensor")
    expect(shown).to_contain_text("first · 32×64")
    choose(page, "file-tensor", "second")
    expect(shown).to_contain_text("second · 8×16")
    wait_for_query(page, "file_tensor=second")
    page.go_back()
    expect(shown).to_contain_text("first · 32×64")
    expect(page.locator("#file-tensor input")).to_have_value(re.compile("^first"))
    page.go_forward()
    expect(shown).to_contain_text("second · 8×16")


@pytest.mark.thorough
def test_the_open_section(page: Page, url: str) -> None:
    """Scrolling writes the section at the top into the address, without entries of its own; a link leads
    there, and so does Back."""
    open_page(page, url)
    settled(page)
    entries = page.evaluate("history.length")
    page.mouse.move(700, 600)
    for _ in range(60):
        page.mouse.wheel(0, 250)
        page.wait_for_timeout(40)
        if top_of(page, "element") < 60:
            break
    wait_for_query(page, "section=element")
    assert page.evaluate("history.length") == entries
    other = in_another_window(page, url)
    other.wait_for_function(
        "Math.abs(document.getElementById('section-element').getBoundingClientRect().top - 70) < 40"
    )
    other.close()
    page.keyboard.press("]")
    page.wait_for_function(f"history.length === {entries + 1}")
    page.mouse.wheel(0, -30_000)
    wait_for_query(page, "!section")
    page.go_back()
    wait_for_query(page, "section=element")
    page.wait_for_function(
        "Math.abs(document.getElementById('section-element').getBoundingClientRect().top - 70) < 40"
    )
    page.go_forward()
    wait_for_query(page, "!section")
    assert page.evaluate("scrollY") == 0
    page.get_by_role("button", name="Model and hardware").click()
    wait_for_query(page, "tab=model", "!section")
    page.go_back()
    wait_for_query(page, "!tab", "!section")
    assert page.evaluate("history.length") == entries + 2


@pytest.mark.thorough
@pytest.mark.shared_page
def test_a_link_to_a_section_lets_the_hand_scroll_away(page: Page, url: str) -> None:
    """While heights settle the page holds the section of the link; a hand on the wheel is stronger."""
    open_page(page, url, "tab=calibration")
    expect(page.locator("#section-calibration")).to_be_in_viewport()
    page.mouse.move(700, 500)
    page.mouse.wheel(0, -30_000)
    frames(page, 90)
    assert page.evaluate("scrollY") == 0
    wait_for_query(page, "!section", "!calibration")


@pytest.mark.thorough
@pytest.mark.shared_page
def test_back_while_a_large_answer_is_on_its_way(page: Page, url: str) -> None:
    """The large tensor's answer comes after Back, which leads to the entry before: an address is written when
    its answer is shown. The page ends with the tensor, the scheme and the element that it names."""
    open_page(page, url, "scheme=nvfp4&row=10&column=20")
    settled(page)
    open_page(page, url, "scheme=int4_row&row=3&column=4")
    settled(page)
    open_panel(page, "tensor")
    choose(page, "sample", "4096")
    page.wait_for_function("explorer.sent")
    page.go_back()
    settled(page)
    expect(page.locator("#which .tensor")).to_contain_text("MLP up-projection")
    expect(page.locator("#chip-tensor")).to_contain_text("MLP up-projection")
    expect(page.locator("#sample input")).to_have_value(re.compile("MLP up-projection"))
    expect(page.locator("#inspector h3")).to_contain_text("Element (10, 20)")
    wait_for_query(page, "row=10", "column=20", f"!{LARGE}")


SEEN = """() => explorer.sampled && {
  query: location.search, length: history.length, card: document.querySelector('.tensor-card').textContent,
  said: document.querySelector('#answer').textContent,
  chip: document.querySelector('#chip-tensor').textContent,
  figures: [...document.querySelectorAll('#place-tensor .section:not(#section-frontier) .figure')]
    .map(figure => getComputedStyle(figure).visibility)}"""


@pytest.mark.shared_page
def test_first_numbers_have_their_address_and_stand_alone(page: Page, url: str) -> None:
    """While numbers of a sample are shown, bar, card and address name their tensor, and no figure is of the
    one before. The whole's numbers then add no second step to Back. If this fails, a link that is copied
    meanwhile leads to another tensor, or numbers are read beside the wrong picture."""
    open_page(page, url, "scheme=int4_row")
    look_at(page.locator("#error-map .figure"))
    settled(page)
    before = page.evaluate("history.length")
    page.evaluate(f"explorer.choose({{do: 'sample', name: '{LARGE}'}})")
    seen = page.wait_for_function(SEEN).json_value()
    assert f"sample={LARGE}" in seen["query"] and seen["length"] == before + 1
    assert "4,096 × 4,096" in seen["card"] and "follow with the whole tensor" in seen["card"]
    assert "≈" in seen["said"] and "4096" in seen["chip"] and set(seen["figures"]) == {"hidden"}
    settled(page)
    expect(page.locator("[data-behind] .figure:visible")).to_have_count(0)
    look_at(page.locator("#error-map .figure"))
    expect(page.locator("#section-element")).not_to_have_attribute("data-behind", "")
    expect(page.locator("#error-map .figure")).to_be_visible()
    assert page.evaluate("[explorer.sampled, history.length]") == [False, before + 1]
    assert page.evaluate("location.search") == seen["query"]


@pytest.mark.shared_page
@pytest.mark.parametrize("wait", sampled([0, 30, 80, 160, 400], [80]))
def test_back_while_a_step_is_on_its_way(page: Page, url: str, wait: int) -> None:
    """Whatever of a step's answers come after Back, the view that was gone back to is shown."""
    open_page(page, url, "scheme=int4_row&row=3&column=4")
    settled(page)
    page.keyboard.press("]")
    page.wait_for_function("!location.search.includes('scheme=int4_row&')")
    page.keyboard.press("]")
    page.wait_for_timeout(wait)
    page.evaluate("history.go(-1)")
    settled(page)
    query = page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    scheme = SCHEMES[query["scheme"]]
    expect(page.locator("#chip-a")).to_have_text(scheme.label)
    expect(page.locator("#which .scheme").first).to_contain_text(scheme.label)
    expect(page.locator("#preset input")).to_have_value(scheme.label)
    expect(page.locator("#inspector h3")).to_contain_text("Element (3, 4)")
    assert (query["row"], query["column"]) == ("3", "4")


GOING = "document.documentElement.hasAttribute('data-going')"


@pytest.mark.shared_page
def test_where_back_leads_is_said_while_it_is_awaited(page: Page, url: str) -> None:
    """Behind what was chosen before, too. If this fails, the heading of the view that was left looks as if
    Back had done nothing, for as long as a large tensor takes."""
    open_page(page, url, "scheme=int4_row&row=3&column=4")
    settled(page)
    page.keyboard.press("]")
    settled(page)
    waiting = held_acts(page, 2)
    page.keyboard.press("]")
    until_held(page, waiting)
    page.go_back()
    line = page.locator(".page-notice")
    expect(line).to_contain_text("Going to ")
    expect(line).to_contain_text("by int4_row")
    assert page.evaluate(GOING)
    expect(page.locator("#which")).to_have_css("opacity", "0.35")
    waiting[0].continue_()
    until_held(page, waiting, 2)
    expect(line).to_contain_text("by int4_row")
    waiting[1].continue_()
    page.unroute_all()
    settled(page)
    expect(line).to_have_count(0)
    assert not page.evaluate(GOING)
    expect(page.locator("#chip-a")).to_have_text(SCHEMES["int4_row"].label)


def held_acts(page: Page, count: int) -> list[Route]:
    """A list for the first ``count`` requests that choose something, which are held back until they are
    continued: sections ask, and look at what has become known, whenever the machine is ready for it."""
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        acts = re.findall(r'\\"do\\":\\"(\w+)', route.request.post_data or "")
        if len(waiting) < count and set(acts) - {"look"}:
            waiting.append(route)
        else:
            route.continue_()

    route_requests(page, hold)
    return waiting


@pytest.mark.shared_page
def test_a_server_that_hangs_is_said(page: Page, url: str) -> None:
    """With the seconds, which go on; what was asked is shown when the answer comes after all, and the line
    goes. Else the page looks as if the click had been nothing."""
    open_page(page, url, "scheme=int4_row&row=3&column=4")
    settled(page)
    usual = page.evaluate("explorer.silentMs")
    assert usual == 15_000
    waiting = held_acts(page, 1)
    page.evaluate("explorer.silentMs = 300")
    page.keyboard.press("]")
    line = page.locator(".page-notice")
    expect(line).to_contain_text("The server has not answered for 1 s")
    expect(line).to_contain_text("The server has not answered for 2 s")
    expect(page.locator("#chip-a")).to_have_text(SCHEMES["int4_row"].label)
    waiting[0].continue_()
    page.unroute_all()
    expect(line).to_have_count(0)
    expect(page.locator("#chip-a")).not_to_have_text(SCHEMES["int4_row"].label)
    page.evaluate("usual => { explorer.silentMs = usual; }", usual)


@pytest.mark.shared_page
def test_a_stream_that_breaks_after_the_answer_takes_nothing_back(page: Page, url: str) -> None:
    """The answer came, and the connection broke before Gradio heard the end of the request. If this fails,
    the page says that the server does not answer under the view that it has just sent."""
    open_page(page, url, "scheme=int4_row&row=3&column=4")
    settled(page)
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
    expect(page.locator(".page-notice")).to_have_count(0)
    assert page.evaluate("explorer.record.source") == "answered"
    page.evaluate("record => { explorer.record = JSON.parse(record); }", record)


@pytest.mark.shared_page
def test_an_answer_of_before_does_not_write_the_address_gone_to(page: Page, url: str) -> None:
    """An answer that comes after Back is not that of the address gone to: it does not write there, and the
    page does not count it as shown."""
    open_page(page, url, "scheme=int4_row&row=3&column=4")
    settled(page)
    there = "scheme=int4_row&row=7&column=8"
    waiting = held_acts(page, 2)
    page.keyboard.press("]")
    until_held(page, waiting)
    version = page.evaluate(
        """query => { history.pushState(null, '', '?' + query);
        dispatchEvent(new PopStateEvent('popstate'));
        return explorer.version; }""",
        there,
    )
    waiting[0].continue_()
    until_held(page, waiting, 2)
    expect(page.locator("#chip-a")).not_to_have_text(SCHEMES["int4_row"].label)
    shown, query = page.evaluate("explorer.version"), page.evaluate("location.search")
    waiting[1].continue_()
    page.wait_for_function("version => explorer.version > version", arg=version)
    page.unroute_all()
    assert (shown, query) == (version, f"?{there}")
    expect(page.locator("#inspector h3")).to_contain_text("Element (7, 8)")
    expect(page.locator("#chip-a")).to_have_text(SCHEMES["int4_row"].label)
    wait_for_query(page, "scheme=int4_row&", "row=7", "column=8")


@pytest.mark.thorough
@pytest.mark.shared_page
def test_five_quick_steps_are_five_steps(page: Page, url: str) -> None:
    """Each press counts, however fast; so do a swap between them and the steps of the inspected element."""
    open_page(page, url, "scheme=int4_row&second=nvfp4&row=10&column=20")
    settled(page)
    names = list(SCHEMES)
    for _ in range(5):
        page.keyboard.press("]")
    wanted = names[names.index("int4_row") + 5]
    expect(page.locator("#chip-a")).to_have_text(SCHEMES[wanted].label)
    settled(page)
    for key in ("x", "]", "]", "[", "]", "x"):
        page.keyboard.press(key)
    second = names[names.index("nvfp4") + 2]
    expect(page.locator("#chip-b")).to_have_text(SCHEMES[second].label)
    expect(page.locator("#chip-a")).to_have_text(SCHEMES[wanted].label)
    settled(page)
    look_at(page.locator("#error-map .figure"))
    expect(page.locator("#error-map .main-svg").first).to_be_visible()
    page.locator("#error-map .figure").focus()
    for _ in range(7):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#inspector h3")).to_contain_text("Element (17, 20)")
    wait_for_query(page, "row=17")


@pytest.mark.thorough
def test_the_playground_and_the_storys_step(page: Page, url: str) -> None:
    """Format, number and step stand in the address without entries of their own; a link shows them."""
    open_page(page, url, "tab=learn")
    entries = page.evaluate("history.length")
    page.locator("#format-picker").select_option("float4_e2m1fn")
    page.locator("#number-entry").fill("-2.7")
    wait_for_query(page, "format=float4_e2m1fn", "number=-2.7")
    page.locator(".steps-list button").nth(3).click()
    wait_for_query(page, "step=4")
    assert page.evaluate("history.length") == entries
    other = in_another_window(page, url)
    expect(other.locator("#format-picker")).to_have_value("float4_e2m1fn")
    expect(other.locator("#number-entry")).to_have_value("−2.7")
    expect(other.locator("#toy-value")).to_have_text("−3")
    expect(other.locator(".steps-list button").nth(3)).to_have_attribute("aria-current", "step")
    other.close()
    page.locator("#format-picker").select_option("float8_e5m2")
    page.locator("#number-entry").fill("0xFF")
    wait_for_query(page, "code=0xFF", "!number=")
    other = in_another_window(page, url)
    expect(other.locator("#toy-value")).to_have_text("NaN")
    expect(other.locator("#toy .codes")).to_contain_text("0xFF")
    other.close()
    page.get_by_role("button", name="Tensor", exact=True).click()
    expect(page.locator("#place-tensor")).to_be_visible()
    page.go_back()
    expect(page.locator("#place-learn")).to_be_visible()
    expect(page.locator("#format-picker")).to_have_value("float8_e5m2")


@pytest.mark.parametrize(
    "query",
    sampled(
        ["format=what&number=pear&step=99", "code=0xFFFFF&format=int8&step=x", "step=0"],
        ["format=what&number=pear&step=99"],
    ),
)
def test_nonsense_for_learn_opens_what_it_opens_without(page: Page, url: str, query: str) -> None:
    """A cut or mistyped link shows the defaults of what it does not say."""
    open_page(page, url, f"tab=learn&{query}")
    expect(page.locator("#toy-value")).to_have_text("8")
    expect(page.locator(".steps-list button").first).to_have_attribute("aria-current", "step")


@pytest.mark.parametrize(
    "query",
    [
        "range=7&shape=9x9&m=-3&n=1.5&k=x&file_tensor=zzz",
        pytest.param("range=&shape=&m=", marks=pytest.mark.thorough),
    ],
)
def test_nonsense_for_range_and_shape(page: Page, url: str, query: str) -> None:
    """It shows the defaults, and no handler fails over it."""
    open_page(page, url, f"tab=speed&{query}")
    expect(page.locator("#speed-source")).to_contain_text("Recorded")
    expect(page.locator("#speed-shape input")).to_have_value(re.compile("^4096×4096×4096"))
    page.get_by_text("Measure on this machine").click()
    for name, value in (("M (tokens)", "512"), ("N", "1536"), ("K", "384")):
        expect(page.get_by_label(name, exact=True)).to_have_value(value)
    expect(page.locator("#own-range input[type=number]")).to_have_value("0.5")
