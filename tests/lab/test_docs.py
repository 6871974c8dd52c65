"""docs/ is what the recordings say: tables, figures in sentences, and nothing typed by hand.

If these fail, the documentation quotes numbers that nobody measured.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from explorer.core.lowering import with_kernels
from explorer.figures import style
from explorer.methods import METHODS
from explorer.models.evaluate import EmbeddingDrift
from explorer.paths import ASSETS
from explorer.products.shapes import SQUARE
from explorer.products.table import GEMMS
from explorer.recordings.gemm import recorded_gemms
from explorer.recordings.quantize import CallTimes, recorded_quantize
from explorer.recordings.times import TimeSpread
from explorer.schemes import SCHEMES
from explorer.training.digits import STRAIGHT, Underflow
from lab import docs, facts, figures, inputs, tables
from lab.analysis import recorded_analyses
from lab.embeddings import RUNS, recorded_embeddings
from lab.methods import recorded_methods
from lab.training import LOSS_SCALE_EXPONENTS, TrainingResult, recorded_gradients

ROOT = ASSETS.parent


def test_docs_are_up_to_date() -> None:
    assert not docs.check_docs(docs.docs_folder()), "run `python -m lab docs`"
    assert set(docs.pages()) <= {path.name for path in docs.docs_folder().glob("*.md")}


def test_figures_are_of_what_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this fails, a figure of docs/ is not of the recording beside it, or no page shows it."""
    folder = docs.docs_folder()
    assert not figures.stale_figures(folder), "run `python -m lab docs --figures`"
    pages = "".join(path.read_text() for path in folder.glob("*.md"))
    assert all(f"({figures.FOLDER}/{name}.svg)" in pages for name in figures.FIGURES)
    assert [path.name for path in figures.stale_figures(tmp_path)] == [f"{n}.svg" for n in figures.FIGURES]
    other = {name: lambda: style.figure("x", "y", "other") for name in figures.FIGURES}
    monkeypatch.setattr(figures, "FIGURES", other)
    assert len(figures.stale_figures(folder)) == len(other)


def test_the_error_of_modelled_times_is_that_of_the_code() -> None:
    """The page states the model's error on shapes left out: it is what the code gives, within the aim."""
    text, model = docs.render("gemm-speed.md"), facts.shape_model()
    rows = [abs(e.error) for rows in tables.shape_model_errors().values() for e in rows]
    assert model.worst == max(rows) <= 0.25 and model.median <= 0.10
    stated = " ".join(text.split())
    assert f"at most {100 * model.median:.0f} %, the worst of all {100 * max(rows):.0f} %." in stated
    assert tables.shape_model_table() in text


def test_writing_twice_changes_nothing(tmp_path: Path) -> None:
    written = docs.write_docs(tmp_path)
    assert [path.name for path in written] == docs.pages()
    assert docs.write_docs(tmp_path) == [] and docs.check_docs(tmp_path) == []
    written[0].write_text("stale")
    assert docs.check_docs(tmp_path) == [written[0]]


def test_the_measured_part_of_the_readme_is_written(tmp_path: Path) -> None:
    """Between its comments, and nothing else of it; a README without them stays as it is."""
    start, end = docs.MEASURED_PART
    (tmp_path / "README.md").write_text(f"before\n{start}\nstale\n{end}\nafter\n")
    assert tmp_path / "README.md" in docs.write_docs(tmp_path / "docs")
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"before\n{start}\n") and text.endswith(f"{end}\nafter\n") and "stale" not in text
    assert not docs.check_docs(tmp_path / "docs") and docs.with_measured_part("plain\n") == "plain\n"


@pytest.mark.parametrize("page", docs.pages())
def test_pages_name_files_that_exist(page: str) -> None:
    text = docs.render(page)
    paths = re.findall(r"`((?:app|explorer|kernels|assets|tests)/[\w./-]+)`", text)
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    missing = [p for p in paths if not (ROOT / p).exists()]
    missing += [link for link in links if not (docs.docs_folder() / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", docs.pages())
def test_prose_has_no_measured_figure_of_its_own(page: str) -> None:
    """Units of time, speed and error stand in templates only behind a computed value."""
    template = (docs.TEMPLATES / f"{page}.j2").read_text()
    template = re.sub(r"{%.*?%}|{{.*?}}", "", template, flags=re.DOTALL)
    typed = re.findall(r"\d[\d.,]*\s*(?:µs|ms|dB|TB/s|GB/s|TFLOP/s|%)", template)
    assert not typed


def test_tables_have_a_row_for_each_thing_recorded() -> None:
    gemm = tables.gemm_table(recorded_gemms().rows)
    assert len(gemm.splitlines()) == 2 + len(GEMMS)
    quantize = recorded_quantize().rows
    names = {*(scheme.name for scheme in with_kernels()), *(t.scheme for t in quantize)}
    assert len(tables.quantize_table(quantize).splitlines()) == 2 + len(names)
    others = set(re.findall(r"`(\w+)`", tables.without_kernels()))
    assert others | names == set(SCHEMES) and not others & {scheme.name for scheme in with_kernels()}
    twice = {t.scheme for t in quantize if t.reads_twice}
    assert len(tables.read_twice_table(quantize).splitlines()) == 2 + len(twice)


def test_calls_are_shown_where_they_were_recorded() -> None:
    """A recording without calls is said to be one; with them each scheme has its share and its time."""
    rows = [t for t in recorded_quantize().rows if (t.operation, t.dtype) == ("quantize", "bfloat16")]
    without = [dataclasses.replace(t, call=None, small_call=None) for t in rows]
    assert "not recorded yet" in tables.quantize_calls_table(without)
    small = TimeSpread(20e-6, 19e-6, 21e-6)
    call = CallTimes(rows[0].time, rows[0].time)
    called = dataclasses.replace(rows[0], shape=tables.BIG, call=call, small_call=CallTimes(small, small))
    line = tables.quantize_calls_table([called]).splitlines()[-1]
    share = f"{100 * rows[0].share:.0f} %"
    assert line == f"| `{rows[0].scheme}` | {share} | {share} | 19 to 21 |"


def test_tables_name_what_was_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a new scheme or method is missing from docs/ until somebody with a GPU notices."""
    scheme = dataclasses.replace(SCHEMES["nvfp4"], name="newest")
    monkeypatch.setitem(SCHEMES, "newest", scheme)
    (line,) = (s for s in tables.quantize_table(recorded_quantize().rows).splitlines() if "`newest`" in s)
    assert "not recorded yet" in line
    analyses = recorded_analyses().rows
    others = len(SCHEMES) - len({t.scheme for t in analyses})
    assert f"| {others} other schemes | not recorded yet |" in tables.analysis_table(analyses)
    monkeypatch.setitem(METHODS, "newest", dataclasses.replace(METHODS["rtn"], name="newest", label="Newest"))
    assert "| Newest | not recorded yet |" in tables.method_table(recorded_methods().rows)


def test_tables_show_the_recorded_numbers() -> None:
    """One cell of each kind, read from the recording."""
    rows = recorded_gemms().rows
    timing = next(t for t in rows if (t.gemm, t.variant, t.shape) == ("bf16", "wgmma", SQUARE))
    row = next(r for r in tables.gemm_table(rows).splitlines() if r.startswith("| BF16 |"))
    assert f"| {timing.tflops:.0f} |" in row and timing.baseline in row
    drift = next(d for d in recorded_embeddings().rows if d.scheme == "nvfp4" and not d.activations)
    assert f"| {drift.cosine:.4f} |" in tables.weights_table([drift])


def test_tables_show_how_far_chance_reaches() -> None:
    """The 95 % intervals over the seeds and over the sentences: else noise is read as a difference."""
    rows = [TrainingResult("4", STRAIGHT, seed, accuracy) for seed, accuracy in enumerate((0.94, 0.95, 0.96))]
    assert "| 95.0 ± 2.5 % |" in tables.training_table(rows)
    assert "| 95.0 % |" in tables.training_table([TrainingResult("4", STRAIGHT, 0, 0.95)])
    drift = next(d for d in recorded_embeddings().rows if 0 < d.neighbours < 1)
    error = 1.96 * (drift.neighbours * (1 - drift.neighbours) / facts.sentence_count()) ** 0.5
    drift = dataclasses.replace(drift, scheme="nvfp4", method="rtn", activations="")
    assert f"| {100 * drift.neighbours:.1f} ± {100 * error:.1f} % |" in tables.weights_table([drift])


def test_static_scales_can_be_the_nearer_ones() -> None:
    """What docs/which-format.md says against the advice, by arithmetic on normal numbers."""
    held = facts.static_and_dynamic_of_normal()
    assert held.static["mse"] > held.dynamic > held.static["minmax"]


def test_every_run_of_the_comparison_was_recorded() -> None:
    """Scheme, method and inputs of docs/which-format.md."""
    assert set(tables.by_embedding_run(recorded_embeddings().rows)) == set(RUNS)


def test_what_is_missing_says_so() -> None:
    """A table over part of the rows names the others."""
    for table in (
        tables.weights_table([]),
        inputs.inputs_table([], []),
        tables.methods_comparison_table([], []),
    ):
        assert table.count("not recorded yet") >= len(table.splitlines()) - 2
    assert tables.decode_table([]).count("not recorded yet") == len(tables.decode_table([]).splitlines()) - 2
    assert facts.prefill_speedup([], ("int8",)) is None and facts.gradient_facts([]) is None


def test_columns_of_numbers_are_aligned_right() -> None:
    table = tables.markdown(["a", "b"], [["x", "1.0"], ["y", "not recorded yet"]])
    assert table == "| a | b |\n| --- | ---: |\n| x | 1.0 |\n| y | not recorded yet |"


def test_gradient_facts() -> None:
    """The least scale that loses least without overflow, and where overflow begins."""
    rows = [Underflow(1.0, 0.5, 0.0, 0.1), Underflow(4.0, 0.0, 0.0, 0.1), Underflow(16.0, 0.0, 0.2, 0.1)]
    found = facts.gradient_facts(rows)
    assert found is not None and (found.lost, found.best_exponent, found.overflow_exponent) == (0.5, 2, 4)


def test_exponents_survive_the_rounding_of_recorded_numbers() -> None:
    """2^22 is recorded as 4194300. If this fails, docs/ names a loss scale that was never tried."""
    gradients = recorded_gradients().rows
    assert [facts._exponent(row) for row in gradients] == list(LOSS_SCALE_EXPONENTS)


def test_the_best_method_is_the_one_with_the_highest_cosine() -> None:
    def drift(method: str, cosine: float) -> EmbeddingDrift:
        return EmbeddingDrift("int4_group128_asym", method, "", cosine, 0, 0, 0, 0, 0, 0)

    best = facts.best_methods([drift("rtn", 0.5), drift("awq", 0.9)], "int4_group128_asym")
    assert best == ["AWQ", "round to nearest"]


def test_methods_are_compared_with_their_spread() -> None:
    """The mean over samples of calibration texts, the least and the most: else neighbours look decided."""
    drifts = [
        EmbeddingDrift("int4_group128_asym", "gptq", "", cosine, 0, 0.5, 0, 4.16, 0, 0, sample)
        for sample, cosine in enumerate((0.91, 0.93, 0.98))
    ]
    drifts.append(EmbeddingDrift("int4_group128_asym", "awq", "", 0.95, 0, 0, 0, 0, 0, 0))
    row = next(
        r for r in tables.methods_comparison_table(drifts, []).splitlines() if r.startswith("| GPTQ |")
    )
    assert row.startswith("| GPTQ | 4.16 | 0.940 (0.910 to 0.980) | 0.500 (0.500 to 0.500) |")
    assert facts.best_methods(drifts, "int4_group128_asym") == ["AWQ", "GPTQ"]


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ((0.90, 0.91, 0.92), "are not told apart (0.920 and 0.910; the difference is 0.0100 ± 0.0657)"),
        (
            (0.9098, 0.91979, 0.92981),
            "tie to three digits (0.920 and 0.920; the difference is 0.0002 ± 0.0000)",
        ),
        ((0.90, 0.9101, 0.9199), "then GPTQ (0.910; the difference is 0.0100 ± 0.0002) and round to nearest"),
    ],
)
def test_the_two_best_methods_are_compared_by_their_interval(second: tuple[float, ...], found: str) -> None:
    """If this fails, a method is called the most accurate by less than chance does."""
    first = (0.94, 0.91, 0.91) if "0.0657" in found else (0.91, 0.92, 0.93)
    of = {"rotation+gptaq": first, "gptq": second, "rtn": (0.5,)}
    drifts = [
        EmbeddingDrift("int4_group128_asym", method, "", cosine, 0, 0, 0, 0, 0, 0, sample)
        for method, cosines in of.items()
        for sample, cosine in enumerate(cosines)
    ]
    assert found in facts.best_in_words(drifts, "int4_group128_asym")
    assert facts.best_in_words(drifts[:6], "int4_group128_asym") == ""


@pytest.mark.parametrize("path", sorted(docs.docs_folder().glob("*.md")), ids=lambda path: path.name)
def test_negative_numbers_of_tables_have_a_minus_sign(path: Path) -> None:
    """If this fails, "-0.37" breaks at the hyphen; all of them are written by ``fixed`` or ``signed``."""
    lines = [re.sub(r"`[^`]*`", "", s) for s in path.read_text().splitlines() if s.startswith("|")]
    assert not [line for line in lines if re.search(r"[|(] ?-\d", line)]


def test_signs_are_those_of_what_is_shown() -> None:
    """If this fails, a difference that rounds to 0 is shown as negative."""
    assert [tables.signed(x, 3) for x in (-0.0504, 0.0504, -0.0004)] == ["−0.050", "+0.050", "+0.000"]
    assert [tables.fixed(x) for x in (-0.371, 0.371, -0.001)] == ["−0.37", "0.37", "0.00"]
