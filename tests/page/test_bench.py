"""The measurement of the page, on the page that the other tests open."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from lab.page import ACTIONS, Meter
from tests.page.test_browser import frames

pytestmark = pytest.mark.browser


@pytest.mark.thorough
def test_actions_are_timed(browser: Browser, url: str) -> None:
    """If it fails, `python -m lab page` no longer finds what it clicks, or what answers."""
    meter = Meter(browser, url)
    opened = meter.open("mlp_up")
    assert 0 < opened.first <= opened.whole and opened.received > 1e6 and opened.shift <= 0.05
    for name in ("scheme A by key", "element by a click on the map", "place changed"):
        answer = meter.measure(ACTIONS[name], 0)
        assert 0 < answer.first <= answer.whole and answer.received > 0, name
    frames(meter.page)  # what is left of the answers before comes in
    asked: list[str] = []
    meter.page.on("request", lambda request: asked.append(request.url))
    flip = meter.measure(ACTIONS["bit flipped in Learn"], 0)
    assert 0 < flip.first <= flip.whole
    assert not [address for address in asked if "gradio_api" in address], "Learn asks the server nothing"
    assert meter.heap() > 1e6
    meter.page.close()
