"""The ranges of A's blocks: what each rule for them costs, and a range of the visitor's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import plotly.graph_objects as go

from app.parts import html
from app.parts.controls import NumberInput
from app.parts.section import SELECTION, Section, Shown
from app.state.gpu_lock import locked_steps
from app.state.memo import Memo
from app.state.query import Query
from app.state.record import Record
from app.state.selection import matrix_of, tensor_key
from explorer import Scheme
from explorer.analysis.calibration import BlockRange, block_ranges, block_summary, share_curve
from explorer.figures.calibration import share_figure
from explorer.methods.recipe import Recipe
from explorer.schemes.calibrators import MINMAX, share_of_minmax

RANGE = NumberInput(
    key="range",
    label="Your range, as a share of every block’s smallest and largest value",
    usual="0.5",
    low=0.02,
    high=1,
    step=0.01,
    slider=True,
)
HEADS = ("range by", "width, % of min-max", "SQNR dB", "clipped %", "largest error", "codes used")
CALIBRATED = 1 << 19
"""Elements whose rows the ranges are compared on."""
Ranges = tuple[list[BlockRange], list[tuple[float, float]]]
_RANGES = Memo[Ranges](8 << 20)


def run(query: Query) -> Iterator[Shown]:
    """Compare rules for the ranges of A's blocks on the tensor's first rows, and every share of min-max."""
    chosen = query.record
    scheme, values = _base(chosen), matrix_of(chosen).values
    x = values[: max(1, CALIBRATED // max(values.shape[1], 1))].float()
    found: Ranges = ([], [])
    yield {"said": "", "status": html.status("Comparing the ranges …")}
    for choice in locked_steps(block_ranges(x, scheme)):
        found[0].append(choice)
        said = html.status(f"{choice.label}: {choice.report.sqnr_db:.2f} dB")
        yield {**_drawn(query, found), "status": said}
    for point in locked_steps(share_curve(x, scheme)):
        found[1].append(point)
        yield {"status": html.status(f"{100 * point[0]:.0f} % of min-max …")}
    _RANGES.keep(_key(chosen), found)
    yield {**view(query), "status": ""}


def _base(chosen: Record) -> Scheme:
    """A's scheme without its rule for ranges; ``ValueError`` for a cast."""
    scheme = chosen.recipes[0].scheme
    if scheme.scale is None:
        raise ValueError(f"{scheme.label} is a cast: it has no range; make a scheme with a scale A")
    return scheme.with_ranges_by(MINMAX)


def _key(chosen: Record) -> tuple[Any, ...]:
    return (*tensor_key(chosen), str(_base(chosen)))


def view(query: Query) -> Shown:
    """Show what is known of the ranges of A's blocks, and the visitor's own range as a scheme."""
    try:
        return _drawn(query, _RANGES.peek(_key(query.record)) or ([], []))
    except ValueError as error:
        return {"said": "", "status": html.status(f"{error}."), "ranges": "", "table": ""}


def _drawn(query: Query, found: Ranges) -> dict[str, str | go.Figure]:
    chosen, own = query.record, RANGE.of(query)
    choices, curve = found
    rows = [(_text(choice.scheme, chosen), _line(choice)) for choice in choices]
    near = min(curve, key=lambda point: abs(point[0] - own), default=(own, None))[1]
    mine = [html.Cell("your range"), html.Cell.of(100 * own), html.Cell.of(near, "≈ ")]
    ruled = _base(chosen).with_ranges_by(share_of_minmax(own))
    rows.append((_text(ruled, chosen), [*mine, *[html.Cell.of(None)] * 3]))
    name = chosen.file_tensor or chosen.layer or chosen.sample
    return {
        "said": html.sentence(block_summary(choices)) if curve else "",
        "ranges": share_figure(choices, curve, own, name) if curve else "",
        "table": html.scheme_table("ranges", HEADS, rows, (chosen.scheme, chosen.second)),
    }


def _text(scheme: Scheme, chosen: Record) -> str:
    """The text of ``scheme``, repaired as A is."""
    return str(Recipe.parse(str(Recipe(scheme, chosen.recipes[0].method))))


def _line(choice: BlockRange) -> list[html.Cell]:
    r = choice.report
    numbers = (100 * choice.share, r.sqnr_db, 100 * r.clipped, r.max_error, r.codes_used)
    return [html.Cell(choice.label), *map(html.Cell.of, numbers)]


def dragged(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Take the visitor's own range from where its line was dragged to."""
    try:
        share = float(what["to"]) / 100
    except (KeyError, TypeError, ValueError):
        raise ValueError("a line is dragged to a number") from None
    return {"range": f"{min(max(share, RANGE.low), RANGE.high):.2f}"}


SECTION = Section(
    name="calibration",
    follows=SELECTION,
    controls=(RANGE,),
    view=view,
    runs={"ranges": run},
    acts={"range": dragged},
)
