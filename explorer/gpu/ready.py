"""Launches that repeat with other values: the kernel is looked up once.

``runtime.launch`` looks the kernel up by its build each time and tests each value for a tensor. A layer or a
quantization that runs thousands of times a second skips both here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from explorer.gpu import runtime
from explorer.gpu.compile import Build


class Ready:
    """A kernel with its grid, block and launch attributes, on one device."""

    def __init__(
        self,
        build: Build,
        name: str,
        device: torch.device,
        types: str,
        grid: Sequence[int],
        block: int,
        shared: int = 0,
        cluster: int = 1,
        early: bool = False,
    ) -> None:
        """Parameters as for ``runtime.launch``. ``KernelError`` if the kernel cannot be compiled or
        loaded."""
        self._index = torch.cuda.current_device() if device.index is None else device.index
        with runtime.context(self._index):
            self._kernel = runtime.loaded_kernel(self._index, build, name, types)
        self._grid, self._block = (*grid, 1, 1)[:3], block
        self._shared, self._cluster = shared, cluster
        self._early = early and runtime.launches_early(self._index)

    def start(self, values: Sequence[Any]) -> None:
        """Launch on torch's current stream with numbers, addresses, and 128 bytes for a tensor map."""
        pushed = runtime.entered(self._index)
        try:
            self.launch(values, runtime.stream_of(self._index))
        finally:
            if pushed is not None:
                pushed.pop()

    def launch(self, values: Sequence[Any], stream: int) -> None:
        """Launch on a stream of the device whose context is already current."""
        self._kernel.launch(values, self._grid, self._block, stream, self._shared, self._cluster, self._early)


@dataclass(frozen=True, eq=False)
class Template:
    """Launch without the addresses of a call's memory: ``places`` pairs the position of each in ``values``
    with its index among them."""

    ready: Ready
    values: list[Any]
    places: tuple[tuple[int, int], ...]


def start_all(index: int, templates: Iterable[Template], addresses: Sequence[int]) -> None:
    """Start launches in order on torch's current stream of a device; ``KernelError`` if one is refused."""
    pushed = runtime.entered(index)
    try:
        stream = runtime.stream_of(index)
        for one in templates:
            values = one.values.copy()
            for at, which in one.places:
                values[at] = addresses[which]
            one.ready.launch(values, stream)
    finally:
        if pushed is not None:
            pushed.pop()
