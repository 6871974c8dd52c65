"""The torch operators: same answers as the library, fake tensors, autograd, and ``torch.compile``.

If these fail, models that use them break under compilation or train with a wrong gradient.
"""

from __future__ import annotations

import pytest
import torch

from explorer import FORMATS, SCHEMES, MappingType, Range, Scheme, fake_quantize, quantize
from explorer.core.ops import inside_range, learned_quantize
from tests.covering import EACH_SCHEME, sampled

NAMES = sampled(
    ["int8_row", "int4_group128_asym", "nvfp4", "mxfp4", "ternary_twn", "bf16", "fp8_e4m3_128x128", "q4_k",
     "q6_k", "nf4_block64_double"],
    ("int4_group128_asym", "nvfp4", "q4_k"),
)  # fmt: skip


COMPILED = (
    "int8_row",
    "int4~1x48~asymmetric~bfloat16~mse~fit~s7",
    "float8_e4m3fn~row~symmetric~float8_e5m2~absmean",
    "nf4~flat48~symmetric~nested~minmax~reciprocal~unrounded",
)


@pytest.mark.parametrize("name", [*NAMES, *sampled(COMPILED, COMPILED[1:2])])
def test_operators_pass_opcheck(name: str, device: torch.device) -> None:
    """Schema, fake tensors, autograd registration and ahead-of-time dispatch, by torch's own checker."""
    x = torch.randn(16, 256, device=device)
    torch.library.opcheck(torch.ops.explorer.quantize.default, (x, name))
    answers = torch.ops.explorer.quantize(x, name)
    torch.library.opcheck(torch.ops.explorer.dequantize.default, (*answers, name, 256, torch.float32))
    torch.library.opcheck(torch.ops.explorer.fake_quantize.default, (x.requires_grad_(), name))


@pytest.mark.parametrize("name", [*EACH_SCHEME, *COMPILED])
def test_operators_are_the_library(name: str) -> None:
    """For rows, and for schemes without a row of their own."""
    x, scheme = torch.randn(9, 200), Scheme.parse(name)
    answers = torch.ops.explorer.quantize(x, name)
    want = quantize(x, scheme)
    assert torch.equal(answers[0], want.packed)
    restored = torch.ops.explorer.dequantize(*answers, name, 200, torch.float32)
    assert torch.equal(restored, want.dequantize())
    assert torch.equal(fake_quantize(x, scheme), want.dequantize())


@pytest.mark.parametrize("text", sampled(COMPILED, COMPILED[:2]))
def test_compile_does_not_break_on_them(text: str) -> None:
    """One graph, no break, and the same answer; for schemes with a row of their own and without."""
    scheme = Scheme.parse(text)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(fake_quantize(x * 2, scheme)) + 1

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
    scheme = Scheme("int8_full_for_mask", "t", FORMATS["int8"], mapping=MappingType.FULL)
    clip_range = Range(torch.tensor([[-1.275]]), torch.tensor([[1.275]]))
    q = quantize(x, scheme, clip_range=clip_range)
    assert float(q.scales.stored) == pytest.approx(0.01)
    got = inside_range(x, q)[0].tolist()
    torch_x = x.clone().requires_grad_()
    torch.fake_quantize_per_tensor_affine(torch_x, float(q.scales.stored), 0, -128, 127).sum().backward()
    assert torch_x.grad is not None
    assert got == (torch_x.grad[0] != 0).tolist()


def test_learned_steps_by_the_closed_form() -> None:
    """LSQ on six values, step .1, codes -4 ... 3, upstream 1: the reference's worked example, torch's
    operator as witness.
    """
    scheme = Scheme("lsq_int3", "t", FORMATS["int3"], mapping=MappingType.FULL)
    x = torch.tensor([[-0.9, -0.31, -0.02, 0.13, 0.26, 0.8]], requires_grad=True)
    step = torch.tensor([[0.1]], requires_grad=True)
    out = learned_quantize(x, step, scheme)
    out.sum().backward()
    assert torch.allclose(out, torch.tensor([[-0.4, -0.3, 0.0, 0.1, 0.3, 0.3]]))
    assert x.grad is not None and x.grad.tolist() == [[0, 1, 1, 1, 1, 0]]
    assert step.grad is not None and float(step.grad) == pytest.approx(-0.1414214, abs=1e-6)
    theirs = [
        x.detach().clone().requires_grad_(),
        torch.tensor([0.1], requires_grad=True),
        torch.tensor([0.0], requires_grad=True),
    ]
    torch._fake_quantize_learnable_per_tensor_affine(*theirs, -4, 3, (6 * 3) ** -0.5).sum().backward()
    assert theirs[1].grad is not None and float(step.grad) == pytest.approx(float(theirs[1].grad), rel=1e-5)


@pytest.mark.parametrize("block", [(None, None), (1, None), (1, 32), (2, 30)])
def test_learned_steps_pass_opcheck_and_any_block(
    block: tuple[int | None, int | None], device: torch.device
) -> None:
    """The step's gradient in every block is Σ upstream · slope / √(elements · largest code)."""
    scheme = Scheme(f"lsq_{block}", "t", FORMATS["int4"], block, mapping=MappingType.FULL)
    x = torch.randn(5, 64, device=device)
    step = torch.full(scheme.grid((5, 64)), 0.2, device=device)
    torch.library.opcheck(
        torch.ops.explorer.learned_quantize.default, (x.requires_grad_(), step.requires_grad_(), str(scheme))
    )
    step = step.detach().requires_grad_()
    learned_quantize(x, step, scheme).sum().backward()
    v = x.detach() / 0.2
    slope = torch.where((v > -8) & (v < 7), v.round() - v, v.clamp(-8, 7))
    assert step.grad is not None
    each = (block[0] or 5) * (block[1] or 64)
    assert float(step.grad.sum()) == pytest.approx(float(slope.sum()) / (each * 7) ** 0.5, rel=1e-4)


def test_steps_are_learned_for_symmetric_integers_only() -> None:
    x = torch.randn(2, 32)
    for text in ("nvfp4", "int8_tensor_asym", "q4_1", "int4~1x32~minimum~float32~minmax"):
        with pytest.raises(ValueError, match="symmetric integer"):
            learned_quantize(x, torch.ones(2, 1), Scheme.parse(text))
    for text in ("q3_k", "int4~flat16~symmetric~float32~minmax", "int4~1x16~symmetric~nested~minmax"):
        with pytest.raises(ValueError, match="one scale each"):
            learned_quantize(x, torch.ones(2, 2), Scheme.parse(text))
    with pytest.raises(ValueError, match=r"expected float32 steps \[2, 1\]"):
        learned_quantize(x, torch.ones(1, 1), SCHEMES["int8_row"])


def test_fake_quantize_takes_any_rank() -> None:
    for shape in ((64,), (3, 64), (2, 3, 64)):
        assert fake_quantize(torch.randn(shape), SCHEMES["int4_group32"]).shape == shape


def test_unknown_names_are_refused_and_a_borrowed_name_changes_nothing() -> None:
    """A scheme that carries another one's name must not be quantized as that other one."""
    x = torch.randn(2, 32)
    with pytest.raises(ValueError, match="no scheme 'nope'"):
        torch.ops.explorer.quantize(x, "nope")
    borrowed = Scheme("nvfp4", "not it", FORMATS["int8"])
    assert torch.equal(fake_quantize(x, borrowed), quantize(x, borrowed).dequantize())
    assert not torch.equal(fake_quantize(x, borrowed), fake_quantize(x, SCHEMES["nvfp4"]))
