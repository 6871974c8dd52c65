"""The conformance table, run on its sample: every row is as equal, or as different, as it says, and would
be noticed if it were not.

If these fail, the library says that it has the bits of torchao, compressed-tensors, bitsandbytes or gguf and
does not, or excuses a difference that is gone.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.formats import FORMATS, Format
from explorer.recordings.files import recording_json, recording_of
from explorer.recordings.machine import Machine
from explorer.schemes.table import STORED_BY
from lab.cli import main
from lab.conformance import table
from lab.conformance.cases import (
    ALL,
    ALL_BF16,
    BF16,
    BOUNDARIES,
    FP16,
    ONE,
    SUBNORMALS,
    ZERO_SIGNS,
    model_cases,
    sample_cases,
)
from lab.conformance.compare import (
    EVERYWHERE,
    Conformance,
    Count,
    Row,
    compare_codes,
    conformance,
    result_of,
)
from lab.conformance.differences import Difference, Distance, codes_apart, numbers_apart
from lab.conformance.markdown import conformance_table, crossover_table, first_block_of_nf4, packages, totals
from lab.conformance.outside import PACKAGES, Outside, load, version_of
from lab.conformance.records import recorded_conformance, recorded_crossover, run_crossover
from lab.conformance.table import ROWS, rows_of, uncompared

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def cases() -> dict[str, Tensor]:
    return sample_cases()


def broken(theirs: Outside) -> Iterator[tuple[str, Outside]]:
    """``theirs`` with one thing wrong: every code's lowest bit, or the scales, zero points, minimums, tensor
    scale or restored values twice as large. What a comparison that works reports, whatever it excuses."""
    if theirs.codes is not None:
        yield "codes", dataclasses.replace(theirs, codes=theirs.codes.long() ^ 1)
    for name in ("scales", "minimums", "tensor_scale", "restored"):
        part = getattr(theirs, name)
        if part is not None:
            yield name, dataclasses.replace(theirs, **{name: part.float() * 2})
    if theirs.zero_points is not None:
        yield "zero points", dataclasses.replace(theirs, zero_points=theirs.zero_points.long() + 1)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.package}-{r.function}-{r.name}")
def test_a_row_is_as_equal_as_it_says(row: Row, cases: dict[str, Tensor]) -> None:
    """Codes and scales, in every case: equal where nothing is said, and within bounds where something is.

    Then the same with one thing wrong in what the package's wrapper returns: the lowest bit of codes, or
    scales, zero points or restored values of twice the size. It is reported in every case with a named
    difference, which excuses none of it, and in one without.
    """
    counts, noticed = [], 0
    for case, x in cases.items():
        ours, theirs = row.both(x)
        under = row.bound_of(case).under
        counts.append(compare_codes(ours, theirs, case, under))
        if case in row.differs or case == ONE:
            for part, wrong in broken(theirs):
                result = result_of(row, "", [compare_codes(ours, wrong, case, under)])
                assert result.surprises, f"{case}: wrong {part} are excused"
                noticed += 1
    surprises = result_of(row, "", counts).surprises
    assert not surprises, "; ".join(surprises)
    assert noticed
    for named in row.differs.values():
        assert named.codes < 0.7 and (named.scales < 0.7 or named.factor < 2), f"{named.why}: anything goes"


def test_the_logarithm_of_torchao_rounds_a_block_s_scale_down() -> None:
    """RCEIL of the numbers 1 and 2 ulp above 448 · 2^k, for 41 k: the least power of two that is not below
    amax / 448 is 2^(k+1). Ours is; of theirs the logarithm is rounded to 2^k for most k."""
    row = next(row for row in ROWS if (row.name, row.function) == ("mxfp8_e4m3", "to_mx, RCEIL"))
    above, wrong = torch.tensor([0.0, torch.inf]), []
    for k in range(-20, 21):
        largest = torch.nextafter(torch.tensor(448.0 * 2.0**k), above[1])
        x = torch.zeros(2, 32)
        x[0, 3], x[1, 3] = largest, torch.nextafter(largest, above[1])
        ours, theirs = row.both(x)
        assert theirs.scales is not None and ours.scales.stored.unique().tolist() == [2.0 ** (k + 1)]
        wrong += [theirs.scales.flatten().tolist()]
    rounded = [k for k, scales in zip(range(-20, 21), wrong, strict=True) if 2.0**k in scales]
    assert len(rounded) == 33 and "for most k" in row.differs[BOUNDARIES].why


@pytest.mark.parametrize("shape", [(77, 333), (5, 77), (9, 32), (128, 192)])
@pytest.mark.parametrize("nested", [False, True])
def test_blocks_across_rows_are_those_of_bitsandbytes(shape: tuple[int, int], nested: bool) -> None:
    """It counts 64 elements after another, wherever rows end; its shorter last block is divided by its scale,
    ours multiplied by the reciprocal, which may move a value that lies on a midpoint."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    words = "nested~minmax~reciprocal~unrounded" if nested else "float32-zero~minmax~reciprocal"
    ours = quantize(x, Scheme.parse(f"nf4~flat64~symmetric~{words}"))
    functional = load("bitsandbytes.functional", "bitsandbytes")
    packed, state = functional.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=nested)
    pairs, absmax = packed.reshape(-1), state.absmax
    codes = torch.stack((pairs >> 4, pairs & 15), 1).view(-1)[: x.numel()].view(shape)
    if nested:
        absmax = functional.dequantize_blockwise(absmax, state.state2) + state.offset
    assert torch.equal(ours.codes, codes) and torch.equal(ours.scales.scale.view(-1), absmax)


def as_here(x: Tensor) -> Outside:
    q = quantize(x, SCHEMES["int8_row"])
    return Outside(q.codes, q.scales.stored)


def one_code_off(x: Tensor) -> Outside:
    codes = as_here(x).codes.clone()
    codes[0, 0] ^= 1
    return dataclasses.replace(as_here(x), codes=codes)


def zeros_off(x: Tensor) -> Outside:
    return one_code_off(x) if (x == 0).all(1).any() else as_here(x)


def one_scale_off(x: Tensor) -> Outside:
    scales = quantize(x, SCHEMES["int8_row"]).scales.stored.clone()
    scales[3, 0] = torch.nextafter(scales[3, 0], torch.tensor(1e9))
    return dataclasses.replace(as_here(x), scales=scales)


def codes_garbled(x: Tensor) -> Outside:
    codes = as_here(x).codes
    assert codes is not None
    return dataclasses.replace(as_here(x), codes=codes ^ 255)


def scales_garbled(x: Tensor) -> Outside:
    return dataclasses.replace(as_here(x), scales=quantize(x, SCHEMES["int8_row"]).scales.stored * 1000)


WHY = Difference("why", codes=1e-4, steps=1, scales=0.01, factor=1 + 1e-6)
"""Allows what ``one_code_off`` and ``one_scale_off`` do, and little else."""
OTHER = dataclasses.replace(WHY, why="other")


@pytest.mark.parametrize(
    ("quantizer", "differs", "verdict", "surprised"),
    [
        (codes_garbled, {"ties": WHY, "zeros": WHY}, "equal but for ties; zeros", True),
        (codes_garbled, {EVERYWHERE: WHY}, "differs", True),
        (scales_garbled, {"ties": WHY, "zeros": WHY}, "equal but for ties; zeros", True),
        (as_here, {}, "equal", False),
        (one_code_off, {}, "equal but for ties; zeros", True),
        (one_scale_off, {}, "equal but for ties; zeros", True),
        (one_code_off, {EVERYWHERE: WHY}, "differs", False),
        (one_code_off, {EVERYWHERE: WHY, "ties": OTHER}, "differs", False),
        (zeros_off, {EVERYWHERE: WHY, "zeros": OTHER}, "differs", True),
        (zeros_off, {"zeros": WHY}, "equal but for zeros", False),
        (one_code_off, {"ties": WHY, "zeros": WHY}, "equal but for ties; zeros", False),
        (one_code_off, {"ties": WHY}, "equal but for ties; zeros", True),
        (as_here, {EVERYWHERE: WHY}, "equal", True),
        (as_here, {"ties": WHY}, "equal", True),
    ],
)
def test_a_row_that_is_wrong_is_noticed(
    quantizer: object, differs: dict[str, Difference], verdict: str, surprised: bool, cases: dict[str, Tensor]
) -> None:
    """One code or the last bit of one scale is enough, either way; garbage is beyond every bound."""
    row = Row("int8_row", "gguf", "f", quantizer, differs=differs)  # type: ignore[arg-type]
    result = conformance(row, [(name, cases[name]) for name in ("ties", "zeros")])
    assert (result.verdict, bool(result.surprises)) == (verdict, surprised)


INT8, E4M3FN, BNB_FP4, HALF = (FORMATS[name] for name in ("int8", "float8_e4m3fn", "bnb_fp4", "float16"))


@pytest.mark.parametrize(
    ("fmt", "mine", "theirs", "apart"),
    [
        (INT8, [0, 255, 5], [0, 1, 5], Distance(steps=2)),
        (E4M3FN, [0x00, 0x80, 0x38], [0x80, 0x00, 0x38], Distance()),
        (E4M3FN, [0x01, 0x38], [0x81, 0x37], Distance(steps=2)),
        (E4M3FN, [0x7E, 0x38], [0x7F, 0x3A], Distance(steps=2, special_codes=1)),
        (HALF, [0x8001, 0x3C00], [0x0001, 0x3C00], Distance(steps=2)),
        (HALF, [0x7BFF], [0x7C00], Distance(special_codes=1)),
        (FORMATS["nf4"], [0, 7], [15, 7], Distance(steps=15)),
    ],
)
def test_codes_are_apart_by_steps_of_their_format(
    fmt: Format, mine: list[int], theirs: list[int], apart: Distance
) -> None:
    """In the order of values; zeros of both signs are one value, and NaN and Inf are counted alone."""
    assert codes_apart(torch.tensor(mine), torch.tensor(theirs), fmt) == apart


def test_numbers_are_apart_by_a_factor() -> None:
    """0, Inf and NaN are no factor away: they are counted, and so are signs."""
    nan, inf = torch.nan, torch.inf
    mine = torch.tensor([1.0, 3.0, 2.0, 0.0, 65504.0, 1.0, 0.0])
    theirs = torch.tensor([1.0, 1.5, -2.0, 1.0, inf, nan, -0.0])
    assert numbers_apart(mine, theirs) == Distance(factor=2.0, special_scales=3, opposite_signs=1)


WIDE = {
    "codes": 0.05, "steps": 3, "scales": 0.1, "factor": 1.5, "moved": 0.2, "zero_points": 2, "special": True,
    "signs": True,
}  # fmt: skip
"""A bound that is just wide enough for the count below."""


BEYOND = [
    ({}, ["5 of 100 codes differ, none expected", "1 of 10 scales differ, none expected",
          "2 of 10 zero points differ, none expected",
          "codes differ by 3 steps, at most 0 expected", "by a factor of 1.5, at most 1 expected",
          "zero points differ by 2, at most 0 expected", "1 scales have opposite signs, none",
          "4 codes and 1 scales are NaN, Inf or 0 on one side, none expected"]),
    (WIDE, []),
    (WIDE | {"codes": 0.04}, ["5 of 100 codes differ, at most 4 expected"]),
    (WIDE | {"steps": 2, "factor": 1.4, "zero_points": 1},
     ["by 3 steps, at most 2", "of 1.5, at most 1.4", "differ by 2, at most 1"]),
    (WIDE | {"scales": 0.0, "moved": 0.1},
     ["1 of 10 scales differ, none expected", "2 of 10 zero points differ, at most 1 expected"]),
    (WIDE | {"special": False, "signs": False},
     ["1 scales have opposite signs, none", "4 codes and 1 scales are NaN, Inf or 0 on one side, none"]),
]  # fmt: skip
"""Bounds, and what is said of the count below."""


@pytest.mark.parametrize(("bound", "said"), BEYOND)
def test_what_lies_beyond_a_bound_is_said_with_what_was_expected(
    bound: dict[str, Any], said: list[str]
) -> None:
    count = Count("ties", 100, 5, 20, 3, zero_points=10, apart=Distance(3, 4, 1.5, 1, 1, 2, moved=2))
    found = count.beyond(Difference("why", **bound))
    assert len(found) == len(said) and all(text in whole for text, whole in zip(said, found, strict=True))


def test_a_difference_excuses_only_the_blocks_that_it_is_named_for() -> None:
    """Two codes differ, one under a scale of 0: the other is reported, though the share allows both."""
    x = torch.stack([torch.full((32,), 1e-20), torch.linspace(-1, 1, 32)])
    ours = quantize(x, Scheme.parse("int8~row~symmetric~float16-zero~minmax"))
    assert ours.scales.scale.flatten().tolist()[0] == 0
    codes = ours.codes.clone()
    codes[0, 3] ^= 1
    codes[1, 4] ^= 1
    theirs = Outside(codes, ours.scales.scale)
    named = Difference("why", codes=0.5, steps=1, under=(0.0, 0.0))
    count = compare_codes(ours, theirs, "a", named.under)
    assert (count.different_codes, count.outside) == (2, 1)
    assert count.beyond(named) == ["1 codes differ in blocks that the reason does not hold for"]
    assert not compare_codes(ours, theirs, "a").beyond(dataclasses.replace(named, under=None))
    assert named.words == "at most 50 % of the codes, by 1 step, under scales of 0"


def test_decoded_values_are_counted_apart() -> None:
    """They say nothing about codes: neither "equal" nor among the codes that are."""
    x = torch.randn(4, 32)

    def decoded(x: Tensor) -> Outside:
        return Outside(restored=quantize(x, SCHEMES["int8_row"]).dequantize())

    row = Row("int8_row", "gguf", "f", decoded)
    result = conformance(row, [("a", x)])
    assert (result.verdict, result.total.codes, result.total.values) == ("decoded", 0, 128)
    off = dataclasses.replace(row, quantize=lambda x: Outside(restored=decoded(x).restored + 1))  # type: ignore[operator]
    wrong = conformance(off, [("a", x)])
    assert wrong.verdict == "decoded but for a" and "128 of 128 restored values differ" in wrong.surprises[0]


def test_counts_are_of_codes_and_of_everything_that_scales() -> None:
    """Zero points and tensor scales count with the scales; cases of one name are added up."""
    x = torch.randn(4, 32)
    asymmetric = quantize(x, SCHEMES["int8_row_asym"])
    zeros = asymmetric.scales.zero_points
    assert zeros is not None
    theirs = Outside(asymmetric.codes, asymmetric.scales.stored, zeros.int() + 1)
    count = compare_codes(asymmetric, theirs)
    assert (count.codes, count.different_codes, count.scales, count.different_scales) == (128, 0, 8, 4)
    two_level = quantize(x, SCHEMES["nvfp4"])
    theirs = Outside(two_level.codes, two_level.scales.stored, tensor_scale=torch.ones(1))
    assert compare_codes(two_level, theirs).different_scales == 1
    with pytest.raises(ValueError, match="cannot be compared"):
        compare_codes(two_level, Outside(two_level.codes[:2], two_level.scales.stored))
    for q, theirs in (
        (two_level, Outside(two_level.codes)),
        (asymmetric, Outside(asymmetric.codes, asymmetric.scales.stored)),
        (two_level, Outside(two_level.codes, two_level.scales.stored, zero_points=zeros)),
    ):
        with pytest.raises(ValueError, match="do not both have scales, zero points or minimums"):
            compare_codes(q, theirs)
    without = compare_codes(two_level, Outside(two_level.codes, two_level.scales.stored))
    assert without.different_scales == 1, "a tensor scale that the other side has not"
    result = conformance(Row("int8_row", "gguf", "f", as_here), [("a", x), ("a", x), ("b", x)])
    assert [(count.case, count.codes) for count in result.counts] == [("a", 256), ("b", 128)]


def test_the_cases_are_what_they_are_called(cases: dict[str, Tensor]) -> None:
    """A case without ties or zeros would call everything equal."""
    assert all(x.shape[0] % 128 == 0 and x.shape[1] % 128 == 0 and x.isfinite().all() for x in cases.values())
    q = quantize(cases["ties"], SCHEMES["int8_row"])
    halves = (cases["ties"] / q.scales.stored).frac().abs() == 0.5
    assert halves.sum() > 1000
    blocks = cases["zeros"].view(128, -1, 32)
    assert (blocks == 0).all(2).any() and (blocks == 0).all(2).logical_not().any()
    magnitudes = cases["spreads"].abs()
    assert magnitudes.max() > 2.0**55 and magnitudes[magnitudes > 0].min() < 2.0**-55
    boundaries = cases[BOUNDARIES].view(-1, 32).abs().amax(1)
    mantissas = boundaries.view(torch.int32) & 0x7FFFFF
    near = {(int(m) + 2) % 2**23 - 2 for m in mantissas}
    assert {i / 8 * 2**23 + ulp for i in (0, 2, 4, 6, 7) for ulp in range(-2, 3)} == near
    tiny = cases[SUBNORMALS].abs()
    assert ((tiny > 0) & (tiny < 2.0**-126)).sum() > 5000 and (tiny[-1] > 2.0**-126).any()
    signs = cases[ZERO_SIGNS]
    assert (signs.signbit() & (signs == 0)).sum() > 5000 and (signs[0] == 0).all()
    assert (cases[BF16].dtype, cases[FP16].dtype) == (torch.bfloat16, torch.float16)
    assert cases["heavy tails"].abs().max() > 50 * cases["heavy tails"].abs().median()


def test_a_missing_package_is_named_with_its_install() -> None:
    with pytest.raises(ValueError, match=r"gguf, which cannot be imported.*--no-deps gguf==0\.19"):
        load("no_such_module", "gguf")
    with pytest.raises(ValueError, match="no rows compare with numpy; there are torchao"):
        rows_of(["numpy"])


def test_outside_packages_are_imported_only_where_a_row_runs() -> None:
    """Everything else works without them: no module of the library needs one to be imported itself. Files of
    GGUF are read by theirs, once there is one to read, and a benchmark times torchao where it is asked to."""
    modules = {package.replace("-", "_") for package in PACKAGES}
    runs = (ROOT / "explorer/sources", ROOT / "explorer/bench")
    for path in (ROOT / "explorer").rglob("*.py"):
        within = any(path.is_relative_to(folder) for folder in runs)
        tree = ast.parse(path.read_text())
        for node in tree.body if within else ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not modules & {name.split(".")[0] for name in names}, path


def test_the_command_fails_where_a_row_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and the row is named."""
    monkeypatch.setattr(table, "ROWS", (Row("int8_row", "gguf", "off by one", one_code_off),))
    assert main(["conformance", "--packages", "gguf"]) == 1
    out, err = capsys.readouterr()
    assert (
        "equal but for" in out
        and "int8_row, gguf off by one: ties: 1 of 32,768 codes differ, none expected" in err
    )
    monkeypatch.setattr(table, "ROWS", (Row("int8_row", "gguf", "the same", as_here),))
    assert main(["conformance", "--packages", "gguf"]) == 0


def test_versions_are_those_that_the_tests_install() -> None:
    """The reasons hold for these versions; another one has to be looked at."""
    files = ("tests/requirements.txt", "requirements-export.txt", "Makefile")
    pinned = "".join((ROOT / name).read_text() for name in files)
    for package, version in PACKAGES.items():
        assert re.search(rf"\b{package}=={re.escape(version)}(\s|$)", pinned), package
        assert version_of(package) == version
    assert {row.package for row in ROWS} == set(PACKAGES)


def test_the_recording_is_of_todays_rows() -> None:
    """Whole model included; `make conformance` records again."""
    recorded = recorded_conformance().rows
    today = [(row.name, row.scheme, row.package, row.function, row.convention) for row in ROWS]
    read = [(str(Scheme.parse(r.name)), Scheme.parse(r.scheme)) for r in recorded]
    assert [
        (*schemes, r.package, r.function, r.convention) for schemes, r in zip(read, recorded, strict=True)
    ] == today
    kept = recording_json(Machine(), [result_of(row, "", []) for row in ROWS])  # numbers of six digits
    assert [r.differs for r in recorded] == [r.differs for r in recording_of(kept, Conformance).rows]
    assert [r.decodes for r in recorded] == [row.function.startswith("dequantize") for row in ROWS]
    assert not [(r.name, r.package, r.function, r.surprises) for r in recorded if r.surprises]
    assert all([*sample_cases(), ALL, ALL_BF16] == [count.case for count in r.counts] for r in recorded)
    assert not set(uncompared()) & {r.name for r in recorded}


def test_the_whole_model_is_every_linear_layer(minilm: Path) -> None:
    """36 of the encoder and the pooler: 10,764,288 weights."""
    every = list(model_cases(str(minilm)))
    weights = [weight for case, weight in every if case == ALL]
    in_bf16 = [weight for case, weight in every if case == ALL_BF16]
    assert len(in_bf16) == len(weights) and {weight.dtype for weight in in_bf16} == {torch.bfloat16}
    assert len(weights) == 37 and sum(weight.numel() for weight in weights) == 10_764_288


def test_tables_give_every_reason_a_number() -> None:
    """Each row of each package once, and no number without its reason."""
    recorded = recorded_conformance().rows
    tables = [conformance_table(recorded, package) for package in packages(recorded)]
    assert sum(len(re.findall(r"^\| `", text, re.M)) for text in tables) == len(recorded)
    for text in tables:
        cited = {int(n) for group in re.findall(r"\(([\d, ]+)\) \|", text) for n in group.split(", ")}
        assert cited == {int(n) for n in re.findall(r"^(\d+)\. ", text, re.M)}
    counted = totals(recorded)
    assert counted.rows == len(recorded) and counted.equal + counted.decoded + counted.differ < counted.rows
    assert counted.codes == sum(count.codes for row in recorded for count in row.counts)
    assert counted.values == sum(count.values for row in recorded for count in row.counts)
    on_model = [[c for c in row.counts if c.case in (ALL, ALL_BF16)] for row in recorded if not row.decodes]
    assert counted.equal + counted.partly + counted.differ == counted.encoded
    assert counted.encoded + counted.decoded == counted.rows == len(recorded)
    assert 0 < counted.on_model == sum(all(count.equal for count in counts) for counts in on_model)
    assert counted.decoded == sum("dequantize," in row.function for row in recorded)


def test_nf4_overtakes_asymmetric_int4_at_blocks_of_64(minilm: Path) -> None:
    """The known figures of this model, and the recording."""
    (at_64,) = run_crossover(str(minilm), [64])
    assert (round(at_64.nf4_db, 2), round(at_64.int4_db, 2)) == (20.55, 20.44)
    recorded = {row.block: row for row in recorded_crossover().rows}
    assert recorded[64].nf4_db == pytest.approx(at_64.nf4_db, rel=1e-5)
    assert (round(recorded[32].nf4_db, 2), round(recorded[32].int4_db, 2)) == (21.11, 21.61)
    assert (round(recorded[128].nf4_db, 2), round(recorded[128].int4_db, 2)) == (20.07, 19.42)
    assert first_block_of_nf4(list(recorded.values())) == 64
    assert first_block_of_nf4([recorded[64], dataclasses.replace(recorded[128], nf4_db=0.0)]) is None
    assert "| 64 | **20.55** |" in crossover_table(list(recorded.values()))


def test_who_stores_exactly_this_is_compared() -> None:
    """The sentence on the page that names another library holds for real weights: it has a row of its own
    whose codes agree on all but a few values that the row gives a reason for."""
    rows = {row.scheme.text: row for row in ROWS if not row.text}
    recorded = {result.scheme: result for result in recorded_conformance().rows}
    for text, who in STORED_BY.items():
        assert text in rows, f"nothing compares {who}"
        assert EVERYWHERE not in rows[text].differs
        counts = {count.case: count for count in recorded[str(Scheme.parse(text))].counts}
        for case, share in ((ALL, 1e-5), (ALL_BF16, 5e-3)):  # BF16 has more ties and midpoints
            assert counts[case].different_codes <= share * counts[case].codes, who
        assert who in Scheme.parse(text).describe()


def test_zero_points_are_no_minimums() -> None:
    """A row whose package returns the one where the scheme has the other compares nothing of them."""
    q = quantize(torch.randn(4, 64), SCHEMES["q4_1"])
    scales = q.scales.stored
    theirs = Outside(torch.zeros(4, 64, dtype=torch.int16), scales, zero_points=scales.long())
    with pytest.raises(ValueError, match="do not both have scales, zero points or minimums"):
        compare_codes(q, theirs)
