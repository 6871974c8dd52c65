"""docs/ is what the recordings say: pages and figures are up to date, and tables compute their cells."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from explorer.core.lowering import with_kernels
from explorer.figures import style
from explorer.methods import METHODS
from explorer.models.evaluate import EmbeddingDrift
from explorer.products.gemms import GEMMS
from explorer.recordings.gemm import recorded_gemms
from explorer.recordings.quantize import recorded_quantize
from explorer.schemes import SCHEMES
from explorer.training.digits import Underflow
from lab import docs, facts, figures, tables
from lab.analysis import recorded_analyses
from lab.methods import recorded_methods

INT4 = "int4_group128_asym"


def drift(method: str, cosine: float, sample: int = 0) -> EmbeddingDrift:
    return EmbeddingDrift(INT4, method, "", cosine, 0, 0.5, 0, 4.16, 0, 0, sample)


def test_docs_are_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the README the part between its comments is written, and nothing else of it."""
    assert not docs.check_docs(docs.docs_folder()), "run `python -m lab docs`"
    monkeypatch.setattr(docs, "pages", lambda: ["exports.md"])
    start, end = docs.MEASURED_PART
    (tmp_path / "README.md").write_text(f"before\n{start}\nstale\n{end}\nafter\n")
    written = docs.write_docs(tmp_path / "docs")
    assert [path.name for path in written] == [*docs.pages(), "README.md"]
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"before\n{start}\n") and text.endswith(f"{end}\nafter\n") and "stale" not in text
    assert docs.write_docs(tmp_path / "docs") == [] and docs.with_measured_part("plain\n") == "plain\n"
    written[0].write_text("stale")
    assert docs.check_docs(tmp_path / "docs") == [written[0]]


def test_figures_are_of_what_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = docs.docs_folder()
    assert not figures.stale_figures(folder), "run `python -m lab docs --figures`"
    assert [path.name for path in figures.stale_figures(tmp_path)] == [f"{n}.svg" for n in figures.FIGURES]
    other = {name: lambda: style.figure("x", "y", "other") for name in figures.FIGURES}
    monkeypatch.setattr(figures, "FIGURES", other)
    assert len(figures.stale_figures(folder)) == len(other)


def test_tables_have_a_row_for_each_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a new scheme or method that was never recorded."""
    assert len(tables.gemm_table(recorded_gemms().rows).splitlines()) == 2 + len(GEMMS)
    monkeypatch.setitem(SCHEMES, "newest", dataclasses.replace(SCHEMES["nvfp4"], name="newest"))
    rows = recorded_quantize().rows
    names = {*(scheme.name for scheme in with_kernels()), *(t.scheme for t in rows)}
    lines = tables.quantize_table(rows).splitlines()
    assert len(lines) == 2 + len(names) and any("`newest`" in line for line in lines)
    analyses = recorded_analyses().rows
    others = len(SCHEMES) - len({t.scheme for t in analyses})
    assert f"| {others} other schemes |" in tables.analysis_table(analyses)
    monkeypatch.setitem(METHODS, "newest", dataclasses.replace(METHODS["rtn"], name="newest", label="Newest"))
    assert "| Newest |" in tables.method_table(recorded_methods().rows)


def test_gradient_facts() -> None:
    """The least scale that loses least without overflow, and where overflow begins."""
    rows = [Underflow(1.0, 0.5, 0.0, 0.1), Underflow(4.0, 0.0, 0.0, 0.1), Underflow(16.0, 0.0, 0.2, 0.1)]
    found = facts.gradient_facts(rows)
    assert found is not None and (found.lost, found.best_exponent, found.overflow_exponent) == (0.5, 2, 4)
    held = facts.static_and_dynamic_of_normal()
    assert held.static["mse"] > held.dynamic > held.static["minmax"], "on normal numbers"


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ((0.94, 0.91, 0.91), (0.90, 0.91, 0.92), "0.0100 ± 0.0657"),
        ((0.91, 0.92, 0.93), (0.9098, 0.91979, 0.92981), "0.0002 ± 0.0000"),
        ((0.91, 0.92, 0.93), (0.90, 0.9101, 0.9199), "0.0100 ± 0.0002"),
    ],
)
def test_the_two_best_methods_are_compared_by_their_interval(
    first: tuple[float, ...], second: tuple[float, ...], difference: str
) -> None:
    """If this fails, a method is called the most accurate by less than chance does."""
    of = {"rotation+gptaq": first, "gptq": second, "rtn": (0.5,)}
    drifts = [
        drift(method, one, sample) for method, all_of in of.items() for sample, one in enumerate(all_of)
    ]
    assert difference in facts.best_in_words(drifts, INT4) and facts.best_in_words(drifts[:6], INT4) == ""


def test_numbers_of_tables_have_a_minus_sign() -> None:
    """And none where what is shown is 0; columns of numbers are aligned right."""
    assert [tables.signed(x, 3) for x in (-0.0504, 0.0504, -0.0004)] == ["−0.050", "+0.050", "+0.000"]
    assert [tables.fixed(x) for x in (-0.371, 0.371, -0.001)] == ["−0.37", "0.37", "0.00"]
    table = tables.markdown(["a", "b"], [["x", "1.0"], ["y", "not recorded yet"]])
    assert table == "| a | b |\n| --- | ---: |\n| x | 1.0 |\n| y | not recorded yet |"
