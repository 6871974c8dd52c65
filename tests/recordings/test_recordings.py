"""Recordings: today's files load as typed rows, what is wrong is named, what is written is read back.

If these fail, the page shows unchecked numbers, or loses those that ship.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import explorer.recordings
import lab
from explorer import paths
from explorer.recordings import files as recordings
from explorer.recordings import gemm as gemm_recordings
from explorer.recordings.files import (
    Recording,
    RecordingError,
    as_json,
    record,
    record_to,
    recorded,
    recording_json,
)
from explorer.recordings.gemm import (
    GemmTiming,
    gemms_of_text,
    later_gemms,
    recorded_gemms,
    recorded_layers,
)
from explorer.recordings.machine import Machine, MachineLimits, this_machine
from explorer.recordings.quantize import (
    QuantizeTiming,
    recorded_kernel,
    recorded_quantize,
)
from explorer.running.transcript import recorded_texts
from lab.methods import recorded_methods


def loaders() -> list[Callable[[], Recording[Any]]]:
    """The functions of the library and the laboratory that read a recording."""
    found = {later_gemms, recorded_layers, recorded_texts}
    for package in (lab, explorer.recordings):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            names = vars(importlib.import_module(info.name)) if not info.name.endswith("__main__") else {}
            found |= {read for name, read in names.items() if re.match(r"recorded_\w+$", name)}
    return [read for read in found if not inspect.signature(read).parameters]


def is_read(recording: Recording[Any], content: Any) -> bool:
    """Whether a recording is that of a file, with the same values under the same keys."""
    if as_json(recording.machine) != content["machine"] or len(recording.rows) != len(content["rows"]):
        return False
    for row, raw in zip(recording.rows, content["rows"], strict=True):
        got = as_json(row)
        newer = {key: got[key] for key in got.keys() - raw.keys()}  # fields that the file is older than
        if any(newer.values()) or got != newer | raw:
            return False
    return True


def test_every_shipped_file_is_read_without_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each by one loader, and what it writes is read back: numbers to six digits, everything else exactly."""
    files = {path.stem: json.loads(path.read_text()) for path in recordings.FOLDER.glob("*.json")}
    read = {loader: found for loader in loaders() if isinstance(found := loader(), Recording)}
    names = {loader: [n for n in files if is_read(found, files[n])] for loader, found in read.items()}
    assert {name for found in names.values() for name in found} == files.keys()
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    for loader, (name,) in ((loader, found) for loader, found in names.items() if found):
        assert record(name, read[loader]) == tmp_path / f"{name}.json"
        again = loader()
        assert recording_json(again.machine, again.rows) == recording_json(
            read[loader].machine, read[loader].rows
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file: Invalid JSON"),
        ('{"machine":{}}', "rows: Field required"),
        ('{"machine":{},"rows":[{"scheme":"x"}]}', "rows.0.operation: Field required"),
        ('{"machine":{"threads":"many"},"rows":[]}', "machine.threads"),
    ],
)
def test_a_damaged_file_is_named_with_its_first_fault(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    (tmp_path / "quantize.json").write_text(text)
    with pytest.raises(RecordingError, match=r"quantize\.json is not a recording of QuantizeTiming") as error:
        recorded("quantize", QuantizeTiming)
    assert words in str(error.value)


def test_a_missing_file_is_an_empty_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    assert recorded("gemm", GemmTiming) == Recording(Machine(), ())
    assert recorded("gemm", GemmTiming).sentence == "Not recorded yet"
    assert recorded_kernel("nvfp4") == (None, "not recorded yet")


def test_a_second_read_does_not_count_among_the_least_bytes() -> None:
    """An INT8 code and one scale for a tensor, a row, a column: 3 of the 5 bytes that move for a BF16 value
    read twice. If this fails, kernels with a range pass look better than those without."""
    rows = {
        t.scheme: t for t in recorded_quantize().rows if (t.operation, t.dtype) == ("quantize", "bfloat16")
    }
    for name, part in (("int8_tensor", 3 / 5), ("int8_column", 3 / 5), ("int8_row", 1)):
        assert rows[name].least_share == pytest.approx(rows[name].share * part, rel=1e-3)
        assert rows[name].reads_twice == (part < 1)


def test_a_file_that_changes_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`bench --record` in a running process is seen by the next view."""
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    assert not recorded_methods()
    record("methods", Recording(Machine(gpu="a"), ()))
    assert recorded_methods().machine.gpu == "a"


def test_an_exact_result_has_no_noise() -> None:
    """JSON has no infinity; null stands for it, both ways."""
    row = recorded_gemms().rows[0]
    raw = as_json(row) | {"sqnr_db": None}
    adapter = recordings._adapter(GemmTiming)
    assert math.isinf(adapter.validate_python(raw).sqnr_db)
    assert as_json(adapter.validate_python(raw))["sqnr_db"] is None
    for name, value in (("sqnr_db", 1e29), ("sqnr_db", -1e29), ("tflops", 5e-324), ("floor_s", 5e-324)):
        with pytest.raises(ValueError, match=name):  # figures and words divide by what becomes 0
            adapter.validate_python(raw | {name: value})


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this fails, a recording made in another project's folder names that project's commit."""
    monkeypatch.delenv("EXPLORER_COMMIT", raising=False)
    here = this_machine(torch.device("cpu")).commit
    monkeypatch.chdir(tmp_path)
    assert this_machine(torch.device("cpu")).commit == here
    monkeypatch.setattr(paths, "CHECKOUT", None)
    assert this_machine(torch.device("cpu")).commit == "unknown"


def gemm_file(**changes: Any) -> dict[str, Any]:
    """A recording of one row as a file has it, with changes by the path of a value ("rows.0.graph")."""
    value = recording_json(
        Machine(gpu="A", limits=MachineLimits(1e12, {"bf16": 1e14})), recorded_gemms().rows[:1]
    )
    for path, new in changes.items():
        *way, last = [int(step) if step.isdigit() else step for step in path.split("__")]
        at: Any = value
        for step in way:
            at = at[step]
        at[last] = new
    return value


def test_what_is_downloaded_or_recorded_is_opened(tmp_path: Path) -> None:
    """The page's JSON, and the file of ``--record-to``, are read to the same rows."""
    recording = Recording(recorded_gemms().machine, recorded_gemms().rows[:3])
    text = json.dumps(recording_json(recording.machine, recording.rows), indent=2).encode()
    written = record_to(tmp_path / "mine.json", recording).read_bytes()
    assert gemms_of_text(text) == gemms_of_text(written) == recording


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it is no JSON file: Expecting value: line 1"),
        (b"\xff\xfe\x00", "it is no JSON file"),
        (b"[" * 100_000, "it is no JSON file"),
        (b"[1]", "the whole: Input should be"),
        (gemm_file(rows=[]), "rows is empty"),
        (gemm_file(machine={}), "machine: it names no GPU and no CPU"),
        (gemm_file(machine__gpu="A" * 3000), "machine: its words have more than 2000 characters"),
        (gemm_file(machine__limits__copy=0), "machine.limits.copy: Input should be greater than 0, got 0"),
        (gemm_file(rows__0={"scheme": "x"}), "rows.0.row: Field required"),
        (gemm_file(rows__0__shape=[1, 2]), "rows.0.shape.2: Field required"),
        (gemm_file(rows__0__shape=[1, 2, -3]), "rows.0.shape.2: Input should be greater than 0, got -3"),
        (
            gemm_file(rows__0__shape=[1, 64, 10**10]),
            "rows.0.shape.2: Input should be less than or equal to 999",
        ),
        (gemm_file(rows__0__graph__median_s=1e-320), "0.000000000001, got 1e-320"),
        (gemm_file(rows__0__graph__median_s=0), "rows.0.graph.median_s: Input should be greater"),
        (gemm_file(rows__0__graph__low_s=math.nan), "rows.0.graph.low_s: Input should be"),
        (gemm_file(rows__0__peer_graph__high_s=math.inf), "rows.0.peer_graph.high_s: Input should be less"),
        (gemm_file(rows__0__share=-1), "rows.0.share: Input should be greater than 0, got -1"),
        (gemm_file(rows__0__activation_s=-1), "rows.0.activation_s: Input should be greater than or"),
        (gemm_file(rows__0__label="A" * 501), "rows.0.label: String should have at most 500 characters"),
        (gemm_file(rows__0__how="modelled, ± 5 %"), "rows.0: it was not measured, but is modelled, ± 5 %"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_its_first_defect(text: Any, said: str) -> None:
    """If this fails, an opened file divides by zero in a figure, or shows modelled times as measured."""
    with pytest.raises(RecordingError) as error:
        gemms_of_text(text if isinstance(text, bytes) else json.dumps(text).encode())
    assert said in str(error.value)


def _timed(shape: tuple[int, int, int], commit: str, gemms: tuple[str, ...] = ("bf16", "int8")) -> Recording:
    row = recorded_gemms().rows[0]
    machine = Machine(gpu="A", date=f"2026-11-{commit}", commit=commit)
    return Recording(machine, tuple(dataclasses.replace(row, gemm=name, shape=shape) for name in gemms))


def test_a_later_run_takes_the_place_of_the_shapes_that_it_timed_whole() -> None:
    """gemm-later.json: a shape of which it lacks a product stays that of gemm.json, and so do all where it is
    of another GPU or older. If this fails, *auto* chooses by half a table."""
    small, large = (1, 64, 64), (8, 64, 64)
    whole = Recording(_timed(small, "01").machine, _timed(small, "01").rows + _timed(large, "01").rows)
    later = Recording(
        _timed(small, "02").machine, _timed(small, "02").rows + _timed(large, "02", ("bf16",)).rows
    )
    joined = gemm_recordings._with_later(whole, later)
    assert [t for t in joined.rows if t.shape == small] == list(later.rows[:2])
    assert [t for t in joined.rows if t.shape == large] == list(whole.rows[2:])
    assert joined.machine.commit == "01 and 02" and joined.machine.date == "2026-11-01 and 2026-11-02"
    other = dataclasses.replace(later, machine=dataclasses.replace(later.machine, gpu="B"))
    assert gemm_recordings._with_later(whole, other) is whole
    assert gemm_recordings._with_later(later, whole) is later, "older"


def test_a_run_cut_short_does_not_cover_what_is_recorded() -> None:
    """`bench gemm --seconds 9 --record` writes gemm-later.json then."""
    rows = _timed((1, 64, 64), "01").rows
    assert gemm_recordings.covers(rows, rows) and gemm_recordings.covers(rows, ())
    assert not gemm_recordings.covers(rows[:1], rows)
