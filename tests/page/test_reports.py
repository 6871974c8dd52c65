"""Reports by hand. If these fail, a click makes no report, Stop does not stop it, or what is to be taken away
is of schemes that are no longer chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.test_browser import idle, open_page

HIT = """([target, x, y]) => {
  const at = document.elementFromPoint(x, y);
  const ofLabel = at?.tagName === 'LABEL' && at.contains(target);
  return target.contains(at) || ofLabel ? '' : at?.outerHTML.slice(0, 200) ?? 'nothing';
}"""
"""What lies at a point instead of the target, as text; empty where the target is hit."""


def click(page: Page, target: Locator, running: bool = False) -> None:
    """At the coordinates where a hand sees it, once it stands still with nothing on top of it, and, unless it
    is for what is ``running``, everything is drawn: to scroll draws figures, and these move what follows."""
    covered, boxes = "nothing was seen", [None, None, None]
    for _ in range(100):
        target.scroll_into_view_if_needed()
        if not running:
            idle(page)
        boxes = [*boxes[1:], target.bounding_box()]
        box = boxes[-1]
        if box and boxes.count(box) == len(boxes):
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            covered = page.evaluate(HIT, [target.element_handle(), x, y])
            if not covered:
                page.mouse.click(x, y)
                return
        page.wait_for_timeout(100)
    raise AssertionError(f"the target moved to the end, or is covered by: {covered}")


@pytest.mark.thorough
@pytest.mark.shared_page
def test_commands_are_of_the_schemes_that_are_chosen(page: Page, url: str) -> None:
    """Without B its command goes with the numbers."""
    open_page(page, url, "tab=tensor&section=take-away&scheme=int4_row&second=nvfp4&sample=attention_query")
    commands = page.locator("#commands")
    expect(commands).to_contain_text("nvfp4")
    idle(page)
    click(page, page.locator("#acts [data-act=clear]"))
    expect(commands).not_to_contain_text("nvfp4")
    expect(commands).to_contain_text("--schemes int4_row")
    expect(page.locator("#chip-b")).to_have_text("compare with …")


@pytest.mark.thorough
@pytest.mark.parametrize("printed", [False, True])
def test_a_report_is_made_and_stopped(page: Page, url: str, tmp_path: Path, printed: bool) -> None:
    """A survey's report as files, with how far it is; one that is stopped gives no file."""
    open_page(page, url, "tab=model&section=survey")
    expect(page.locator("#survey-sentence")).to_contain_text("bits per weight")
    idle(page)
    kinds = page.locator("#report_survey-kinds")
    for kind in ("report (.pdf)", "figures and tables") if printed else ("figures and tables",):
        click(page, kinds.get_by_label(kind))
        expect(kinds.get_by_label(kind)).to_be_checked()
    make = page.locator("#report_survey")
    stop = make.locator("xpath=following::button[normalize-space()='Stop'][1]")
    click(page, make)
    expect(stop).to_be_visible()
    click(page, stop, running=True)
    expect(page.locator("#report_survey-stopped")).to_contain_text("no report was made")
    expect(page.locator("#report_survey-files")).to_be_hidden()
    click(page, make)  # at once: the stopped run must not be in its way
    files = page.locator("#report_survey-files")
    expect(files).to_be_visible(timeout=60_000)
    links = files.locator("a[download]")
    expect(links).to_have_count(3 if printed else 2)
    kept = {}
    for link in links.all():
        with page.expect_download() as download:
            click(page, link)
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        kept[path.suffix] = path.read_bytes()
    assert kept[".zip"].startswith(b"PK") and b"explorer-report" in kept[".html"]
    assert not printed or kept[".pdf"].startswith(b"%PDF")
    expect(page.locator("#report_survey-command")).to_contain_text("explorer report survey all-MiniLM-L6-v2")
