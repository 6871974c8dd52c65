"""The places Speed and Model: a survey and its recipe, a run, sizes, two checkpoints.

If these fail, a choice of storage or machine is not drawn, a budget buys nothing, or a damaged layer is not
found.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from playwright.sync_api import Page, expect
from safetensors.torch import load_file, save_file

from app.sections import checkpoints
from app.state.query import Query
from explorer import SCHEMES, compare, quantize
from explorer.checkpoints import write_one
from explorer.recordings.files import Recording, record_to
from explorer.recordings.gemm import recorded_gemms
from explorer.recordings.machine import Machine
from tests.covering import THOROUGH
from tests.page.acts import (
    Held,
    at_rest,
    click,
    drawn,
    look_at,
    open_page,
    wait_for_query,
)  # fmt: skip


@THOROUGH
def test_speed_is_recorded_corrected_and_measured(page: Page, url: str, tmp_path: Path) -> None:
    """The place is full without a GPU. The nearest shape stands for one that was not recorded, *measured
    here* keeps it, and nonsense is explained. This CPU is measured beside the recorded times, and shown as a
    machine. A recording is opened and removed."""
    open_page(page, url, "tab=model&section=speed&scheme=int4_group32&second=nvfp4")
    section = page.locator("#section-speed")
    expect(section).to_be_in_viewport()
    source, status = section.locator("[data-slot=source]"), section.locator("[data-slot=status]")
    machine, shape = section.get_by_label("Times"), section.get_by_label("Tokens × outputs × inputs")
    drawn(page, "speed-bars")
    expect(page.locator("#speed-bars .scatterlayer .point")).not_to_have_count(0)
    expect(source).to_contain_text("H100")
    machine.select_option("recorded")
    expect(source).to_contain_text("1×4096×4096, the nearest")
    typed = section.get_by_label("or another")
    typed.fill("64x8192x8200")
    typed.press("Enter")
    expect(source).to_contain_text("64×8192×8192, the nearest")
    expect(shape).to_have_value("64x8192x8200")
    machine.select_option("live")
    expect(source).to_contain_text("64×8192×8200 was not measured here yet")
    machine.select_option("nearest")
    typed.fill("9x9")
    typed.press("Enter")
    expect(status).to_contain_text("64x8192x8192")
    typed.fill("4x32x64")
    typed.press("Enter")
    section.get_by_role("button", name="Measure this CPU").click()
    expect(section.locator("[data-slot=here-title]")).to_contain_text("at 4×32×64")
    expect(status).to_contain_text("timings at 4×32×64")
    at_rest(page)
    words, tools = status.bounding_box(), section.locator(".two .figure-tools").first.bounding_box()
    assert words and tools and tools["y"] >= words["y"] + words["height"], "tools cover no words"
    section.get_by_role("button", name="Show these in all figures").click()
    expect(source).to_contain_text("Measured now")
    wait_for_query(page, "machine=live", "shape=4x32x64")
    page.get_by_text("Open a recording").click()
    mine = Recording(Machine(gpu="NVIDIA A100"), recorded_gemms().rows[:40])
    file = record_to(tmp_path / "mine.json", mine)
    section.get_by_label("A recording").set_input_files(file)
    expect(source).to_contain_text("NVIDIA A100")
    section.get_by_role("button", name="Remove this recording").click()
    expect(source).not_to_contain_text("A100")
    (tmp_path / "bad.json").write_text("{}")
    section.get_by_label("A recording").set_input_files(tmp_path / "bad.json")
    expect(section.locator("[data-slot=status]")).to_contain_text("bad.json was not opened")


@THOROUGH
def test_a_budget_is_dragged_and_typed(page: Page, url: str) -> None:
    """An old link opens the budget. It is dragged by the mouse and sentence and map follow; a size of the
    whole model is typed; nonsense is said; Back leads to the budget before. A layer of the model that is not
    here leaves the page as it is."""
    open_page(page, url, "tab=model&section=survey")
    sentence, slider = page.locator("#budget-says"), page.locator("#budget-slider")
    expect(sentence).to_contain_text("At 4.50 bits")
    drawn(page, "budget-curve")
    legend = page.locator("#section-budget .legend")
    before = legend.inner_text()
    look_at(slider)
    at = slider.bounding_box()
    assert at
    page.mouse.move(at["x"] + at["width"] * 0.36, at["y"] + at["height"] / 2)
    page.mouse.down()
    page.mouse.move(at["x"] + at["width"] * 0.2, at["y"] + at["height"] / 2, steps=6)
    page.mouse.up()
    expect(sentence).to_contain_text(re.compile(r"At 3\.\d\d bits"))
    at_rest(page)
    assert legend.inner_text() != before
    page.go_back()
    expect(sentence).to_contain_text("At 4.50 bits")
    expect(slider).to_have_value("4.5")
    field = page.locator("#section-budget [data-act=typed]")
    field.fill("57 MB")
    field.press("Enter")
    expect(sentence).to_contain_text(re.compile(r"At 6\.\d\d bits .* 57 MB"))
    wait_for_query(page, f"budget={slider.input_value()}")
    held = Held(page, lambda request: "typed" in (request.post_data or ""))
    for budget in ("4.2 bits", "5 bits"):
        field.fill(budget)
        held.during(lambda: field.press("Enter"))
    held.waiting.pop().continue_()  # the second's answer comes first
    expect(sentence).to_contain_text(re.compile(r"At (5\.0|4\.9)\d bits"))
    held.end()
    at_rest(page)
    wait_for_query(page, "budget=5")
    expect(sentence).to_contain_text(re.compile(r"At (5\.0|4\.9)\d bits"))
    for name in ("Measure", "Write checkpoint"):
        button = page.get_by_role("button", name=name)
        look_at(button)
        over = "e => { const b = e.getBoundingClientRect();"
        over += " return document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2) === e; }"
        assert button.evaluate(over), f"something lies over {name}"
    address = page.url
    field.fill("much")
    field.press("Enter")
    status = page.locator("#section-budget [data-slot=status]")
    expect(status).to_contain_text("'much'")
    assert page.url == address
    click(page, page.locator(".layer-map button").first)
    expect(status).to_contain_text("sentence-transformers/all-MiniLM-L6-v2")
    expect(page.locator("#place-model")).to_be_visible()


def test_a_recipe_to_a_checkpoint(page: Page, url: str, minilm: Path) -> None:
    """With the model's folder the recipe of a budget becomes a checkpoint that is downloaded."""
    open_page(page, url, "tab=model")
    field = page.locator("#section-budget [data-act=open-model]")
    field.fill(str(minilm))
    field.press("Enter")
    wait_for_query(page, "model=")
    at_rest(page)
    page.locator("#section-budget [data-run=write]").click()
    link = page.locator("#section-budget [data-slot=written] a")
    expect(link).to_be_visible()
    with page.expect_download() as download:
        link.click()
    assert Path(download.value.path()).stat().st_size > 1e6


@THOROUGH
@pytest.mark.shared_page
def test_a_recorded_run_is_shown_without_a_model(page: Page, url: str) -> None:
    """Painted: an outline and words around the token in which texts part, and colours by KL. Mouse and arrow
    keys read a token's number; Run without a model leaves the recording."""
    open_page(page, url, "tab=model&section=run")
    expect(page.locator("#section-run [data-slot=source]")).to_contain_text(re.compile(r"\d{4}-\d\d-\d\d"))
    column = page.locator("#section-run [data-name=q4_0]")
    mark = column.locator("mark.parting")
    look_at(mark)
    style = "e => { const s = getComputedStyle(e); return [s.borderTopStyle, parseFloat(s.borderTopWidth)]; }"
    outline, width = mark.evaluate(style)
    assert outline == "solid" and width >= 1
    bar = (
        "e => { const s = getComputedStyle(e, '::after'); return [s.backgroundColor, parseFloat(s.height)]; }"
    )
    few, most = (column.locator(f".kl-tokens .level-{level}").first.evaluate(bar) for level in (2, 4))
    assert few[0] != most[0] and few[1] < most[1]
    tokens, read = column.locator(".kl-tokens button"), column.locator(".kl-read")
    click(page, tokens.nth(3))
    expect(read).to_contain_text(re.compile(r"token 4, .*: [\d.]+ nats"))
    page.mouse.move(5, 5)
    page.keyboard.press("ArrowRight")
    expect(read).to_contain_text(re.compile(r"token 5, .*\s%.*Q4_0: .*\s%", re.DOTALL))
    expect(tokens.nth(4)).to_be_focused()
    status = page.locator("#section-run [data-slot=status]")
    before = status.inner_text()
    click(page, page.locator("#section-run [data-run=write]"))
    expect(status).not_to_have_text(before)
    expect(column).to_be_visible()


@pytest.mark.thorough
@pytest.mark.shared_page
def test_a_chosen_storage_of_the_cache_is_drawn_and_said(page: Page, url: str) -> None:
    """Opened by the mouse; then the model: Mistral-7B has a window, Llama-2-7B none. Both are in the address,
    and Back leads to what was chosen before; a count that is none is refused."""
    open_page(page, url, "tab=model&section=sizes&sized=Llama-2-7B")
    drawn(page, "cache-size")
    plot, sentence = page.locator("#cache-size"), page.locator("#section-sizes [data-slot=said] p")
    stored = plot.locator(".legendtext").nth(1)
    expect(stored).to_contain_text("FP8")
    page.get_by_label("Keys and values stored as").select_option("NVFP4")
    expect(stored).to_have_text("NVFP4")
    for fact in ("17.2 GB", "4.83 GB"):
        expect(sentence).to_contain_text(fact)
    model = page.locator("#section-sizes [data-key=sized]")
    model.select_option("Mistral-7B 0.1")
    expect(sentence).to_contain_text("4,096 tokens")
    expect(plot.locator(".xtick text", has_text="16,384")).to_have_count(1)
    lines = plot.locator(".scatterlayer .js-line")
    expect(lines).to_have_count(2)
    boxes = [line.bounding_box() for line in lines.all()]
    assert all(box and box["width"] > 200 and box["height"] > 20 for box in boxes)
    wait_for_query(page, "sized=Mistral-7B", "stored=NVFP4")
    page.go_back()
    expect(sentence).to_contain_text("4.83 GB")
    page.go_back()
    expect(page.get_by_label("Keys and values stored as")).to_have_value(re.compile("^FP8"))
    expect(stored).to_contain_text("FP8")
    model.select_option("by parameter count")
    count = page.get_by_label("Billions of parameters")
    for typed, kept in (("3", True), ("-5", True)):
        count.fill(typed)
        count.press("Tab")
        wait_for_query(page, "billions=3" if kept else "!billions=")
    expect(count).to_have_js_property("validity.valid", False)


LAYERS = [f"model.layers.{i}.mlp.{part}_proj" for i in range(3) for part in ("down", "gate", "up")]
WORST = LAYERS[4]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Nine random layers, and the same in GPTQ's layout, one of them with other scales."""
    torch.manual_seed(1)
    room = tmp_path_factory.mktemp("checkpoints")
    weights = {f"{name}.weight": torch.randn(64, 64) for name in LAYERS}
    codes: dict[str, torch.Tensor] = {}
    for name in LAYERS:
        q = quantize(weights[f"{name}.weight"], SCHEMES["int4_group32"])
        codes |= load_file(write_one("gptq", q, room / "one", name))
    codes[f"{WORST}.scales"] *= 1.2
    for folder, tensors in (("whole", weights), ("gptq", codes)):
        (room / folder).mkdir()
        save_file(tensors, room / folder / "model.safetensors")
    settings = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (room / "gptq" / "config.json").write_text(json.dumps(settings))
    return room / "whole", room / "gptq"


@pytest.mark.thorough
def test_a_layer_that_stands_out_is_opened(page: Page, url: str, folders: tuple[Path, Path]) -> None:
    """The model in the bar is the original: the other is typed and Compare pressed. The layer that was
    damaged is named, a click on its row or point draws it, Back takes it away, and the CSV holds it."""
    one, other = map(str, folders)
    open_page(page, url, f"tab=model&section=checkpoints&{urlencode({'model': one})}")
    page.get_by_label("Quantized: folder").fill(other)
    page.get_by_role("button", name="Compare").click()
    section = page.locator("#section-checkpoints")
    expect(section.locator("[data-slot=sentence]")).to_contain_text(f"{WORST}.weight")
    row = section.get_by_role("button", name=f"{WORST}.weight")
    look_at(row)
    row.click()
    layer = section.locator("[data-slot=layer]")
    expect(layer).to_contain_text(f"{WORST}.weight, 64 × 64: INT4 group 32")
    for figure in ("pair-depth", "pair-values", "pair-errors", "pair-map"):
        drawn(page, figure)
    with page.expect_download() as download:
        section.get_by_role("link", name=".csv").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("name,") and len(lines) == 10
    wait_for_query(page, "other=", f"weight={WORST}")
    page.go_back()
    expect(layer).to_be_empty()
    expect(row).to_be_visible()


def compared(*folders: Path) -> list[Any]:
    query = Query({"one": str(folders[0]), "other": str(folders[1])})
    return [slots for slots in checkpoints.compare(query) if "table" in slots]


def test_the_rows_of_two_checkpoints_are_those_of_the_library(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same decibels; at the time limit, what was done until then."""
    *_, last = compared(*folders)
    weight = load_file(folders[0] / "model.safetensors")[f"{LAYERS[0]}.weight"]
    truth = compare(weight, quantize(weight, SCHEMES["int4_group32"])).sqnr_db
    rows = [row for row in last["table"].split("<tr") if ".weight" in row]
    (first,) = (row for row in rows if f"{LAYERS[0]}.weight" in row)
    assert len(rows) == len(LAYERS) and f">{float(f'{truth:.5g}')}<" in first
    monkeypatch.setattr(checkpoints, "IN_TIME", 0.0)
    *_, last = compared(*folders)
    assert "time limit" in last["status"] and last["table"].count("data-set") == 1


def test_a_public_page_opens_no_folders(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor says whether they are there."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    for names in (folders, (folders[0] / "x.gguf", Path("a/b"))):
        with pytest.raises(ValueError, match="folders of this server cannot be opened"):
            compared(*names)
