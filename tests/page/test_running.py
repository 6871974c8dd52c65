"""Stop is on the page while something runs, and at no other time.

If these fail, a visitor sees a button that stops nothing, or cannot stop what runs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import gradio as gr
import pytest
from playwright.sync_api import Browser, Page, expect

from app import limits
from app.parts import widgets
from app.parts.views import StatusView, listen, shows

LET_END = threading.Event()


@shows(StatusView)
def run(steps: float) -> Iterator[StatusView]:
    """Steps until the test lets it end; refused below zero."""
    if steps < 0:
        raise ValueError("below zero")
    step = 0
    while not LET_END.wait(0.2):
        yield StatusView(status=f"step {step}")
        step += 1
    yield StatusView(status="done")


@pytest.fixture
def page(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page with a Start, a Stop and a status."""
    monkeypatch.setattr(limits, "notify", lambda message: None)
    LET_END.clear()
    with gr.Blocks(analytics_enabled=False) as demo:
        steps = gr.Number(5, label="Steps")
        start, stop = gr.Button("Start"), widgets.stop_button()
        status, line = gr.HTML("ready"), gr.HTML()
        buttons = widgets.RunButtons((start,), stop, line)
        buttons.begin_on(start.click)
        running = listen(start.click, run, steps, StatusView(status=status), api_name="run")
        buttons.end_with(running)
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False)
    page = browser.new_page()
    page.goto(url)
    yield page
    LET_END.set()
    page.close()
    demo.close()


@pytest.mark.parametrize(("steps", "end"), [("5", "done"), ("-1", "below zero")])
def test_stop_is_there_while_something_runs(page: Page, steps: str, end: str) -> None:
    """And goes at the end of the run, or when it is refused."""
    start, stop = (page.get_by_role("button", name=name) for name in ("Start", "Stop"))
    expect(start).to_be_enabled()
    expect(stop).to_be_hidden()
    page.get_by_label("Steps").fill(steps)
    start.click()
    if end == "done":
        expect(stop).to_be_visible()
        expect(start).to_be_disabled()
        LET_END.set()
    expect(page.get_by_text(end)).to_be_visible()
    expect(stop).to_be_hidden()
    expect(start).to_be_enabled()


def test_stop_stops_and_goes(page: Page) -> None:
    start, stop = (page.get_by_role("button", name=name) for name in ("Start", "Stop"))
    page.get_by_label("Steps").fill("200")
    start.click()
    expect(page.get_by_text(re.compile("step [1-9]"))).to_be_visible()
    stop.click()
    expect(page.get_by_text("what was finished is shown")).to_be_visible()
    expect(stop).to_be_hidden()
    expect(start).to_be_enabled()
    expect(page.get_by_text("done")).to_be_hidden()
    start.click()
    expect(page.get_by_text("what was finished is shown")).to_be_hidden()
