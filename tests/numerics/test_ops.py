"""The torch operators: same answers as the library, fake tensors, autograd, and ``torch.compile``.

If these fail, models that use them break under compilation or train with a wrong gradient.
"""

from __future__ import annotations

import pytest
import torch

from explorer import FORMATS, SCHEMES, Mapping, Range, Scheme, fake_quantize, quantize
from explorer.numerics.ops import inside_range, register

NAMES = ["int8_channel", "int4_group128_asym", "nvfp4", "mxfp4", "ternary_twn", "bf16", "fp8_e4m3_tile"]


@pytest.mark.parametrize("name", NAMES)
def test_operators_pass_opcheck(name: str, device: torch.device) -> None:
    """Schema, fake tensors, autograd registration and ahead-of-time dispatch, by torch's own checker."""
    x = torch.randn(16, 256, device=device)
    torch.library.opcheck(torch.ops.explorer.quantize.default, (x, name))
    answers = torch.ops.explorer.quantize(x, name)
    torch.library.opcheck(torch.ops.explorer.dequantize.default, (*answers, name, 256, torch.float32))
    torch.library.opcheck(torch.ops.explorer.fake_quantize.default, (x.requires_grad_(), name))


@pytest.mark.parametrize("name", SCHEMES)
def test_operators_are_the_library(name: str) -> None:
    x = torch.randn(9, 200)
    answers = torch.ops.explorer.quantize(x, name)
    want = quantize(x, SCHEMES[name])
    assert torch.equal(answers[0], want.packed)
    restored = torch.ops.explorer.dequantize(*answers, name, 200, torch.float32)
    assert torch.equal(restored, want.dequantize())
    assert torch.equal(fake_quantize(x, SCHEMES[name]), want.dequantize())


def test_compile_does_not_break_on_them() -> None:
    """One graph, no break, and the same answer."""

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(fake_quantize(x * 2, SCHEMES["int8_channel"])) + 1

    x = torch.randn(4, 64)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), block(x))


def test_gradient_passes_inside_and_stops_where_clipped() -> None:
    """MXFP4 by the OCP rule clips: there the gradient is 0, elsewhere it is the incoming one."""
    x = torch.randn(8, 256, requires_grad=True)
    upstream = torch.randn(8, 256)
    fake_quantize(x, SCHEMES["mxfp4"]).backward(upstream)
    mask = inside_range(x.detach(), quantize(x.detach(), SCHEMES["mxfp4"]))
    assert not bool(mask.all()) and x.grad is not None
    assert torch.equal(x.grad, upstream * mask)


def test_the_mask_is_torchs() -> None:
    """With step .01 and INT8: inside at -1.285 (rounds to -128), outside at 1.275 (to 128) and -1.30."""
    x = torch.tensor([[-1.285, 1.275, -1.30, 1.27, 0.0]])
    scheme = Scheme("int8_full_for_mask", "t", FORMATS["int8"], mapping=Mapping.FULL)
    wanted = Range(torch.tensor([[-1.275]]), torch.tensor([[1.275]]))
    q = quantize(x, scheme, wanted=wanted)
    assert float(q.scales.stored) == pytest.approx(0.01)
    got = inside_range(x, q)[0].tolist()
    torch_x = x.clone().requires_grad_()
    torch.fake_quantize_per_tensor_affine(torch_x, float(q.scales.stored), 0, -128, 127).sum().backward()
    assert torch_x.grad is not None
    assert got == (torch_x.grad[0] != 0).tolist()


def test_fake_quantize_takes_any_rank() -> None:
    for shape in ((64,), (3, 64), (2, 3, 64)):
        assert fake_quantize(torch.randn(shape), SCHEMES["int4_group32"]).shape == shape


def test_unknown_and_conflicting_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no scheme 'nope'"):
        torch.ops.explorer.quantize(torch.randn(2, 32), "nope")
    with pytest.raises(ValueError, match="belongs to another scheme"):
        register(Scheme("nvfp4", "not it", FORMATS["int8"]))
