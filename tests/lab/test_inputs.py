"""Rows of weights and inputs: how far they move."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from explorer.models.evaluate import SAMPLES, EmbeddingDrift
from lab import inputs
from lab.embeddings import BOTH
from lab.inputs import (
    InputsRow,
    embed_in_order,
    moves,
)
from lab.intervals import half_interval

RUN = BOTH[0]
ROW = InputsRow(RUN.scheme, RUN.method, RUN.activations, 0, 0, 8.0, 0.9, 0.80, (0.90, 0.92, 0.94, 0.96))
OTHER = EmbeddingDrift(
    RUN.scheme, RUN.method, RUN.activations, cosine=0.90, least_cosine=0.8, rank=0.9, neighbours=0.71,
    bits=8.0, megabytes=1.0, seconds=1.0,
)  # fmt: skip


def test_the_interval_is_that_of_independent_groups() -> None:
    """t · s / √n: s² of .90, .92, .94, .96 is .002 / 3, and t of 3 degrees of freedom is 3.18245 (tables)."""
    assert half_interval(ROW.groups) == pytest.approx(3.18245 * (0.002 / 3) ** 0.5 / 2, rel=1e-5)
    assert half_interval((0.5, 0.5, 0.5)) == 0


def test_an_order_changes_batches_not_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text keeps its row; batches see them in another order, each seed in one of its own."""
    seen: list[Sequence[str]] = []

    def embed(model: object, texts: Sequence[str]) -> Tensor:
        seen.append(tuple(texts))
        return torch.tensor([[float(text)] for text in texts])

    monkeypatch.setattr(inputs, "embed", embed)
    texts = [str(i) for i in range(50)]
    for order in range(SAMPLES):
        assert embed_in_order(None, texts, order).flatten().tolist() == list(range(50))
    assert seen[0] == tuple(texts) and len(set(seen)) == SAMPLES


def test_moves_are_the_largest_differences() -> None:
    """Between machines only runs of the same order and sample are compared, between runs all of one row."""
    later = dataclasses.replace(ROW, order=1, neighbours=0.83, groups=(0.99,) * 4)
    moved = moves([ROW, later], [OTHER])
    assert moved is not None
    assert moved.cpu_cosine == pytest.approx(0.03) and moved.cpu_points == pytest.approx(9)
    assert moved.runs_cosine == pytest.approx(0.06) and moved.runs_points == pytest.approx(3)
    assert moves([], [OTHER]) is None and moves([ROW], []) is None
