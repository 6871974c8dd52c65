"""Layers: what each scheme of a survey costs each layer of the model that is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.parts import html
from app.parts.section import SELECTION, Section, Shown
from app.sections.budget import CONTROLS, BudgetPlan, open_layer, plan_of
from app.sections.subject import KEYS, subject
from app.state.query import Query
from explorer.figures.survey import cost_label, heat_figure
from explorer.schemes.scheme import label_of_text
from explorer.survey import SENSITIVITIES, Survey
from explorer.survey.sentences import about


def view(query: Query) -> Shown:
    """Describe a model's survey: the cost of each layer by each scheme, with the recipe's choice."""
    found = subject(query).survey
    if found is None:
        said = html.status("This model was not surveyed yet: survey it under Budget.")
        return {**dict.fromkeys(("about", "layers-map", "layers"), ""), "status": said}
    try:
        plan = plan_of(query)
    except ValueError:  # Budget says why: the map needs no recipe
        plan = None
    signal = plan.got.front.signal if plan else found.head.default
    row = SENSITIVITIES[signal]
    what = f"the loss predicted by {row.label}" if row.is_loss else row.label
    return {
        "about": html.sentence(f"{about(found)} Shown: {what}. {row.trust}"),
        "layers-map": heat_figure(found, signal, plan.got.choice if plan else None),
        "layers": _table(found, signal, query.record.schemes, plan),
    }


def _table(found: Survey, signal: str, compared: tuple[str, ...], plan: BudgetPlan | None) -> str:
    """The layers, the costliest first, with what A, B and the recipe cost each."""
    sides = [text for text in compared if text in found.head.schemes]
    recipe = plan.recipe.layers if plan else {}
    head = [
        "layer",
        "shape",
        *(label_of_text(text) for text in sides),
        *(["recipe", "its cost"] if plan else []),
    ]
    rows = []
    for layer in found.linear:
        costs = [layer.cost(signal, text) for text in sides]
        own = recipe.get(layer.name)
        mine = 0.0
        if own is not None and plan is not None:
            mine = layer.cost(signal, str(own.scheme), plan.got.choice.methods.get(layer.name, ""))
        by = [own.label if own else "as it is stored", f"{mine:.3g}" if own else "–"] if plan else []
        shape = " × ".join(map(str, layer.shape))
        rows.append((max([*costs, mine]), [layer.name, shape, *(f"{cost:.3g}" for cost in costs), *by]))
    rows.sort(key=lambda pair: -pair[0])
    cells = [cells for _, cells in rows]
    return html.render("layers_table", head=head, rows=cells, cost=cost_label(found, signal))


def open_cell(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Open the layer of a clicked cell in the place Tensor, with its scheme as A."""
    cell = what.get("data")
    if not isinstance(cell, list) or len(cell) < 2:
        return {}
    return open_layer(query, {"layer": cell[0], "scheme": cell[1]})


SECTION = Section(
    name="layers",
    title="Layers",
    follows=(*KEYS, *SELECTION, *(control.key for control in CONTROLS)),
    view=view,
    acts={"point": open_cell},
)
