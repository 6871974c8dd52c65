"""What stands below the first screen: numbers, figures, one element, all schemes.

If these fail, a figure is of another tensor or scheme than the bar says, or a click sends megabytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from app.parts.section import NotComputedError
from app.sections import overview, values
from app.sections.all_schemes import COLUMNS, all_schemes_table
from app.state import known, rows
from app.state.analyses import analyses_of
from app.state.memo import Memo
from app.state.record import Record
from app.state.selection import matrix_of
from explorer import SCHEMES
from tests.app.acting import figures_of, query_of, traces
from tests.covering import FEW, sampled

VIEWS = {section.name: section.view for section in (overview.SECTION, *values.SECTIONS)}


def shown(name: str, **held: Any) -> dict[str, Any]:
    view = VIEWS[name]
    assert view is not None
    return dict(view(query_of(**held)))


def sets(markup: str, with_: str = "") -> list[dict[str, str]]:
    """The changes of the address that buttons make."""
    return [json.loads(unescape(text)) for text in re.findall(rf'data-set="([^"]*)"{with_}', markup)]


@pytest.mark.parametrize("name", sampled(SCHEMES, FEW[:6]))
def test_every_scheme_is_shown(name: str) -> None:
    """All figures and words, alone and beside another; figures are binned."""
    other = "nvfp4" if name != "nvfp4" else "mxfp4"
    for second, figures, most in (("", 4, 60_000), (other, 6, 80_000)):
        pair = {"scheme": name, "second": second}
        slots = {**shown("values", **pair), **shown("codes", **pair)}
        drawn = figures_of(slots)
        assert len(drawn) == figures and sum(map(len, drawn)) < most
        assert len(shown("element", **pair)["error-map"]) < 500_000
        numbers = shown("numbers", **pair)
        assert SCHEMES[name].label in unescape(numbers["verdict"]) and "Bits per element" in numbers["kpis"]


def test_an_element_is_inspected() -> None:
    """That of the address, the nearest one that there is, or the one where A errs most; buttons lead to the
    largest error of each side."""
    pair = {"scheme": "int4_row", "second": "nvfp4"}
    worst = [a.report.max_error_at for _, a in analyses_of(Record(**pair))[1]]
    for element, at, said in (
        ("5,7", (5, 7), ""),
        ("9999999,3", (1535, 3), "1,536 rows"),
        ("", worst[0], ""),
    ):
        slots = shown("inspector", element=element, **pair)
        assert f"Element ({at[0]}, {at[1]})" in slots["inspector"] and said in slots["status"]
        assert bool(slots["status"]) == bool(said)
        row, column = map(str, worst[1])
        assert sets(slots["inspector"]) == [{"row": "", "column": ""}, {"row": row, "column": column}]
        assert isinstance(shown("values", element=element, **pair)["values-plot"], go.Figure)


def test_the_histogram_is_of_the_part_that_the_map_shows() -> None:
    query = query_of(scheme="int4_row", second="")
    part = values.values(type(query)({**query, "part": "3.2,9.7,-4,20"}))["error-plot"]
    assert isinstance(part, go.Figure) and "rows 4–9, columns 0–20" in part.layout.annotations[0].text
    for wrong in ("1,2,3", "a,b,c,d", "1,2,3,inf"):
        with pytest.raises(ValueError, match="a part of the map is four numbers"):
            values.values(type(query)({**query, "part": wrong}))


def test_the_errors_of_the_shortlist_have_a_panel_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A and B first; what the first screen has not computed is waited for, what it cannot is named."""
    monkeypatch.setattr(known, "_ERRORS", Memo[Any](1 << 20))
    pair = {"scheme": "nvfp4", "second": "int8_row"}
    asked = {"sample": "mlp_up_in", **pair, "shortlist": "mxfp4,int4_group64+gptq"}

    def panels(slots: Mapping[str, Any]) -> list[str]:
        return [trace["name"] for trace in traces(slots["multiples"])]

    names = [SCHEMES[name].label for name in ("nvfp4", "int8_row", "mxfp4")]
    with pytest.raises(NotComputedError) as waits:
        shown("multiples", **asked)
    assert waits.value.meanwhile is not None and panels(waits.value.meanwhile) == names[:2]
    assert list(rows.fill_listed(query_of(**asked).record, of_searches=False))
    monkeypatch.setattr("app.state.analyses._analyse", lambda *_: pytest.fail("a view computes nothing"))
    for _ in range(2):
        slots = shown("multiples", **asked)
        assert panels(slots) == names and "GPTQ" in slots["status"] and "mlp_up_in" in slots["status"]


def test_a_large_tensor_is_shown_by_a_sample_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures wait for the whole; the numbers are the sample's until then."""
    monkeypatch.setattr(overview, "at_hand", lambda chosen: False)
    monkeypatch.setattr("explorer.analysis.estimate.WORTH", 0)
    monkeypatch.setattr("explorer.analysis.estimate.ELEMENTS", 1 << 14)
    large = {"sample": "attention_query", "scheme": "int4~1x96~SYMMETRIC~float16~minmax", "second": ""}
    matrix_of(Record(**large))
    with pytest.raises(NotComputedError) as waits:
        shown("numbers", **large)
    assert waits.value.meanwhile is not None and "By the sample" in str(waits.value.meanwhile["verdict"])
    with pytest.raises(NotComputedError) as waits:
        shown("values", **large)
    assert waits.value.meanwhile is None


def test_all_schemes_are_a_table() -> None:
    """A row each, with buttons that make it A or B, and files with all numbers."""
    query = query_of(sample="attention_query", scheme="nvfp4", second="mxfp4")
    for _ in rows.filling(query.record):
        pass
    table = all_schemes_table(query)
    assert table.count("<tr") == len(SCHEMES) + 1 and all(f">{head}</button>" in table for head in COLUMNS)
    taken = sets(table, ' aria-pressed="true"')
    assert sorted(taken, key=str) == [{"scheme": "nvfp4"}, {"second": "mxfp4"}]
    sheet, data = map(Path, re.findall(r'href="gradio_api/file=(.*?)"', table))
    records = json.loads(data.read_text())
    assert [record["scheme"] for record in records] and records[0]["bits"]["codes"]
    assert len(sheet.read_text().splitlines()) == len(SCHEMES) + 1
