"""Factors of input channels, folded into earlier layers, which are found by running the network.

A factor s multiplies the columns of a layer's weight, and its inputs are divided by it: in the norm that
outputs them, or in the rows of an earlier linear layer. Names decide nothing. A run shows which norm gives a
layer its inputs and which layers ran before it; a fold is accepted if the network's output stays the same
with a random factor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from explorer.methods.factors import tied
from explorer.progress import checkpoint

SAME = 1e-4
"""The largest accepted difference of the network's outputs, relative to the largest output."""
BEFORE = 4
"""Number of earlier linear layers that are tried for a layer, the nearest first."""

Run = Callable[[nn.Module], Tensor]
"""The output of a network for a fixed input."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Place for a factor of input channels: the earlier layer that divides by it, and the layers that
    multiply.

    writer   a norm or a linear layer; its outputs are divided
    readers  all linear layers that read these outputs
    rows     int64 [K]: the output of ``writer`` behind each input channel of the readers
    offset   constant that the norm adds to its weight: 1 in Gemma, else 0
    """

    writer: str
    readers: tuple[str, ...]
    rows: Tensor
    offset: float = 0.0

    def apply(self, network: nn.Module, factor: Tensor, stored: torch.dtype | None = None) -> Tensor:
        """Fold ``factor`` [K] into ``network`` in place; returns the divisor of the inputs, float32 [K].

        Channels of one row get the mean of their factors. If a norm's weight is ``stored`` in a dtype, it is
        rounded to it, and the readers are multiplied by the divisor after rounding.
        """
        writer = network.get_submodule(self.writer)
        factor = tied(factor.to(self.rows.device), self.rows)
        weight, bias = _tensor(writer, "weight"), getattr(writer, "bias", None)
        divisor = torch.ones(len(weight), device=weight.device)
        divisor[self.rows.to(weight.device)] = factor.to(weight.device)
        with torch.no_grad():
            if weight.dim() == 1:
                divisor = self._divide_norm(weight, divisor, stored)
            else:
                weight.div_(divisor[:, None])
            if isinstance(bias, Tensor):
                bias.div_(divisor)
            real = divisor[self.rows.to(weight.device)]
            for name in self.readers:
                reader = _tensor(network.get_submodule(name), "weight")
                reader.mul_(real.to(reader.device))
        return real.cpu()

    def _divide_norm(self, weight: Tensor, divisor: Tensor, stored: torch.dtype | None) -> Tensor:
        """Divide the norm's weight in place; returns the divisor [rows] after rounding."""
        before = weight + self.offset
        divided = before / divisor - self.offset
        if stored is not None:
            divided = divided.to(stored).to(weight)
        weight.copy_(divided)
        real = before / (divided + self.offset)
        return torch.where(torch.isfinite(real) & (real > 0), real, divisor)

    def parameters(self, network: nn.Module) -> tuple[str, ...]:
        """The names of the parameters that a fold changes."""
        parts = [f"{name}.weight" for name in (self.writer, *self.readers)]
        if isinstance(getattr(network.get_submodule(self.writer), "bias", None), Tensor):
            parts.append(f"{self.writer}.bias")
        return tuple(parts)


def find_folds(network: nn.Module, run: Run, layers: Collection[str]) -> tuple[list[Fold], dict[str, str]]:
    """Find the folds for the linear ``layers`` of ``network``; second, the reason for each layer that has
    none.

    Each candidate is tried with a random factor; the network is unchanged when this returns.
    """
    seen = _observe(network, run)
    expected, found, refused = run(network), list[Fold](), dict[str, str]()
    covered: set[str] = set()
    for name in layers:
        checkpoint()
        if name in covered:
            continue
        if name not in seen.inputs:
            refused[name] = "no text reached it"
            continue
        candidates = list(_candidates(network, seen, name))
        fold = next((one for one in candidates if _unchanged(network, run, expected, one)), None)
        if fold is None:
            refused[name] = _why(seen, name, candidates)
        elif _unchanged(network, run, expected, fold, whole=False):
            refused[name] = "the outputs do not depend on it enough to tell whether a factor may be folded"
        else:
            found.append(fold)
            covered.update(fold.readers)
    return found, refused


@dataclass
class _Seen:
    """Record of one run: the tensors that each linear layer read, in the order of the run, and their
    writers."""

    inputs: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    writers: dict[tuple[int, int], str] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)

    def key(self, x: Tensor) -> tuple[int, int]:
        """Identify ``x`` by its memory, which is kept so that no other tensor gets it."""
        self.kept.append(x)
        return x.data_ptr(), x.numel()

    def writer(self, layer: str) -> str:
        """The module that outputs the input of ``layer``; empty if there is none, or several."""
        found = {self.writers.get(key, "") for key in self.inputs[layer]}
        return found.pop() if len(found) == 1 else ""

    def add(self, module: nn.Module, inputs: tuple[Any, ...], output: Any, *, name: str) -> None:
        """Record a run of the module ``name`` (a forward hook)."""
        if isinstance(module, nn.Linear) and inputs and isinstance(inputs[0], Tensor):
            self.inputs.setdefault(name, set()).add(self.key(inputs[0]))
        if isinstance(output, Tensor):
            self.writers[self.key(output)] = name


def _observe(network: nn.Module, run: Run) -> _Seen:
    seen = _Seen()
    hooks = [
        module.register_forward_hook(partial(seen.add, name=name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) or _is_norm(module)
    ]
    try:
        run(network)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 1


def _candidates(network: nn.Module, seen: _Seen, layer: str) -> Iterator[Fold]:
    """Folds to try for ``layer``."""
    columns = _tensor(network.get_submodule(layer), "weight").shape[1]
    if writer := seen.writer(layer):
        weight = _tensor(network.get_submodule(writer), "weight")
        if len(weight) == columns:
            rows, readers = torch.arange(columns), tuple(n for n in seen.inputs if seen.writer(n) == writer)
            for offset in (0.0, 1.0) if weight.dim() == 1 else (0.0,):
                yield Fold(writer, readers, rows, offset)
        return
    order = list(seen.inputs)
    for writer in order[: order.index(layer)][: -BEFORE - 1 : -1]:
        outputs = len(_tensor(network.get_submodule(writer), "weight"))
        for rows in _rows(outputs, columns, _head_width(network)):
            yield Fold(writer, (layer,), rows)


def _rows(outputs: int, columns: int, head: int) -> Iterator[Tensor]:
    """Ways in which ``columns`` inputs can come from the ``outputs`` rows of an earlier layer.

    Each input from its own row; from the last rows of a layer that joins query, key and value, or gate and
    up; and from heads that several query heads read.
    """
    if outputs >= columns:
        yield torch.arange(columns) + outputs - columns
    heads = columns // head if head and columns % head == 0 else 0
    shared = {outputs // head, (outputs - columns) // (2 * head)} if heads else set()
    for count in sorted(shared):
        if 0 < count < heads and heads % count == 0:
            first = outputs - count * head
            block = torch.arange(first, outputs).view(count, 1, head)
            yield block.expand(count, heads // count, head).reshape(-1)


def _head_width(network: nn.Module) -> int:
    """Channels of an attention head by the configuration; 0 if unknown."""
    config = getattr(network, "config", None)
    text = config.get_text_config() if config is not None else None
    if width := getattr(text, "head_dim", None):
        return int(width)
    heads, hidden = (getattr(text, name, None) for name in ("num_attention_heads", "hidden_size"))
    return hidden // heads if isinstance(heads, int) and isinstance(hidden, int) else 0


def _unchanged(network: nn.Module, run: Run, expected: Tensor, fold: Fold, whole: bool = True) -> bool:
    """True if the network's output stays ``expected`` with a random factor from 1/2 to 2 folded. Unless
    ``whole``, the readers are left alone, which changes the output if the fold matters."""
    draw = torch.Generator().manual_seed(len(fold.rows))
    factor = (torch.rand(len(fold.rows), generator=draw) * 2 - 1).exp2()
    tried = fold if whole else replace(fold, readers=())
    with _kept(network, tried):
        tried.apply(network, factor)
        got = run(network)
    difference = (got - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    return bool(difference <= SAME)  # False for NaN


@contextmanager
def _kept(network: nn.Module, fold: Fold) -> Iterator[None]:
    """Restore the parameters of ``fold`` on leaving."""
    changed = [network.get_parameter(name) for name in fold.parameters(network)]
    before = [parameter.detach().clone() for parameter in changed]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, values in zip(changed, before, strict=True):
                parameter.copy_(values)


def _why(seen: _Seen, layer: str, candidates: list[Fold]) -> str:
    """The reason why no candidate was accepted, in words."""
    if writer := seen.writer(layer):
        return f"{writer} gives its inputs, and what else reads those would change"
    tried = ", ".join(dict.fromkeys(fold.writer for fold in candidates))
    return f"no norm gives its inputs, and no layer before scales them{f' (tried: {tried})' if tried else ''}"


def _tensor(module: nn.Module, name: str) -> Tensor:
    found = getattr(module, name)
    assert isinstance(found, Tensor)
    return found


def run_of(inputs: Mapping[str, Any]) -> Run:
    """Make a run of a network on ``inputs``, by the names of its arguments."""

    def run(network: nn.Module) -> Tensor:
        with torch.no_grad():
            output = network(**inputs)
        first = next(iter(output.values() if isinstance(output, Mapping) else output))
        return torch.as_tensor(first).float()

    return run
