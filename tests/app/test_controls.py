"""The bar's strings and the library's objects: every scheme survives the trip through a link."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings

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
from explorer import SCHEMES, MappingType, Scheme, quantize
from explorer.schemes import SCALE_RULES, Convention
from explorer.schemes.rules import CODE_WORDS
from explorer.schemes.text import ELEMENT_FORMATS
from explorer.sources import load_sample
from tests.schemes.test_text import legal_schemes, same_parts


def values_of(text: str) -> list[Any]:
    """What the panel's controls hold for a scheme, in the order of ``Parts``."""
    parts = parts_of(Scheme.parse(text))
    return [list(value) if isinstance(value, tuple) else value for value in vars(parts).values()]


@settings(max_examples=100, deadline=None)
@given(scheme=legal_schemes())
def test_every_legal_scheme_survives_the_controls(scheme: Scheme) -> None:
    """Scheme -> controls -> scheme gives the same parts: a click on one control changes nothing else."""
    if scheme.scale is None:
        scheme = dataclasses.replace(scheme, block=(None, None), least_squares_scale=False)
    assert same_parts(scheme_of(parts_of(scheme)), scheme)


def test_presets_survive_the_controls() -> None:
    """Preset -> controls -> scheme is the preset itself, so that its name stays in the picker."""
    for name, scheme in SCHEMES.items():
        assert scheme_of(parts_of(scheme)) is scheme
        assert text_of_parts(values_of(name)) == name


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


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_combination_of_controls_works(every: int) -> None:
    """No order of clicks leads to an error: impossible combinations fall back, the text form round-trips."""
    x = load_sample("attention_query").values[:8]
    whole = enumerate(itertools.product(ELEMENT_FORMATS, GRANULARITIES, MAPPINGS, SCALES))
    for index, (fmt, granularity, mapping, scale) in itertools.islice(whole, 0, None, every):
        convention, codes = list(CONVENTIONS)[index % 4], tuple(CODES)[index % 5 : index % 5 + index % 3]
        rules = (mapping, scale, convention, "minmax", codes)
        scheme = scheme_of(Parts(fmt, granularity, 2, 48, *rules, False, index % 7 == 0, 3))
        assert Scheme.parse(str(scheme)) == scheme
        if index % 40 == 0:
            quantize(x, scheme)


def test_the_sides_of_a_block() -> None:
    """Groups use the columns alone, tiles both; 0 is the whole axis; from groups to tiles they are square."""
    parts = parts_of(Scheme.parse("int8~4x32~symmetric~float32~minmax"))
    for granularity, rows, columns, block in (
        ("group", 4, 32, (1, 32)),
        ("tile", 4, 32, (4, 32)),
        ("tile", 4, 0, (4, None)),
        ("tile", 0, 4, (None, 4)),
        ("row", 4, 32, (1, None)),
    ):
        chosen = dataclasses.replace(parts, granularity=granularity, rows=rows, columns=columns)
        assert scheme_of(chosen).block == block
    groups = parts_of(SCHEMES["int4_group128"])
    assert scheme_of(dataclasses.replace(groups, granularity="tile")).block == (128, 128)
    for wrong in (-1, 10**9):
        with pytest.raises(ValueError, match="999999999"):
            scheme_of(dataclasses.replace(parts, rows=wrong))


def test_a_size_that_is_none_is_refused() -> None:
    """1.5 does not become 2 on the way, and an empty field is not the whole axis."""
    for side in (1.5, None, 0, -5, 1e12, float("inf"), float("nan")):
        values = values_of("int4_group128")
        values[3] = side
        with pytest.raises(ValueError, match=r"^Group size .* 1 to 999999999"):
            text_of_parts(values)
    assert text_of_parts(values_of("int4_group128")) == "int4_group128"


TILES = "int8~32x32~symmetric~float32~minmax"


WRONG_PARTS: list[tuple[int, Any, str]] = [
    (2, -1, "Tile rows: .* 0 "), (3, -1, "Group size .* 0 "), (-1, "pear", "Seed: .*'pear'"),
    (-1, str(2**64), r"2\^64"),
    # what no control holds, but a program may send
    (0, "nope", ""), (0, None, ""), (1, ["x"], ""), (2, "x", ""), (2, True, ""), (4, {}, ""), (7, "nope", ""),
    (8, "x", ""), (8, ["zzz"], ""), (8, [1], ""), (11, [2], ""),
]  # fmt: skip


def test_a_refused_part_names_its_field() -> None:
    """Else a visitor does not know which of the boxes is meant."""
    for field, value, words in WRONG_PARTS:
        values = values_of(TILES)
        values[field] = value
        with pytest.raises(ValueError, match=words or r"\w+ .*\w+"):
            text_of_parts(values)


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
