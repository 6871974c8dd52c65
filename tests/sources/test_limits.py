"""SECURITY.md names the limits that hold; answers and bits are bounded before work.

If these fail, a stranger reads a promise that is not kept.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from app import api
from app import limits as page_limits
from app.serving.guard import FIELD_BYTES
from app.serving.listeners import UNHEARD_SECONDS
from app.serving.uploads import ABANDONED_SECONDS
from app.state.choices import MOST_SCHEMES
from explorer import FORMATS, SourceError
from explorer.formats.code import code_facts, flip_bit
from explorer.sources.models import layers
from explorer.sources.source_limits import HOSTED, LOCAL, PICKLED, SUFFIXES
from explorer.sources.tensors import _READERS, open_tensors
from explorer.survey.rows import MOST_BYTES

SECURITY = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text()
MEBI, GIBI = 1 << 20, 1 << 30


def _bytes(count: int) -> str:
    return f"{count // GIBI} GiB" if count >= GIBI else f"{count // MEBI} MiB"


ROWS = {
    "one header, index": (f"{HOSTED.header_bytes // 10**6} MB", f"{LOCAL.header_bytes // 10**6} MB"),
    "tensors of a file": (f"{HOSTED.tensors:,}", f"{LOCAL.tensors:,}"),
    "tensors in one answer": (f"{page_limits.HOSTED.listed:,}", f"{page_limits.LOCAL.listed:,}"),
    "a table of text": (f"{HOSTED.text_bytes // MEBI} MiB", f"{LOCAL.text_bytes // GIBI} GiB"),
    "a survey's file": (f"{MOST_BYTES // MEBI} MiB", f"{MOST_BYTES // MEBI} MiB"),
    "pixels of a picture": (
        f"2^{HOSTED.pixels.bit_length() - 1}",
        f"2^{LOCAL.pixels.bit_length() - 1}",
    ),
    "an array stored by columns": (
        f"{HOSTED.inflated_bytes // GIBI} GiB inflated",
        f"{LOCAL.inflated_bytes // GIBI} GiB",
    ),
    "processor time and memory": (
        "not started",
        f"{LOCAL.pickle_seconds} s, {LOCAL.pickle_bytes // GIBI} GiB",
    ),
    "weight files": (f"{HOSTED.shards:,}", f"{LOCAL.shards:,}"),
    "until an answer": (f"{HOSTED.request_seconds:g} s", f"{LOCAL.request_seconds:g} s"),
    "opening a model": (f"{HOSTED.visit_seconds:g} s", f"{LOCAL.visit_seconds / 3600:g} h"),
    "requests to the Hub": (f"{HOSTED.requests}", f"{LOCAL.requests}"),
    "the machine's Hugging Face token": ("not sent", "sent"),
    "a model that is fetched": (f"{HOSTED.fetch_bytes // GIBI} GiB", "Hugging Face's cache"),
    "all fetched models": (f"{HOSTED.cache_bytes // GIBI} GiB", "Hugging Face's cache"),
} | {
    row: (of(page_limits.HOSTED), of(page_limits.LOCAL))
    for row, of in {
        "an uploaded file": lambda most: _bytes(most.upload_bytes),
        "all uploads and results": lambda most: f"{_bytes(most.store_bytes)}, {most.keep_seconds // 3600} h",
        "any other request": lambda most: _bytes(most.request_bytes),
        "elements of a tensor": lambda most: f"2^{most.elements.bit_length() - 1}",
        "requests that wait": lambda most: str(most.queue),
        "of one address": lambda most: str(most.share),
        "one run": lambda most: f"{most.run_seconds} s",
        "input channels": lambda most: f"{most.solved_columns:,}",
        "open pages": lambda most: f"{most.sessions:,}",
        "until a request's work begins": lambda most: (
            f"{most.wait_seconds} s" if most.wait_seconds < 3600 else f"{most.wait_seconds // 3600} h"
        ),
        "schemes in one request": lambda most: str(MOST_SCHEMES),
        "the headers of an upload's parts": lambda most: f"{FIELD_BYTES // 1024} KiB",
        "an upload that gets": lambda most: f"{ABANDONED_SECONDS // 60} min",
    }.items()
}


def _bytes(count: int) -> str:
    return f"{count // GIBI} GiB" if count >= GIBI else f"{count // MEBI} MiB"


@pytest.mark.parametrize("row", ROWS)
def test_the_table_of_limits_is_true(row: str) -> None:
    """Every number of the table that is a field of the limits."""
    (line,) = re.findall(rf"^\| {re.escape(row)}.*$", SECURITY, re.M)
    assert tuple(cell.strip() for cell in line.split("|")[2:4]) == ROWS[row]


def test_when_nobody_listens() -> None:
    assert f"listened for within {UNHEARD_SECONDS:.0f} s" in SECURITY


def test_suffixes_and_readers_are_the_same() -> None:
    """A suffix without a reader is a KeyError; a public page takes all but pickles."""
    assert set(SUFFIXES) == set(_READERS) == set(LOCAL.suffixes)
    assert set(LOCAL.suffixes) - set(HOSTED.suffixes) == set(PICKLED)
    assert LOCAL.token and not HOSTED.token and not HOSTED.folders


BITS = [8, 64, 2e10, -1, 0.5, 2.5, float("nan"), float("inf"), True, None, "1"]


@pytest.mark.parametrize("bit", BITS, ids=str)
def test_a_bit_that_a_format_does_not_have(bit: object) -> None:
    """Two to the power of a visitor's number is never computed: 2e10 took 6 GB."""
    with pytest.raises(ValueError, match=r"has bits 0 to 7"):
        flip_bit(FORMATS["float8_e4m3fn"], 0, bit)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [-1, 256, 10**30, 1.0, True, None], ids=str)
def test_a_code_that_a_format_does_not_have(code: object) -> None:
    """The value of a code beyond the format's bits is nobody's."""
    with pytest.raises(ValueError, match="has codes 0 to 0xff"):
        code_facts(FORMATS["float8_e4m3fn"], code)  # type: ignore[arg-type]


def test_a_flipped_bit() -> None:
    """What the page's endpoint answers with."""
    assert flip_bit(FORMATS["float8_e4m3fn"], 0x38, 7) == 0xB8
    assert api.flip("float8_e4m3fn", "1", 7.0) == "0xB8"


def test_an_answer_with_too_many_names(tmp_path: Path) -> None:
    """A program is told to name a part instead of getting megabytes."""
    save_file({f"layer.{i}": torch.ones(1, 1) for i in range(12)}, tmp_path / "x.safetensors")
    source = open_tensors(tmp_path / "x.safetensors")
    assert len(layers(source, "layer", most=12)) == 12
    with pytest.raises(SourceError, match=r"12 tensors of .* up to 11 are listed"):
        layers(source, "layer", most=11)
    assert len(layers(source, "layer.11", most=11)) == 1
