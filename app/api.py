"""Endpoints for programs, beside those of the page's own controls: plain arguments in, plain JSON out."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from app import limits
from app.parts.refusals import for_program
from app.state.analyses import analyses_of
from app.state.choices import bytes_of, schemes_of
from app.state.gpu_lock import locked_steps, room
from app.state.query import Query
from app.state.selection import Selection, matrix_of, model_source
from explorer import FORMATS, SCHEMES, compare_schemes, mark_frontier
from explorer.analysis.schemes import comparison_record
from explorer.core.serialize import to_json
from explorer.formats import FloatFormat, Format
from explorer.formats.code import code_facts, flip_bit, in_every_format, parse_code, plain_number
from explorer.sources.models import layers
from explorer.sources.samples import SAMPLES


def list_formats() -> list[dict[str, Any]]:
    """All number formats: name, label, bits, fields and range."""
    return [
        {
            "name": f.name,
            "label": f.label,
            "bits": f.bits,
            "max": f.max,
            "tiniest": f.smallest_subnormal,
            "exponent": f.exponent if isinstance(f, FloatFormat) else None,
            "mantissa": f.mantissa if isinstance(f, FloatFormat) else None,
        }
        for f in FORMATS.values()
    ]


def explain(format_name: str, entry: str) -> dict[str, Any]:
    """A number, bits (0b0101) or hexadecimal (0x50) in one format: code, bits, value, words, neighbours, and
    under ``everywhere`` the number rounded to every format. NaN and infinity are null."""
    return _answer("explain", lambda: _explained(format_name, entry), format_name=format_name, entry=entry)


def _explained(format_name: str, entry: str) -> dict[str, Any]:
    fmt = _format(format_name)
    facts = code_facts(fmt, parse_code(entry, fmt))
    number = float(entry) if plain_number(entry) else facts.value
    return {**to_json(facts), "everywhere": to_json(in_every_format(number))}


def flip(format_name: str, entry: str, bit: float) -> str:
    """The code of an entry with one bit flipped, in hexadecimal; bit 0 is the lowest."""
    return _answer("flip", lambda: _flipped(format_name, entry, bit), format_name=format_name, entry=entry)


def _flipped(format_name: str, entry: str, bit: float) -> str:
    fmt = _format(format_name)
    code = flip_bit(fmt, parse_code(entry, fmt), bit)
    return f"0x{code:0{-(-fmt.bits // 4)}X}"


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"no format {name!r}; accepted: {', '.join(FORMATS)}")
    return FORMATS[name]


def list_schemes() -> list[dict[str, Any]]:
    """All named schemes, each with the sentence that describes it."""
    return [{**to_json(s), "describe": s.describe()} for s in SCHEMES.values()]


def list_samples() -> list[dict[str, Any]]:
    """The built-in tensors."""
    return [{"name": s.name, "label": s.label, "synthetic": s.synthetic} for s in SAMPLES.values()]


def model_layers(model: str, revision: str = "", containing: str = "") -> list[dict[str, Any]]:
    """The layers of a model folder or Hub id, from its headers, whose name contains a text."""
    return _answer(
        "model_layers",
        lambda: to_json(list(layers(model_source(model, revision), containing, limits.current().listed))),
        model=model,
        revision=revision,
        containing=containing,
    )


def report(sample: str, schemes: str) -> list[dict[str, Any]]:
    """Reports of comma-separated schemes on a built-in tensor."""
    chosen = Selection(source="builtin", sample=sample)
    return _answer("report", lambda: _reports(chosen, schemes), sample=sample, schemes=schemes)


def report_layer(model: str, layer: str, schemes: str, revision: str = "") -> list[dict[str, Any]]:
    """Reports of comma-separated schemes on one layer of a model."""
    chosen = Selection(source="model", model=model, layer=layer, revision=revision)
    texts = {"model": model, "layer": layer, "schemes": schemes, "revision": revision}
    return _answer("report_layer", lambda: _reports(chosen, schemes), **texts)


def _reports(chosen: Selection, schemes: str) -> list[dict[str, Any]]:
    wanted = schemes_of(schemes.split(","))
    values = matrix_of(chosen).values
    with room(bytes_of(values, wanted)):
        rows = mark_frontier(locked_steps(compare_schemes(values, wanted)))
    return [comparison_record(row) for row in rows]


def tensor(
    source: str = "builtin",
    sample: str = "mlp_up",
    file: str = "",
    file_tensor: str = "",
    model: str = "",
    revision: str = "",
    layer: str = "",
    scheme: str = "int4_group128_asym",
    second: str = "",
) -> list[dict[str, Any]]:
    """Reports of one or two schemes on a tensor of any source; ``file`` is the path that an upload to
    /gradio_api/upload was answered with."""
    texts = {name: value for name, value in locals().items() if value != ""}

    def make() -> list[dict[str, Any]]:
        query = Query(texts)
        matrix, pairs = analyses_of(query.record)
        if query.problems:
            raise ValueError(". ".join(query.problems.values()))
        return [
            {"tensor": matrix.description, "scheme": str(recipe), "describe": recipe.describe()}
            | {"report": to_json(analysis.report)}
            for recipe, analysis in pairs
        ]

    return _answer("tensor", make, **texts)


def _answer(name: str, make: Any, **texts: Any) -> Any:
    """The answer; a refusal also where one of ``texts`` is none."""
    with for_program(name):
        for what, value in texts.items():
            if not isinstance(value, str):
                raise ValueError(f"{what} is a text, not {json.dumps(value)[:40]}")
        return make()


ENDPOINTS = (
    list_formats, explain, flip, list_schemes, list_samples, model_layers, report, report_layer, tensor,
)  # fmt: skip


def register() -> None:
    """Add the endpoints to the page being built."""
    for function in ENDPOINTS:
        gr.api(function, api_name=function.__name__)
