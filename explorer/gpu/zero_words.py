"""Words of device memory that are zero: kernels' flags and counters, without a launch that fills them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

AT_ONCE = 65536
"""Words that are filled with zeros by one launch."""

_LOCK = threading.Lock()
_LEFT: dict[int, Tensor] = {}
_CAPTURED: list[Tensor] = []
"""What graphs use, which do not keep it alive themselves."""


def zero_words(device: torch.device, count: int) -> Tensor:
    """int32 [count], zeros that were given to nobody before. A graph finds them at each replay as the last
    one left them, or fills them itself where too few were left when it was captured."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    index, taken = device.index or 0, -(-count // 4) * 4  # 16 bytes, as doubles and vectors need
    capturing = torch.cuda.is_current_stream_capturing()
    with _LOCK:
        left = _LEFT.get(index)
        if left is None or left.numel() < taken:
            if capturing:  # filled by the graph
                return torch.zeros(count, dtype=torch.int32, device=device)
            left = torch.zeros(max(taken, AT_ONCE), dtype=torch.int32, device=device)
            torch.cuda.current_stream(device).synchronize()  # other streams use them too
        words, _LEFT[index] = left[:count], left[taken:]
        if capturing:
            _CAPTURED.append(words)
    return words
