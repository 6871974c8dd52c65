"""On a GPU: ``explorer.linear`` against the float64 product of what it multiplies, by every form, in graphs
and compiled, and layers that move between devices.

If these fail, a model that runs under a recipe is another model than the one whose loss was measured.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import explorer
from explorer import SCHEMES, QuantizedLinear, Scheme
from explorer.gpu.gemm import unpack_codes, unpack_values
from explorer.gpu.gemm.swap_ab import TILE_K
from explorer.products import layouts
from explorer.products.gemms import GEMMS, Gemm
from explorer.products.linear import held
from explorer.products.variants import Variant
from explorer.products.weights import (
    MANY_TOKENS,
    LoadedWeight,
    RegistersForm,
    RestoredForm,
    TilesForm,
    form_called,
)
from explorer.running.fused import fuse
from tests.gpu.test_gemms import bound, draw

pytestmark = pytest.mark.gpu
ROWS = [
    row
    for row in GEMMS.values()
    if any("swap A/B" in v.name for v in row.variants) and row.name != "bf16" and not row.dynamic
]
SHAPES = [(1, 8, 16), (3, 5, 7), (17, 33, 129), (1, 300, 1000), (130, 264, 384), (MANY_TOKENS + 1, 136, 520)]


def x_scheme_of(row: Gemm) -> Scheme | None:
    return None if row.x.scale is None else row.x


def swapped(row: Gemm) -> Variant:
    return next(v for v in row.variants if v.name == "swap A/B")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_linear_is_within_the_bound(row: Gemm, dtype: torch.dtype) -> None:
    for index, (m, n, k) in enumerate(SHAPES):
        x, w = draw(m, n, k, index)
        if row.x.scale is None:
            x = x.half().bfloat16().float()  # values that both types hold, but for the smallest
            x = x.to(dtype).float()
        bias = torch.randn(n, device="cuda") if index % 2 else None
        ops = row.operands(x, w, bias)
        product, size = ops.exact()
        want = ops.finished(product)
        given = x if row.x.scale is not None else x.to(dtype)
        got = explorer.linear(given, ops.w.q, bias, x_scheme_of(row))
        assert got.dtype == given.dtype and tuple(got.shape) == (m, n)
        assert held(ops.w.q, x_scheme_of(row)).form.name in ("tiles", "rows"), explorer.explain(ops.w.q)
        allowed = bound(ops, swapped(row), want, size) + 2.0**-8 * size * (m > MANY_TOKENS)
        wrong = ~((got.double() - want).abs() <= allowed)
        assert not bool(wrong.any()), f"{row.name} {m}x{n}x{k}: {int(wrong.sum())} of {wrong.numel()}"


@pytest.mark.parametrize("name", [s.name for s in SCHEMES.values()])
def test_codes_come_back_from_every_form(name: str) -> None:
    """If this fails, a layer's state is not what was quantized, or a model moved to a CPU is another."""
    scheme = SCHEMES[name]
    w = torch.randn(72, 384, device="cuda") * torch.logspace(-3, 3, 384, device="cuda")
    q = explorer.quantize(w, scheme)
    weight = LoadedWeight.of(q, None)
    back = weight.form.unload(weight.tensors, q.scales)
    assert torch.equal(back.packed, q.packed), weight.form.name
    restored = form_called(weight.form.text).weight(weight.tensors, torch.float32)
    want = q.dequantize()
    if weight.form.name == "restored":
        assert torch.equal(restored, want)
    else:
        assert bool(((restored - want).abs() <= 2.0**-8 * want.abs() + 1e-30).all())


@pytest.mark.parametrize("row", [r for r in ROWS if r.x.scale is None], ids=lambda row: row.name)
def test_unpacked_tiles_are_the_repacked(row: Gemm) -> None:
    """Rows and columns beyond the last whole tile included."""
    for n, k in ((1, 16), (64, TILE_K), (70, 384 + 24), (130, 1000)):
        q = explorer.quantize(torch.randn(n, k, device="cuda"), row.w)
        tiles = TilesForm(row.w, None, (n, k)).tiles
        packed = layouts.tiled_weights(q, tiles)
        codes = unpack_codes(packed, tiles, n, k)
        assert torch.equal(codes, q.codes.to(torch.uint8) & ((1 << tiles.bits) - 1))
        values = unpack_values(packed, tiles, n, k)
        assert values.shape[1] % 8 == 0 and not bool(values[:, k:].any())


FORMED: dict[str, Callable[[], tuple[explorer.QuantizedTensor, Scheme | None]]] = {
    "tiles": lambda: (explorer.quantize(draw(1, 264, 512)[1], SCHEMES["int4_group128"]), None),
    "folded": lambda: (explorer.quantize(draw(1, 264, 512)[1], SCHEMES["nvfp4"]), None),
    "bytes": lambda: (explorer.quantize(draw(1, 264, 512)[1], SCHEMES["int8_row"]), SCHEMES["int8_row"]),
    "blocks": lambda: (
        explorer.quantize(draw(1, 256, 512)[1], SCHEMES["fp8_e4m3_128x128"]),
        SCHEMES["fp8_e4m3_1x128"],
    ),
    "restored": lambda: (explorer.quantize(draw(1, 264, 512)[1], SCHEMES["q4_k"]), None),
}


@pytest.mark.parametrize("kind", FORMED)
def test_the_operator_is_what_torch_expects(kind: str) -> None:
    """opcheck: schema, fake, and that autograd does not see into it."""
    q, x_scheme = FORMED[kind]()
    weight = held(q, x_scheme)
    x = draw(5, 8, 512)[0].bfloat16()
    torch.library.opcheck(
        torch.ops.explorer.linear.default,
        (x, weight.tensors, None, weight.form.text),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
    )


@pytest.mark.parametrize("kind", FORMED)
@pytest.mark.parametrize("m", [1, 16, 64, 300])
def test_graphs_and_compiled_models_give_the_same_bits(kind: str, m: int) -> None:
    """Four layers one after another, ordinary allocation, five replays with other inputs."""
    torch._dynamo.reset()  # torch compiles one code object for eight kinds of layers, no more
    q, x_scheme = FORMED[kind]()
    square = explorer.quantize(draw(1, 512, 512)[1], q.scheme)
    layers = torch.nn.Sequential(*(QuantizedLinear(square, None, x_scheme) for _ in range(3)))
    layers.append(QuantizedLinear(q, torch.randn(q.shape[0], device="cuda"), x_scheme))
    inputs = [draw(m, 1, 512, seed)[0].bfloat16() for seed in range(5)]
    with torch.no_grad():
        want = [layers(x) for x in inputs]
        compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(inputs[0]), want[0])
        static = inputs[0].clone()
        layers(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layers(static)
        for x, expected in zip(inputs, want, strict=True):
            static.copy_(x)
            graph.replay()
            assert torch.equal(out, expected)


@pytest.mark.parametrize("form", [RegistersForm, RestoredForm])
def test_forms_of_other_chips_are_right_here(form: type) -> None:
    q = explorer.quantize(draw(1, 264, 512)[1], SCHEMES["int4_group128_asym"])
    weight = LoadedWeight.of(q, None, form)
    for m in (1, 7, 32, 33):
        x = draw(m, 1, 512)[0].bfloat16()
        got = torch.ops.explorer.linear(x, weight.tensors, None, weight.form.text).double()
        want = x.double() @ q.dequantize().double().t()
        size = x.double().abs() @ q.dequantize().double().abs().t()
        assert bool(((got - want).abs() <= 2.0**-7 * size).all())


@pytest.mark.parametrize("name", ["int4_group128_asym", "nvfp4", "int8_row", "ternary_absmean", "q4_k"])
def test_a_layer_moves_and_is_the_same(name: str) -> None:
    linear = torch.nn.Linear(512, 264).cuda().bfloat16()
    layer = QuantizedLinear.of(linear, SCHEMES[name])
    x = draw(3, 1, 512)[0].bfloat16()
    with torch.no_grad():
        want = layer(x)
        codes = layer.quantized.packed.clone()
        there = copy.deepcopy(layer)
        assert torch.equal(there(x), want)
        on_cpu = layer.cpu()
        assert on_cpu.device.type == "cpu" and torch.equal(on_cpu.quantized.packed, codes.cpu())
        assert torch.equal(on_cpu.cuda()(x), want)
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        buffer.seek(0)
        other = QuantizedLinear.of(torch.nn.Linear(512, 264).cuda().bfloat16(), SCHEMES[name])
        other.load_state_dict(torch.load(buffer))
        assert torch.equal(other(x), want)


def test_gradients_are_those_of_the_restored_weight() -> None:
    q = explorer.quantize(draw(1, 264, 512)[1], SCHEMES["int4_group128"])
    x = draw(9, 1, 512)[0].bfloat16().requires_grad_()
    bias = torch.randn(264, device="cuda", requires_grad=True)
    explorer.linear(x, q, bias).float().pow(2).sum().backward()
    with torch.no_grad():
        y = (x @ q.dequantize(torch.bfloat16).t() + bias.bfloat16()).float()
        want = 2 * y @ q.dequantize()
    assert x.grad is not None and bias.grad is not None
    assert float((x.grad.float() - want).norm() / want.norm()) < 0.02
    assert float((bias.grad - 2 * y.sum(0)).norm() / y.sum(0).norm()) < 0.02


def test_any_view_and_stream() -> None:
    """Strided, offset and expanded X, and a slow producer on another stream."""
    q = explorer.quantize(draw(1, 264, 512)[1], SCHEMES["int4_group128"])
    whole = draw(40, 1, 1100)[0].bfloat16()
    views: list[Tensor] = [whole[:, 3:515], whole[::2, :512], whole[:, :1].expand(40, 512)]
    views += [whole.t()[:512].t(), whole[:, :1024].view(40, 2, 512), whole[:0, :512]]
    for x in views:
        assert torch.equal(explorer.linear(x, q), explorer.linear(x.contiguous().clone(), q))
    side, x = torch.cuda.Stream(), views[0].contiguous()
    want = explorer.linear(x * 2, q)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        got = explorer.linear(x * 2, q)
    side.synchronize()
    assert torch.equal(got, want)


JOINED = [
    ("int4_group128", None), ("nvfp4", None), ("int8_row", None), ("fp8_e4m3_tensor", None),
    ("int8_row", "int8_row"), ("int8_row_asym", "int8_row_asym"), ("fp8_e4m3_tensor", "fp8_e4m3_tensor"),
    ("fp8_e4m3_128x128", "fp8_e4m3_1x128"), ("int4_group128", "int8_row"),
]  # fmt: skip


@pytest.mark.parametrize(("w", "x"), JOINED)
def test_layers_of_one_input_joined_are_what_they_were(w: str, x: str | None) -> None:
    """Query, key and value of other sizes and magnitudes, as one product: the same bits, but where the sums
    of other divisions of K are added in another order."""
    block = torch.nn.Module()
    for name, rows, size in (("q_proj", 384, 1.0), ("k_proj", 128, 0.01), ("v_proj", 256, 30.0)):
        linear = torch.nn.Linear(520, rows, device="cuda", dtype=torch.bfloat16)
        linear.weight.data *= size
        setattr(block, name, QuantizedLinear.of(linear, SCHEMES[w], SCHEMES[x] if x else None))
    given = draw(5, 1, 520)[0].bfloat16()
    names = ("q_proj", "k_proj", "v_proj")
    with torch.no_grad():
        want = [getattr(block, name)(given) for name in names]
        assert fuse(block) == 1
        for name, expected in zip(names, want, strict=True):
            got = getattr(block, name)(given).float()
            assert float((got - expected.float()).abs().max() / expected.float().abs().max()) < 2.0**-7
