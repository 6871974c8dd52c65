"""Zeroed words of device memory for kernels' flags and counters, without a launch that fills them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from explorer.gpu.runtime import is_capturing

AT_ONCE = 1 << 20
"""Words that one launch fills with zeros."""

CUT_AT_ONCE = 256
"""Words that are cut from the memory together."""

_LOCK = threading.Lock()
_LEFT: dict[int, tuple[Tensor, int]] = {}
"""Words of each device, and the number given away."""
_CAPTURED: list[Tensor] = []
"""Words in use by graphs, which do not keep them alive themselves."""


def zero_words(device: torch.device, count: int) -> Tensor:
    """Return int32 [count], zeros that no other caller has received.

    In a graph, each replay finds them as the last one left them. If too few were left at capture, the graph
    fills them itself.
    """
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


_WORDS: dict[torch.device, list[Tensor]] = {}
"""Single words of each device that are still to be given away."""


def zero_word(device: torch.device) -> Tensor:
    """Return int32 [1], a zero as by ``zero_words``, outside a graph: words are cut from the memory many at a
    time, since to cut one takes half as long as a launch."""
    words = _WORDS.setdefault(device, [])
    while True:
        try:
            return words.pop()
        except IndexError:
            words += zero_words(device, 4 * CUT_AT_ONCE).view(-1, 4)[:, :1].unbind()


def reserve(device: torch.device, count: int = AT_ONCE // 2) -> None:
    """Ensure that so many words are left: before a capture, so that the graph fills none itself."""
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
