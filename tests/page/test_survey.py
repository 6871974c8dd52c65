"""The survey section under the hand: a budget that is dragged, a cell that is clicked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from explorer.survey import SURVEYS
from tests.page.test_browser import frames, idle, look_at, open_page

pytestmark = pytest.mark.browser


@pytest.mark.shared_page
def test_a_dragged_budget_redraws_the_recipe(page: Page, url: str) -> None:
    """The slider is dragged by the mouse: size, prediction and strip follow; the recipe is another file."""
    open_page(page, url, "tab=model&section=survey")
    sentence = page.locator("#survey-sentence")
    expect(sentence).to_contain_text("4.50 bits per weight", timeout=60_000)
    strip = page.locator("#survey-strip .figure")
    look_at(strip)
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
    expect(sentence).to_contain_text(re.compile(r"^\s*3\.\d\d bits per weight"))
    idle(page)
    assert strip.locator(".legend .legendtext").all_text_contents() != before
    expect(page.locator("#survey-table")).not_to_be_visible()


@pytest.mark.shared_page
def test_a_typed_size_is_the_budget(page: Page, url: str) -> None:
    """By the keys: the sentence, the slider and the address follow a size of the whole model; nonsense is
    said below the field, until the slider, which clears both; Back leads to the budgets before."""
    open_page(page, url, "tab=model&section=survey")
    sentence = page.locator("#survey-sentence")
    field = page.locator("#survey-typed").locator("input, textarea")
    expect(sentence).to_contain_text("4.50 bits per weight", timeout=60_000)
    field.click()
    page.keyboard.type("57 MB")
    page.keyboard.press("Enter")
    expect(sentence).to_contain_text(re.compile(r"^\s*6\.\d\d bits per weight: 57 MB"))
    bits = sentence.inner_text().split()[0]
    expect(page.locator("#survey-bits input[type=number]")).to_have_value(bits)
    expect(page).to_have_url(re.compile(f"budget={re.escape(bits)}"))
    field.fill("")
    page.keyboard.type("much")
    page.keyboard.press("Enter")
    told = page.locator("#survey-told")
    expect(told).to_contain_text("'much' is not a budget: write it like 4.5 bits or 90 MB")
    expect(page.locator(".toast-body")).to_have_count(0)  # once is enough
    slider = page.locator("#survey-bits input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(field).to_have_value("")
    expect(told).to_have_text("")
    expect(sentence).to_contain_text("bits per weight: 57 MB")
    idle(page)
    if f"budget={bits}" not in page.url:  # the arrow key is a step of its own
        page.go_back()
    page.go_back()
    expect(sentence).to_contain_text("4.50 bits per weight")
    expect(page.locator("#survey-bits input[type=number]")).to_have_value("4.5")
    expect(page).not_to_have_url(re.compile("budget="))


@pytest.mark.shared_page
def test_a_clicked_cell_of_a_model_that_is_not_here(page: Page, url: str) -> None:
    """The recorded model is not on this machine: that is said, and nothing else changes."""
    open_page(page, url, "tab=model&section=survey")
    heat = page.locator("#survey-heat .figure .nsewdrag").first
    look_at(heat)
    expect(heat).to_be_visible(timeout=60_000)
    before = page.url
    at = heat.bounding_box()
    assert at
    page.mouse.move(at["x"] + at["width"] * 0.97, at["y"] + 5)
    page.mouse.click(at["x"] + at["width"] * 0.97, at["y"] + 5)
    expect(page.locator("#notice")).to_contain_text("Still shown")
    assert page.url == before
    expect(page.locator("#place-model")).to_be_visible()


@pytest.mark.thorough
@pytest.mark.shared_page
def test_picked_inputs_are_in_the_recipe(page: Page, url: str) -> None:
    """By the mouse: the painted recipe holds only what is multiplied with such inputs, formats are those that
    carry them, and the address says it, as Back and a link take it."""
    open_page(page, url, "tab=model&section=survey&for=gguf&budget=4.25")
    sentence, strip = page.locator("#survey-sentence"), page.locator("#survey-strip .figure")
    expect(sentence).to_contain_text("bits per weight", timeout=60_000)
    look_at(strip)
    expect(strip.locator(".barlayer .point").first).to_be_visible()
    before = strip.locator(".legend .legendtext").all_text_contents()
    assert not any("INT8 per row" in name for name in before)
    page.locator("#survey-inputs input").click()
    page.get_by_role("option", name="INT8 per token").click()
    expect(sentence).to_contain_text("of the weights; quantized inputs add to it")
    idle(page)
    look_at(strip)
    expect(strip.locator(".legend .legendtext")).to_have_text(["INT8 per row"])
    expect(page.locator("#survey-target input")).to_have_value("compressed-tensors")
    page.locator("#survey-target input").click()
    expect(page.get_by_role("option")).to_contain_text(["compressed-tensors", "vLLM", "any"])
    page.get_by_role("option", name="vLLM").click()
    expect(page.locator("#survey-section, #section-survey")).to_contain_text("--to vllm")
    page.wait_for_function(
        "location.search.includes('inputs=int8_row') && location.search.includes('for=vllm')"
    )
    query = page.evaluate("location.search.slice(1)")
    open_page(page, url, "tab=model&section=survey")
    expect(page.locator("#survey-inputs input")).to_have_value("not quantized")
    open_page(page, url, query)
    expect(page.locator("#survey-inputs input")).to_have_value("INT8 per token")
    expect(page.locator("#survey-target input")).to_have_value("vLLM")
    expect(sentence).to_contain_text("quantized inputs add to it")


def survey_of(layers: int, path: Path) -> Path:
    """A file with the first layers of the recorded survey."""
    (recorded,) = SURVEYS.glob("*.jsonl")
    head, *lines = recorded.read_text().splitlines()
    linear = [line for line in lines if json.loads(line)["role"] == "linear"][:layers]
    about = json.loads(head) | {"layers": layers, "model": f"own/model-{layers}"}
    path.write_text("\n".join([json.dumps(about), *linear]) + "\n")
    return path


@pytest.mark.shared_page
def test_a_recorded_run_is_shown_without_a_model(page: Page, url: str) -> None:
    """Painted: an outline and words around the token in which texts part, and colours by KL. Mouse and arrow
    keys read a token's number; Run without a model says what to name, and leaves the recording."""
    open_page(page, url, "tab=model&section=run")
    expect(page.locator("#run-source")).to_contain_text(re.compile(r"A recorded run of .*, \d{4}-\d\d-\d\d,"))
    column = page.locator("#run-texts [data-name=q4_0]")
    mark = column.locator("mark.parting")
    look_at(mark)
    expect(mark.locator(".who")).to_have_text("Q4_0 parts")
    style = "e => { const s = getComputedStyle(e); return [s.borderTopStyle, parseFloat(s.borderTopWidth)]; }"
    assert mark.evaluate(style)[0] == "solid" and mark.evaluate(style)[1] >= 1
    tokens = column.locator(".kl-tokens button")
    bar = (
        "e => { const s = getComputedStyle(e, '::after'); return [s.backgroundColor, parseFloat(s.height)]; }"
    )
    few, most = (column.locator(f".kl-tokens .level-{level}").first.evaluate(bar) for level in (2, 4))
    assert few[0] != most[0] and few[1] < most[1]
    look_at(tokens.nth(3))
    at = tokens.nth(3).bounding_box()
    assert at
    page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    read = column.locator(".kl-read")
    expect(read).to_contain_text(re.compile(r"token 4, .*: [\d.]+ nats"))
    page.mouse.click(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    page.mouse.move(5, 5)
    page.keyboard.press("ArrowRight")
    expect(read).to_contain_text(re.compile(r"token 5, .*original: .*\s%.*Q4_0: .*\s%", re.DOTALL))
    expect(tokens.nth(4)).to_be_focused()
    start = page.locator("#run-start")
    look_at(start)
    start.click()
    expect(page.locator("#run-status")).to_contain_text("name a causal language model")
    expect(column).to_be_visible()


@pytest.mark.thorough
def test_surveys_of_ones_own_one_after_another(page: Page, url: str, tmp_path: Path) -> None:
    """The second file replaces map and recipe of the first; a link to the recipe opens it again; a budget
    that one scheme alone can keep to has a slider that rests."""
    open_page(page, url, "tab=model&section=survey&budget=5.5&for=compressed-tensors&fuse=true")
    sentence = page.locator("#survey-sentence")
    expect(sentence).to_contain_text("5.50 bits per weight", timeout=60_000)
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
        look_at(ticks.first)
        expect(ticks).to_have_count(layers)
        expect(sentence).to_contain_text("bits per weight")
    target = page.locator("#survey-target input")
    target.click()
    target.fill("GGUF")
    target.press("Enter")
    expect(page.locator("#survey-bits input[type=range]")).to_be_disabled()
    expect(sentence).to_contain_text("4.25 bits per weight")
    page.wait_for_function("location.search.includes('for=gguf') && location.search.includes('budget=4.25')")
    assert "survey=own" in page.url
    expect(page.locator(".toast-body")).to_have_count(0)  # of a value beyond the ends that were there before
    page.go_back()
    page.go_forward()
