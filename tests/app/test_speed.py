"""The Speed section's handlers: recorded numbers on any machine, timings on this one, bad shapes refused.

If these fail, the section is empty on a laptop, or shows one measurement under another's name.
"""

from __future__ import annotations

import dataclasses
import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from app import limits
from app.sections import speed, speed_live, speed_machines
from app.sections.speed_machines import LIVE, RECORDED
from app.sections.speed_table import COLUMNS
from app.state.selection import Selection, matrix_of
from explorer import gpu, words
from explorer.cpu.kernels import Library
from explorer.products.advice import (
    at_shape,
    choice,
    fastest,
    points,
    summary,
)
from explorer.products.gemms import GEMMS
from explorer.recordings import files as recordings
from explorer.recordings.files import NOT_RECORDED, Recording
from explorer.recordings.gemm import (
    GemmTiming,
    gemms_by_machine,
    recorded_cpu,
    recorded_gemms,
)
from explorer.recordings.machine import Machine, MachineLimits
from explorer.recordings.times import TimeSpread
from tests.app.acting import plots_of, selection, unchanged
from tests.covering import sampled

COLUMN_OF_SHAPE = list(COLUMNS).index("M×N×K")
LIMITS = MachineLimits(1e10, {"f32": 1e11, "bf16": 1e11, "s8": 1e11})
NO_GPU = pytest.mark.skipif(gpu.available().ok, reason="on a machine with a GPU its kernels are timed")


def shown(
    view: str = RECORDED,
    shape: str | None = None,
    product: str | None = None,
    errors: str = speed.RANDOM,
    own: Recording[GemmTiming] | None = None,
) -> Any:
    return speed.show(*selection(), view, shape, product, errors, own)


def test_recorded_numbers_fill_the_section_and_name_their_gpu() -> None:
    out = shown()
    assert "NVIDIA H200" in out.source
    plots = [json.loads(o) for o in plots_of(out)]
    assert len(plots) == 5 and all(p["data"] for p in plots), "a figure without data"
    assert sum(map(len, plots_of(out))) < 300_000
    rows = out.table
    assert {r[0] for r in rows} == {g.label for g in GEMMS.values()}, "every product is in the table"
    assert all(len(r) == len(COLUMNS) for r in rows) and out.sentence
    names = [words.kernel_name(v.name) for v in GEMMS["int8"].variants]
    assert json.loads(shown(product="int8").ladder)["data"][0]["y"] == names
    labels = {value: label for label, value in out.shape["choices"]}
    assert labels["1×12288×4096"].endswith("Llama-2-7B query, key, value"), "a shape says whose layer it is"


SHAPES = list(speed_machines.shapes_of(recorded_gemms().rows))


@pytest.mark.parametrize("shape", sampled(SHAPES, SHAPES[:2]))
def test_every_recorded_shape_can_be_shown(shape: str) -> None:
    out = shown(shape=shape)
    assert len(SHAPES) > 10 and out.shape["value"] == shape and out.table


MARKED: list[tuple[str, str, dict[str, str]]] = [
    ("nvfp4", "int4_group128", {"nvfp4": "A", "w_nvfp4": "A", "w4a16_group128": "B", "w4a8_int": "B"}),
    ("int4~1x128~symmetric~float16~mse", "", {"w4a16_group128": "A"}),
    ("int4_group48", "", {}),
    ("int8_row", "int8_row", {"int8": "A", "w8a16": "A"}),
]


def test_products_of_a_scheme_are_marked() -> None:
    """By what a kernel reads: another range is the same product, another group is none."""
    for first, second, marked in MARKED:
        found = speed._marked(Selection(scheme=first, second=second))
        assert {name: found.get(name) for name in marked} == marked
        assert bool(found) is bool(marked) and ("B" in found.values()) is ("B" in marked.values())


def test_the_nearest_shape_stands_for_the_layers_own_and_is_named() -> None:
    """Otherwise times of another shape are taken for the layer's."""
    n, k = matrix_of(Selection()).values.shape
    for value, m in (("layer-decode", 1), ("layer-prefill", 4096)):
        out = shown(shape=value)
        labels = {choice: label for label, choice in out.shape["choices"]}
        assert f"{n:,} × {k:,}" in labels[value] and out.shape["value"] == value
        assert (
            f"{m}×{n}×{k} was not recorded" in out.source and f"of {m}×4096×4096, the nearest" in out.source
        )
        rows = [row for row in out.table if row[COLUMN_OF_SHAPE]]
        assert rows and all(row[COLUMN_OF_SHAPE] == f"{m}×4096×4096" for row in rows)
        assert "the nearest shape" in out.sentence
    own = Recording(recorded_gemms().machine, (timing(shape=(1, n, k)), timing(shape=(8, n, k))))
    out = shown(view=LIVE, shape="layer-decode", own=own)
    assert "nearest" not in out.source
    assert {row[COLUMN_OF_SHAPE] for row in out.table} == {f"1×{n}×{k}"}


@NO_GPU
@pytest.mark.usefixtures("torch_alone")
def test_a_run_on_the_cpu_times_what_its_libraries_have(said: list[str]) -> None:
    """Products of a GPU alone are left out; the name that INT8 had here is still taken."""
    steps = list(speed.run(4, 32, 64, ["bf16", "int8", "w4a16_group128"], False))
    own = steps[-1].own
    assert {t.gemm for t in own.rows} == {"bf16", "int8_dynamic"}
    assert all(t.shape == (4, 32, 64) and t.threads for t in own.rows)
    assert "get it" in steps[-1].status
    out = shown(view=LIVE, own=own)
    assert "FP8" not in str(out.table)
    assert sum("get it" in str(row[1]) for row in out.table) > 5, "what is missing says how to get it"
    list(speed.run(4, 4, 4, ["nvfp4"], False))
    assert "'nvfp4'" in said[0] and "fp32" in said[0], "what there is"


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose limits are known, with torch's products alone, at small shapes."""
    monkeypatch.setattr(speed_live, "measure_cpu_limits", lambda: LIMITS)
    monkeypatch.setattr(speed_live, "DECODE_ON_CPU", (1, 32, 64))
    monkeypatch.setattr(speed_live, "PREFILL_ON_CPU", (4, 32, 64))
    monkeypatch.setattr(Library, "missing", property(lambda self: "" if self.label == "torch" else "get it"))


@pytest.mark.usefixtures("torch_alone")
def test_this_cpu_is_measured_by_one_click() -> None:
    """The sentence comes with the first timing, long before the last; a look at them says float32, no GPU."""
    steps = list(speed.run_on_cpu())
    assert "torch" in unescape(steps[1].status) and len(steps) > 8
    own = steps[-1].own
    assert {t.shape for t in own.rows} == {(1, 32, 64), (4, 32, 64)}
    view, shape = speed._after_cpu(own)
    assert (view, shape["value"]) == (LIVE, "1×32×64")
    out = shown(view=LIVE, own=own)
    assert "float32" in unescape(out.sentence) and "BF16’s" not in unescape(out.sentence)
    assert all(json.loads(plot)["data"] for plot in (out.tradeoff, out.bars, out.roofline, out.ladder))
    assert unchanged(speed._after_cpu(None)[0])


CPU = next(name for name, recording in gemms_by_machine().items() if recording.rows == recorded_cpu().rows)


def a_file(path: Path, chip: str, *rows: GemmTiming) -> str:
    """What ``--record-to`` writes."""
    return str(recordings.record_to(path, Recording(Machine(gpu=chip), rows)))


def opened_of(path: str, opened: Any = (), shape: str | None = None) -> Any:
    return speed_machines.open_recording(path, shape, opened)


def test_an_opened_recording_is_one_more_machine(tmp_path: Path) -> None:
    """It is chosen at once; texts are no markup; the same file again is the same machine."""
    row = timing(label="Old", variant="<b>x", shape=(8, 64, 64))
    path = a_file(tmp_path / "mine.json", "NVIDIA A100", row, timing(shape=(1, 8192, 8192)))
    out = opened_of(path, shape="4096×4096×4096")
    assert "mine.json" in out.status and out.shape["value"] == "1×8192×8192", "the most telling first"
    assert unchanged(opened_of(path, shape="8×64×64").shape), "the shape that is looked at is kept"
    (mine,) = out.opened
    first = mine.recording.rows[0]
    assert (first.label, first.variant) == (GEMMS["bf16"].label, "‹b>x")
    name = out.view["value"]
    assert ("Opened: NVIDIA A100", name) in out.view["choices"]
    assert ("Opened: NVIDIA A100", name) not in speed_machines.choices(), "never seen by another"
    here = speed.show(*selection(), name, "8×64×64", None, speed.RANDOM, None, out.opened)
    assert "NVIDIA A100" in here.source
    assert {row[COLUMN_OF_SHAPE] for row in here.table if row[COLUMN_OF_SHAPE]} == {"8×64×64"}
    again = opened_of(path, out.opened)
    assert again.opened == out.opened and again.view["value"] == name
    second = opened_of(a_file(tmp_path / "b.json", "NVIDIA L4", row), out.opened)
    assert second.view["value"] != name and len(second.opened) == 2


def test_a_file_that_is_no_recording_changes_nothing(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first defect, and limits of size and number, in the line of the file; what was open stays."""
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.LOCAL, recording_bytes=4000))
    bad, text = tmp_path / "bad.json", tmp_path / "notes.txt"
    bad.write_text('{"machine":{"gpu":"x"},"rows":[{"row":"bf16"}]}')
    text.write_text("hello")
    good = [a_file(tmp_path / f"{chip}.json", chip, timing(shape=(8, 64, 64))) for chip in "ABC"]
    large = a_file(tmp_path / "large.json", "L", *[timing()] * 9)
    opened = opened_of(good[0]).opened
    accepted = "explorer bench gemm --record-to FILE"
    for path, *why in (
        (str(bad), "bad.json", "rows.0.label", accepted),
        (str(text), "notes.txt", "JSON", accepted),
        (large, "4 kB"),
    ):
        out = opened_of(path, opened)
        assert all(part in unescape(out.status) for part in why)
        assert unchanged(out.opened) and unchanged(out.view) and out.file is None
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.LOCAL, recordings=2))
    opened = opened_of(good[1], opened).opened
    full = opened_of(good[2], opened)
    assert "2 recordings" in full.status and unchanged(full.opened) and not said


def test_the_frontier_and_the_choice() -> None:
    """Nothing on the frontier is beaten in both; the choice is the fastest with enough SQNR."""
    timings = recorded_gemms().rows
    for shape in ((4096, 4096, 4096), (1, 8192, 8192)):
        here = at_shape(timings, shape)
        found = points(here)
        for p in found:
            beaten = any(q.seconds <= p.seconds and q.sqnr_db > p.sqnr_db for q in found)
            assert p.on_frontier != beaten, p
        taken = choice(found)
        assert taken is not None and taken.label in summary(found, here, "this")
        assert taken.sqnr_db > 19.5 and not any(p.seconds < taken.seconds and p.sqnr_db > 19.5 for p in found)
    assert {t.gemm for t in fastest(timings)} == {t.gemm for t in timings}


def timing(**changes: Any) -> GemmTiming:
    """Any timing, with the fields that a test is about."""
    graph = TimeSpread(3.0, 3.0, 3.0)
    return dataclasses.replace(recorded_gemms().rows[0], graph=graph, **changes)


def test_quantizing_x_is_counted_once() -> None:
    """Before the product it is added; inside a dynamic product it is there already."""
    assert timing(activation_s=1.0, dynamic=False).total_seconds == 4.0
    assert timing(activation_s=1.0, dynamic=True).total_seconds == 3.0
    assert timing(activation_s=None, dynamic=False).total_seconds == 3.0


def test_a_page_without_any_recording_says_so(
    monkeypatch: pytest.MonkeyPatch, said: list[str], tmp_path: Path
) -> None:
    """If this fails, a new row of GEMMS needs an H200, or one wrong byte in a recording is a traceback."""
    with monkeypatch.context() as patch:
        patch.setitem(GEMMS, "int9", dataclasses.replace(GEMMS["int8"], name="int9", label="INT9 W9A9"))
        out = shown()
    line = next(row for row in out.table if row[0] == "INT9 W9A9")
    assert line == ["INT9 W9A9", NOT_RECORDED, *[None] * (len(COLUMNS) - 2)]
    assert "int9" not in {value for _, value in out.product["choices"]}
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    out = shown()
    assert out.source and {r[1] for r in out.table} == {NOT_RECORDED} and not said
    (tmp_path / "gemm.json").write_text('{"machine":{"gpu":"x"},"rows":[{"row":"bf16"}]}')
    assert all(unchanged(v) for v in shown().in_order()) and "gemm.json" in said[0]
