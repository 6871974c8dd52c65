"""Output error of a layer under each method, on held-out inputs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from explorer.core.backend import synchronize
from explorer.core.serialize import to_json
from explorer.methods import METHODS, RTN, apply, label_of, names_in, rounding_in
from explorer.methods.layer import QuantizedLayer
from explorer.methods.llm_int8 import THRESHOLD, outlier_columns
from explorer.methods.method import TransformMethod
from explorer.schemes import Scheme
from explorer.schemes.scheme import label_of_text

LEAST_GAIN_DB = 0.1
"""Minimum gain over round to nearest for a method to be recommended in a summary."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one method under one scheme. Errors are relative, ‖Y - Ŷ‖ / ‖Y‖.

    channel_error  [N], of each output channel
    objective      values that the method minimised, empty if there are none
    seconds        run time of the method
    refused        reason why the method does not support the scheme, or why the output has no meaning: then
                   the numbers are NaN, and there may be no ``layer``
    """

    method: str
    label: str
    scheme: str
    activations: str
    output_error: float = math.nan
    output_sqnr_db: float = math.nan
    weight_sqnr_db: float = math.nan
    channel_error: tuple[float, ...] = ()
    objective: tuple[float, ...] = ()
    bits: float = math.nan
    seconds: float = 0.0
    layer: QuantizedLayer | None = None
    refused: str = ""

    @property
    def scheme_label(self) -> str:
        """Label of the scheme; ``scheme`` is its text."""
        return label_of_text(self.scheme)

    def record(self) -> dict[str, Any]:
        """Return all fields but layer and objective as JSON values."""
        numbers: dict[str, Any] = to_json(dataclasses.replace(self, layer=None))
        del numbers["layer"], numbers["objective"]
        return numbers


NO_INPUT = "no input reaches this layer: its weights are rounded, and its output is zero either way"
MOST_TOKENS = 4096
"""Maximum number of a layer's input tokens that are used, on the page and in a report."""


def halves(activations: Tensor) -> tuple[Tensor, Tensor]:
    """Split into rows to calibrate on and held-out rows. ``ValueError`` for fewer than two."""
    if len(activations) < 2:
        raise ValueError("at least two rows of inputs are needed: half of them are held out to measure on")
    half = len(activations) // 2
    return activations[:half], activations[half:]


def evaluate(
    name: str,
    weight: Tensor,
    scheme: Scheme,
    calibration: Tensor,
    held_out: Tensor,
    activations: Scheme | None = None,
) -> Outcome:
    """Apply a method to ``weight`` [N, K] for the inputs ``calibration`` [tokens, K], and measure on
    ``held_out``.

    ``activations`` quantizes the held-out inputs, and those on which a method searches. ``ValueError`` if the
    method does not support the scheme.
    """
    start = time.perf_counter()
    layer = apply(name, weight, scheme, calibration, of_inputs=activations)
    synchronize(weight.device)
    seconds = time.perf_counter() - start
    if not bool(held_out.any()):
        return Outcome(name, label_of(name), scheme.name, "", layer=layer, refused=NO_INPUT)
    exact = held_out.double() @ weight.double().t()
    channels = exact.square().sum(0)
    lost = (layer.output(held_out, activations) - exact).square().sum(0)
    lost_of_weight = (layer.weight().double() - weight.double()).square().sum()
    error = _share(lost.sum(), channels.sum())
    return Outcome(
        method=name,
        label=label_of(name),
        scheme=scheme.name,
        activations=activations.name if activations else "",
        output_error=error,
        output_sqnr_db=_db(error),
        weight_sqnr_db=_db(_share(lost_of_weight, weight.double().square().sum())),
        channel_error=tuple((lost / channels.clamp(min=1e-300)).sqrt().tolist()),
        objective=layer.objective,
        bits=layer.bits_per_weight,
        seconds=seconds,
        layer=layer,
    )


def evaluate_all(
    names: Sequence[str],
    schemes: Sequence[Scheme],
    weight: Tensor,
    activations: Tensor,
    of_inputs: Scheme | None = None,
) -> Iterator[Outcome]:
    """Evaluate every method under every scheme, with half of ``activations`` [tokens, K] held out and inputs
    quantized by ``of_inputs``.

    An unsupported scheme gives an outcome with the reason. ``ValueError`` for unknown methods.
    """
    labels = {name: label_of(name) for name in names}
    calibration, held_out = halves(activations)
    for scheme in schemes:
        for name in names:
            try:
                yield evaluate(name, weight, scheme, calibration, held_out, of_inputs)
            except ValueError as error:
                inputs = of_inputs.name if of_inputs else ""
                yield Outcome(name, labels[name], scheme.name, inputs, refused=str(error))


def most_telling_transform(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Choose the outcome whose transform of inputs and weight is drawn; None if no method has a transform.

    Transform methods come first, in the order of ``METHODS``, then rounding methods that scale channels.
    """
    order = [name for name, row in METHODS.items() if isinstance(row, TransformMethod)]

    def rank(outcome: Outcome) -> int:
        names = [row.name for row in names_in(outcome.method) if isinstance(row, TransformMethod)]
        return min((order.index(name) for name in names), default=len(order))

    return min((o for o in outcomes if o.layer and o.layer.transforms), key=rank, default=None)


def summary(outcomes: Sequence[Outcome], activations: Tensor) -> str:
    """Name the method with the smallest error of the output in one sentence per scheme, with the error and
    the reason; then the outliers of the inputs."""
    served = [o for o in outcomes if not o.refused]
    schemes = dict.fromkeys(o.scheme for o in served)
    by_scheme = [[o for o in served if o.scheme == scheme] for scheme in schemes]
    sentences = [_best_method(rows) for rows in by_scheme]
    tokens, k = halves(activations)[0].shape
    overfitted = next((o for rows in by_scheme for o in rows if _overfits(o, _baseline(rows))), None)
    if overfitted is not None and tokens < 2 * k:
        sentences.append(
            f"{overfitted.label} does worse than rounding on inputs it has not seen: "
            f"{tokens} tokens are few for {k} input channels."
        )
    columns = len(outlier_columns(activations))
    if columns:
        sentences.append(f"{columns} of {k} input columns hold outliers of {THRESHOLD:g} and more.")
    else:
        sentences.append(f"No input reaches {THRESHOLD:.1f}.")
    return " ".join(sentences)


def _best_method(rows: Sequence[Outcome]) -> str:
    scheme, base = rows[0].scheme_label, _baseline(rows)
    best = min(rows, key=lambda o: o.output_error)
    if base is None or best is base:
        error = f"{100 * best.output_error:.3g} %"
        least = ", the least of these" if len(rows) > 1 else ""
        return f"{scheme}: {best.label} leaves {error} of the output wrong{least}."
    if best.output_sqnr_db - base.output_sqnr_db < LEAST_GAIN_DB:
        return (
            f"{scheme}: nothing beats rounding to nearest by more than {LEAST_GAIN_DB} dB "
            f"({base.output_sqnr_db:.1f} dB)."
        )
    why = " and ".join(row.why for row in names_in(best.method))
    return (
        f"{scheme}: {best.label} leaves the least error, {best.output_sqnr_db:.1f} dB against "
        f"{base.output_sqnr_db:.1f} by rounding to nearest, because it {why}."
    )


def _baseline(rows: Sequence[Outcome]) -> Outcome | None:
    return next((o for o in rows if o.method == RTN.name), None)


def _overfits(o: Outcome, base: Outcome | None) -> bool:
    """True if a method that needs many tokens is worse on held-out inputs than round to nearest."""
    return rounding_in(o.method).needs_tokens and base is not None and o.output_sqnr_db < base.output_sqnr_db


def _share(part: Tensor, whole: Tensor) -> float:
    """√(part / whole) of two sums of squares."""
    return math.sqrt(float(part) / max(float(whole), 1e-300))


def _db(error: float) -> float:
    return -20 * math.log10(error) if error else math.inf
