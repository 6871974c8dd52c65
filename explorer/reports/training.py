"""Report of a training: accuracy against bits, before and after training through the rounding."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from explorer.figures.training import accuracy_figure, curves_figure, steps_figure
from explorer.progress import Progress
from explorer.reports.content import TRAINING, Content, Part, Table, content
from explorer.schemes import Scheme
from explorer.training.digits import (
    LSQ,
    STAGES,
    Trained,
    accuracy_rows,
    count,
    data,
    scheme_of,
    summary,
    train,
)

ACCURACY = "accuracy"
"""Name of the table of accuracies, and prefix of its numbers' names."""


@dataclass(frozen=True)
class Settings:
    """Options of `explorer train`."""

    widths: tuple[str, ...]
    seeds: int = 3
    epochs: int = 20
    again: int = 8
    activations: str = ""


def trained(settings: Settings, progress: Progress | None = None) -> list[Trained]:
    """Train all networks of ``settings``."""
    of_inputs = Scheme.parse(settings.activations) if settings.activations else None
    total, results = count(settings.widths, settings.seeds), list[Trained]()
    runs = train(settings.widths, settings.seeds, settings.epochs, settings.again, of_inputs)
    for one in runs:
        results.append(one)
        if progress is not None:
            progress(len(results), total)
    return results


def training_report(settings: Settings, results: Sequence[Trained]) -> Content:
    """Make the report of the networks of ``settings``. ``ValueError`` if some are missing, as means would
    then be over other seeds than stated."""
    total = count(settings.widths, settings.seeds)
    if len(results) != total:
        raise ValueError(f"{len(results)} of {total} networks are trained: a report is of a whole run")
    rows = accuracy_rows(results)
    images, tests = len(data()[0]), len(data()[2])
    table = Table(
        ACCURACY,
        ("weights", "how", "mean (%)", "least (%)", "most (%)", "seeds"),
        tuple((r.width, r.stage, 100 * r.mean, 100 * r.least, 100 * r.most, r.seeds) for r in rows),
    )
    by_bits = (
        "Test images recognised, by bits per weight: mean over seeds, bars from minimum to maximum; lines "
        "across: float32."
    )
    by_epoch = "Accuracy after each epoch of training on, first seed; dotted: learned step sizes (LSQ)."
    figures = [("accuracy", accuracy_figure(results), by_bits), ("curves", curves_figure(results), by_epoch)]
    if any(r.stage == LSQ for r in results):
        reading = "Mean learned step size of each layer after training, relative to before."
        figures.append(("steps", steps_figure(results), reading))
    parts = b"".join(part.contiguous().numpy().tobytes() for part in data())
    digest = hashlib.sha256(parts).hexdigest()
    inputs = f"; inputs of hidden layers by {settings.activations}" if settings.activations else ""
    return content(
        title="Accuracy against bits on images of digits",
        lead=(
            summary(results),
            f"{total} small networks, trained for this report on the machine named in the appendix{inputs}.",
        ),
        parts=[Part("Accuracy", (), (table,), tuple(figures))],
        method=_method(settings, images, tests),
        about={
            "images": "scikit-learn's digits, 8×8 pixels (E. Alpaydin, C. Kaynak, UCI 1998)",
            "their SHA-256 (float32, the split as used)": digest,
        },
        numbers={
            f"{ACCURACY}.{r.width}.{STAGES.index(r.stage)}.{what}": value
            for r in rows
            for what, value in (("mean", r.mean), ("least", r.least), ("most", r.most))
        },
        recipe={"kind": TRAINING, **asdict(settings), "widths": list(settings.widths)},
        sha256=digest,
    )


def _method(settings: Settings, images: int, tests: int) -> tuple[str, ...]:
    schemes = ", ".join(f"{width}: {scheme_of(width).label}" for width in settings.widths)
    return (
        f"{images:,} images to learn from and {tests} to test on: one image is {100 / tests:.2g} %. A "
        f"network with two hidden layers of 32 is trained for {settings.epochs} epochs in float32, for each "
        f"of {settings.seeds} seeds.",
        "Post-training: its weights rounded without further training. Trained through: trained on for "
        f"{settings.again} epochs with rounded weights, gradients straight through the rounding; LSQ learns "
        "the step sizes too. float32, trained on, is the fair comparison: as many epochs, no rounding.",
        f"Weights by width: {schemes}.",
    )
