"""The constant part of a layer's error, and what docs/which-format.md says of it.

If these fail, the page explains methods by a part of the error that is another one.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from explorer import SCHEMES
from explorer.methods import label_of
from explorer.models.capture import Captured
from explorer.models.quantize import MethodLinear, quantize_model
from lab import docs
from lab.bias_correction import METHODS, corrected_name, layer_error, recorded_bias, rows_of
from lab.embeddings import METHODS_SCHEMES

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
        quantize_model(network, [Captured("0", w, same)], method, SCHEMES["int4_group64"])
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


def test_the_page_has_every_method_without_and_with_the_correction() -> None:
    """A row for each, under both schemes, and its cosine is that of the recording."""
    text, rows = docs.render("which-format.md"), recorded_bias().rows
    for scheme in METHODS_SCHEMES:
        for method in METHODS:
            for name in (method, corrected_name(method)):
                of = rows_of(rows, scheme, name)
                mean = sum(row.cosine for row in of) / len(of)
                assert f"| {label_of(name)} | {mean:.3f}" in text, (scheme, name)
                assert all(0 <= row.least_constant <= row.constant <= row.most_constant <= 1 for row in of)
                assert all(math.isfinite(row.error) and 0 <= row.better <= row.layers for row in of)
