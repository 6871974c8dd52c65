"""A launch of which nothing changes from call to call but values: the kernel is found once.

``runtime.launch`` looks the kernel up by its build and enters torch's context each time; a layer that runs
thousands of times a second does neither here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from explorer.gpu import driver
from explorer.gpu.compile import Build
from explorer.gpu.runtime import context, loaded_kernel


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
        self._libcuda = driver.library()
        with context(self._index):
            self._kernel = loaded_kernel(self._index, build, name, types)
            self._context = driver.current_context(self._libcuda)
        early = early and torch.cuda.get_device_capability(self._index) >= (9, 0)
        self._grid, self._block = (*grid, 1, 1)[:3], block
        self._shared, self._cluster, self._early = shared, cluster, early

    def start(self, values: Sequence[Any]) -> None:
        """Launch on torch's current stream with numbers, addresses, and 128 bytes for a tensor map."""
        # The call that the public torch.cuda.current_stream makes, without the Stream object around it.
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        if driver.current_context(self._libcuda) == self._context:
            self._launch(values, stream)
            return
        with context(self._index):  # a thread's first call, or another device is current
            self._launch(values, stream)

    def _launch(self, values: Sequence[Any], stream: int) -> None:
        self._kernel.launch(values, self._grid, self._block, stream, self._shared, self._cluster, self._early)
