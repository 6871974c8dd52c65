"""Memory of a model: its weights by scheme, and its cache of keys and values by context."""

from __future__ import annotations

from app.parts import html
from app.parts.controls import NumberInput, Select
from app.parts.section import Section, Shown
from app.sections import subject
from app.state.query import Query
from explorer import SCHEMES
from explorer.analysis.cache import CONTEXT, USUAL, CachePlan
from explorer.analysis.memory import MODELS, ModelShape, StoredModel, estimate
from explorer.figures.cache import cache_figure
from explorer.figures.style import empty
from explorer.words import bytes_

SIZES = ("fp32", "bf16", "fp8_e4m3_row", "int8_row", "mxfp6_e2m3", "nvfp4", "mxfp4", "int4_group128",
         "int2_group64", "ternary_absmean", "binary_row")  # fmt: skip
OPEN, BY_COUNT = "open", "by parameter count"
MODEL = Select(
    key="sized",
    label="Model",
    usual=OPEN,
    options={OPEN: "the one in the bar", **{name: name for name in (*MODELS, BY_COUNT)}},
)
BILLIONS = NumberInput(key="billions", label="Billions of parameters", usual="7", low=1e-6, high=1e6)
STORED = Select(
    key="stored", label="Keys and values stored as", usual=next(iter(USUAL)), options={k: k for k in USUAL}
)


def view(query: Query) -> Shown:
    """Compute the memory of a model's weights by scheme, A and B among them, and of one text's cache of keys
    and values; what a method adds to a layer is not in it."""
    model, stored = MODEL.of(query), STORED.of(query)
    shape: ModelShape | StoredModel | None = MODELS.get(model)
    cache, name = MODELS[model].cache if shape else None, model
    own = [recipe.scheme for recipe in query.record.recipes]
    rows = {scheme.name: scheme for scheme in (*own, *(SCHEMES[name] for name in SIZES))}
    if model == OPEN:
        opened = subject.subject(query)
        shape, cache, name = opened.stored, opened.cache, opened.name
    count = round(BILLIONS.of(query) * 1e9)
    estimates = [estimate(scheme, shape, count) for scheme in rows.values()]
    table = html.memory(estimates, [scheme.label for scheme in own])
    if cache is None:
        message = (
            "heads and layers are not known of this one: open its folder, or choose one of the named models"
        )
        return {"table": table, "cache-size": empty(message), "said": ""}
    plan = CachePlan.parse(USUAL[stored])
    exact, less = (cache.bytes_of(one, CONTEXT) for one in (CachePlan(), plan))
    few, windows = len(cache.windows) < len(cache.layers), sorted({*cache.windows})
    of = f"{len(cache.windows)} of its {len(cache.layers)} layers" if few else "Its layers"
    windowed = f" {of} keep the last {windows[0]:,} tokens alone." if windows else ""
    return {
        "table": table,
        "cache-size": cache_figure(cache, plan, stored, f"{name} cache"),
        "said": html.sentence(
            f"At {CONTEXT:,} tokens one text's cache takes {bytes_(exact)} in 16 bits and {bytes_(less)} as "
            f"chosen, {exact / less:.2f} times less.{windowed} Computed from the model's shape, with scales "
            "and with tokens that wait in 16 bits until 32 are rounded at once."
        ),
    }


SECTION = Section(
    name="sizes",
    title="Memory",
    follows=("scheme", "second", *subject.KEYS),
    controls=(MODEL, BILLIONS, STORED),
    view=view,
)
