"""A launch of which nothing changes from call to call but values: the kernel is found once.

``runtime.launch`` looks the kernel up by its build each time, and asks of each value whether it is a tensor.
A layer that runs thousands of times a second does neither here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from explorer.gpu.compile import Build
from explorer.gpu.runtime import context, entered, launches_early, loaded_kernel, stream_of


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
        """As ``runtime.launch`` takes them. ``KernelError`` if the kernel cannot be compiled or loaded."""
        self._index = torch.cuda.current_device() if device.index is None else device.index
        with context(self._index):
            self._kernel = loaded_kernel(self._index, build, name, types)
        self._grid, self._block = (*grid, 1, 1)[:3], block
        self._shared, self._cluster = shared, cluster
        self._early = early and launches_early(self._index)

    def start(self, values: Sequence[Any]) -> None:
        """Launch on torch's current stream with numbers, addresses, and 128 bytes for a tensor map."""
        pushed, stream = entered(self._index), stream_of(self._index)
        try:
            self._kernel.launch(
                values, self._grid, self._block, stream, self._shared, self._cluster, self._early
            )
        finally:
            if pushed is not None:
                pushed.pop()
