"""The squares of layers' inputs, summed by channel: what importance files of llama.cpp hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from explorer.models.capture import Model, watch
from explorer.models.texts import AnyTexts
from explorer.progress import Progress


class SquaredInputs:
    """A watcher: ``sums`` float64 [K] of the squares of a layer's inputs, and how many ``tokens`` it saw."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None
        self.tokens = 0

    def __call__(self, inputs: Tensor) -> None:
        rows = inputs.reshape(-1, inputs.shape[-1])
        squares = rows.double().square_().sum(0).cpu()
        self.sums = squares if self.sums is None else self.sums + squares
        self.tokens += len(rows)


def squared_inputs(
    model: Model, texts: AnyTexts, modules: Sequence[str], progress: Progress | None = None
) -> dict[str, SquaredInputs]:
    """The sums of the linear layers ``modules`` over all tokens of ``texts``, of those that a text reached.

    ``progress`` counts texts. ``SourceError`` where there is no text.
    """
    found = {name: SquaredInputs() for name in modules}
    watch(model, texts, found, progress)
    return {name: one for name, one in found.items() if one.sums is not None and torch.any(one.sums > 0)}
