"""Response time of the page in headless Chromium: from a click or a key press to the painted result.

The frame rate is not limited to 60 Hz, so times do not include a wait for the display. A result is painted
two frames after the last change that an action causes.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.browser import Browser, chromium, chromium_path, playwright_api
from explorer.paths import checkout
from explorer.recordings.files import Recording, recorded
from explorer.sources.samples import SAMPLES

NAME = "page"
TENSORS = ("mlp_up", "normal_4096")
"""The built-in layer that the page opens with, and 4096 × 4096 values."""
OPENING, UPDATES = "open the page", "updates in a row"
"""Measurements in addition to ``ACTIONS``."""
WARM_UP_UPDATES = 20
"""Updates before the memory is read for the first time: caches and compiled code are in place then."""
DRAWN_FIRST = ("#frontier .figure",)
"""Figures on the screen when the page opens; those further down are drawn when they come near."""
FIGURES = "#frontier .figure, #values-plot .figure, #error-plot .figure, #error-map .figure"
FIRST_SCREEN = "#section-frontier"
INSPECTOR = "#section-inspector"
ANSWER, SHORTLIST = (f"{FIRST_SCREEN} [data-slot={name}]" for name in ("said", "listed"))
"""Slots whose content every answer replaces."""
SELECTION = f"{ANSWER}, {SHORTLIST}, #verdict, #numbers, {FIGURES}, {INSPECTOR}"
WAIT_MS = 60_000


@dataclass(frozen=True)
class Action:
    """Action of a visitor: timing starts at ``event``, ``act`` triggers it (on the page, for the repeat of
    that number), ``watch`` selects the changing elements, and each of ``changed`` has to change."""

    event: str
    act: Callable[[Browser, int], None]
    watch: str
    changed: tuple[str, ...]
    prepare: Callable[[Browser, int], None] = lambda page, repeat: None


@dataclass(frozen=True)
class PageTiming:
    """One action with one tensor (empty where it has none).

    Seconds from the event to the painted answer, all of it: median and extremes of the repeats; ``first_s``:
    median to the first painted change, and of opening the page to the first painted contents.
    ``received_bytes``: median of what the server sent. ``layout_shift``: the largest sum of the repeats, as
    the Layout Instability API scores it, those after an input included. ``longest_task_s``: of the main
    thread, 0 below 50 ms. ``heap_growth``: the JavaScript heap's ratio of the end of ``repeats`` updates to
    that after ``WARM_UP_UPDATES`` of them.
    """

    action: str
    tensor: str
    repeats: int
    median_s: float
    low_s: float
    high_s: float
    first_s: float
    received_bytes: float
    layout_shift: float
    longest_task_s: float
    heap_growth: float | None = None


@dataclass(frozen=True)
class Answer:
    """One measured repeat: milliseconds, bytes, and the Layout Instability score."""

    whole: float
    first: float
    shift: float
    task: float
    received: float


def recorded_page() -> Recording[PageTiming]:
    """The recording in ``assets/measurements/page.json``; empty if it was never recorded."""
    return recorded(NAME, PageTiming)


def summary(action: str, tensor: str, answers: Sequence[Answer], growth: float | None = None) -> PageTiming:
    """The row of some repeats; ``ValueError`` for none."""
    if not answers:
        raise ValueError(f"nothing was measured of {action!r}")
    whole = sorted(answer.whole * 1e-3 for answer in answers)
    return PageTiming(
        action,
        tensor,
        len(answers),
        statistics.median(whole),
        whole[0],
        whole[-1],
        statistics.median(answer.first for answer in answers) * 1e-3,
        statistics.median(answer.received for answer in answers),
        max(answer.shift for answer in answers),
        max(answer.task for answer in answers) * 1e-3,
        growth,
    )


# --- what a visitor does ------------------------------------------------------------------------------


def _key(key: str) -> Callable[[Browser, int], None]:
    return lambda page, repeat: page.keyboard.press(key)


def _click(selector: str) -> Callable[[Browser, int], None]:
    return lambda page, repeat: page.locator(selector).click()


def _open_second(page: Browser, repeat: int) -> None:
    page.locator("#chips [data-panel=b]").click()
    page.locator("#pick-b").click()
    page.locator("#panel-b [role=option]").nth(1).wait_for()


def _choose_second(page: Browser, repeat: int) -> None:
    text = ("mxfp6_e2m3", "int8_row")[repeat % 2]
    page.locator(f"#panel-b [role=option][data-text={text}]").last.click()


def _close_panels(page: Browser, repeat: int) -> None:
    """Leave the controls: keys that are pressed in a box are text."""
    page.evaluate("() => { explorer.closePanels(); document.activeElement.blur(); }")
    page.wait_for_timeout(300)  # what the panel covered has moved back


def _focus_element(page: Browser, repeat: int) -> None:
    page.locator("#section-element").scroll_into_view_if_needed()  # a section is built when it is seen
    for part in ("#error-map .main-svg", "#inspector h3"):
        page.locator(part).first.wait_for()
    page.locator("#error-map .figure").focus()
    page.wait_for_timeout(1500)  # what the focus has scrolled near is drawn


def _hover_map(page: Browser, repeat: int) -> None:
    """A figure takes clicks where it has noticed the mouse."""
    page.locator("#section-element").scroll_into_view_if_needed()
    area = page.locator("#error-map .nsewdrag").first
    area.evaluate("e => e.scrollIntoView({block: 'center'})")  # the bar lies over the window's top
    page.wait_for_timeout(1500)  # as above
    box = area.bounding_box()
    x, y = box["x"] + box["width"] * (0.2 + 0.13 * (repeat % 5)), box["y"] + box["height"] * 0.5
    page.mouse.move(x, y)
    page.locator("#section-element .map-tip").wait_for()


def _click_here(page: Browser, repeat: int) -> None:
    page.mouse.down()
    page.mouse.up()


_PAIR = (ANSWER, SHORTLIST, *DRAWN_FIRST)
_ELEMENT = f"{INSPECTOR}, #values-plot .figure"
ACTIONS: dict[str, Action] = {
    "scheme A by key": Action("keydown", _key("]"), SELECTION, _PAIR, _close_panels),
    "scheme B set": Action("mousedown", _choose_second, SELECTION, (ANSWER,), _open_second),
    "swap A and B": Action("keydown", _key("x"), SELECTION, _PAIR, _close_panels),
    "element by arrow key": Action("keydown", _key("ArrowRight"), _ELEMENT, (INSPECTOR,), _focus_element),
    "element by a click on the map": Action("click", _click_here, _ELEMENT, (INSPECTOR,), _hover_map),
    "scheme B removed": Action("click", _click("#chips [data-command=clear]"), SELECTION, (ANSWER,)),
    "place changed": Action("click", _click("nav [data-place=learn]"), "html", ("html",)),
    "bit flipped in Learn": Action(
        "click", _click("#toy button[data-bit='0']"), "#place-learn", ("#toy-value",)
    ),
}
"""By name, in an order in which each finds the page as it needs it."""


# --- measuring ----------------------------------------------------------------------------------------

SCRIPT = """
window.bench = {
  shifts: [], tasks: [], run: null,
  start(event, watch, changed) {
    const run = bench.run = {from: null, first: null, last: null, missing: new Set(changed), observer: null};
    const begin = e => { run.from = e.timeStamp; };
    addEventListener(event, begin, {capture: true, once: true});
    run.observer = new MutationObserver(changes => {
      if (run.from === null) return;
      for (const selector of [...run.missing]) {
        const box = document.querySelector(selector);
        if (changes.some(change => box && (box === change.target || box.contains(change.target)))) {
          run.missing.delete(selector);
        }
      }
      requestAnimationFrame(() => requestAnimationFrame(() => {
        run.last = performance.now();
        run.first ??= run.last;
      }));
    });
    for (const box of document.querySelectorAll(watch)) {
      const deep = box !== document.documentElement;
      run.observer.observe(box, {childList: deep, subtree: deep, characterData: deep, attributes: true});
    }
  },
  done(quiet) {
    const run = bench.run;
    return run.last !== null && !run.missing.size && performance.now() - run.last > quiet;
  },
  stop() {
    const run = bench.run, since = entries => entries.filter(entry => entry.end >= run.from);
    run.observer.disconnect();
    return {whole: run.last - run.from, first: run.first - run.from,
      shift: since(bench.shifts).reduce((sum, entry) => sum + entry.value, 0),
      task: Math.max(0, ...since(bench.tasks).map(entry => entry.value))};
  },
};
new PerformanceObserver(list => bench.shifts.push(...list.getEntries().map(entry =>
  ({end: entry.startTime, value: entry.value})))).observe({type: 'layout-shift', buffered: true});
new PerformanceObserver(list => bench.tasks.push(...list.getEntries().map(entry =>
  ({end: entry.startTime + entry.duration, value: entry.duration})))
).observe({type: 'longtask', buffered: true});
"""


class Meter:
    """A window of the browser with the page in it, and the bytes that it has received."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.url, self.received = url, 0.0
        self.page = browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
        self.page.set_default_timeout(WAIT_MS)
        self.page.add_init_script(SCRIPT)
        self.devtools = self.page.context.new_cdp_session(self.page)
        self.devtools.send("Network.enable")
        self.devtools.on("Network.dataReceived", self._count)

    def _count(self, event: dict[str, Any]) -> None:
        self.received += event["dataLength"]

    def open(self, tensor: str) -> Answer:
        """Open the page anew with a built-in tensor; times count from the navigation."""
        self.received = 0.0
        self.page.goto(f"{self.url}/" if tensor == TENSORS[0] else f"{self.url}/?sample={tensor}")
        self.page.wait_for_function("window.explorer?.ready")
        first = self.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        for figure in DRAWN_FIRST:
            self.page.wait_for_function("name => document.querySelector(name)?._fullLayout", arg=figure)
        whole = self.page.evaluate("performance.now()")
        self.page.wait_for_timeout(2000)
        totals = self.page.evaluate(
            "() => [bench.shifts.reduce((sum, entry) => sum + entry.value, 0),"
            " Math.max(0, ...bench.tasks.map(entry => entry.value))]"
        )
        return Answer(whole, first, totals[0], totals[1], self.received)

    def measure(self, action: Action, repeat: int, quiet_ms: int = 500) -> Answer:
        """Do it once and wait until nothing has changed for ``quiet_ms``."""
        try:
            action.prepare(self.page, repeat)
            self.received = 0.0
            arguments = [action.event, action.watch, action.changed]
            self.page.evaluate("args => bench.start(...args)", arguments)
            action.act(self.page, repeat)
            self.page.wait_for_function("quiet => bench.done(quiet)", arg=quiet_ms)
        except playwright_api().TimeoutError as error:
            reason = str(error).splitlines()
            raise ValueError(
                f"no answer of the page in {WAIT_MS / 1000:g} s: {reason[0]} {reason[-1]}"
            ) from error
        return Answer(**self.page.evaluate("bench.stop()"), received=self.received)

    def heap(self) -> float:
        """Bytes of the JavaScript heap that are in use after a collection."""
        self.devtools.send("HeapProfiler.collectGarbage")
        return float(self.devtools.send("Runtime.getHeapUsage")["usedSize"])


def time_page(
    url: str | None, tensors: Sequence[str], actions: Sequence[str], repeats: int, updates: int
) -> Iterator[PageTiming]:
    """Open the page with each tensor, do each of ``actions`` so many times after one that does not count, and
    then ``updates`` changes of the scheme in a row, with the first tensor. Without ``url`` the page of this
    checkout is started for it."""
    with serving(url) as address, chromium() as browser:
        for tensor in tensors:
            meter = Meter(browser, address)
            yield summary(OPENING, tensor, [meter.open(tensor)])
            answers: dict[str, list[Answer]] = {name: [] for name in actions}
            for repeat in range(repeats + 1):
                for name in actions:
                    answers[name].append(_done(meter, name, repeat))
                _back_to_tensor(meter.page)
            for name in actions:
                yield summary(name, tensor, answers[name][1:])
            meter.page.close()
        if updates:
            yield _memory(Meter(browser, address), tensors[0], updates)


def _done(meter: Meter, name: str, repeat: int) -> Answer:
    try:
        return meter.measure(ACTIONS[name], repeat)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _back_to_tensor(page: Browser) -> None:
    page.locator("nav [data-place=tensor]").click()
    page.evaluate("scrollTo(0, 0)")


def _memory(meter: Meter, tensor: str, updates: int) -> PageTiming:
    meter.open(tensor)
    step = ACTIONS["scheme A by key"]
    for repeat in range(WARM_UP_UPDATES):
        meter.measure(step, repeat, 50)
    before = meter.heap()
    answers = [meter.measure(step, repeat, 50) for repeat in range(updates)]
    return summary(UPDATES, tensor, answers, meter.heap() / before)


@contextmanager
def serving(url: str | None, file: Path | None = None) -> Iterator[str]:
    """The address of a running page: ``url``, or the checkout's page, started and in the end stopped; the
    address that opens on ``file``, if that is given."""
    if url:
        yield url.rstrip("/")
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1"}
    command = [sys.executable, "app.py"]
    if file is not None:
        command = [sys.executable, "-m", "explorer", "page", str(file), "--port", str(port)]
    out = subprocess.DEVNULL if file is None else subprocess.PIPE
    server = subprocess.Popen(command, cwd=checkout(), env=environment, stdout=out, text=True)
    try:
        if server.stdout is not None:
            yield _printed(server.stdout)
        else:
            yield _answering(server, f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait(20)


def _printed(lines: Iterable[str]) -> str:
    """The address that ``explorer page`` prints once it serves; ``ValueError`` if it ends before."""
    for line in lines:
        if line.startswith(ANNOUNCED):
            return line.removeprefix(ANNOUNCED).strip()
    raise ValueError("the page did not start; see what `explorer page FILE` says")


ANNOUNCED = "Quantization Explorer: "


def _answering(server: subprocess.Popen[str], address: str, seconds: float = 120) -> str:
    """``address`` once it answers; ``ValueError`` if the server has ended or takes longer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return address
        except OSError:
            time.sleep(0.1)
    raise ValueError("the page did not start; see what `python app.py` says")


def chromium_version() -> str:
    """The browser's version: "150.0.1"."""
    said = subprocess.run([chromium_path(), "--version"], capture_output=True, text=True, check=True).stdout
    return next((word for word in said.split() if word[0].isdigit()), said.strip())


def check(tensors: Sequence[str], actions: Sequence[str], repeats: int, updates: int) -> None:
    """``ValueError`` for unknown names, and for counts that are too small to measure."""
    for what, names, known in (("built-in tensor", tensors, SAMPLES), ("action", actions, ACTIONS)):
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"no {what} {unknown[0]!r}; there are {', '.join(known)}")
    if not tensors:
        raise ValueError("name at least one built-in tensor")
    if repeats < 1 or updates < 0:
        raise ValueError(f"expected repeats from 1 and updates from 0, got {repeats} and {updates}")
