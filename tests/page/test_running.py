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
from tests.covering import THOROUGH
from tests.page.acts import new_context

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
    context = new_context(browser)
    page = context.new_page()
    page.goto(url)
    yield page
    LET_END.set()
    context.close()
    demo.close()


@THOROUGH
def test_stop_is_there_while_something_runs(page: Page) -> None:
    """It goes when the run was stopped, has ended, or is refused; what was said of the stop, at the next
    start."""
    start, stop = (page.get_by_role("button", name=name) for name in ("Start", "Stop"))
    stopped = page.get_by_text("what was finished is shown")

    def idle() -> None:
        expect(stop).to_be_hidden()
        expect(start).to_be_enabled()

    idle()
    start.click()
    expect(page.get_by_text(re.compile("step [1-9]"))).to_be_visible()
    expect(start).to_be_disabled()
    stop.click()
    expect(stopped).to_be_visible()
    idle()
    expect(page.get_by_text("done")).to_be_hidden()
    start.click()
    expect(stopped).to_be_hidden()
    expect(stop).to_be_visible()
    LET_END.set()
    expect(page.get_by_text("done")).to_be_visible()
    idle()
    page.get_by_label("Steps").fill("-1")
    start.click()
    expect(page.get_by_text("below zero")).to_be_visible()
    idle()
