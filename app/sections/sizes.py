"""Size of a model: the memory of its weights by scheme, and of its cache of keys and values by context."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from app.parts import html
from app.parts.page import Page
from app.parts.views import Shown, View, listen, shows
from app.parts.widgets import PRIVATE, QUIET, block, card, plot
from app.state.selection import Selection
from app.theme import plot_data
from explorer import SCHEMES
from explorer.analysis.cache import CONTEXT, USUAL, CachePlan
from explorer.analysis.memory import MODELS, estimate
from explorer.figures.cache import cache_figure
from explorer.figures.style import empty
from explorer.methods.recipe import Recipe
from explorer.words import bytes_

TITLE, NAME = "Size", "sizes"
USUAL_MODEL, USUAL_BILLIONS = "Llama-2-7B", 7
SIZES = ("fp32", "bf16", "fp8_e4m3_row", "int8_row", "mxfp6_e2m3", "nvfp4", "mxfp4", "int4_group128",
         "int2_group64", "ternary_absmean", "binary_row")  # fmt: skip
BY_COUNT = "by parameter count"
MOST_BILLIONS = 1_000_000


@shows()
def sizes(model: str, billions: float, scheme: str) -> str:
    """The memory a model's weights take: the chosen scheme and the usual ones, as a table. What a method adds
    to a layer is not in it."""
    chosen = Recipe.parse(scheme).scheme
    shape = MODELS.get(model)
    if shape is None and not (billions and 0 < billions <= MOST_BILLIONS):
        given = "" if billions is None else f", not {billions:,g}"
        raise ValueError(f"parameters are more than 0 and at most {MOST_BILLIONS:,} billions{given}")
    rows = {chosen.name: chosen, **{name: SCHEMES[name] for name in SIZES}}
    estimates = [estimate(s, shape, 0 if shape else round(billions * 1e9)) for s in rows.values()]
    return html.memory(estimates, chosen.label)


@shows()
def sizes_of_selection(chosen: Selection, model: str, billions: float) -> str:
    """``sizes`` for scheme A, given the whole selection."""
    return sizes(model, billions, chosen.scheme)


@dataclass(frozen=True)
class CacheView(View):
    """The memory of a cache by the length of its context, and at one length in words."""

    figure: Shown
    sentence: Shown


@shows(CacheView)
def cache(model: str, stored: str) -> CacheView:
    """What one text's cache of keys and values takes in the ``model``, in 16 bits and ``stored`` as one of
    ``USUAL`` names; computed, not measured."""
    if stored not in USUAL:
        raise ValueError(f"keys and values are stored as {', '.join(USUAL)}")
    shape, plan = MODELS.get(model), CachePlan.parse(USUAL[stored])
    if shape is None:
        message = "heads and layers are not known by parameter count: choose a model"
        return CacheView(plot_data(empty(message)), "")
    exact, less = (shape.cache.bytes_of(one, CONTEXT) for one in (CachePlan(), plan))
    windowed = f" Its layers keep the last {shape.window:,} tokens alone." if shape.window else ""
    return CacheView(
        figure=plot_data(cache_figure(shape.cache, plan, stored, f"{model} cache")),
        sentence=html.sentence(
            f"At {CONTEXT:,} tokens one text's cache takes {bytes_(exact)} in 16 bits and {bytes_(less)} as "
            f"chosen, {exact / less:.2f} times less.{windowed} Computed from the model's shape, with scales "
            "and with tokens that wait in 16 bits until 32 are rounded at once."
        ),
    )


def build(page: Page) -> None:
    """Lay the table out, which follows the selection's scheme, and the cache below it."""
    with card(
        "Size of the model",
        "weights with their scales. Checkpoints usually keep embedding and output head in 16 bits: the first "
        "size. Left: nine tenths of a GPU's memory less these weights, for KV cache and activations",
    ):
        with gr.Row():
            model = gr.Dropdown([*MODELS, BY_COUNT], value=USUAL_MODEL, label="Model", min_width=200)
            billions = gr.Number(
                USUAL_BILLIONS,
                label="Billions of parameters",
                min_width=200,
                visible=False,
                elem_id="sizes-billions",
            )
        table = block(elem_id="sizes")
    scheme = page.pair[0]
    of_model, _ = (
        listen(control.change, sizes, [model, billions, scheme], table, api_name=f"sizes_{name}", **QUIET)
        for control, name in ((model, "model"), (billions, "billions"))
    )
    of_model.then(lambda chosen: gr.update(visible=chosen == BY_COUNT), model, billions, **PRIVATE)
    page.follow(sizes_of_selection, [model, billions], table, api_name="sizes")
    with card(
        "Size of the cache",
        "keys and values of one text, by the length of its context. What each format of them costs a model: "
        "explorer cache",
    ):
        stored = gr.Dropdown([*USUAL], value=next(iter(USUAL)), label="Keys and values stored as")
        view = CacheView(plot("cache-size", height=300), block(elem_id="cache-size-said"))
    for event, name in ((of_model.then, "model"), (stored.change, "stored")):
        listen(event, cache, [model, stored], view, api_name=f"cache_size_{name}", **QUIET)
    page.when_seen(cache, [model, stored], view, api_name="cache_size")
    page.keep("sized", model, model.input)
    page.keep("billions", billions, billions.change, visit=False, within=(0, MOST_BILLIONS))
    page.keep("stored", stored, stored.input)
