"""Two machines beside each other: which products are the same, and what is said of them.

If these fail, different products are compared under one name, or the slower machine is called the faster.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from explorer.bench.two_machines import compare_machines, flat_pairs, pairs_json, sentences
from explorer.figures.speed_beside import beside_figure
from explorer.recordings.files import Recording, recording_of
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


TABLE: list[tuple[Recording[GemmTiming], Recording[GemmTiming], list[tuple[str, str]], list[str]]] = [
    (
        of("A", bf16=1, int8=2),
        of("B", int8=6, bf16=2),
        [("bf16", "bf16"), ("int8", "int8")],
        ["At 1×64×64 A is 2.45× as fast as B in the median of the 2 products that both timed, from 2× "
         "for BF16 to 3× for INT8.",
         "It is the faster one in each of them."],
    ),
    (
        of("A", bf16=4, int8=3, w8a16=8, nf4=9),
        of("B", bf16=2, int8=6, w8a16=2, fp16=1),
        [("int8", "int8"), ("bf16", "bf16"), ("w8a16", "w8a16")],
        ["At 1×64×64 B is 2× as fast as A in the median of the 3 products that both timed, from 0.5× "
         "for INT8 to 4× for W8A16.",
         "The order is reversed, A is faster, in INT8 (2×).",
         "Timed on A alone: NF4.",
         "Timed on B alone: FP16."],
    ),
    # A CPU's rows have other names: weights stored alike are the same product, if X is not quantized.
    (
        of("A", w4a16_group128=1, w8a16=1.5, int8=2, w4a8_int=3),
        on_cpu(w8_row=3, w4_group128=4, w4_group32=5, int8_static=6),
        [("w4a16_group128", "w4_group128"), ("w8a16", "w8_row")],
        ["At 1×64×64 A is 2.83× as fast as C in the median of the 2 products that both timed, from 2× "
         "for W8A16 to 4× for W4A16_GROUP128.",
         "It is the faster one in each of them.",
         "Timed on A alone: INT8, W4A8_INT.",
         "Timed on C alone: W4_GROUP32, INT8_STATIC."],
    ),
    (
        on_cpu(int8_dynamic=4, int8_static=2),
        of("A", int8_dynamic=1, fake_int8=3),
        [("int8_dynamic", "int8_dynamic")],
        ["At 1×64×64 A is 4× as fast as C in the one product that both timed.",
         "Timed on C alone: INT8_STATIC.",
         "Timed on A alone: FAKE_INT8."],
    ),
    (of("A", bf16=1), of("B", int8=1), [], ["At 1×64×64 the two timed no product in common.",
                                            "Timed on A alone: BF16.", "Timed on B alone: INT8."]),
    (of("A", bf16=1), of("B", bf16=1), [("bf16", "bf16")],
     ["At 1×64×64 A takes as long as B in the one product that both timed."]),
    # A product that the table does not have any more is compared by its name, and with a CPU's not at all.
    (of("A", gone=1), of("B", gone=2), [("gone", "gone")],
     ["At 1×64×64 A is 2× as fast as B in the one product that both timed."]),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "pairs", "said"), TABLE)
def test_what_both_timed_is_paired_and_said(
    first: Recording[GemmTiming], second: Recording[GemmTiming], pairs: list[tuple[str, str]], said: list[str]
) -> None:
    two = compare_machines(first, second, SHAPE)
    assert [(pair.first.gemm, pair.second.gemm) for pair in two.pairs] == pairs
    assert sentences(two) == said
    assert [line["product"] for line in flat_pairs(two)] == [pair.label for pair in two.pairs]


def test_the_fastest_kernel_of_each_counts() -> None:
    slow = [timing("bf16", 9, variant="tiled"), timing("bf16", 3, variant="wgmma")]
    two = compare_machines(Recording(Machine(gpu="A"), tuple(slow)), of("B", bf16=6), SHAPE)
    assert [(pair.first.variant, pair.ratio) for pair in two.pairs] == [("wgmma", 2.0)]


def test_a_shape_that_one_lacks_is_said_with_those_that_both_have() -> None:
    """The nearest first; nothing is modelled."""
    rows = tuple(timing("bf16", 1, shape) for shape in ((1, 64, 64), (512, 64, 64), (2, 64, 64), (4, 8, 8)))
    two = compare_machines(Recording(Machine(gpu="A"), rows), Recording(Machine(gpu="B"), rows[1:3]), SHAPE)
    assert sentences(two) == ["1×64×64 was not timed on B.", "Both timed 2×64×64, 512×64×64."]
    neither = compare_machines(of("A", bf16=1), of("B", bf16=1), (7, 7, 7))
    assert sentences(neither) == ["7×7×7 was not timed on A nor on B.", "Both timed 1×64×64."]
    other = Recording(Machine(gpu="B"), rows[3:])
    assert sentences(compare_machines(of("A", bf16=1), other, SHAPE))[1] == "The two have no shape in common."


def test_labels_with_commas_are_told_apart_and_many_are_counted() -> None:
    first = of("A", bf16=1, **{f"p{i}, dynamic": 1 for i in range(8)})
    last = sentences(compare_machines(first, of("B", bf16=1), SHAPE))[-1]
    named = "; ".join(f"P{i}, DYNAMIC" for i in range(6))
    assert last == f"Timed on A alone: {named} and 2 more."


def test_machines_of_one_name_are_told_apart() -> None:
    one = of("A", bf16=1)
    names = [
        compare_machines(one, Recording(Machine(gpu="A", date=date), one.rows), SHAPE).names
        for date in ("2026-01-02", "")
    ]
    assert names == [("A", "A (2026-01-02)"), ("A (1)", "A (2)")]
    files = compare_machines(one, one, SHAPE, ("a.json", "b.json")).names
    assert files == ("A (a.json)", "A (b.json)")


def test_the_figure_has_both_times_of_each_product() -> None:
    """A row a product, the first machine's fastest at the top, the ratio beside the slower point."""
    first, second = TABLE[1][:2]
    two = compare_machines(first, second, SHAPE)
    figure = beside_figure(two, "x", {"int8": "A"}).to_dict()
    one, other = (next(t for t in figure["data"] if t.get("name") == name) for name in "AB")
    assert list(one["x"]) == [3e6, 4e6, 8e6] and list(other["x"]) == [6e6, 2e6, 2e6]
    assert one["marker"]["symbol"] != other["marker"]["symbol"]
    words = next(t for t in figure["data"] if t["mode"] == "text")
    assert [text.strip() for text in words["text"]] == ["2×", "2×", "4×"]
    assert list(words["x"]) == [6e6, 4e6, 8e6]
    assert "<b>A</b></span> INT8" in figure["layout"]["yaxis"]["ticktext"][0]
    low, high = (10**end for end in figure["layout"]["xaxis"]["range"])
    assert low < 2e6 and high > 8e6
    assert not beside_figure(compare_machines(first, second, (7, 7, 7)), "x").data


def test_names_from_a_file_are_text_in_the_figure() -> None:
    """A machine's name in an opened file is not read as markup."""
    two = compare_machines(of("<a href='http://x'>A</a>", bf16=1), of("B", bf16=2), SHAPE)
    drawn = str(beside_figure(two, "x").to_dict())
    assert "&lt;a" in drawn and "<a" not in drawn


def test_the_json_holds_both_as_recorded() -> None:
    """Each half is a recording that can be opened again."""
    first, second = TABLE[0][:2]
    written = pairs_json(compare_machines(first, second, SHAPE), first, second)
    assert recording_of(written["second"], GemmTiming).rows == second.rows[::-1]
    assert written["times_as_fast"] == [2.0, 3.0] and written["shape"] == [1, 64, 64]


def test_the_median_is_the_same_whichever_machine_is_first() -> None:
    """An arithmetic median of two ratios calls each machine the faster one when they are swapped."""
    first, second = of("A", bf16=2, int8=1), of("B", bf16=1, int8=1.6)
    one, other = compare_machines(first, second, SHAPE), compare_machines(second, first, SHAPE)
    assert one.ratio and other.ratio and one.ratio * other.ratio == pytest.approx(1)
    said = [sentences(two)[0].partition(" in the median")[0] for two in (one, other)]
    assert said[0] == said[1] != ""
