"""Quantizing layers: closed-form gradients, torch's own learned fake quantization, state dicts, compile,
convert.

If these fail, a model trains towards something else than what it is converted to.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from explorer import SCHEMES, MappingType, Scheme, quantize
from explorer.core.ops import learned_quantize, straight_through
from explorer.formats import IntegerFormat
from explorer.training.inputs import StaticInputs
from explorer.training.layers import (
    QuantLinear,
    Rule,
    StoredLinear,
    convert,
    init_lsq_step_size,
    observe,
    prepare,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 16))


def inputs() -> Tensor:
    return torch.randn(7, 32, generator=torch.Generator().manual_seed(1))


def test_learned_step_sizes_are_torchs() -> None:
    """v̂, dv and ds of torch._fake_quantize_learnable_per_tensor_affine, and the worked example of the LSQ
    paper's formulas."""
    scheme = Scheme(
        "int3_all", "INT3", IntegerFormat(name="int3", label="INT3", bits=3), mapping=MappingType.FULL
    )
    v = torch.tensor([[-0.9, -0.31, -0.02, 0.13, 0.26, 0.8]], requires_grad=True)
    s = torch.full((1, 1), 0.1, requires_grad=True)
    learned_quantize(v, s, scheme).sum().backward()
    low, high = scheme.code_limits
    g = 1 / (6 * high) ** 0.5
    v2, s2 = v.detach().clone().requires_grad_(), torch.tensor([0.1], requires_grad=True)
    torch._fake_quantize_learnable_per_tensor_affine(
        v2, s2, torch.zeros(1), int(low), int(high), g
    ).sum().backward()
    assert v.grad is not None and s.grad is not None and v2.grad is not None and s2.grad is not None
    assert torch.equal(v.grad, v2.grad)
    assert float(s.grad) == pytest.approx(float(s2.grad), abs=1e-6)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("static", [False, True])
def test_prepare_forward_backward_convert(rule: Rule, static: bool) -> None:
    """The forward pass is the product of what quantize gives; every parameter gets a gradient; codes give
    the same outputs."""
    base, x = model(), inputs()
    ready = copy.deepcopy(base)
    inputs_by = SCHEMES["int8_tensor" if static else "int8_row"]
    assert prepare(ready, SCHEMES["int4_row"], inputs_by, rule=rule, static=static) == ["0", "2"]
    if rule is not Rule.LSQ and not static:
        ready.load_state_dict(base.state_dict())
        base.load_state_dict(ready.state_dict())
    if static:
        observe(ready, True)
        ready(x)
        observe(ready, False)
        found = ready[0].inputs  # type: ignore[union-attr]
        assert isinstance(found, StaticInputs)
        assert (float(found.high), float(found.low)) == (float(x.max()), float(x.min()))
    out = ready(x)
    out.square().sum().backward()
    for name, parameter in ready.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().sum()) > 0, name
    if rule is not Rule.LSQ:
        first = ready[0]
        assert isinstance(first, QuantLinear)
        want = quantize(base[0].weight.detach(), SCHEMES["int4_row"]).dequantize()  # type: ignore[union-attr]
        assert torch.equal(first.quantized_weight().detach(), want)
    assert convert(ready) == ["0", "2"] and all(isinstance(ready[i], StoredLinear) for i in (0, 2))
    torch.testing.assert_close(ready(x), out.detach(), rtol=1e-4, atol=1e-5)
    assert not list(ready.parameters()) and "0.packed" in ready.state_dict()


def test_masked_gradient_is_zero_where_clipped_and_bitnets_is_not() -> None:
    """Under one static range; torch's rule: the rounded code decides."""
    linear = nn.Linear(4, 4, bias=False)
    layer = QuantLinear(linear, SCHEMES["int8_row"], SCHEMES["int8_tensor"], static=True)
    assert isinstance(layer.inputs, StaticInputs)
    layer.inputs.low.fill_(-1.0)
    layer.inputs.high.fill_(1.0)
    x = torch.tensor([[-3.0, -0.5, 0.5, 3.0]], requires_grad=True)
    layer.inputs(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0, 1, 1, 0]]
    w = torch.tensor([[-3.0, -0.1, 0.1, 3.0]], requires_grad=True)
    straight_through(w, SCHEMES["ternary_absmean"]).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [[1, 1, 1, 1]]


def test_keep_leaves_layers_alone_and_what_is_refused() -> None:
    """Nothing left to quantize, static inputs without one scale, and a range that nobody observed."""
    ready, by, whole = model(), SCHEMES["int8_row"], SCHEMES["int8_tensor"]
    assert prepare(ready, by, keep=["0"]) == ["2"] and isinstance(ready[0], nn.Linear)
    for refused, fact in (
        (lambda: prepare(model(), by, keep=["*"]), "kept"),
        (lambda: prepare(nn.ReLU(), by), "in this model"),
        (lambda: prepare(model(), by, None, static=True), "whole tensor"),
        (lambda: prepare(model(), by, by, static=True), "whole tensor"),
    ):
        with pytest.raises(ValueError, match=fact):
            refused()
    ready = model()
    prepare(ready, by, whole, static=True)
    for unseen in (lambda: ready(inputs()), lambda: convert(ready)):
        with pytest.raises(ValueError, match="calibrate first"):
            unseen()
    assert isinstance(ready[0], QuantLinear)
    ready = model()
    prepare(ready, by)
    with torch.no_grad():
        ready[2].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        convert(ready)
    assert isinstance(ready[0], QuantLinear)
    search = Scheme.parse("int8~tensor~asymmetric~float32~mse")  # knows |x| alone
    with pytest.raises(ValueError, match="ends"):
        prepare(model(), by, search, static=True)


LEARNED = [*SCHEMES, *(f"int4~1x32~{m.name}~float32~minmax" for m in MappingType)]


def test_what_is_learned_is_what_is_stored() -> None:
    """Under every scheme whose step sizes are learned, those of symmetric integers; the others say so."""
    torch.manual_seed(0)
    learned = set[str]()
    for text in [*LEARNED, "int4~1x32~symmetric~float32~minmax~fit"]:
        try:
            layer = QuantLinear(nn.Linear(64, 8), Scheme.parse(text), rule=Rule.LSQ)
        except ValueError as error:
            assert "step sizes are learned for" in str(error)
            continue
        learned.add(text)
        stored, trained = layer.codes().dequantize(), layer.quantized_weight().detach()
        torch.testing.assert_close(stored, trained, rtol=0, atol=1e-7)
    assert {"int8_row", "int4_group32", "int8_tensor"} < learned
    assert not learned & {"nvfp4", "int4_row_asym", "binary_row"}


@pytest.mark.parametrize("name", ["int4_group32", "int8_row", "int8_tensor", "int8_column"])
def test_first_step_sizes_are_lsqs(name: str) -> None:
    """2 · mean|w| / √(largest code) of each block, also of the shorter last ones; else LSQ starts
    elsewhere."""
    scheme = SCHEMES[name]
    for shape in ((6, 64), (5, 100), (130, 257)):
        w = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        step_sizes = init_lsq_step_size(w, scheme)
        tall, wide = scheme.block[0] or shape[0], scheme.block[1] or shape[1]
        want = torch.empty(scheme.grid(shape))
        for i, j in np.ndindex(*want.shape):
            block = w[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]
            want[i, j] = 2 * block.abs().mean() / scheme.code_limits[1] ** 0.5
        torch.testing.assert_close(step_sizes, want, rtol=1e-6, atol=0)


def test_state_dicts_with_the_old_name_of_step_size_are_loaded() -> None:
    """Version 0.1 called it "step"; the visitor's dictionary stays as it was."""
    ready, other = model(), model()
    for m in (ready, other):
        prepare(m, SCHEMES["int4_row"], rule=Rule.LSQ)
    first = ready[0]
    assert isinstance(first, QuantLinear) and first.step_size is not None
    with torch.no_grad():
        first.step_size.mul_(1.5)
    assert "0.step_size" in ready.state_dict()
    old = {key.replace("step_size", "step"): value for key, value in ready.state_dict().items()}
    other.load_state_dict(old)
    assert "0.step" in old and torch.equal(other.state_dict()["0.step_size"], first.step_size)


def test_a_converted_layer_computes_what_was_prepared() -> None:
    """Offsets, scales of scales and reciprocal tensor scales are stored with the layer: the same output."""
    for name in ("q4_0", "q4_1", "q4_k", "nf4_block64_double", "nvfp4_vllm", "int4_group128_vllm"):
        made, x = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256)), torch.randn(8, 256)
        prepare(made, SCHEMES[name])
        before = made(x)
        convert(made)
        assert torch.equal(made(x), before), name
