"""Quantized tensors kept in files, pickles and copies: the same bits back. Damaged ones: refused with what is
wrong, never read as other values.

If these fail, a cut or edited file loads as wrong weights, or its reader ends in a traceback.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import explorer
from explorer import CALIBRATORS, FORMATS, SCHEMES, Calibrator, QuantizedTensor, Scales, Scheme, quantize
from explorer.core.file import load as load_quantized
from explorer.core.file import load_extra_tensors, save_quantized
from tests.covering import EACH_SCHEME

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


def parts(scales: Scales) -> dict[str, Tensor]:
    """Every tensor of scales and of the level above them that restores values."""
    upper = {} if scales.upper is None else vars(scales.upper)
    found = {**vars(scales), **{f"upper {name}": part for name, part in upper.items()}}
    return {name: part for name, part in found.items() if isinstance(part, Tensor)}


NOT_RESTORING = ("raw", "unrounded", "minimum")
"""Parts that only find codes or spare a conversion: a file does not hold them."""


def assert_same(got: QuantizedTensor, want: QuantizedTensor, without: tuple[str, ...] = ()) -> None:
    """Equal scheme, shape and bits of every part."""
    assert (got.scheme, got.scheme.text, got.shape) == (want.scheme, want.scheme.text, want.shape)
    assert torch.equal(got.packed, want.packed)
    ours, theirs = parts(got.scales), parts(want.scales)
    assert ours.keys() - {*without} == theirs.keys() - {*without}
    for name in theirs.keys() - {*without}:
        a, b = (part.contiguous().reshape(-1).view(torch.uint8) for part in (ours[name], theirs[name]))
        assert ours[name].dtype == theirs[name].dtype and torch.equal(a, b), name


def by_torch(q: QuantizedTensor) -> QuantizedTensor:
    """``q`` through ``torch.save`` and the reader that runs no code of the file."""
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


COPIES: dict[str, Callable[[QuantizedTensor], QuantizedTensor]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda q: pickle.loads(pickle.dumps(q)),
    "torch.save": by_torch,
    "to": lambda q: q.to("cpu"),
}


@pytest.mark.parametrize("text", [*EACH_SCHEME, "int4~1x48~asymmetric~bfloat16~share0.31~fit~s7"])
def test_every_scheme_is_kept_with_all_its_bits(text: str, tmp_path: Path) -> None:
    """In a file, a pickle and copies. If this fails, a tensor that was kept restores other values."""
    scheme = Scheme.parse(text)
    q = quantize(torch.randn(5, 300, generator=torch.Generator().manual_seed(0)), scheme)
    q.save(tmp_path / "q.safetensors")
    loaded = explorer.load(tmp_path / "q.safetensors")
    assert_same(loaded, q, NOT_RESTORING)
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "q.safetensors").read_bytes()
    for change in COPIES.values():
        assert_same(change(q), q)
        assert change(q).scheme is q.scheme or text not in SCHEMES
    assert copy.deepcopy(q).packed.data_ptr() != q.packed.data_ptr()
    assert_same(q.cpu(), q)


def test_rows_of_tables_are_themselves_when_unpickled() -> None:
    """Code compares formats by ``is``. If this fails, a scheme from another process is rounded otherwise."""
    for row in (*FORMATS.values(), *CALIBRATORS.values(), *SCHEMES.values()):
        assert pickle.loads(pickle.dumps(row)) is row and copy.deepcopy(row) is row
    own = Scheme("mine", "My own", FORMATS["int4"], (3, 5))
    of_own_format = dataclasses.replace(own, format=dataclasses.replace(FORMATS["int4"], label="mine"))
    unlisted = dataclasses.replace(own, calibrator=Calibrator("mine", "mine", CALIBRATORS["mse"].of, ""))
    for scheme in (own, of_own_format, unlisted):
        again = pickle.loads(pickle.dumps(scheme))
        assert again == scheme and again.text == scheme.text and again.label == scheme.label
        assert again.scale is not None and again.scale.format is FORMATS["float32"]


def test_a_pickle_whose_parts_do_not_fit_is_refused() -> None:
    """Kernels read as many bytes as shape and scheme say, wherever the codes end."""
    q = quantize(torch.randn(5, 300), SCHEMES["int4_group128"])
    for wrong in (
        dataclasses.replace(q, packed=q.packed[1:]),
        dataclasses.replace(q, packed=q.packed.to(torch.int32)),
        dataclasses.replace(q, shape=(5, 400)),
        dataclasses.replace(q, scales=q.scales.map_grids(lambda grid: grid[1:])),
    ):
        with pytest.raises(ValueError, match="not those of int4_group128"):
            pickle.loads(pickle.dumps(wrong))


def test_it_is_printed_in_one_line() -> None:
    """A notebook that shows ``q`` shows what it is, not its bytes."""
    q = quantize(torch.zeros(1536, 384), SCHEMES["int4_group128_asym"])
    assert repr(q) == "QuantizedTensor(int4_group128_asym, 1536 x 384, 4.156 bits an element, cpu)"
    assert repr(quantize(torch.zeros(0, 4), SCHEMES["nvfp4"])).startswith("QuantizedTensor(nvfp4, 0 x 4, ")


def test_what_is_no_saved_tensor_is_refused(tmp_path: Path) -> None:
    """A text, an empty file, a file cut anywhere: one error that names the file. No file: ``OSError``."""
    path = tmp_path / "q.safetensors"
    quantize(torch.randn(5, 300), SCHEMES["nvfp4"]).save(path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:7], whole[:100], whole[: len(whole) // 2], whole[:-1], whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"q\.safetensors is not a tensor saved by this program"):
            explorer.load(path)
    for absent in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(OSError):
            explorer.load(absent)


def test_the_public_names_are_all_that_is_listed() -> None:
    """Completion of ``explorer.`` offers what is meant to be used."""
    assert dir(explorer) == sorted(explorer.__all__) and "place" not in dir(explorer)
