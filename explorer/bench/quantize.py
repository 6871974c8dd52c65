"""Speed of the quantize and dequantize kernels, as a share of memory bandwidth.

The kernels are replayed from a CUDA graph; the call of ``explorer.quantize`` is timed on the clock, too.
Bytes are those that must move: each element once in (twice where a maximum over the tensor or a column comes
first), each code and scale once out. The limit is a device-to-device copy measured in the same run; baselines
are torch's own cast (FP8) and a ``torch.compile``d version of the same mathematics. Kernels are
compiled at once, by as many processes as the machine has cores, before the first is timed. torch.compile
takes up to a minute for a shape, and calls are the host's work: both are timed at the first shape alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from explorer.bench.timing import Call, buffer_sets, copy_speed, time_calls, time_graph
from explorer.core.backend import require_gpu
from explorer.core.lowering import config_of, layout_of
from explorer.core.quantize import quantize as quantize_call
from explorer.gpu import runtime
from explorer.gpu.compile import Build
from explorer.gpu.config import Config, Launch, Layout
from explorer.gpu.dequantize import builds as dequantize_builds
from explorer.gpu.dequantize import dequantize
from explorer.gpu.quantize import Output, quantize
from explorer.gpu.quantize import builds as quantize_builds
from explorer.recordings.quantize import SMALL, TWO_READS, CallTimes, QuantizeTiming
from explorer.recordings.times import TimeSpread
from explorer.schemes import SCHEMES, Scheme

Function = Callable[[Tensor], object]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CALLS, SMALL_CALLS = 20, 200
"""Number of calls in one timing, of a large matrix and of a small one."""


def time_quantize(
    schemes: Iterable[Scheme],
    shape: tuple[int, int],
    dtypes: Iterable[str],
    device: torch.device,
    baselines: bool = True,
    first: bool = True,
) -> Iterator[QuantizeTiming]:
    """Time quantize and dequantize of each scheme for each dtype; a generator, so that it can be stopped.

    baselines  True: time torch's cast too, and torch.compile if ``first``
    first      True: time calls from Python too
    """
    require_gpu()
    for dtype in dtypes:
        kind = DTYPES[dtype]
        count = buffer_sets(shape[0] * shape[1] * kind.itemsize, device)
        inputs = [torch.randn(shape, device=device).to(kind) for _ in range(count)]
        for scheme in schemes:
            yield from _time_scheme(scheme, inputs, copy_speed(inputs), baselines, first)


def builds_of(
    schemes: Iterable[Scheme], shapes: Sequence[tuple[int, int]], dtypes: Iterable[str]
) -> list[Build]:
    """List the compilations of the kernels that ``time_quantize`` runs."""
    found: dict[Build, None] = {}
    for dtype in dtypes:
        for scheme in schemes:
            config, kind = config_of(scheme), DTYPES[dtype]
            for layout in (layout_of(shape, scheme) for shape in (*shapes, SMALL)):
                found |= dict.fromkeys(quantize_builds(config, layout, kind))
                found |= dict.fromkeys(dequantize_builds(config, layout, kind))
    return list(found)


def time_one(x: Tensor, scheme: Scheme) -> QuantizeTiming:
    """Time the quantization of one CUDA matrix, such as a visitor's tensor. It uses the same buffer again and
    again, so that a small matrix is found in the L2 cache."""
    return next(_time_scheme(scheme, [x], copy_speed([x, x.clone()]), baselines=False, first=False))


@dataclass(frozen=True, eq=False)
class _Subject:
    """A scheme on some buffers, in the kernels' terms, with the copy's bytes per second."""

    scheme: Scheme
    inputs: Sequence[Tensor]
    config: Config
    layout: Layout
    copy: float

    def timing(
        self,
        operation: str,
        launches: Sequence[Launch],
        time: TimeSpread,
        moved: int,
        cast_s: float | None = None,
        compile_s: float | None = None,
        call: CallTimes | None = None,
        small_call: CallTimes | None = None,
    ) -> QuantizeTiming:
        """Make the row of ``launches``, in order; registers and occupancy are the last one's."""
        last = launches[-1]
        arch = runtime.arch_of(self.inputs[0].device)
        x = self.inputs[0]
        speed = moved / time.median_s
        return QuantizeTiming(
            scheme=self.scheme.name,
            operation=operation,
            dtype=next(key for key, kind in DTYPES.items() if kind == x.dtype),
            shape=(x.shape[0], x.shape[1]),
            kernels=tuple(launch.kernel for launch in launches),
            registers=runtime.resources(last.build, arch)[last.kernel].registers,
            occupancy=runtime.occupancy(last.build, last.kernel, x.device, last.threads),
            time=time,
            bytes_moved=moved,
            gigabytes_per_s=speed / 1e9,
            copy_gigabytes_per_s=self.copy / 1e9,
            share=speed / self.copy,
            torch_cast_s=cast_s,
            torch_compile_s=compile_s,
            call=call,
            small_call=small_call,
        )


def _time_scheme(
    scheme: Scheme, inputs: Sequence[Tensor], copy: float, baselines: bool, first: bool
) -> Iterator[QuantizeTiming]:
    shape = (inputs[0].shape[0], inputs[0].shape[1])
    subject = _Subject(scheme, inputs, config_of(scheme), layout_of(shape, scheme), copy)
    seed = scheme.seed or 0
    kernels = [partial(quantize, x, subject.config, subject.layout, seed) for x in inputs]
    outputs = [call() for call in kernels]
    yield _quantize_timing(subject, kernels, outputs[0], baselines, first)
    yield _dequantize_timing(subject, outputs)


def _quantize_timing(
    subject: _Subject, kernels: Sequence[Call], output: Output, baselines: bool, first: bool
) -> QuantizeTiming:
    two_passes = any(name.startswith(TWO_READS) for name in output.kernels)
    moved = subject.inputs[0].nbytes * (2 if two_passes else 1) + _stored_bytes(subject.scheme, output)
    time = time_graph(kernels)
    cast = _baseline_seconds(CASTS.get(subject.scheme.name), subject.inputs) if baselines else None
    compiled = (
        _baseline_seconds(torch_compiled(subject.scheme), subject.inputs) if baselines and first else None
    )
    call = _call_times(subject.scheme, subject.inputs, CALLS) if first else None
    small = [torch.randn(SMALL, device=x.device).to(x.dtype) for x in subject.inputs[:1]]
    small_call = _call_times(subject.scheme, small, SMALL_CALLS) if first else None
    return subject.timing("quantize", output.launches, time, moved, cast, compiled, call, small_call)


def _call_times(scheme: Scheme, inputs: Sequence[Tensor], count: int) -> CallTimes:
    """Time about ``count`` calls over ``inputs``; the next call frees each result."""
    device, rounds = inputs[0].device, max(1, count // len(inputs))
    checked, unchecked = (
        time_calls([partial(quantize_call, x, scheme, check=check) for x in inputs], device, rounds)
        for check in (True, False)
    )
    return CallTimes(checked, unchecked)


def _dequantize_timing(subject: _Subject, outputs: Sequence[Output]) -> QuantizeTiming:
    one, dtype = torch.ones(1, device=subject.inputs[0].device), subject.inputs[0].dtype
    calls = [
        partial(dequantize, o.packed, o.scales, o.zeros, one, subject.config, subject.layout, dtype)
        for o in outputs
    ]
    _, launch = calls[0]()
    assert launch is not None, "an empty matrix is not timed"
    moved = subject.inputs[0].nbytes + _stored_bytes(subject.scheme, outputs[0])
    return subject.timing("dequantize", (launch,), time_graph(calls), moved)


def _stored_bytes(scheme: Scheme, output: Output) -> int:
    scales = output.scales.nbytes if scheme.scale else 0
    return output.packed.nbytes + scales + (output.zeros.nbytes if output.zeros is not None else 0)


def _baseline_seconds(function: Function | None, inputs: Sequence[Tensor]) -> float | None:
    return None if function is None else time_graph([partial(function, x) for x in inputs]).median_s


# --- baselines: torch's own cast, and torch.compile of the same computation with packed codes ----------

INT8_MAX, INT4_MAX, E4M3_MAX, E2M1_MAX = 127, 7, 448, 6.0
CASTS: dict[str, Function] = {
    SCHEMES["fp8_e4m3_cast"].name: lambda x: x.to(torch.float8_e4m3fn),
    SCHEMES["fp8_e5m2_cast"].name: lambda x: x.to(torch.float8_e5m2),
}
"""torch's own cast, for FP8 without a scale."""


def torch_compiled(scheme: Scheme) -> Function | None:
    """Compile the scheme's computation by torch.compile, for the schemes in ``COMPILED``; None for others."""
    function = COMPILED.get(scheme.name)
    return None if function is None else torch.compile(function, dynamic=False)


def _int8_channel(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(1, keepdim=True) / INT8_MAX
    return (x.float() / scale).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def _fp8_1x128(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = x.float().unflatten(1, (-1, 128))
    scale = blocks.abs().amax(2, keepdim=True) / E4M3_MAX
    return (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale


def _int4_group128(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = x.float().unflatten(1, (-1, 128))
    scale = (blocks.abs().amax(2, keepdim=True) / INT4_MAX).to(torch.float16)
    codes = (blocks / scale.float()).round().clamp(-INT4_MAX, INT4_MAX).to(torch.int8).to(torch.uint8) & 15
    return _nibbles(codes), scale


def _mxfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize to MXFP4: scales by the OCP rule from the exponent's bits; codes by adding and subtracting a
    power of two that leaves one mantissa bit, so that the addition itself rounds to nearest even."""
    blocks = x.float().unflatten(1, (-1, 32))
    largest_exponent = blocks.abs().amax(2, keepdim=True).view(torch.int32) >> 23
    exponent = (largest_exponent - 2).clamp(0, 254)
    scaled = (blocks * ((254 - exponent) << 23).view(torch.float32)).abs().clamp(max=E2M1_MAX)
    magic = ((scaled.view(torch.int32) & 0x7F800000).clamp(min=127 << 23) + (22 << 23)).view(torch.float32)
    codes = ((((scaled + magic) - magic) * 2.0**-126).view(torch.int32) >> 22).to(torch.uint8)
    signs = ((blocks.view(torch.int32) >> 28) & 8).to(torch.uint8)
    return _nibbles(codes | signs), exponent.to(torch.uint8)


def _nibbles(codes: Tensor) -> Tensor:
    """Pack two codes into a byte, the first in the low bits."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


COMPILED: dict[str, Function] = {
    SCHEMES["int8_row"].name: _int8_channel,
    SCHEMES["fp8_e4m3_1x128"].name: _fp8_1x128,
    SCHEMES["int4_group128"].name: _int4_group128,
    SCHEMES["mxfp4"].name: _mxfp4,
}
"""Schemes that are also timed in torch.compile's version."""
