"""A few that stand for many: products of parts are tested on a set that has every pair of kinds of parts.

Which items stand in ``make test`` follows from the registry, so that a new part brings its pairs along. The
others are marked thorough, and run by ``make test-all``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Hashable, Iterable
from typing import Any, TypeVar

import pytest

from explorer import SCHEMES, Scheme
from explorer.formats import CodebookFormat, IntegerFormat
from explorer.schemes.parts import BLOCK_WORDS

T = TypeVar("T")
Trait = Hashable
THOROUGH = pytest.mark.thorough


def covering(items: Iterable[T], traits_of: Callable[[T], set[Any]]) -> list[T]:
    """A few items that between them have every trait of all, each chosen for the most still missing."""
    traits = {item: traits_of(item) for item in items}
    missing, chosen = set[Trait]().union(*traits.values()), list[T]()
    while missing:
        chosen.append(max(traits, key=lambda item: len(traits[item] & missing)))
        missing -= traits[chosen[-1]]
    return chosen


def pairs(*parts: Trait) -> set[Trait]:
    """Every pair of the parts of an item, as traits; a part's place says what it is."""
    return set(itertools.combinations(enumerate(parts), 2))


def sampled(values: Collection[Any], kept: Container[Any]) -> list[Any]:
    """``values`` as parameters of a test: those that are not ``kept`` are marked thorough. A tuple stands for
    several arguments."""
    found = [value in kept for value in values]
    assert any(found), "none is left for `make test`"
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=() if here else THOROUGH)
        for value, here in zip(values, found, strict=True)
    ]


def by_pairs(values: Collection[Any], parts: Callable[..., Collection[Trait]]) -> list[Any]:
    """``values`` as parameters of a test: in ``make test`` a few that have every pair of what ``parts``
    returns. A tuple is passed to it, and to the test, as several arguments."""
    whole = [value if isinstance(value, tuple) else (value,) for value in values]
    few = covering(whole, lambda value: pairs(*parts(*value)))
    return sampled(whole, few)


def parts_of(scheme: Scheme | str) -> tuple[Trait, ...]:
    """A scheme's kinds of format, block, scale, calibrator and zero point."""
    scheme = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    fmt, rule = scheme.format, scheme.scale
    if isinstance(fmt, IntegerFormat | CodebookFormat):
        kind = type(fmt).__name__
    else:
        kind = f"float{fmt.bits}" if fmt.bits <= 8 else "wide float"
    if rule is None:
        scale = "none"
    elif rule.nested or rule.super_bits or rule.per_tensor:
        scale = "nested" if rule.nested else "super-block" if rule.super_bits else "two levels"
    else:
        scale = rule.format.name
    other = "group" if scheme.block[0] == 1 else "flat" if scheme.flat else "tile"
    block = BLOCK_WORDS.get(scheme.block, other)
    return kind, block, scale, scheme.calibrator.name, scheme.mapping.has_offset


def _traits(name: str) -> set[Trait]:
    scheme = SCHEMES[name]
    return pairs(*parts_of(scheme)) | {scheme.mapping, scheme.codes}


FEW = covering(SCHEMES, _traits)
"""Names of the schemes of ``make test``: every pair of kinds of parts (``parts_of``), every mapping and every
rule for codes."""
EACH_SCHEME = sampled(SCHEMES, FEW)
"""Every name of a scheme as parameters of a test."""
