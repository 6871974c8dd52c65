"""First numbers of a large file on the page, in headless Chromium: those of a sample, and the whole tensor's
after them."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from explorer.browser import Browser, chromium, playwright_api
from explorer.recordings.files import Recording, recorded
from lab.page import SCRIPT, serving

NAME = "first-numbers"
SIZES = ((7680, 7680), (15360, 15360))
"""Shapes of float32 files: 59 and 236 M elements."""
OPENED, FILE, KEY = "the page opens on it", "a file is chosen", "scheme A by key"
NUMBERS = "#section-frontier .right"
"""The answer, the frontier and the table."""
OUTLIERS = 40
WAIT_MS = 300_000

WATCH = """
([event, box]) => {
  const run = bench.run = {from: null, first: null, whole: null};
  addEventListener(event, e => { run.from ??= e.timeStamp; }, {capture: true, once: true});
  new MutationObserver(() => requestAnimationFrame(() => requestAnimationFrame(() => {
    if (run.from === null || run.whole !== null) return;
    const text = document.querySelector(box).textContent;
    if (text.includes('≈')) run.first ??= performance.now();
    else if (run.first !== null && text.includes('dB')) run.whole = performance.now();
  }))).observe(document.querySelector(box), {childList: true, subtree: true, characterData: true});
}
"""
"""Notes when numbers that are marked as a sample's are painted, and when they have given way."""
FIRST = """
() => {
  const said = document.querySelector('#shortlist')?.textContent;
  return said?.includes('≈') ? performance.now() : null;
}
"""
"""The milliseconds at which a sample's numbers stand there."""
WHOLE = "box => explorer.ready && !document.querySelector(box).textContent.includes('≈')"


@dataclass(frozen=True)
class FirstNumbers:
    """One act with a float32 .npy file of ``shape``: median, least and most seconds from the event to painted
    numbers of the sample, and median seconds to the whole tensor's. Of a file that is chosen the time of its
    upload, over the loopback interface, is within; of a page that opens on one, times begin with the
    navigation to the address of `explorer page FILE`."""

    act: str
    shape: tuple[int, int]
    repeats: int
    first_s: float
    low_s: float
    high_s: float
    whole_s: float


def recorded_first_numbers() -> Recording[FirstNumbers]:
    """The recording in ``assets/measurements/first-numbers.json``; empty if it was never recorded."""
    return recorded(NAME, FirstNumbers)


def row_of(act: str, shape: tuple[int, int], times: Sequence[tuple[float, float]]) -> FirstNumbers:
    """The row of some repeats, pairs of seconds to the first and to all numbers; ``ValueError`` for none."""
    if not times:
        raise ValueError(f"nothing was measured of {act!r}")
    first, whole = zip(*times, strict=True)
    median = statistics.median
    return FirstNumbers(act, shape, len(times), median(first), min(first), max(first), median(whole))


def time_first_numbers(
    url: str | None, shapes: Sequence[tuple[int, int]], repeats: int
) -> Iterator[FirstNumbers]:
    """Choose a file of each shape on the page, and then change A ``repeats`` times, each once the numbers of
    the whole tensor are there. Without ``url`` the page of this checkout is started for it, and before that
    one that opens on the file."""
    with serving(url) as address, chromium() as browser, tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            file = random_file(Path(folder) / f"{shape[0]}x{shape[1]}.npy", shape)
            if not url:
                with serving(None, file) as own:
                    yield row_of(OPENED, shape, [_opened(browser, own)])
            page = browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
            page.set_default_timeout(WAIT_MS)
            page.add_init_script(SCRIPT)
            page.goto(f"{address}/")
            page.wait_for_function("window.explorer?.ready")
            page.wait_for_timeout(3000)  # the first screen's figures are drawn
            opened = _timed(page, "change", partial(_choose, file=file))
            yield row_of(FILE, shape, [opened])
            yield row_of(KEY, shape, [_timed(page, "keydown", _press) for _ in range(repeats)])
            page.close()
            file.unlink()


def random_file(path: Path, shape: tuple[int, int]) -> Path:
    """A .npy file of float32 values of a normal distribution, from a fixed seed, written in runs of rows.
    Three rows have values 40 times as large: an even sample would seldom meet them."""
    values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    generator = np.random.default_rng(0)
    for row in range(0, shape[0], 256):
        values[row : row + 256] = generator.standard_normal(values[row : row + 256].shape, np.float32)
    values[[shape[0] * part // 4 for part in (1, 2, 3)]] *= OUTLIERS
    values.flush()
    return path


def _opened(browser: Browser, address: str) -> tuple[float, float]:
    """Seconds from the navigation to a sample's numbers and to all; ``ValueError`` without the first."""
    page = browser.new_page(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page.set_default_timeout(WAIT_MS)
    page.goto(address, wait_until="commit")
    first = page.wait_for_function(FIRST).json_value()
    page.wait_for_function(WHOLE, arg=NUMBERS)
    whole = page.evaluate("performance.now()")
    page.close()
    return first / 1000, whole / 1000


def _choose(page: Browser, file: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.locator("#drop [data-open=file]").click()
    chooser.value.set_files(str(file))


def _press(page: Browser) -> None:
    page.evaluate("() => { explorer.closePanels(); document.activeElement.blur(); }")
    page.keyboard.press("]")


def _timed(page: Browser, event: str, act: Callable[[Browser], None]) -> tuple[float, float]:
    """Seconds to the first numbers and to all; ``ValueError`` where they do not come."""
    page.evaluate(WATCH, [event, NUMBERS])
    act(page)
    try:
        page.wait_for_function("bench.run.whole !== null")
    except playwright_api().TimeoutError as error:
        run = page.evaluate("bench.run")
        raise ValueError(f"no numbers of the whole tensor in {WAIT_MS / 1000:g} s: {run}") from error
    run = page.evaluate("bench.run")
    page.wait_for_timeout(3000)  # figures that follow the numbers
    return (run["first"] - run["from"]) / 1000, (run["whole"] - run["from"]) / 1000
