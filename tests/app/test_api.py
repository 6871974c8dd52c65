"""Endpoints for programs that explain codes: called as functions, over every format."""

from __future__ import annotations

from typing import Any

import gradio as gr
import pytest

from app import api
from explorer.formats import FORMATS


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("entry", ["0", "-1.5", "3.14159", "1e30", "inf", "0x1", "0b0"])
def test_explain_takes_every_way_to_write_a_number(name: str, entry: str) -> None:
    """Every format takes decimals, bits and hexadecimal, and says what each format makes of the number."""
    out = api.explain(name, entry)
    assert len(out["bits"]) == FORMATS[name].bits and out["words"]
    assert [row["format"] for row in out["everywhere"]] == list(FORMATS)


@pytest.mark.parametrize("entry", ["", "pear", "0b2", "0xZZ", "0x1FF", "nan"])
def test_explain_refuses_in_words(entry: str) -> None:
    """What is no number and no code of the format is an error that says what is accepted."""
    with pytest.raises(gr.Error, match=r".{15}"):
        api.explain("float6_e2m3fn", entry)
    with pytest.raises(gr.Error, match="accepted: float32"):
        api.explain("pear", "1")


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int8", "float16", "float32"])
def test_flipping_a_bit_twice_gives_the_code_back(name: str) -> None:
    """If not, the answer is another code than asked for."""
    for bit in range(FORMATS[name].bits):
        once = api.flip(name, "1.0", bit)
        assert int(once, 16) == int(api.flip(name, api.flip(name, once, bit), bit), 16)
        assert int(once, 16) ^ (1 << bit) == api.explain(name, "1.0")["code"]
    with pytest.raises(gr.Error, match="has bits 0 to"):
        api.flip(name, "1.0", FORMATS[name].bits)


def test_a_code_that_is_not_used_is_refused() -> None:
    with pytest.raises(gr.Error, match="codes 0 to 2"):
        api.flip("ternary", "0b10", 0)


NO_TEXTS: list[tuple[Any, tuple[Any, ...]]] = [
    (api.explain, ("int4", 1)), (api.explain, (None, "1")), (api.flip, ("int4", 10**9, 0)),
    (api.report, (None, None)), (api.report, ("mlp_up", 5)), (api.model_layers, (["x"],)),
    (api.report_layer, ("m", {}, "nvfp4")),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "values"), NO_TEXTS)
def test_what_is_no_text_is_said(endpoint: Any, values: tuple[Any, ...]) -> None:
    """JSON has other values; a program is told which argument was wrong."""
    with pytest.raises(gr.Error, match="is a text, not"):
        endpoint(*values)
