"""What tests do on the page, and how they wait for it: until it is at rest, never for a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request, Route, ViewportSize, expect

HANGS = 180_000
"""Milliseconds after which what is waited for hangs. No test has another limit."""
expect.set_options(timeout=HANGS)
SIZE: ViewportSize = {"width": 1440, "height": 900}
LARGE = "normal_4096"
"""A built-in tensor of 4096 x 4096, whose answers take seconds."""
ASKED = re.compile("queue/join|component_server")

COUNTED = """(() => {
  const real = window.fetch.bind(window);
  window.asking = 0;
  window.fetch = async (input, options) => {
    window.asking += 1;
    try {
      return await real(input, options);
    } finally {
      window.asking -= 1;
    }
  };
})();"""
"""Counts the requests that are on their way to the server; what it was asked, the page knows."""
BUSY = """() => [
  ...window.explorer?.ready && window.Plotly ? [] : ['the first record'],
  ...explorer.choosing || explorer.acts?.length ? ['an act'] : [],
  ...window.asking ? ['a request'] : [],
  ...[...explorer.sections.values()]
    .filter(one => (one.running && one.running.name !== 'filling') || (one.near && one.stale && !one.folded))
    .map(one => 'the section ' + one.name),
  ...explorer.leave ? ['the way to a section'] : [],
  ...[...document.querySelectorAll('.figure')].filter(plot => plot.isPainted && plot.offsetWidth
    && !plot.previousElementSibling?.hidden && !plot.isPainted())
    .map(plot => 'the figure of ' + plot.closest('[id]')?.id),
  ...Object.keys(explorer.noted).length ? ['a note for the address'] : [],
  ...document.getAnimations().filter(one => one.playState === 'running'
    && one.effect.getComputedTiming().endTime !== Infinity)
    .map(one => one.transitionProperty || one.animationName),
]"""
UNTIL = """async ([limit, frames, busy]) => {
  const end = performance.now() + limit, check = eval(busy);
  for (let calm = 0; calm < frames; calm += 1) {
    const found = await check();
    if (found.length && performance.now() > end) return found;
    if (found.length) calm = -1;
    else await explorer.drawing;
    await new Promise(resume => requestAnimationFrame(() => setTimeout(resume)));
  }
  return [];
}"""
"""Resolves when a check has found nothing for so many frames, or to what it finds when that hangs. (What
Playwright's ``wait_for_function`` waits for cannot be asynchronous.)"""


def at_rest(page: Page) -> None:
    """Wait until the page rests: what was asked is answered and drawn, nothing moves, and the frames after
    that ask for nothing more."""
    busy = page.evaluate(UNTIL, [HANGS, 4, BUSY])
    assert not busy, f"the page does not come to rest: {busy}"


def filled(page: Page) -> None:
    """Wait until each row of the shortlist is of the whole tensor: a page at rest may still compute some."""
    at_rest(page)
    expect(page.locator("#shortlist tr").filter(has_text=re.compile("[…≈]"))).to_have_count(0)
    at_rest(page)


def wait_for_copied_link(page: Page) -> None:
    """Wait until the clipboard holds the page's address."""
    other = "async () => await navigator.clipboard.readText() === location.href ? [] : ['another text']"
    assert not page.evaluate(UNTIL, [HANGS, 1, other])


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """Where pages share scripts and nothing else; what moves by itself does not."""
    context = browser.new_context(**{"viewport": SIZE, "reduced_motion": "reduce", **options})
    context.set_default_timeout(HANGS)
    context.add_init_script(COUNTED)
    return context


def open_page(page: Page, url: str, query: str = "") -> None:
    """Open and wait until the link is shown; a page that is open goes there as by Back."""
    if page.url.startswith(url):
        visit(page, query)
        return
    page.goto(f"{url}/?{query}")
    at_rest(page)


def visit(page: Page, query: str) -> None:
    """Go to an address of the opened page: at once, as a browser does, so that no answer of before that comes
    in between writes the address."""
    at_rest(page)
    page.evaluate(
        """query => { history.pushState(null, '', '?' + query);
        dispatchEvent(new PopStateEvent('popstate')); }""",
        query,
    )
    at_rest(page)


def in_another_window(page: Page, url: str) -> Page:
    """The address that ``page`` has now, opened by somebody else."""
    other = page.context.new_page()
    open_page(other, url, page.url.partition("?")[2])
    return other


def wait_for_query(page: Page, *parts: str) -> None:
    """Wait until the address holds each of ``parts``, and none of those that begin with "!"."""
    for part in parts:
        wanted = f"location.search.includes('{part.removeprefix('!')}')"
        page.wait_for_function(f"!{wanted}" if part.startswith("!") else wanted)


def look_at(target: Locator) -> None:
    """Scroll to ``target`` by hand until it rests on the screen. A hand that scrolls ends the way to a
    section, which would scroll back; what is drawn above the target moves it away."""
    page, before = target.page, None
    page.mouse.wheel(0, 1)
    for _ in range(50):
        at_rest(page)
        target.scroll_into_view_if_needed()
        at_rest(page)
        box = target.bounding_box()
        if box and box == before:
            return
        before = box
    raise AssertionError(f"still moving: {target}")


def drawn(page: Page, name: str) -> None:
    """Wait until a figure of what is chosen is painted: a section is built, and follows, when it is seen."""
    for section in page.locator(".section:visible").all():
        if page.locator(f"#{name}").count():
            break
        look_at(section)
    look_at(page.locator(f"#{name}"))
    expect(page.locator(f"#{name} .main-svg").first).to_be_visible()


def open_panel(page: Page, name: str) -> None:
    """Open one of the bar's panels: "tensor", "a" or "b"."""
    page.locator(f"#chips [data-panel={name}]:visible").click()
    expect(page.locator(f"#panel-{name} select").first).to_be_visible()


def leave_panel(page: Page) -> None:
    """Keys are the page's again, not a control's."""
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement?.blur()")


def load_file(page: Page, path: Path) -> None:
    """Pick a file by the browser's own picker."""
    with page.expect_file_chooser() as chooser:
        page.locator("#drop [data-open=file]").click()
    chooser.value.set_files(str(path))


def drop(page: Page, path: Path, target: str = "#drop") -> None:
    """Drop a file onto the page."""
    transfer = page.evaluate_handle(
        """([name, bytes]) => { const t = new DataTransfer();
        t.items.add(new File([new Uint8Array(bytes)], name)); return t; }""",
        [path.name, list(path.read_bytes())],
    )
    page.dispatch_event(target, "dragover", {"dataTransfer": transfer})
    page.dispatch_event(target, "drop", {"dataTransfer": transfer})


def point_of(page: Page, scheme: str) -> tuple[float, float]:
    """Where the frontier's point of a scheme is painted."""
    x, y = page.evaluate(
        """scheme => { const p = document.querySelector('#frontier .figure'), l = p._fullLayout;
        const box = p.getBoundingClientRect();
        for (const t of p._fullData) if (t.customdata) for (const [i, who] of t.customdata.entries())
          if (who[1] === scheme) return [box.left + l._size.l + l.xaxis.d2p(t.x[i]),
            box.top + l._size.t + l.yaxis.d2p(t.y[i])]; }""",
        scheme,
    )
    return x, y


def click(page: Page, target: Locator) -> None:
    """Where a hand sees it, which a locator's own click does not: at coordinates, with nothing over it."""
    look_at(target)
    box = target.bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def route_requests(page: Page, handler: Callable[[Route], object]) -> None:
    """Give each request for a view, an act or a run to ``handler``, from the next one on, on a page that is
    open. Chromium tells a page of its routes some time after ``page.route`` has returned: so wait until a
    request that means nothing is held."""

    def handle(route: Route) -> None:
        if "queue/join" in route.request.url.partition("?")[2]:
            route.fulfill(headers={"x-routed": "yes"})
        else:
            handler(route)

    page.route(ASKED, handle)
    probe = "fetch('favicon.ico?queue/join').then(answer => answer.headers.get('x-routed'))"
    for _ in range(1000):
        if page.evaluate(probe):
            return
    raise AssertionError("no request comes by the route")


def acts_of(request: Request) -> set[str]:
    """What a request chooses; nothing for those of sections."""
    return set(re.findall(r'\\"do\\":\\"(\w+)', request.post_data or ""))


def is_act(request: Request) -> bool:
    return bool(ASKED.search(request.url) and acts_of(request))


class Held:
    """Requests that choose something are held back, until they are let go one by one, or all."""

    def __init__(self, page: Page, which: Callable[[Request], bool] = is_act) -> None:
        self.page, self.which, self.waiting, self.free = page, which, list[Route](), 0
        route_requests(page, self._take)

    def _take(self, route: Route) -> None:
        if self.free > 0 and self.which(route.request):
            self.free -= 1
            route.continue_()
        elif self.which(route.request):
            self.waiting.append(route)
        else:
            route.continue_()

    def during(self, act: Callable[[], object]) -> None:
        """Do ``act`` and wait until its request is on its way."""
        with self.page.expect_request(self.which):
            act()

    def let_go(self) -> None:
        """One of them, the next to come where none waits."""
        if self.waiting:
            self.waiting.pop(0).continue_()
        else:
            self.free += 1

    def end(self) -> None:
        """All of them, and those that follow."""
        self.which = lambda _: False
        for route in self.waiting:
            route.continue_()
        self.page.unroute_all()
