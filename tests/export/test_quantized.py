"""Damaged files of quantized tensors: refused with what is wrong, never read as other values.

If these fail, a cut or edited file loads as wrong weights, or its reader ends in a traceback.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from explorer import Scheme, quantize
from explorer.export.quantized import load_extra_tensors, load_quantized, save_quantized

SCHEME = {"asym": "int4_group128_asym", "nvfp4": "nvfp4", "cast": "bf16"}
Tensors = dict[str, Tensor]


def saved(path: Path, scheme: str) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the metadata of a good file."""
    save_quantized(quantize(torch.randn(6, 256), Scheme.parse(scheme)), path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["quantization_explorer"])
    return load_file(path), about


PARTS: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "no scale": ("asym", lambda t: t.pop("tensor.scale"), r"tensor\.scale is missing"),
    "no zero points": ("asym", lambda t: t.pop("tensor.zero_point"), r"tensor\.zero_point is missing"),
    "no tensor scale": ("nvfp4", lambda t: t.pop("tensor.tensor_scale"), r"tensor\.tensor_scale is missing"),
    "no codes": ("nvfp4", lambda t: t.pop("tensor.packed"), r"tensor\.packed is missing"),
    "cut scales": ("asym", lambda t: t.update({"tensor.scale": t["tensor.scale"][:1]}), r"\[6, 2\]"),
    "scales of another dtype": (
        "nvfp4",
        lambda t: t.update({"tensor.scale": t["tensor.scale"].to(torch.float16)}),
        "float8_e4m3fn",
    ),
    "cut zero points": (
        "asym",
        lambda t: t.update({"tensor.zero_point": t["tensor.zero_point"][:-1]}),
        r"tensor\.zero_point",
    ),
    "zero points of floats": (
        "asym",
        lambda t: t.update({"tensor.zero_point": torch.zeros(6, 2)}),
        r"tensor\.zero_point is torch\.float32",
    ),
    "two tensor scales": (
        "nvfp4",
        lambda t: t.update({"tensor.tensor_scale": torch.ones(2)}),
        "tensor_scale",
    ),
    "codes of another dtype": (
        "asym",
        lambda t: t.update({"tensor.packed": t["tensor.packed"].to(torch.int32)}),
        r"tensor\.packed is torch\.int32",
    ),
    "cut codes": (
        "asym",
        lambda t: t.update({"tensor.packed": t["tensor.packed"][:, 1:]}),
        r"tensor\.packed",
    ),
    "scales of a cast": ("cast", lambda t: t.update({"tensor.scale": torch.ones(1, 1)}), "tensor.scale"),
    "zero points of a symmetric scheme": (
        "nvfp4",
        lambda t: t.update({"tensor.zero_point": torch.ones(6, 16, dtype=torch.int8)}),
        "tensor.zero_point",
    ),
}


@pytest.mark.parametrize("damage", PARTS)
def test_a_file_without_a_part_is_refused(damage: str, tmp_path: Path) -> None:
    """Every part that the scheme implies is there, of its shape and dtype; no other is."""
    scheme, change, words = PARTS[damage]
    path = tmp_path / "q.safetensors"
    tensors, about = saved(path, SCHEME[scheme])
    load_quantized(path)
    change(tensors)
    save_file(
        {k: v.contiguous() for k, v in tensors.items()}, path, {"quantization_explorer": json.dumps(about)}
    )
    with pytest.raises(ValueError, match=words):
        load_quantized(path)


ABOUT: dict[str, Any] = {
    "a list": [],
    "null": None,
    "a number": 3,
    "nothing": {},
    "no name": {"shape": [6, 256], "scheme": {"name": "nvfp4"}},
    "shape a string": {"name": "tensor", "shape": "ab", "scheme": {"name": "nvfp4"}},
    "shape null": {"name": "tensor", "shape": None, "scheme": {"name": "nvfp4"}},
    "shape negative": {"name": "tensor", "shape": [-6, 256], "scheme": {"name": "nvfp4"}},
    "shape of floats": {"name": "tensor", "shape": [6.5, 256], "scheme": {"name": "nvfp4"}},
    "three sides": {"name": "tensor", "shape": [6, 16, 16], "scheme": {"name": "nvfp4"}},
    "scheme a string": {"name": "tensor", "shape": [6, 256], "scheme": "nvfp4"},
    "scheme null": {"name": "tensor", "shape": [6, 256], "scheme": None},
    "scheme a list": {"name": "tensor", "shape": [6, 256], "scheme": ["nvfp4"]},
    "scheme without a name": {"name": "tensor", "shape": [6, 256], "scheme": {}},
    "text a number": {"name": "tensor", "shape": [6, 256], "scheme": {"name": "nvfp4", "text": 4}},
    "name a number": {"name": 1, "shape": [6, 256], "scheme": {"name": "nvfp4"}},
    "unknown scheme": {"name": "tensor", "shape": [6, 256], "scheme": {"name": "nope"}},
}


@pytest.mark.parametrize("damage", [*ABOUT, "no JSON", "no metadata"])
def test_damaged_metadata_is_a_value_error(damage: str, tmp_path: Path) -> None:
    """The reader says that the file is none of this program's, whatever stands in its metadata."""
    path = tmp_path / "q.safetensors"
    tensors, _ = saved(path, "nvfp4")
    text = "{" if damage == "no JSON" else json.dumps(ABOUT.get(damage))
    save_file(tensors, path, None if damage == "no metadata" else {"quantization_explorer": text})
    with pytest.raises(ValueError, match="not a tensor saved by this program"):
        load_quantized(path)
    if damage != "unknown scheme":
        with pytest.raises(ValueError, match="not a tensor saved by this program"):
            load_extra_tensors(path)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (3, 130)])
@pytest.mark.parametrize("scheme", [*SCHEME.values(), "int8_tensor", "fp8_e4m3_128x128", "mxfp4"])
def test_small_and_empty_matrices_come_back(scheme: str, shape: tuple[int, int], tmp_path: Path) -> None:
    """The checks refuse nothing that was saved."""
    q = quantize(torch.randn(shape), Scheme.parse(scheme))
    save_quantized(q, tmp_path / "q.safetensors")
    assert torch.equal(load_quantized(tmp_path / "q.safetensors").dequantize(), q.dequantize())
