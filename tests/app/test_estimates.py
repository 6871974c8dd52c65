"""Numbers of a sample of a large tensor on the page, until those of the whole tensor are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import start
from app.sections import answer
from app.state import analyses
from app.state.estimates import estimated
from app.state.record import Record
from app.state.selection import is_read
from explorer import SCHEMES, compare, quantize
from explorer.analysis import estimate
from explorer.sources import open_tensors
from tests.app.acting import did, query_of, ran, shown

SHAPE = (1024, 256)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file whose tensor counts as large."""
    monkeypatch.setattr(estimate, "WORTH", 0)
    monkeypatch.setattr(estimate, "WORTH_SEARCHED", 0)
    monkeypatch.setattr(estimate, "ELEMENTS", 1 << 14)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path.parent))
    path = tmp_path / "weight.npy"
    np.save(path, np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32))
    return str(path)


def held(file: str) -> dict[str, Any]:
    """The record of a page that shows the file."""
    return {"source": "file", "file": file, "file_tensor": "weight", "scheme": "int8_row"}


def test_a_scheme_is_estimated_before_the_whole_tensor_is_quantized(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample's numbers are marked as such, and those of the whole tensor take their place."""
    chosen = held(file) | {"scheme": "int4_group128"}
    first = shown(**chosen)
    recipe = Record(scheme="int4_group128").recipes[0]
    assert analyses.known_report(Record(**chosen), recipe) is None and not is_read(Record(**chosen))
    assert "6.2 %" in first["said"] and "≈" in first["listed"] and first["tick"] == "sample"
    card = first["picture"]
    assert "weight" in card and "1,024 × 256" in card and "img" not in card
    assert 'aria-pressed="true"' not in first["samples"]
    ran(answer.fill(query_of(**chosen)))
    end = shown(**chosen)
    x = open_tensors(file).matrix().values
    whole = compare(x, quantize(x, SCHEMES["int4_group128"]))
    assert f"{whole.sqnr_db:.1f}" in end["listed"] and "≈" not in end["said"]
    assert "data:image/png" in end["picture"]
    size = estimated(Record(**held(file) | {"scheme": "q4_0"}))
    assert size is not None and size.reports[0].nbytes == quantize(x, SCHEMES["q4_0"]).nbytes
    monkeypatch.setattr(estimate, "WORTH", SHAPE[0] * SHAPE[1])
    assert estimated(Record(**held(file))) is None, "small tensors have none"


def test_a_large_file_is_not_read_before_its_first_numbers(file: str) -> None:
    """The act that opens it takes what its header says."""
    opened = did({"do": "file", "path": file}, scheme="int8_row")
    assert (opened.source, opened.file, opened.file_tensor) == ("file", file, "weight")
    assert not is_read(opened)


def test_a_value_that_is_not_finite_has_no_first_numbers(file: str) -> None:
    """Else a large file with a NaN is opened by ``explorer page``, or has numbers for a while."""
    assert start._can_be_sampled(file)
    x = np.load(file)
    x[-1] = np.nan
    np.save(file, x)
    assert not start._can_be_sampled(file)  # then all of it is looked at, and refused, before it is served
    with pytest.raises(ValueError, match="256 of 262144"):
        did({"do": "file", "path": file}, scheme="int8_row")
