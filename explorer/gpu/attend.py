"""The launchers of attend.cu and attend_step.cu: attention of one token per text over a cache with fixed
capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from explorer.gpu.compile import Build
from explorer.gpu.ready import Ready
from explorer.gpu.runtime import launch, multiprocessors
from explorer.gpu.zero_words import zero_words

SIZES, MOST_TOGETHER, KEYS_AT_ONCE, THREADS = (64, 128), 4, 32, 128
"""Supported sizes of a head; largest number of query heads that share a thread block's keys; keys that it
reads at once; threads of the block."""


def attend_build(size: int, together: int) -> Build:
    """The build of attend.cu for heads of ``size`` elements, ``together`` of which share keys."""
    return Build("attend.cu", (("HEAD", str(size)), ("GROUP", str(together))))


def attend_builds(hopper: bool = False) -> list[Build]:
    """All builds that a call may choose; ``hopper``: those of a step too."""
    every = [attend_build(size, together) for size in SIZES for together in range(1, MOST_TOGETHER + 1)]
    return every + [Build("attend_step.cu", build.macros) for build in every if hopper]


def together_of(heads: int, groups: int) -> int:
    """The number of query heads that share a thread block's keys: all of a group of ``heads`` over
    ``groups``, at most ``MOST_TOGETHER``; 0 if the heads cannot be divided so."""
    if heads % groups:
        return 0
    each = heads // groups
    return next((n for n in (4, 3, 2, 1) if n <= each and each % n == 0), 0)


def attend(q: Tensor, keys: Tensor, values: Tensor, before: Tensor, scale: float) -> Tensor:
    """Compute softmax(``scale`` · q · keysᵀ) · values over the first ``before`` + 1 keys, in bfloat16.

    q [texts, heads, size]; keys and values [texts, groups, room, size], contiguous; ``before`` int64 [] on
    the device: the number of earlier tokens. Sums are float32, in a fixed order. ``ValueError`` for other
    shapes and types.
    """
    texts, heads, size = q.shape
    groups, room = keys.shape[1], keys.shape[2]
    together = together_of(heads, groups)
    fits = keys.shape == values.shape == (texts, groups, room, size) and before.dtype == torch.int64
    if (
        not fits
        or not together
        or size not in SIZES
        or {q.dtype, keys.dtype, values.dtype} != {torch.bfloat16}
    ):
        raise ValueError(
            f"expected bfloat16 q [texts, heads, 64 or 128] and keys and values [texts, groups, room, size], "
            f"got {q.dtype} {list(q.shape)}, {list(keys.shape)} and {list(values.shape)}"
        )
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("keys and values are read where they lie, which has to be contiguous")
    parts, q = heads // groups // together, q.contiguous()
    units = texts * groups * parts
    splits = max(1, min(2 * multiprocessors(q.device) // units, math.ceil(room / KEYS_AT_ONCE)))
    out = torch.empty_like(q)
    partial = done = None
    if splits > 1:
        partial = torch.empty(units * splits * together * (size + 2), device=q.device)
        done = zero_words(q.device, units)
    launch(
        attend_build(size, together),
        "attend",
        q.device,
        (splits, groups * parts, texts),
        THREADS,
        "PPPPPPPiiif",
        (q, keys, values, before, partial, done, out, groups, parts, room, scale * math.log2(math.e)),
        early=True,
    )
    return out


MOST_SPLITS, STEP_THREADS = 8, 256
"""CTAs of a cluster in attend_step.cu, at most, and threads of each."""


class StepAttention:
    """attend_step.cu for one number of texts, ready to launch with addresses."""

    def __init__(
        self, texts: int, heads: int, groups: int, size: int, room: int, scale: float, device: torch.device
    ) -> None:
        together = together_of(heads, groups)
        parts = heads // groups // together
        splits = MOST_SPLITS
        while splits > 1 and splits * texts * groups * parts > 2 * multiprocessors(device):
            splits //= 2
        self._numbers = (groups, parts, room, scale * math.log2(math.e))
        self._launch = Ready(
            Build("attend_step.cu", attend_build(size, together).macros),
            "attend_step",
            device,
            "PPPPPPPPPiiiff",
            (splits, groups * parts, texts),
            STEP_THREADS,
            cluster=splits,
            early=True,
        )

    def start(self, addresses: Sequence[int], epsilon: float) -> None:
        """Launch with the addresses of qkv, cosines, sines, both norms (0: none), keys, values, the number of
        earlier tokens and the output, laid out as attend_step.cu says; ``epsilon`` of the norms."""
        self._launch.start((*addresses, *self._numbers, epsilon))
