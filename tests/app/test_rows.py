"""The shortlist's rows, and the schemes around it. If these fail, a row waits for ever, a number of a sample
is stated as more than it is, or ] leads to schemes that nobody asked for."""

from __future__ import annotations

import dataclasses
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from app.sections import answer
from app.serving.sessions import CurrentRequest, answering
from app.state import estimates, known, rows
from app.state.analyses import analyses_of
from app.state.estimates import estimated
from app.state.memo import Memo
from app.state.record import Record, goal_now, next_record
from app.state.visits import visit
from explorer import SCHEMES, compare, compare_schemes, load_matrix, quantize
from explorer.analysis.goals import GOALS
from explorer.analysis.schemes import searches
from explorer.analysis.shortlist import Candidate
from explorer.sources.base import UnreachableError
from tests.app.acting import query_of


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any tensor, whatever ran before."""
    for module, kept in (
        (known, "_ROWS"),
        (known, "_WHOLE"),
        (known, "_ERRORS"),
        (known, "_REFUSED"),
        (estimates, "_OVERVIEWS"),
    ):
        monkeypatch.setattr(module, kept, Memo[Any](1 << 24))


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """A file with a BF16 weight that counts as large, with outliers in rows and columns."""
    monkeypatch.setattr("explorer.analysis.estimate.WORTH", 0)
    monkeypatch.setattr("explorer.analysis.estimate.ELEMENTS", 1 << 15)
    monkeypatch.setattr(rows, "SAMPLE_ELEMENTS", 1 << 16)
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    x[:, ::64] *= 8
    x[::30, 7] *= 20
    save_file({"up.weight": x.bfloat16()}, str(tmp_path / "x.safetensors"))
    pair = {"scheme": "int4_group128_asym", "second": "nvfp4"}
    return Record(source="file", file=str(tmp_path / "x.safetensors"), file_tensor="up.weight", **pair)


def test_every_scheme_is_estimated_before_the_tensor_is_read(large: Record) -> None:
    """With an interval that holds the whole's number, on first sight; figure and caption are of the same
    rows."""
    seen = estimated(large)
    assert seen is not None and len(seen.rows) > 70
    x = load_matrix(large.file or "").values
    held = []
    for row in seen.rows[::6]:
        whole = compare(x, quantize(x, row.scheme)) if row.half_db is not None else None
        if whole is not None and row.half_db is not None:
            held.append(abs(whole.sqnr_db - row.report.sqnr_db) <= row.half_db)
            assert (row.report.nbytes, row.report.bits) == (whole.nbytes, whole.bits)
            assert row.report.max_error <= whole.max_error * (1 + 1e-6)
    assert len(held) > 10 and sum(held) / len(held) > 0.9
    shown = answer.sampled(large, seen)
    table = unescape(shown["listed"])
    assert "…" not in table.replace("≥ ", "") and table.count("≈") == 5 and table.count("<small>±") == 5
    assert f"{len(seen.rows)} schemes, {len(seen.rows)} of them on a sample of" in shown["of-rows"]
    assert "± " in shown["of-rows"] and "≈ " in shown["said"]


@pytest.mark.parametrize("most", [1 << 24, 1 << 10])
def test_every_row_of_the_table_is_whole_in_the_end_or_says_why(
    large: Record, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "WHOLE", most)
    monkeypatch.setattr(rows, "survey", lambda x, schemes: iter(()))
    goal = goal_now(large, (512, 512))
    found = analyses_of(large)
    assert not rows.is_complete(large, goal)
    for _ in rows.filling(large):
        pass
    for row in rows.candidates(large, (512, 512), goal):
        assert isinstance(row, Candidate)
        slow = searches(SCHEMES[row.text]) and most < x_elements(large)
        assert (row.share == 1 and not row.note) != slow and ("make it A" in row.note) == slow
    table = unescape(answer.answered(large, found)["listed"])
    assert "…" not in table and ("Q4_K: of a sample" in table) == (most < 1 << 18)
    assert all(rows.whole_report(large, t) or rows.refused(large, t) for t in rows.listed(large, goal))


def test_what_may_pass_is_kept_from_its_visitor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that failed once would take the row from everybody; the rows after it are computed, and a
    new filling tries again."""
    monkeypatch.setattr(rows, "survey", lambda x, schemes: iter(()))
    chosen = Record(scheme="nvfp4", second="", shortlist="int4_group64+gptq,mxfp4")
    fails = [ConnectionResetError("reset"), UnreachableError("the Hub did not answer")]
    for error in fails:

        def down(*_: Any, error: Exception = error) -> Any:
            raise error

        with answering(CurrentRequest("mine")), monkeypatch.context() as offline:
            offline.setattr("app.state.analyses.own_layer", down)
            assert list(answer.fill(query_of(**vars(chosen)))) and known.whole_report(chosen, "mxfp4")
            assert str(error) in known.refused(chosen, "int4_group64+gptq") and visit().failed
        with answering(CurrentRequest("another's")):
            assert not known.refused(chosen, "int4_group64+gptq")
    with answering(CurrentRequest("mine")):
        assert list(answer.fill(query_of(**vars(chosen)))) and not visit().failed
    assert known.whole_report(chosen, "int4_group64+gptq")


def x_elements(chosen: Record) -> int:
    return load_matrix(chosen.file or "").values.numel()


def test_steps_go_through_the_shortlist_and_then_along_the_frontier() -> None:
    """Each once, in a circle, B and what the goal does not take left out: INT8 is no step with FP8 inputs."""
    x = load_matrix("sample:attention_query").values
    names = (
        "int2_group64_asym",
        "int3_group64_asym",
        "int8_row",
        "mxfp8_e4m3_floor",
    )
    for shortlist in ("", "int4_group128_asym,nvfp4,mxfp4,nf4_block64,q4_k"):
        pair = {"scheme": GOALS["4-bit"].a, "second": "nvfp4"}
        held = Record(sample="attention_query", goal="4-bit", shortlist=shortlist, **pair)
        measured = compare_schemes(x, [SCHEMES[name] for name in names])
        known.surveyed(held).update({row.scheme.text: row for row in measured})
        seen = [held.scheme]
        for _ in range(7):
            held = next_record(held, {"do": "next"}, None)
            seen.append(held.scheme)
        assert seen[:4] == [name for name in GOALS["4-bit"].schemes if name != "nvfp4"]
        assert seen[4:7] == ["int2_group64_asym", "int3_group64_asym", "int8_row"] and seen[7] == seen[0]
        assert next_record(held, {"do": "previous"}, None).scheme == seen[6]
    held = Record(sample="attention_query", goal="fp8-inputs", scheme="fp8_e5m2_row")
    assert next_record(held, {"do": "next"}, None).scheme == "mxfp8_e4m3_floor"
    assert all(goal.takes(SCHEMES[name]) for goal in GOALS.values() for name in goal.schemes)


def test_codes_are_rounded_or_chosen_by_gptq() -> None:
    """A, B and the list change together, what GPTQ cannot do stays; a tensor without inputs is refused."""
    held = Record(
        scheme="int4_group128_asym", second="int8_tensor", shortlist="int4_group128_asym,int8_tensor,mxfp4"
    )
    gptq = next_record(held, {"do": "codes", "codes": "gptq"}, None)
    assert (gptq.scheme, gptq.second, gptq.codes) == ("int4_group128_asym+gptq", "int8_tensor", "gptq")
    assert gptq.listed == ("int4_group128_asym+gptq", "int8_tensor", "mxfp4+gptq")
    assert next_record(gptq, {"do": "codes", "codes": ""}, None) == held
    other = next_record(
        dataclasses.replace(gptq, second="nvfp4+gptq", shortlist=""), {"do": "goal", "name": "3-bit"}, None
    )
    assert (other.scheme, other.second) == ("int3_group128_asym+gptq", "q3_k+gptq")
    for wrong, why in ((dataclasses.replace(held, sample="portrait"), "portrait"), (held, "'gptq'")):
        codes = "gptq" if why == "portrait" else "awq"
        with pytest.raises(ValueError, match=why):
            next_record(wrong, {"do": "codes", "codes": codes}, None)
    table = answer.answered(held, analyses_of(held))["listed"]
    assert 'data-codes="gptq" aria-pressed="false">' in table and "all-MiniLM" not in table
    table = answer.answered(Record(sample="portrait"), analyses_of(Record(sample="portrait")))["listed"]
    assert "2.9 dB" in table and 'data-codes="gptq" aria-pressed="false" disabled' in table


def test_a_layers_output_stands_beside_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rounding too, once one row has a method; without one nothing is computed of outputs."""
    monkeypatch.setattr(rows, "survey", lambda x, schemes: iter(()))
    chosen = Record(sample="attention_query", shortlist="int4_group128_asym+hqq")
    for _ in rows.filling(chosen):
        pass
    goal = goal_now(chosen, (384, 384))
    outputs = [
        row.output_db for row in rows.candidates(chosen, (384, 384), goal) if isinstance(row, Candidate)
    ]
    assert len(outputs) == 2 and all(output is not None and output > 10 for output in outputs)
    table = answer.answered(chosen, analyses_of(chosen))["listed"]
    assert "dB, weight" in table and "dB, output" in table
    plain = dataclasses.replace(chosen, shortlist="")
    assert "dB, output" not in answer.answered(plain, analyses_of(plain))["listed"]
