"""The page in a real browser: what a visitor sees, clicks, types, saves and shares."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from app.learn import training
from app.tabs import TABS, compare
from explorer import SCHEMES
from explorer.methods import METHODS
from explorer.training.digits import count

pytestmark = pytest.mark.browser


def open_page(page: Page, url: str, query: str = "") -> None:
    """Open and wait until the link has been read and shown."""
    page.goto(f"{url}/?{query}")
    page.wait_for_function("window.explorer?.ready", timeout=30_000)


def choose(page: Page, name: str, text: str) -> None:
    """Pick an option of a dropdown by typing, as a keyboard user does."""
    box = page.locator(f"#{name} input")
    box.click()
    box.fill(text)
    page.get_by_role("option", name=text, exact=False).first.wait_for()
    box.press("Enter")


def sqnr(page: Page) -> str:
    return page.locator("#kpis .v").first.inner_text()


def test_alive_on_load(page: Page, url: str) -> None:
    """The first page shows a real layer: sentence, numbers, five drawn figures, an inspected element."""
    open_page(page, url)
    expect(page.locator("#which .tensor")).to_contain_text("all-MiniLM-L6-v2")
    expect(page.locator("#which .scheme")).to_contain_text("zero point")
    assert "19.47" in sqnr(page)
    for name in ("values-plot", "error-plot", "error-map", "scales-plot", "usage-plot"):
        expect(page.locator(f"#{name} .main-svg").first).to_be_visible()
    expect(page.locator("#inspector")).to_contain_text("zero point")
    expect(page.locator("#bytes")).to_contain_text(re.compile(r"^[0-9A-F]{2} "))


def test_a_scheme_by_keyboard_and_its_link(page: Page, url: str, browser: Browser) -> None:
    """Choose a scheme by typing; the address follows; the same address in another window shows the same."""
    open_page(page, url)
    choose(page, "preset", "NVFP4")
    expect(page.locator("#which .scheme")).to_contain_text("FP8 E4M3 scale")
    expect(page.locator("#format input")).to_have_value("FP4 E2M1")
    page.wait_for_function("location.search.includes('scheme=nvfp4')")
    before = sqnr(page)
    other = browser.new_page()
    open_page(other, url, page.url.split("?")[1])
    expect(other.locator("#which .scheme")).to_contain_text("FP8 E4M3 scale")
    assert sqnr(other) == before
    other.close()


def test_parts_make_a_custom_scheme(page: Page, url: str) -> None:
    """Group size 48 has no name: it becomes a custom scheme that a link can carry."""
    open_page(page, url)
    size = page.locator("#size input")
    size.fill("48")
    size.press("Enter")
    expect(page.locator("#which .scheme")).to_contain_text("48 along a row")
    page.wait_for_function("location.search.includes('~1x48~')")
    choose(page, "format", "FP8 E5M2")
    expect(page.locator("#which .scheme")).to_contain_text("FP8 E5M2")


def test_clicking_the_map_inspects_that_element(page: Page, url: str) -> None:
    """The element under the mouse, not its mirror image and not the largest error."""
    open_page(page, url)
    area = page.locator("#error-map .nsewdrag").first
    area.scroll_into_view_if_needed()
    before = page.locator("#inspector h2").inner_text()
    box = area.bounding_box()
    assert box
    place = {"x": box["width"] * 0.25, "y": box["height"] * 0.8}
    area.hover(position=place)  # plotly clicks what it hovers
    page.locator("#error-map .hovertext").first.wait_for()
    area.click(position=place)
    expect(page.locator("#inspector h2")).not_to_have_text(before)
    row = int(re.search(r"\((\d+),", page.locator("#inspector h2").inner_text()).group(1))  # type: ignore[union-attr]
    assert 1150 < row < 1310, "80 % down a matrix of 1536 rows"


def test_upload_choose_and_a_bad_file(page: Page, url: str, tmp_path: Path) -> None:
    """Two tensors in a file: the first matrix is shown; a broken file is a message and the view stays."""
    np.savez(
        tmp_path / "mine.npz",
        first=np.random.default_rng(0).standard_normal((32, 64)),
        second=np.ones((8, 8)),
    )
    open_page(page, url)
    choose(page, "source", "A file of mine")
    page.locator("#file input[type=file]").set_input_files(str(tmp_path / "mine.npz"))
    expect(page.locator("#which .tensor")).to_contain_text("mine.npz · first · 32×64")
    choose(page, "file-tensor", "second")
    expect(page.locator("#which .tensor")).to_contain_text("second · 8×8")
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    page.locator("#file button[aria-label*='lear'], #file button[aria-label*='emove']").first.click()
    page.locator("#file input[type=file]").set_input_files(str(tmp_path / "bad.npy"))
    expect(page.locator(".toast-wrap, [class*=toast]").first).to_contain_text("no valid .npy header")
    expect(page.locator("#which .tensor")).to_contain_text("second · 8×8")
    assert (
        page.locator("text=Error").filter(has_text=re.compile("^Error$")).locator("visible=true").count() <= 1
    ), "no error pills"


def test_a_layer_of_a_model(page: Page, url: str, minilm: Path) -> None:
    """A folder's layers are listed, the first matrix is shown, and another can be chosen by typing."""
    open_page(page, url)
    choose(page, "source", "Layer of a model")
    page.locator("#model textarea, #model input").first.fill(str(minilm))
    page.get_by_role("button", name="List layers").click()
    expect(page.locator("#which .tensor")).to_contain_text("encoder.layer.0")
    choose(page, "layer", "layer.5.intermediate.dense.weight")
    expect(page.locator("#which .tensor")).to_contain_text(
        "encoder.layer.5.intermediate.dense.weight · 1536×384"
    )


def column(page: Page, table: str, heading: str) -> list[str]:
    """A table's column under ``heading``, from the top down as far as it is drawn."""
    place = page.locator(f"#{table} th[title='{heading}']").get_attribute("aria-colindex")
    return page.locator(f"#{table} [role=gridcell][aria-colindex='{place}']").all_inner_texts()


def test_a_click_on_a_heading_sorts(page: Page, url: str) -> None:
    """By the numbers, not by their letters: first up, then down. Rows stay whole."""
    open_page(page, url, "tab=compare")
    page.get_by_role("button", name="Compare these").click()
    usual = len(compare.USUAL)
    expect(page.locator("#compare-status")).to_contain_text(f"{usual} of {usual}", timeout=30_000)
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


def test_compare_download_and_take_over(page: Page, url: str) -> None:
    """Results appear, the files download, and a click on a row opens its scheme in the Tensor tab."""
    open_page(page, url, "tab=compare")
    page.get_by_role("button", name="Compare these").click()
    usual = len(compare.USUAL)
    expect(page.locator("#compare-status")).to_contain_text(f"{usual} of {usual}", timeout=30_000)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    assert download.value.suggested_filename.endswith(".csv")
    assert Path(download.value.path()).read_text().splitlines()[0].startswith("scheme,")
    page.locator("#compare-table").get_by_text("mxfp4", exact=True).first.click()
    expect(page.get_by_role("tab", name="Tensor")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#which .scheme")).to_contain_text("MXFP4")
    page.wait_for_function("location.search.includes('scheme=mxfp4')")


def test_a_comparison_can_be_stopped(page: Page, url: str) -> None:
    """Stop leaves what is finished; if this fails, a visitor who has gone keeps the machine busy."""
    open_page(page, url, "tab=compare&sample=normal_4096")
    page.get_by_role("button", name=re.compile("Compare all")).click()
    expect(page.locator("#compare-status")).to_contain_text(re.compile(r"[1-9]\d* of \d+"), timeout=30_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#compare-stopped")).to_contain_text("Stopped")
    time.sleep(1.5)
    finished = page.locator("#compare-status .status").inner_text()
    time.sleep(1.5)
    assert page.locator("#compare-status .status").inner_text() == finished, (
        "nothing more is computed after a stop"
    )
    assert not finished.startswith(f"{len(SCHEMES)} of"), "it had ended by itself"
    assert f" of {len(SCHEMES)} schemes" in finished


def test_calibration_opens_and_follows_the_visitors_range(page: Page, url: str) -> None:
    """Opening the tab studies the tensor; the sidebar's change says that it has to be done again."""
    open_page(page, url, "scheme=int8_tensor")
    page.get_by_role("tab", name="Calibration").click()
    expect(page.locator("#calibration-sentence")).to_contain_text("one scale for all", timeout=30_000)
    expect(page.locator("#calibration-table")).to_contain_text("entropy (KL)")
    page.goto(f"{url}/?tab=calibration&scheme=int4_row")
    page.get_by_role("button", name="Calibrate").click()
    expect(page.locator("#calibration-sentence")).to_contain_text("INT4", timeout=30_000)


def test_methods_open_run_and_refuse(page: Page, url: str) -> None:
    """Opening the tab runs on the built-in layer; the film's slider moves; a missing file loses nothing."""
    open_page(page, url, "tab=methods")
    expect(page.locator("#methods-sentence")).to_contain_text("leaves the least error", timeout=60_000)
    expect(page.locator("#methods-table")).to_contain_text(METHODS["gptq_order"].label)
    page.locator("#methods-film .js-plotly-plot .slider-rail-touch-rect").click(position={"x": 20, "y": 5})
    expect(page.locator("#methods-film .slider-group")).to_contain_text("columns rounded: 8 %")
    page.get_by_label("my file").check()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#methods-status")).to_contain_text("drop a file first")
    expect(page.locator("#methods-table")).to_contain_text(METHODS["gptq_order"].label)


def test_training_runs_and_stops(page: Page, url: str) -> None:
    """Each network is shown as it is trained, and a stop keeps those that are done."""
    open_page(page, url, "tab=learn")
    expect(page.locator("#loss-scaling-words")).to_contain_text("BF16 has float32's range", timeout=30_000)
    page.get_by_role("button", name="Train", exact=True).click()
    networks = count(training.USUAL, training.USUAL_SEEDS)
    expect(page.locator("#training-status")).to_contain_text(
        re.compile(rf"[1-9]\d* of {networks} networks · seed"), timeout=30_000
    )
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#training-stopped")).to_contain_text("Stopped")
    expect(page.locator("#training-table")).to_contain_text("float32, trained on", timeout=15_000)


def test_speed_recorded_then_measured_here(page: Page, url: str) -> None:
    """The tab is full without a GPU; a run on this machine replaces the recorded numbers and says so."""
    open_page(page, url, "tab=speed")
    expect(page.locator("#speed-source")).to_contain_text("Recorded on one NVIDIA H200", timeout=15_000)
    expect(page.locator("#speed-advice")).to_contain_text("For decode")
    expect(page.locator("#speed-bars .js-plotly-plot .barlayer .point").first).to_be_visible()
    page.get_by_text("Measure on this machine").click()
    page.get_by_role("button", name="N and K of the layer").click()
    expect(page.get_by_label("N", exact=True)).to_have_value("1536")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#speed-status")).to_contain_text("products at 512×1536×384", timeout=60_000)
    expect(page.locator("#speed-source")).to_contain_text("Measured now", timeout=15_000)
    page.get_by_label("Recorded on an NVIDIA H200").check()
    expect(page.locator("#speed-source")).to_contain_text("Recorded on one NVIDIA H200")


def test_figures_save_under_a_name_that_says_what_they_show(page: Page, url: str) -> None:
    """As SVG and as PNG, called after tensor, scheme and figure."""
    open_page(page, url)
    page.locator("#error-plot .js-plotly-plot").hover()
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            page.locator(f"#error-plot .modebar-btn[data-title='Download as {kind}']").click()
        assert (
            download.value.suggested_filename
            == f"MLP-up-projection-layer-3-int4-group128-asym-error.{kind.lower()}"
        )


@pytest.mark.parametrize("width", [390, 1024, 1440])
@pytest.mark.parametrize("tab", [tab.NAME for tab in TABS])
def test_no_sideways_scrolling(page: Page, url: str, width: int, tab: str) -> None:
    """On a phone, a small laptop and a desk: if a tab is wider than the screen, its right side is lost."""
    page.set_viewport_size({"width": width, "height": 900})
    open_page(page, url, f"tab={tab}")
    page.wait_for_timeout(400)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_mode_reaches_the_plots(page: Page, url: str) -> None:
    """Axis text is light on dark: plotly's own colours would be unreadable."""
    open_page(page, url, "__theme=dark")
    fill = page.locator("#error-plot .xtitle").evaluate("e => getComputedStyle(e).fill")
    assert min(int(n) for n in re.findall(r"\d+", fill)[:3]) > 150
    background = page.locator(".gradio-container").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert max(int(n) for n in re.findall(r"\d+", background)[:3]) < 60


def test_a_link_with_nonsense_still_opens(page: Page, url: str) -> None:
    """An old, cut or hostile link shows the defaults, and its words are not run."""
    open_page(page, url, "scheme=%3Cscript%3E&sample=zzz&tab=what&source=file")
    expect(page.locator("#which .tensor")).to_contain_text("MLP up-projection")
    assert "19.47" in sqnr(page)
