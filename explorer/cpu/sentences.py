"""Sentences on the speed of low bits on a CPU: each kernel against torch's float32, timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from explorer import words
from explorer.cpu.products import CPU_PRODUCTS
from explorer.recordings.gemm import GemmTiming

FEW_TOKENS = 8
"""Number of tokens up to which a product takes as long as reading W."""
BITNET = (2.37, 6.17)
"""Speedups over float16 on x86 CPUs that bitnet.cpp claims for whole models with ternary weights
(github.com/microsoft/BitNet, README; arXiv 2410.16144)."""
TERNARY, LLAMA = "ternary_weights", "llama.cpp"


def sentences(timings: Sequence[GemmTiming], of: str = "this CPU") -> list[str]:
    """Compare 4 bits, 2 bits and ternary weights with float32 at one N and K, for the fewest and the most
    tokens timed; products that were not timed are left out."""
    rows = [t for t in timings if t.on_cpu and t.gemm in CPU_PRODUCTS and t.speedup]
    counts = sorted({t.shape[0] for t in rows})
    said = []
    for m in dict.fromkeys((counts[:1] + counts[-1:]) if counts else []):
        here = [t for t in rows if t.shape[0] == m]
        said += _at(here, _tokens(m), of)
    return said


def _at(here: Sequence[GemmTiming], tokens: str, of: str) -> list[str]:
    narrow = [
        (name, best)
        for name, best in (
            ("4 bits", _best(here, lambda t: _bits(t) == 4)),
            ("2 bits", _best(here, lambda t: _bits(t) == 2 and t.gemm != TERNARY)),
            ("ternary weights", _best(here, lambda t: t.gemm == TERNARY)),
            ("INT8", _best(here, lambda t: _bits(t) == 8)),
        )
        if best is not None
    ]
    if not narrow:
        return []
    name, first = narrow[0]
    assert first.baseline_graph is not None
    share = 100 * first.seconds / first.baseline_graph.median_s
    said = (
        f"{tokens}, {name} by {library(first)} {'takes' if name == 'INT8' else 'take'} {share:.0f} % of "
        f"float32's time on {of} ({words.duration(first.seconds)} against "
        f"{words.duration(first.baseline_graph.median_s)}, N = {first.shape[1]:,}, K = {first.shape[2]:,})."
    )
    others = [f"{name} by {library(t)} {words.times(t.speedup or 0)}" for name, t in narrow[1:]]
    return [said, *([f"Times as fast as float32: {', '.join(others)}."] if others else [])]


def against_float16(timings: Sequence[GemmTiming]) -> float | None:
    """Speed of llama.cpp's ternary weights at one token relative to its float16, each by the float32 timed in
    turns with it: the comparison that bitnet.cpp publishes. None if either was not timed."""
    here = [t for t in timings if t.on_cpu and t.shape[0] == 1 and t.variant.startswith(LLAMA)]
    ternary, half = _best(here, lambda t: t.gemm == TERNARY), _best(here, lambda t: t.gemm == "fp16")
    gains = [timing.speedup for timing in (ternary, half) if timing and timing.speedup]
    return gains[0] / gains[1] if len(gains) == 2 else None


def library(timing: GemmTiming) -> str:
    """The library of a kernel, without its settings."""
    return timing.variant.partition(",")[0]


def _best(rows: Sequence[GemmTiming], keep: Callable[[GemmTiming], bool]) -> GemmTiming | None:
    return min(filter(keep, rows), key=lambda t: t.seconds, default=None)


def _bits(timing: GemmTiming) -> int:
    return CPU_PRODUCTS[timing.gemm].w.format.bits


def _tokens(m: int) -> str:
    return "At one token" if m == 1 else f"With {m} tokens"
