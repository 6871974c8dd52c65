"""Two machines beside each other: which products are the same, and what is said of them.

If these fail, different products are compared under one name, or the slower machine is called the faster.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from explorer.bench.two_machines import compare_machines, sentences
from explorer.recordings.files import Recording
from explorer.recordings.gemm import GemmTiming, Shape, recorded_gemms
from explorer.recordings.machine import Machine
from explorer.recordings.times import TimeSpread

SHAPE = (1, 64, 64)
ROW = recorded_gemms().rows[0]


def timing(gemm: str, seconds: float, shape: Shape = SHAPE, **changes: Any) -> GemmTiming:
    graph = TimeSpread(seconds, seconds, seconds)
    return dataclasses.replace(ROW, gemm=gemm, label=gemm.upper(), shape=shape, graph=graph, **changes)


def of(chip: str, **seconds: float) -> Recording[GemmTiming]:
    """A GPU with one kernel of each product."""
    return Recording(Machine(gpu=chip), tuple(timing(name, s) for name, s in seconds.items()))


def on_cpu(**seconds: float) -> Recording[GemmTiming]:
    rows = tuple(timing(name, s, threads=2, variant="torch") for name, s in seconds.items())
    return Recording(Machine(cpu="C", threads=2), rows)


TABLE = [
    (of("A", bf16=1, int8=2), of("B", int8=6, bf16=2), ["bf16 bf16", "int8 int8"], "A 2.45 B 2 3"),
    (
        of("A", bf16=4, int8=3, w8a16=8, nf4=9),
        of("B", bf16=2, int8=6, w8a16=2, fp16=1),
        ["int8 int8", "bf16 bf16", "w8a16 w8a16"],
        "B 2 A 0.5 4",
    ),
    # A CPU's rows have other names: weights stored alike are the same product, if X is not quantized.
    (
        of("A", w4a16_group128=1, w8a16=1.5, int8=2, w4a8_int=3),
        on_cpu(w8_row=3, w4_group128=4, w4_group32=5, int8_static=6),
        ["w4a16_group128 w4_group128", "w8a16 w8_row"],
        "A 2.83 C 2 4",
    ),
    (
        on_cpu(int8_dynamic=4, int8_static=2),
        of("A", int8_dynamic=1, fake_int8=3),
        ["int8_dynamic int8_dynamic"],
        "A 4 C",
    ),
    (of("A", bf16=1), of("B", int8=1), [], ""),
    (of("A", bf16=1), of("B", bf16=1), ["bf16 bf16"], "A B"),
    # A product that the table does not have any more is compared by its name, and with a CPU's not at all.
    (of("A", gone=1), of("B", gone=2), ["gone gone"], "A 2 B"),
]
"""Two machines, the pairs, and of what is said: machines, the faster one first, and times as fast."""


@pytest.mark.parametrize(("first", "second", "pairs", "facts"), TABLE)
def test_what_both_timed_is_paired_and_said(
    first: Recording[GemmTiming], second: Recording[GemmTiming], pairs: list[str], facts: str
) -> None:
    """The median is the same whichever machine is first. What one timed alone is named."""
    two, swapped = compare_machines(first, second, SHAPE), compare_machines(second, first, SHAPE)
    assert [f"{pair.first.gemm} {pair.second.gemm}" for pair in two.pairs] == pairs
    said = sentences(two)
    found, other = (
        re.findall(r"\b[ABC]\b|[\d.]+(?=×(?!\d))", one) for one in (said[0], sentences(swapped)[0])
    )
    assert found == facts.split() and sorted(found) == sorted(other)
    assert not (two.ratio and swapped.ratio) or two.ratio * swapped.ratio == pytest.approx(1)
    alone = {t.label for one in (first, second) for t in one.rows}
    alone -= {t.label for pair in two.pairs for t in (pair.first, pair.second)}
    assert {name for name in alone if any(name in line for line in said[1:])} == alone


def test_the_fastest_kernel_of_each_counts() -> None:
    """Machines of one name are told apart."""
    one = of("A", bf16=1)
    assert compare_machines(one, one, SHAPE).names == ("A (1)", "A (2)")
    slow = [timing("bf16", 9, variant="tiled"), timing("bf16", 3, variant="wgmma")]
    two = compare_machines(Recording(Machine(gpu="A"), tuple(slow)), of("B", bf16=6), SHAPE)
    assert [(pair.first.variant, pair.ratio) for pair in two.pairs] == [("wgmma", 2.0)]


def test_a_shape_that_one_lacks_is_said_with_those_that_both_have() -> None:
    """The nearest first; nothing is modelled."""
    rows = tuple(timing("bf16", 1, shape) for shape in ((1, 64, 64), (512, 64, 64), (2, 64, 64), (4, 8, 8)))
    two = compare_machines(Recording(Machine(gpu="A"), rows), Recording(Machine(gpu="B"), rows[1:3]), SHAPE)
    lacks, both = sentences(two)
    assert "1×64×64" in lacks and lacks.endswith(" B.") and "2×64×64, 512×64×64" in both
    neither = compare_machines(of("A", bf16=1), of("B", bf16=1), (7, 7, 7))
    assert "7×7×7" in sentences(neither)[0] and "1×64×64" in sentences(neither)[1]
    other = Recording(Machine(gpu="B"), rows[3:])
    assert "×" not in sentences(compare_machines(of("A", bf16=1), other, SHAPE))[1]
