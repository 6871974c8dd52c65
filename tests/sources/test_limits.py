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
from explorer import FORMATS, SourceError
from explorer.formats.code import code_facts, flip_bit
from explorer.sources.models import layers
from explorer.sources.source_limits import HOSTED, LOCAL, PICKLED, SUFFIXES
from explorer.sources.tensors import _READERS, open_tensors

SECURITY = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text()
ROWS = {
    "one header, index": (f"{HOSTED.header_bytes // 10**6} MB", f"{LOCAL.header_bytes // 10**6} MB"),
    "tensors of a file": (f"{HOSTED.tensors:,}", f"{LOCAL.tensors:,}"),
    "a table of text": (f"{HOSTED.text_bytes >> 20} MiB", f"{LOCAL.text_bytes >> 30} GiB"),
    "weight files": (f"{HOSTED.shards:,}", f"{LOCAL.shards:,}"),
    "opening a model": (f"{HOSTED.visit_seconds:g} s", f"{LOCAL.visit_seconds / 3600:g} h"),
    "requests to the Hub": (f"{HOSTED.requests}", f"{LOCAL.requests}"),
    "a model that is fetched": (f"{HOSTED.fetch_bytes >> 30} GiB", "Hugging Face's cache"),
    "one run": (f"{page_limits.HOSTED.run_seconds} s", f"{page_limits.LOCAL.run_seconds} s"),
    "of one address": (f"{page_limits.HOSTED.share}", f"{page_limits.LOCAL.share}"),
}


def test_the_table_of_limits_is_true() -> None:
    """Numbers of the table that are fields of the limits: on a public page, and on the own machine."""
    for row, limits in ROWS.items():
        (line,) = re.findall(rf"^\| {re.escape(row)}.*$", SECURITY, re.M)
        assert tuple(cell.strip() for cell in line.split("|")[2:4]) == limits, row


def test_suffixes_and_readers_are_the_same() -> None:
    """A suffix without a reader is a KeyError; a public page takes all but pickles."""
    assert set(SUFFIXES) == set(_READERS) == set(LOCAL.suffixes)
    assert set(LOCAL.suffixes) - set(HOSTED.suffixes) == set(PICKLED)
    assert LOCAL.token and not HOSTED.token and not HOSTED.folders


def test_bits_and_codes_that_a_format_does_not_have() -> None:
    """Two to the power of a visitor's number is never computed: 2e10 took 6 GB."""
    row = FORMATS["float8_e4m3fn"]
    for bit in (8, 64, 2e10, -1, 0.5, float("nan"), float("inf"), True, None, "1"):
        with pytest.raises(ValueError, match=r"0 to 7"):
            flip_bit(row, 0, bit)  # type: ignore[arg-type]
    for code in (-1, 256, 10**30, 1.0, True, None):
        with pytest.raises(ValueError, match="0 to 0xff"):
            code_facts(row, code)  # type: ignore[arg-type]
    assert flip_bit(row, 0x38, 7) == 0xB8 and api.flip("float8_e4m3fn", "1", 7.0) == "0xB8"


def test_an_answer_with_too_many_names(tmp_path: Path) -> None:
    """A program is told to name a part instead of getting megabytes."""
    save_file({f"layer.{i}": torch.ones(1, 1) for i in range(12)}, tmp_path / "x.safetensors")
    source = open_tensors(tmp_path / "x.safetensors")
    assert len(layers(source, "layer", most=12)) == 12
    with pytest.raises(SourceError, match=r"12 tensors .* up to 11 "):
        layers(source, "layer", most=11)
    assert len(layers(source, "layer.11", most=11)) == 1
