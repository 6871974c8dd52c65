"""Endpoints for programs that explain codes: called as functions, over every format."""

from __future__ import annotations

import itertools
from typing import Any

import gradio as gr
import pytest

from app import api
from explorer.formats import FORMATS


def test_explain_takes_every_way_to_write_a_number() -> None:
    """Every format takes decimals, bits and hexadecimal, and says what each format makes of the number."""
    entries = itertools.cycle(["0", "-1.5", "3.14159", "1e30", "inf", "0x1", "0b0"])
    for name, entry in [*zip(FORMATS, entries, strict=False), *(("int4", next(entries)) for _ in range(7))]:
        out = api.explain(name, entry)
        assert len(out["bits"]) == FORMATS[name].bits and out["words"], (name, entry)
        assert [row["format"] for row in out["everywhere"]] == list(FORMATS)


def test_explain_refuses_in_words() -> None:
    """What is no number and no code of the format is an error that says what is accepted."""
    for entry in ("", "pear", "0b2", "0xZZ", "0x1FF", "nan"):
        with pytest.raises(gr.Error, match=r".{15}"):
            api.explain("float6_e2m3fn", entry)
    with pytest.raises(gr.Error, match="float32"):
        api.explain("pear", "1")


def test_flipping_a_bit_twice_gives_the_code_back() -> None:
    """If not, the answer is another code than asked for."""
    for name in ("float8_e4m3fn", "int8", "float16"):
        for bit in range(FORMATS[name].bits):
            once = api.flip(name, "1.0", bit)
            assert int(once, 16) == int(api.flip(name, api.flip(name, once, bit), bit), 16)
            assert int(once, 16) ^ (1 << bit) == api.explain(name, "1.0")["code"]
        with pytest.raises(gr.Error, match="bits 0 to"):
            api.flip(name, "1.0", FORMATS[name].bits)
    with pytest.raises(gr.Error, match="codes 0 to 2"):
        api.flip("ternary", "0b10", 0)


NO_TEXTS: list[tuple[Any, tuple[Any, ...]]] = [
    (api.explain, ("int4", 1)), (api.explain, (None, "1")), (api.flip, ("int4", 10**9, 0)),
    (api.report, (None, None)), (api.report, ("mlp_up", 5)), (api.model_layers, (["x"],)),
    (api.report_layer, ("m", {}, "nvfp4")),
]  # fmt: skip


def test_what_is_no_text_is_said() -> None:
    """JSON has other values; a program is told which argument was wrong."""
    for endpoint, values in NO_TEXTS:
        with pytest.raises(gr.Error, match="is a text, not"):
            endpoint(*values)
