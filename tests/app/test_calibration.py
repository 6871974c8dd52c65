"""The ranges of A's blocks. If these fail, the card shows nothing, or another range than was chosen."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import plotly.graph_objects as go
import pytest

from app.sections import ranges
from app.state.memo import Memo
from app.state.query import Query
from explorer import CALIBRATORS, Scheme, compare, load_matrix, quantize
from explorer.analysis.calibration import SHOWN
from explorer.methods.recipe import Recipe
from tests.app.acting import query_of, ran
from tests.covering import sampled


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_RANGES", Memo[Any](1 << 20))
    monkeypatch.setattr(ranges, "CALIBRATED", 1 << 14)


def asked(share: float = 0.5, **held: Any) -> Query:
    return Query({**query_of(**held), "range": str(share)})


def taken(table: str) -> list[str]:
    """The schemes that the rows' buttons make A."""
    return [unescape(text) for text in re.findall(r"&#34;scheme&#34;: &#34;(.*?)&#34;", table)]


@pytest.mark.parametrize(
    ("sample", "scheme"),
    sampled([("mlp_up", "int8_tensor"), ("outlier_channels", "nvfp4")], [("outlier_channels", "nvfp4")]),
)
def test_every_rule_is_compared_on_the_schemes_own_blocks(sample: str, scheme: str) -> None:
    """A row for every rule and one for the visitor's own range; what a row makes A has the row's number."""
    query = asked(0.4, sample=sample, scheme=scheme, second="")
    assert len(taken(str(ranges.view(query)["table"]))) == 1, "only one's own range before the run"
    out = ran(ranges.run(query))
    assert isinstance(out["ranges"], go.Figure) and out["ranges"].layout.shapes[0].x0 == pytest.approx(40)
    assert (out == {**ranges.view(query), "status": ""} and "SQNR" in out["said"]) or "min-max" in out["said"]
    texts = taken(out["table"])
    assert len(texts) == len(SHOWN) + 1 and "~share0.4" in texts[-1]
    x = load_matrix(f"sample:{sample}").values
    x = x[: max(1, (1 << 14) // x.shape[1])].float()
    for name, text in zip(SHOWN, texts, strict=False):
        assert Scheme.parse(text).calibrator is CALIBRATORS[name]
        assert f"{compare(x, quantize(x, Scheme.parse(text))).sqnr_db:.5g}" in out["table"]


def test_a_cast_has_no_range_and_a_method_keeps_repairing() -> None:
    said = ranges.view(asked(scheme="bf16", second=""))
    assert "is a cast" in str(said["status"]) and not said["table"]
    with pytest.raises(ValueError, match="is a cast"):
        list(ranges.run(asked(scheme="bf16", second="")))
    (text,) = taken(str(ranges.view(asked(0.31, scheme="int4_group64+awq", second=""))["table"]))
    assert Recipe.parse(text).method == "awq" and "~share0.31" in text


def test_the_line_is_dragged() -> None:
    """Within what the slider accepts; what is no number is refused."""
    for to, wanted in ((31.2, "0.31"), (140, "1.00"), (-5, "0.02")):
        assert ranges.dragged(asked(), {"from": 50, "to": to}) == {"range": wanted}
    with pytest.raises(ValueError, match="number"):
        ranges.dragged(asked(), {"to": None})
