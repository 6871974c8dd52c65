"""``prepare`` and ``convert`` on models that are not a plain tree of ``nn.Linear``, dtypes, static ranges.

If these fail, a layer counts as quantized and is not, or is quantized under other numbers than were trained.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from explorer import CALIBRATORS, SCHEMES, Scheme, quantize
from explorer.core.ops import straight_through
from explorer.schemes.calibrators import Range
from explorer.schemes.observer import Observer
from explorer.training.inputs import DynamicInputs, StaticInputs
from explorer.training.layers import QuantLinear, Rule, StoredLinear, convert, observe, prepare
from tests.covering import by_pairs

pytestmark = pytest.mark.usefixtures("one_thread")
WEIGHTS, ROWS, WHOLE = SCHEMES["int4_row"], SCHEMES["int8_row"], SCHEMES["int8_tensor"]


def inputs(seed: int = 1) -> Tensor:
    return torch.randn(7, 32, generator=torch.Generator().manual_seed(seed))


def static_model(activations: Scheme = WHOLE) -> nn.Sequential:
    """Two prepared layers whose ranges have been observed on two batches."""
    ready = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 16))
    prepare(ready, WEIGHTS, activations, static=True)
    observe(ready, True)
    for seed in (1, 2):
        ready(inputs(seed))
    observe(ready, False)
    return ready


class Twice(nn.Module):
    """One layer under two names, called by the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x)


def test_a_layer_under_two_names_is_replaced_under_both() -> None:
    """By one layer, so that it stays shared; kept under one name, it is kept under both."""
    ready = Twice()
    assert prepare(ready, WEIGHTS) == ["first", "second"]
    assert isinstance(ready.second, QuantLinear) and ready.second is ready.first
    assert convert(ready) == ["first", "second"]
    assert isinstance(ready.second, StoredLinear) and ready.second is ready.first
    with pytest.raises(ValueError, match="kept"):
        prepare(Twice(), WEIGHTS, keep=["second"])
    with pytest.raises(ValueError, match=r"itself an nn\.Linear"):  # nothing can be replaced in place there
        prepare(nn.Linear(32, 8), WEIGHTS)
    with pytest.raises(ValueError, match="itself a QuantLinear"):
        convert(QuantLinear(nn.Linear(32, 8), WEIGHTS))


def hooked() -> nn.Module:
    layer = nn.Linear(32, 8)
    layer.register_forward_hook(lambda _module, _inputs, out: 2 * out)
    return layer


class Doubled(nn.Linear):
    """A layer that computes something else than a linear layer does."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


LOST: list[tuple[Callable[[], nn.Module], str, str]] = [
    (lambda: nn.MultiheadAttention(32, 2), "0.out_proj", "reads its weight itself"),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(32, 8)), "0", "parametrization"),
    (lambda: prune.l1_unstructured(nn.Linear(32, 8), "weight", 0.5), "0", "parametrization"),
    (hooked, "0", "hooks"),
    (lambda: Doubled(32, 8), "0", "overridden forward"),
]


@pytest.mark.parametrize(("build", "name", "why"), LOST)
def test_what_codes_would_lose_is_refused(build: Callable[[], nn.Module], name: str, why: str) -> None:
    """Unless it is kept; the model is as it was."""
    model = nn.Sequential(build(), nn.Linear(8, 4))
    before = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match=f"(?s){name}.*{why}.*keep"):
        prepare(model, WEIGHTS)
    assert [type(m) for m in model.modules()] == before
    assert name not in prepare(model, WEIGHTS, keep=[name])


MOVED = [
    (rule, static, dtype)
    for rule in Rule
    for static in (False, True)
    for dtype in (torch.bfloat16, torch.float16, torch.float64)
]


@pytest.mark.parametrize(("rule", "static", "dtype"), by_pairs(MOVED, lambda *parts: parts))
def test_scales_stay_in_float32_in_a_model_of_16_bits(rule: Rule, static: bool, dtype: torch.dtype) -> None:
    """Rounded scales would move every weight of a block; the layers still run, before and after convert."""
    ready = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 16))
    prepare(ready, WEIGHTS, WHOLE if static else ROWS, rule=rule, static=static)
    observe(ready, True)
    ready(inputs())
    observe(ready, False)
    stored = copy.deepcopy(ready)
    convert(stored)
    for module in (ready, stored):
        original = copy.deepcopy(module)
        module(inputs()).sum()
        module.to(dtype)
        assert module(inputs().to(dtype)).dtype == dtype
        for (name, value), want in zip(
            module.state_dict().items(), original.state_dict().values(), strict=True
        ):
            if any(word in name for word in ("scale", "step", "low", "high")):
                assert value.dtype == torch.float32 and torch.equal(value, want), name
    first, was = stored[0], original[0]
    assert isinstance(first, StoredLinear) and isinstance(was, StoredLinear)
    assert torch.equal(first.quantized().dequantize(), was.quantized().dequantize())


def test_static_ranges_travel_with_the_state() -> None:
    """Into a model that observed nothing; also under version 0.2's names, without "inputs"."""
    ready, other, old = static_model(), static_model(), static_model()
    for fresh in (other, old):
        for module in fresh.modules():
            if isinstance(module, QuantLinear):
                module.inputs = StaticInputs(WHOLE)
    state = ready.state_dict()
    other.load_state_dict(state)
    old.load_state_dict({name.replace("inputs.", ""): value for name, value in state.items()})
    assert torch.equal(other(inputs()), ready(inputs())) and torch.equal(old(inputs()), ready(inputs()))


@pytest.mark.parametrize("calibrator", ["minmax", "percentile", "mse", "entropy"])
def test_a_static_range_is_the_observers(calibrator: str) -> None:
    """By the calibrator of the inputs' scheme, over all batches."""
    scheme = dataclasses.replace(WHOLE, calibrator=CALIBRATORS[calibrator])
    layer, seen = StaticInputs(scheme), Observer()
    layer.observing = True
    batches = [inputs(seed) ** 3 for seed in range(4)]
    for batch in batches:
        layer(batch)
        seen.add(batch)
    layer.observing = False
    limit = {
        "minmax": seen.amax,
        "percentile": seen.percentile(),
        "mse": seen.squared_error(128),
        "entropy": seen.entropy(128),
    }[calibrator]
    assert float(layer.high) == pytest.approx(min(seen.high, limit), rel=1e-6)
    assert float(layer.low) == pytest.approx(max(seen.low, -limit), rel=1e-6)
    want = quantize(batches[0], scheme, clip_range=Range(layer.low, layer.high)).dequantize()
    assert torch.equal(layer(batches[0]), want)


@pytest.mark.parametrize("converted", [False, True], ids=["prepared", "converted"])
@pytest.mark.parametrize("kind", [Rule.STE_CLIPPED, Rule.LSQ, "static"])
def test_layers_compile_whole(kind: Rule | str, converted: bool) -> None:
    """Without a break of the graph; a prepared layer's gradient too."""
    ready = static_model() if kind == "static" else nn.Sequential(nn.Linear(32, 16))
    if isinstance(kind, Rule):
        prepare(ready, WEIGHTS, ROWS, rule=kind)
    if converted:
        convert(ready)
    torch._dynamo.reset()
    compiled = torch.compile(ready, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs()), ready(inputs()))
    if not converted:
        compiled(inputs()).sum().backward()
        assert all(parameter.grad is not None for parameter in ready.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_straight_through_gives_the_quantized_values(dtype: torch.dtype) -> None:
    """Exactly, and the gradient unchanged; x + (q - x) rounds away from the grid."""
    for name in ("ternary_absmean", "int8_row", "fp8_e4m3_row", "nvfp4"):
        x = (torch.randn(16, 64) * 3 + 0.3).to(dtype).requires_grad_()
        out = straight_through(x, SCHEMES[name])
        assert torch.equal(out, quantize(x, SCHEMES[name]).dequantize().to(dtype))
        slope = torch.randn_like(out)
        out.backward(slope)
        assert x.grad is not None and torch.equal(x.grad, slope)
        assert torch.equal(DynamicInputs(SCHEMES[name], masked=False)(x), out)
