"""Methods ranked by the loss of the whole model and by the error of its layers, with many calibration tokens;
and where the two disagree, what of a layer's error the model sees.

Loss is the mean of 1 - cosine between sentence embeddings of the original and the quantized model. Besides
the whole model, each layer is quantized alone. For a value layer attention stands between its output and the
rest of the model; with E [tokens, N] the layer's error, A [tokens, tokens] the original's attention weights
of a head, and W_o its output projection:

    attended error = mean over tokens of  W_o · concat over heads (A · E)

A token that attention does not look at does not count there, one that all tokens look at counts many times.
"""

from __future__ import annotations

import copy
import math
import pydoc_data.topics
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from explorer.core.backend import work_device
from explorer.core.replace import replace_layers
from explorer.methods import label_of
from explorer.models.capture import Captured, Model, capture, linear_layers
from explorer.models.evaluate import calibration_texts, embed, sentences
from explorer.models.kinds import depth_of, kind_of
from explorer.models.quantize import MethodLinear, quantize_by_method
from explorer.models.texts import token_sequences
from explorer.recordings.files import NOT_RECORDED, Recording, record_each, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import SCHEMES
from explorer.schemes.scheme import label_of_text
from lab import intervals
from lab.bias_correction import BiasRow
from lab.embeddings import METHODS_SCHEMES, PACKAGES, TOKENS
from lab.inputs import GROUP
from lab.intervals import chance, half_interval, spearman, spearman_interval
from lab.tables import fixed, markdown, signed

NAME = "ranking"
METHODS = ("rtn", "hqq", "awq", "gptq", "autoround")
NO_INPUTS = ("rtn", "hqq")
"""Methods that see no inputs: one run serves every calibration."""
PASSAGES, LENGTH, WORDS = 32, 512, 500
"""Passages of calibration text, their tokens, and the words that they are cut from: what one thread does in
about 20 minutes, all methods and schemes together."""
LONG, SHORT, BY_ATTENTION = "passages", "sentences", "sentences by attention"
"""Calibrations: ``PASSAGES`` · ``LENGTH`` tokens of long texts; at most ``TOKENS`` tokens of sentences; and
these with each token weighted by the attention that it gets."""
VALUE, OUTPUT = "value", "attention output"


@dataclass(frozen=True)
class LayerLoss:
    """One layer quantized alone, on the compared sentences.

    ``loss`` of the model. ``error``: ‖Y - Ŷ‖ / ‖Y‖ over all tokens. Of value layers also: ``attended``, the
    norm of the attended error over that of the attended output, root mean squares over sentences; ``first``,
    the error of the first token alone; ``attention``, the share of attention that goes to the first token.
    """

    layer: str
    loss: float
    error: float
    attended: float | None = None
    first: float | None = None
    attention: float | None = None

    @property
    def kind(self) -> str:
        """What the layer is, by its name."""
        return kind_of(self.layer)


@dataclass(frozen=True)
class RankRow:
    """A method under a scheme, with one calibration of ``tokens`` tokens (0 for a method that sees none).

    Of the whole model, None where only value layers were quantized: ``loss`` on the compared sentences,
    ``half`` of its 95 % interval over groups of them, ``own_loss`` on the calibration sentences, ``error``:
    the median over layers of their errors; ``bits`` of each weight. ``value_loss``: with the value layers by
    the method and all others as they were; ``value_loss_but_first``: with their outputs for the first token
    of each text as they were, too. ``groups``: the loss of each group of ``GROUP`` sentences, which paired
    differences are made of; empty in rows that were recorded without.
    """

    scheme: str
    method: str
    calibration: str
    tokens: int
    value_loss: float
    value_loss_but_first: float
    layers: tuple[LayerLoss, ...]
    loss: float | None = None
    half: float | None = None
    own_loss: float | None = None
    error: float | None = None
    bits: float | None = None
    groups: tuple[float, ...] = ()


def recorded_ranking() -> Recording[RankRow]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, RankRow)


def record_ranking(model: Model) -> Path:
    """Run ``run_ranking`` in float32 and write ``assets/measurements/ranking.json``, after each row."""
    return record_each(NAME, this_machine(work_device(), PACKAGES), run_ranking(model))


def passages() -> tuple[str, ...]:
    """Calibration text that every Python has: passages of ``WORDS`` words of its language reference, evenly
    over its topics in the order of their names."""
    words = [word for _, text in sorted(pydoc_data.topics.topics.items()) for word in text.split()]
    starts = range(0, len(words) - WORDS + 1, WORDS)
    every = [" ".join(words[start : start + WORDS]) for start in starts]
    return tuple(every[:: len(every) // PASSAGES][:PASSAGES])


@dataclass(frozen=True, eq=False)
class Seen:
    """A model's responses to texts, each run alone: ``inputs`` [tokens, K] of each layer by text, and the
    attention weights [heads, tokens, tokens] of each block by text."""

    inputs: Mapping[str, list[Tensor]]
    attention: Sequence[list[Tensor]]

    @classmethod
    def of(cls, model: Model, texts: Sequence[str], layers: Iterable[str]) -> Seen:
        """Run ``texts`` through a copy of ``model`` whose attention is written out."""
        network = copy.deepcopy(model.network)
        network.set_attn_implementation("eager")  # type: ignore[operator]
        inputs: dict[str, list[Tensor]] = {name: [] for name in layers}
        for name, kept in inputs.items():
            network.get_submodule(name).register_forward_pre_hook(_keeper(kept))
        attention: list[list[Tensor]] = []
        for sequence in token_sequences(model, texts, LENGTH):
            tokens = {k: torch.tensor([v]).to(model.device) for k, v in sequence.inputs.items()}
            with torch.no_grad():
                found = network(**tokens, output_attentions=True).attentions
            attention.append([weights[0].cpu() for weights in found])
        return cls(inputs, [list(of) for of in zip(*attention, strict=True)])

    def received(self, layer: str) -> Tensor:
        """float32 [all tokens]: how much attention each token gets in the block of ``layer``, as a mean over
        heads; 1 where all tokens of a text get the same."""
        depth = depth_of(layer)
        assert depth is not None
        return torch.cat([weights.mean(0).sum(0) for weights in self.attention[depth]])

    def on_first(self, layer: str) -> float:
        """The share of attention that goes to the first token in the block of ``layer``."""
        depth = depth_of(layer)
        assert depth is not None
        return statistics.fmean(float(weights[:, :, 0].mean()) for weights in self.attention[depth])


def _keeper(kept: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A hook that keeps the inputs of the one text that is run."""

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        kept.append(inputs[0][0].detach().cpu())

    return keep


@dataclass(frozen=True, eq=False)
class Compared:
    """The original model on the compared sentences, and losses of changed ones."""

    model: Model

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers that an embedding depends on: those in blocks."""
        return tuple(name for name in linear_layers(self.model) if depth_of(name) is not None)

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The value layers."""
        return tuple(name for name in self.layers if kind_of(name) == VALUE)

    @cached_property
    def seen(self) -> Seen:
        return Seen.of(self.model, sentences(), self.layers)

    @cached_property
    def embeddings(self) -> Tensor:
        return embed(self.model, sentences())

    @cached_property
    def own(self) -> Tensor:
        """Embeddings of the calibration sentences."""
        return embed(self.model, calibration_texts())

    def cosines(self, network: nn.Module) -> Tensor:
        """float32 [sentences]: of each embedding by ``network`` with its original."""
        return (self.embeddings * embed(replace(self.model, network=network), sentences())).sum(1)

    def loss(self, changed: Mapping[str, nn.Module]) -> float:
        """The loss with the layers ``changed`` in place of the original's."""
        network = copy.deepcopy(self.model.network)
        replace_layers(network, changed, lambda name, _: changed[name])
        return float(1 - self.cosines(network).mean())

    def layer_loss(self, name: str, layer: MethodLinear) -> LayerLoss:
        """What ``layer`` costs alone in place of ``name``."""
        original = self.model.network.get_submodule(name)
        assert isinstance(original, nn.Linear)
        change = _change(layer, original)
        wanted = _weights(original)
        inputs = self.seen.inputs[name]
        errors = [change(x) for x in inputs]
        outputs = [x.double() @ wanted.t() for x in inputs]
        found = LayerLoss(name, self.loss({name: layer}), _ratio(errors, outputs))
        if kind_of(name) != VALUE:
            return found
        return replace(
            found,
            attended=_ratio(self._attended(name, errors), self._attended(name, outputs)),
            first=_ratio([e[:1] for e in errors], [y[:1] for y in outputs]),
            attention=self.seen.on_first(name),
        )

    def _attended(self, name: str, values: Sequence[Tensor]) -> list[Tensor]:
        """[1, N] for each text: the mean over tokens of what attention and the output projection make of
        ``values`` [tokens, N]."""
        depth = depth_of(name)
        assert depth is not None
        (output,) = [one for one in self.layers if kind_of(one) == OUTPUT and depth_of(one) == depth]
        after = self.model.network.get_submodule(output)
        assert isinstance(after, nn.Linear)
        return [
            attended(each, weights, _weights(after))
            for each, weights in zip(values, self.seen.attention[depth], strict=True)
        ]


def attended(values: Tensor, attention: Tensor, output: Tensor) -> Tensor:
    """float64 [1, N]: the mean over tokens of ``output`` [N, N] times what attention weights [heads, tokens,
    tokens] make of ``values`` [tokens, N]."""
    heads = values.double().unflatten(1, (len(attention), -1)).transpose(0, 1)
    mixed = (attention.double() @ heads).transpose(0, 1).flatten(1)
    return mixed.mean(0, keepdim=True) @ output.double().t()


def _weights(linear: nn.Linear) -> Tensor:
    return linear.weight.detach().double().cpu()


def _change(layer: MethodLinear, original: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return a function that gives the error of ``layer``, float64 [tokens, N], its bias included, for inputs
    [tokens, K]."""
    error = (layer.layer.weight().double().cpu() - _weights(original)).t()
    bias = torch.zeros((), dtype=torch.float64)
    if layer.bias is not None:
        bias = layer.bias.detach().double().cpu() - original.bias.detach().double().cpu()
    return lambda x: x.double() @ error + bias


def _ratio(errors: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    lost, whole = (sum(float(one.square().sum()) for one in parts) for parts in (errors, outputs))
    return math.sqrt(lost / whole)


class ButFirst(nn.Module):
    """``layer``, but for the first token of each text, whose output is the original's."""

    def __init__(self, layer: nn.Module, original: nn.Module) -> None:
        super().__init__()
        self.layer, self.original = layer, original

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.original(x[:, :1]), self.layer(x[:, 1:])], 1)


def run_ranking(model: Model) -> Iterator[RankRow]:
    """Every method under both schemes: the value layers with few tokens, as they are and weighted by
    attention; then the whole model with many. Layers alone: all of them under the scheme of the fewest bits,
    value layers in every row."""
    compared = Compared(model)
    few = capture(model, calibration_texts(), compared.values, TOKENS)
    weights = Seen.of(model, calibration_texts(), ())
    weighted = [
        replace(one, activations=one.activations * weights.received(one.name)[:TOKENS, None].sqrt())
        for one in few
    ]
    for name in METHODS_SCHEMES:
        for method in METHODS:
            if method not in NO_INPUTS:
                for calibration, layers in ((SHORT, few), (BY_ATTENTION, weighted)):
                    yield rank_row(compared, name, method, calibration, layers)
    many = capture(model, passages(), compared.layers, PASSAGES * LENGTH)
    for name in METHODS_SCHEMES:
        every = name == METHODS_SCHEMES[-1]
        for method in METHODS:
            yield rank_row(compared, name, method, LONG, many, whole=True, every=every)


def rank_row(
    compared: Compared,
    scheme: str,
    method: str,
    calibration: str,
    layers: Sequence[Captured],
    *,
    whole: bool = False,
    every: bool = False,
) -> RankRow:
    """Quantize ``layers`` by ``method`` and measure; ``whole``: they are all, and the model is measured too;
    ``every``: each of them is measured alone, else the value layers are."""
    network = copy.deepcopy(compared.model.network)
    bits = quantize_by_method(network, layers, method, SCHEMES[scheme])
    changed: dict[str, MethodLinear] = {}
    for one in layers:
        layer = network.get_submodule(one.name)
        assert isinstance(layer, MethodLinear)
        changed[one.name] = layer
    values = {name: changed[name] for name in compared.values}
    first = {
        name: ButFirst(layer, compared.model.network.get_submodule(name)) for name, layer in values.items()
    }
    row = RankRow(
        scheme=scheme,
        method=method,
        calibration="" if method in NO_INPUTS else calibration,
        tokens=0 if method in NO_INPUTS else len(layers[0].activations),
        value_loss=compared.loss(values),
        value_loss_but_first=compared.loss(first),
        layers=tuple(
            compared.layer_loss(name, layer)
            for name, layer in changed.items()
            if every or name in compared.values
        ),
    )
    if not whole:
        return row
    lost = 1 - compared.cosines(network)
    own = (compared.own * embed(replace(compared.model, network=network), calibration_texts())).sum(1)
    errors = [
        _ratio(
            [_change(layer, _linear(compared.model, name))(x) for x in compared.seen.inputs[name]],
            [x.double() @ _weights(_linear(compared.model, name)).t() for x in compared.seen.inputs[name]],
        )
        for name, layer in changed.items()
    ]
    groups = tuple(lost.unflatten(0, (-1, GROUP)).mean(1).tolist())
    return replace(
        row,
        loss=float(lost.mean()),
        half=half_interval(groups),
        groups=groups,
        own_loss=float(1 - own.mean()),
        error=statistics.median(errors),
        bits=bits,
    )


def _linear(model: Model, name: str) -> nn.Linear:
    layer = model.network.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer


def rows_of(rows: Sequence[RankRow], scheme: str, calibration: str = LONG) -> list[RankRow]:
    """The rows of a scheme with a calibration, and those of methods that see no inputs."""
    return [row for row in rows if row.scheme == scheme and row.calibration in (calibration, "")]


def row_of(rows: Sequence[RankRow], scheme: str, method: str, calibration: str = LONG) -> RankRow | None:
    """One of ``rows_of``; None where it was not recorded."""
    return next((row for row in rows_of(rows, scheme, calibration) if row.method == method), None)


def tokens_of(rows: Sequence[RankRow], calibration: str) -> str:
    """The tokens of a calibration, "65,536"."""
    found = {row.tokens for row in rows if row.calibration == calibration}
    return f"{max(found):,}" if found else f"({NOT_RECORDED})"


def recorded_few(bias: Sequence[BiasRow], scheme: str) -> dict[str, BiasRow]:
    """By method what was recorded of the model with ``TOKENS`` tokens: the first sample of sentences."""
    rows = [row for row in bias if row.scheme == scheme and row.sample == 0 and not row.kind]
    return {row.method: row for row in rows if row.method in METHODS}


def ranks_table(rows: Sequence[RankRow], bias: Sequence[BiasRow], scheme: str) -> str:
    """Methods by the loss of the model with many tokens, the least first, with their places by the error of
    layers; and the same with few tokens."""
    whole = [row for row in rows_of(rows, scheme) if row.loss is not None and row.error is not None]
    short = recorded_few(bias, scheme)
    by_error = _places({row.method: row.error or 0.0 for row in whole})
    few_losses = _places({method: 1 - row.cosine for method, row in short.items()})
    few_errors = _places({method: row.error for method, row in short.items()})
    lines = []
    for place, row in enumerate(sorted(whole, key=lambda row: row.loss or 0.0), 1):
        before, cells = short.get(row.method), [NOT_RECORDED, ""]
        if before is not None:
            cells = [
                f"{1 - before.cosine:.4f} ({few_losses[row.method]})",
                f"{100 * before.error:.1f} % ({few_errors[row.method]})",
            ]
        lines.append(
            [
                label_of(row.method),
                f"{row.loss:.4f} ± {row.half:.4f} ({place})",
                _more_than(row_of(rows, scheme, "rtn"), row),
                f"{row.own_loss:.4f}",
                f"{100 * (row.error or 0.0):.1f} % ({by_error[row.method]})",
                *cells,
            ]
        )
    titles = [f"{tokens_of(rows, LONG)} tokens: loss ± 95 % interval", "more than by rounding"]
    titles += ["on other sentences", "error of a layer"]
    titles += [f"{TOKENS} tokens: loss", "error of a layer"]
    return markdown([label_of_text(scheme), *titles], lines or [[NOT_RECORDED, *[""] * len(titles)]])


def difference(before: RankRow, after: RankRow) -> tuple[float, float]:
    """The increase of a model's loss by ``after``, and half of its interval, over groups of sentences
    (``intervals.difference``)."""
    return intervals.difference(_mean_loss(before), _mean_loss(after))


def _mean_loss(row: RankRow) -> intervals.Mean:
    assert row.loss is not None and row.half is not None
    return intervals.Mean(row.loss, row.half, row.groups)


def _more_than(before: RankRow | None, after: RankRow) -> str:
    if before is None or before.loss is None or before.method == after.method:
        return ""
    more, half = difference(before, after)
    bound = "±" if before.groups and after.groups else "± at most"
    return f"{signed(more)} {bound} {half:.4f}"


def undecided(rows: Sequence[RankRow], scheme: str) -> str:
    """The pairs of methods whose losses differ by less than ``difference``'s interval: "HQQ against GPTQ"."""
    whole = [row for row in rows_of(rows, scheme) if row.loss is not None]
    pairs = []
    for i, before in enumerate(whole):
        for after in whole[i + 1 :]:
            more, half = difference(before, after)
            if abs(more) < half:
                pairs.append(f"{label_of(before.method)} against {label_of(after.method)}")
    return ", ".join(pairs) or "none"


def _places(values: Mapping[str, float]) -> dict[str, int]:
    """The place of each from the least."""
    return {method: place for place, method in enumerate(sorted(values, key=lambda m: values[m]), 1)}


def rank_correlation(rows: Sequence[RankRow], scheme: str) -> str:
    """Spearman's, of the methods' losses with the errors of their layers, with many tokens, and its exact
    two-sided p-value."""
    whole = [row for row in rows_of(rows, scheme) if row.loss is not None]
    return _correlation([(row.loss or 0.0, row.error or 0.0) for row in whole])


def few_rank_correlation(bias: Sequence[BiasRow], scheme: str) -> str:
    """The same with few tokens."""
    return _correlation([(1 - row.cosine, row.error) for row in recorded_few(bias, scheme).values()])


def _correlation(pairs: Sequence[tuple[float, float]]) -> str:
    """ "0.60 (p = 0.35)"."""
    if len(pairs) < 3:
        return f"({NOT_RECORDED})"
    losses, errors = zip(*pairs, strict=True)
    return f"{fixed(spearman(losses, errors))} (p = {chance(losses, errors):.2f})"


def few_loss(bias: Sequence[BiasRow], scheme: str, method: str) -> str:
    """The loss of the whole model with few tokens, as it stands in a sentence."""
    row = recorded_few(bias, scheme).get(method)
    return f"({NOT_RECORDED})" if row is None else f"{1 - row.cosine:.4f}"


def added(rows: Sequence[RankRow], method: str) -> str:
    """ "0.151 against 0.145": the sum of the losses of layers alone against that of all of them, under the
    scheme in which all were measured."""
    row = row_of(rows, METHODS_SCHEMES[-1], method)
    if row is None or row.loss is None:
        return f"({NOT_RECORDED})"
    return f"{sum(layer.loss for layer in row.layers):.3f} against {row.loss:.3f}"


def measures_table(rows: Sequence[RankRow]) -> str:
    """By kind of layer how well its error tells the loss that a method causes there, relative to rounding to
    nearest: Spearman's correlation of the two ratios over all layers of the kind that were measured alone, by
    all methods, schemes and calibrations."""
    kinds = dict.fromkeys(layer.kind for row in rows for layer in row.layers)
    lines = []
    for kind in sorted(kinds):
        pairs = list(_ratios(rows, kind))
        if len(pairs) < 3:
            continue
        error = _over_layers([(layer, loss, error) for layer, loss, error, _ in pairs])
        attended = _over_layers([(layer, loss, seen) for layer, loss, _, seen in pairs if seen is not None])
        layers = len({layer for layer, *_ in pairs})
        lines.append([kind, f"{len(pairs)}, of {layers} layers", error, attended])
    titles = ["measured", "error of the layer", "attended error"]
    return markdown(["one layer alone", *titles], lines or [[NOT_RECORDED, "", "", ""]])


def _over_layers(triples: Sequence[tuple[str, float, float]]) -> str:
    """ "0.80 (0.50 to 0.90)": the correlation and its interval by the bootstrap over layers."""
    if not triples:
        return "–"
    layers, losses, errors = zip(*triples, strict=True)
    low, high = spearman_interval(losses, errors, layers)
    return f"{fixed(spearman(losses, errors))} ({fixed(low)} to {fixed(high)})"


def _ratios(rows: Sequence[RankRow], kind: str) -> Iterator[tuple[str, float, float, float | None]]:
    """Name, loss, error and attended error of each layer of a kind in each row, over those by rounding."""
    for row in rows:
        base = row_of(rows, row.scheme, "rtn")
        if base is None or row.method == "rtn":
            continue
        usual = {layer.layer: layer for layer in base.layers}
        for layer in row.layers:
            if layer.kind == kind and layer.layer in usual:
                before = usual[layer.layer]
                there = layer.attended is not None and before.attended is not None
                attended = (layer.attended or 0) / (before.attended or 1) if there else None
                yield layer.layer, layer.loss / before.loss, layer.error / before.error, attended


def of_first(rows: Sequence[RankRow], scheme: str, method: str, calibration: str = LONG) -> str:
    """ "96 %": of what the value layers by ``method`` lose more than by rounding the share that is gone with
    the first token exact."""
    row, base = row_of(rows, scheme, method, calibration), row_of(rows, scheme, "rtn")
    if row is None or base is None:
        return f"({NOT_RECORDED})"
    more = row.value_loss - base.value_loss
    left = row.value_loss_but_first - base.value_loss_but_first
    return f"{100 * (1 - left / more):.0f} %"


def values_table(rows: Sequence[RankRow], scheme: str, method: str, calibration: str = LONG) -> str:
    """The value layers of each block by ``method`` against rounding to nearest."""
    row, base = row_of(rows, scheme, method, calibration), row_of(rows, scheme, "rtn")
    lines = []
    if row is not None and base is not None:
        usual = {layer.layer: layer for layer in base.layers}
        for layer in row.layers:
            if layer.kind == VALUE:
                before = usual[layer.layer]
                lines.append(
                    [
                        str(depth_of(layer.layer)),
                        f"{100 * (layer.attention or 0):.0f} %",
                        *_pair(before.first, layer.first),
                        *_pair(before.error, layer.error),
                        *_pair(before.attended, layer.attended),
                        f"× {layer.loss / before.loss:.2f}",
                    ]
                )
    titles = ["attention to the first token", "error of the first token", "of all tokens", "attended", "loss"]
    headers = [f"{label_of(method)} by {label_of_text(scheme)}, block", *titles]
    return markdown(headers, lines or [[NOT_RECORDED, *[""] * len(titles)]])


def _pair(before: float | None, after: float | None) -> list[str]:
    return [f"{100 * (before or 0):.0f} → {100 * (after or 0):.0f} %"]


def first_table(rows: Sequence[RankRow], scheme: str) -> str:
    """The loss with only the value layers quantized: by calibration, and with the first token's outputs as
    they were."""
    lines = []
    for method in METHODS:
        for calibration in ("",) if method in NO_INPUTS else (SHORT, BY_ATTENTION, LONG):
            row = row_of(rows, scheme, method, calibration)
            cells = [NOT_RECORDED, ""]
            if row is not None:
                cells = [f"{row.value_loss:.4f}", f"{row.value_loss_but_first:.4f}"]
            lines.append([label_of(method), _calibration(rows, calibration), *cells])
    titles = ["calibrated on", "loss", "with the first token's values exact"]
    return markdown([f"{label_of_text(scheme)} in value layers", *titles], lines)


def _calibration(rows: Sequence[RankRow], calibration: str) -> str:
    if not calibration:
        return "nothing"
    words = {LONG: "tokens of passages", SHORT: "tokens", BY_ATTENTION: "tokens, weighted by attention"}
    return f"{tokens_of(rows, calibration)} {words[calibration]}"


def value_loss(
    rows: Sequence[RankRow], scheme: str, method: str, calibration: str = LONG, but_first: bool = False
) -> str:
    """The loss with the value layers by ``method``, as it stands in a sentence."""
    row = row_of(rows, scheme, method, calibration)
    if row is None:
        return f"({NOT_RECORDED})"
    return f"{row.value_loss_but_first if but_first else row.value_loss:.4f}"


def loss(rows: Sequence[RankRow], scheme: str, method: str) -> str:
    """The loss of the whole model with many tokens, as it stands in a sentence."""
    row = row_of(rows, scheme, method)
    return f"({NOT_RECORDED})" if row is None or row.loss is None else f"{row.loss:.4f}"


def attention_to_first(rows: Sequence[RankRow]) -> str:
    """ "26 to 61 %": the share of attention that goes to the first token, over the model's blocks."""
    shares = [100 * layer.attention for row in rows for layer in row.layers if layer.attention is not None]
    return f"{min(shares):.0f} to {max(shares):.0f} %" if shares else f"({NOT_RECORDED})"


def worse_values(rows: Sequence[RankRow], scheme: str, method: str, calibration: str = LONG) -> str:
    """ "4 of 6": the value layers in which the first token's error is more than that by rounding."""
    row, base = row_of(rows, scheme, method, calibration), row_of(rows, scheme, "rtn")
    if row is None or base is None:
        return f"({NOT_RECORDED})"
    usual = {layer.layer: layer.first or 0.0 for layer in base.layers if layer.kind == VALUE}
    values = [layer for layer in row.layers if layer.kind == VALUE]
    return f"{sum((one.first or 0.0) > usual[one.layer] for one in values)} of {len(values)}"
