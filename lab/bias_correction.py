"""The constant part of the layers' output error, by method, and the gain of a model from bias correction.

A layer's error over tokens is E [tokens, N]. Its constant part is the mean of each output channel, with a
share of √tokens · ‖mean(E)‖ / ‖E‖ of the norm. Both are measured on the inputs of the original model's layers
for the sentences of ``assets/texts/similar.txt``, which the embeddings are compared on; methods and
corrections see other sentences.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from explorer.core.backend import work_device
from explorer.core.replace import replace_layers
from explorer.methods import BIAS_CORRECTION, label_of
from explorer.methods.bias_correction import bias_correction, into_bias
from explorer.models.capture import Model, capture
from explorer.models.evaluate import SAMPLES, OriginalModel, embed, embedding_scores, sentences
from explorer.models.kinds import kind_of
from explorer.models.quantize import MethodLinear, quantize_by_method
from explorer.recordings.files import NOT_RECORDED, Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import SCHEMES, Scheme
from explorer.schemes.scheme import label_of_text
from lab.embeddings import METHODS_SCHEMES, PACKAGES, TOKENS
from lab.tables import markdown, mean_and_spread, signed

NAME = "bias-correction"
METHODS = ("rtn", "hqq", "awq", "gptq", "autoround")
"""Each is measured as it is, and corrected."""
BY_KIND = ("hqq", "autoround")
"""Methods that are also measured in one kind of layers at a time."""


@dataclass(frozen=True)
class BiasRow:
    """A whole model by one method: its embeddings, and the errors of its layers on held-out inputs.

    ``cosine`` and ``rank`` as in ``EmbeddingDrift``; ``bits`` of each weight; ``sample``: which of
    ``calibration_texts`` the method saw. ``error``: median over layers of ‖Y - Ŷ‖ / ‖Y‖. ``constant``,
    ``least_constant``, ``most_constant``: the constant part's share of that error's norm, median, least and
    most over layers. ``better``: layers whose error is less than that of rounding to nearest without a
    correction; ``layers``: of how many. ``kind``: of layers that are by the method, all others by rounding to
    nearest (corrected, if the method is); then errors are of these alone. Empty for all layers.
    """

    scheme: str
    method: str
    sample: int
    bits: float
    cosine: float
    rank: float
    error: float
    constant: float
    least_constant: float
    most_constant: float
    better: int
    layers: int
    kind: str = ""


def recorded_bias() -> Recording[BiasRow]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, BiasRow)


def record_bias(model: Model, methods: Sequence[str] = METHODS, samples: int = SAMPLES) -> Path:
    """Run ``run_bias`` in float32 and write ``assets/measurements/bias-correction.json``."""
    rows = tuple(run_bias(model, methods, samples=samples))
    return record(NAME, Recording(this_machine(work_device(), PACKAGES), rows))


def run_bias(
    model: Model,
    methods: Sequence[str] = METHODS,
    schemes: Sequence[str] = METHODS_SCHEMES,
    samples: int = SAMPLES,
    tokens: int = TOKENS,
) -> Iterator[BiasRow]:
    """Two rows for each method, scheme and sample: as it is, and corrected; of ``BY_KIND`` also two for each
    kind of layer. A method rounds once for all of them. Rounding to nearest is run first in any case: the
    layers of others are compared with its."""
    for sample in range(samples):
        original = OriginalModel(model, tokens=tokens, sample=sample)
        found = capture(model, sentences(), [layer.name for layer in original.layers], tokens)
        held_out = {layer.name: layer.activations for layer in found}
        for scheme in schemes:
            yield from _rows(original, held_out, dict.fromkeys(("rtn", *methods)), SCHEMES[scheme])


def _rows(
    original: OriginalModel, held_out: Mapping[str, Tensor], methods: Iterable[str], scheme: Scheme
) -> Iterator[BiasRow]:
    """The rows of one scheme and sample; ``held_out``: inputs [tokens, K] of each layer, for the sentences
    that are compared."""
    rounded: list[nn.Module] = []  # to nearest: as it is, and corrected
    base: dict[str, tuple[float, float]] = {}
    kinds: dict[str, list[str]] = {}
    for layer in original.layers:
        kinds.setdefault(kind_of(layer.name), []).append(layer.name)
    for method in methods:
        network = copy.deepcopy(original.model.network)
        bits = quantize_by_method(network, original.layers, method, scheme)
        for index, name in enumerate((method, corrected_name(method))):
            if index:
                network = copy.deepcopy(network)
                _correct(network, original)
            rounded += [network] if method == "rtn" else []
            errors = {
                layer: layer_error(network, original.model.network, layer, x) for layer, x in held_out.items()
            }
            base = base or errors
            row = partial(_row, original, scheme=scheme.name, method=name, bits=bits, base=base)
            yield row(network, errors=errors)
            for kind in kinds if method in BY_KIND else ():
                of_kind = {layer: errors[layer] for layer in kinds[kind]}
                yield row(_mixed(rounded[index], network, of_kind), errors=of_kind, kind=kind)


def _mixed(rounded: nn.Module, network: nn.Module, layers: Iterable[str]) -> nn.Module:
    """A copy of ``rounded`` with ``layers`` as they are in ``network``."""
    mixed = copy.deepcopy(rounded)
    replace_layers(mixed, layers, lambda name, _: network.get_submodule(name))
    return mixed


def _row(
    original: OriginalModel,
    network: nn.Module,
    *,
    scheme: str,
    method: str,
    bits: float,
    base: Mapping[str, tuple[float, float]],
    errors: Mapping[str, tuple[float, float]],
    kind: str = "",
) -> BiasRow:
    """The row of a network: its embeddings, and what ``errors`` of layers say, beside those of ``base``."""
    after = embed(replace(original.model, network=network), sentences())
    scores = embedding_scores(original.embeddings, after)
    shares = [share for _, share in errors.values()]
    return BiasRow(
        scheme=scheme,
        method=method,
        sample=original.sample,
        bits=bits,
        cosine=scores["cosine"],
        rank=scores["rank"],
        error=median(error for error, _ in errors.values()),
        constant=median(shares),
        least_constant=min(shares),
        most_constant=max(shares),
        better=sum(errors[layer][0] < base[layer][0] for layer in errors),
        layers=len(errors),
        kind=kind,
    )


def corrected_name(method: str) -> str:
    """The name of ``method`` with bias correction; that of round to nearest has no other part."""
    return BIAS_CORRECTION.name if method == "rtn" else f"{method}+{BIAS_CORRECTION.name}"


def _correct(network: nn.Module, original: OriginalModel) -> None:
    """Correct the biases of all layers of ``network`` in place, as ``quantize_by_method`` does by
    methods with bias correction."""
    for captured in original.layers:
        linear = network.get_submodule(captured.name)
        assert isinstance(linear, MethodLinear)
        device = linear.dequantized.device
        found = bias_correction(linear.layer, captured.weight.to(device), captured.activations.to(device))
        linear.layer, bias = into_bias(linear.layer.with_residue(found), linear.bias)
        linear.bias = bias


def layer_error(network: nn.Module, original: nn.Module, name: str, x: Tensor) -> tuple[float, float]:
    """‖Y - Ŷ‖ / ‖Y‖ of a layer for inputs [tokens, K], Y without the bias, and the share of the error's norm
    that is the same for all tokens."""
    linear, before = network.get_submodule(name), original.get_submodule(name)
    assert isinstance(linear, MethodLinear) and isinstance(before, nn.Linear)
    x = x.to(linear.dequantized.device)
    exact = x.double() @ before.weight.detach().double().t()
    error = linear.layer.output(x) - exact
    if linear.bias is not None:
        error = error + (linear.bias.double() - before.bias.detach().double())
    constant = error.mean(0).norm() * len(x) ** 0.5
    norm = error.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return float(norm / exact.norm()), float(constant / norm)


def bias_table(rows: Sequence[BiasRow], scheme: str) -> str:
    """Each method as it is and corrected, under one scheme: means over the samples, and their spread."""
    lines = []
    for method in METHODS:
        for name in (method, corrected_name(method)):
            of = rows_of(rows, scheme, name)
            cells = [NOT_RECORDED, "", "", "", ""]
            if of:
                shares = [min(r.least_constant for r in of), max(r.most_constant for r in of)]
                cells = [
                    mean_and_spread([r.cosine for r in of]),
                    mean_and_spread([r.rank for r in of]),
                    f"{100 * _mean(of, 'error'):.1f} %",
                    f"{_mean(of, 'better'):.0f} of {of[0].layers}",
                    f"{100 * _mean(of, 'constant'):.0f} % ({100 * shares[0]:.0f} to {100 * shares[1]:.0f})",
                ]
            lines.append([label_of(name), *cells])
    titles = ["cosine", "rank", "error of a layer", "layers better than rounding", "constant part of it"]
    return markdown([label_of_text(scheme), *titles], lines)


def kinds_table(rows: Sequence[BiasRow], scheme: str, method: str) -> str:
    """``method`` in one kind of layers and rounding in all others, both as they are and both corrected."""
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows if row.kind and row.layers > 1):
        cells = [kind]
        for name, base in ((method, "rtn"), (corrected_name(method), corrected_name("rtn"))):
            of = rows_of(rows, scheme, name, kind)
            gain = _mean(of, "cosine") - _mean(rows_of(rows, scheme, base), "cosine")
            cells += [
                f"{_mean(of, 'cosine'):.3f} ({signed(gain, 3)})",
                f"{_mean(of, 'better'):.0f} of {of[0].layers}",
            ]
        lines.append(cells)
    titles = ["cosine", "layers better than rounding", "cosine, corrected", "layers better than rounding"]
    return (
        markdown([f"{label_of(method)} by {label_of_text(scheme)} in", *titles], lines)
        if lines
        else f"({NOT_RECORDED})"
    )


def rows_of(rows: Sequence[BiasRow], scheme: str, method: str, kind: str = "") -> list[BiasRow]:
    """The rows of a method under a scheme, one for each sample that was recorded."""
    return [row for row in rows if (row.scheme, row.method, row.kind) == (scheme, method, kind)]


def sample_count(rows: Sequence[BiasRow]) -> int:
    """The number of samples of calibration texts in the recording."""
    return len({row.sample for row in rows})


def number(rows: Sequence[BiasRow], scheme: str, method: str, field: str, kind: str = "") -> str:
    """The mean of ``field`` over samples as it stands in a sentence: shares in per cent, scores to three
    digits."""
    of = rows_of(rows, scheme, method, kind)
    if not of:
        return f"({NOT_RECORDED})"
    value = _mean(of, field)
    if field in ("cosine", "rank"):
        return f"{value:.3f}"
    digits = 1 if field == "error" else 0
    return f"{value:.0f}" if field == "better" else f"{100 * value:.{digits}f} %"


def _mean(rows: Sequence[BiasRow], field: str) -> float:
    return sum(getattr(row, field) for row in rows) / len(rows)
