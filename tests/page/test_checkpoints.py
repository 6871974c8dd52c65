"""Two checkpoints on the page, by hand.

If these fail, a visitor cannot find out what a quantized model stores, or which of its layers is damaged.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect
from safetensors.torch import load_file, save_file

from app import limits
from app.sections import checkpoints
from explorer import SCHEMES, compare, quantize
from explorer.checkpoints import write_one
from tests.page.test_browser import look_at, open_page

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
@pytest.mark.browser
def test_a_layer_that_stands_out_is_opened(page: Page, url: str, folders: tuple[Path, Path]) -> None:
    """Two names are typed and Compare is pressed: the layer that was damaged is named and ringed, a click on
    its row draws it, and the CSV holds it."""
    open_page(page, url, "tab=model&section=checkpoints")
    for box, folder in zip(("#diff-original", "#diff-quantized"), folders, strict=True):
        page.locator(f"{box} textarea, {box} input").first.click()
        page.keyboard.type(str(folder))
    page.locator("#diff-start").click()
    sentence = page.locator("#diff-sentence")
    expect(sentence).to_contain_text("9 layers of codes (9 INT4 group 32)")
    expect(sentence).to_contain_text(f"Stands out: {WORST}.weight")
    expect(page.locator("#diff-depth .figure")).to_contain_text("stands out (1)")
    row = page.locator("#diff-table [role=gridcell]").filter(has_text=f"{WORST}.weight").first
    look_at(row)
    row.click()
    expect(page.locator("#diff-layer")).to_contain_text(f"{WORST}.weight, 64 × 64: INT4 group 32")
    for figure in ("#diff-values", "#diff-errors", "#diff-map"):
        look_at(page.locator(figure))
        expect(page.locator(f"{figure} .main-svg").first).to_be_visible()
    with page.expect_download() as download:
        page.locator("#section-checkpoints").get_by_role("button", name="Download CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("name,") and len(lines) == 10


def test_the_rows_are_those_of_the_library(folders: tuple[Path, Path]) -> None:
    """The same decibels, and steps that say how far it is."""
    *steps, last = checkpoints.run(*map(str, folders))
    assert steps and len(last.table) == len(LAYERS)
    weight = load_file(folders[0] / "model.safetensors")[f"{LAYERS[0]}.weight"]
    truth = compare(weight, quantize(weight, SCHEMES["int4_group32"])).sqnr_db
    first = next(row for row in last.table if row[0] == f"{LAYERS[0]}.weight")
    assert first[checkpoints.NAMES.index("SQNR dB")] == float(f"{truth:.5g}")


def test_a_run_ends_in_time_with_what_was_done(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model too large for the time limit is not lost: the table holds the layers that were done."""
    monkeypatch.setattr(checkpoints, "IN_TIME", 0.0)
    *_, last = checkpoints.run(*map(str, folders))
    assert "time limit" in last.status and len(last.table) == 1


def test_a_public_page_opens_no_folders(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor says whether they are there."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    told: list[str] = []
    monkeypatch.setattr(limits, "notify", told.append)
    for names in (map(str, folders), (f"{folders[0]}/x.gguf", "a/b")):
        list(checkpoints.run(*names))
    assert len(told) == 2 and all("folders of this server cannot be opened" in words for words in told)
