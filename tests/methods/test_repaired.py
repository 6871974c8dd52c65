"""A repaired layer looked at like any tensor, and the text that names it.

If these fail, a page shows numbers of a weight that no layer multiplies with, or a link repairs by another
method than it says.
"""

from __future__ import annotations

import pytest
from torch import Tensor

from explorer import SCHEMES, load_matrix
from explorer.analysis.tensor import analyse
from explorer.methods import COMBINATIONS, METHODS, apply
from explorer.methods.recipe import Recipe
from explorer.methods.repaired import RepairedAnalysis, analyse_layer, inspect, levels_of

NAMES = [*METHODS, *COMBINATIONS]


@pytest.fixture(scope="module")
def layer() -> tuple[Tensor, Tensor]:
    """A small part of a real layer, and its inputs."""
    w, x = load_matrix("sample:attention_query").values, load_matrix("sample:query_in").values
    return w[:48, :128].contiguous(), x[:64, :128].contiguous()


def repaired(layer: tuple[Tensor, Tensor], name: str, scheme: str = "int4_group128_asym") -> RepairedAnalysis:
    w, x = layer
    return analyse_layer(w, apply(name, w, SCHEMES[scheme], x), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_analysis_is_of_the_weight_that_the_layer_multiplies_with(
    layer: tuple[Tensor, Tensor], name: str
) -> None:
    """Error, size and maps of every method are those of ``QuantizedLayer.weight``, in float64. The arithmetic
    of an element begins with the original value and ends with the error that the map shows."""
    w, _ = layer
    seen = repaired(layer, name)
    error = (seen.layer.weight().double() - w.double()).abs()
    assert seen.report.mse == pytest.approx(float(error.square().mean()), rel=1e-5)
    row, column = seen.report.max_error_at
    assert seen.report.max_error == pytest.approx(float(error.max()), rel=1e-5)
    assert seen.report.max_error == pytest.approx(float(error[row, column]), rel=1e-5)
    assert float(seen.error_map.max()) == pytest.approx(seen.report.max_error, rel=1e-5)
    assert seen.report.bits.total == pytest.approx(seen.layer.bits_per_weight)
    assert seen.report.nbytes == pytest.approx(seen.layer.bits_per_weight * w.numel() / 8, abs=1)
    assert (seen.report.bits.added == 0) is seen.layer.plain
    assert 0 <= seen.report.clipped < 0.5
    one = inspect(w, seen, 3, 5)
    assert (one.value, one.restored) == (float(w[3, 5]), float(seen.layer.weight()[3, 5]))
    assert one.error == pytest.approx(one.restored - one.value)
    steps = dict(one.arithmetic)
    assert "round(" not in steps["rounded"] and list(steps)[-1] == "error"
    assert ("in the layer" in steps) is not seen.layer.plain
    assert ("in the codes' basis" in steps) is bool(seen.layer.transforms)
    assert len(levels_of(seen, 3, 5)) == (16 if seen.layer.plain else 0)


def test_round_to_nearest_is_the_plain_analysis(layer: tuple[Tensor, Tensor]) -> None:
    """The two ways to look at one weight agree."""
    w, _ = layer
    assert repaired(layer, "rtn").report == analyse(w, SCHEMES["int4_group128_asym"]).report


def test_a_text_names_scheme_and_method() -> None:
    """A link may have lost its "+" to a blank; round to nearest is no method of its own."""
    for text, canonical in (
        ("int4_group128_asym", "int4_group128_asym"),
        ("NVFP4+Rotation+GPTQ", "nvfp4+rotation+gptq"),
        ("int4~1x48~symmetric~float16~minmax+awq", "int4~1x48~symmetric~float16~minmax+awq"),
        ("int4_group128+rtn", "int4_group128"),
        (" int4_group128 gptq ", "int4_group128+gptq"),
        *((f"int4_group128+{name}", f"int4_group128+{name}") for name in NAMES if name != "rtn"),
    ):
        recipe = Recipe.parse(text)
        assert str(recipe) == canonical and Recipe.parse(canonical) == recipe
        assert recipe.scheme.label in recipe.label and recipe.describe()
    for text, words in (
        ("int4_group128+zzz", "zzz"),
        ("zzz+gptq", "zzz"),
        ("nvfp4+", "no method"),
        ("nvfp4+gptq+awq", "GPTQ"),
    ):
        with pytest.raises(ValueError, match=words):
            Recipe.parse(text)
