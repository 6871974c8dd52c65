"""Which work the GPU's backend gives to kernels and which to torch, without a GPU: kernels say their names.

If these fail, a kernel is asked for what it cannot do, the host misses NaN, or torch does a kernel's work.
What kernels compute is asked on a GPU (tests/gpu).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.core import cuda
from explorer.core.cuda import Cuda
from explorer.core.lowering import Lowered, config_of, layout_of
from explorer.core.reference import Reference
from explorer.gpu.quantize import Output
from explorer.schemes import Scales

KERNELS = {
    "quantize_kernel": "quantize", "dequantize_kernel": "dequantize",
    "fake_kernels.fake_quantize": "fake_quantize", "fake_kernels.learned_forward": "learned_quantize",
    "fake_kernels.learned_backward": "learned_gradients", "statistics.error_sums": "error_sums",
    "statistics.histogram": "histogram", "statistics.byte_counts": "byte_counts",
    "statistics.code_counts": "code_counts", "statistics.tile_maximum": "tile_maximum",
}  # fmt: skip
"""Where ``core.cuda`` has each kernel's launcher, and the operation that it serves."""


class LaunchedError(Exception):
    """A kernel was asked; the arguments are its name and what it was given."""


def launcher(name: str) -> Callable[..., NoReturn]:
    def launch(*given: Any, **named: Any) -> NoReturn:
        raise LaunchedError(name, given)

    return launch


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose kernels compute nothing; its work has always ended, and no graph is captured."""
    for place, name in KERNELS.items():
        monkeypatch.setattr(f"explorer.core.cuda.{place}", launcher(name))
    monkeypatch.setattr(Lowered, "plan", lambda self, x: SimpleNamespace(start=launcher("plan")))
    monkeypatch.setattr(cuda.runtime, "is_current", lambda index: True)
    monkeypatch.setattr(cuda.runtime, "is_capturing", lambda device: False)
    monkeypatch.setattr(cuda.runtime, "wait", lambda index: None)
    monkeypatch.setattr(cuda, "flag_of_thread", lambda: SimpleNamespace(address=5, lower=lambda: False))
    monkeypatch.setattr(cuda, "abandon_flag", lambda: None)


X = torch.randn(6, 256, generator=torch.Generator().manual_seed(0))
PLAIN, FIT, OTHER = "int4_group128", "int4~1x128~symmetric~float16~minmax~fit", "q8_0"
"""A scheme with kernels, one whose scales torch finds, and one without kernels."""
NAN = torch.where(torch.arange(256) == 3, torch.nan, X)
APART = X.t().contiguous().t()
"""``X`` with its columns one after another in memory."""


def encoded(x: Tensor, text: str) -> tuple[Any, ...]:
    scheme = Scheme.parse(text)
    return x, quantize(torch.where(x.isfinite(), x, 0), scheme).scales, scheme


def stored(text: str, dtype: torch.dtype) -> tuple[Any, ...]:
    q = quantize(X, Scheme.parse(text))
    return q.packed, q.scales, q.scheme, q.shape, dtype


def learned(x: Tensor, text: str, *more: Tensor) -> tuple[Any, ...]:
    scheme = Scheme.parse(text)
    return x, *more, torch.full(layout_of((6, 256), SCHEMES[PLAIN]).grid, 0.1), scheme


def summed(x: Tensor, text: str) -> tuple[Any, ...]:
    scheme = Scheme.parse(text)
    grid = quantize(x, scheme).scales.scale
    return x, x * 0.9, grid * -7, grid * 7, scheme


PACKED = quantize(X, SCHEMES["int8_row"]).packed
FLAT = "int4~flat64~symmetric~float16~minmax"
CALLS: list[tuple[str, tuple[Any, ...], bool]] = [
    ("quantize", (X, SCHEMES[OTHER]), False),
    ("quantize", (X, Scheme.parse(FIT)), False),
    ("encode", encoded(X, PLAIN), True),
    ("encode", encoded(X, FIT), False),
    ("encode", encoded(X, OTHER), False),
    ("encode", encoded(NAN, "fp8_e4m3_row"), False),
    ("dequantize", stored(PLAIN, torch.float32), True),
    ("dequantize", stored("fp32", torch.float32), True),
    ("dequantize", stored("fp32", torch.bfloat16), False),
    ("dequantize", stored(OTHER, torch.float32), False),
    ("fake_quantize", (X, SCHEMES[PLAIN]), True),
    ("fake_quantize", (X.double(), SCHEMES[PLAIN]), False),
    ("fake_quantize", (X, Scheme.parse(FIT)), False),
    ("fake_quantize", (X, SCHEMES["mxint8"]), False),
    ("fake_quantize", (X, SCHEMES[OTHER]), False),
    ("learned_quantize", learned(X, PLAIN), True),
    ("learned_quantize", learned(X.half(), PLAIN), True),
    ("learned_quantize", learned(X.double(), PLAIN), False),
    ("learned_quantize", learned(X, "int4_group128_vllm"), False),
    ("learned_gradients", learned(X, PLAIN, X), True),
    ("learned_gradients", learned(X.double(), PLAIN, X), False),
    ("learned_gradients", learned(X, "int4_group128_vllm", X), False),
    ("error_sums", summed(X, PLAIN), True),
    ("error_sums", summed(X, OTHER), True),
    ("error_sums", summed(X, FLAT), True),  # of rows of one block each
    ("error_sums", summed(X[:0], PLAIN), False),
    ("histogram", (X, -4.0, 8.0, 64), True),
    ("histogram", (X, -4.0, 8.0, 64, X * 0.9), True),
    ("histogram", (APART, -4.0, 8.0, 64), False),
    ("histogram", (X, -4.0, 8.0, 64, APART), False),
    ("histogram", (X.double(), -4.0, 8.0, 64), False),
    ("byte_counts", (PACKED,), True),
    ("byte_counts", (PACKED[:, ::2],), False),
    ("code_counts", (PACKED, SCHEMES["int8_row"].format, 256), True),
    ("code_counts", (PACKED[:, ::2], SCHEMES["int8_row"].format, 128), False),
    ("tile_maximum", (X, 2, 16), True),
    ("tile_maximum", (APART, 2, 16), False),
    ("tile_maximum", (X.double(), 2, 16), False),
]


@pytest.mark.parametrize("operation", dict.fromkeys(operation for operation, *_ in CALLS))
def test_who_does_an_operation(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel serves what it was written for; everything else is the reference's, with its result."""
    if operation == "fake_quantize":  # it quantizes and restores by the others
        for name in ("quantize", "dequantize"):
            own = getattr(Reference(), name)
            monkeypatch.setattr(Cuda, name, lambda self, *given, own=own: own(*given))
    for place, (called, given, by_kernel) in enumerate(CALLS):
        if called != operation:
            continue
        if by_kernel:
            name = "quantize" if operation == "encode" else operation
            with pytest.raises(LaunchedError, match=name):
                getattr(Cuda(), operation)(*given)
            continue
        got, want = (getattr(backend(), operation)(*given) for backend in (Cuda, Reference))
        for a, b in zip(plain(got), plain(want), strict=True):
            assert a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num()), place


def plain(found: Any) -> list[Tensor]:
    """The tensors of a result."""
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, Scales):
        return [found.scale]
    parts = found if isinstance(found, tuple) else vars(found).values()
    return [
        one
        for part in parts
        for one in (plain(part) if isinstance(part, Tensor | Scales) else [_number(part)])
    ]


def _number(part: Any) -> Tensor:
    return torch.zeros(0) if part is None else torch.tensor(part)


def test_kernels_that_find_the_scales_are_planned_once() -> None:
    """Only a call that checks its input gives the host's flag; ``float64`` is converted before."""
    for x, check in itertools.product((X, X.double()), (True, False)):
        with pytest.raises(LaunchedError, match="plan") as launched:
            Cuda().quantize(x, SCHEMES[PLAIN], check=check)
        _, (seen, flag) = launched.value.args
        assert seen.dtype is torch.float32 and flag == (5 if check else None)


def test_blocks_of_the_flattened_tensor_are_rows_of_the_kernel() -> None:
    """The kernel knows no blocks across rows: it is given a matrix whose rows hold whole blocks."""
    with pytest.raises(LaunchedError, match="error_sums") as launched:
        Cuda().error_sums(*summed(X[:, :96].contiguous(), FLAT))
    x, _, low, _, layout = launched.value.args[1]
    assert x.shape == (layout.rows, layout.columns) and layout.height == 1 and layout.width == 64
    assert low.numel() == layout.cells == 9


def test_a_graph_captures_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch operations that the host waits for are refused while a graph is captured; kernels are launched,
    and no flag is waited for."""
    monkeypatch.setattr(cuda.runtime, "is_capturing", lambda device: True)
    with pytest.raises(ValueError, match=f"{OTHER} is not quantized by kernels"):
        Cuda().quantize(X, SCHEMES[OTHER])
    with pytest.raises(LaunchedError, match="plan") as launched:
        Cuda().quantize(X, SCHEMES[PLAIN])
    assert launched.value.args[1][1] is None


def output_of(x: Tensor, scheme: Scheme, sums: Tensor | None = None) -> Output:
    """What kernels leave of ``x``, made by the reference."""
    q = quantize(x, scheme)
    return Output(q.packed, q.scales.scale, None, None, torch.zeros(1), sums, ())


def test_what_the_kernels_flag_is_said_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A raised flag is an error in words, even where the values have changed since."""
    flag = SimpleNamespace(address=5, lower=lambda: True)
    monkeypatch.setattr(cuda, "flag_of_thread", lambda: flag)
    output = output_of(X, SCHEMES["int8_row"])
    monkeypatch.setattr(Lowered, "plan", lambda *_: SimpleNamespace(start=lambda x, flag, capturing: output))
    for x, words in ((NAN, "NaN"), (X, "others now")):
        with pytest.raises(ValueError, match=words):
            Cuda().quantize(x, SCHEMES["int8_row"])
    flag.lower = lambda: False
    packed, scales, bad = Cuda().quantize(X, SCHEMES["int8_row"])
    assert packed is output.packed and torch.equal(scales.scale, output.scales) and bad is None


def test_a_flag_that_was_not_waited_for_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels may yet write to it: the next call of the thread takes another."""
    left = list[int]()
    monkeypatch.setattr(cuda, "abandon_flag", lambda: left.append(1))
    output = output_of(X, SCHEMES["int8_row"])
    monkeypatch.setattr(Lowered, "plan", lambda *_: SimpleNamespace(start=lambda x, flag, capturing: output))
    for error in (KeyboardInterrupt, RuntimeError):

        def wait(_: int, error: type[BaseException] = error) -> None:
            raise error("stopped")

        monkeypatch.setattr(cuda.runtime, "wait", wait)
        with pytest.raises(error):
            Cuda().quantize(X, SCHEMES["int8_row"])
    assert left == [1, 1]


def test_work_runs_on_the_device_of_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's current device is another one: it is changed for the call, and only then do kernels start."""
    entered = list[torch.device]()

    @contextlib.contextmanager
    def device(which: torch.device) -> Iterator[None]:
        entered.append(which)
        yield

    monkeypatch.setattr(cuda.runtime, "is_current", lambda index: bool(entered))
    monkeypatch.setattr(torch.cuda, "device", device)
    with pytest.raises(LaunchedError):
        Cuda().quantize(X, SCHEMES[PLAIN])
    assert entered == [X.device]
    entered.clear()
    with pytest.raises(LaunchedError):
        cuda.quantize_on_device(X, SCHEMES[PLAIN])
    assert entered == [X.device]


def test_given_scales_are_given_to_the_kernel() -> None:
    """As one number a block, beside the scheme in the kernels' terms; without scales its plan finds them."""
    q = quantize(X, SCHEMES["int8_row"])
    with pytest.raises(LaunchedError, match="quantize") as launched:
        cuda.quantize_on_device(X.double(), q.scheme, q.scales)
    x, config, layout, seed, per_cell, zeros = launched.value.args[1]
    assert x.dtype is torch.float32 and (config, layout, seed) == (
        config_of(q.scheme),
        layout_of(q.shape, q.scheme),
        0,
    )
    assert torch.equal(per_cell, q.scales.scale.view(-1)) and zeros is None
    with pytest.raises(LaunchedError, match="plan"):
        cuda.quantize_on_device(X, q.scheme)
    seeded = replace(SCHEMES["nvfp4_four_over_six"], seed=7)
    with pytest.raises(LaunchedError, match="quantize") as launched:
        cuda.quantize_on_device(X, seeded)
    assert launched.value.args[1][3] == 7 and launched.value.args[1][1] == config_of(seeded)


def test_a_fitted_scale_is_made_of_the_kernels_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Σx·v / Σv·v of the codes' values v, as the reference has it for the whole tensor."""
    scheme = Scheme.parse("int4~tensor~symmetric~float32~minmax~fit")
    first = quantize(X, replace(scheme, least_squares_scale=False))
    values = scheme.format.decode(first.codes).double()
    sums = torch.stack([(X.double() * values).sum(), values.square().sum()])
    output = output_of(X, first.scheme, sums)
    monkeypatch.setattr(Lowered, "plan", lambda *_: SimpleNamespace(start=lambda x, flag, capturing: output))
    _, scales, _ = Cuda().quantize(X, scheme)
    assert torch.equal(scales.scale, quantize(X, scheme).scales.scale)
    assert not torch.equal(scales.scale, first.scales.scale)
