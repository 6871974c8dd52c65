"""Words of device memory that are zero: kernels' flags and counters, without a launch that fills them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from explorer.gpu.runtime import is_capturing

AT_ONCE = 1 << 20
"""Words that are filled with zeros by one launch."""

_LOCK = threading.Lock()
_LEFT: dict[int, tuple[Tensor, int]] = {}
"""Words of each device, and how many of them are given away."""
_CAPTURED: list[Tensor] = []
"""What graphs use, which do not keep it alive themselves."""


def zero_words(device: torch.device, count: int) -> Tensor:
    """int32 [count], zeros that were given to nobody before. A graph finds them at each replay as the last
    one left them, or fills them itself where too few were left when it was captured."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    index, taken = device.index or 0, -(-count // 4) * 4  # 16 bytes, as doubles and vectors need
    capturing = is_capturing(device)
    with _LOCK:
        all_words, at = _LEFT.get(index, (None, 0))
        if all_words is None or at + taken > all_words.numel():
            if capturing:  # filled by the graph
                return torch.zeros(count, dtype=torch.int32, device=device)
            all_words, at = _filled(device, max(taken, AT_ONCE)), 0
        words, _LEFT[index] = all_words.narrow(0, at, count), (all_words, at + taken)
        if capturing:
            _CAPTURED.append(words)
    return words


def reserve(device: torch.device, count: int = AT_ONCE // 2) -> None:
    """See to it that so many words are left: before a capture, so that the graph fills none itself."""
    if device.type != "cuda":
        return
    index = device.index or 0
    with _LOCK:
        all_words, at = _LEFT.get(index, (None, 0))
        if all_words is None or at + count > all_words.numel():
            _LEFT[index] = (_filled(device, max(count, AT_ONCE)), 0)


def _filled(device: torch.device, count: int) -> Tensor:
    words = torch.zeros(count, dtype=torch.int32, device=device)
    torch.cuda.current_stream(device).synchronize()  # other streams use them too
    return words
