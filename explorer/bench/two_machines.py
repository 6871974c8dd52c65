"""Two machines beside each other: products that both timed at one shape, the fastest kernel of each.

Products of two GPUs, or of two CPUs, are the same where they have the same name. A GPU and a CPU have tables
of their own: there products are the same if W is stored alike and neither takes quantized X; others need the
same name, too. Only what was timed is compared, nothing modelled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from explorer import words
from explorer.cpu.table import product_of
from explorer.products.advice import at_shape, by_distance, fastest, stored_as
from explorer.recordings.files import Recording, recording_json
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.machine import Machine

NAMED = 6
"""Products and shapes that are named where there may be more."""


@dataclass(frozen=True)
class OnBoth:
    """One product on both machines, by the kernel that is the fastest on each."""

    first: GemmTiming
    second: GemmTiming

    @property
    def label(self) -> str:
        """The product as the first machine's table calls it."""
        return self.first.label

    @property
    def ratio(self) -> float:
        """Times as fast as the second machine the first one is: the second's seconds over the first's."""
        return self.second.seconds / self.first.seconds


@dataclass(frozen=True)
class TwoMachines:
    """What two machines took at one shape.

    names          of the machines, different from each other
    pairs          what both timed, the first machine's fastest first
    only           labels of the products that the first alone timed there, and the second alone
    timed          whether the first timed anything at the shape, and the second
    shared         every shape at which both timed something, the nearest to ``shape`` first
    """

    names: tuple[str, str]
    shape: Shape
    pairs: tuple[OnBoth, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    timed: tuple[bool, bool]
    shared: tuple[Shape, ...]

    @property
    def ratio(self) -> float | None:
        """The median of the pairs' ratios, of two in the middle the geometric mean, which is the same
        whichever machine comes first. None of none."""
        if not self.pairs:
            return None
        ratios = [pair.ratio for pair in self.pairs]
        low, high = statistics.median_low(ratios), statistics.median_high(ratios)
        return low if low == high else math.sqrt(low * high)

    @property
    def reversed(self) -> tuple[OnBoth, ...]:
        """The pairs in which the machine is faster that is the slower one in the median."""
        ratio = self.ratio
        if ratio is None or ratio == 1:
            return ()
        return tuple(pair for pair in self.pairs if (pair.ratio - 1) * (ratio - 1) < 0)


def compare_machines(
    first: Recording[GemmTiming],
    second: Recording[GemmTiming],
    shape: Shape,
    files: tuple[str, str] = ("", ""),
) -> TwoMachines:
    """The products that both recordings have at ``shape`` (M, N, K), side by side. ``files``: the names of
    their files, where they have any, which tell apart what the machines do not."""
    here = fastest(at_shape(first.rows, shape)), fastest(at_shape(second.rows, shape))
    pairs = _pairs(*here)
    used = {id(timing) for pair in pairs for timing in (pair.first, pair.second)}
    only = [tuple(t.label for t in of_one if id(t) not in used) for of_one in here]
    both = {t.shape for t in first.rows} & {t.shape for t in second.rows}
    return TwoMachines(
        names=_names((first.machine, second.machine), files),
        shape=shape,
        pairs=tuple(sorted(pairs, key=lambda pair: pair.first.seconds)),
        only=(only[0], only[1]),
        timed=(bool(here[0]), bool(here[1])),
        shared=tuple(by_distance(both, shape)),
    )


def sentences(two: TwoMachines) -> list[str]:
    """What the comparison comes to: the median ratio, where the order of the machines is reversed, and what
    only one of them has; of a shape that one lacks, the shapes that both timed."""
    at, lacking = (
        "×".join(map(str, two.shape)),
        [n for n, t in zip(two.names, two.timed, strict=True) if not t],
    )
    if two.pairs:
        said = [_median(two, at), *_order(two)]
    elif lacking:
        said = [f"{at} was not timed on {' nor on '.join(lacking)}.", _shared(two)]
    else:
        said = [f"At {at} the two timed no product in common."]
    for name, labels in zip(two.names, two.only, strict=True):
        if labels and not lacking:
            said.append(f"Timed on {name} alone: {_listed(labels)}.")
    return said


def flat_pairs(two: TwoMachines) -> list[dict[str, Any]]:
    """A line for each pair: the product, what each machine took with which kernel, and the ratio."""
    lines = []
    for pair in two.pairs:
        line: dict[str, Any] = {"product": pair.label, "shape": pair.first.shape_text}
        for name, timing in zip(two.names, (pair.first, pair.second), strict=True):
            line |= {f"µs, {name}": 1e6 * timing.seconds, f"kernel, {name}": timing.variant}
        lines.append(line | {f"{two.names[0]}, times as fast": pair.ratio})
    return lines


def pairs_json(
    two: TwoMachines, first: Recording[GemmTiming], second: Recording[GemmTiming]
) -> dict[str, Any]:
    """The pairs with both machines, each timing by the keys of a recorded file."""
    return {
        "shape": list(two.shape),
        "first": recording_json(first.machine, [pair.first for pair in two.pairs]),
        "second": recording_json(second.machine, [pair.second for pair in two.pairs]),
        "times_as_fast": [pair.ratio for pair in two.pairs],
    }


def _median(two: TwoMachines, at: str) -> str:
    ratio = two.ratio or 1.0
    fast, slow = two.names if ratio >= 1 else two.names[::-1]
    each = sorted(((pair.ratio if ratio >= 1 else 1 / pair.ratio), pair.label) for pair in two.pairs)
    middle = words.times(max(ratio, 1 / ratio))
    verb = f"takes as long as {slow}" if middle == "1×" else f"is {middle} as fast as {slow}"
    if len(each) == 1:
        return f"At {at} {fast} {verb} in the one product that both timed."
    (least, lowest), (most, highest) = each[0], each[-1]
    return (
        f"At {at} {fast} {verb} in the median of the {len(each)} products that both timed, from "
        f"{words.times(least)} for {lowest} to {words.times(most)} for {highest}."
    )


def _order(two: TwoMachines) -> list[str]:
    if len(two.pairs) < 2:
        return []
    if not two.reversed:
        ratio = two.ratio or 1.0
        even = words.times(max(ratio, 1 / ratio)) == "1×"
        return [] if even else ["It is the faster one in each of them."]
    first_wins = (two.ratio or 1.0) < 1
    fast = two.names[0 if first_wins else 1]
    each = [
        f"{pair.label} ({words.times(pair.ratio if first_wins else 1 / pair.ratio)})" for pair in two.reversed
    ]
    return [f"The order is reversed, {fast} is faster, in {_listed(each)}."]


def _shared(two: TwoMachines) -> str:
    if not two.shared:
        return "The two have no shape in common."
    return f"Both timed {_listed(['×'.join(map(str, shape)) for shape in two.shared])}."


def _listed(items: Sequence[str]) -> str:
    rest = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    apart = "; " if any("," in item for item in items[:NAMED]) else ", "
    return apart.join(items[:NAMED]) + rest


def _pairs(first: Sequence[GemmTiming], second: Sequence[GemmTiming]) -> list[OnBoth]:
    """Each timing at most once. Where several are alike the one of the same name is taken, then the
    fastest."""
    free = sorted(second, key=lambda t: t.seconds)
    pairs: list[OnBoth] = []
    waiting = sorted(first, key=lambda t: t.seconds)
    for same_name in (True, False):
        before, waiting = waiting, []
        for timing in before:
            alike = (t for t in free if _same(timing, t) and (t.gemm == timing.gemm or not same_name))
            if (other := next(alike, None)) is not None:
                pairs.append(OnBoth(timing, other))
                free.remove(other)
            else:
                waiting.append(timing)
    return pairs


def _same(one: GemmTiming, other: GemmTiming) -> bool:
    if one.on_cpu == other.on_cpu:
        return one.gemm == other.gemm
    rows = product_of(one.gemm, one.on_cpu), product_of(other.gemm, other.on_cpu)
    if rows[0] is None or rows[1] is None:
        return False
    if rows[0].x.scale is not None or rows[1].x.scale is not None:
        return one.gemm == other.gemm
    return stored_as(rows[0].w) == stored_as(rows[1].w)


def _names(machines: tuple[Machine, Machine], files: tuple[str, str]) -> tuple[str, str]:
    """The chips; where they are the same with threads, date and commit, else with their files, or by their
    order."""
    one, other = (machine.chip or "an unnamed machine" for machine in machines)
    if one != other:
        return one, other
    facts: list[tuple[str, ...]] = [
        (f"{machine.threads} threads" if machine.threads else "", machine.date, machine.commit)
        for machine in machines
    ]
    if facts[0] == facts[1]:
        facts = [(file,) for file in files]
    more = [", ".join(filter(None, known)) for known in facts]
    if more[0] == more[1]:
        return f"{one} (1)", f"{one} (2)"
    first, second = (f"{one} ({known})" if known else one for known in more)
    return first, second
