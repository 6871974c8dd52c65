"""Launches that repeat with other values: the kernel is looked up once.

``runtime.launch`` looks the kernel up by its build each time and tests each value for a tensor. A layer or a
quantization that runs thousands of times a second skips both here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
            self._kernel.launch(
                *(values, self._grid, self._block, runtime.stream_of(self._index)),
                *(self._shared, self._cluster, self._early),
            )
        finally:
            if pushed is not None:
                pushed.pop()

    def prepared(self, values: Sequence[Any], places: Sequence[tuple[int, int]]) -> Prepared:
        """Return the launch, of no shared memory and no cluster, with ``values`` but for the addresses of a
        call: ``places`` pairs the position of each among them with its index in the call's."""
        return self._kernel.prepared(values, places, self._grid, self._block, self._early)


Prepared = Callable[[Sequence[int], int], None]
"""Launches with the addresses of a call's memory on a stream of the device whose context is current."""


def start_all(index: int, launches: Iterable[Prepared], addresses: Sequence[int]) -> None:
    """Start launches in order on torch's current stream of a device; ``KernelError`` if one is refused."""
    pushed = runtime.entered(index)
    try:
        stream = runtime.stream_of(index)
        for launch in launches:
            launch(addresses, stream)
    finally:
        if pushed is not None:
            pushed.pop()
