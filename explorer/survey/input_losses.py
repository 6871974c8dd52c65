"""What quantizing the inputs of one layer adds to the loss, predicted by the backward passes that also say
what its weights are worth.

With x_t the layer's input at token t, Δ_t what rounding changes of it, and g_t the gradient of an objective
(``explorer.survey.loss``) by x_t through this layer alone, the second-order loss of the change is

    L ≈ ½ E[Σ_t (g_t · Δ_t)²]

in the unit of the weights' losses. Products of two tokens are left out: their rounding errors are taken to be
independent, and a sum over a text that has them would be known far less well from as many texts. Where errors
of tokens add up, as in the mean that an embedding is, that predicts too little. Products of two channels of a
token are in: those of outliers cancel or add up.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from explorer.checkpoints.inputs import is_fixed
from explorer.models.capture import Model
from explorer.models.inputs import fixed_scale, observed_inputs, quantized_inputs
from explorer.models.texts import AnyTexts
from explorer.schemes import Scheme


class InputLosses:
    """A forward pre-hook of one linear layer that sums (g_t · Δ_t)² over the tokens of all backward passes,
    for each of ``schemes`` by their texts. ``scales``: the fixed ones, by the same; a scheme that needs one
    and has none is left out. ``again``: several backward passes follow a forward one."""

    def __init__(
        self, schemes: Mapping[str, Scheme], scales: Mapping[str, float], again: bool = False
    ) -> None:
        self.schemes = {x: one for x, one in schemes.items() if x in scales or not is_fixed(one)}
        self.scales, self.again = scales, again
        self.sums: Tensor | None = None

    def __call__(self, module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        x, *others = given
        if not torch.is_grad_enabled():
            return None
        # A tensor of its own: other layers that read the same inputs do not add to its gradient.
        own = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        seen, kept = x.detach(), list[Tensor]()

        def count(gradient: Tensor) -> None:
            errors = kept or self._errors(seen)
            if self.again:
                kept[:] = errors
            products = torch.stack([(gradient * error).sum(-1) for error in errors])
            sums = products.flatten(1).square().sum(1, dtype=torch.float64)
            self.sums = sums if self.sums is None else self.sums + sums

        own.register_hook(count)
        return own, *others

    def _errors(self, x: Tensor) -> list[Tensor]:
        """What each scheme changes of inputs [..., K]."""
        found = self.schemes.items()
        return [quantized_inputs(x, one, self.scales.get(text)) - x.float() for text, one in found]

    def losses(self, samples: int) -> dict[str, float]:
        """The loss that each scheme adds, of objectives that count for so many ``samples``; none where no
        gradient came."""
        if self.sums is None:
            return {}
        return dict(zip(self.schemes, (self.sums / (2 * samples)).tolist(), strict=True))


def input_hooks(
    model: Model, modules: Mapping[str, str], schemes: Mapping[str, Scheme], texts: AnyTexts, again: bool
) -> dict[str, InputLosses]:
    """A hook for each layer (name -> module); ``texts`` are run first where schemes have fixed scales."""
    if not schemes:
        return {}
    fixed = {text: scheme for text, scheme in schemes.items() if is_fixed(scheme)}
    observers = observed_inputs(model, modules, texts) if fixed else {}
    found = {}
    for name in modules:
        seen = observers.get(name)
        reached = seen is not None and seen.batches
        scales = {x: fixed_scale(seen, one) for x, one in fixed.items()} if seen and reached else {}
        found[name] = InputLosses(schemes, scales, again)
    return found
