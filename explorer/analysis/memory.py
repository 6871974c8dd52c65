"""Memory of a model's weights under a scheme, scales included, and the GPUs with enough memory.

The cache of keys and values (``explorer.analysis.cache``), activations and the runtime are not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from explorer.analysis.cache import CacheShape
from explorer.schemes import Scheme


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer of the Llama family by its published configuration."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    window: int | None = None
    """Tokens of the sliding window of all layers, if there is one."""

    @property
    def cache(self) -> CacheShape:
        """Shape of the keys and values of its layers."""
        return CacheShape.uniform(self.layers, self.kv_heads, self.hidden // self.heads, (self.window,))

    @property
    def linears(self) -> tuple[tuple[int, int, int], ...]:
        """(out, in, count) of the weight matrices of all layers: query and output, key and value, MLP."""
        head = self.hidden // self.heads
        return (
            (self.hidden, self.hidden, 2 * self.layers),
            (self.kv_heads * head, self.hidden, 2 * self.layers),
            (self.intermediate, self.hidden, 2 * self.layers),
            (self.hidden, self.intermediate, self.layers),
        )

    @property
    def linear_parameters(self) -> int:
        return sum(n * k * count for n, k, count in self.linears)

    @property
    def other_parameters(self) -> int:
        """Number of parameters outside of ``linears``: token embedding, untied output head, two norms per
        layer and the final norm."""
        return 2 * self.vocabulary * self.hidden + (2 * self.layers + 1) * self.hidden

    @property
    def parameters(self) -> int:
        return self.linear_parameters + self.other_parameters


MODELS: dict[str, ModelShape] = {
    row.name: row
    for row in (
        ModelShape("Llama-2-7B", 32, 4096, 11008, 32, 32, 32000),
        ModelShape("Llama-2-13B", 40, 5120, 13824, 40, 40, 32000),
        ModelShape("Llama-2-70B", 80, 8192, 28672, 64, 8, 32000),
        ModelShape("Mistral-7B 0.1", 32, 4096, 14336, 32, 8, 32000, 4096),
        ModelShape("Llama-3-8B", 32, 4096, 14336, 32, 8, 128256),
        ModelShape("Llama-3-70B", 80, 8192, 28672, 64, 8, 128256),
    )
}
"""Models by name. Mistral-7B is version 0.1, which has a sliding window; later versions have none."""


@dataclass(frozen=True)
class StoredModel:
    """A model by its files: its ``linears`` and ``tables``, which are embedding and head, as (out, in,
    count); bytes of the tables and of the ``rest`` as they are stored."""

    linears: tuple[tuple[int, int, int], ...]
    tables: tuple[tuple[int, int, int], ...]
    table_bytes: int
    rest: int


GPUS: dict[str, float] = {
    "T4 16 GB": 16, "L4 24 GB": 24, "RTX 4090 24 GB": 24, "RTX 5090 32 GB": 32, "L40S 48 GB": 48,
    "A100 80 GB": 80, "H100 80 GB": 80, "H200 141 GB": 141, "B200 180 GB": 180,
}  # fmt: skip
"""Memory in GB as stated by the vendors; a part of it is never free."""

TYPICAL_SHAPE = (4096, 4096)
"""Shape of every matrix if only a parameter count is given."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of weights under one scheme, and ``bits`` per parameter.

    everything    size if all parameters are quantized
    linears_only  size if embedding, head and norms stay in FP16, or as the model stores them; None if only a
                  parameter count is known
    fits          GPUs with enough memory for ``everything`` and a tenth of it left
    """

    scheme: str
    bits: float
    everything: float
    linears_only: float | None
    fits: tuple[str, ...]


def estimate(
    scheme: Scheme, model: ModelShape | StoredModel | None = None, parameters: int = 0
) -> MemoryEstimate:
    """Compute the size of a known model, or of ``parameters`` weights in 4096×4096 matrices.

    ``ValueError`` without a model and without a positive count.
    """

    def coded(matrices: Sequence[tuple[int, int, int]]) -> float:
        return sum(n * k * count * scheme.bits_per_element((n, k)).total / 8 for n, k, count in matrices)

    kept = 0
    if isinstance(model, StoredModel):
        linear, kept = coded(model.linears), model.rest
        total, linears_only = linear + coded(model.tables), linear + model.table_bytes + kept
        parameters = sum(n * k * count for n, k, count in (*model.linears, *model.tables))
        if not parameters:
            raise ValueError("the model has no matrices to quantize")
    elif model is not None:
        linear, table = coded(model.linears), (model.vocabulary, model.hidden)
        total = linear + model.other_parameters * scheme.bits_per_element(table).total / 8
        parameters, linears_only = model.parameters, linear + 2 * model.other_parameters
    elif parameters < 1:
        raise ValueError("a model has at least one parameter")
    else:
        total, linears_only = parameters * scheme.bits_per_element(TYPICAL_SHAPE).total / 8, None
    bits, total = 8 * total / parameters, total + kept
    return MemoryEstimate(scheme.label, bits, total, linears_only, gpus_that_hold(total))


def left_on(size: float, gigabytes: float) -> float | None:
    """Memory in GB that ``size`` bytes of weights leave for KV cache and activations, of nine tenths of a
    GPU's; None if they do not fit."""
    left = 0.9 * gigabytes - size / 1e9
    return left if left >= 0 else None


def sizes_that_differ(weights: Sequence[float], count: int = 3) -> list[float]:
    """List ``count`` memory sizes of ``GPUS`` in GB, from the smallest that holds any of ``weights``
    (bytes), and those of a server's GPUs, 80 and 141, if they hold any."""
    every = sorted(set(GPUS.values()))
    holding = [size for size in every if any(left_on(w, size) is not None for w in weights)]
    return sorted({*holding[:count], *(size for size in holding if size in (80, 141))})


def gpus_that_hold(size: float) -> tuple[str, ...]:
    """List the GPUs with room for ``size`` bytes and a tenth of their memory left, the smallest first."""
    return tuple(name for name, gigabytes in GPUS.items() if size <= 0.9 * gigabytes * 1e9)
