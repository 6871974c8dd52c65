"""Everything that names what is chosen agrees, whatever was tried and however it ended.

Every way to choose, by hand, against every way to fail. If these fail, one part of the page names a tensor or
a scheme that another does not show, and a figure is read as that of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, Route, expect
from safetensors.torch import save_file

from app.state.record import Record
from explorer import SCHEMES
from explorer.sources.samples import SAMPLES
from tests.covering import THOROUGH
from tests.page.acts import (
    ASKED,
    LARGE,
    Held,
    at_rest,
    click,
    drawn,
    drop,
    leave_panel,
    load_file,
    look_at,
    open_page,
    open_panel,
    route_requests,
    visit,
)  # fmt: skip

BEGIN = "scheme=int4_group32&second=nvfp4"


def named(page: Page) -> dict[str, str]:
    """The record that is shown, after each part of the page was seen to name the same: the address, the bar,
    the table and the figure."""
    at_rest(page)
    asked = {key: value[0] for key, value in parse_qs(urlsplit(page.url).query).items()}
    record = page.evaluate("explorer.record")
    for side, key in (("a", "scheme"), ("b", "second")):
        name = record[key]
        assert asked.get(key, getattr(Record.fresh(), key)) == name
        assert page.locator(f"#chip-{side}").inner_text() == SCHEMES[name].label
        assert page.locator(f"#shortlist tr.is-{side}").get_attribute("data-scheme") == name
    assert asked.get("source", "builtin") == record["source"]
    if record["source"] == "builtin":
        label = SAMPLES[record["sample"]].label
        assert page.locator("#chip-tensor").inner_text() == label
        assert page.locator(".tensor-card h2").inner_text().startswith(label)
    return {**record, "file": str(record["file"])}


def _type_scheme(page: Page, text: str) -> None:
    if not page.locator("#pick-a").is_visible():
        open_panel(page, "a")
    page.locator("#pick-a").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


WAYS: dict[str, Callable[[Page, Path], object]] = {
    "picker": lambda page, _: _type_scheme(page, "MXFP6 E2M3"),
    "click": lambda page, _: page.locator("#chips [data-command=swap]").click(),
    "key": lambda page, _: page.keyboard.press("]"),
    "drop": lambda page, folder: drop(page, folder / "mine.csv", "body"),
}


@contextmanager
def _routed(page: Page, handler: Callable[[Route], object]) -> Iterator[None]:
    route_requests(page, handler)
    yield
    page.unroute(ASKED)


@contextmanager
def _overtaken(page: Page) -> Iterator[None]:
    """The request is held back until something else was chosen."""
    held = Held(page)
    with page.expect_request(held.which):  # an upload comes before the request
        yield
    leave_panel(page)
    page.keyboard.press("}")
    held.end()


FAILURES: dict[str, Callable[[Page], AbstractContextManager[None]]] = {
    "offline": lambda page: _routed(page, lambda route: route.abort()),
    "full": lambda page: _routed(page, lambda r: r.fulfill(status=429, json={"detail": "The page is busy."})),
    "defect": lambda page: _routed(page, lambda r: r.fulfill(status=500, json={"detail": "A defect."})),
    "overtaken": _overtaken,
}
CASES = [(way, failure) for way in WAYS for failure in FAILURES]
CHOSEN = [("key", "offline"), ("click", "defect"), ("drop", "overtaken")]
NOISE = "Failed to load resource|ERR_FAILED|429|500|Connection errored out|net::|fetch"


@THOROUGH
@pytest.mark.expects_errors(NOISE)
@pytest.mark.parametrize(
    "cases",
    [CHOSEN, *(pytest.param([case], marks=pytest.mark.thorough) for case in CASES if case not in CHOSEN)],
    ids=lambda cases: "-".join(" ".join(case) for case in cases),
)
def test_all_that_names_the_state_agrees(
    page: Page, url: str, tmp_path: Path, cases: list[tuple[str, str]]
) -> None:
    """After a failure it is what was chosen before, and a line says that; after an overtaken choice it is
    what was chosen last. The next choice works."""
    (tmp_path / "mine.csv").write_text("1,2,3\n4,5,6\n7,8,9.5\n")
    for way, failure in cases:
        open_page(page, url, "scheme=int4_row&second=mxfp4")
        visit(page, BEGIN)
        before = named(page)
        if way == "picker":
            open_panel(page, "a")  # while the server answers
        with FAILURES[failure](page):
            WAYS[way](page, tmp_path)
            if failure != "overtaken":
                expect(page.locator(".page-notice, #drop .refused:visible").first).to_be_visible()
                assert named(page) == before
        leave_panel(page)
        held = named(page)
        page.keyboard.press("x")
        expect(page.locator("#chip-a")).to_have_text(SCHEMES[held["second"]].label)
        after = named(page)
        assert (after["scheme"], after["second"]) == (held["second"], held["scheme"])


REFUSED: dict[str, tuple[str, Callable[[Page], object]]] = {
    "text": ("int99", lambda page: _type_scheme(page, "int99")),
    "size": ("Group size", lambda page: _type_size(page, "1e12")),
    "layer": ("/no/such", lambda page: page.evaluate(
        "explorer.choose({do: 'layer', model: '/no/such', revision: '', layer: 'w'})")),
}  # fmt: skip


def _type_size(page: Page, text: str) -> None:
    open_panel(page, "a")
    page.locator("#panel-a [data-part=columns]").fill(text)
    page.keyboard.press("Enter")


@THOROUGH
@pytest.mark.shared_page
def test_what_is_refused_changes_nothing(page: Page, url: str) -> None:
    """The line below the bar says what, boxes show again what holds, and every part of the page still names
    what is shown."""
    for what, act in REFUSED.values():
        open_page(page, url, BEGIN)
        before = named(page)
        act(page)
        expect(page.locator(".page-notice")).to_contain_text(what)
        assert named(page) == before
        assert "scheme=int4_group32" in page.url and "no/such" not in page.url
        leave_panel(page)
        open_panel(page, "a")
        expect(page.locator("#panel-a [data-part=columns]")).to_have_value("32")
        leave_panel(page)


@THOROUGH
@pytest.mark.expects_errors("AbortError|Connection errored out")  # of the run that the reload ends
def test_a_link_to_ones_own_file_says_so_in_the_page(page: Page, url: str, tmp_path: Path) -> None:
    """The reason stays until it is dismissed: a message that goes is missed. Dropped in again, the file is
    shown, a reload keeps it, and Back leads to it from another tensor."""
    open_page(page, url, "source=file&file_tensor=mine&scheme=nvfp4")
    expect(page.locator(".page-notice")).to_contain_text("drop the file in again")
    expect(page.locator("#chip-tensor")).to_contain_text("MLP up-projection")
    page.wait_for_function("!location.search.includes('source=file')")
    path = tmp_path / "mine.npy"
    np.save(path, np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32))
    load_file(page, path)
    chip = page.locator("#chip-tensor")
    expect(chip).to_have_text("mine")
    expect(page.locator(".page-notice")).to_have_count(0)
    at_rest(page)
    page.reload()
    expect(chip).to_have_text("mine")
    expect(page.locator(".tensor-card h2")).to_contain_text("24 × 40")
    page.locator("[data-sample=mlp_down]").click()
    expect(chip).to_contain_text("MLP down-projection")
    at_rest(page)
    page.go_back()
    expect(chip).to_have_text("mine")
    assert not page.locator(".page-notice").count()


@THOROUGH
@pytest.mark.expects_errors(NOISE)
def test_what_is_computed_goes_on(page: Page, url: str) -> None:
    """After a run that failed, and where the page is scrolled below the first screen: a section there waits
    for nothing that nobody computes."""
    failed: list[str] = []

    def once(route: Route) -> None:
        if "queue/join" not in route.request.url or failed:
            route.continue_()
            return
        failed.append(route.request.url)
        route.fulfill(status=503, json={"detail": "busy"})

    page.route(ASKED, once)
    open_page(page, url, f"scheme=int8_row&sample={LARGE}")
    expect(page.locator("#shortlist tbody")).not_to_contain_text("≈")
    assert failed
    drawn(page, "error-map")
    page.evaluate("explorer.choose({do: 'scheme', side: 'a', text: 'int5_group32'})")
    expect(page.locator("#chip-a")).to_contain_text("INT5")
    at_rest(page)
    expect(page.locator("#section-inspector")).to_contain_text("32 values")


@THOROUGH
def test_a_server_that_hangs_is_said(page: Page, url: str) -> None:
    """After a while in words, not before; once it answers they go, and what was chosen is shown."""
    page.clock.install()
    open_page(page, url, BEGIN)
    held, notice = Held(page), page.locator(".page-notice")
    held.during(lambda: page.locator("[data-sample=mlp_down]").click())
    page.clock.fast_forward(7000)
    expect(notice).to_have_count(0)
    page.clock.fast_forward(2000)
    expect(notice).to_contain_text("has not answered")
    held.end()
    expect(page.locator("#chip-tensor")).to_contain_text("MLP down-projection")
    expect(notice).to_have_count(0)


@THOROUGH
def test_a_run_fills_no_other_schemes_section(page: Page, url: str) -> None:
    """A run on A that ends when B has become A is not taken for that one's; one on that one is."""
    open_page(page, url, BEGIN)
    box = page.locator("#section-calibration")
    look_at(box)
    held = Held(page, lambda request: r'"run":"ranges"' in (request.post_data or ""))
    held.during(lambda: click(page, box.locator("[data-run=ranges]")))
    page.get_by_role("button", name="Swap").click()
    expect(page.locator("#chip-a")).to_have_text(SCHEMES["nvfp4"].label)
    page.wait_for_function("window.asking === 1")  # the run's own
    held.end()
    at_rest(page)
    expect(box.locator("#ranges .main-svg")).to_have_count(0)
    click(page, box.locator("[data-run=ranges]"))
    expect(box.locator("#ranges .main-svg").first).to_be_visible()


@THOROUGH
@pytest.mark.shared_page
def test_two_files_with_one_tensor_name(page: Page, url: str, tmp_path: Path) -> None:
    """They have the same address, and Back leads to the first of them."""
    open_page(page, url, "scheme=int4_row")
    card = page.locator(".tensor-card h2")
    for name, rows in (("a", 24), ("b", 40)):
        save_file({"w": torch.ones(rows, 64)}, tmp_path / f"{name}.safetensors")
        load_file(page, tmp_path / f"{name}.safetensors")
        expect(card).to_contain_text(f"{rows} × 64")
        at_rest(page)
    page.go_back()
    expect(card).to_contain_text("24 × 64")
    page.go_forward()
    expect(card).to_contain_text("40 × 64")


@THOROUGH
@pytest.mark.shared_page
def test_typing_replaces_the_schemes_name(page: Page, url: str) -> None:
    open_page(page, url, BEGIN)
    page.locator("#chips [data-panel=a]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#pick-a")).to_be_focused()
    page.keyboard.type("int8_row")
    page.keyboard.press("Enter")
    expect(page.locator("#chip-a")).to_have_text(SCHEMES["int8_row"].label)
