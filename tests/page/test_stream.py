"""Answers between two of Gradio's streams. If these fail, a click on a busy page does nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.test_browser import open_page

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

LATE = """
window.late = 0;
window.held = 0;
const real = window.fetch.bind(window);
window.fetch = async (input, options) => {
  const response = await real(input, options);
  if (!String(input.url || input).includes('/queue/data')) return response;
  const decoder = new TextDecoder();
  return new Response(response.body.pipeThrough(new TransformStream({async transform(chunk, controller) {
    const end = decoder.decode(chunk).indexOf('data: {"msg":"close_stream"');
    if (end < 0 || !window.late) return controller.enqueue(chunk);
    if (end > 0) controller.enqueue(chunk.slice(0, end));
    await new Promise(resume => setTimeout(resume, window.late));
    window.late = 0;
    window.held += 1;
    controller.enqueue(chunk.slice(end));
  }})), {status: response.status, headers: response.headers});
};
"""
"""A page that is busy for ``late`` milliseconds when the next stream ends: what is asked meanwhile is asked
of no stream."""


def test_a_request_as_the_stream_ends_is_answered(page: Page, url: str) -> None:
    """A swap asks for the swapped texts, and their answer for the numbers: those are asked for too late."""
    page.add_init_script(LATE)
    open_page(page, url, "tab=tensor&section=take-away&scheme=int4_row&second=nvfp4&sample=attention_query")
    expect(page.locator("#commands")).to_contain_text("explorer quantize")
    page.wait_for_function("explorer.sections.get('take-away').shown === explorer.version")
    page.evaluate("window.late = 4000")
    page.keyboard.press("x")
    expect(page.locator("#chip-a")).to_contain_text("NVFP4")
    page.wait_for_function("window.held === 1")
    page.keyboard.press("x")
    expect(page.locator("#chip-a")).to_contain_text("INT4")
