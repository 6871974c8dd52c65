"""The Methods and Training sections' handlers: what they show, and what they refuse.

If these fail, a section shows another layer's repair than was chosen, or loses what a visitor has captured.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from app import limits
from app.sections import budget, calibration, layer_inputs, methods, overview, take_away
from app.state import analyses, choices, models, visits
from app.state.query import Query
from app.state.record import Record, next_record
from app.state.selection import Selection
from explorer import load_matrix
from explorer.methods import COMBINATIONS, METHODS
from explorer.methods.files import load_layer
from explorer.methods.recipe import Recipe
from tests.app.acting import last, plots_of, selection, shown, unchanged, views_of

pytestmark = pytest.mark.usefixtures("one_thread")


def plots(state: Any) -> list[dict[str, Any]]:
    return [json.loads(o) for o in plots_of(state)]


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A part of a layer small enough for every method, in a file."""
    w, x = load_matrix("sample:attention_query").values, load_matrix("sample:query_in").values
    path = tmp_path_factory.mktemp("layers") / "small.safetensors"
    tensors = {"weight": w[:48, :128].contiguous(), "activations": x[:96, :128].contiguous()}
    save_file(tensors, path)
    return str(path)


def of_file(path: str, names: list[str], *schemes: str) -> Any:
    return methods.run("file", "", path, None, None, names, list(schemes), "INT8, one scale")


SOME = ("rtn", "gptq", "awq", "hqq", "rotation", "smoothquant_search", "rotation+gptq")
EACH = (*METHODS, *COMBINATIONS)


@pytest.mark.parametrize("names", [SOME, pytest.param(EACH, marks=pytest.mark.thorough)], ids=len)
def test_every_method_on_a_layer(names: tuple[str, ...], small_file: str) -> None:
    """Each method has its line, its numbers, and a text that says what it does."""
    out = last(of_file(small_file, list(names), "int8_row_asym"))
    assert len(plots(out)) == 7 and all(p["data"] for p in plots(out)) and out.sentence
    assert sum(map(len, plots_of(out))) < 700_000
    assert len(out.table) == len(names) == len(out.results["choices"])
    assert all(len(row) == len(methods.COLUMNS) and None not in row for row in out.table)
    for row, name in zip(out.table, names, strict=True):
        assert METHODS[name.split("+")[0]].why in row[-1]
    assert json.loads(out.film)["layout"]["sliders"][0]["steps"][-1]["label"] == "100 %"


HERE = {"source": "builtin", "sample": "attention_query", "scheme": "int3_group128"}


def of_this(chosen: Selection, names: list[str]) -> Any:
    values = dataclasses.astuple(chosen)
    return last(methods.run("this", "", None, None, None, names, [], "as they are", *values))


def test_a_result_becomes_b_with_its_own_weight() -> None:
    """B is the line's weight: its numbers are those of the line, its element the method's code."""
    chosen = Selection(**HERE)
    run = of_this(chosen, ["rtn", "gptq", "rotation+gptq"])
    best = run.results["value"]
    assert best.startswith("int3_group128+")
    (act,) = json.loads(methods.written(*dataclasses.astuple(chosen), "int3_group128+gptq", "b", run.owner))
    pair = next_record(Record(**HERE), act, None)
    assert pair.schemes == ("int3_group128", "int3_group128+gptq")
    out = shown((3, 5), **HERE | {"second": pair.second}).shown
    lines = {row[0]: dict(zip(methods.COLUMNS, row, strict=True)) for row in run.table}
    for name in ("rtn", "gptq"):
        line = lines[METHODS[name].label]
        for column in ("output SQNR dB", "weight SQNR dB"):
            assert f"{line[column]:.2f}" in out.kpis, (name, column)
    assert "by GPTQ" in unescape(out.chips) and "by GPTQ →" in unescape(out.inspector)


def test_a_repaired_scheme_is_computed_from_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the method works, it is said how far it is; every part of the page takes the text."""
    repaired = HERE | {"scheme": "int4_group64+autoround", "second": "int4_group64+lqer"}
    values = selection(**repaired)
    steps = list(views_of({"do": "scheme", "text": repaired["scheme"]}, whole=True, **repaired))
    assert any("AutoRound" in str(s.notice) for s in steps[:-1])
    assert calibration.show(*values, 0.5).sentence
    (act,) = json.loads(calibration.written("mse", 0.5, "b", "int4_group64+awq"))
    assert act["side"] == "b" and act["text"].endswith("~mse+awq")
    assert Recipe.parse(act["text"]).scheme.calibrator.name == "mse"
    here = Query(repaired)
    command = unescape(str(take_away.view(here)["commands"]))
    assert "explorer methods sample:attention_query --inputs sample:query_in" in command
    assert "--methods autoround" in command
    kept = visits.VisitData()
    monkeypatch.setattr(take_away, "visit", lambda: kept)
    assert list(take_away.make(here)) and kept.taken is not None
    assert load_layer(kept.taken[1][1]).residues, "the correction is in the file"
    assert "GB/s" in overview.kernel(*values), "the kernel is that of the scheme"
    names = ("int4_group128+gptq", "int4_group128")
    repaired, plain = (next_record(Record(scheme=name), {"do": "next"}, None) for name in names)
    assert repaired.scheme == f"{plain.scheme}+gptq"


def test_results_stay_with_their_tensor(small_file: str, said: list[str]) -> None:
    """If this fails, B shows this tensor under a method that was judged on another."""
    chosen = Selection(**HERE)
    run = of_this(chosen, ["awq"])
    moved = dataclasses.replace(chosen, sample="mlp_up")
    other = last(of_file(small_file, ["awq"], "nvfp4"))
    for here, owner in ((moved, run.owner), (chosen, other.owner), (chosen, None)):
        assert unchanged(methods.written(*dataclasses.astuple(here), "nvfp4+awq", "b", owner)) and said.pop()
    kept = methods.cleared(*dataclasses.astuple(dataclasses.replace(chosen, scheme="nvfp4")), run.owner)
    assert unchanged(kept.table), "another scheme is none of another tensor"
    gone = methods.cleared(*dataclasses.astuple(moved), run.owner)
    assert gone.table == [] and gone.sentence == "" and gone.owner is None and not gone.bars
    named = dataclasses.replace(run.owner, tensor=None)
    assert unchanged(methods.cleared(*dataclasses.astuple(moved), named).table)


def test_a_step_that_takes_long_does_not_hold_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio ends a stopped run where it yields next: else a click on Run after Stop is lost until then."""
    monkeypatch.setattr(analyses, "SAID_AGAIN_S", 0.01)
    go_on = threading.Event()

    def slow(progress: Any) -> str:
        progress(1, 2)
        assert go_on.wait(60)
        return "done"

    steps = analyses.reported(slow)
    assert [next(steps), next(steps), next(steps)] == [(1, 2)] * 3
    go_on.set()
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
    assert end.value.value == "done"


def test_a_long_computation_reports_and_is_stopped() -> None:
    """A closed page must not keep the machine busy; an error reaches whoever waits."""
    stopped = threading.Event()

    def endless(progress: Any) -> None:
        try:
            while True:
                progress(0, 10**9)
        finally:
            stopped.set()

    def wrong(progress: Any) -> None:
        raise ValueError("wrong")

    steps = analyses.reported(endless)
    assert next(steps) == (0, 10**9)
    steps.close()
    assert stopped.wait(60)
    with pytest.raises(ValueError, match="wrong"):
        list(analyses.reported(wrong))


def test_what_a_stopped_run_has_finished_is_shown() -> None:
    """Stop cancels the run where it is: what the first method gave must be there by then, files too."""
    steps = of_query(["rtn", "awq"])
    assert next(steps).status
    out = next(steps)
    steps.close()
    assert "1 of 2" in out.status and METHODS["rtn"].label in out.sentence and len(out.table) == 1
    assert not any(unchanged(value) for value in vars(out).values())
    assert json.loads(out.bars)["data"] and Path(out.csv_file["value"]).is_file()


def of_query(names: list[str]) -> Any:
    schemes = ["int4_group128"]
    return methods.run("builtin", "attention_query", None, None, None, names, schemes, "as they are")


def test_my_file_and_a_model_on_my_text(minilm: Path, tmp_path: Path) -> None:
    """A file's layer, then the same layer captured from the model: both give what the built-in one gives."""
    layer = "encoder.layer.3.intermediate.dense"
    assert layer in layer_inputs.list_linear(str(minilm)).layer["choices"]
    path = last(layer_inputs.run_capture(str(minilm), layer, "one line\n\nand another one", 6)).captured
    assert layer_inputs.layers_in(path) == [layer]
    schemes = ["int4_group128"]
    out = last(methods.run("text", "", None, path, None, ["rtn", "awq"], schemes, "as they are"))
    assert [row[0] for row in out.table] == [METHODS["rtn"].label, METHODS["awq"].label]
    w, x = load_matrix("sample:attention_query").values, load_matrix("sample:query_in").values
    save_file({"weight": w, "activations": x}, file := tmp_path / "mine.safetensors")
    own = last(methods.run("file", "", str(file), None, None, ["rtn"], schemes, "as they are"))
    built = last(of_query(["rtn"]))
    seconds = list(methods.COLUMNS).index("seconds")
    assert [r[:seconds] for r in own.table] == [r[:seconds] for r in built.table]


def test_a_model_too_large_to_run_is_refused_before_it_is_loaded(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a visitor of a hosted page fills its memory with one model."""
    monkeypatch.setattr(models, "load_model", lambda *_, **__: pytest.fail("it was loaded"))
    few = dataclasses.replace(limits.LOCAL, model_weights=1_000_000)
    monkeypatch.setattr(limits, "current", lambda: few)
    with pytest.raises(ValueError, match=r"22,713,728 .* 1,000,000"):
        list(budget.measure(Query({"model": str(minilm)})))


def test_bad_input_is_said(tmp_path: Path, said: list[str]) -> None:
    """As a notification that goes away and in the status line that stays."""
    save_file(
        {"a.weight": torch.ones(4, 8), "a.activations": torch.ones(4, 9), "b.weight": torch.ones(2, 2)},
        two := tmp_path / "x.safetensors",
    )
    save_file({"b.weight": torch.ones(2, 2)}, one := tmp_path / "y.safetensors")
    for arguments, words in (
        (("builtin", "mlp_up", None, None, None, [], ["nvfp4"], ""), "method"),
        (("builtin", "nope", None, None, None, ["rtn"], ["nvfp4"], ""), "nope"),
        (("text", "", None, None, None, ["rtn"], ["nvfp4"], ""), "capture"),
        (("file", "", None, None, None, ["rtn"], ["nvfp4"], ""), "upload"),
        (("file", "", str(two), None, None, ["rtn"], ["nvfp4"], ""), "8 input channels, the activations 9"),
        (("file", "", str(one), None, None, ["rtn"], ["nvfp4"], ""), "NAME.weight"),
    ):
        out = list(methods.run(*arguments))
        assert words in said.pop() and words in out[-1].status


def test_a_method_that_would_hold_the_server_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of 96 kB with 8,192 columns asks for a factorization that nothing can stop."""
    monkeypatch.setattr(limits, "current", lambda: limits.HOSTED)
    wide = torch.zeros(1, limits.HOSTED.solved_columns + 1)
    for name in METHODS:
        if METHODS[name].solves:
            with pytest.raises(ValueError, match=r"4,097 × 4,097 inputs \(K³ = 6.9e\+10"):
                choices.check_cost([name], wide)
        else:
            choices.check_cost([name], wide)
        choices.check_cost([name], wide[:, 1:])
