"""The constant part of a layer's error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explorer import SCHEMES
from explorer.models.capture import Captured
from explorer.models.quantize import MethodLinear, quantize_by_method
from lab.bias_correction import layer_error

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_constant_part_is_the_mean_over_tokens() -> None:
    """With the same input for all tokens all of the error is constant, and the correction leaves none; where
    each input is there with both signs, nothing is constant."""
    torch.manual_seed(0)
    w, same, half = torch.randn(8, 64), torch.randn(1, 64).expand(10, 64), torch.randn(5, 64)
    original = nn.Sequential(nn.Linear(64, 8)).requires_grad_(False)
    original[0].weight.data = w
    errors = {}
    for method in ("rtn", "bias_correction"):
        network = nn.Sequential(nn.Linear(64, 8)).requires_grad_(False)
        network[0].weight.data, network[0].bias.data = w, original[0].bias.data
        quantize_by_method(network, [Captured("0", w, same)], method, SCHEMES["int4_group64"])
        assert isinstance(network[0], MethodLinear)
        errors[method] = layer_error(network, original, "0", same)
        restored = network[0].layer.weight().double()
        if method == "rtn":
            balanced = torch.cat([half, -half])
            outputs = [balanced.double() @ values.double().t() for values in (restored, w)]
            error, constant = layer_error(network, original, "0", balanced)
            assert constant < 1e-12
            assert error == pytest.approx(float((outputs[0] - outputs[1]).norm() / outputs[1].norm()))
    assert errors["rtn"][0] > 1e-2 and errors["rtn"][1] == pytest.approx(1)
    assert errors["bias_correction"][0] < 1e-6
