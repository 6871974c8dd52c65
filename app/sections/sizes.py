"""Size of a model: the memory of its weights, by scheme."""

from __future__ import annotations

import gradio as gr

from app.parts import html
from app.parts.page import Page
from app.parts.views import listen, shows
from app.parts.widgets import QUIET, block, card
from app.state.selection import Selection
from explorer import SCHEMES
from explorer.analysis.memory import MODELS, estimate
from explorer.methods.recipe import Recipe

TITLE, NAME = "Size", "sizes"
SIZES = ("fp32", "bf16", "fp8_e4m3_row", "int8_row", "mxfp6_e2m3", "nvfp4", "mxfp4", "int4_group128",
         "int2_group64", "ternary_absmean", "binary_row")  # fmt: skip
BY_COUNT = "by parameter count"


@shows()
def sizes(model: str, billions: float, scheme: str) -> str:
    """The memory a model's weights take: the chosen scheme and the usual ones, as a table. What a method adds
    to a layer is not in it."""
    chosen = Recipe.parse(scheme).scheme
    shape = MODELS.get(model)
    if shape is None and not (billions and 0 < billions <= 1e6):
        raise ValueError("give a parameter count between 0 and a million billions")
    rows = {chosen.name: chosen, **{name: SCHEMES[name] for name in SIZES}}
    estimates = [estimate(s, shape, 0 if shape else round(billions * 1e9)) for s in rows.values()]
    return html.memory(estimates, chosen.label)


@shows()
def sizes_of_selection(chosen: Selection, model: str, billions: float) -> str:
    """``sizes`` for scheme A, given the whole selection."""
    return sizes(model, billions, chosen.scheme)


def build(page: Page) -> None:
    """Lay the table out; it follows the selection's scheme."""
    with card(
        "Size of the model",
        "weights with their scales. Checkpoints usually keep embedding and output head in 16 bits: the first "
        "size. Left: nine tenths of a GPU's memory less these weights, for KV cache and activations",
    ):
        with gr.Row():
            model = gr.Dropdown([*MODELS, BY_COUNT], value="Llama-2-7B", label="Model", min_width=200)
            billions = gr.Number(
                7, label="Billions of parameters, when given by count", minimum=0, min_width=200
            )
        table = block(elem_id="sizes")
    scheme = page.pair[0]
    for control, name in ((model, "model"), (billions, "billions")):
        listen(control.change, sizes, [model, billions, scheme], table, api_name=f"sizes_{name}", **QUIET)
    page.follow(sizes_of_selection, [model, billions], table, api_name="sizes")
