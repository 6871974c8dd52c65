"""The conformance table, run on its sample: every row is as equal, or as different, as it says.

If these fail, the library says that it has the bits of torchao, compressed-tensors, bitsandbytes or gguf and
does not, or excuses a difference that is gone.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.schemes.table import STORED_BY
from lab.cli import main
from lab.conformance import table
from lab.conformance.cases import ALL, model_cases, sample_cases
from lab.conformance.compare import EVERYWHERE, Row, compare_codes, conformance
from lab.conformance.markdown import conformance_table, crossover_table, first_block_of_nf4, packages, totals
from lab.conformance.outside import PACKAGES, Outside, load, version_of
from lab.conformance.records import recorded_conformance, recorded_crossover, run_crossover
from lab.conformance.table import ROWS, rows_of, uncompared

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def cases() -> dict[str, Tensor]:
    return sample_cases()


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.package}-{r.function}-{r.name}")
def test_a_row_is_as_equal_as_it_says(row: Row, cases: dict[str, Tensor]) -> None:
    """Codes and scales, in every case: equal where nothing is said, different where something is."""
    result = conformance(row, cases.items())
    assert not result.surprises, "; ".join(result.surprises)


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


@pytest.mark.parametrize(
    ("quantizer", "differs", "verdict", "surprised"),
    [
        (as_here, {}, "equal", False),
        (one_code_off, {}, "equal but for ties, zeros", True),
        (one_scale_off, {}, "equal but for ties, zeros", True),
        (one_code_off, {EVERYWHERE: "why"}, "differs", False),
        (one_code_off, {EVERYWHERE: "why", "ties": "other"}, "differs", False),
        (zeros_off, {EVERYWHERE: "why", "zeros": "other"}, "differs", True),
        (zeros_off, {"zeros": "why"}, "equal but for zeros", False),
        (one_code_off, {"ties": "why", "zeros": "why"}, "equal but for ties, zeros", False),
        (one_code_off, {"ties": "why"}, "equal but for ties, zeros", True),
        (as_here, {EVERYWHERE: "why"}, "equal", True),
        (as_here, {"ties": "why"}, "equal", True),
    ],
)
def test_a_row_that_is_wrong_is_noticed(
    quantizer: object, differs: dict[str, str], verdict: str, surprised: bool, cases: dict[str, Tensor]
) -> None:
    """One code or the last bit of one scale is enough, either way."""
    row = Row("int8_row", "gguf", "f", quantizer, differs=differs)  # type: ignore[arg-type]
    result = conformance(row, [(name, cases[name]) for name in ("ties", "zeros")])
    assert (result.verdict, bool(result.surprises)) == (verdict, surprised)


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
        with pytest.raises(ValueError, match="do not both have scales or zero points"):
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
    assert "equal but for" in out and "int8_row, gguf off by one: ties: 1 codes" in err
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
    assert [r.differs for r in recorded] == [dict(row.differs) for row in ROWS]
    assert not [(r.name, r.package, r.function, r.surprises) for r in recorded if r.surprises]
    assert all([*sample_cases(), ALL] == [count.case for count in r.counts] for r in recorded)
    assert not set(uncompared()) & {r.name for r in recorded}


def test_the_whole_model_is_every_linear_layer(minilm: Path) -> None:
    """36 of the encoder and the pooler: 10,764,288 weights."""
    weights = [weight for _, weight in model_cases(str(minilm))]
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
    assert counted.rows == len(recorded) and counted.equal + counted.differ < counted.rows
    assert counted.codes == sum(count.codes for row in recorded for count in row.counts)


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
        total = recorded[str(Scheme.parse(text))].total
        assert total.different_codes <= 1e-4 * total.codes, who
        assert who in Scheme.parse(text).describe()
