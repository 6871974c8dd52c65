"""Replacement of layers of a network in place, under every name that they have there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from explorer.progress import Progress


def names_of_modules(network: nn.Module) -> list[list[str]]:
    """List the names of each module of ``network``, in its order; a module used in several places has
    several."""
    names = dict[int, list[str]]()
    for name, module in network.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    return list(names.values())


def replace_layers(
    network: nn.Module,
    names: Iterable[str],
    make: Callable[[str, Any], nn.Module],
    progress: Progress | None = None,
) -> list[str]:
    """Put the layer ``make(name, old layer)`` in the place of each layer of ``names``, one after another.

    ``make`` decides how the weight is held: restored, as codes, or with a gradient through its rounding. A
    layer with several names is made once and replaced under all of them; the result lists all names
    replaced. The new layer has the old one's training mode. The old one is freed before the next is made,
    unless something else holds it. If ``make`` raises, the layers before stay replaced. ``progress`` counts
    ``names``.
    """
    names = list(names)
    shared = {name: group for group in names_of_modules(network) for name in group}
    replaced = dict[str, None]()
    for index, name in enumerate(names):
        if name not in replaced:
            old = network.get_submodule(name)
            new = make(name, old).train(old.training)
            del old
            for known in shared[name]:
                parent, _, last = known.rpartition(".")
                setattr(network.get_submodule(parent), last, new)
            replaced |= dict.fromkeys(shared[name])
        if progress is not None:
            progress(index + 1, len(names))
    return list(replaced)
