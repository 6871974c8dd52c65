"""Rounding by methods: what it shows, and what it refuses.

If these fail, a section shows another layer's repair than was chosen, or loses what a visitor has captured.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from app import limits
from app.sections import budget, methods, overview, take_away, values
from app.serving.sessions import CurrentRequest, answering
from app.state import analyses, choices, layers, models
from app.state.query import Query
from app.state.record import Record, next_record
from app.state.visits import visit
from explorer import Scheme, load_matrix
from explorer.methods import COMBINATIONS, METHODS
from explorer.methods.files import load_layer
from explorer.progress import StoppedError, stoppable
from tests.app.acting import figures_of, query_of, ran
from tests.app.servers import until

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def visitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs are those of one visitor, whose files lie in the store."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    with answering(CurrentRequest(session=str(tmp_path))):
        yield


def asked(names: Sequence[str], chosen: dict[str, str], **keys: str) -> Query:
    """The query of a run of the methods ``names`` on a page that shows ``chosen``."""
    return Query({**query_of(**chosen), "methods": ",".join(names), **keys})


def rows_of(table: str) -> list[dict[str, str]]:
    """The cells of a table by its heads, in words."""
    found = []
    for row in re.findall(r"<tr.*?</tr>", table)[1:]:
        cells = re.findall(r'<(?:th scope="row"|td class="(?:num|wrap)".*?)>(.*?)</t[hd]>', row)
        found.append(dict(zip(methods.HEADS, map(unescape, cells), strict=True)))
    return found


@pytest.fixture
def small_file(tmp_path: Path) -> dict[str, str]:
    """A part of a layer small enough for every method, in a file of the visitor's."""
    w, x = load_matrix("sample:attention_query").values, load_matrix("sample:query_in").values
    path = tmp_path / "uploads" / "small.safetensors"
    path.parent.mkdir()
    save_file({"weight": w[:48, :128].contiguous(), "activations": x[:96, :128].contiguous()}, path)
    return {"of": "file", "of_file": str(path)}


SOME = ("rtn", "gptq", "awq", "hqq", "rotation", "smoothquant_search", "rotation+gptq")
EACH = (*METHODS, *COMBINATIONS)
HERE = {"sample": "attention_query", "scheme": "int3_group128"}


@pytest.mark.parametrize("names", [SOME, pytest.param(EACH, marks=pytest.mark.thorough)], ids=len)
def test_every_method_on_a_layer(names: tuple[str, ...], small_file: dict[str, str]) -> None:
    """Each method has its line, its numbers, and a text that says what it does."""
    out = ran(methods.run(asked(names, HERE, under="int8_row_asym", inputs_as="int8_tensor", **small_file)))
    drawn = figures_of(out)
    assert len(drawn) == 7 and all(json.loads(plot)["data"] for plot in drawn) and out["sentence"]
    assert sum(map(len, drawn)) < 700_000
    lines = rows_of(out["table"])
    assert len(lines) == len(names) and "–" not in str([list(line.values())[2:7] for line in lines])
    for line, name in zip(lines, names, strict=True):
        assert METHODS[name.split("+")[0]].why in line["what it does"]
    film = json.loads(out["methods-film"].to_json())
    assert film["layout"]["sliders"][0]["steps"][-1]["label"] == "100 %"


def test_a_result_becomes_b_with_its_own_weight() -> None:
    """B is the line's weight: its numbers are those of the line, its element the method's code."""
    run = ran(methods.run(asked(["rtn", "gptq", "rotation+gptq"], HERE)))
    assert "&#34;second&#34;: &#34;int3_group128+gptq&#34;" in run["table"]
    pair = query_of(**HERE, second="int3_group128+gptq")
    analyses.analyses_of(pair.record)
    numbers, element = overview.view(pair), values.element(pair)
    lines = {line["method"]: line for line in rows_of(run["table"])}
    for name in ("rtn", "gptq"):
        for column in ("output SQNR dB", "weight SQNR dB"):
            assert f"{float(lines[METHODS[name].label][column]):.2f}" in str(numbers["kpis"]), (name, column)
    assert "by GPTQ" in unescape(str(numbers["verdict"])) and "by GPTQ →" in unescape(
        str(element["inspector"])
    )


def test_a_repaired_scheme_is_computed_from_its_link() -> None:
    """Commands and files are those of the method on the layer's inputs."""
    here = Query(HERE | {"scheme": "int4_group64+autoround", "second": "int4_group64+lqer"})
    assert any("AutoRound" in said for said in analyses.analysing(here.record))
    command = unescape(str(take_away.view(here)["commands"]))
    assert "explorer methods sample:attention_query --inputs sample:query_in" in command
    assert "--methods autoround" in command
    assert list(take_away.make(here)) and (kept := visit().taken) is not None
    assert load_layer(kept[1][1]).residues, "the correction is in the file"
    names = ("int4_group128+gptq", "int4_group128")
    repaired, plain = (next_record(Record(scheme=name), {"do": "next"}, None) for name in names)
    assert repaired.scheme == f"{plain.scheme}+gptq"


def test_results_stay_with_their_tensor(small_file: dict[str, str]) -> None:
    """If this fails, B shows this tensor under a method that was judged on another."""
    ran(methods.run(asked(["awq"], HERE)))
    kept = methods.view(asked([], HERE | {"scheme": "nvfp4"}))
    assert "int3_group128+awq" in str(kept["table"]) and "methods-bars" not in kept, "what the run drew stays"
    gone = methods.view(asked([], HERE | {"sample": "mlp_up"}))
    assert gone["table"] == gone["sentence"] == gone["methods-bars"] == ""
    other = ran(methods.run(asked(["awq"], HERE, under="nvfp4", **small_file)))
    assert "data-set" not in other["table"] and "These results are of layer" in unescape(other["table"])
    assert methods.view(asked([], HERE | {"sample": "mlp_up"}, **small_file))["table"]


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


def test_the_same_method_again_is_one() -> None:
    """Of a program's list as long as a value may be, each is computed once."""
    assert methods.METHODS.of(Query({"methods": "rtn,awq,rtn,rtn,awq"})) == ["rtn", "awq"]


def test_stopped_runs_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stopped goes on to its next report: who stops and starts again waits for it, another visitor
    does not."""
    monkeypatch.setattr("app.state.places.AGAIN_S", 0.01)
    go_on, began = threading.Event(), list[int]()

    def deaf(progress: Any) -> bool:
        began.append(1)
        return go_on.wait(60)

    def stopped(address: str, times: int) -> None:
        with answering(CurrentRequest(address=address)):
            for _ in range(times):
                steps = analyses.reported(deaf, silent=(0, 0))
                assert next(steps) == (0, 0), "it can be stopped while it waits"
                steps.close()

    def ended() -> None:
        raise StoppedError("the visitor has left")

    try:
        stopped("one", 3 * analyses.OF_ONE)
        until(lambda: len(began) == analyses.OF_ONE)
        with answering(CurrentRequest(address="one")), stoppable(ended), pytest.raises(StoppedError):
            next(analyses.reported(deaf))
        for other in range(analyses.OF_ALL):
            stopped(str(other), 1)
        until(lambda: len(began) == analyses.OF_ALL)
    finally:
        go_on.set()
    with answering(CurrentRequest(address="one")):
        assert list(analyses.reported(lambda progress: None)) == []
    assert len(began) == analyses.OF_ALL


def test_what_a_stopped_run_has_finished_is_shown() -> None:
    """Stop ends the run where it is: what the first method gave must be there by then, files too."""
    steps = methods.run(asked(["rtn", "awq"], HERE))
    assert "0 of 2" in str(next(steps)["status"])
    out = next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert "1 of 2" in str(out["status"]) and len(rows_of(str(out["table"]))) == 1
    assert len(figures_of(out)) == 7 and ".csv" in str(out["files"])


def test_my_file_and_a_model_on_my_text(minilm: Path, tmp_path: Path) -> None:
    """A file's layer, then the same layer captured from the model: both give what the built-in one gives."""
    layer, model = "encoder.layer.3.intermediate.dense", {"of": "text", "of_model": str(minilm)}
    assert layer in ran(methods.list_linear(asked([], HERE, **model)))["linear"]
    words = model | {"of_linear": layer, "of_text": "one line\n\nand another one", "of_tokens": "6"}
    out = ran(methods.run_capture(asked([], HERE, **words)))
    assert "6 tokens kept" in out["status"] and "captured.safetensors" in out["captured"]
    built = rows_of(ran(methods.run(asked(["rtn", "awq"], HERE, **words)))["table"])
    assert [line["method"] for line in built] == [METHODS["rtn"].label, METHODS["awq"].label]
    w, x = load_matrix("sample:attention_query").values, load_matrix("sample:query_in").values
    (tmp_path / "up").mkdir()
    save_file({"weight": w, "activations": x}, file := tmp_path / "up" / "mine.safetensors")
    own = rows_of(ran(methods.run(asked(["rtn"], HERE, of="file", of_file=str(file))))["table"])
    here = rows_of(ran(methods.run(asked(["rtn"], HERE)))["table"])
    numbers = methods.HEADS[2:6]
    assert [[line[head] for head in numbers] for line in own] == [[line[n] for n in numbers] for line in here]


def test_a_model_too_large_to_run_is_refused_before_it_is_loaded(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a visitor of a hosted page fills its memory with one model."""
    monkeypatch.setattr(models, "load_model", lambda *_, **__: pytest.fail("it was loaded"))
    few = dataclasses.replace(limits.LOCAL, model_weights=1_000_000)
    monkeypatch.setattr(limits, "current", lambda: few)
    with pytest.raises(ValueError, match=r"22,713,728 .* 1,000,000"):
        list(budget.measure(Query({"model": str(minilm)})))


def test_bad_input_is_said(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    save_file(
        {"a.weight": torch.ones(4, 8), "a.activations": torch.ones(4, 9), "b.weight": torch.ones(2, 2)},
        two := tmp_path / "up" / "x.safetensors",
    )
    save_file({"b.weight": torch.ones(2, 2)}, one := tmp_path / "up" / "y.safetensors")
    for keys, words in (
        ({"of": "text"}, "capture"),
        ({"of": "file"}, "upload"),
        ({"of": "file", "of_file": "/etc/hostname"}, "upload"),
        ({"of": "file", "of_file": str(two)}, "8 input channels, the activations 9"),
        ({"of": "file", "of_file": str(one)}, "NAME.weight"),
        ({"under": "nope"}, "nope"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            ran(methods.run(asked(["rtn"], HERE, **keys)))
    query = asked(["nope"], HERE)
    assert methods.METHODS.of(query) and "nope" in query.problems["methods"]


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
    with pytest.raises(ValueError, match="16,781,312 weights"):
        choices.check_cost(["rtn"], torch.zeros(1).expand(4097, 4096))


def test_a_wide_layer_is_measured_on_fewer_tokens(
    small_file: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output, of tokens times rows in float64, may be far larger than its weight."""
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.LOCAL, product_elements=1280))
    _, w, x = layers.chosen_layer("file", "", small_file["of_file"], None, None)
    assert w.shape == (48, 128) and x.shape == (10, 128)


def test_small_blocks_have_more_room() -> None:
    """With a scale for each value an analysis took four times what was booked for it."""
    values = torch.zeros(1).expand(4096, 4096)
    texts = (
        "int4_group128",
        "int4~1x1~asymmetric~float32~minmax",
        "int4~flat1~asymmetric~float32~minmax",
        "bf16",
    )
    wide, fine, flat, none = (choices.bytes_of(values, [Scheme.parse(text)]) for text in texts)
    assert none < wide < 1.03 * none and fine == flat > 4 * none
