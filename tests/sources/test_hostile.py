"""Hostile files: each is refused in the explorer's own words, in little time and little memory.

If this fails, a stranger's file of a few hundred bytes takes the page's memory, holds up everyone else, or
shows a traceback.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from explorer import SourceError, open_source
from explorer.sources.models import layers
from explorer.sources.source_limits import HOSTED, SUFFIXES
from tests.fuzz.bounds import fault
from tests.sources.hostile import HOSTILE, framed

MOST = 1 << 20
LIMITS = dataclasses.replace(HOSTED, folders=True, suffixes=SUFFIXES, tensors=20_000, inflated_bytes=1 << 29)
"""Those of a page, with .pt and GGUF files, which it does not take."""
LONGEST_ANSWER = 400


def read_all(path: Path) -> None:
    """List a file's tensors and read its first three: what a visitor of the page makes it do."""
    source = open_source(str(path), limits=LIMITS)
    for info in layers(source)[:3]:
        source.matrix(info.name, max_elements=MOST)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_answer_or_a_refusal(name: str, tmp_path: Path) -> None:
    """Never a hang, a large allocation, or another library's exception."""
    path = tmp_path / name
    path.write_bytes(HOSTILE[name]())
    assert fault(lambda: read_all(path), (SourceError,), seconds=5, megabytes=400) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_a_refusal_is_a_line_to_read(name: str, tmp_path: Path) -> None:
    """Values of the file are cut: a message of kilobytes, or with the file's line breaks in it, is none."""
    path = tmp_path / name
    path.write_bytes(HOSTILE[name]())
    try:
        read_all(path)
    except SourceError as refusal:
        said = str(refusal)
        assert len(said) <= LONGEST_ANSWER and said.isprintable() and str(tmp_path) not in said


TWICE = {
    "name": '{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},'
    '"w":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}}',
    "key": '{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"data_offsets":[16,32]}}',
    "bytes": '{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},'
    '"v":{"dtype":"F32","shape":[4],"data_offsets":[12,28]}}',
}


@pytest.mark.parametrize("what", TWICE)
def test_nothing_of_a_safetensors_header_is_said_twice(what: str, tmp_path: Path) -> None:
    """Of two tensors of one name, or in the same bytes, another program may read the other one. The format
    forbids both (huggingface.co/docs/safetensors: "Format")."""
    path = tmp_path / "w.safetensors"
    path.write_bytes(framed(TWICE[what].encode(), bytes(32)))
    with pytest.raises(SourceError, match="twice"):
        open_source(str(path))
