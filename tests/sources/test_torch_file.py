"""Files of torch.save against torch.load: the same tensors under the same names, nothing unpickled here.

If these fail, a .pt file shows other numbers than torch reads from it.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explorer.sources.tensors import open_tensors

BASE = torch.arange(60, dtype=torch.float32).reshape(6, 10)
DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e8m0fnu, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16,
          torch.uint32, torch.uint64, torch.bool, torch.complex64]  # fmt: skip


def _with_attribute() -> nn.Parameter:
    parameter = nn.Parameter(BASE.clone())
    parameter.note = "kept"  # type: ignore[attr-defined]
    return parameter


def _cases() -> dict[str, Any]:
    """What people save."""
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.LSTM(3, 2))
    optimizer = torch.optim.Adam(network.parameters())
    optimizer.zero_grad()
    sum(p.sum() for p in network.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    others = {"size": BASE.shape, "dtype": torch.bfloat16, "device": torch.device("cpu"), "bytes": b"\xff\0"}
    others |= {"w": BASE, "array": bytearray(b"abc"), "set": {1, 2}, "complex": 1j}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old files hold such tensors; torch no longer likes to make them
        quantized = torch.quantize_per_tensor(BASE, 0.5, 0, torch.qint32)
    return {
        "one": BASE,
        "scalar": torch.tensor(2.5),
        "empty": {"e": torch.zeros(0, 3), "w": BASE},
        "views": {"t": BASE.T, "s": BASE[1:4, 2:7], "step": BASE[::2, ::3], "row": BASE[3]},
        "shared": [BASE, BASE, BASE[2:]],
        "expanded": {"w": torch.ones(1, 3).expand(5, 3), "big": BASE},
        "nested": {
            "a": [BASE, (BASE + 1, {"b": BASE + 2})],
            3: BASE + 3,
            "none": None,
            "text": "x",
            "n": 1.5,
        },
        "ordered": OrderedDict(z=BASE, a=BASE + 1),
        "state": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parameter": {"p": nn.Parameter(BASE.clone()), "q": _with_attribute()},
        "gradient": BASE.clone().requires_grad_(),
        "left out": {"sparse": torch.eye(3).to_sparse(), "quantized": quantized, "w": BASE},
        "others": others,
        **{str(dtype): {"w": BASE.to(torch.int32).remainder(2).to(dtype)} for dtype in DTYPES},
    }


CASES = _cases()


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_quantized:
            yield prefix or "tensor", value.detach()
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))


NO_STREAM = {
    str(dtype) for dtype in DTYPES if "float8" in str(dtype) or str(dtype).startswith("torch.uint")
} - {"torch.uint8"}
"""dtypes that torch.save itself writes to archives only."""


@pytest.mark.parametrize("legacy", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_tensors_are_those_of_torch_load(legacy: bool, tmp_path: Path) -> None:
    """Names in order, dtypes, shapes and every bit; of files of old versions of torch a few."""
    for name in ("nested", "views", "parameter"):
        compare(name, True, tmp_path)
    for name in CASES:
        if not legacy or name not in NO_STREAM:
            compare(name, legacy, tmp_path)


def compare(name: str, legacy: bool, tmp_path: Path) -> None:
    """What is read of one of the cases with what torch reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(CASES[name], tmp_path / "x.pt", _use_new_zipfile_serialization=not legacy)
        want = dict(_flat(torch.load(tmp_path / "x.pt", weights_only=True)))
    source = open_tensors(tmp_path / "x.pt")
    assert [info.name for info in source.infos] == list(want), name
    for info in source.infos:
        got, tensor = source.read(info.name), want[info.name]
        assert got.dtype == tensor.dtype and got.shape == tensor.shape == info.shape
        assert info.dtype == str(tensor.dtype).removeprefix("torch.")
        assert torch.equal(as_bytes(got), as_bytes(tensor)), name
        if tensor.dim() and len(tensor) > 2:
            cut = source.read(info.name, max_elements=2 * tensor[0].numel())
            assert torch.equal(as_bytes(cut), as_bytes(tensor[:2])), name


def as_bytes(tensor: Tensor) -> Tensor:
    """Every bit; NaN of two tensors are not equal."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def test_of_two_tensors_with_one_name_the_first_is_kept(tmp_path: Path) -> None:
    """As in folders and in files of the Hub: the second is named, not shown under the first's name."""
    torch.save({"a": {"b": torch.ones(2, 3)}, "a.b": torch.full((2, 3), 7.0)}, tmp_path / "x.pt")
    source = open_tensors(tmp_path / "x.pt")
    assert source.matrix("a.b").values.tolist() == torch.ones(2, 3).tolist()
    assert "a second tensor called a.b" in source.broken[0]
