"""The place Speed: recorded numbers on any machine, timings on this one, bad shapes and files refused.

If these fail, the place is empty on a laptop, or shows one measurement under another's name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from app import limits
from app.parts.section import drawn
from app.sections import speed, speed_live, speed_more
from app.sections.speed_machines import LIVE, NO_RECORDING, RECORDED, place_of, shapes_of
from app.serving.sessions import CurrentRequest, answering, current_request
from app.state.query import Query
from app.state.record import FileRefusedError
from app.state.selection import Selection, matrix_of
from app.state.visits import visit
from explorer import gpu
from explorer.cpu.kernels import Library
from explorer.products.advice import at_shape, choice, fastest, output_errors, points, summary
from explorer.products.gemms import GEMMS, Product
from explorer.recordings import files as recordings
from explorer.recordings.files import NOT_RECORDED, Recording, RecordingError
from explorer.recordings.gemm import GemmTiming, recorded_gemms
from explorer.recordings.machine import Machine, MachineLimits
from explorer.recordings.times import TimeSpread
from tests.covering import sampled

LIMITS = MachineLimits(1e10, {"f32": 1e11, "bf16": 1e11, "s8": 1e11})
SECTIONS = (speed.SECTION, speed.TOKENS, speed.ERRORS, speed_more.SECTION)
NO_GPU = pytest.mark.skipif(gpu.available().ok, reason="on a machine with a GPU its kernels are timed")


@pytest.fixture(autouse=True)
def mine() -> Iterator[None]:
    """A visit of the test's own."""
    with answering(CurrentRequest(f"visit {id(object())}")):
        visit().opened_recordings, visit().gemm_timings = (), None
        yield


def shown(**query: str) -> dict[str, str]:
    """What all sections of the place show of an address."""
    given = Query(query)
    slots: dict[str, str] = {}
    for section in SECTIONS:
        assert section.view is not None
        slots |= drawn(section.view(given)) | {f"{section.name} title": ""}
    return {name: value if value.startswith('{"data"') else unescape(value) for name, value in slots.items()}


def test_recorded_numbers_fill_the_place_and_name_their_gpu() -> None:
    out = shown(machine=RECORDED, shape="4096x4096x4096", product="int8", products="1")
    assert "NVIDIA H200" in out["source"] and "Torch's BF16: 174" in out["said"]
    plots = [json.loads(value) for value in out.values() if value.startswith('{"data"')]
    assert len(plots) == 6 and all(plot["data"] for plot in plots), "a figure without data"
    assert sum(map(len, out.values())) < 300_000
    assert all(gemm.label in out["table"] for gemm in GEMMS.values()), "every product is in the table"
    assert json.loads(out["speed-ladder"])["data"][0]["y"][0] == "naive"
    assert ">1×12288×4096 · Llama-2-7B query, key, value<" in out["pickers"], "a shape says whose layer it is"


SHAPES = ["x".join(map(str, shape)) for shape in shapes_of(recorded_gemms().rows)]


@pytest.mark.parametrize("shape", sampled(SHAPES, SHAPES[:2]))
def test_every_recorded_shape_can_be_shown(shape: str) -> None:
    out = shown(shape=shape, machine=RECORDED)
    assert len(SHAPES) > 10 and "not recorded" not in out["source"] and out["table"]


MARKED: list[tuple[str, str, dict[str, str]]] = [
    ("nvfp4", "int4_group128", {"nvfp4": "A", "w_nvfp4": "A", "w4a16_group128": "B", "w4a8_int": "B"}),
    ("int4~1x128~symmetric~float16~mse", "", {"w4a16_group128": "A"}),
    ("int4_group48", "", {}),
    ("int8_row", "", {"int8": "A", "w8a16": "A"}),
]


def test_products_of_a_scheme_are_marked() -> None:
    """By what a kernel reads: another range is the same product, another group is none."""
    for first, second, marked in MARKED:
        query = Query({"scheme": first, "second": second})
        found = place_of(query).marked(query)
        assert {name: found.get(name) for name in marked} == marked
        assert bool(found) is bool(marked) and ("B" in found.values()) is ("B" in marked.values())


def test_the_tensors_own_shape_is_shown_or_the_nearest_is_named() -> None:
    """Otherwise times of another shape are taken for the layer's."""
    n, k = matrix_of(Selection()).values.shape
    own = place_of(Query({}))
    assert own.at == own.asked == (1, n, k), "some GPU was recorded with this shape"
    for old, now in (("gemm-later", RECORDED), ("gemm-layers", "nvidia-h100-80gb-hbm3")):
        assert place_of(Query({"machine": old})).name == now, "links of earlier versions"
    for value, m in (("layer-decode", 1), ("layer-prefill", 4096), ("64", 64)):
        out = shown(shape=value, machine=RECORDED)
        assert f"{m}×{n}×{k} was not recorded" in out["source"] and f"of {m}×4096×4096" in out["source"]
        assert "the nearest shape" in out["advice"] and f"at {m}×4096×4096" in out["title"]
    visit().gemm_timings = Recording(recorded_gemms().machine, (timing(shape=(1, n, k)),))
    assert "nearest" not in shown(machine=LIVE)["source"]
    assert "was not measured here yet: choose 1×" in shown(machine=LIVE, shape="8")["source"]


def test_times_whose_spreads_overlap_are_not_ranked() -> None:
    """Noise is no order."""
    spreads = {"w_nvfp4": (2.0, 1.8, 2.4), "w4a16_group128": (2.1, 1.9, 2.5), "bf16": (9.0, 8.0, 9.5)}
    rows = [
        timing(gemm=name, label=name, shape=(1, 64, 64), activation_s=None, graph=TimeSpread(*spread))
        for name, spread in spreads.items()
    ]
    visit().gemm_timings = Recording(Machine(gpu="NVIDIA L4"), tuple(rows))
    asked = {"machine": LIVE, "shape": "1x64x64", "scheme": "nvfp4", "second": "int4_group128"}
    assert "cannot be ranked" in shown(**asked)["said"]
    assert "cannot be ranked" not in shown(**asked | {"second": "bf16"})["said"]


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose limits are known, with torch's products alone."""
    speed_live._cpu_limits.cache_clear()
    monkeypatch.setattr(speed_live, "measure_cpu_limits", lambda: LIMITS)
    monkeypatch.setattr(Library, "missing", property(lambda self: "" if self.label == "torch" else "get it"))


@NO_GPU
@pytest.mark.usefixtures("torch_alone")
def test_this_cpu_times_a_and_b_beside_the_recorded_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress, then both figures; what is finished is kept, and shown as a machine. Where no library has A
    or B, that is said at once."""
    asked = {"scheme": "int4_group32", "second": "nvfp4", "shape": "4x32x64"}
    assert "B, NVFP4, has no product here for CPUs" in shown(**asked)["can"]
    steps = list(speed.SECTION.runs["measure"](Query(asked)))
    assert "Measuring" in str(steps[0]["status"]) and "3 of 3" in str(steps[-1]["status"])
    assert "at 4×32×64" in str(steps[-1]["here-title"]) and "machine" in str(steps[-1]["here-title"])
    assert {t.gemm for t in visit().gemm_timings.rows} == {"fp32", "bf16", "w4_group32"}  # type: ignore[union-attr]
    out = shown(**asked, machine=LIVE)
    assert "float32" in out["said"] and "BF16’s" not in out["advice"]
    assert all(json.loads(out[name])["data"] for name in ("speed-bars", "tradeoff", "speed-roofline"))
    assert "get it" in out["table"], "what is missing says how to get it"
    assert shown(**asked)["speed-here"] and not out["speed-here"]
    swept = list(speed.TOKENS.runs["sweep"](Query(asked)))
    assert json.loads(drawn(swept[-1])["speed-sweep-here"])["data"]
    assert len({t.shape for t in visit().gemm_timings.rows}) == 5, "added to what was there"  # type: ignore[union-attr]
    for refused, why in (
        ({"scheme": "nvfp4", "second": "mxfp4"}, "no product here"),
        ({"shape": "1x90000x90000"}, "may have"),
    ):
        with pytest.raises(ValueError, match=why):
            list(speed.SECTION.runs["measure"](Query(asked | refused)))
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="549,755,813,888 multiplications"):
        patch.setattr(limits, "current", lambda: limits.HOSTED)
        list(speed.SECTION.runs["measure"](Query(asked | {"shape": "8192x8192x8192"})))
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="a side of 4,194,304"):
        patch.setattr(limits, "current", lambda: limits.HOSTED)
        list(speed.SECTION.runs["measure"](Query(asked | {"shape": "1x4194304x1"})))
    usual = Query({"scheme": "nvfp4", "shape": "4x32x64", "timed": "usual"})
    rest = list(speed.SECTION.runs["measure"](usual))
    assert "get it" in str(rest[-1]["status"])


@NO_GPU
@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize(("waits", "said"), [(0, "1 of 3"), (1e6, "3 of 3")])
def test_a_timing_has_its_time_however_long_it_waits(
    waits: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waited for another visitor's ended without a result."""
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.LOCAL, run_seconds=0))
    asked = Query({"scheme": "int4_group32", "second": "nvfp4", "shape": "4x32x64"})
    with answering(CurrentRequest()):
        steps = speed.SECTION.runs["measure"](asked)
        assert "Measuring" in str(next(steps)["status"])
        current_request().waited.seconds += waits
        *_, last = steps
    assert said in str(last["status"]) and ("stopped after 0 s" in str(last["status"])) == (not waits)


def test_errors_are_computed_on_the_tensor() -> None:
    """They replace those of random data, and say so."""
    asked = Query({"machine": "amd-epyc-2-threads", "shape": "1"})
    before = speed.errors_view(asked)
    *_, end = speed.ERRORS.runs["errors"](asked)
    assert "Error on random" in str(before["title"]) and "Error on this tensor" in str(end["title"])
    assert drawn(end)["tradeoff"] != drawn(before)["tradeoff"]
    assert "this tensor" in str(speed.errors_view(asked)["title"])


@pytest.mark.parametrize("shape", [(4096, 1), (1, 4096), (64, 64)])
def test_errors_of_a_strange_shape_take_no_more_than_of_a_square(
    shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long side alone makes X or Y large, where the tensor is small."""
    small, sizes = dataclasses.replace(limits.HOSTED, product_elements=1 << 16), list[int]()
    monkeypatch.setattr(limits, "current", lambda: small)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path.parent))
    np.save(tmp_path / "w.npy", np.random.default_rng(0).standard_normal(shape, dtype=np.float32))

    def measured(x: Tensor, w: Tensor, gemms: Sequence[Product]) -> dict[str, float]:
        sizes.extend((x.numel(), w.numel(), len(x) * len(w)))
        return output_errors(x, w, gemms)

    monkeypatch.setattr(speed, "output_errors", measured)
    file = str(tmp_path / "w.npy")
    asked = Query({"source": "file", "file": file, "machine": "amd-epyc-2-threads", "shape": "1"})
    *_, end = speed.ERRORS.runs["errors"](asked)
    assert 0 < max(sizes) <= 1 << 12
    assert ("rows of this tensor" in str(end["title"])) == (shape == (4096, 1))


def test_a_kernels_source_files_and_report() -> None:
    """The text of the file that is chosen, none by default; every kernel in the CSV; the report's command."""
    asked = {"shape": "1x8192x8192", "product": "int8", "machine": RECORDED}
    assert not shown(**asked)["code"]
    assert "__global__" in shown(**asked, kernel_file=GEMMS["int8"].variants[0].file)["code"]
    assert not shown(**asked, kernel_file="../../pyproject.toml")["code"]
    (files,) = speed_more.SECTION.runs["files"](Query(asked))
    assert ".csv" in str(files["files-made"]) and ".json" in str(files["files-made"])
    *_, made = speed_more.SECTION.runs["report"](Query({"shape": "4096x4096x4096", "scheme": "nvfp4"}))
    assert "explorer report speed --shape 4096x4096x4096 --schemes nvfp4" in str(made["report"])
    assert '<a class="download"' in drawn(made)["report"], "it is HTML where the page shows it"
    with pytest.raises(ValueError, match="nothing is measured here"):
        list(speed_more.SECTION.runs["report"](Query({"machine": LIVE})))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the store, as an upload's."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (made := tmp_path / "upload").mkdir()
    return made


def a_file(path: Path, chip: str, *rows: GemmTiming) -> str:
    """What ``--record-to`` writes."""
    return str(recordings.record_to(path, Recording(Machine(gpu=chip), rows)))


def opened_of(path: str, **query: str) -> dict[str, str]:
    return dict(speed.SECTION.acts["open"](Query(query), {"path": path}))


def test_an_opened_recording_is_one_more_machine(folder: Path) -> None:
    """It is chosen at once; texts are no markup; the same file again is the same machine; it can be removed,
    and its link then says that it is not open."""
    row = timing(label="Old", variant="<b>x", shape=(8, 64, 64))
    path = a_file(folder / "mine.json", "NVIDIA A100", row, timing(shape=(1, 8192, 8192)))
    there = opened_of(path, shape="4096x4096x4096")
    assert there["shape"] == "1x8192x8192", "the most telling first"
    assert opened_of(path, shape="8x64x64") == there | {"shape": "8x64x64"}, "a shape that it has is kept"
    (mine,) = visit().opened_recordings
    first = mine.recording.rows[0]
    assert (first.label, first.variant) == (GEMMS["bf16"].label, "‹b>x")
    out = shown(machine=there["machine"], shape="8x64x64")
    assert "From a file that you opened" in out["source"] and "NVIDIA A100" in out["source"]
    assert "opened: NVIDIA A100" in out["pickers"] and "Remove" in out["opened"]
    second = opened_of(a_file(folder / "b.json", "NVIDIA L4", row))
    assert second["machine"] != there["machine"] and len(visit().opened_recordings) == 2
    with answering(CurrentRequest("another")):
        assert "A100" not in shown()["pickers"], "never seen by another"
        opened_of(path)
        assert visit().opened_recordings[0].recording is mine.recording, "but parsed once"
    assert speed.SECTION.acts["remove"](Query(there), {}) == {"machine": ""}
    query = Query(there)
    assert place_of(query).name == "nearest" and query.problems["machine"] == NO_RECORDING


def test_a_file_that_is_no_recording_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first defect, and limits of size and number; what was open stays. A path that is no upload is
    none."""
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.LOCAL, recording_bytes=4000))
    bad, text = folder / "bad.json", folder / "notes.txt"
    bad.write_text('{"machine":{"gpu":"x"},"rows":[{"row":"bf16"}]}')
    rates = MachineLimits(1.0, {str(i): 2.0 for i in range(65)})
    many = recordings.record_to(folder / "many.json", Recording(Machine(gpu="x", limits=rates), (timing(),)))
    text.write_text("hello")
    good = [a_file(folder / f"{chip}.json", chip, timing(shape=(8, 64, 64))) for chip in "ABC"]
    large = a_file(folder / "large.json", "L", *[timing()] * 9)
    opened_of(good[0])
    accepted = "explorer bench gemm --record-to FILE"
    for path, *why in (
        (str(bad), "bad.json", "rows.0.label", accepted),
        (str(text), "notes.txt", "JSON", accepted),
        (str(many), "many.json", "machine.limits.rates", "64 items"),
        (large, "4 kB"),
    ):
        with pytest.raises(FileRefusedError) as refused:
            opened_of(path)
        assert all(part in str(refused.value) for part in why) and len(visit().opened_recordings) == 1
    with pytest.raises(ValueError, match="this file is not here"):
        opened_of("/etc/passwd")
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.LOCAL, recordings=2))
    opened_of(good[1])
    with pytest.raises(FileRefusedError, match="2 recordings"):
        opened_of(good[2])


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
    return dataclasses.replace(recorded_gemms().rows[0], **{"graph": TimeSpread(3.0, 3.0, 3.0)} | changes)


def test_quantizing_x_is_counted_once() -> None:
    """Before the product it is added; inside a dynamic product it is there already."""
    assert timing(activation_s=1.0, dynamic=False).total_seconds == 4.0
    assert timing(activation_s=1.0, dynamic=True).total_seconds == 3.0
    assert timing(activation_s=None, dynamic=False).total_seconds == 3.0


def test_a_page_without_any_recording_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this fails, a new row of GEMMS needs an H200, or one wrong byte in a recording is a traceback."""
    with monkeypatch.context() as patch:
        patch.setitem(GEMMS, "int9", dataclasses.replace(GEMMS["int8"], name="int9", label="INT9 W9A9"))
        out = shown()
    assert f'<td>INT9 W9A9</td><td class="num">{NOT_RECORDED}' in out["table"]
    assert '"int9"' not in out["product"]
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    assert NOT_RECORDED.capitalize() in shown()["source"]
    (tmp_path / "gemm.json").write_text('{"machine":{"gpu":"x"},"rows":[{"row":"bf16"}]}')
    with pytest.raises(RecordingError, match=r"gemm\.json"):
        shown()
