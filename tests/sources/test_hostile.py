"""Hostile files: each is refused in the explorer's own words, in little time and little memory.

If this fails, a stranger's file of a few hundred bytes takes the page's memory, holds up everyone else, or
shows a traceback.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from explorer import SourceError
from explorer.sources.limits import HOSTED, SUFFIXES
from explorer.sources.models import layers
from explorer.sources.tensors import open_tensors
from tests.fuzz.bounds import fault
from tests.sources.hostile import HOSTILE

MOST = 1 << 20
LIMITS = dataclasses.replace(HOSTED, suffixes=SUFFIXES, tensors=20_000, inflated_bytes=1 << 29)
"""Those of a page, and .pt files, which it does not take."""


def read_all(path: Path) -> None:
    """List a file's tensors and read its first three: what a visitor of the page makes it do."""
    source = open_tensors(path, limits=LIMITS)
    for info in layers(source)[:3]:
        source.matrix(info.name, max_elements=MOST)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_answer_or_a_refusal(name: str, tmp_path: Path) -> None:
    """Never a hang, a large allocation, or another library's exception."""
    path = tmp_path / name
    path.write_bytes(HOSTILE[name]())
    assert fault(lambda: read_all(path), (SourceError,), seconds=5, megabytes=400) is None
