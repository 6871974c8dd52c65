"""A call of ``quantize`` from Python to the driver, with a library that stands in for it.

If these fail, a call gives a kernel another call's memory, NaN passes unnoticed, or the host waits where
nobody asked it to.
"""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import io
import itertools
import pickle
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scales, Scheme, compare
from explorer.core import backend, cuda, lowering
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.gpu import driver, runtime
from explorer.gpu import quantize as quantizing
from explorer.gpu.compile import KernelError
from explorer.gpu.quantize import LaunchPlan, Slot, launches
from tests.covering import FEW
from tests.kernels.conftest import HANDLE
from tests.kernels.stub import StubContext, last

GROUPS = "PPPPPPQiQ"
"""quantize_groups' parameters: x, packed, scales, zeros, amax, unusable, and numbers."""
KERNEL_ERROR = 700


class Flag:
    """A flag of the host that a kernel sets, or not."""

    address = 0x8000

    def __init__(self) -> None:
        self.is_set = False
        self.abandoned = 0

    def lower(self) -> bool:
        was_set, self.is_set = self.is_set, False
        return was_set

    def abandon(self) -> None:
        self.abandoned += 1


@pytest.fixture
def flag(library: Any, on_stub: StubContext, monkeypatch: pytest.MonkeyPatch) -> Flag:
    """``quantize`` by the kernels' backend on tensors of the CPU, outside any graph."""
    flag, sizes = Flag(), driver.arguments_of(GROUPS).sizes
    library.stub_parameters((ctypes.c_size_t * len(sizes))(*sizes), ctypes.c_size_t(len(sizes)))
    library.stub_waited.restype = ctypes.c_uint64
    library.stub_current.argtypes = (ctypes.c_uint64,)
    library.stub_current(HANDLE)
    for place, name, value in (
        (backend.gpu, "available", lambda: runtime.Availability(True, "a GPU")),
        (runtime, "is_current", lambda index: True),
        (runtime, "is_capturing", lambda device: False),
        (cuda, "flag_of_thread", lambda: flag),
        (cuda, "abandon_flag", flag.abandon),
        (lowering, "_LOWERED", {}),
    ):
        monkeypatch.setattr(place, name, value)
    monkeypatch.setattr("explorer.core.quantize.backend_for", lambda x: backend.CUDA)
    return flag


def addresses(library: Any) -> list[int]:
    """The pointers of the last launch of ``quantize_groups``."""
    return [struct.unpack("<Q", bytes.fromhex(p))[0] for p in last(library)["parameters"][:6]]


def given(q: QuantizedTensor, x: Tensor, bad: int) -> list[int]:
    """The pointers of a call by groups, without zero points and a tensor scale."""
    assert q.scales.raw is not None
    return [x.data_ptr(), q.packed.data_ptr(), q.scales.raw.data_ptr(), 0, 0, bad]


def test_each_call_gives_its_own_memory(library: Any, flag: Flag, on_stub: StubContext) -> None:
    """Calls share a plan, not addresses; another shape, alignment or scheme is another plan."""
    scheme, base = SCHEMES["int4_group128"], torch.randn(8 * 256 + 1, dtype=torch.bfloat16)
    first, second, taller = base[:2048].view(8, 256), base[:2048].view(8, 256).clone(), torch.randn(16, 256)
    for x in (first, second, first, taller.bfloat16(), taller):
        q = quantize(x, scheme)
        assert addresses(library) == given(q, x, flag.address)
        assert last(library)["stream"] == 0x5000 and last(library)["attributes"] == {"early": 1}
        assert library.stub_waited() == 0x5000 - 1
    plans = lowering.lowered(scheme)
    assert plans is not None and len(plans.plans) == 3
    (kernel, *_) = launches(plans.config, lowering.layout_of((8, 256), scheme), torch.bfloat16)
    assert kernel.kernel == "quantize_groups" and on_stub.pushed == 0
    shifted = lowering.Lowered(scheme, plans.config).plan(base[1:].view(8, 256))
    assert [launch.kernel for launch in shifted.launches] != ["quantize_groups"]


def test_launches_of_a_call_share_memory_of_their_stream(flag: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not allocated anew, nor filled with zeros, which kernels leave. A graph, which may be replayed on
    any stream, has its own; after a failed launch it may hold anything."""
    seen: list[list[int]] = []
    monkeypatch.setattr(quantizing, "start_all", lambda _, __, addresses: seen.append([*addresses]))
    monkeypatch.setattr(LaunchPlan, "_prepare", lambda self: ())
    x, scheme, shared = torch.randn(64, 512).bfloat16(), SCHEMES["int8_column"], (Slot.RANGES, Slot.STEPS)
    quantizing._kept_words.cache_clear()
    for capturing, stream in ((False, 1), (False, 1), (False, 2), (True, 1)):
        monkeypatch.setattr(runtime, "is_capturing", lambda _, capturing=capturing: capturing)
        monkeypatch.setattr(runtime, "stream_of", lambda _, stream=stream: stream)
        quantize(x, scheme, check=False)
    first, again, elsewhere, captured = ([addresses[slot] for slot in shared] for addresses in seen)
    assert first == again and all(first) and all(elsewhere) and all(captured)
    assert not {*first} & {*elsewhere} and not {*captured} & {*first, *elsewhere}
    words = quantizing._kept_words(x.device, 1)
    assert first == [words.data_ptr() + 16, words[-quantizing.MOST_CELLS :].data_ptr()]
    monkeypatch.setattr(runtime, "is_capturing", lambda _: False)
    monkeypatch.setattr(quantizing, "start_all", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        quantize(x, scheme, check=False)
    assert not quantizing._kept_words.cache_info().currsize


def test_schemes_of_one_name_are_not_mixed_up(library: Any, flag: Flag) -> None:
    """Plans are kept by the scheme itself: a name or a text may be borrowed."""
    own = dataclasses.replace(SCHEMES["int4_group128"], format=SCHEMES["int8_row"].format)
    borrowed = dataclasses.replace(own, name="int4_group128")
    x = torch.randn(8, 256).bfloat16()
    widths = [quantize(x, scheme).packed.shape[1] for scheme in (SCHEMES["int4_group128"], borrowed, own)]
    assert widths == [128, 256, 256]


def test_a_context_is_pushed_only_where_it_is_not_current(
    library: Any, flag: Flag, on_stub: StubContext
) -> None:
    """A thread that never used the GPU has none; elsewhere to push takes as long as to launch."""
    x = torch.randn(8, 256).bfloat16()
    quantize(x, SCHEMES["int4_group128"])
    assert on_stub.pushed == 0
    library.stub_current(0)
    quantize(x, SCHEMES["int4_group128"])
    assert on_stub.pushed > 0 and on_stub.depth == 0


def test_values_that_are_not_finite_are_refused(library: Any, flag: Flag) -> None:
    """The kernel's flag is read after the wait; then the position is looked for, in the tensor as given."""
    x = torch.randn(8, 256).bfloat16()
    x[3, 7] = float("nan")
    flag.is_set = True
    with pytest.raises(ValueError, match=r"1 of 2048 .* row 3, column 7"):
        quantize(x, SCHEMES["int4_group128"])
    assert not flag.is_set and not flag.abandoned
    flag.is_set = True
    with pytest.raises(ValueError, match="others now"):
        quantize(torch.zeros(8, 256).bfloat16(), SCHEMES["int4_group128"])


@pytest.mark.parametrize("capturing", [False, True])
def test_nothing_waits_unasked(
    library: Any, flag: Flag, capturing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``check`` and in a graph: the flag lies on the device, and is read when ``check``, a file or a
    report asks."""
    monkeypatch.setattr(runtime, "is_capturing", lambda device: capturing)
    x = torch.randn(8, 256).bfloat16()
    q = quantize(x, SCHEMES["int4_group128"], check=capturing)
    assert library.stub_waited() == 0 and q.unchecked is not None
    assert addresses(library) == given(q, x, q.unchecked.data_ptr())
    q.check()
    q.unchecked.fill_(1)
    kept = [pickle.loads(pickle.dumps(q)), copy.deepcopy(q), q.to("cpu")]
    looks = (lambda: q.save(tmp_path / "q.safetensors"), lambda: compare(x, q))
    for look in (q.check, q.check, *(tensor.check for tensor in kept), *looks):
        with pytest.raises(ValueError, match="NaN"):
            look()
    assert not list(tmp_path.glob("*q.safe*"))
    q.unchecked.zero_()
    q.check()


def test_stored_scales_are_converted_when_they_are_asked_for(
    flag: Flag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, but in a graph: what is computed there is not there yet, so that it is never kept outside."""
    x = torch.randn(8, 256).bfloat16()
    q = quantize(x, SCHEMES["int4_group128"])
    raw = q.scales.raw
    assert raw is not None and "stored" not in vars(q.scales)
    raw.fill_(0.37)
    want = raw.float()
    monkeypatch.setattr(runtime, "is_capturing", lambda device: True)
    assert torch.equal(q.scales.stored, want) and q.scales.stored is not q.scales.stored
    captured = quantize(x, SCHEMES["int4_group128"])
    assert "stored" in vars(captured.scales), "each replay converts its own scales"
    monkeypatch.setattr(runtime, "is_capturing", lambda device: False)
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    kept = (torch.load(file, weights_only=True), copy.deepcopy(q), copy.copy(q), q.to("cpu"))
    for one in kept:
        assert torch.equal(one.scales.stored, want) and torch.equal(one.scales.raw, raw)
    assert type(kept[0].scales) is Scales and kept[0].scales.zero_points is None
    assert q.scales.stored is q.scales.stored and torch.equal(q.scales.scale, want)
    with pytest.raises(AttributeError, match="scales have no 'other'"):
        _ = q.scales.other  # type: ignore[attr-defined]


def test_a_graph_of_what_has_no_kernels_is_refused(flag: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else CUDA says only that the stream is being captured, and the capture is lost."""
    monkeypatch.setattr(runtime, "is_capturing", lambda device: True)
    for name in ("q4_k", "nf4_block64_double", "int4~1x48~asymmetric~bfloat16~mse",
                 "float4_e2m1fn~1x16~symmetric~nvfp4~absmean"):  # fmt: skip
        with pytest.raises(ValueError, match="graph"):
            quantize(torch.randn(8, 256), Scheme.parse(name))


def test_a_flag_that_a_kernel_may_yet_set_is_left_alone(library: Any, flag: Flag) -> None:
    """A launch or a wait that fails leaves kernels behind: the next call must not read their flag."""
    x = torch.randn(8, 256).bfloat16()
    quantize(x, SCHEMES["int4_group128"])
    library.stub_fail(KERNEL_ERROR)
    with pytest.raises(KernelError, match="CUDA error 700"):
        quantize(x, SCHEMES["int4_group128"])
    assert flag.abandoned == 1


@pytest.mark.parametrize(
    "names", [FEW, pytest.param(SCHEMES, marks=pytest.mark.thorough)], ids=["few", "all"]
)
def test_every_argument_of_every_plan_is_brought_or_known(names: Collection[str]) -> None:
    """Of each scheme, aligned or not, with scales found or given: numbers and places, as many as letters."""
    shapes = ((64, 4096), (3, 33), (256, 256))
    for scheme in (one for one in lowering.with_kernels() if one.name in names):
        config = lowering.config_of(scheme)
        for shape, aligned, given_scales in itertools.product(shapes, (True, False), (True, False)):
            layout = lowering.layout_of(shape, scheme)
            plan = LaunchPlan(
                config, layout, torch.bfloat16, aligned, torch.device("meta"), given=given_scales
            )
            assert plan.launches
            for launch in plan.launches:
                letters = launch.types.replace("(", "").replace(")", "")
                assert len(letters) == len(launch.arguments)
                slots = [letter == "P" for letter in letters]
                assert slots == [type(a) is not int for a in launch.arguments], scheme.name
