"""On a GPU: the time of a recipe's layers, measured.

If this fails, `explorer recipe --time` or `explorer check` times other products than a model runs.
"""

from __future__ import annotations

import pytest
import torch

from explorer.bench.layers import times_here
from explorer.methods.recipe import Recipe
from explorer.schemes import Scheme
from explorer.survey.times import UNQUANTIZED

pytestmark = pytest.mark.gpu


def test_layers_are_timed_as_they_run() -> None:
    """Four-bit weights are faster than bfloat16 with one token, and one fused product is no longer than its
    parts; W8A8 has a time that includes quantizing X, and schemes without a kernel are refused."""
    times, four = times_here(1), Scheme.parse("int4_group128")
    shape = (8192, 8192)
    quantized, plain = times.of(four, shape), times.of(UNQUANTIZED, shape)
    assert quantized.seconds is not None and plain.seconds is not None
    assert quantized.gpu == torch.cuda.get_device_name() == times.machine
    capability = torch.cuda.get_device_capability()
    if capability[0] == 9:
        assert quantized.seconds < 0.6 * plain.seconds
    layers = {f"l.0.{part}_proj": Recipe(four) for part in "qkv"}
    shapes = {"l.0.q_proj": (4096, 4096), "l.0.k_proj": (1024, 4096), "l.0.v_proj": (1024, 4096)}
    fused = times.of_recipe(layers, shapes, {"l.0.o_proj": (4096, 4096)}, True)
    apart = times.of_recipe(layers, shapes, {"l.0.o_proj": (4096, 4096)}, False)
    assert 0 < fused.seconds <= 1.05 * apart.seconds and fused.how == "measured"
    eight = Scheme.parse("int8_row")
    if capability[0] == 9:
        assert times_here(64).of(eight, shape, eight).seconds is not None
    nested = Scheme.parse("nf4_block64_double")
    assert times.of(nested, shape).seconds is None and times.refusal(nested, shape)
    assert (times_here(1, restored=True).of(nested, shape).seconds or 0) > plain.seconds
