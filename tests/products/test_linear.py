"""``explorer.linear``, its operator, and layers of codes, where no kernel runs; and which form W has on which
chip. The kernels' own tests are in tests/gpu/test_linear.py."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from typing import Any

import pytest
import torch
import torch.fx.experimental.proxy_tensor
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import explorer
from explorer import SCHEMES, QuantizedLinear, Scheme
from explorer.products import linear
from explorer.products.linear import held
from explorer.products.weights import form_called, form_of
from tests.covering import EACH_SCHEME, sampled

ADA, HOPPER, BLACKWELL = (8, 9), (9, 0), (12, 0)


def quantized(name: str, n: int = 8, k: int = 256) -> explorer.QuantizedTensor:
    return explorer.quantize(torch.randn(n, k, generator=torch.Generator().manual_seed(0)), SCHEMES[name])


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_without_a_kernel_w_is_restored_and_multiplied(name: str) -> None:
    """By every scheme, for every number of leading axes. If the last lines fail, a saved model is another one
    when it is loaded, copied or pickled."""
    q, x = quantized(name), torch.randn(2, 3, 256)
    bias = torch.randn(8)
    want = torch.nn.functional.linear(x, q.dequantize(), bias)
    assert torch.equal(explorer.linear(x, q, bias), want)
    assert torch.equal(explorer.linear(x[0, 0], q), torch.nn.functional.linear(x[0, :1], q.dequantize())[0])
    assert tuple(explorer.linear(x[:, :0], q).shape) == (2, 0, 8)
    half = explorer.linear(x.bfloat16(), q)
    assert half.dtype == torch.bfloat16 and torch.allclose(half.float(), want - bias, atol=2.0, rtol=0.1)
    layer = QuantizedLinear(q, bias)
    other = QuantizedLinear(explorer.quantize(torch.ones(8, 256), SCHEMES[name]), torch.zeros(8))
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    for same in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.copy(layer)):
        assert torch.equal(same.quantized.packed, layer.quantized.packed)
        assert torch.equal(same(x), layer(x))


def test_a_layer_keeps_its_codes_whatever_dtype_the_model_takes() -> None:
    layer = QuantizedLinear.of(nn.Linear(64, 8), SCHEMES["int4_group32"])
    before = [tensor.clone() for tensor in layer.held]
    model = nn.Sequential(layer).to(torch.bfloat16)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(before, layer.held, strict=True))
    assert layer.bias is not None and layer.bias.dtype == torch.bfloat16
    assert model(torch.randn(3, 64).bfloat16()).dtype == torch.bfloat16
    both = QuantizedLinear(quantized("int8_row"), None, SCHEMES["int8_row"])
    assert "int4_group32" in repr(layer) and repr(both).count("int8_row × int8_row") == 1


def test_a_state_of_another_layer_is_refused() -> None:
    layer = QuantizedLinear(quantized("int4_group128"))
    for other, words in (
        (QuantizedLinear(quantized("int4_group128_asym")), "int4_group128_asym"),
        (QuantizedLinear(quantized("int4_group128", n=4)), r"\[4, 256\]"),
        (nn.Linear(256, 8, bias=False), "Missing key"),
    ):
        with pytest.raises(RuntimeError, match=words):
            layer.load_state_dict(other.state_dict())
    state = layer.state_dict()
    state["scale"] = state["scale"][:3]
    with pytest.raises(RuntimeError, match="scale is"):
        layer.load_state_dict(state)


def test_wrong_inputs_are_refused() -> None:
    q, x = quantized("nvfp4"), torch.randn(2, 256)
    for call, words in (
        (lambda: explorer.linear(torch.randn(2, 3), q), r"\[..., 256\].*\[8, 256\].*\[2, 3\]"),
        (lambda: explorer.linear(x, q, torch.randn(3)), "8 values"),
        (lambda: QuantizedLinear(q, torch.randn(3)), "8 values"),
        (lambda: form_called("tiles|1|2"), "form"),
        (lambda: explorer.linear(torch.ones(2, 256, dtype=torch.long), q), r"torch\.int64"),
        (lambda: explorer.linear(torch.empty(2, 256, device="meta"), q), "meta"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_a_form_is_its_text() -> None:
    inputs = (None, *(SCHEMES[name] for name in ("int8_row", "fp8_e4m3_row", "nvfp4")))
    for scheme, chip, x in itertools.product(SCHEMES.values(), (None, ADA, HOPPER, BLACKWELL), inputs):
        form, why = form_of(scheme, x, (8, 256), chip)
        assert form_called(form.text) == form
        assert bool(why) == (form.name == "restored")


def test_which_form_w_has() -> None:
    """If this fails, a layer that has a kernel is restored in every call, or one is given codes that it
    does not read."""
    for w, x, chip, name in (
        ("int4_group128", None, HOPPER, "tiles"),
        ("int4_group128", "int8_row", HOPPER, "tiles"),
        ("int4_group128", "fp8_e4m3_row", HOPPER, "tiles"),
        ("int4_group128", "int8_row_asym", HOPPER, "restored"),
        ("int4_group128", None, ADA, "registers"),
        ("int4_group128", None, BLACKWELL, "registers"),
        ("int4_group128", None, (7, 5), "restored"),
        ("nvfp4", None, HOPPER, "tiles"),
        ("nvfp4_vllm", None, HOPPER, "tiles"),
        ("nvfp4", "nvfp4", HOPPER, "restored"),
        ("ternary_absmean", None, HOPPER, "tiles"),
        ("int8_row", "int8_row", HOPPER, "rows"),
        ("int8_row_asym", "int8_row_asym", HOPPER, "rows"),
        ("int8_row", None, HOPPER, "tiles"),
        ("fp8_e4m3_row", "fp8_e4m3_row", HOPPER, "rows"),
        ("fp8_e4m3_128x128", "fp8_e4m3_1x128", HOPPER, "rows"),
        ("fp8_e4m3_128x128", None, HOPPER, "restored"),
        ("q4_k", None, HOPPER, "restored"),
        ("nf4_block64_double", None, HOPPER, "restored"),
        ("bf16", None, HOPPER, "restored"),
    ):
        form, _ = form_of(SCHEMES[w], SCHEMES[x] if x else None, (256, 256), chip)
        assert form.name == name, (w, x, chip)
    form, why = form_of(Scheme.parse("int4~1x96~symmetric~float16~minmax"), None, (8, 192), HOPPER)
    assert form.name == "restored" and why, "groups of powers of two alone"


def test_a_plain_call_goes_round_the_dispatcher_and_no_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way through it takes a third of a small product; what handles operators has to see this one."""
    seen: list[str] = []

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Own(torch.Tensor):
        pass

    q, x, ours = quantized("int4_group128"), torch.randn(3, 256), "explorer.linear.default"
    want = explorer.linear(x, q)
    with Sees():
        assert torch.equal(explorer.linear(x, q), want)
    assert ours in seen
    calls: list[Any] = []
    whole = linear._linear
    monkeypatch.setattr(linear, "_linear", lambda *given: calls.append(given) or whole(*given))
    assert torch.equal(explorer.linear(x, q), want) and len(calls) == 1
    assert torch.equal(explorer.linear(x.as_subclass(Own), q), want) and len(calls) == 1
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: explorer.linear(x, q))(x)
    assert any(str(node.target) == ours for node in traced.graph.nodes) and len(calls) == 1


@pytest.mark.parametrize("x_scheme", sampled([None, SCHEMES["int8_row"]], [SCHEMES["int8_row"]]))
def test_the_operator_is_compiled_without_a_break(x_scheme: Scheme | None) -> None:
    """Fake tensors, schema, and torch.compile of a layer, with its gradient."""
    q, x = quantized("int4_group128"), torch.randn(3, 256)
    weight = held(q, x_scheme)
    torch.library.opcheck(
        torch.ops.explorer.linear.default,
        (x, weight.tensors, torch.randn(8), weight.form.text),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
    )
    layer = QuantizedLinear(q, torch.randn(8), x_scheme)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))
    ours, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(ours).pow(2).sum().backward()
    layer(plain).pow(2).sum().backward()
    assert ours.grad is not None and torch.equal(ours.grad, plain.grad)


def test_gradients_are_those_of_the_restored_weight() -> None:
    q, x = quantized("nvfp4"), torch.randn(2, 3, 256, requires_grad=True)
    bias = torch.randn(8, requires_grad=True)
    explorer.linear(x, q, bias).pow(2).sum().backward()
    got, got_bias = x.grad, bias.grad
    x.grad = bias.grad = None
    torch.nn.functional.linear(x, q.dequantize(), bias).pow(2).sum().backward()
    assert got is not None and x.grad is not None and torch.allclose(got, x.grad, atol=1e-3, rtol=1e-5)
    assert torch.equal(got_bias, bias.grad)


def test_w_is_laid_out_once() -> None:
    q = quantized("int4_group128")
    explorer.linear(torch.randn(1, 256), q)
    first = held(q, None, kernels=False)
    explorer.linear(torch.randn(2, 256), q)
    assert held(q, None, kernels=False) is first
    assert form_called(first.form.text) is form_called(first.form.text)
