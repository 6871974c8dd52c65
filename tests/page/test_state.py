"""Everything that names what is chosen agrees, whatever was tried and however it ended.

Every way to choose, by hand, against every way to fail. If these fail, one part of the page names a tensor or
a scheme that another does not show, and a figure is read as that of something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from explorer import SCHEMES
from explorer.sources.samples import SAMPLES
from tests.covering import sampled
from tests.page.test_browser import idle, open_page, route_requests, until_held

pytestmark = pytest.mark.browser
BEGIN = "scheme=int4_group32&second=nvfp4&row=3&column=4"


def named(page: Page) -> dict[str, str]:
    """The record that is shown, after each part of the page was seen to name the same: the tensor's and both
    schemes' labels, and the inspected element."""
    page.wait_for_function("explorer.ready && !explorer.sent && !explorer.acts.length")
    idle(page)
    asked = {key: value[0] for key, value in parse_qs(urlsplit(page.url).query).items()}
    record = page.evaluate("explorer.record")
    first, second = record["scheme"], record["second"]
    says = {
        "chip tensor": page.locator("#chip-tensor").inner_text(),
        "chip a": page.locator("#chip-a").inner_text(),
        "chip b": page.locator("#chip-b").inner_text(),
        "address a": asked.get("scheme", ""),
        "address b": asked.get("second", ""),
        "address source": asked.get("source", ""),
        "address element": f"{asked.get('row')},{asked.get('column')}",
        "command": page.locator("#commands").text_content() or "",
        "element": page.locator("#inspector h3").text_content() or "",
        "picker a": page.locator("#preset input").input_value(),
        "picker b": page.locator("#second-preset input").input_value(),
        "picker source": page.locator("#source input").input_value(),
    }
    assert says["address a"] == first and says["address b"] == second
    assert says["chip a"] == SCHEMES[first].label == says["picker a"]
    assert says["chip b"] == SCHEMES[second].label == says["picker b"]
    assert f"--scheme {first}" in says["command"] and f"--scheme {second}" in says["command"]
    assert says["address source"] == record["source"]
    if record["source"] == "builtin":
        label = SAMPLES[record["sample"]].label
        assert says["chip tensor"] == label and says["picker source"] == "Built-in tensor"
        assert f"sample:{record['sample']}" in says["command"]
        assert page.locator("#sample input").input_value().startswith(label)
    assert says["address element"] == record["element"]
    row, column = record["element"].split(",")
    assert f"({row}, {column})" in says["element"]
    return {**record, "file": str(record["file"])}


def _picker(page: Page) -> None:
    page.locator("#chips [data-panel=a]").click()
    page.locator("#preset input").click()
    page.keyboard.type("MXFP6 E2M3")
    page.keyboard.press("Enter")


def _click(page: Page) -> None:
    page.locator("#chips [data-act=swap]").click()


def _key(page: Page) -> None:
    page.keyboard.press("]")


def _typed(page: Page) -> None:
    row = page.locator("#position").get_by_label("Row")
    row.fill("17")
    row.press("Enter")


def _back(page: Page) -> None:
    page.go_back(wait_until="commit")


def _drop(page: Page) -> None:
    """A file dropped on the page, as the browser says it."""
    page.evaluate(
        """text => {
          const data = new DataTransfer();
          data.items.add(new File([text], 'mine.csv'));
          document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}));
        }""",
        "1,2,3\n4,5,6\n7,8,9.5\n",
    )


WAYS: dict[str, Callable[[Page], None]] = {
    "picker": _picker, "click": _click, "key": _key, "element": _typed, "back": _back, "drop": _drop,
}  # fmt: skip


@contextmanager
def _aborted(page: Page) -> Iterator[None]:
    """The network is gone."""
    route_requests(page, lambda route: route.abort())
    yield
    page.unroute(re.compile("queue/join"))


@contextmanager
def _full(page: Page) -> Iterator[None]:
    """The server takes no more requests."""
    answer = {"status": 503, "json": {"detail": "The queue is full."}}
    route_requests(page, lambda route: route.fulfill(**answer))
    yield
    page.unroute(re.compile("queue/join"))


@contextmanager
def _defect(page: Page) -> Iterator[None]:
    """The request is taken and ends in an error: a value has come that the server does not take."""

    def spoil(route: Route) -> None:
        asked = route.request.post_data_json
        if '"acts"' in str(asked["data"][:1]):
            asked["data"][1] = "not an uploaded file"
        route.continue_(post_data=json.dumps(asked))

    route_requests(page, spoil)
    yield
    page.unroute(re.compile("queue/join"))


@contextmanager
def _overtaken(page: Page) -> Iterator[None]:
    """The request is held back until something else was chosen."""
    held: list[Route] = []
    route_requests(page, lambda route: route.continue_() if held else held.append(route))
    yield
    until_held(page, held)  # an upload comes before the request
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement?.blur()")
    page.keyboard.press("}")
    for route in held:
        route.continue_()
    page.unroute(re.compile("queue/join"))


FAILURES = {"offline": _aborted, "full": _full, "defect": _defect, "overtaken": _overtaken}
CASES = [(way, failure) for way in WAYS for failure in FAILURES]
CHOSEN = [
    ("back", "offline"),
    ("click", "defect"),
    ("drop", "overtaken"),
]
NOISE = re.compile("Failed to load resource|ERR_FAILED|503|Connection errored out|net::|fetch")


@pytest.mark.expects_errors(NOISE.pattern)
@pytest.mark.parametrize(("way", "failure"), sampled(CASES, CHOSEN))
def test_all_that_names_the_state_agrees(page: Page, url: str, way: str, failure: str) -> None:
    """After a failure it is what was chosen before, and a line says that; after an overtaken choice it is
    what was chosen last. The next choice works."""
    open_page(page, url, "scheme=int4_row&second=mxfp4&row=5&column=6")
    open_page(page, url, BEGIN)
    before = named(page)
    with FAILURES[failure](page):
        WAYS[way](page)
        if failure != "overtaken":
            expect(page.locator(".page-notice, #notice .status").first).to_contain_text("Still shown")
            assert named(page) == before
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement?.blur()")
    named(page)
    version = page.evaluate("explorer.version")
    page.keyboard.press("x")
    page.wait_for_function("version => explorer.version > version", arg=version)
    after = named(page)
    if failure != "overtaken":
        assert (after["scheme"], after["second"]) == (before["second"], before["scheme"])
        expect(page.locator(".page-notice, #notice .status")).to_have_count(0)


REFUSED = {
    "text": ("no scheme", lambda page: _type_scheme(page, "int99")),
    "size": ("Group size", lambda page: _type_size(page, "-3")),
    "row": ("whole numbers", lambda page: _type_row(page, "")),
    "layer": ("no Hub id", lambda page: page.evaluate(
        "explorer.choose({do: 'layer', model: '/no/such', revision: '', layer: 'w'})")),
    "link": ("no Hub id", lambda page: page.evaluate(
        """() => { history.pushState(null, '', '?source=model&model=/no/such&layer=w&scheme=nvfp4');
        dispatchEvent(new PopStateEvent('popstate')); }""")),
}  # fmt: skip


def _type_scheme(page: Page, text: str) -> None:
    page.locator("#chips [data-panel=a]").click()
    page.locator("#preset input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def _type_size(page: Page, text: str) -> None:
    page.locator("#chips [data-panel=a]").click()
    page.locator("#size input").fill(text)
    page.locator("#size input").press("Enter")


def _type_row(page: Page, text: str) -> None:
    row = page.locator("#position").get_by_label("Row")
    row.fill(text)
    row.press("Enter")


@pytest.mark.parametrize("what", sampled([*REFUSED], ["link"]))
def test_what_is_refused_changes_nothing(page: Page, url: str, what: str) -> None:
    """The line below the bar says why, and every part of the page still names what is shown."""
    open_page(page, url, BEGIN)
    before = named(page)
    words, act = REFUSED[what]
    act(page)
    expect(page.locator("#notice .status")).to_contain_text(words)
    assert named(page) == before
    assert "scheme=int4_group32" in page.url and "no/such" not in page.url


def test_a_refusal_after_a_file_ends_nothing(page: Page, url: str) -> None:
    """What the file control holds is put back as it was, not as the path on the server, which no request may
    name: each later one would be refused."""
    open_page(page, url, BEGIN)
    _drop(page)
    expect(page.locator("#chip-tensor")).to_contain_text("mine")
    open_page(page, url, BEGIN)
    _type_scheme(page, "int99")
    expect(page.locator("#notice .status")).to_contain_text("no scheme")
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement?.blur()")
    page.keyboard.press("x")
    expect(page.locator("#chip-a")).to_contain_text(SCHEMES["nvfp4"].label)


def test_a_link_to_ones_own_file_says_so_in_the_page(page: Page, url: str, tmp_path: Path) -> None:
    """The reason stays until something is chosen: a message that goes is missed. Dropped in again, the file
    is shown."""
    open_page(page, url, "source=file&file_tensor=mine&scheme=nvfp4")
    notice = page.locator("#notice .status")
    expect(notice).to_contain_text("somebody's own file")
    expect(page.locator("#chip-tensor")).to_contain_text("MLP up-projection")
    page.wait_for_function("!location.search.includes('source=file')")
    path = tmp_path / "mine.npy"
    np.save(path, np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32))
    page.locator("#chips [data-panel=tensor]").click()
    page.locator("#file input[type=file]").set_input_files(str(path))
    expect(page.locator("#chip-tensor")).to_contain_text("mine")
    expect(notice).to_have_count(0)
