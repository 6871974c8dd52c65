"""The Speed section's handlers: recorded numbers on any machine, timings on this one, bad shapes refused.

If these fail, the section is empty on a laptop, or shows one measurement under another's name.
"""

from __future__ import annotations

import dataclasses
import json
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
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
    swept,
)
from explorer.products.table import GEMMS
from explorer.recordings import files as recordings
from explorer.recordings.files import NOT_RECORDED, Recording
from explorer.recordings.gemm import (
    LAYERS_NAME,
    GemmTiming,
    gemms_by_machine,
    recorded_cpu,
    recorded_gemms,
    recorded_layers,
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
    labels = {value: label for label, value in out.shape["choices"]}
    assert labels["1×12288×4096"].endswith("Llama-2-7B query, key, value"), "a shape says whose layer it is"


SHAPES = list(speed_machines.shapes_of(recorded_gemms().rows))


@pytest.mark.parametrize("shape", sampled(SHAPES, SHAPES[:2]))
def test_every_recorded_shape_and_ladder_can_be_shown(shape: str) -> None:
    out = shown(shape=shape, product="int8")
    assert len(SHAPES) > 10 and out.shape["value"] == shape and out.table
    names = [words.kernel_name(v.name) for v in GEMMS["int8"].variants]
    assert json.loads(out.ladder)["data"][0]["y"] == names or shape.startswith("1×")


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """If this fails, one visitor's errors are shown for another's upload of the same name and shape."""
    errors = []
    for folder, scale in (("one", 1.0), ("two", 100.0)):
        path = tmp_path / folder / "w.npy"
        path.parent.mkdir()
        values = np.random.default_rng(0).standard_normal((32, 256)).astype(np.float32)
        values[:, 0] *= scale
        np.save(path, values)
        chosen = Selection(source="file", file=str(path))
        errors.append(speed._layer_errors(chosen, ("int8", "nvfp4")))
    assert errors[0]["int8"] != errors[1]["int8"] and errors[0]["nvfp4"] != errors[1]["nvfp4"]


def test_a_scheme_redraws_its_marks_alone() -> None:
    """Table, files and the chosen kernels are of the shape: another scheme does not send them again."""
    rest = [RECORDED, "4096×4096×4096", "bf16", speed.RANDOM, None, ()]

    def kept(marks: Any, **chosen: str) -> tuple[set[str], Any]:
        out = speed.follow(*selection(**chosen), *rest, marks)
        return {name for name, value in vars(out).items() if unchanged(value)}, out.marks

    first, marks = kept(None, scheme="int4_group128")
    assert not first, "nothing was shown yet"
    of_shape = {"product", "ladder", "sentence", "table", "csv_file", "json_file"}
    other, other_marks = kept(marks, scheme="nvfp4")
    assert other == of_shape and other_marks != marks
    assert kept(marks, scheme="int4_group128+gptq")[0] > of_shape, "the same products are marked"


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


def test_the_layers_own_shape_is_modelled_and_said_to_be() -> None:
    """Numbers are recorded at few shapes: the layer's own are modelled from them, never another shape's."""
    n, k = matrix_of(Selection()).values.shape
    for value, m in (("layer-decode", 1), ("layer-prefill", 4096)):
        out = shown(shape=value)
        labels = {choice: label for label, choice in out.shape["choices"]}
        assert f"{n:,} × {k:,}" in labels[value] and out.shape["value"] == value
        assert "extrapolated" in out.source
        rows = [row for row in out.table if row[COLUMN_OF_SHAPE]]
        assert rows and all(row[COLUMN_OF_SHAPE] == f"{m}×{n}×{k}" and "± " in row[1] for row in rows)
    own = Recording(recorded_gemms().machine, (timing(shape=(1, n, k)), timing(shape=(8, n, k))))
    out = shown(view=LIVE, shape="layer-decode", own=own)
    assert "extrapolated" not in out.source
    assert {row[COLUMN_OF_SHAPE] for row in out.table} == {f"1×{n}×{k}"}


def test_any_shape_may_be_typed(said: list[str]) -> None:
    """Whatever the sign between its numbers; what is no shape is quoted, and nothing changes."""
    for text in ("64x5120x5120", " 64 × 5120×5120", "64*5120*5120"):
        sizes = speed.of_model(text)
        assert (sizes.m, sizes.n, sizes.k) == (64, 5120, 5120)
    assert shown(shape=" 64 × 5120×5120").shape["value"] == "64×5120×5120" and not said
    out = shown(shape="64x8192")
    assert "'64x8192'" in said[0] and all(unchanged(value) for value in out.in_order())


def test_measured_here_and_back_keeps_the_shape() -> None:
    """Another machine's list of shapes does not lose the one that is looked at; a run's own is shown."""
    asked = "4096×4096×11008"
    live = shown(view=LIVE, shape=asked)
    assert live.shape["value"] == asked and live.table == []
    assert live.json_file["value"] is None, "the file before is another machine's"
    other = Recording(recorded_gemms().machine, (timing(shape=(8, 64, 64)),))
    assert "8×64×64" in shown(view=LIVE, shape=asked, own=other).source
    assert shown(shape=live.shape["value"]).shape["value"] == asked
    view, shape = speed._after_run(8, 64, 64, other)
    assert (view, shape["value"]) == (LIVE, "8×64×64")
    assert unchanged(speed._after_run(-5, 64, 64, other)[0])


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


def test_a_recorded_machine_is_shown_by_its_name(said: list[str]) -> None:
    """If this fails, a CPU's numbers are shown under a GPU's name; an unknown machine is refused in words."""
    out = shown(view=CPU)
    assert recorded_cpu().machine.chip in unescape(out.source) and all(row[2] for row in out.table if row[3])
    assert CPU in {name for _, name in speed_machines.choices()}
    shown(view="nobody's")
    assert "nobody's" in said[0]


CPU = next(name for name, recording in gemms_by_machine().items() if recording.rows == recorded_cpu().rows)


def test_the_recording_of_layers_is_one_more_machine() -> None:
    """Its own shapes are shown, and what it lacks is said, never modelled."""
    assert recorded_layers().machine.gpu == "NVIDIA H100 80GB HBM3", "the page's words below are of this file"
    out = shown(view=LAYERS_NAME, shape="16×6144×4096")
    timed = [row for row in out.table if row[COLUMN_OF_SHAPE]]
    assert "NVIDIA H100" in out.source and len(timed) == 5
    assert all(row[COLUMN_OF_SHAPE] == "16×6144×4096" for row in timed)
    lacks = shown(view=LAYERS_NAME, shape="4096×4096×4096")
    assert "choices" not in lacks.product, "the browser sends its value again: it has to stay a choice"
    assert "4096×4096×4096" in lacks.source and "4096×2048×2048" in lacks.source
    assert not [row for row in lacks.table if row[COLUMN_OF_SHAPE]] and "modelled (" not in str(lacks.table)


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
    both = speed.compare(*selection(), name, "8×64×64", second.view["value"], None, second.opened)
    assert all(part in both.sentence for part in ("8×64×64", "NVIDIA A100", "NVIDIA L4"))


def test_recordings_of_one_machine_are_told_apart_and_removed(tmp_path: Path) -> None:
    """By their files, and by a number where these have one name too; the one that is shown may go."""
    opened: Any = ()
    for number, file in enumerate(("a.json", "b.json", "c/b.json"), 1):
        path = a_file(tmp_path / file, "NVIDIA A100", timing(shape=(number, 64, 64)))
        opened = opened_of(path, opened).opened
    first, second, third = opened
    labels = ["NVIDIA A100, a.json", "NVIDIA A100, b.json (1)", "NVIDIA A100, b.json (2)"]
    assert [label for label, _ in speed_machines.opened_choices(opened)] == labels
    assert speed_machines.opened_choices((first,)) == [("NVIDIA A100", first.name)], "no need to tell apart"
    both = speed.compare(*selection(), first.name, None, third.name, None, opened)
    assert "1×64×64" in both.sentence and "b.json" in both.sentence
    out = speed_machines.remove_recording(second.name, first.name, opened)
    assert out.opened == (first, third) and out.view["value"] == first.name and unchanged(out.shape)
    assert "b.json (1)" in out.status and out.listed["value"] == third.name
    out = speed_machines.remove_recording(first.name, first.name, out.opened)
    assert out.view["value"] == RECORDED and out.listed["visible"]
    none = speed.compare(*selection(), RECORDED, None, first.name, None, out.opened)
    assert none.beside["value"] == "" and none.sentence == "", "the second machine was the removed one"
    out = speed_machines.remove_recording(third.name, RECORDED, out.opened)
    assert out.opened == () and not out.listed["visible"] and not out.remove["visible"]


def test_products_that_this_version_does_not_know_are_said_and_left_out(tmp_path: Path) -> None:
    """A newer version's file opens, and what cannot be shown has a name; of nothing else it is refused."""
    newer = [timing(gemm=f"new{i}", shape=(8, 64, 64)) for i in range(8)]
    out = opened_of(a_file(tmp_path / "n.json", "A", timing(shape=(8, 64, 64)), *newer, newer[0]))
    assert "new0, new1" in out.status and "new5 and 2 more" in out.status
    assert [row.gemm for row in out.opened[0].recording.rows] == ["bf16"]
    refused = opened_of(a_file(tmp_path / "o.json", "A", newer[0]), out.opened)
    assert "o.json" in refused.status and "new0" in refused.status
    assert unchanged(refused.opened) and refused.file is None


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


def test_a_second_machine_is_one_other_than_the_first() -> None:
    """Recorded beside recorded and beside what is measured here; chosen as the first, it is no second."""
    shape, own = "1×4096×4096", Recording(Machine(gpu="Mine"), (timing(shape=(1, 4096, 4096)),))

    def compared(view: str, beside: str, own: Any = None, shape: str = shape) -> Any:
        return speed.compare(*selection(), view, shape, beside, own, ())

    out = compared(RECORDED, LAYERS_NAME)
    assert "NVIDIA H200" in out.sentence and json.loads(out.figure)["data"]
    assert RECORDED not in {value for _, value in out.beside["choices"]} and out.csv_file["interactive"]
    assert recorded_cpu().machine.chip in unescape(compared(RECORDED, CPU).sentence)
    assert compared(LIVE, CPU, own).sentence and compared(RECORDED, LIVE).sentence
    lacks = compared(RECORDED, LAYERS_NAME, shape="64×8192×8192")
    assert "64×8192×8192" in lacks.sentence and "64×4096×4096" in lacks.sentence
    assert not lacks.csv_file["interactive"] and lacks.csv_file["value"] is None
    same = compared(LAYERS_NAME, LAYERS_NAME)
    assert same.sentence == "" and same.beside["value"] == "" and unchanged(same.figure)


def test_the_curve_over_tokens_is_that_of_the_shape() -> None:
    """Where every layer was timed at as many M, the shape's own curve is drawn, not another layer's."""
    for rows, shape, drawn in (
        (recorded_layers().rows, (16, 6144, 4096), (6144, 4096)),
        (recorded_gemms().rows, (1, 12288, 4096), (8192, 8192)),
    ):
        assert {t.shape[1:] for t in swept(rows, shape)} == {drawn}


def test_shapes_beyond_the_limit_are_refused_in_words(said: list[str]) -> None:
    beyond = ((0, 1, 1), "at least 1"), ((1 << 20, 1 << 12, 1 << 12), "X"), ((1, 1 << 20, 1 << 12), "W")
    for shape, why in beyond:
        out = list(speed.run(*shape, ["bf16"], False))
        assert why in said[-1] and said[-1] in unescape(out[-1].status)


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
