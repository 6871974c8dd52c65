"""Everything that names what is chosen agrees, whatever was tried and however it ended.

Every way to choose, by hand, against every way to fail. If these fail, one part of the page names a tensor or
a scheme that another does not show, and a figure is read as that of something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from explorer import SCHEMES
from explorer.sources.samples import SAMPLES
from tests.covering import THOROUGH
from tests.page.acts import (
    JOIN,
    Held,
    at_rest,
    drop,
    leave_panel,
    load_file,
    open_page,
    open_panel,
    route_requests,
    visit,
)  # fmt: skip

BEGIN = "scheme=int4_group32&second=nvfp4&row=3&column=4"


def named(page: Page) -> dict[str, str]:
    """The record that is shown, after each part of the page was seen to name the same: the tensor's and both
    schemes' labels, and the inspected element."""
    at_rest(page)
    asked = {key: value[0] for key, value in parse_qs(urlsplit(page.url).query).items()}
    record = page.evaluate("explorer.record")
    command = page.locator("#commands").text_content() or ""
    for side, key, picker in (("a", "scheme", "preset"), ("b", "second", "second-preset")):
        name = record[key]
        assert asked[key] == name and f"--scheme {name}" in command
        assert page.locator(f"#chip-{side}").inner_text() == SCHEMES[name].label
        assert page.locator(f"#{picker} input").input_value() == SCHEMES[name].label
    assert asked["source"] == record["source"]
    if record["source"] == "builtin":
        label = SAMPLES[record["sample"]].label
        assert page.locator("#chip-tensor").inner_text() == label
        assert page.locator("#source input").input_value() == "Built-in tensor"
        assert f"sample:{record['sample']}" in command
        assert page.locator("#sample input").input_value().startswith(label)
    row, column = record["element"].split(",")
    assert (asked["row"], asked["column"]) == (row, column)
    assert f"({row}, {column})" in (page.locator("#inspector h3").text_content() or "")
    return {**record, "file": str(record["file"])}


def _type_scheme(page: Page, text: str) -> None:
    open_panel(page, "a")
    page.locator("#preset input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def _type_into(page: Page, box: str, text: str) -> None:
    if box == "size":
        open_panel(page, "a")
    field = page.locator("#size input") if box == "size" else page.locator("#position").get_by_label("Row")
    field.fill(text)
    field.press("Enter")


WAYS: dict[str, Callable[[Page, Path], object]] = {
    "picker": lambda page, _: _type_scheme(page, "MXFP6 E2M3"),
    "click": lambda page, _: page.locator("#chips [data-act=swap]").click(),
    "key": lambda page, _: page.keyboard.press("]"),
    "element": lambda page, _: _type_into(page, "row", "17"),
    "back": lambda page, _: page.go_back(wait_until="commit"),
    "drop": lambda page, folder: drop(page, folder / "mine.csv", "body"),
}


@contextmanager
def _routed(page: Page, handler: Callable[[Route], object]) -> Iterator[None]:
    route_requests(page, handler)
    yield
    page.unroute(JOIN)


def _refused(route: Route) -> None:
    route.fulfill(status=503, json={"detail": "The queue is full."})


def _spoiled(route: Route) -> None:
    """The request is taken and ends in an error: a value has come that the server does not take."""
    asked = route.request.post_data_json
    if '"acts"' in str(asked["data"][:1]):
        asked["data"][1] = "not an uploaded file"
    route.continue_(post_data=json.dumps(asked))


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
    "full": lambda page: _routed(page, _refused),
    "defect": lambda page: _routed(page, _spoiled),
    "overtaken": _overtaken,
}
CASES = [(way, failure) for way in WAYS for failure in FAILURES]
CHOSEN = [("back", "offline"), ("click", "defect"), ("drop", "overtaken")]
NOISE = "Failed to load resource|ERR_FAILED|503|Connection errored out|net::|fetch"


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
        open_page(page, url, "scheme=int4_row&second=mxfp4&row=5&column=6")
        visit(page, BEGIN)
        before, line = named(page), page.locator(".page-notice, #notice .status")
        with FAILURES[failure](page):
            WAYS[way](page, tmp_path)
            if failure != "overtaken":
                expect(line.first).to_be_visible()
                assert named(page) == before
        leave_panel(page)
        named(page)
        version = page.evaluate("explorer.version")
        page.keyboard.press("x")
        page.wait_for_function("version => explorer.version > version", arg=version)
        after = named(page)
        if failure != "overtaken":
            assert (after["scheme"], after["second"]) == (before["second"], before["scheme"])
            expect(line).to_have_count(0)


REFUSED: dict[str, tuple[str, Callable[[Page], object]]] = {
    "text": ("int99", lambda page: _type_scheme(page, "int99")),
    "size": ("Group size", lambda page: _type_into(page, "size", "-3")),
    "row": ("Row", lambda page: _type_into(page, "row", "")),
    "layer": ("/no/such", lambda page: page.evaluate(
        "explorer.choose({do: 'layer', model: '/no/such', revision: '', layer: 'w'})")),
    "link": ("/no/such", lambda page: visit(
        page, "source=model&model=/no/such&layer=w&scheme=nvfp4")),
}  # fmt: skip


@THOROUGH
@pytest.mark.shared_page
def test_what_is_refused_changes_nothing(page: Page, url: str) -> None:
    """The line below the bar says what, boxes show again what holds, and every part of the page still names
    what is shown. No part is marked as failed."""
    for what, act in REFUSED.values():
        open_page(page, url, BEGIN)
        before = named(page)
        act(page)
        expect(page.locator("#notice .status")).to_contain_text(what)
        assert named(page) == before
        assert "scheme=int4_group32" in page.url and "no/such" not in page.url
        expect(page.locator("#size input")).to_have_value("32")
        assert page.locator(".wrap .error").locator("visible=true").count() == 0
        leave_panel(page)


@THOROUGH
def test_a_link_to_ones_own_file_says_so_in_the_page(page: Page, url: str, tmp_path: Path) -> None:
    """The reason stays until something is chosen: a message that goes is missed. Dropped in again, the file
    is shown. A refusal after that ends nothing: what the file control holds is put back as it was, not as the
    path on the server, which no request may name."""
    open_page(page, url, "source=file&file_tensor=mine&scheme=nvfp4")
    notice = page.locator("#notice .status")
    expect(notice).to_be_visible()
    expect(page.locator("#chip-tensor")).to_contain_text("MLP up-projection")
    page.wait_for_function("!location.search.includes('source=file')")
    path = tmp_path / "mine.npy"
    np.save(path, np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32))
    open_panel(page, "tensor")
    load_file(page, path)
    expect(page.locator("#chip-tensor")).to_contain_text("mine")
    expect(notice).to_have_count(0)
    visit(page, BEGIN)
    _type_scheme(page, "int99")
    expect(notice).to_contain_text("int99")
    leave_panel(page)
    page.keyboard.press("x")
    expect(page.locator("#chip-a")).to_contain_text(SCHEMES["nvfp4"].label)
