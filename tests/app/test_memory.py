"""What the page's process holds after large tensors are gone.

If it fails, the page of many visitors takes gigabytes that nothing uses, until it is killed.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

PROGRAM = """
import sys, threading, psutil
from app.serving.memory import return_large_blocks, return_small_holes
assert return_large_blocks()
rss = psutil.Process().memory_info
def large(kept, gone):
    for _ in range(30):
        gone.append(torch.ones(1 << 20))
        kept.append(bytes(60_000))
        torch.ones(1 << 21)
def small(kept, gone):
    for _ in range(10_000):
        gone.append(b"x" * 20_000)
        kept.append(bytes(600))
if sys.argv[1] == "large":
    import torch
work, kept, gone = globals()[sys.argv[1]], [], []
before = rss().rss
threads = [threading.Thread(target=work, args=(kept, gone)) for _ in range(int(sys.argv[2]))]
[t.start() for t in threads], [t.join() for t in threads]
full = rss().rss - before
gone.clear()
assert work is large or return_small_holes()
print(full, rss().rss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the option and the call are glibc's")
@pytest.mark.parametrize(
    ("what", "threads", "least", "most"),
    [pytest.param("large", 4, 400e6, 60e6, marks=pytest.mark.thorough), ("small", 2, 350e6, 150e6)],
)
def test_what_is_free_is_given_back(what: str, threads: int, least: float, most: float) -> None:
    """Tensors of 1 GB, or small blocks of 400 MB, between others that stay: else nearly all is kept."""
    command = [sys.executable, "-c", PROGRAM, what, str(threads)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    full, left = map(int, done.stdout.split())
    assert full > least and left < most
