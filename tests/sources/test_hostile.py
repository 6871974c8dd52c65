"""Hostile files: each is refused in the explorer's own words, in little time and little memory.

If this fails, a stranger's file of a few hundred bytes takes the page's memory, holds up everyone else, or
shows a traceback.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from explorer import SourceError, open_source
from explorer.sources.models import layers
from explorer.sources.source_limits import HOSTED, SUFFIXES
from tests.covering import covering, sampled
from tests.fuzz.bounds import fault
from tests.sources.hostile import HOSTILE, framed

MOST = 1 << 20
LIMITS = dataclasses.replace(HOSTED, folders=True, suffixes=SUFFIXES, tensors=20_000, inflated_bytes=1 << 29)
"""Those of a page, with .pt and GGUF files, which it does not take."""
LONGEST_ANSWER = 400
QUICK = covering(HOSTILE, lambda name: {Path(name).suffix, *re.findall("[a-z]+", Path(name).stem)})
"""Every kind of file, and every word of what is wrong with it."""


def read_all(path: Path) -> None:
    """List a file's tensors and read its first three: what a visitor of the page makes it do."""
    source = open_source(str(path), limits=LIMITS)
    for info in layers(source)[:3]:
        source.matrix(info.name, max_elements=MOST)


@pytest.mark.parametrize("name", sampled(HOSTILE, QUICK))
def test_a_hostile_file_is_an_answer_or_a_refusal(name: str, tmp_path: Path) -> None:
    """Never a hang, a large allocation, or another library's exception; a refusal is a line to read, in which
    values of the file are cut."""
    said, path = list[str](), tmp_path / name
    path.write_bytes(HOSTILE[name]())

    def visit() -> None:
        try:
            read_all(path)
        except SourceError as refusal:
            said.append(str(refusal))
            raise

    assert fault(visit, (SourceError,), seconds=5, megabytes=400) is None
    for line in said:
        assert len(line) <= LONGEST_ANSWER and line.isprintable() and str(tmp_path) not in line


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
