"""Variation of the rows of weights and inputs in docs/which-format.md under arbitrary conditions.

Scales of inputs are found as a model runs, so a row depends on more than weights: a scale of the whole tensor
is that of a batch, and a value beside a tie falls to the other code where another CPU adds in another order.
Each row of ``lab.embeddings.BOTH`` is run ``SAMPLES`` times, with the sentences in another order and, where
the method sees inputs, with another sample of calibration texts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from explorer.core.backend import work_device
from explorer.methods import label_of
from explorer.models.capture import Model
from explorer.models.evaluate import (
    SAMPLES,
    EmbeddingDrift,
    OriginalModel,
    embed,
    embedding_scores,
    needs_inputs,
    quantized_network,
    sentences,
)
from explorer.recordings.files import NOT_RECORDED, Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import SCHEMES
from explorer.schemes.scheme import label_of_text
from lab.embeddings import BOTH, PACKAGES, TOKENS, EmbeddingRun
from lab.intervals import half_interval, paired
from lab.tables import by_embedding_run, markdown, signed, with_interval

NAME = "inputs"
GROUP = 4
"""Sentences in a row that speak of one subject; groups are independent of each other, sentences are not."""


@dataclass(frozen=True)
class InputsRow:
    """One run of a model with quantized weights and inputs.

    ``order``: seed of the order of sentences in batches; 0 is their own. ``sample``: which of
    ``calibration_texts`` the method saw. ``bits`` of each weight; ``rank`` and ``neighbours`` as in
    ``EmbeddingDrift``; ``groups``: the mean cosine of each group of ``GROUP`` sentences with the original's.
    """

    scheme: str
    method: str
    activations: str
    order: int
    sample: int
    bits: float
    rank: float
    neighbours: float
    groups: tuple[float, ...]

    @property
    def cosine(self) -> float:
        """The mean cosine of all sentences."""
        return statistics.fmean(self.groups)

    @property
    def run(self) -> EmbeddingRun:
        """What was run, of sample 0."""
        return EmbeddingRun(self.scheme, self.method, self.activations)


def recorded_inputs() -> Recording[InputsRow]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, InputsRow)


def record_inputs(model: Model) -> Path:
    """Run ``run_inputs`` in float32 and write ``assets/measurements/inputs.json``."""
    return record(NAME, Recording(this_machine(work_device(), PACKAGES), tuple(run_inputs(model))))


def run_inputs(
    model: Model, runs: Sequence[EmbeddingRun] = BOTH, samples: int = SAMPLES, tokens: int = TOKENS
) -> Iterator[InputsRow]:
    """Each of ``runs`` so many times: ``order`` and, where the method needs inputs, ``sample`` count up."""
    originals = [OriginalModel(model, tokens=tokens, sample=sample) for sample in range(samples)]
    before = originals[0].embeddings
    for run in runs:
        for order in range(samples):
            original = originals[order if needs_inputs(run.method) else 0]
            network, bits, _ = quantized_network(
                original, SCHEMES[run.scheme], run.method, SCHEMES[run.activations]
            )
            after = embed_in_order(replace(model, network=network), sentences(), order)
            scores = embedding_scores(before, after)
            yield InputsRow(
                scheme=run.scheme,
                method=run.method,
                activations=run.activations,
                order=order,
                sample=original.sample,
                bits=bits,
                rank=scores["rank"],
                neighbours=scores["neighbours"],
                groups=tuple((before * after).sum(1).unflatten(0, (-1, GROUP)).mean(1).tolist()),
            )


def embed_in_order(model: Model, texts: Sequence[str], order: int) -> Tensor:
    """float32 [texts, width] as ``embed`` gives them, run in a random order of seed ``order``, in their own
    for 0."""
    if order == 0:
        return embed(model, texts)
    chosen = torch.randperm(len(texts), generator=torch.Generator().manual_seed(order))
    shuffled = embed(model, [texts[i] for i in chosen.tolist()])
    return torch.empty_like(shuffled).index_copy_(0, chosen, shuffled)


def inputs_table(rows: Sequence[InputsRow], elsewhere: Sequence[EmbeddingDrift]) -> str:
    """Weights and inputs: means of the runs, the interval over sentences, and the least and the most of the
    runs; beside them what ``elsewhere``, another machine, gave."""
    others = by_embedding_run(elsewhere)
    lines = []
    for run in BOTH:
        of = [row for row in rows if row.run == run]
        other = others.get(run)
        there = ["", ""]
        if other is not None:
            there = [f"{other.cosine:.4f}", f"{100 * other.neighbours:.1f} %"]
        lines.append([_label(run), *(_cells(of) if of else [NOT_RECORDED, "", "", ""]), *there])
    titles = ["bits", "cosine ± 95 % interval", "rank", "neighbour ± 95 % interval"]
    titles += ["other CPU: cosine", "neighbour"]
    return markdown(["weights × inputs, all layers", *titles], lines)


def _label(run: EmbeddingRun) -> str:
    method = "" if run.method == "rtn" else f", with {label_of(run.method)}"
    return f"{label_of_text(run.scheme)} × {label_of_text(run.activations)}{method}"


def _cells(rows: Sequence[InputsRow]) -> list[str]:
    cosines = [row.cosine for row in rows]
    neighbours = [row.neighbours for row in rows]
    half = half_interval(_of_groups(rows))
    return [
        f"{rows[0].bits:.2f}",
        f"{statistics.fmean(cosines):.4f} ± {max(half, 0.0001):.4f} {_spread(cosines, 4)}",
        f"{statistics.fmean(row.rank for row in rows):.4f} {_spread([row.rank for row in rows], 4)}",
        f"{with_interval(statistics.fmean(neighbours))} {_spread([100 * n for n in neighbours], 1)}",
    ]


def _of_groups(rows: Sequence[InputsRow]) -> list[float]:
    """The cosine of each group, as a mean over runs."""
    return [statistics.fmean(group) for group in zip(*(row.groups for row in rows), strict=True)]


def differences_table(rows: Sequence[InputsRow]) -> str:
    """Differences between rows, group by group of sentences: each method against rounding with the same
    schemes, and each way of rounding against the one before it in ``BOTH``."""
    by_run, lines = rows_by_run(rows), []
    plain = [run for run in BOTH if run.method == "rtn"]
    pairs = [(plain[i], run) for i, run in enumerate(plain[1:])]
    for run in BOTH:
        usual = EmbeddingRun(run.scheme, "rtn", run.activations)
        if run != usual:
            pairs.append((usual, run))
    for before, after in pairs:
        if before in by_run and after in by_run:
            mean, half = paired(*(_of_groups(by_run[run]) for run in (before, after)))
            lines.append([_label(after), _label(before), f"{signed(mean)} ± {max(half, 0.0001):.4f}"])
    titles = ["against", "cosine more, ± 95 % interval of the difference"]
    return markdown(["weights × inputs", *titles], lines or [[NOT_RECORDED, "", ""]])


def _spread(values: Sequence[float], digits: int) -> str:
    """ "(least to most)"."""
    return f"({min(values):.{digits}f} to {max(values):.{digits}f})"


@dataclass(frozen=True)
class Moves:
    """The largest differences over the rows of the table: of cosines and of the shares of neighbours.

    ``cpu``: between two CPUs, with the same order of sentences and sample; ``runs``: between two runs on one
    CPU. Shares in points of a hundred."""

    cpu_cosine: float
    cpu_points: float
    runs_cosine: float
    runs_points: float


def moves(rows: Sequence[InputsRow], elsewhere: Sequence[EmbeddingDrift]) -> Moves | None:
    """None where nothing was recorded."""
    others = by_embedding_run(elsewhere)
    pairs = [(row, others[row.run]) for row in rows if row.order == row.sample == 0 and row.run in others]
    if not pairs:
        return None
    by_run = rows_by_run(rows)
    return Moves(
        max(abs(row.cosine - other.cosine) for row, other in pairs),
        100 * max(abs(row.neighbours - other.neighbours) for row, other in pairs),
        max(_extent([row.cosine for row in of]) for of in by_run.values()),
        100 * max(_extent([row.neighbours for row in of]) for of in by_run.values()),
    )


def rows_by_run(rows: Sequence[InputsRow]) -> Mapping[EmbeddingRun, list[InputsRow]]:
    """The rows of each run, in the order they were recorded."""
    found: dict[EmbeddingRun, list[InputsRow]] = {}
    for row in rows:
        found.setdefault(row.run, []).append(row)
    return found


def _extent(values: Sequence[float]) -> float:
    return max(values) - min(values)
