"""``make load``: visitors of a page that this command starts itself on a port of this machine.

    python -m tests.load.run --visitors 64 --minutes 60 [--record docs/load.md]

Prints, and with ``--record`` writes to a file: answers by kind and by how they ended, the 50th and 95th
percentile and the most of seconds, and the memory, threads, descriptors and disk of the server with their
slopes. Exits with 1 if an answer was wrong or lost, the server failed, or more than half of the answers were
refused; in a run of ``JUDGED_SECONDS`` and more also if more than half of one kind were, or something of the
server grew faster than ``FLAT`` allows. Interrupted, it reports what there is by then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import httpx
import numpy as np
import psutil

from explorer.core.backend import work_device
from explorer.recordings.machine import this_machine
from tests.load.visitor import Answer, Server, Visitor

ROOT = Path(__file__).resolve().parents[2]
SETTLED_SECONDS = 600
"""Caches of 64 visitors fill for so long; slopes are taken afterwards."""
JUDGED_SECONDS = 1800
"""A shorter run's slopes and its shares of a kind are noise, and are shown only."""
FLAT = {"memory": 100.0, "threads": 6.0, "descriptors": 12.0, "disk": 200.0}
"""What counts as flat: growth an hour, in MB and in pieces."""
UNITS = {"memory": 1e6, "threads": 1.0, "descriptors": 1.0, "disk": 1e6}
"""How much one of what is shown is: megabytes, or pieces."""


@dataclass(frozen=True)
class Sample:
    """The server at one moment: seconds since the start, bytes of memory, threads, descriptors, bytes on
    disk."""

    at: float
    memory: int
    threads: int
    descriptors: int
    disk: int


@dataclass
class Seen:
    """What a run has brought so far."""

    answers: list[Answer] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--visitors", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--most-mb", type=float, default=64, help="the largest upload")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the page of docs/ here")
    asked = parser.parse_args()
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        failures = run(asked.visitors, asked.minutes * 60, int(asked.most_mb * 2**20), Path(folder), seen)
    answers, samples = seen.answers, seen.samples
    if not samples:
        print("interrupted before the page answered", file=sys.stderr)
        return 1
    text = report(asked.visitors, samples[-1].at / 60, answers, samples)
    print(text)
    if asked.record:
        asked.record.write_text(text, encoding="utf-8")
    grown = [what for what, slope in slopes(samples).items() if slope > FLAT[what]]
    if samples[-1].at < JUDGED_SECONDS:
        grown = []
    for what in grown:
        print(f"not flat: {what}", file=sys.stderr)
    scarce = refused_mostly(answers, samples[-1].at)
    for what in scarce:
        print(f"refused mostly: {what}", file=sys.stderr)
    return int(failures > 0 or bool(grown or scarce) or any(map(bad, answers)))


def slopes(samples: Sequence[Sample]) -> dict[str, float]:
    """Growth an hour of each of ``UNITS``, in its unit, by least squares over what came after
    ``SETTLED_SECONDS`` (over the second half of a shorter run)."""
    late = [s for s in samples if s.at > min(SETTLED_SECONDS, samples[-1].at / 2)]
    hours = [s.at / 3600 for s in late]
    return {
        what: float(np.polyfit(hours, [getattr(s, what) / scale for s in late], 1)[0])
        for what, scale in UNITS.items()
    }


def bad(answer: Answer) -> bool:
    """Neither right, nor refused by a limit, nor left by the visitor."""
    return not (right(answer) or answer.how.startswith("refused: "))


def right(answer: Answer) -> bool:
    """As it should be, or left by the visitor once the server had begun to answer."""
    return answer.how in ("right", "aborted")


def refused_mostly(answers: Sequence[Answer], seconds: float) -> list[str]:
    """The kinds of which less than half of the answers were right in a run of so many seconds; "all" for all
    together, alone in a run shorter than ``JUDGED_SECONDS``, and where there is no answer."""
    of_kind: dict[str, list[bool]] = {"all": [right(answer) for answer in answers]}
    for answer in answers if seconds >= JUDGED_SECONDS else ():
        of_kind.setdefault(answer.kind, []).append(right(answer))
    return [kind for kind, own in of_kind.items() if not own or 2 * sum(own) < len(own)]


def run(visitors: int, seconds: float, most: int, folder: Path, seen: Seen) -> int:
    """Start the page as a hosted one, let visitors in, and end it, early on Ctrl-C; how many tracebacks it
    printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port), "GRADIO_TEMP_DIR": str(folder)}
    environment |= {"EXPLORER_HOSTED": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "app.py"], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        asyncio.run(_visits(f"http://127.0.0.1:{port}/", server, visitors, seconds, most, folder, seen))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        server.terminate()
        server.wait(30)
    log_text = (folder / "log").read_text()
    failures = log_text.count("Traceback")
    if failures:
        print(log_text[-4000:], file=sys.stderr)
    return failures


async def _visits(
    url: str,
    server: subprocess.Popen[bytes],
    visitors: int,
    seconds: float,
    most: int,
    folder: Path,
    seen: Seen,
) -> None:
    # The server closes a connection that rests for 5 s; a request that meets this is sent again by browsers.
    limits, timeout = httpx.Limits(max_connections=None, keepalive_expiry=3), httpx.Timeout(300)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) as client:
        await _up(client, server)
        page = Server(client)
        await page.learn()
        # Small files are the rule, large ones the exception. What each is to be answered is computed before.
        sizes = [most if seed % 16 == 15 else max(1 << 18, most // 32) for seed in range(visitors)]
        crowd = [Visitor(page, seed, size) for seed, size in enumerate(sizes)]
        start = time.monotonic()

        async def one(seed: int, visitor: Visitor) -> None:
            """Let a visitor in from an address of its own, as through a proxy."""
            own = {"x-forwarded-for": f"10.0.{seed // 250}.{seed % 250 + 1}"}
            async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits, headers=own) as mine:
                visitor.server = Server(mine, page.numbers, page.sections)
                async for answer in visitor.visit(start + seconds):
                    seen.answers.append(answer)

        async def watch() -> None:
            process = psutil.Process(server.pid)
            while True:
                disk = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
                seen.samples.append(
                    Sample(
                        time.monotonic() - start,
                        process.memory_info().rss,
                        process.num_threads(),
                        process.num_fds(),
                        disk,
                    )
                )
                await asyncio.sleep(5)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(one(seed, visitor) for seed, visitor in enumerate(crowd)))
        watching.cancel()


async def _up(client: httpx.AsyncClient, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            if (await client.get("health")).status_code == 200:
                return
        except httpx.HTTPError:
            if server.poll() is not None:
                raise RuntimeError("the page did not start") from None
        await asyncio.sleep(0.1)
    raise RuntimeError("the page did not answer within a minute")


def report(visitors: int, minutes: float, answers: list[Answer], samples: list[Sample]) -> str:
    """What was measured, as a page of docs/."""
    by_kind: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_kind[answer.kind].append(answer)
    machine = this_machine(work_device(), ("gradio", "transformers"))
    lines = [
        "# Load",
        "",
        f"Measured {date.today()} by `make load`: {visitors} visitors for {minutes:.3g} minutes, on "
        f"{machine.describe()}. Every visitor has a tensor of its own in a file called `w.safetensors`; "
        "its errors, as an answer shows them (*tensor*, *reload*, *frontier*, *values*), are compared with "
        "the library's. *Report* is of a built-in tensor, and compared likewise. Of an *upload* the last "
        "bytes are read back, of the *page* the title and the script are checked. A *hostile* file is to be "
        "refused in words; *abort* leaves as soon as the server has begun to answer.",
        "",
        "| request | answers | right | refused | wrong, lost or failed | p50 s | p95 s | most s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, own in sorted(by_kind.items()):
        took = np.percentile([a.seconds for a in own], [50, 95, 100])
        good, wrong = sum(map(right, own)), sum(map(bad, own))
        lines.append(
            f"| {kind} | {len(own)} | {good} | {len(own) - good - wrong} | {wrong} "
            f"| {took[0]:.2f} | {took[1]:.2f} | {took[2]:.2f} |"
        )
    lines += [
        "",
        "| of the server | at the start | at the end | slope after ten minutes |",
        "|---|---|---|---|",
    ]
    for what, slope in slopes(samples).items():
        unit = " MB" if UNITS[what] > 1 else ""
        first, last = (getattr(s, what) / UNITS[what] for s in (samples[0], samples[-1]))
        lines.append(
            f"| {what} | {first:.0f}{unit} | {last:.0f}{unit} | {slope:+.1f}{unit} an hour |".replace(
                "-", "−"
            )
        )
    marks = [minutes for minutes in (5, 10, 20, 30, 40, 50, 60) if minutes * 60 <= samples[-1].at]
    if marks:
        at = [min(samples, key=lambda sample: abs(sample.at - mark * 60)) for mark in marks]
        grown = ", ".join(f"{s.memory / 1e6:.0f}" for s in at)
        lines += ["", f"Memory after {', '.join(map(str, marks))} minutes: {grown} MB."]
    ends = Counter(a.how if bad(a) else a.how.split(":")[0] for a in answers)
    lines += [
        "",
        "How they ended: " + "; ".join(f"{how} {count}" for how, count in ends.most_common()) + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
