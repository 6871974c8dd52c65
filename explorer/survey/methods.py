"""Predict the share of a layer's rounding loss that remains with a method, from the layer alone.

Fisher's diagonal cannot see it: a method such as GPTQ makes the errors of a row's weights cancel over the
layer's inputs, an effect of products of two weights. Here the Fisher information of each row o of the weight
is a factor of the row times one matrix of the inputs (J. Martens and R. Grosse, "Optimizing Neural Networks
with Kronecker-factored Approximate Curvature", arXiv 1503.05671). Every token x counts by the gradient ∂ of
the layer's outputs:

    k(ΔW) = ½ Σ_o s_o ΔW_o H ΔW_oᵀ,   H = E[‖∂‖² x xᵀ],   s_o = E[∂_o²] / E[‖∂‖²]

The share that remains is k of the method's error over k of rounding, on tokens that the method has not seen.
Without the weight ‖∂‖², inputs of great magnitude with little effect on the loss, such as separators, would
promise more than methods achieve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from explorer.cached import cached_property
from explorer.core.quantize import quantize
from explorer.methods import RTN, apply, label_of, names_in
from explorer.methods.gptq import same_inputs
from explorer.progress import checkpoint
from explorer.schemes import Scheme

TOKENS, FEW_TOKENS = 4096, 512
"""Rows of each layer's inputs for methods: the most, and the least, which is used if ``ROOM`` holds no
more."""
ROOM = 1 << 31
"""Bytes for the inputs of all layers that methods see at once."""
HELD_OUT = 1024
"""Number of rows of other tokens that a share is taken over: at least this many and fewer than twice as many,
if the texts have them."""
ROWS = 128
"""Number of rows of each weight that a share is taken over."""
FEWEST = 16
"""Fewest rows of other tokens from which a share is computed."""


def check_method(name: str) -> str:
    """Return the canonical name of a method whose result is a layer's codes alone; empty for round to
    nearest.

    ``ValueError`` for other methods, and for unknown names.
    """
    rows = names_in(name.strip().lower())
    label = label_of(name.strip().lower())
    for row in rows:
        if row.factor is not None:
            raise ValueError(
                f"{label} folds a factor into the layer before, which other layers read too, so that it is "
                f"not chosen for single layers: `explorer recipe --method {name.strip()}` takes it for all"
            )
        if row.transform is not None or row.residue is not None:
            raise ValueError(
                f"{label} stores more than the codes of a layer; a survey measures methods that choose codes "
                f"alone, such as {label_of('gptq')}"
            )
    found = "+".join(row.name for row in rows)
    return "" if found == RTN.name else found


@dataclass(frozen=True, eq=False)
class MethodEvidence:
    """Inputs of a layer [N, K] for methods, and the data to weigh methods' errors with; on the CPU, unless
    moved.

    inputs    float32 [tokens, K], of the first calibration texts, as ``assemble`` gives them to methods
    held_out  float32 [others, K], of later tokens
    tokens    float32 [others]: ‖∂‖², the squared gradient of the layer's outputs, of each of these
    outputs   float32 [N]: Σ ∂_o² of each output over these
    """

    inputs: Tensor
    held_out: Tensor
    tokens: Tensor
    outputs: Tensor

    def on(self, device: torch.device) -> MethodEvidence:
        """Copy to ``device``, for one layer's schemes; data that ``loss`` caches is freed with the copy."""
        inputs, held_out, tokens, outputs = (
            part.to(device) for part in (self.inputs, self.held_out, self.tokens, self.outputs)
        )
        return replace(self, inputs=inputs, held_out=held_out, tokens=tokens, outputs=outputs)

    @cached_property
    def _weighed(self) -> Tensor:
        """Held-out rows, each times its gradient's norm: float32 [K, others]."""
        return (self.held_out * self.tokens.sqrt()[:, None]).t()

    def loss(self, error: Tensor, rows: Tensor | None = None) -> float:
        """Compute k (see this module) of ``error`` [N, K], on the evidence's device. With ``rows``, ``error``
        has only these rows."""
        of_outputs = (error.float() @ self._weighed).square().sum(1, dtype=torch.float64)
        shares = self.outputs.double() / self.outputs.sum(dtype=torch.float64)
        return float(0.5 * ((shares if rows is None else shares[rows]) @ of_outputs) / len(self.held_out))

    @property
    def known(self) -> bool:
        """True if there are enough tokens to predict a share."""
        return len(self.held_out) >= FEWEST and bool(self.tokens.any())


class HeldOutRows:
    """Forward hook of one linear layer that gathers ``MethodEvidence``.

    It keeps every ``stride``-th row after the first ``skipped``, and the rows' gradients from the backward
    passes that follow.
    """

    def __init__(self, skipped: int, stride: int) -> None:
        self.skipped, self.stride, self.seen = skipped, stride, 0
        self.inputs: list[Tensor] = []
        self.tokens: list[Tensor] = []
        self.outputs: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        rows = inputs[0].detach().flatten(0, -2)
        numbers = torch.arange(self.seen, self.seen + len(rows)) - self.skipped
        self.seen += len(rows)
        kept = ((numbers >= 0) & (numbers % self.stride == 0)).nonzero()[:, 0].to(rows.device)
        if not len(kept) or not output.requires_grad:
            return
        of_tokens = torch.zeros(len(kept))
        self.inputs.append(rows[kept].float().cpu())
        self.tokens.append(of_tokens)

        def count(gradient: Tensor) -> None:
            squares = gradient.detach().flatten(0, -2)[kept].float().square()
            of_tokens.add_(squares.sum(1).cpu())
            of_outputs = squares.sum(0).cpu()
            self.outputs = of_outputs if self.outputs is None else self.outputs + of_outputs

        output.register_hook(count)

    def evidence(self, inputs: Tensor) -> MethodEvidence | None:
        """Return the gathered rows, with the ``inputs`` for methods; None if they are too few."""
        if self.outputs is None:
            return None
        found = MethodEvidence(inputs, torch.cat(self.inputs), torch.cat(self.tokens), self.outputs)
        return found if found.known else None


def widths_of(network: nn.Module, modules: Iterable[str]) -> list[int]:
    """Return K of each of the linear layers ``modules``."""
    return [network.get_parameter(f"{module}.weight").shape[1] for module in modules]


def tokens_for(widths: Sequence[int]) -> int:
    """Number of rows of inputs to keep for methods, if layers of these ``widths`` K are all held at once."""
    return max(FEW_TOKENS, min(TOKENS, ROOM // (4 * max(1, sum(widths)))))


def rows_of(tokens: int, most: int) -> tuple[int, int]:
    """Split calibration tokens: the number for methods, at most ``most``, and the stride of the others."""
    seen = min(most, tokens // 2)
    return seen, max(1, (tokens - seen) // HELD_OUT)


def bytes_of_rows(widths: Sequence[int]) -> int:
    """Largest size in bytes of the inputs that are kept of layers of these ``widths`` K."""
    return 4 * sum(widths) * (tokens_for(widths) + 2 * HELD_OUT)


def shares_of(
    weight: Tensor, schemes: Mapping[str, Scheme], evidence: MethodEvidence, methods: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return method -> scheme -> share of the rounding loss that remains: k of the method's codes over k of
    rounding, for a weight [N, K].

    Both are taken over ``ROWS`` rows, quantized separately unless blocks span several rows. A method lacks
    the schemes that it does not support. If rounding costs nothing, the share is 1. GPTQ's damping is chosen
    once for all schemes (``same_inputs``).
    """
    here = evidence.on(weight.device)
    found: dict[str, dict[str, float]] = {method: {} for method in methods}
    with same_inputs():
        for text, scheme in schemes.items():
            rows = _rows_for(scheme, weight)
            part = weight[rows].float()
            rounded = here.loss(part - quantize(part, scheme).dequantize(), rows)
            for method in methods:
                checkpoint()
                try:
                    codes = apply(method, part, scheme, here.inputs).q
                except ValueError:  # the method does not serve the scheme: it is rounded
                    continue
                left = here.loss(part - codes.dequantize(), rows)
                share = left / rounded if rounded else 1.0
                if math.isfinite(share):
                    found[method][text] = share
    return found


def _rows_for(scheme: Scheme, weight: Tensor) -> Tensor:
    """int64: evenly spread rows of ``weight`` that stand for all; all rows if blocks span several."""
    count = min(ROWS, len(weight)) if scheme.block[0] == 1 else len(weight)
    return torch.linspace(0, len(weight) - 1, count, device=weight.device).round().long()
