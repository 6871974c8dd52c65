"""The door to the GPU: who computes, and where a tensor is placed.

If these fail, page, command line and library run the same work on different devices, or a choice is ignored.
"""

from __future__ import annotations

import pytest
import torch

from explorer import Scheme, compare_schemes, gpu
from explorer.analysis.sliced import analyse_anywhere
from explorer.core import backend
from explorer.core.cuda import Cuda
from explorer.core.reference import Reference
from explorer.gpu import Availability

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_DEVICE", "auto")
    monkeypatch.delenv("EXPLORER_DEVICE")


def pretend(monkeypatch: pytest.MonkeyPatch, ok: bool, free_bytes: int = 0) -> None:
    """A machine with a GPU of so much free memory, or without one, for code that computes nothing."""
    monkeypatch.setattr(gpu, "available", lambda: Availability(ok, "a GPU" if ok else "no GPU found"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, free_bytes))


def test_every_operation_has_both_backends() -> None:
    """The protocol's operations exist in the reference, and the kernels answer to the same names."""
    names = {name for name in vars(backend.Backend) if not name.startswith("_")}
    own = {name for name in vars(Reference) if not name.startswith("_")}
    assert names == own and {n for n in vars(Cuda) if not n.startswith("_")} == names


def test_a_tensor_on_the_host_is_computed_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, ok=True)
    assert backend.backend_for(torch.zeros(2, 2)) is backend.REFERENCE


CHOICES = [
    (None, True, "cuda"), (None, False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"),
    ("cuda", True, "cuda"),
]  # fmt: skip


@pytest.mark.parametrize("by_call", [True, False])
@pytest.mark.parametrize("choice, there, want", CHOICES)
def test_the_choice_of_a_device(
    choice: str | None, there: bool, want: str, by_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--device`` and EXPLORER_DEVICE: auto takes a GPU if there is one, cpu leaves it alone."""
    pretend(monkeypatch, there)
    if choice is not None and by_call:
        backend.use_device(choice)
    elif choice is not None:
        monkeypatch.setenv("EXPLORER_DEVICE", choice)
    assert backend.work_device().type == want
    assert (backend.gpu_device() is not None) == backend.gpu_status().ok == (want == "cuda")
    if want == "cpu":
        with pytest.raises(ValueError, match="need a GPU: "):
            backend.require_gpu()


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, ok=True)
    monkeypatch.setenv("EXPLORER_DEVICE", "cuda")
    with backend.use_device("cpu"):
        assert backend.work_device() == CPU
    assert backend.work_device().type == "cuda"
    backend.use_device("cpu")
    assert backend.work_device() == CPU


def test_wrong_choices_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown device names the known ones; a GPU chosen where there is none says why."""
    pretend(monkeypatch, ok=False)
    with pytest.raises(ValueError, match="--device is auto, cpu or cuda, not 'gpu'"):
        backend.use_device("gpu")
    monkeypatch.setenv("EXPLORER_DEVICE", "tpu")
    with pytest.raises(ValueError, match="EXPLORER_DEVICE is auto, cpu or cuda, not 'tpu'"):
        backend.gpu_status()
    monkeypatch.setenv("EXPLORER_DEVICE", "cuda")
    with pytest.raises(ValueError, match="no GPU found"):
        backend.work_device()


def test_a_tensor_goes_whole_where_it_fits_and_in_slices_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(100, 10)
    needed = 1000 * backend.BYTES_AN_ELEMENT
    for free, whole in ((2 * needed, True), (needed, False)):
        pretend(monkeypatch, ok=True, free_bytes=free)
        where = backend.place(x)
        assert (where.device.type, where.whole, where.slice_bytes) == ("cuda", whole, int(0.8 * free))
    assert where.move(x) is x
    pretend(monkeypatch, ok=False)
    assert backend.place(x) == backend.Placement(CPU) and backend.place(x).move(x) is x


def test_the_library_follows_the_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices, here on the CPU, give the report of the whole tensor, for one scheme and for a comparison."""
    x, scheme = torch.randn(64, 96), Scheme.parse("int4~1x48~asymmetric~bfloat16~mse")
    want = analyse_anywhere(x, scheme).report
    sliced = backend.Placement(CPU, whole=False, slice_bytes=20 * 96 * backend.BYTES_AN_ELEMENT)
    for module in ("sliced", "schemes"):
        monkeypatch.setattr(f"explorer.analysis.{module}.place", lambda _: sliced)
    (row,) = compare_schemes(x, [scheme])
    for got in (analyse_anywhere(x, scheme).report, row.report):
        assert got.sqnr_db == pytest.approx(want.sqnr_db, rel=1e-12) and got.max_error_at == want.max_error_at
        assert got.clipped == want.clipped and got.nbytes == want.nbytes
