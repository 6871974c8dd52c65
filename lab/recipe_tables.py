"""Results of recipes, as Markdown tables and figures in sentences: docs/models.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from explorer.methods import label_of
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.recipe_runs import RecipeRun
from explorer.schemes.scheme import label_of_text
from explorer.survey import SENSITIVITIES
from lab.intervals import Mean, difference
from lab.recipes import BUDGETS, BY_METHODS, SIGNAL
from lab.tables import markdown

DASH = "–"


def recipes_table(runs: Sequence[RecipeRun]) -> str:
    """For each budget: the measured loss of the best single scheme that fits, and of recipes by each
    signal."""
    signals = [name for name in SENSITIVITIES if any(run.signal == name for run in runs)]
    titles = [
        "bits",
        "best single scheme that fits",
        *(SENSITIVITIES[name].label for name in signals),
        "fused",
    ]
    rows = []
    for budget in BUDGETS:
        single = best_single(runs, budget)
        cells = [_one(runs, budget, name) for name in signals]
        best = f"{label_of_text(single.scheme)} ({single.bits:.2f}): {_loss(single)}" if single else DASH
        rows.append([f"{budget:g}", best, *map(_loss, cells), _loss(_one(runs, budget, SIGNAL, fused=True))])
    return markdown(titles, rows) if runs else f"({NOT_RECORDED})"


def causal_table(runs: Sequence[RecipeRun]) -> str:
    """For a causal model: single schemes and recipes, smallest first, with loss, perplexity and equal top
    tokens."""
    shown = [run for run in runs if run.signal in ("", SIGNAL, "weight") and run.bits > 3]
    rows = [
        [
            _name(run) + (" by weight error" if run.signal == "weight" else ""),
            f"{run.bits:.2f}",
            f"{run.predicted:.4f}" if run.predicted is not None else DASH,
            f"{run.loss:.4f} ± {(run.high - run.low) / 2:.4f}",
            f"{run.perplexity:.1f}",
            f"{100 * (run.same_top or 0):.1f} %",
        ]
        for run in sorted(shown, key=lambda run: run.bits)
    ]
    titles = ["all layers", "bits", "predicted", "KL, nats a token", "perplexity", "same top token"]
    return markdown(titles, rows) if rows else f"({NOT_RECORDED})"


def predictions_table(runs: Sequence[RecipeRun]) -> str:
    """Predicted and measured loss of single schemes and of recipes, smallest first."""
    shown = [
        run for run in runs if run.predicted is not None and run.signal in ("", SIGNAL) and not run.method
    ]
    rows = [
        [_name(run), f"{run.bits:.2f}", f"{run.predicted:.5f}", f"{_loss(run)} ± {_half(run)}"]
        for run in sorted(shown, key=lambda run: run.bits)
    ]
    return markdown(["all layers", "bits", "predicted", "measured"], rows) if rows else f"({NOT_RECORDED})"


def methods_table(runs: Sequence[RecipeRun]) -> str:
    """A recipe and a single scheme of its size, rounded to nearest and by methods."""
    budget, scheme, methods = BY_METHODS
    rows = []
    for method in ("", *methods):
        single = next((r for r in runs if r.scheme == scheme and r.method == method), None)
        chosen = _one(runs, budget, SIGNAL, method=method)
        rows.append([label_of(method) if method else "round to nearest", _loss(single), _loss(chosen)])
    titles = ["method", f"{label_of_text(scheme)}", f"recipe of {budget:g} bits"]
    return markdown(titles, rows) if runs else f"({NOT_RECORDED})"


def best_single(runs: Iterable[RecipeRun], budget: float) -> RecipeRun | None:
    """The single scheme of at most ``budget`` bits, rounded to nearest, with the least measured loss."""
    fit = [run for run in runs if run.scheme and not run.method and run.bits <= budget + 0.001]
    return min(fit, key=lambda run: run.loss, default=None)


def undecided(runs: Sequence[RecipeRun]) -> str:
    """The budgets at which the recipe and the best single scheme that fits differ by less than the interval
    of their difference, or than its upper bound where the losses of texts were not recorded."""
    close = []
    for budget in BUDGETS:
        chosen, single = _one(runs, budget, SIGNAL), best_single(runs, budget)
        if chosen and single:
            means = (Mean(run.loss, (run.high - run.low) / 2, run.losses) for run in (single, chosen))
            more, half = difference(*means)
            if abs(more) < half:
                close.append(f"{budget:g} bits")
    return ", ".join(close) or "none"


def saved(runs: Sequence[RecipeRun], budget: float, scheme: str) -> str:
    """By how much the recipe's measured loss is less than that of ``scheme``: "38 %"."""
    chosen = _one(runs, budget, SIGNAL)
    single = next((r for r in runs if r.scheme == scheme and not r.method), None)
    return f"{100 * (1 - chosen.loss / single.loss):.0f} %" if chosen and single else f"({NOT_RECORDED})"


def _one(
    runs: Iterable[RecipeRun], budget: float, signal: str, fused: bool = False, method: str = ""
) -> RecipeRun | None:
    wanted = (budget, signal, "", fused, method)
    found = (r for r in runs if (r.budget, r.signal, r.scheme, r.fused, r.method) == wanted)
    return next(found, None)


def _name(run: RecipeRun) -> str:
    kind = "recipe, fused" if run.fused else "recipe"
    return f"{kind}, {run.budget:g} bits" if not run.scheme else label_of_text(run.scheme)


def _loss(run: RecipeRun | None) -> str:
    return DASH if run is None else f"{run.loss:.5f}"


def _half(run: RecipeRun) -> str:
    return f"{(run.high - run.low) / 2:.5f}"
