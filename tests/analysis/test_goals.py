"""What a tensor should be good enough for. If these fail, a button shows another part of the frontier."""

from __future__ import annotations

import pytest

from explorer import SCHEMES
from explorer.analysis.goals import GOALS, MOST, adapted, goal_of, nearest_goal

SHAPE = (1536, 384)


def test_every_goal_has_a_shortlist_within_its_axes() -> None:
    """Names of schemes that exist, A and B first, at points that the figure shows."""
    for goal in GOALS.values():
        assert 2 <= len(goal.schemes) <= MOST and not set(goal.schemes) & set(goal.asked)
        assert (goal.a, goal.b) == goal.schemes[:2]
        for name in goal.schemes:
            assert goal.bits[0] <= SCHEMES[name].bits_per_element(SHAPE).total <= goal.bits[1], name
        assert set(goal.asked) <= set(SCHEMES) and goal_of(goal.name, SHAPE) is goal


def test_a_size_lists_the_schemes_below_it() -> None:
    for name, first in (
        ("at-most-4.25", ["mxfp4", "int4_group128_asym"]),
        ("at-most-0.3MB", ["int4_row", "q3_k"]),
        ("at-most-1.1", ["binary_row"]),
    ):
        goal = goal_of(name, SHAPE)
        bits = [SCHEMES[text].bits_per_element(SHAPE).total for text in goal.schemes]
        assert list(goal.schemes[: len(first)]) == first and goal.name == name
        assert bits == sorted(bits, reverse=True) and goal.most_bits is not None and bits[0] <= goal.most_bits
    for name, words in (("5-bit", "8-bit"), ("at-most-0.5", "0.5 bits")):
        with pytest.raises(ValueError, match=words):
            goal_of(name, SHAPE)


def test_axes_follow_a_tensor_whose_points_lie_outside() -> None:
    goal = GOALS["4-bit"]
    assert adapted(goal, [(4.5, 20.0), (4.1, 12.0), (16.0, 70.0)]) is goal
    assert adapted(goal, [(4.5, 40.5), (4.1, 33.0)]).db == (30.0, 45.0)
    assert adapted(goal, [(4.5, float("inf"))]) is goal


def test_an_old_link_gets_the_goal_of_its_scheme() -> None:
    for scheme, goal in (("nvfp4", "4-bit"), ("int8_row", "8-bit"), ("bf16", "all"), ("q2_k", "2-bit")):
        assert nearest_goal(SCHEMES[scheme], SHAPE).name == goal
