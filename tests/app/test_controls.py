"""The bar's strings and the library's objects: every scheme survives the trip through a link."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
from hypothesis import given, settings

from app import limits
from app.parts.scheme_controls import show_scheme
from app.state.controls import (
    CODES,
    CONVENTIONS,
    GRANULARITIES,
    MAPPINGS,
    SCALES,
    Parts,
    dropped_choices,
    format_choices,
    parts_of,
    scheme_of,
    text_of_parts,
)
from app.state.record import Record, next_record
from app.ui import build
from explorer import CALIBRATORS, SCHEMES, MappingType, Scheme, quantize
from explorer.schemes import SCALE_RULES, Convention
from explorer.schemes.rules import CODE_WORDS
from explorer.schemes.text import ELEMENT_FORMATS
from explorer.sources import load_matrix, load_sample
from tests.covering import EACH_SCHEME
from tests.schemes.test_text import legal_schemes, same_parts


@pytest.fixture(scope="module")
def page() -> gr.Blocks:
    """The page with all its components."""
    return build()


@settings(max_examples=300, deadline=None)
@given(scheme=legal_schemes())
def test_every_legal_scheme_survives_the_controls(scheme: Scheme) -> None:
    """Scheme -> controls -> scheme gives the same parts: a click on one control changes nothing else.

    A cast has no blocks and no scales to refit, whatever its text says.
    """
    if scheme.scale is None:
        scheme = dataclasses.replace(scheme, block=(None, None), least_squares_scale=False)
    assert same_parts(scheme_of(parts_of(scheme)), scheme)


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_presets_survive_the_controls(name: str) -> None:
    """Preset -> controls -> scheme is the preset itself, so that its name stays in the picker."""
    assert scheme_of(parts_of(SCHEMES[name])) is SCHEMES[name]


def test_the_pickers_offer_what_a_text_may_say() -> None:
    """If this fails, a link opens with a scheme that the next click refuses."""
    rules = [rule for rule in SCALE_RULES.values() if rule is not None and not rule.has_upper_level]
    assert {rule.word for rule in rules if rule.convention is Convention.OWN} < set(SCALES)
    of_words = {rule.convention for rule in rules if not rule.is_searched}
    assert set(CONVENTIONS) == {convention.value or "own" for convention in of_words}
    searched = {rule.word for rule in SCALE_RULES.values() if rule is not None and rule.is_searched}
    assert searched == {"super4-ggml", "super6-ggml", "super8-ggml", "float16-ggml"} < set(SCALES)
    assert set(CODES) == set(CODE_WORDS) and set(MAPPINGS) == set(MappingType.__members__)
    assert {name for _, name in format_choices()} == set(ELEMENT_FORMATS)


def test_every_combination_of_controls_works() -> None:
    """No order of clicks leads to an error: impossible combinations fall back, the text form round-trips."""
    x = load_sample("attention_query").values[:8]
    every = itertools.product(ELEMENT_FORMATS, GRANULARITIES, MAPPINGS, SCALES)
    for index, (fmt, granularity, mapping, scale) in enumerate(every):
        convention, codes = list(CONVENTIONS)[index % 4], tuple(CODES)[index % 5 : index % 5 + index % 3]
        rules = (mapping, scale, convention, "minmax", codes)
        scheme = scheme_of(Parts(fmt, granularity, 2, 48, *rules, False, index % 7 == 0, 3))
        assert Scheme.parse(str(scheme)) == scheme
        if index % 40 == 0:
            quantize(x, scheme)


def test_the_sides_of_a_block() -> None:
    """Groups use the columns alone, tiles both; 0 is the whole axis; from groups to tiles they are square."""
    parts = parts_of(Scheme.parse("int8~4x32~symmetric~float32~minmax"))
    blocks = {
        ("group", 4, 32): (1, 32),
        ("tile", 4, 32): (4, 32),
        ("tile", 4, 0): (4, None),
        ("tile", 0, 4): (None, 4),
        ("row", 4, 32): (1, None),
    }
    for (granularity, rows, columns), block in blocks.items():
        chosen = dataclasses.replace(parts, granularity=granularity, rows=rows, columns=columns)
        assert scheme_of(chosen).block == block
    groups = parts_of(SCHEMES["int4_group128"])
    assert scheme_of(dataclasses.replace(groups, granularity="tile")).block == (128, 128)
    for wrong in (-1, 10**9):
        with pytest.raises(ValueError, match="a side of a block has 1 to 999999999"):
            scheme_of(dataclasses.replace(parts, rows=wrong))


LARGE_SEED = "int4~1x128~symmetric~float16~minmax~s18446744073709551615"


@pytest.mark.parametrize(
    "text",
    [
        "int8~1X32~symmetric~FLOAT16~minmax",
        "INT4_GROUP128",
        " nvfp4 ",
        "int4~tensor~symmetric~float32~minmax",
        LARGE_SEED,
    ],
)
def test_the_bar_keeps_the_canonical_text(text: str) -> None:
    """If this fails, two links to one scheme differ, and its name is missing from the picker."""
    shown = show_scheme(text)
    name = str(Scheme.parse(text))
    assert shown.preset == name == next_record(Record(), {"do": "scheme", "text": text}, None).scheme


def test_a_seed_beyond_a_browsers_numbers_survives_a_click(page: gr.Blocks) -> None:
    """JavaScript's numbers are exact up to 2^53 only; a seed goes up to 2^64 - 1."""
    shown = show_scheme(LARGE_SEED)
    seed, _ = (b for b in page.blocks.values() if getattr(b, "label", None) == "Seed")
    values = [*shown.parts()[:-1], seed.preprocess(json.loads(json.dumps(seed.postprocess(shown.seed))))]
    assert isinstance(seed.postprocess(shown.seed), str) and text_of_parts(values) == LARGE_SEED


@pytest.mark.parametrize("side", [1.5, None, 0, -5, 1e12, float("inf"), float("nan")])
def test_a_size_that_is_none_is_refused_and_goes_back(
    side: float | None, page: gr.Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.5 does not become 2 on the way, and an empty field is not the whole axis; what holds is shown."""
    said: list[str] = []
    monkeypatch.setattr(limits, "notify", said.append)
    (size,) = (b for b in page.blocks.values() if getattr(b, "elem_id", None) == "size")
    values = show_scheme("int4_group128").parts()
    values[3] = size.preprocess(side)
    with pytest.raises(ValueError, match=r"^Group size \(columns\): a whole number from 1 to 999999999,"):
        text_of_parts(values)
    assert text_of_parts(show_scheme("int4_group128").parts()) == "int4_group128" and not said


TILES = "int8~32x32~symmetric~float32~minmax"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (2, -1, "Tile rows: a whole number from 0 (the whole axis)"),
        (3, -1, "Group size (columns): a whole number from 0 (the whole axis)"),
        (-1, "pear", "Seed: a whole number from 0 to 2^64 - 1, not 'pear'"),
        (-1, str(2**64), "2^64"),
    ],
)
def test_a_refused_number_names_its_field(field: int, value: object, words: str) -> None:
    """Else a visitor does not know which of the boxes is meant."""
    values = show_scheme(TILES).parts()
    values[field] = value
    with pytest.raises(ValueError, match=re.escape(words)):
        text_of_parts(values)


HOSTILE_PARTS = [
    (0, "nope"), (0, None), (1, ["x"]), (2, "x"), (2, True), (4, {}), (7, "nope"), (8, "x"), (8, ["zzz"]),
    (8, [1]), (11, [2]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), HOSTILE_PARTS)
def test_parts_that_no_control_holds_are_refused(field: int, value: object) -> None:
    """A program may send anything for a part: it is told what is taken, and nothing breaks."""
    values = show_scheme(TILES).parts()
    values[field] = value
    with pytest.raises(ValueError, match=r"\w+ .*\w+"):
        text_of_parts(values)


PICKERS = ("compare-schemes", "methods-schemes", "survive-schemes")
CUSTOM = "int5~4x128~symmetric~float8_e5m2~mse"


@pytest.mark.parametrize("elem_id", PICKERS)
def test_a_section_takes_a_scheme_of_the_visitors_own(elem_id: str, page: gr.Blocks) -> None:
    """If this fails, Gradio refuses the text of a scheme without a name before the handler sees it."""
    (picker,) = (b for b in page.blocks.values() if b.elem_id == elem_id)
    assert picker.preprocess(["nvfp4", CUSTOM]) == ["nvfp4", CUSTOM]
    (button,) = (b for b in page.blocks.values() if b.elem_id == f"{elem_id}-add")
    (clicked,) = (f for f in page.fns.values() if (button._id, "click") in f.targets)
    assert clicked.fn(["nvfp4"], CUSTOM, "") == ["nvfp4", CUSTOM]
    assert clicked.fn(["nvfp4", CUSTOM], CUSTOM, "") == ["nvfp4", CUSTOM]
    assert clicked.fn(None, "nf4_block64", "bf16") == ["nf4_block64", "bf16"]
    assert clicked.fn(None, "nvfp4", "nvfp4+gptq") == ["nvfp4"], "a picker of schemes takes the scheme"


def test_ranges_and_refit_survive() -> None:
    for wanted in CALIBRATORS:
        rules = ("SYMMETRIC", "float16", "own", wanted, ())
        fmt = "float4_e2m1fn" if wanted == "four_over_six" else "int4"
        scheme = scheme_of(Parts(fmt, "group", 64, 64, *rules, True, True, 11))
        assert (scheme.calibrator.name, scheme.least_squares_scale, scheme.seed) == (wanted, True, 11)
        assert Scheme.parse(str(scheme)) == scheme


WRONG = [
    "",
    "nope",
    "int4~1x128~asymmetric~float16",
    "int4~128~symmetric~float16~minmax",
    "zzz~1x128~symmetric~float16~minmax",
    "int4~1x128~SIDEWAYS~float16~minmax",
    "int4~1x128~symmetric~float16~minmax~what",
    "int4~0x1~symmetric~float32~minmax",
    "int4~1x8~symmetric~int8~minmax",
    "<script>alert(1)</script>",
]


@pytest.mark.parametrize("text", WRONG)
def test_wrong_texts_are_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w+ .*\w+"):
        Scheme.parse(text)


def test_what_is_taken_back_is_said() -> None:
    """One choice that does not fit changes no others, and the visitor is told which it was."""
    kept = parts_of(SCHEMES["q4_k"])
    wider = dataclasses.replace(kept, columns=4096)
    scheme = scheme_of(wider)
    assert scheme.block == (1, 4096) and scheme.mapping is MappingType.MINIMUM
    assert dropped_choices(wider, scheme).endswith("reset: scales, rules of scales")
    stored = dataclasses.replace(parts_of(SCHEMES["fp8_e4m3_row"]), mapping="MINIMUM")
    assert dropped_choices(stored, scheme_of(stored)).endswith("reset: symmetry")
    assert not dropped_choices(kept, scheme_of(kept)) and scheme_of(kept) is SCHEMES["q4_k"]
    ranged = dataclasses.replace(kept, range="mse", refit=True)
    assert str(scheme_of(ranged)) == "int4~1x32~minimum~super6~mse~fit", "llama.cpp's search takes no range"
    assert dropped_choices(ranged, scheme_of(ranged)).endswith("reset: scales")


def test_finite_numbers_beyond_float32_are_named(tmp_path: Path) -> None:
    """A file of 1e300 holds neither NaN nor Inf."""
    np.save(tmp_path / "huge.npy", np.array([[1e300, 1.0], [2.0, 3.0]]))
    with pytest.raises(ValueError, match="1 of 4 float64 values are beyond float32"):
        load_matrix(str(tmp_path / "huge.npy"))
