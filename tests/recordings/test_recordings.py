"""Recordings: today's files load as typed rows, what is wrong is named, what is written is read back.

If these fail, the page shows unchecked numbers, or loses those that ship.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from app.ui import build
from explorer import paths
from explorer.paths import KERNELS
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
    RENAMED,
    GemmTiming,
    gemms_of_text,
    later_gemms,
    recorded_gemms,
    recorded_layers,
)
from explorer.recordings.grouped import recorded_grouped
from explorer.recordings.machine import Machine, MachineLimits, this_machine
from explorer.recordings.quality import recorded_quality
from explorer.recordings.quantize import (
    QuantizeTiming,
    kernel_file,
    kernel_today,
    recorded_kernel,
    recorded_quantize,
)
from explorer.recordings.runs import recorded_runs
from explorer.recordings.steps import recorded_steps
from explorer.running.transcript import recorded_texts
from explorer.schemes import ALIASES
from lab.accumulation import recorded_sums
from lab.analysis import recorded_analyses
from lab.bias_correction import recorded_bias
from lab.cache import recorded_cache
from lab.conformance.records import recorded_conformance, recorded_crossover
from lab.embeddings import recorded_embeddings
from lab.exports import recorded_exports
from lab.first_numbers import recorded_first_numbers
from lab.inputs import recorded_inputs
from lab.large_model import recorded_large_model
from lab.method_recipes import recorded_methods as recorded_methods_by_layer
from lab.methods import recorded_methods
from lab.page import recorded_page
from lab.ranking import recorded_ranking
from lab.recipes import recorded_causal, recorded_recipes
from lab.sizes import recorded_sizes
from lab.training import recorded_gradients, recorded_training
from lab.training_precision import recorded_precisions
from lab.vector_codes import recorded_vector_codes
from lab.vllm import recorded_vllm
from lab.vocabulary import recorded_vocabulary
from lab.written import recorded_written

SHIPPED = {
    "accumulation": recorded_sums,
    "large-model": recorded_large_model,
    "method_recipes": recorded_methods_by_layer,
    "analysis": recorded_analyses,
    "cache": recorded_cache,
    "causal": recorded_causal,
    "conformance": recorded_conformance,
    "bias-correction": recorded_bias,
    "training-nvfp4": recorded_precisions,
    "vector-codes": recorded_vector_codes,
    "crossover": recorded_crossover,
    "embeddings": recorded_embeddings,
    "exports": recorded_exports,
    "first-numbers": recorded_first_numbers,
    "gemm": recorded_gemms,
    "gemm-later": later_gemms,
    "gemm-layers": recorded_layers,
    "gradients": recorded_gradients,
    "grouped": recorded_grouped,
    "inputs": recorded_inputs,
    "methods": recorded_methods,
    "page": recorded_page,
    "quality": recorded_quality,
    "quantize": recorded_quantize,
    "ranking": recorded_ranking,
    "recipes": recorded_recipes,
    "runs": recorded_runs,
    "sizes": recorded_sizes,
    "steps": recorded_steps,
    "texts": recorded_texts,
    "training": recorded_training,
    "vllm": recorded_vllm,
    "vocabulary": recorded_vocabulary,
    "written": recorded_written,
}


def test_every_shipped_file_has_a_loader() -> None:
    """A recording that nothing reads is not shown."""
    assert {path.stem for path in recordings.FOLDER.glob("*.json")} == set(SHIPPED)


def _name_today(key: str, value: Any) -> Any:
    """What a recorded name is called now; other values are kept."""
    if key == "kernels":
        return [kernel_today(kernel) for kernel in value]
    renamed = {"row": RENAMED, "scheme": ALIASES, "activations": ALIASES}.get(key, {})
    return renamed.get(value, value) if renamed else value


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recordings_load_without_loss(name: str) -> None:
    """Every row of the file is there, with the same values and under the same keys, and nothing else."""
    recording = SHIPPED[name]()
    content = json.loads((recordings.FOLDER / f"{name}.json").read_text())
    assert recording and len(recording.rows) == len(content["rows"])
    assert recording.machine.date in recording.source and recording.machine.commit in recording.source
    assert as_json(recording.machine) == content["machine"]
    for row, raw in zip(recording.rows, content["rows"], strict=True):
        got = as_json(row)
        newer = {key: got[key] for key in got.keys() - raw.keys()}  # fields that the file is older than
        assert not any(newer.values())
        assert got == newer | {key: _name_today(key, value) for key, value in raw.items()}


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_written_is_read_back(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Numbers to six digits, everything else exactly."""
    recording = SHIPPED[name]()
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    assert not SHIPPED[name]()
    assert record(name, recording) == tmp_path / f"{name}.json"
    again = SHIPPED[name]()
    assert again.machine == recording.machine and len(again.rows) == len(recording.rows)
    assert recording_json(again.machine, again.rows) == recording_json(recording.machine, recording.rows)


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


def test_recorded_kernels_are_those_of_today() -> None:
    """If this fails, the page names a kernel that no file holds."""
    kernels = {kernel for row in recorded_quantize().rows for kernel in row.kernels}
    assert {kernel_file(kernel) for kernel in kernels} <= {path.name for path in KERNELS.glob("*.cu")}
    assert (
        kernel_today("quantize_tile4_bf16") == "quantize_tile" and kernel_file("encode_flat") == "encode.cu"
    )
    with pytest.raises(ValueError, match="no file of kernels/ defines 'encode'"):
        kernel_file("encode")


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


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this fails, a recording made in another project's folder names that project's commit."""
    monkeypatch.delenv("EXPLORER_COMMIT", raising=False)
    here = this_machine(torch.device("cpu")).commit
    monkeypatch.chdir(tmp_path)
    assert this_machine(torch.device("cpu")).commit == here
    monkeypatch.setattr(paths, "CHECKOUT", None)
    assert this_machine(torch.device("cpu")).commit == "unknown"


def test_this_machine_says_what_it_is() -> None:
    """If this fails, a recording cannot be told from another machine's."""
    machine = this_machine(torch.device("cpu"), ["numpy", "no-such-package"])
    assert machine.cpu and machine.threads and machine.chip == machine.cpu and not machine.gpu
    assert machine.packages["numpy"][0].isdigit() and machine.packages["no-such-package"] == "not installed"
    assert machine.torch in machine.describe() and machine.date in machine.describe()


def test_a_page_starts_without_a_damaged_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each file in turn is cut in half: the page is built, and one line says which file is left out."""
    said: list[str] = []
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    monkeypatch.setattr(recordings, "_report", said.append)
    for path in sorted((paths.ASSETS / "measurements").glob("*.json")):
        (tmp_path / path.name).write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    build()
    assert said and all(".json" in words and "restore the file" in words for words in said)


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
        (gemm_file(machine__limits__copy=0), "machine.limits.copy: 0.0 is not above 0"),
        (gemm_file(rows__0={"scheme": "x"}), "rows.0.row: Field required"),
        (gemm_file(rows__0__shape=[1, 2]), "rows.0.shape.2: Field required"),
        (gemm_file(rows__0__shape=[1, 2, -3]), "rows.0.shape: -3 is not above 0"),
        (gemm_file(rows__0__shape=[1, 64, 10**10]), "rows.0.shape: a side has more than 999,999,999"),
        (gemm_file(rows__0__graph__median_s=1e-320), "rows.0.graph.median_s: 9.99989e-321 s are no time"),
        (gemm_file(rows__0__graph__median_s=0), "rows.0.graph.median_s: 0.0 is not above 0"),
        (gemm_file(rows__0__graph__low_s=math.nan), "rows.0.graph.low_s: nan is not above 0, or not finite"),
        (gemm_file(rows__0__peer_graph__high_s=math.inf), "rows.0.peer_graph.high_s: inf"),
        (gemm_file(rows__0__share=-1), "rows.0.share: -1.0"),
        (gemm_file(rows__0__activation_s=-1), "rows.0.activation_s: -1.0 are no seconds"),
        (gemm_file(rows__0__label="A" * 501), "rows.0: the label has more than 500 characters"),
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
