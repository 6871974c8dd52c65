"""CONTRIBUTING.md as a newcomer follows it: each section's Python runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = dict(
    re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (ROOT / "CONTRIBUTING.md").read_text(), re.S | re.M)
)


def blocks(text: str) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)


def run_python(code: str) -> None:
    """Run ``code`` in a process of its own: what it registers is gone afterwards."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_every_kind_of_addition_is_walked_through() -> None:
    """A section that lost its example would be tested by nothing."""
    wanted = {"A format", "A scheme", "A calibrator", "A method", "A GEMM", "A section of the page"}
    assert {title for title, text in SECTIONS.items() if blocks(text)} == wanted


@pytest.mark.parametrize("title", [title for title, text in SECTIONS.items() if blocks(text)])
def test_the_example_works(title: str) -> None:
    """If it fails, the guide tells people to do what does not work."""
    run_python("\n".join(blocks(SECTIONS[title])))
