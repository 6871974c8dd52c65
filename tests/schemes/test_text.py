"""A scheme is one text: links, command lines, saved files and torch operators carry it.

If these fail, a link opens another scheme than it was made for, or a saved tensor cannot be read back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import string
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer import CALIBRATORS, FORMATS, SCHEMES, ExponentRule, MappingType, ScaleRule, Scheme, quantize
from explorer.core.file import load as load_quantized
from explorer.core.file import save_quantized
from explorer.core.ops import fake_quantize, learned_quantize
from explorer.formats import E4M3, E8M0, IntegerFormat
from explorer.paths import ASSETS
from explorer.schemes import ALIASES, OWN_CODES, SCALE_RULES, CodeRule, Convention, Ties
from explorer.schemes.calibrators import MINMAX
from explorer.schemes.labels import custom_label
from explorer.schemes.named import NAMES
from explorer.schemes.rules import CODE_WORDS
from explorer.schemes.scheme import _parse
from explorer.schemes.text import SCALE_FORMATS, checked_text
from tests.covering import sampled

ELEMENTS = [row for row in FORMATS.values() if not row.scale_only]
ELEMENTS.append(IntegerFormat(name="int7", label="INT7", bits=7))
PLAIN_RULES = [
    ScaleRule(E4M3, per_tensor=True),
    *(ScaleRule(E8M0, rule) for rule in ExponentRule),
    *(ScaleRule(row) for row in SCALE_FORMATS if row is not E8M0),
]
RULES = [
    None,
    *(
        dataclasses.replace(rule, convention=convention)
        for rule in PLAIN_RULES
        for convention in Convention
        if convention is not Convention.GGML
        and (convention is not Convention.ZERO or rule.format is not E8M0)
    ),
    *(
        ScaleRule(FORMATS["float16"], None, False, convention, bits)
        for bits in (4, 6, 8)
        for convention in (Convention.ZERO, Convention.GGML)
    ),
    ScaleRule(FORMATS["float16"], convention=Convention.GGML),
    ScaleRule(convention=Convention.ZERO, nested=True),
]
CODES = st.builds(CodeRule, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(Ties))
SIDES = st.none() | st.integers(1, 2**20)


PARTS: dict[str, st.SearchStrategy[object]] = {
    "format": st.sampled_from(ELEMENTS), "block": st.tuples(SIDES, SIDES), "scale": st.sampled_from(RULES),
    "mapping": st.sampled_from(MappingType), "calibrator": st.sampled_from(list(CALIBRATORS.values())),
    "least_squares_scale": st.booleans(), "seed": st.none() | st.integers(0, 2**64 - 1),
    "codes": st.just(OWN_CODES) | CODES, "flat": st.booleans(),
}  # fmt: skip


@st.composite
def legal_schemes(draw: st.DrawFn) -> Scheme:
    """A row of ``SCHEMES`` whose parts are drawn anew one after the other, each where ``Scheme`` accepts it:
    every combination may come, and none is drawn to be thrown away."""
    scheme = dataclasses.replace(draw(st.sampled_from(list(SCHEMES.values()))), name="drawn", label="drawn")
    for name in draw(st.permutations(list(PARTS))):
        value = draw(PARTS[name])
        with contextlib.suppress(ValueError):
            scheme = dataclasses.replace(scheme, **{name: value})  # type: ignore[arg-type]
    return scheme


def same_parts(a: Scheme, b: Scheme) -> bool:
    return dataclasses.replace(a, name=b.name, label=b.label) == b


@settings(max_examples=250, deadline=None)
@given(scheme=legal_schemes())
def test_every_legal_scheme_survives_its_text(scheme: Scheme) -> None:
    """``parse(str(s))`` is ``s`` up to name and label, in any case, and a link needs no escapes for it."""
    text = str(scheme)
    for spelled in (text, text.upper(), text.lower(), f" {scheme.text} "):
        assert same_parts(Scheme.parse(spelled), scheme)
    assert urllib.parse.quote(text, safe="") == text
    parsed = Scheme.parse(text)
    assert str(parsed) == text == parsed.name
    if text not in SCHEMES:
        assert parsed.label == custom_label(scheme)


BLOCKS = [(None, None), (1, None), (None, 1), (None, 8), (8, None), (1, 1), (1, 48), (48, 1), (4, 8), (8, 4)]
VARIED = {
    "format": ELEMENTS,
    "block": BLOCKS,
    "scale": RULES,
    "mapping": list(MappingType),
    "calibrator": list(CALIBRATORS.values()),
    "least_squares_scale": [False, True],
    "seed": [None, 0, 7],
    "codes": [OWN_CODES, *(CodeRule(**{name: on}) for name, on in CODE_WORDS.values())],  # type: ignore[arg-type]
    "flat": [False, True],
}
CHANGED = ["int4~1x48~asymmetric~float16~minmax", "int8~48x48~symmetric~float32~mse", "int4_group128",
           "nvfp4", "mxfp4", "q4_k", "nf4~1x48~symmetric~float32~minmax", "fp8_e4m3_row", "bf16"]  # fmt: skip


@pytest.mark.parametrize("text", sampled(CHANGED, ("int4_group128", "nvfp4", "bf16")))
def test_labels_tell_schemes_apart(text: str) -> None:
    """Two schemes that differ in any one or two parts stand side by side as A and B under different labels;
    and none is called like a row of ``SCHEMES`` that it is not."""
    labels: dict[str, str] = {row.label: row.text for row in SCHEMES.values()}
    for one, other in itertools.combinations(VARIED, 2):
        for values in itertools.product(VARIED[one], VARIED[other]):
            with contextlib.suppress(ValueError):
                changed = dataclasses.replace(
                    Scheme.parse(text), **dict(zip((one, other), values, strict=True))
                )
                scheme = Scheme.parse(changed.text)
                assert labels.setdefault(scheme.label, scheme.text) == scheme.text, scheme.label


def test_every_scale_rule_has_a_word() -> None:
    """A scale format without a word could be used in Python and nowhere else."""
    words = list(SCALE_RULES.values())
    assert all(words.count(rule) == 1 for rule in RULES) and len(words) == len(RULES)


def test_a_preset_is_its_name() -> None:
    """The name, and the same parts spelled out in lower case, are the row itself; no two rows have the same
    parts. Links and files of earlier versions open what they meant: aliases are no names of today."""
    for name, row in SCHEMES.items():
        assert str(row) == name == row.name and Scheme.parse(name) is row and Scheme.parse(row.text) is row
        assert str(dataclasses.replace(row, name="other", label="x")) == name and row.text.islower()
    assert len(NAMES) == len(SCHEMES)
    for old, name in ALIASES.items():
        assert old not in SCHEMES and Scheme.parse(old) is SCHEMES[name]


OLDER_TEXTS: Mapping[str, str] = {
    "int4~1x128~ASYMMETRIC~float16~minmax": "int4_group128_asym",
    "float4_e2m1fn~1x32~SYMMETRIC~FLOOR~minmax~fit~s7": "float4_e2m1fn~1x32~symmetric~floor~minmax~fit~s7",
    "int8~1xrow~SYMMETRIC~float32~minmax": "int8_row",
    "int8~rowxrow~FULL~float16~percentile": "int8~tensor~full~float16~percentile",
    "int8~rowx1~SYMMETRIC~float32~minmax": "int8_column",
    "int8~4xrow~SYMMETRIC~float32~minmax~s3~fit": "int8~4xall~symmetric~float32~minmax~fit~s3",
    "bfloat16~rowxrow~SYMMETRIC~none~minmax": "bf16",
}


def test_long_texts_are_not_kept() -> None:
    """Some are in the cache by their letters alone, not by the blanks around them."""
    before = _parse.cache_info().currsize
    for number in range(300, 310):
        assert Scheme.parse(f"{' ' * number}int4_row\n") is SCHEMES["int4_row"]
        with pytest.raises(ValueError, match="scheme"):
            Scheme.parse("int4~" * number)
    assert _parse.cache_info().currsize <= before + 1


def test_older_texts_are_read() -> None:
    """Texts of earlier links: mappings in upper case, ``row`` for a whole axis, options in any order."""
    assert {text: str(Scheme.parse(text)) for text in OLDER_TEXTS} == OLDER_TEXTS


NAMES_WITH_OTHER_BLOCKS: Mapping[str, str] = {
    "int4_group48": "int4~1x48~symmetric~float16~minmax",
    "int4_group48_asym": "int4~1x48~asymmetric~float16~minmax",
    "INT4_GROUP48_ASYM": "int4~1x48~asymmetric~float16~minmax",
    "int4_group48_full": "int4~1x48~full~float16~minmax",
    "int4_1x48_asym": "int4~1x48~asymmetric~float16~minmax",
    "int4_group0128": "int4_group128",
    "int4_1x128_asym": "int4_group128_asym",
    "int4_group256_vllm": "int4~1x256~full~bfloat16-ct~minmax~bf16",
    "int4_group256_asym_vllm": "int4~1x256~asymmetric~bfloat16-ct~minmax~zerofirst~bf16",
    "int8_group48_asym": "int8~1x48~asymmetric~float16~minmax",
    "int6_64x64": "int6~64x64~symmetric~float16~minmax",
    "int6_64x64_asym": "int6~64x64~asymmetric~float16~minmax",
    "int8_1xall": "int8_row",
    "int6_row_full": "int6~row~full~float16~minmax",
    "int5_tensor_asym": "int5~tensor~asymmetric~float16~minmax",
    "int4_column": "int4~column~symmetric~float16~minmax",
    "int3_4xall": "int3~4xall~symmetric~float16~minmax",
    "int2_row": "int2~row~power~float16~minmax",
    "int2_group16_asym": "int2~1x16~asymmetric~float16~minmax",
    "fp8_e4m3_1x64": "float8_e4m3fn~1x64~symmetric~float32~minmax",
    "fp8_e5m2_32x64": "float8_e5m2~32x64~symmetric~float32~minmax",
    "fp8_e4m3_column": "float8_e4m3fn~column~symmetric~float32~minmax",
    "fp8_e4m3fnuz_tensor": "float8_e4m3fnuz~tensor~symmetric~float32~minmax",
    "nf4_block128": "nf4~1x128~symmetric~float32~minmax",
    "nf4_block128_double": "nf4~1x128~symmetric~nested~minmax~reciprocal~unrounded",
    "fp4_block128_bnb": "bnb_fp4~1x128~symmetric~float32-zero~minmax~reciprocal",
    "binary_group64": "binary~1x64~symmetric~float32~absmean",
}


def test_names_take_other_blocks() -> None:
    """A name with another block is the scheme that its text spells: whatever it leaves open is that of the
    named scheme which is most like it."""
    for name, text in NAMES_WITH_OTHER_BLOCKS.items():
        scheme = Scheme.parse(name)
        assert str(scheme) == scheme.name == text and scheme == Scheme.parse(text)
        assert scheme.label == (SCHEMES[text].label if text in SCHEMES else custom_label(scheme))


def test_other_blocks_change_nothing_else() -> None:
    """A named scheme is found again from its own name with another block and back."""
    for name in SCHEMES:
        found = re.fullmatch(r"(.*?)_(?:group[0-9]+|block[0-9]+|[0-9]+x[0-9]+)(|_.*)", name)
        if found:
            rows, columns = SCHEMES[name].block
            other = Scheme.parse(f"{found[1]}_{'group7' if rows == 1 else '7x7'}{found[2]}")
            assert str(dataclasses.replace(other, block=(rows, columns))) == name


RECORDINGS = ("quantize", "methods", "analysis", "embeddings")


def test_every_recorded_scheme_is_read() -> None:
    """Recordings keep the names of their time; the page looks them up by scheme."""
    files = [json.loads((ASSETS / "measurements" / f"{kind}.json").read_text()) for kind in RECORDINGS]
    names = {row["scheme"] for file in files for row in file["rows"]}
    assert names and all(Scheme.parse(name).name in SCHEMES for name in names)


WRONG = [
    ("", 0, "''"), ("int4_grup128", 0, "int4_group128"), ("int8_tokn", 0, "int8_token"),
    ("int4_group0", 0, "int4_group0"), ("int4_0x8", 0, "int4_0x8"),
    ("int4_group9999999999", 0, "int4_group9"), ("int4_group" + "9" * 500, 0, "int4_group999"),
    ("int4_group48_asymm", 0, "did you mean asym"), ("int4_group48_", 0, "int4_group48_"),
    ("int4_group", 0, "int4_group48_asym"), ("int4_group-8", 0, "int4_group-8"),
    ("int9_group48", 0, "int4~1x48~asymmetric~float16~minmax"),
    ("nf4_block64_asym", 0, "accepted: bnb, double"), ("fp4_block64", 0, "accepted: bnb"),
    ("fp8_e4m3_1x64_asym", 0, "accepted: none"), ("int8_tensor_vllm", 0, "accepted: asym, full"),
    ("mxfp4_group16", 0, "mxfp4_group16"), ("int9~1x8~symmetric~float16~minmax", 1, "int"),
    ("float8_e8m0fnu~1x8~symmetric~float16~minmax", 1, "float8_e8m0fnu"),
    ("int4~128~symmetric~float16~minmax", 2, "tensor, row, column"),
    ("int4~1x-8~symmetric~float16~minmax", 2, "1x-8"),
    ("int4~flat0~symmetric~float16~minmax", 0, "positive"),
    ("int4~flat~symmetric~float16~minmax", 2, "flat64"), ("int4~1x24~minimum~super6~minmax", 0, "1, 2, 4"),
    ("int4~1x32~asymmetric~super6~minmax", 0, "minimum and signed_max"),
    ("int4~flat32~minimum~super6~minmax", 0, "256"),
    ("int4~1x32~minimum~super5~minmax", 4, "did you mean super"),
    ("int4~1x64~asymmetric~nested~minmax", 0, "symmetric"), ("int4~1x²~symmetric~float16~minmax", 0, "'²'"),
    ("int4~1x8~asymetric~float16~minmax", 3, "did you mean asymmetric"), ("int4~1x8", 3, "character 9"),
    ("int4~1x8~symmetric~int8~minmax", 4, "int8"),
    ("int4~1x8~symmetric~float8_e8m0fnu~minmax", 4, "float8_e8m0fnu"),
    ("int4~1x8~symmetric~float16", 5, "calibrator"),
    ("int4~1x8~symmetric~float16~percentil", 5, "did you mean percentile"),
    ("int4~1x8~symmetric~float16~minmax~", 6, "fit, one seed"),
    ("int4~1x8~symmetric~float16~minmax~fit~fit", 7, "fit"),
    ("int4~1x8~symmetric~float16~minmax~s1~s2", 7, "s2"),
    ("int4~1x8~symmetric~float16~minmax~s-1", 6, "s-1"),
    ("int4~0x8~symmetric~float16~minmax", 0, "positive"),
    ("nf4~1x8~asymmetric~float16~minmax", 0, "integer format"),
    ("int8~1x8~symmetric~none~minmax", 0, "needs a scale"),
    ("int4~1x8~symmetric~float16~minmax~s99999999999999999999", 0, "seed"), ("int4~" + "1" * 500, 0, "200"),
    ("int4~1x8~symmetric~float16~minmax~ſ7", 0, "'ſ' (U+017F) at character 35"),
    ("int4_bloc\u212a64", 0, "'\u212a' (U+212A) at character 10"),
    ("int4~1x٨~symmetric~float16~minmax", 0, "'٨' (U+0668) at character 8"),
    ("int4_group١٢٨", 0, "'١' (U+0661) at character 11"),
]  # fmt: skip
"""A text, the number of its wrong part (0: the whole), and what its refusal names."""


def test_wrong_texts_say_where_and_what_is_accepted() -> None:
    """One line with the part, its character and what is accepted there; a note with a caret under it."""
    for text, part, words in WRONG:
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            Scheme.parse(text)
        message = str(caught.value)
        assert "\n" not in message
        if part:
            start = min(len("".join(f"{word}~" for word in text.split("~")[: part - 1])), len(text))
            assert f"part {part} " in message and f"at character {start + 1}" in message
            whole, pointer = caught.value.__notes__[0].splitlines()
            assert whole == text and pointer.index("^") == start


@settings(max_examples=300, deadline=None)
@given(text=st.text(string.ascii_letters + string.digits + "~_x-. ²\n", max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    """A visitor's link may hold anything: the answer is a scheme or a ValueError."""
    try:
        assert Scheme.parse(text).name
    except ValueError as error:
        assert str(error)


def test_parts_of_the_callers_own_are_not_taken_for_a_row(tmp_path: Path) -> None:
    """A format or calibrator without a row has a text to print, but none to be read back by: files and
    operators refuse it, where they would compute with the row of that name."""
    x, row = torch.ones(2, 8), SCHEMES["int8_row"]
    for scheme in (
        dataclasses.replace(row, format=dataclasses.replace(row.format, label="other")),
        dataclasses.replace(row, calibrator=dataclasses.replace(MINMAX, label="other")),
        dataclasses.replace(row, calibrator=dataclasses.replace(MINMAX, name="other")),
    ):
        q, steps = quantize(x, scheme), torch.ones(scheme.grid((2, 8)))
        assert str(scheme) == scheme.text
        for use in (
            lambda scheme=scheme: checked_text(scheme),
            lambda q=q: save_quantized(q, tmp_path / "q.safetensors"),
            lambda scheme=scheme: fake_quantize(x, scheme),
            lambda scheme=scheme, steps=steps: learned_quantize(x, steps, scheme),
        ):
            with pytest.raises(ValueError, match="no row of its table"):
                use()
    assert not list(tmp_path.iterdir())


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """They hold the scheme's name of that time, or its text in the name's place, and no ``text``."""
    from safetensors.torch import save_file

    for old in ("int8_token", "int4~1x48~ASYMMETRIC~float16~minmax", "fp8_e4m3_tile"):
        q = quantize(torch.randn(5, 96), Scheme.parse(old))
        tensors = {"t.packed": q.packed, "t.scale": q.scales.stored.to(torch.float32)}
        if q.scales.zero_points is not None:
            tensors["t.zero_point"] = q.scales.zero_points
        about = f'{{"name": "t", "shape": [5, 96], "scheme": {{"name": "{old}", "refit": false}}}}'
        save_file(tensors, tmp_path / "old.safetensors", {"quantization_explorer": about})
        assert torch.equal(load_quantized(tmp_path / "old.safetensors").dequantize(), q.dequantize())


def test_a_copy_of_a_format_is_the_format() -> None:
    """Formats are compared by value: a scheme made of a copy, as files and processes make them, is named."""
    scheme = SCHEMES["int4_row"]
    copied = dataclasses.replace(scheme, format=dataclasses.replace(scheme.format))
    assert copied.format is not scheme.format and checked_text(copied) == checked_text(scheme)
