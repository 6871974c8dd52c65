"""The pages of docs/, rendered from templates and recordings, so that no measured figure is typed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from explorer.analysis import estimate, intervals
from explorer.bench.cpu_gemm import DECODE_ON_CPU, PREFILL_ON_CPU
from explorer.cpu.sentences import against_float16, sentences
from explorer.gpu.gemm.tensor_cores import FEW_ROWS
from explorer.paths import checkout
from explorer.products.auto import TUNED_ON
from explorer.recordings.files import Recording, recorded
from explorer.recordings.gemm import (
    newest_gemms,
    recorded_cpus,
    recorded_gemms,
    recorded_layers,
    runs_of_gemms,
)
from explorer.recordings.grouped import recorded_grouped
from explorer.recordings.machine import Machine
from explorer.recordings.quality import recorded_quality
from explorer.recordings.quantize import quantize_recordings
from explorer.recordings.recipe_runs import recorded_causal, recorded_recipes
from explorer.recordings.runs import recorded_runs
from explorer.recordings.steps import StepTiming, recorded_steps
from explorer.running.placing import SAME_LOGITS
from explorer.survey import load_survey
from lab import (
    accumulation,
    bias_correction,
    cache,
    claims,
    embeddings,
    facts,
    inputs,
    large_model,
    method_recipes,
    quality,
    ranking,
    recipe_tables,
    recipes,
    tables,
    training_precision,
    vector_codes,
)
from lab.analysis import recorded_analyses
from lab.conformance import markdown as conformance_tables
from lab.conformance.compared import uncompared
from lab.conformance.records import recorded_conformance, recorded_crossover
from lab.exports import exports_measured, recorded_exports
from lab.first_numbers import recorded_first_numbers
from lab.methods import recorded_methods
from lab.page import recorded_page
from lab.runs import runs_table
from lab.sizes import recorded_sizes
from lab.steps import expectation, head_costs, head_of, products_table, steps_command, steps_table
from lab.training import record_training, recorded_gradients, recorded_training
from lab.vllm import not_tried_in_words, recorded_vllm, vllm_table
from lab.vocabulary import recorded_vocabulary, vocabulary_table
from lab.written import readme_table, recorded_written, written_table

TEMPLATES = Path(__file__).parent / "templates"
SUFFIX = ".md.j2"
MEASURED_PART = ("<!-- written by `python -m lab docs` -->", "<!-- end -->")


def pages() -> list[str]:
    """File names of the generated pages, one a template."""
    return sorted(path.name.removesuffix(".j2") for path in TEMPLATES.glob(f"*{SUFFIX}"))


def render(page: str) -> str:
    """A page's Markdown."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown for a file, of our own texts
    )
    environment.filters |= {"percent": _percent, "between": _between, "code": "`{}`".format}
    return environment.get_template(page + ".j2").render(_context())


def docs_folder() -> Path:
    """``docs/`` of the checkout; ``ValueError`` outside one."""
    return checkout() / "docs"


def write_docs(folder: Path) -> list[Path]:
    """Write every page whose text changed, and the measured part of the README beside ``folder``; their
    paths."""
    folder.mkdir(parents=True, exist_ok=True)
    stale = _stale(folder)
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return [*stale]


def check_docs(folder: Path) -> list[Path]:
    """Return the files that ``write_docs`` would change."""
    return [*_stale(folder)]


def _stale(folder: Path) -> dict[Path, str]:
    """The outdated files, with their new texts."""
    wanted = {folder / page: render(page) for page in pages()}
    readme = folder.parent / "README.md"
    if readme.is_file():
        wanted[readme] = with_measured_part(readme.read_text(encoding="utf-8"))
    return {path: text for path, text in wanted.items() if _text(path) != text}


def with_measured_part(text: str) -> str:
    """``text`` with what recipes are worth between the comments of ``MEASURED_PART``, if it has those."""
    start, end = MEASURED_PART
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        return text
    return f"{before}{start}\n{readme_table(recorded_written())}\n{end}{after}"


def record_runs(model: str) -> list[Path]:
    """Run and record the data that docs/ needs in addition to the timings of ``bench --record``: whole
    models and training (minutes)."""
    return [embeddings.record_embeddings(model), *recipes.record_recipes(model), *record_training()]


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _context() -> dict[str, Any]:
    """Names for the templates: the recordings, and the functions that build tables and figures from them."""
    cpu, *other_cpus = recorded_cpus() or [Recording(Machine(), ())]
    quantize, *earlier_quantize = quantize_recordings() or [Recording(Machine(), ())]
    return {
        "quantize": quantize,
        "earlier_quantize": earlier_quantize,
        "analysis": recorded_analyses(),
        "gemm": recorded_gemms(),
        "newest": newest_gemms(),
        "gemm_runs": runs_of_gemms(),
        "cpu": cpu,
        "cpu_shapes": (DECODE_ON_CPU, PREFILL_ON_CPU),
        "other_cpus": other_cpus,
        "sentences": sentences,
        "cpu_against_float16": facts.times_in_words(against_float16(cpu.rows)),
        "grouped": recorded_grouped(),
        "sums": accumulation.recorded_sums(),
        "accumulation": accumulation,
        "cached": cache.recorded_cache(),
        "cache": cache,
        "large": large_model.recorded_large_model(),
        "large_model": large_model,
        "methods": recorded_methods(),
        "page": recorded_page(),
        "sizes": recorded_sizes(),
        "estimate": estimate,
        "intervals": intervals,
        "first_numbers": recorded_first_numbers(),
        "embeddings": embeddings.recorded_embeddings(),
        "inputs": inputs,
        "inputs_recorded": inputs.recorded_inputs(),
        "ranking": ranking,
        "ranked": ranking.recorded_ranking(),
        "bias": bias_correction.recorded_bias(),
        "bias_correction": bias_correction,
        "training": recorded_training(),
        "gradients": recorded_gradients(),
        "precisions": training_precision.recorded_precisions(),
        "precision": training_precision,
        "vectors": vector_codes.recorded_vector_codes(),
        "vector_codes": vector_codes,
        "conformance": recorded_conformance(),
        "crossover": recorded_crossover(),
        "agreement": conformance_tables,
        "uncompared": uncompared(),
        "method_tokens": embeddings.TOKENS,
        "sample_count": embeddings.SAMPLES,
        "schemes_compared": embeddings.METHODS_SCHEMES,
        "recipes": recorded_recipes(),
        "causal": recorded_causal(),
        "method_recipes": method_recipes,
        "by_methods": method_recipes.recorded_methods(),
        "vocabulary": recorded_vocabulary(),
        "vocabulary_table": vocabulary_table,
        "exports": recorded_exports(),
        "exports_measured": exports_measured,
        "vllm": recorded_vllm(),
        "not_tried_in_words": not_tried_in_words,
        "vllm_table": vllm_table,
        "written": recorded_written(),
        "compared": recorded_quality(),
        "quality": quality,
        "runs": recorded_runs(),
        "runs_table": runs_table,
        "steps": recorded_steps(),
        "joined": recorded("machines/nvidia-h200/steps", StepTiming),
        "steps_table": steps_table,
        "same_logits": SAME_LOGITS,
        "layers": recorded_layers(),
        "products_table": products_table,
        "expectation": expectation,
        "head_of": head_of,
        "head_costs": head_costs,
        "steps_command": steps_command,
        "written_table": written_table,
        "recipe_tables": recipe_tables,
        "survey": load_survey(recipes.SHIPPED),
        "tables": tables,
        "claims": claims,
        "tuned_on": TUNED_ON,
        "few_rows": FEW_ROWS,
        "facts": facts,
    }


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _between(values: facts.Range | None, digits: int = 1) -> str:
    """ "1.8 to 2.1", or one number where both are the same to so many digits."""
    if values is None:
        return "(not recorded yet)"
    low, high = f"{values.low:.{digits}f}", f"{values.high:.{digits}f}"
    return low if low == high else f"{low} to {high}"
