"""The kernel choice *auto*: the kernel of a product that was the fastest at the nearest recorded shape."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.products.advice import nearest
from explorer.products.gemms import GEMMS, Gemm
from explorer.products.shapes import TOKENS
from explorer.products.variants import Variant
from explorer.recordings.gemm import GemmTiming, Shape, newest_gemms

TUNED_ON, TUNED_CAPABILITY = "NVIDIA H200", (9, 0)
"""GPU, and its compute capability, on which ``LATEST`` and ``EARLIEST`` were found and the recording was
made."""
LATEST = {"registers": 8, "swap A/B": 512, "quantize + swap A/B": 512}
EARLIEST = {
    "swap A/B, scaled weights": 256,
    "wgmma": 64,
    "quantize + wgmma": 64,
    "widen + wgmma": 128,
    "widen, scaled weights + wgmma": 256,
    "dequantize + wgmma": 512,
}
"""Tokens up to which, and from which on, a kernel has been the fastest of a product or near it."""


def variants_for(gemm: Gemm, shape: Shape, capability: tuple[int, int], which: str) -> tuple[Variant, ...]:
    """Select kernels of a product that the chip can run.

    ``which``: ``all``, the name of one kernel, ``fastest`` (those that may be the fastest for so many
    tokens), or ``auto`` (the one of them that was the fastest at the nearest recorded shape).
    """
    variants = gemm.variants_on(capability)
    if which == "all" or not variants:
        return variants
    if which not in ("fastest", "auto"):
        return tuple(v for v in variants if v.name == which)
    likely = _likely(variants, shape[0])
    if which == "fastest" or len(likely) == 1:
        return likely
    return (_recorded_fastest(gemm, shape, likely) or likely[0],)


def tuned_elsewhere(gpu: str, capability: tuple[int, int], every: str) -> str:
    """Warn that *auto* and *fastest* choose on ``gpu`` by times of another GPU, and that ``every`` times each
    kernel; "" on the GPU that they were tuned on, and on GPUs of the same compute capability.

    An H100 and an H200 (9.0) have the same tensor cores, instructions and shared memory, and differ in the
    speed and size of their memory: the choice is taken to hold on both. A GPU of another capability has other
    tensor cores, and lacks some of the kernels.
    """
    if capability == TUNED_CAPABILITY:
        return ""
    return (
        f"choices of kernels were tuned on an {TUNED_ON}; on this {gpu or 'GPU'} another variant may be "
        f"faster: {every}"
    )


def _likely(variants: Sequence[Variant], m: int) -> tuple[Variant, ...]:
    """Select kernels that can be the fastest for M tokens; for products without a kernel for few tokens, the
    last one."""
    names = {v.name for v in variants}
    if not names & set(LATEST):
        return (variants[-1],)
    latest = dict(LATEST)
    if "swap A/B, scaled weights" not in names:
        latest["swap A/B"] = TOKENS[-1]
    likely = [v for v in variants if m <= latest.get(v.name, 0) or m >= EARLIEST.get(v.name, TOKENS[-1] + 1)]
    return tuple(likely) or (variants[-1],)


def _recorded_fastest(gemm: Gemm, shape: Shape, likely: Sequence[Variant]) -> Variant | None:
    """Find the fastest recorded kernel of a product near ``shape``; None without one.

    The nearest shape counts at which all of ``likely`` were timed, within twice or half its M. For a product
    that was not recorded there, its nearest relative decides (the same tensor cores and kernels, W of about
    as many bits).
    """
    by_name = {v.name: v for v in likely}
    relatives = [
        other
        for other in GEMMS.values()
        if (other.core, other.dynamic) == (gemm.core, gemm.dynamic)
        and by_name.keys() <= {v.name for v in other.variants}
    ]
    bits = gemm.w.format.bits
    for relative in sorted(relatives, key=lambda g: (g is not gemm, abs(g.w.format.bits - bits))):
        rows = [
            t
            for t in newest_gemms().rows
            if t.gemm == relative.name and t.variant in by_name and shape[0] / 2 <= t.shape[0] <= 2 * shape[0]
        ]
        by_shape: dict[Shape, list[GemmTiming]] = {}
        for t in rows:
            by_shape.setdefault(t.shape, []).append(t)
        whole = [s for s, here in by_shape.items() if {t.variant for t in here} == by_name.keys()]
        if (near := nearest(whole, shape)) is not None:
            return by_name[min(by_shape[near], key=lambda t: t.seconds).variant]
    return None
