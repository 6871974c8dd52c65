"""The Speed section's handlers: recorded numbers on any machine, timings on this one, bad shapes refused.

If these fail, the section is empty on a laptop, or shows one measurement under another's name.
"""

from __future__ import annotations

import dataclasses
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app import limits
from app.parts import html
from app.sections import speed, speed_live, speed_machines
from app.sections.speed_machines import LIVE, RECORDED
from app.sections.speed_table import COLUMNS
from app.state.selection import Selection, matrix_of
from explorer import gpu, words
from explorer.cpu.kernels import Library
from explorer.products.advice import (
    Point,
    Verdict,
    at_shape,
    choice,
    fastest,
    points,
    summary,
    swept,
    verdict,
)
from explorer.products.table import GEMMS
from explorer.recordings import files as recordings
from explorer.recordings.files import NOT_RECORDED, Recording
from explorer.recordings.gemm import (
    LATER_NAME,
    LAYERS_NAME,
    GemmTiming,
    gemms_by_machine,
    recorded_cpu,
    recorded_gemms,
    recorded_layers,
)
from explorer.recordings.machine import Machine, MachineLimits
from explorer.recordings.times import TimeSpread
from explorer.reports import speed_report
from lab import docs
from tests.app.test_handlers import plots_of, selection, unchanged

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
    assert "Recorded on one NVIDIA H200" in out.source and "commit" in out.source
    plots = [json.loads(o) for o in plots_of(out)]
    assert len(plots) == 5 and all(p["data"] for p in plots), "a figure without data"
    assert sum(map(len, plots_of(out))) < 300_000
    rows = out.table
    assert {r[0] for r in rows} == {g.label for g in GEMMS.values()}, "every product is in the table"
    assert all(len(r) == len(COLUMNS) for r in rows)
    assert "Take" in out.sentence and "decode" in out.sentence


def test_every_recorded_shape_and_ladder_can_be_shown() -> None:
    shapes = shown().shape["choices"]
    assert len(shapes) > 10
    for _, shape in shapes:
        out = shown(shape=shape)
        assert out.shape["value"] == shape and out.table
    ladder = json.loads(shown(product="int8").ladder)
    assert ladder["data"][0]["y"] == [words.kernel_name(v.name) for v in GEMMS["int8"].variants]


def test_the_error_can_be_that_of_the_chosen_layer() -> None:
    random, layer = shown(), shown(errors=speed.LAYER)
    assert random.tradeoff != layer.tradeoff
    assert "the chosen layer" in layer.sentence


def test_the_choice_says_its_rule_once() -> None:
    """Above the table, for somebody who has not met SQNR; a row says more only where it is an exception."""
    sentence = unescape(shown().sentence)
    assert "the fastest product whose output error is at most a tenth of the signal (20 dB)" in sentence
    assert "no faster product reaches" not in sentence and "Because" not in sentence
    chosen = Point("int8", "INT8", "wgmma", 1e-5, 19.7, 1, True)
    said = html.verdicts([Verdict("decode", "1×2×3", chosen, None, None, "an exception")], "rule")
    assert "an exception" in said


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
    """Table, files and the chosen kernels are of the shape: another scheme does not send them again, and the
    figures only where other products are marked."""
    rest = [RECORDED, "4096×4096×4096", "bf16", speed.RANDOM, None, ()]

    def kept(marks: Any, **chosen: str) -> tuple[set[str], Any]:
        out = speed.follow(*selection(**chosen), *rest, marks)
        return {name for name, value in vars(out).items() if unchanged(value)}, out.marks

    first, marks = kept(None, scheme="int4_group128")
    assert not first, "nothing was shown yet"
    of_shape = {"product", "ladder", "sentence", "table", "csv_file", "json_file"}
    other, other_marks = kept(marks, scheme="nvfp4")
    assert other == of_shape and other_marks != marks
    figures = {"tradeoff", "bars", "sweep", "roofline"}
    for same in ("int4~1x128~symmetric~float16~mse", "int4_group128+gptq"):
        assert kept(marks, scheme=same) == (of_shape | figures, marks), same
    assert kept(marks, scheme="nvfp4", second="int4_group128")[0] == of_shape
    rest[0] = LAYERS_NAME  # a link that was gone back to shows another machine
    assert not kept(marks, scheme="nvfp4")[0]


@pytest.mark.parametrize(
    ("first", "second", "marked"),
    [
        ("nvfp4", "int4_group128", {"nvfp4": "A", "w_nvfp4": "A", "w4a16_group128": "B", "w4a8_int": "B"}),
        ("int4~1x128~symmetric~float16~mse", "", {"w4a16_group128": "A"}),
        ("int4_group48", "", {}),
        ("int8_row", "int8_row", {"int8": "A", "w8a16": "A"}),
    ],
)
def test_products_of_a_scheme_are_marked(first: str, second: str, marked: dict[str, str]) -> None:
    """By what a kernel reads: another range is the same product, another group is none."""
    chosen = Selection(scheme=first, second=second)
    found = speed._marked(chosen)
    assert {name: found.get(name) for name in marked} == marked
    assert bool(found) is bool(marked) and ("B" in found.values()) is ("B" in marked.values())
    words = speed._schemes_words(chosen, at_shape(recorded_gemms().rows, (4096, 4096, 4096)), RECORDED)
    assert ("no kernel here multiplies weights stored like this" in words) is not bool(marked)


@pytest.mark.parametrize(("value", "m"), [("layer-decode", 1), ("layer-prefill", 4096)])
def test_the_layers_own_shape_is_modelled_and_said_to_be(value: str, m: int) -> None:
    """Numbers are recorded at few shapes: the layer's own are modelled from them, never another shape's."""
    out = shown(shape=value)
    n, k = matrix_of(Selection()).values.shape
    labels = {choice: label for label, choice in out.shape["choices"]}
    assert f"{n:,} × {k:,}" in labels[value] and out.shape["value"] == value
    assert (
        "This shape was not measured: times are extrapolated" in out.source
        and "nearest shape," not in out.source
    )
    rows = [row for row in out.table if row[COLUMN_OF_SHAPE]]
    assert rows and all(row[COLUMN_OF_SHAPE] == f"{m}×{n}×{k}" and "± " in row[1] for row in rows)


@pytest.mark.parametrize("text", ["64x5120x5120", " 64 × 5120×5120", "64*5120*5120"])
def test_any_shape_may_be_typed(text: str) -> None:
    """A shape that nobody recorded is shown by its own name, whatever the sign between its numbers."""
    out = shown(shape=text)
    assert out.shape["value"] == "64×5120×5120" and "times are modelled" in out.source
    sizes = speed.of_model(text)
    assert (sizes.m, sizes.n, sizes.k) == (64, 5120, 5120)


def test_what_is_no_shape_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is quoted with what is accepted, and nothing changes."""
    said: list[str] = []
    monkeypatch.setattr(limits, "notify", said.append)
    out = shown(shape="64x8192")
    assert "'64x8192' is no shape: write M, N and K as in 64x8192x8192" in said[0]
    assert all(unchanged(value) for value in out.in_order())


def test_measured_here_and_back_keeps_the_shape() -> None:
    """Another machine's list of shapes does not lose the one that is looked at."""
    asked = "4096×4096×11008"
    live = shown(view=LIVE, shape=asked)
    assert live.shape["value"] == asked
    other = Recording(recorded_gemms().machine, (timing(shape=(8, 64, 64)),))
    assert "was not measured here: choose 8×64×64" in shown(view=LIVE, shape=asked, own=other).source
    assert shown(shape=live.shape["value"]).shape["value"] == asked


def test_after_a_run_its_own_shape_is_shown() -> None:
    """A run of another shape than the one shown is not hidden by it."""
    own = Recording(recorded_gemms().machine, (timing(shape=(8, 64, 64)),))
    view, shape = speed._after_run(8, 64, 64, own)
    assert (view, shape["value"]) == (LIVE, "8×64×64")
    assert unchanged(speed._after_run(-5, 64, 64, own)[0])


def test_shapes_carry_the_names_of_models() -> None:
    """A shape says whose layer it is."""
    labels = {value: label for label, value in shown().shape["choices"]}
    assert labels["1×12288×4096"] == "1×12288×4096 · Llama-2-7B query, key, value"


def test_a_product_just_below_is_taken_and_said() -> None:
    """19.95 dB does not lose to 20.3 dB: what is known of other weights differs by more."""
    a, b, c = (
        dataclasses.replace(
            points(at_shape(recorded_gemms().rows, (1, 8192, 8192)))[0], seconds=s, sqnr_db=db
        )
        for s, db in ((1.0, 19.4), (2.0, 19.95), (3.0, 20.3))
    )
    chosen = verdict([a, b, c], [], "decode", "1×1×1")
    assert chosen is not None and chosen.point is b and chosen.why == "within 0.5 dB of the 20 dB aimed at"


def test_the_layers_own_shape_is_shown_once_it_was_measured() -> None:
    n, k = matrix_of(Selection()).values.shape
    own = Recording(recorded_gemms().machine, (timing(shape=(1, n, k)), timing(shape=(8, n, k))))
    out = shown(view=LIVE, shape="layer-decode", own=own)
    assert "nearest" not in out.source and {row[COLUMN_OF_SHAPE] for row in out.table} == {f"1×{n}×{k}"}


def test_before_a_run_nothing_is_shown_as_measured() -> None:
    out = shown(view=LIVE)
    assert "Nothing measured here yet" in out.source and out.table == []
    assert out.json_file["value"] is None, "the file before is another machine's"


@NO_GPU
def test_a_run_on_the_cpu_times_what_its_libraries_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of a GPU alone are left out; the name that INT8 had here is still taken."""
    monkeypatch.setattr(speed_live, "measure_cpu_limits", lambda: LIMITS)
    monkeypatch.setattr(Library, "missing", property(lambda self: "" if self.label == "torch" else "get it"))
    steps = list(speed.run(4, 32, 64, ["bf16", "int8", "w4a16_group128"], False))
    own = steps[-1].own
    assert {t.gemm for t in own.rows} == {"bf16", "int8_dynamic"}
    assert all(t.shape == (4, 32, 64) and t.threads for t in own.rows)
    assert "Not timed: get it" in steps[-1].status
    out = shown(view=LIVE, own=own)
    assert "Measured now on" in out.source and "FP8" not in str(out.table)
    assert sum("get it" in str(row[1]) for row in out.table) > 5, "what is missing says how to get it"


def test_this_cpu_is_measured_by_one_click(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence comes with the first timing, long before the last; a look at them says float32, no GPU."""
    monkeypatch.setattr(speed_live, "measure_cpu_limits", lambda: LIMITS)
    monkeypatch.setattr(speed_live, "DECODE_ON_CPU", (1, 32, 64))
    monkeypatch.setattr(speed_live, "PREFILL_ON_CPU", (4, 32, 64))
    monkeypatch.setattr(Library, "missing", property(lambda self: "" if self.label == "torch" else "get it"))
    steps = list(speed.run_on_cpu())
    assert "At one token, 4 bits by torch take" in unescape(steps[1].status) and len(steps) > 8
    own = steps[-1].own
    assert {t.shape for t in own.rows} == {(1, 32, 64), (4, 32, 64)}
    view, shape = speed._after_cpu(own)
    assert (view, shape["value"]) == (LIVE, "1×32×64")
    out = shown(view=LIVE, own=own)
    assert "× torch’s float32" in unescape(out.sentence) and "BF16’s" not in unescape(out.sentence)
    assert all(json.loads(plot)["data"] for plot in (out.tradeoff, out.bars, out.roofline, out.ladder))
    assert shown(view=LIVE, own=own, errors=speed.LAYER).tradeoff != out.tradeoff
    assert unchanged(speed._after_cpu(None)[0])


def test_a_recorded_machine_is_shown_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a CPU's numbers are shown under a GPU's name; an unknown machine is refused in words."""
    rows = tuple(recorded_cpu().rows)
    name = next(name for name, r in gemms_by_machine().items() if r.rows == rows)
    out = shown(view=name)
    assert f"Recorded on one {recorded_cpu().machine.chip}" in unescape(out.source)
    assert "At one token" in out.sentence and all(row[2] for row in out.table if row[3])
    assert (f"Recorded on {recorded_cpu().machine.chip}", name) in speed_machines.choices()
    said: list[str] = []
    monkeypatch.setattr(limits, "notify", said.append)
    shown(view="nobody's")
    assert 'no machine "nobody\'s" is recorded; there are' in said[0]


OF_A_GPU = re.compile("tensor core|CUDA|L2 cache|BF16 becomes|beforehand|H200|wgmma|kernels/", re.IGNORECASE)


def test_words_about_gpus_do_not_stand_under_a_cpus_numbers() -> None:
    """Headings, method, hints, facts and sources, also of products that both have, as BF16; a report's words
    too."""
    name = next(name for name, r in gemms_by_machine().items() if r.rows == recorded_cpu().rows)

    def said(view: str, shape: str | None = None) -> list[str]:
        out = shown(view=view, shape=shape, product="bf16")
        ask = (out.product["value"], view)
        texts = (*vars(out.texts).values(), out.shape["info"], speed.facts_of(*ask), speed.source_of(*ask))
        assert out.product["value"] == "bf16" or shape
        return [unescape(str(text)) for text in texts]

    assert all(map(OF_A_GPU.search, said(RECORDED)))
    assert not [text for text in (*said(name), *said(name, "7×7×7")) if OF_A_GPU.search(text)]
    assert "torch's float32 becomes faster" in said(name)[1] and "sources are theirs" in said(name)[-1]
    report = speed_report(recorded_cpu())
    readings = [text for part in report.parts for *_, text in part.figures]
    assert not [text for text in (*report.appendix[0].paragraphs, *readings) if OF_A_GPU.search(text)]


def test_the_recording_of_layers_is_one_more_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever machine it is: its own shapes are shown, and what it lacks is said, never modelled."""
    layers = recorded_layers()
    assert layers.machine.gpu == "NVIDIA H100 80GB HBM3", "the page's words below are of this file"
    out = shown(view=LAYERS_NAME, shape="16×6144×4096")
    assert "Recorded on one NVIDIA H100" in out.source and "not timed on it" not in out.source
    timed = [row for row in out.table if row[COLUMN_OF_SHAPE]]
    assert len(timed) == 5 and all(row[COLUMN_OF_SHAPE] == "16×6144×4096" for row in timed)
    lacks = shown(view=LAYERS_NAME, shape="4096×4096×4096")
    assert "choices" not in lacks.product, "the browser sends its value again: it has to stay a choice"
    assert (
        "4096×4096×4096 was not timed on it, and no time is modelled there: choose 4096×2048×2048"
        in lacks.source
    )
    assert not [row for row in lacks.table if row[COLUMN_OF_SHAPE]] and "modelled (" not in str(lacks.table)
    same = dataclasses.replace(layers, machine=recorded_gemms().machine)
    monkeypatch.setattr(speed_machines, "gemms_by_machine", lambda: {LAYERS_NAME: same})
    labels = [label for label, _ in speed_machines.choices()]
    dated = [recorded_gemms().machine.date, same.machine.date]
    count = len(speed_machines.shapes_of(recorded_gemms().rows))
    assert labels[:2] == [
        f"Recorded on an NVIDIA H200, {dated[0]}: {count} shapes",
        f"Recorded on an NVIDIA H200, {dated[1]}: layers of models",
    ]


def test_two_recordings_of_one_machine_say_what_they_hold() -> None:
    """Date and shapes in the picker, and below it why there are two. If this fails, the same name stands
    twice and nobody can tell which to take."""
    labels = {name: label for label, name in speed_machines.choices()}
    newer = gemms_by_machine()[LATER_NAME].machine.date
    assert labels[LATER_NAME] == f"Recorded on an NVIDIA H200, {newer}: N = K = 8192 only"
    assert re.fullmatch(r"Recorded on an NVIDIA H200, [\d-]+: \d+ shapes", labels[RECORDED])
    assert f"timed again on {newer}, with later kernels" in shown().source
    assert "The whole recording of this machine is of" in shown(view=LATER_NAME).source
    assert "recording of this machine" not in shown(view=LAYERS_NAME).source


@pytest.mark.parametrize(
    ("view", "asked", "near"),
    [
        (LAYERS_NAME, "4096×4096×4096", "4096×2048×2048"),
        (RECORDED, "16×6144×4096", "16×8192×8192"),
        (RECORDED, "layer-decode", "layer-decode"),
        (LAYERS_NAME, "layer-decode", None),
        (RECORDED, "4096×4096×4096", "4096×4096×4096"),
        (LIVE, "16×6144×4096", "16×6144×4096"),
    ],
)
def test_another_machine_is_shown_at_a_shape_that_it_has(view: str, asked: str, near: str | None) -> None:
    """The nearest, and it is said; what depends on the layer is modelled where it can be. If this fails, a
    machine is chosen and times are extrapolated, or there are none."""
    out = speed.show_machine(*selection(), view, asked, None, speed.RANDOM, None, ())
    assert near in (None, out.shape["value"])
    assert ("was not timed on this machine: shown is" in out.source) is (out.shape["value"] != asked)
    assert "was not timed on it" not in out.source
    if view != LIVE:
        shape = next(row[COLUMN_OF_SHAPE] for row in out.table if row[COLUMN_OF_SHAPE])
        assert asked == "layer-decode" or shape == out.shape["value"]


def a_file(path: Path, chip: str, *rows: GemmTiming) -> str:
    """What ``--record-to`` writes."""
    return str(recordings.record_to(path, Recording(Machine(gpu=chip), rows)))


def opened_of(path: str, opened: Any = (), shape: str | None = None) -> Any:
    return speed_machines.open_recording(path, shape, opened)


def test_an_opened_recording_is_one_more_machine(tmp_path: Path) -> None:
    """It is chosen at once; labels are today's, texts no markup; the same file again is the same machine."""
    row = timing(label="Old", variant="<b>x", shape=(8, 64, 64))
    path = a_file(tmp_path / "mine.json", "NVIDIA A100", row)
    out = opened_of(path)
    assert "Opened: mine.json, 1 timing on NVIDIA A100. Only you see it." in out.status
    (mine,) = out.opened
    assert [(t.label, t.variant) for t in mine.recording.rows] == [(GEMMS["bf16"].label, "‹b>x")]
    name = out.view["value"]
    assert ("Opened: NVIDIA A100", name) in out.view["choices"]
    assert ("Opened: NVIDIA A100", name) not in speed_machines.choices(), "never seen by another"
    here = speed.show(*selection(), name, None, None, speed.RANDOM, None, out.opened)
    assert "From a file that you opened. Recorded on one NVIDIA A100" in here.source
    assert {row[COLUMN_OF_SHAPE] for row in here.table if row[COLUMN_OF_SHAPE]} == {"8×64×64"}
    again = opened_of(path, out.opened)
    assert again.opened == out.opened and again.view["value"] == name
    second = opened_of(a_file(tmp_path / "b.json", "NVIDIA L4", row), out.opened)
    assert second.view["value"] != name and len(second.opened) == 2
    both = speed.compare(*selection(), name, None, second.view["value"], None, second.opened)
    assert "At 8×64×64 NVIDIA A100 takes as long as NVIDIA L4 in the one product" in both.sentence


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
    assert "1×64×64 was not timed on NVIDIA A100 (b.json)" in both.sentence
    out = speed_machines.remove_recording(second.name, first.name, opened)
    assert out.opened == (first, third) and out.view["value"] == first.name and unchanged(out.shape)
    assert "Removed: NVIDIA A100, b.json (1)." in out.status and out.listed["value"] == third.name
    out = speed_machines.remove_recording(first.name, first.name, out.opened)
    assert out.view["value"] == RECORDED and out.listed["visible"]
    none = speed.compare(*selection(), RECORDED, None, first.name, None, out.opened)
    assert none.beside["value"] == "" and none.sentence == "", "the second machine was the removed one"
    out = speed_machines.remove_recording(third.name, RECORDED, out.opened)
    assert out.opened == () and not out.listed["visible"] and not out.remove["visible"]


def test_an_opened_recording_is_shown_at_a_shape_that_it_has(tmp_path: Path) -> None:
    """Else the first sight of one's own file is that it lacks the shape of another machine."""
    path = a_file(tmp_path / "a.json", "A", timing(shape=(8, 64, 64)), timing(shape=(1, 8192, 8192)))
    assert opened_of(path, shape="4096×4096×4096").shape["value"] == "1×8192×8192", "the most telling first"
    assert unchanged(opened_of(path, shape="8×64×64").shape), "the shape that is looked at is kept"


def test_products_that_this_version_does_not_know_are_said_and_left_out(tmp_path: Path) -> None:
    """A newer version's file opens, and what cannot be shown has a name; of nothing else it is refused."""
    newer = [timing(gemm=f"new{i}", shape=(8, 64, 64)) for i in range(8)]
    out = opened_of(a_file(tmp_path / "n.json", "A", timing(shape=(8, 64, 64)), *newer, newer[0]))
    assert "1 timing on A. Not shown, because this version has no such products: new0, new1" in out.status
    assert "new5 and 2 more." in out.status
    assert [row.gemm for row in out.opened[0].recording.rows] == ["bf16"]
    refused = opened_of(a_file(tmp_path / "o.json", "A", newer[0]), out.opened)
    assert "o.json was not opened: this version knows none of its products (new0)" in refused.status
    assert unchanged(refused.opened) and refused.file is None


def test_a_file_that_is_no_recording_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first defect, what is accepted, and a limit of size and number; what was open stays. It is said in
    the line of the file alone, where the next file replaces it: a message elsewhere would outlive that."""
    toasts: list[str] = []
    monkeypatch.setattr(limits, "notify", toasts.append)
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.LOCAL, recording_bytes=4000))
    bad, text = tmp_path / "bad.json", tmp_path / "notes.txt"
    bad.write_text('{"machine":{"gpu":"x"},"rows":[{"row":"bf16"}]}')
    text.write_text("hello")
    good = [a_file(tmp_path / f"{chip}.json", chip, timing(shape=(8, 64, 64))) for chip in "ABC"]
    large = a_file(tmp_path / "large.json", "L", *[timing()] * 9)
    opened = opened_of(good[0]).opened
    accepted = "Accepted is a JSON file of matrix products: what explorer bench gemm --record-to FILE"
    for path, *why in (
        (
            str(bad),
            "bad.json was not opened: this is no recording of matrix products: rows.0.label: Field required",
            accepted,
        ),
        (str(text), "notes.txt was not opened: it is no JSON file", accepted),
        (large, "a recording may have 4 kB here"),
    ):
        out = opened_of(path, opened)
        assert all(part in unescape(out.status) for part in why)
        assert unchanged(out.opened) and unchanged(out.view) and out.file is None
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.LOCAL, recordings=2))
    opened = opened_of(good[1], opened).opened
    full = opened_of(good[2], opened)
    assert "2 recordings are open, as many as may be. Remove one" in full.status and unchanged(full.opened)
    assert not toasts


def test_a_second_machine_is_one_other_than_the_first() -> None:
    """Recorded beside recorded and beside what is measured here; chosen as the first, it is no second."""
    cpu_name = next(name for name, r in gemms_by_machine().items() if r.rows == recorded_cpu().rows)
    shape, own = "1×4096×4096", Recording(Machine(gpu="Mine"), (timing(shape=(1, 4096, 4096)),))

    def compared(view: str, beside: str, own: Any = None, shape: str = shape) -> Any:
        return speed.compare(*selection(), view, shape, beside, own, ())

    out = compared(RECORDED, LAYERS_NAME)
    assert "NVIDIA H200 is" in out.sentence and json.loads(out.figure)["data"]
    assert RECORDED not in {value for _, value in out.beside["choices"]} and out.csv_file["interactive"]
    assert f"as fast as {recorded_cpu().machine.chip}" in unescape(compared(RECORDED, cpu_name).sentence)
    assert "in the one product that both timed" in compared(LIVE, cpu_name, own).sentence
    assert "Nothing measured here yet" in compared(RECORDED, LIVE).sentence
    lacks = compared(RECORDED, LAYERS_NAME, shape="64×8192×8192")
    assert "64×8192×8192 was not timed on NVIDIA H100 80GB HBM3. Both timed 64×4096×4096" in lacks.sentence
    assert not lacks.csv_file["interactive"] and lacks.csv_file["value"] is None
    same = compared(LAYERS_NAME, LAYERS_NAME)
    assert same.sentence == "" and same.beside["value"] == "" and unchanged(same.figure)


def test_the_curve_over_tokens_is_that_of_the_shape() -> None:
    """Where every layer was timed at as many M, the shape's own curve is drawn, not another layer's."""
    rows = recorded_layers().rows
    assert {t.shape[1:] for t in swept(rows, (16, 6144, 4096))} == {(6144, 4096)}
    assert {t.shape[1:] for t in swept(recorded_gemms().rows, (1, 12288, 4096))} == {(8192, 8192)}


@pytest.mark.parametrize(
    ("capability", "every", "told"), [((8, 0), False, 1), ((8, 0), True, 0), ((9, 0), False, 0)]
)
def test_a_run_on_another_gpu_says_where_its_choices_were_tuned(
    capability: tuple[int, int], every: bool, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, at the end of a run of the fastest kernels; the box that times all of them is named."""
    monkeypatch.setattr(speed_live, "gpu_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(speed_live, "kernel_capability", lambda device: capability)
    monkeypatch.setattr(speed_live, "_machine", lambda: Machine(gpu="NVIDIA A100"))
    monkeypatch.setattr(speed_live, "_one", lambda *_: iter([timing(shape=(8, 64, 64))]))
    steps = [unescape(str(step.status)) for step in speed.run(8, 64, 64, ["bf16", "int8"], every)]
    hint = (
        "Choices of kernels were tuned on an NVIDIA H200; on this NVIDIA A100 another variant may be faster"
    )
    assert [hint in step for step in steps].count(True) == told
    assert "2 of 2 products at 8×64×64" in steps[-1] and (hint in steps[-1]) is bool(told)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((0, 1, 1), "at least 1"),
        ((1 << 20, 1 << 12, 1 << 12), "X would have"),
        ((1, 1 << 20, 1 << 12), "W would have"),
    ],
)
def test_shapes_beyond_the_limit_are_refused_in_words(
    shape: tuple[int, int, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(limits, "notify", said.append)
    out = list(speed.run(*shape, ["bf16"], False))
    assert words in said[0] and words in out[-1].status


@NO_GPU
def test_products_without_a_cpu_kernel_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(limits, "notify", said.append)
    list(speed.run(4, 4, 4, ["nvfp4"], False))
    assert "no product 'nvfp4' on a CPU; there are fp32" in said[0]


@pytest.mark.parametrize("recorded", [recorded_cpu, recorded_gemms])
def test_a_run_that_was_stopped_before_the_usual_product_has_its_ratios(recorded: Any) -> None:
    """Each kernel is timed in turns with torch's: the table has what the sentence has."""
    every = at_shape(recorded().rows, recorded().rows[0].shape)
    one = next(t for t in every if t.gemm in ("w4_group32", "w_nvfp4") and t.baseline_graph)
    stopped = verdict(points([one]), [one], "this", one.shape_text)
    whole = verdict(points([one]), every, "this", one.shape_text)
    assert stopped and whole and one.baseline_graph
    assert stopped.faster == pytest.approx(one.baseline_graph.median_s / one.total_seconds)
    assert stopped.smaller == whole.smaller and stopped.faster == pytest.approx(whole.faster, rel=0.3)
    assert "times as fast as torch's" in summary(points([one]), [one], "this")
    other = dataclasses.replace(one, baseline="torch._scaled_mm", threads=None)
    alone = verdict(points([other]), [other], "this", one.shape_text)
    assert alone and alone.faster is None, "another product's time is not the usual one's"


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


def test_a_product_without_a_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a new row of GEMMS needs an H200 before the page or the docs can be shown."""
    added = dataclasses.replace(GEMMS["int8"], name="int9", label="INT9 W9A9")
    monkeypatch.setitem(GEMMS, "int9", added)
    out = shown()
    line = next(r for r in out.table if r[0] == "INT9 W9A9")
    assert line[1] == NOT_RECORDED and len(line) == len(COLUMNS) and line[2:] == [None] * (len(line) - 2)
    assert "int9" not in {value for _, value in out.product["choices"]}
    assert f"| INT9 W9A9 | {NOT_RECORDED} |" in docs.render("gemm-speed.md")


def test_a_page_without_any_recording_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this fails, a checkout without assets/measurements shows a traceback."""
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    out = shown()
    assert "Not recorded yet" in out.source and {r[1] for r in out.table} == {NOT_RECORDED}
    for page in docs.pages():
        if page != "exports.md":  # of the registry: nothing in it is measured
            assert "not recorded yet" in docs.render(page).lower(), page


def test_a_damaged_recording_is_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this fails, one wrong byte in a recording is a traceback for every visitor."""
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    messages: list[str] = []
    monkeypatch.setattr(limits, "notify", messages.append)
    (tmp_path / "gemm.json").write_text('{"machine":{"gpu":"x"},"rows":[{"row":"bf16"}]}')
    out = shown()
    assert all(unchanged(v) for v in out.in_order())
    assert "gemm.json is not a recording of GemmTiming" in messages[0]


def test_links_with_an_older_name_still_work() -> None:
    """The product that was called fp8_fine is shown under its new name."""
    out = shown(product="fp8_fine")
    assert out.product["value"] == "fp8_blockwise" and json.loads(out.ladder)["data"]
    assert "gemm_wgmma.cu" in speed.source_of("fp8_fine") and "1×128" in speed.facts_of("fp8_fine")
