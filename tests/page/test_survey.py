"""The survey section under the hand: a budget that is dragged, a cell that is clicked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from explorer.survey import SURVEYS
from tests.page.test_browser import frames, idle, open_page

pytestmark = pytest.mark.browser


@pytest.mark.shared_page
def test_a_dragged_budget_redraws_the_recipe(page: Page, url: str) -> None:
    """The slider is dragged by the mouse: size, prediction and strip follow; the recipe is another file."""
    open_page(page, url, "tab=model&section=survey")
    sentence = page.locator("#survey-sentence")
    expect(sentence).to_contain_text("4.50 bits a weight", timeout=60_000)
    strip = page.locator("#survey-strip .figure")
    strip.scroll_into_view_if_needed()
    expect(strip.locator(".barlayer .point").first).to_be_visible()
    before = strip.locator(".legend .legendtext").all_text_contents()
    slider = page.locator("#survey-bits input[type=range]")
    page.mouse.move(700, 500)
    page.mouse.wheel(0, 10)  # a hand that scrolls: the page no longer keeps the section at the top
    slider.evaluate("e => e.scrollIntoView({block: 'center'})")  # from under the bar
    frames(page, 60)  # the section has arrived, and the figures above it have their heights
    at = slider.bounding_box()
    assert at
    page.mouse.move(at["x"] + at["width"] * 0.385, at["y"] + at["height"] / 2)
    page.mouse.down()
    page.mouse.move(at["x"] + at["width"] * 0.2, at["y"] + at["height"] / 2, steps=6)
    page.mouse.up()
    expect(sentence).to_contain_text(re.compile(r"^\s*3\.\d\d bits a weight"))
    idle(page)
    assert strip.locator(".legend .legendtext").all_text_contents() != before
    expect(page.locator("#survey-table")).not_to_be_visible()


@pytest.mark.shared_page
def test_a_clicked_cell_opens_its_layer(page: Page, url: str) -> None:
    """Under Tensor, with the scheme of the column, as Back takes back. The recorded model is not on this
    machine: that is said."""
    open_page(page, url, "tab=model&section=survey")
    heat = page.locator("#survey-heat .figure .nsewdrag").first
    heat.scroll_into_view_if_needed()
    expect(heat).to_be_visible(timeout=60_000)
    at = heat.bounding_box()
    assert at
    page.mouse.move(at["x"] + at["width"] * 0.97, at["y"] + 5)
    page.mouse.click(at["x"] + at["width"] * 0.97, at["y"] + 5)
    page.wait_for_function("location.search.includes('scheme=int8_row')")
    assert "layer=encoder.layer.0.attention.output.dense.weight" in page.url and "tab=model" not in page.url
    expect(page.locator("#notice")).to_contain_text("all-MiniLM-L6-v2")
    page.go_back()
    page.wait_for_function("location.search.includes('tab=model')")


def survey_of(layers: int, path: Path) -> Path:
    """A file with the first layers of the recorded survey."""
    (recorded,) = SURVEYS.glob("*.jsonl")
    head, *lines = recorded.read_text().splitlines()
    linear = [line for line in lines if json.loads(line)["role"] == "linear"][:layers]
    about = json.loads(head) | {"layers": layers, "model": f"own/model-{layers}"}
    path.write_text("\n".join([json.dumps(about), *linear]) + "\n")
    return path


@pytest.mark.thorough
def test_surveys_of_ones_own_one_after_another(page: Page, url: str, tmp_path: Path) -> None:
    """The second file replaces map and recipe of the first; a link to the recipe opens it again; a budget
    that one scheme alone can keep to has a slider that rests."""
    open_page(page, url, "tab=model&section=survey&budget=5.5&for=compressed-tensors&fuse=true")
    sentence = page.locator("#survey-sentence")
    expect(sentence).to_contain_text("5.50 bits a weight", timeout=60_000)
    expect(page.locator("#survey-target input")).to_have_value("compressed-tensors")
    page.locator("#survey-own > button, #survey-own .label-wrap").first.click()
    for layers in (3, 5):
        path = survey_of(layers, tmp_path / f"own{layers}.jsonl")
        own = page.locator("#survey-own")
        clear = own.locator("button[aria-label*='lear'], button[aria-label*='emove']")
        if clear.count():
            clear.first.click()
        own.locator("input[type=file]").set_input_files(str(path))
        expect(page.locator("#survey-status")).to_contain_text(f"own/model-{layers}: {layers} linear layers")
        idle(page)
        ticks = page.locator("#survey-heat .ytick text")
        ticks.first.scroll_into_view_if_needed()
        expect(ticks).to_have_count(layers)
        expect(sentence).to_contain_text("bits a weight")
    target = page.locator("#survey-target input")
    target.click()
    target.fill("GGUF")
    target.press("Enter")
    expect(page.locator("#survey-bits input[type=range]")).to_be_disabled()
    expect(sentence).to_contain_text("4.25 bits a weight")
    page.wait_for_function("location.search.includes('for=gguf') && location.search.includes('budget=4.25')")
    assert "survey=own" in page.url
    expect(page.locator(".toast-body")).to_have_count(0)  # of a value beyond the ends that were there before
    page.go_back()
    page.go_forward()
