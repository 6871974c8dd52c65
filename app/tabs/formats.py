"""The Formats tab: one byte and its fields, the number line, the table of formats, and model sizes."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from app import html
from app.page import Page
from app.selection import Selection
from app.theme import plot_data
from app.views import Control, Shown, View, listen, shows
from app.widgets import QUIET, block, card, plot
from explorer import FORMATS, SCHEMES, Scheme
from explorer.analysis.memory import MODELS, estimate
from explorer.figures.formats import number_line_figure, spacing_figure
from explorer.formats import E8M0
from explorer.formats.code import code_facts, in_every_format, parse_code, plain_number

TITLE, NAME = "Formats", "formats"
LINES = (
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e4m3fn",
    "float8_e5m2",
    "int4",
    "int8",
    "nf4",
    "ternary",
)
SPACINGS = ("float32", "tfloat32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn",
            "float6_e3m2fn", "float4_e2m1fn", "int8", "int4")  # fmt: skip
SIZES = ("fp32", "bf16", "fp8_e4m3_row", "int8_row", "mxfp6_e2m3", "nvfp4", "mxfp4", "int4_group128",
         "int2_group64", "ternary_absmean", "binary_row")  # fmt: skip
FIRST_FORMAT, FIRST_ENTRY = "float8_e4m3fn", "0x50"
BY_COUNT = "by parameter count"
BIT_SWITCHES = "explorer.bitSwitches(element, bit => trigger('flip', {bit}), watch)"


@dataclass(frozen=True)
class CodeView(View):
    """One code: its bits as switches, their meaning, the number in every format, and the number line."""

    bits: Shown
    meaning: Shown
    everywhere: Shown
    line: Shown


@shows(CodeView)
def explain(format_name: str, entry: str) -> CodeView:
    """A number or a code in one format: its bits, what they mean, and the same number in every format.

    ``entry`` is a decimal number, bits (0b0101) or hexadecimal (0x50). Returns bits, meaning, the table
    of all formats, and the number line with the number marked.
    """
    fmt = FORMATS[format_name]
    facts = code_facts(fmt, parse_code(entry, fmt))
    number = float(entry) if plain_number(entry) else facts.value
    lines = [
        FORMATS[name]
        for name in dict.fromkeys((format_name, *LINES))
        if FORMATS[name].bits <= 8 and name != E8M0.name
    ]
    return CodeView(
        bits=html.bit_switches(facts.bits, fmt.fields),
        meaning=html.code(facts),
        everywhere=html.renderings(number, in_every_format(number)),
        line=plot_data(number_line_figure(lines, number)),
    )


@shows()
def flip(format_name: str, entry: str, event: gr.EventData) -> str:
    """The entry with one bit of its code flipped, in hexadecimal."""
    fmt = FORMATS[format_name]
    code = parse_code(entry, fmt) ^ (1 << int(event.bit))
    if code >= fmt.code_count:
        raise ValueError(f"{fmt.label} uses only codes 0 to {fmt.code_count - 1}")
    return f"0x{code:0{-(-fmt.bits // 4)}X}"


@shows()
def sizes(model: str, billions: float, scheme: str) -> str:
    """The memory a model's weights take: the sidebar's scheme and the usual ones, as a table."""
    chosen = Scheme.parse(scheme)
    shape = MODELS.get(model)
    if shape is None and not (billions and 0 < billions <= 1e6):
        raise ValueError("give a parameter count between 0 and a million billions")
    rows = {chosen.name: chosen, **{name: SCHEMES[name] for name in SIZES}}
    estimates = [estimate(s, shape, 0 if shape else round(billions * 1e9)) for s in rows.values()]
    return html.memory(estimates, chosen.label)


@shows()
def sizes_of_selection(chosen: Selection, model: str, billions: float) -> str:
    """``sizes`` for the sidebar's scheme, given the whole selection."""
    return sizes(model, billions, chosen.scheme)


def build(page: Page) -> None:
    """Lay the tab out; the memory table follows the sidebar's scheme."""
    _build_code()
    with card(
        "Spacing against magnitude",
        "floating point keeps its relative precision, integers their absolute one",
    ):
        plot("spacing", spacing_figure([FORMATS[n] for n in SPACINGS]))
    _build_sizes(page)
    with card("All formats", "bits as packed; S/E/M are sign, exponent and mantissa bits"):
        block(html.format_table())


def _build_code() -> None:
    """One code in one format, beside the same number in all of them and on the number line."""
    first = explain(FIRST_FORMAT, FIRST_ENTRY)
    with gr.Row():
        with card("One code", "click a bit, or use the arrow keys and Space; or type below"):
            with gr.Row():
                fmt = gr.Dropdown(
                    [(f.label, f.name) for f in FORMATS.values()],
                    value=FIRST_FORMAT,
                    label="Format",
                    min_width=140,
                )
                entry = gr.Textbox(FIRST_ENTRY, label="Number, 0b bits or 0x hex", max_lines=1, min_width=160)
            bits = block(first.bits, js_on_load=BIT_SWITCHES, elem_id="toy")
            meaning = block(first.meaning)
        with card(
            "The same number in every format", "without a scale; what lies beyond the largest value saturates"
        ):
            everywhere = block(first.everywhere)
    with card(
        "Number line", "every value of the formats of up to 8 bits; the dotted line is the number above"
    ):
        line = plot("number-line")
    _wire_code(fmt, entry, CodeView(bits=bits, meaning=meaning, everywhere=everywhere, line=line))


def _wire_code(fmt: Control, entry: Control, outputs: CodeView) -> None:
    inputs, unlisted = [fmt, entry], {**QUIET, "api_visibility": "undocumented"}
    listen(fmt.change, explain, inputs, outputs, api_name="explain", **QUIET)
    listen(entry.submit, explain, inputs, outputs, api_name="explain_entry", **QUIET)
    listen(entry.blur, explain, inputs, outputs, api_name="explain_blur", **unlisted)
    flipped = listen(outputs.bits.flip, flip, inputs, entry, api_name="flip", **QUIET)
    listen(flipped.then, explain, inputs, outputs, api_name="explain_flipped", **unlisted)


def _build_sizes(page: Page) -> None:
    with card(
        "How large is the model",
        "weights with their scales; KV cache and activations come on top. GPU memory as the vendors state it",
    ):
        with gr.Row():
            model = gr.Dropdown([*MODELS, BY_COUNT], value="Llama-2-7B", label="Model", min_width=200)
            billions = gr.Number(
                7, label="Billions of parameters, when given by count", minimum=0, min_width=200
            )
        table = block(elem_id="sizes")
    scheme = page.bar.scheme.text
    for control, name in ((model, "model"), (billions, "billions")):
        listen(control.change, sizes, [model, billions, scheme], table, api_name=f"sizes_{name}", **QUIET)
    page.follow(sizes_of_selection, [model, billions], table, api_name="sizes")
