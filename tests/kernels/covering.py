"""A few builds that stand for many, where compiling all would take minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from explorer.gpu.runtime import Build

Trait = tuple[str, ...]


def covering(builds: Iterable[Build], traits_of: Callable[[Build], set[Trait]]) -> list[Build]:
    """A few builds that between them have every trait of all, each chosen for the most still missing."""
    traits = {build: traits_of(build) for build in builds}
    missing, chosen = set[Trait]().union(*traits.values()), []
    while missing:
        chosen.append(max(traits, key=lambda build: len(traits[build] & missing)))
        missing -= traits[chosen[-1]]
    return chosen
