"""The place Tensor as a visitor uses it: own numbers in, the answer out, figures read, clicked and saved.

If these fail, the answer takes more than four actions, does not fit its screen, or its parts disagree.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.covering import THOROUGH
from tests.page.acts import (
    LARGE,
    at_rest,
    click,
    drawn,
    drop,
    leave_panel,
    load_file,
    look_at,
    open_page,
    open_panel,
    point_of,
    visit,
    wait_for_query,
)  # fmt: skip


def sqnr(page: Page, side: int = 0) -> str:
    return page.locator("#kpis .v").nth(side).inner_text()


def agree(page: Page) -> dict[str, Any]:
    """What bar, sentence, table, figure and address say of A and B; they have to be the same."""
    at_rest(page)
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
    assert query.get("scheme", record["scheme"]) == record["scheme"], "a fresh page's is not in the address"
    assert query.get("second", record["second"]) == record["second"]
    assert query.get("goal", "") == record["goal"] and query.get("list", "") == record["shortlist"]
    return dict(record)


@THOROUGH
def test_alive_on_load(page: Page, url: str) -> None:
    """The first page shows a real layer: the answer, numbers, figures, an inspected element, the frontier."""
    open_page(page, url)
    expect(page.locator("#answer")).to_contain_text("+1.0 dB")
    expect(page.locator("#which .tensor")).to_contain_text("all-MiniLM-L6-v2")
    assert "19.47" in sqnr(page)
    expect(page.locator("#section-frontier .of-rows")).to_contain_text(re.compile(r"9\d schemes"))
    for name in ("values-plot", "error-plot", "error-map"):
        drawn(page, name)
    look_at(page.locator("#section-codes"))
    click(page, page.locator("#section-codes summary").first)
    for name in ("scales-plot", "usage-plot"):
        drawn(page, name)
    expect(page.locator("#inspector h3")).to_contain_text(re.compile(r"\(\d+, \d+\)"))
    page.locator("details.packed summary").first.click()
    expect(page.locator("#bytes").first).to_contain_text(re.compile(r"^[0-9A-F]{2} "))


def test_own_file_to_the_answer_in_four_actions(page: Page, url: str, tmp_path: Path) -> None:
    """Drop the file, say what for, click A, Shift-click B: the answer, on one screen without scrolling."""
    values = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    np.save(tmp_path / "layer.npy", values)
    open_page(page, url, "tab=learn")
    drop(page, tmp_path / "layer.npy", "h1")  # the whole page is the target
    expect(page.locator(".tensor-card h2")).to_contain_text("256 × 512")
    page.get_by_role("button", name="8-bit weights").click()
    expect(page.locator("#shortlist tr[data-scheme=int8_row]")).to_be_visible()
    page.locator("#shortlist tr[data-scheme=q8_0] td.num").first.click()
    expect(page.locator("#shortlist tr.is-a")).to_have_attribute("data-scheme", "q8_0")
    page.locator("#shortlist tr[data-scheme=int8_group128] td.num").first.click(modifiers=["Shift"])
    expect(page.locator("#shortlist tr.is-b")).to_have_attribute("data-scheme", "int8_group128")
    record = agree(page)
    assert (record["source"], record["goal"]) == ("file", ""), "A means the goal: the address need not"
    expect(page.locator(".goals [aria-pressed=true]")).to_have_text("8-bit weights")
    assert page.evaluate("scrollY") == 0
    for part in ("#answer", "#frontier", "#shortlist", ".goals", "#drop"):
        expect(page.locator(part)).to_be_in_viewport(ratio=1)
    expect(page.locator("#shortlist tbody")).not_to_contain_text("…")


MOVED = """window.moved = []; new PerformanceObserver(list => { for (const e of list.getEntries())
  if (e.value > 0.01 && !e.hadRecentInput)
    window.moved.push(e.sources.map(s => s.node?.id || s.node?.nodeName));
}).observe({type: 'layout-shift'});"""
"""Collects in ``window.moved`` what moves by itself, by more than a hundredth of the window."""


def test_two_tensors_and_a_bad_file(page: Page, url: str, tmp_path: Path) -> None:
    """Two tensors in a file: the first matrix is shown, and Back leads over the choice of the other. From one
    that cannot be shown, which is said once, the way to another stays. A broken file is one message that
    moves nothing, and bar, numbers and file box name the same tensor as before."""
    first = np.random.default_rng(0).standard_normal((32, 64))
    np.savez(tmp_path / "mine.npz", first=first, second=np.ones((8, 8)), hole=np.full((8, 8), np.nan))
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    open_page(page, url)
    load_file(page, tmp_path / "mine.npz")
    expect(page.locator("#which .tensor")).to_contain_text("mine.npz · first · 32×64")
    shown = page.locator("#which .tensor")
    open_panel(page, "tensor")
    page.locator("#panel-tensor [data-of=tensor]:visible").fill("second")
    page.keyboard.press("Enter")
    expect(shown).to_contain_text("second · 8×8")
    wait_for_query(page, "file_tensor=second")
    page.go_back()
    expect(shown).to_contain_text("first · 32×64")
    page.go_forward()
    expect(shown).to_contain_text("second · 8×8")
    at_rest(page)
    answer = page.locator("#answer")
    for name, where, said in (("hole", answer, "64 of 64 values are NaN"), ("second", shown, "second · 8×8")):
        page.get_by_role("button", name="choose another").click()
        at_rest(page)
        page.locator("#panel-tensor [data-of=tensor]:visible").fill(name)
        page.keyboard.press("Enter")
        expect(where).to_contain_text(said)
        at_rest(page)
        expect(page.locator(".page-notice")).to_have_count(0)
    leave_panel(page)
    at_rest(page)
    page.evaluate(MOVED)
    load_file(page, tmp_path / "bad.npy")
    refused = page.locator("#drop .refused")
    expect(refused).to_contain_text(re.compile(r"bad\.npy.*\.npy header"))
    at_rest(page)
    assert page.evaluate("window.moved") == [], "a refusal moves nothing"
    expect(page.locator(".toast-body")).to_have_count(0)
    expect(page.locator("#which .tensor")).to_contain_text("second · 8×8")
    expect(page.locator("#chip-tensor")).to_contain_text("second")
    refused.get_by_role("button", name="Dismiss").click()
    expect(refused).to_be_hidden()
    page.evaluate("explorer.openFile(new File(['1'], 'notes.txt'))")
    expect(refused).to_contain_text(re.compile(r"notes\.txt.*\.safetensors"))
    page.evaluate("explorer.openFile(new File(['1,2\\n3,4'], 'good.csv'))")
    expect(page.locator("#which .tensor")).to_contain_text("good.csv")
    expect(refused).to_be_hidden()


def test_paste_and_pick(page: Page, url: str, tmp_path: Path) -> None:
    """Numbers out of a spreadsheet or a terminal, a file of the picker; words are refused in the page."""
    open_page(page, url)
    paste = """text => { const data = new DataTransfer(); data.setData('text', text);
      document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true})); }"""
    shown = page.locator(".tensor-card h2")
    for text, shape in (("[[1.5 -2. 3e-1]\n [4 5 6]]", "2 × 3"), ("1,5;2\n3;4\n5;6", "3 × 2")):
        page.evaluate(paste, text)
        expect(shown).to_contain_text(shape)
    page.evaluate(paste, "some words")
    expect(page.locator(".page-notice")).to_be_visible()
    np.save(tmp_path / "mine.npy", np.ones((8, 16), np.float32))
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="File…").click()
    chooser.value.set_files(str(tmp_path / "mine.npy"))
    expect(shown).to_contain_text("8 × 16")
    page.locator(".sample[data-sample=mlp_down]").click()
    expect(shown).to_contain_text("384 × 1,536")
    expect(page.locator(".sample[data-sample=mlp_down]")).to_have_attribute("aria-pressed", "true")


@THOROUGH
def test_a_layer_of_a_model(page: Page, url: str, minilm: Path) -> None:
    """A folder's layers are listed, the first matrix is shown, and another can be chosen by typing."""
    open_page(page, url)
    page.get_by_role("button", name="Layer of a model…").click()
    page.locator("#panel-tensor [data-of=model]:visible").fill(str(minilm))
    page.keyboard.press("Enter")
    expect(page.locator("#which .tensor")).to_contain_text("encoder.layer.0")
    layer = page.locator("#panel-tensor [data-of=layer]:visible")
    layer.fill("encoder.layer.5.intermediate.dense.weight")
    page.keyboard.press("Enter")
    expect(page.locator("#which .tensor")).to_contain_text(
        "encoder.layer.5.intermediate.dense.weight · 1536×384"
    )


@THOROUGH
@pytest.mark.shared_page
def test_goals_list_and_frontier(page: Page, url: str) -> None:
    """A goal crops the figure, "all" does not; a row goes and comes, and Back; a size may be typed; a point
    becomes B with Shift, and a custom scheme is among them."""
    open_page(page, url)
    edge = "document.querySelector('#frontier .figure')._fullLayout.xaxis.range[1]"
    assert page.evaluate(edge) == pytest.approx(6)
    page.locator("#frontier-card .crop").get_by_role("button", name="all").click()
    page.wait_for_function("document.querySelector('#frontier .figure')._fullLayout.xaxis.type === 'log'")
    page.locator("#frontier-card .crop").get_by_role("button", name="bits").click()
    page.wait_for_function(f"Math.abs({edge} - 6) < .01")
    page.locator("[data-remove=mxfp4]").click()
    expect(page.locator("#shortlist tr[data-scheme]")).to_have_count(4)
    wait_for_query(page, "list=")
    page.locator("[data-add=int4_group32]").click()
    expect(page.locator("#shortlist tr[data-scheme=int4_group32]")).to_be_visible()
    agree(page)
    page.go_back()
    page.go_back()
    expect(page.locator("#shortlist tr[data-scheme=mxfp4]")).to_be_visible()
    page.locator("[data-goal-size]").fill("3.5 bits")
    page.keyboard.press("Enter")
    wait_for_query(page, "goal=at-most-3.5")
    record = agree(page)
    assert record["scheme"] != "int4_group128_asym", "A and B are the goal's"
    bits = page.locator("#shortlist tbody td:nth-child(4)").all_inner_texts()
    assert bits and all(float(b) <= 3.5 for b in bits)
    visit(page, "goal=8-bit&scheme=int4~1x48~SYMMETRIC~float16~minmax")
    expect(page.locator("#section-frontier .of-rows")).to_contain_text(re.compile(r"9\d schemes"))
    drawn(page, "frontier")
    assert point_of(page, page.evaluate("explorer.record.scheme")), "the custom scheme is among them"
    x, y = point_of(page, "fp8_e4m3_row")
    page.mouse.move(x, y)
    page.locator("#frontier .hovertext").first.wait_for()
    page.keyboard.down("Shift")
    page.mouse.click(x, y)
    page.keyboard.up("Shift")
    expect(page.locator("#chip-b")).to_contain_text("FP8 E4M3")
    wait_for_query(page, "second=fp8")


def hover_value(page: Page, at: tuple[float, float]) -> tuple[float, int, int]:
    """What the map says under the mouse: |error|, row and column."""
    area = page.locator("#error-map .nsewdrag").first
    area.evaluate("e => e.scrollIntoView({block: 'center'})")  # the bar lies over the window's top
    at_rest(page)
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


@THOROUGH
@pytest.mark.shared_page
def test_pictures_lead_to_an_element(page: Page, url: str) -> None:
    """A click on the tensor's picture inspects what lies there, so does a worst error; each cell of the map
    stands for many elements, and the one with its colour is opened; arrow keys walk on from there."""
    open_page(page, url, "scheme=mxfp4&second=nvfp4")
    element = page.locator("#inspector h3")
    box = page.locator(".tensor-card .picture img").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    expect(element).to_contain_text(re.compile(r"\(3[78]\d, "))
    at_rest(page)
    expect(page.locator("#element")).to_be_in_viewport()
    page.evaluate("scrollTo(0, 0)")
    worst = page.locator("#shortlist tr.is-b [data-element]")
    at = (worst.get_attribute("data-element") or "").strip()
    worst.click()
    expect(element).to_contain_text(at)
    page.evaluate("scrollTo(0, 0)")
    visit(page, "scheme=mxfp4")
    assert page.evaluate("scrollY") == 0, "the way to the element goes on after another address was gone to"
    drawn(page, "error-map")
    value, row, column = hover_value(page, (0.6, 0.1))
    page.mouse.down()
    page.mouse.up()
    expect(element).to_contain_text(f"({row}, {column})")
    error = page.locator("#inspector tr", has_text="error").last.inner_text()
    shown = re.search(r"= ([−\d.e-]+)", error)
    assert shown and abs(float(shown[1].replace("−", "-"))) == pytest.approx(value, rel=2e-2)
    wait_for_query(page, f"row={row}")
    page.keyboard.press("ArrowDown")
    expect(element).to_contain_text(f"({row + 1}, {column})")
    page.keyboard.press("ArrowRight")
    expect(element).to_contain_text(f"({row + 1}, {column + 1})")


def ranges(page: Page, name: str) -> list[float]:
    axis = "document.querySelector('#%s .figure')._fullLayout.xaxis.range"
    return [float(end) for end in page.evaluate(axis % name)]


@THOROUGH
@pytest.mark.shared_page
def test_a_figure_under_the_hand(page: Page, url: str) -> None:
    """Saved as SVG and PNG under a name that says what it shows. A drag zooms, another scheme leaves the
    zoom, a button takes it back; the switch of the axis saves nothing; a narrower window keeps it whole."""
    open_page(page, url)
    drawn(page, "error-plot")
    saved: list[str] = []

    def save(download: Any) -> None:
        saved.append(download.suggested_filename)

    page.on("download", save)
    for kind in ("SVG", "PNG"):
        with page.expect_download():
            page.locator("#error-plot").get_by_role("button", name=kind).click()
    name = "MLP-up-projection-layer-3-error-INT4-group-128-asymmetric-NVFP4-85mm"
    for kind in ("log", "linear"):
        box = page.locator("#error-plot .updatemenu-button", has_text=kind).bounding_box()
        assert box
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_function(
            f"document.querySelector('#error-plot .figure')._fullLayout.yaxis.type === '{kind}'"
        )
    page.remove_listener("download", save)
    assert saved == [f"{name}.svg", f"{name}.png"], "a switch saves no file"
    whole, box = ranges(page, "error-plot"), page.locator("#error-plot .nsewdrag").first.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 45, steps=5)
    page.mouse.up()
    zoomed = ranges(page, "error-plot")
    assert zoomed[1] - zoomed[0] < 0.4 * (whole[1] - whole[0])
    page.mouse.move(5, 5)
    page.keyboard.press("]")
    wait_for_query(page, "scheme=", "!_asym")
    at_rest(page)
    assert ranges(page, "error-plot") == pytest.approx(zoomed)
    for path in page.locator("#error-plot [clip-path]").all():
        found = re.search(r"#([^'\")]+)", path.get_attribute("clip-path") or "")
        assert found and "http" not in (path.get_attribute("clip-path") or ""), "no address is part of it"
        assert page.locator(f"[id='{found[1]}']").count() == 1
    page.locator("#error-plot [data-kind=reset]").click()
    expect(page.locator("#error-plot [data-kind=reset]")).to_be_hidden()
    now = ranges(page, "error-plot")
    assert now[1] - now[0] > 2 * (zoomed[1] - zoomed[0])
    drawn(page, "error-map")
    page.set_viewport_size({"width": 1000, "height": 900})
    page.wait_for_function(
        """() => { const wide = name => document.querySelector(name).getBoundingClientRect().width;
        return Math.abs(wide('#error-map') - wide('#error-map .main-svg')) < 3; }"""
    )
    expect(page.locator("#error-map .cbfill").first).to_be_visible()


SEEN = """() => /≈/.test(document.querySelector('#answer')?.textContent) && {
  query: location.search, length: history.length, card: document.querySelector('.tensor-card').textContent,
  chip: document.querySelector('#chip-tensor').textContent}"""


@THOROUGH
def test_first_numbers_have_their_address_and_stand_alone(page: Page, url: str) -> None:
    """While numbers of a sample are shown, bar, card and address name their tensor; the whole's numbers add
    no second step to Back. A figure of the tensor before is hidden until its own is there."""
    open_page(page, url, "scheme=int4_row")
    before = page.evaluate("history.length")
    choose = "explorer.choose({{do: 'sample', name: '{}'}})"
    page.evaluate(choose.format(LARGE))
    seen = page.wait_for_function(SEEN).json_value()
    assert f"sample={LARGE}" in seen["query"] and seen["length"] == before + 1
    assert "4,096 × 4,096" in seen["card"] and "4096" in seen["chip"]
    at_rest(page)
    assert [page.evaluate("history.length"), page.evaluate("location.search")] == [before + 1, seen["query"]]
    visit(page, "scheme=int4_row")
    drawn(page, "error-map")
    other = "; explorer.choose({do: 'scheme', side: 'a', text: 'int3_group128_asym'})"
    page.evaluate(choose.format(LARGE) + other)
    figure = "getComputedStyle(document.querySelector('#error-map .figure')).visibility"
    page.wait_for_function(f"{figure} === 'hidden'")
    at_rest(page)
    page.wait_for_function(f"{figure} === 'visible'")
    expect(page.locator("#section-element")).not_to_have_attribute("data-behind", "")
