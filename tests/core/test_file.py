"""Quantized tensors kept in files, pickles and copies: the same bits back. Damaged ones: refused with what is
wrong, never read as other values.

If these fail, a cut or edited file loads as wrong weights, or its reader ends in a traceback.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
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
from explorer.core.file import load_whole, save_quantized
from tests.covering import FEW, sampled

SCHEME = {"asym": "int4_group128_asym", "nvfp4": "nvfp4", "cast": "bf16"}
Tensors = dict[str, Tensor]


def saved(path: Path, scheme: str) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the metadata of a good file."""
    save_quantized(quantize(torch.randn(6, 256), Scheme.parse(scheme)), path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["quantization_explorer"])
    return load_file(path), about


Change = Callable[[Tensors], object]
PARTS: tuple[tuple[str, str, Change], ...] = (
    ("asym", "scale", lambda t: t.pop("tensor.scale")),
    ("asym", "zero_point", lambda t: t.pop("tensor.zero_point")),
    ("nvfp4", "tensor_scale", lambda t: t.pop("tensor.tensor_scale")),
    ("nvfp4", "packed", lambda t: t.pop("tensor.packed")),
    ("asym", "scale", lambda t: t.update({"tensor.scale": t["tensor.scale"][:1]})),
    ("nvfp4", "scale", lambda t: t.update({"tensor.scale": t["tensor.scale"].to(torch.float16)})),
    ("asym", "zero_point", lambda t: t.update({"tensor.zero_point": t["tensor.zero_point"][:-1]})),
    ("asym", "zero_point", lambda t: t.update({"tensor.zero_point": torch.zeros(6, 2)})),
    ("nvfp4", "tensor_scale", lambda t: t.update({"tensor.tensor_scale": torch.ones(2)})),
    ("asym", "packed", lambda t: t.update({"tensor.packed": t["tensor.packed"].to(torch.int32)})),
    ("asym", "packed", lambda t: t.update({"tensor.packed": t["tensor.packed"][:, 1:]})),
    ("cast", "scale", lambda t: t.update({"tensor.scale": torch.ones(1, 1)})),
    ("nvfp4", "zero_point", lambda t: t.update({"tensor.zero_point": torch.ones(6, 16, dtype=torch.int8)})),
)
"""A scheme, the part that is wrong then, and the change: missing, cut, of another dtype, or too many."""


def test_a_file_without_a_part_is_refused(tmp_path: Path) -> None:
    """Every part that the scheme implies is there, of its shape and dtype; no other is."""
    path = tmp_path / "q.safetensors"
    for scheme, part, change in PARTS:
        tensors, about = saved(path, SCHEME[scheme])
        load_quantized(path)
        change(tensors)
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(whole, path, {"quantization_explorer": json.dumps(about)})
        with pytest.raises(ValueError, match=rf"tensor\.{part}"):
            load_quantized(path)


NVFP4 = {"name": "nvfp4"}
ABOUT: tuple[object, ...] = (
    [],
    None,
    3,
    {},
    {"shape": [6, 256], "scheme": NVFP4},
    *({"name": "tensor", "shape": shape, "scheme": NVFP4}
      for shape in ("ab", None, [-6, 256], [6.5, 256], [6, 16, 16])),
    *({"name": "tensor", "shape": [6, 256], "scheme": scheme}
      for scheme in ("nvfp4", None, ["nvfp4"], {}, {"name": "nvfp4", "text": 4})),
    {"name": 1, "shape": [6, 256], "scheme": NVFP4},
)  # fmt: skip
"""Metadata of another form each."""


def test_damaged_metadata_is_a_value_error(tmp_path: Path) -> None:
    """The reader says that the file is none of this program's, whatever stands in its metadata."""
    path = tmp_path / "q.safetensors"
    tensors, _ = saved(path, "nvfp4")
    for text in (*map(json.dumps, ABOUT), "{", None):
        save_file(tensors, path, None if text is None else {"quantization_explorer": text})
        for load in (load_quantized, load_whole):
            with pytest.raises(ValueError, match=r"q\.safetensors is not"):
                load(path)
    unknown = {"name": "tensor", "shape": [6, 256], "scheme": {"name": "nope"}}
    save_file(tensors, path, {"quantization_explorer": json.dumps(unknown)})
    with pytest.raises(ValueError, match=r"q\.safetensors is not"):
        load_quantized(path)


def test_small_and_empty_matrices_come_back(tmp_path: Path) -> None:
    """The checks refuse nothing that was saved."""
    names = (*SCHEME.values(), "int8_tensor", "fp8_e4m3_128x128", "mxfp4")
    for scheme, shape in itertools.product(names, ((0, 5), (5, 0), (1, 1), (3, 130))):
        q = quantize(torch.randn(shape), Scheme.parse(scheme))
        save_quantized(q, tmp_path / "q.safetensors")
        assert torch.equal(load_quantized(tmp_path / "q.safetensors").dequantize(), q.dequantize())
    assert repr(q) == "QuantizedTensor(mxfp4, 3 x 130, 4.308 bits an element, cpu)"


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
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda q: pickle.loads(pickle.dumps(q)),
    "torch.save": by_torch, "to": lambda q: q.to("cpu"),
}  # fmt: skip


OWN = ("int4~1x48~asymmetric~bfloat16~share0.31~fit~s7", "int4~flat64~asymmetric~float16~minmax",
       "nf4~flat64~symmetric~nested~minmax~reciprocal~unrounded", "q3_k", "q4_k", "q6_k", "iq4_nl",
       "float8_e4m3fn~3x40~symmetric~float16~entropy")  # fmt: skip


@pytest.mark.parametrize("text", sampled(dict.fromkeys((*SCHEMES, *OWN)), {*FEW, *OWN}))
def test_every_scheme_is_kept_with_all_its_bits(text: str, tmp_path: Path) -> None:
    """In a file, which has the bytes that are counted, a pickle and copies; with whole and shorter last
    blocks. If this fails, a tensor that was kept restores other values, or the page states a wrong size."""
    scheme, path = Scheme.parse(text), tmp_path / "q.safetensors"
    for shape in ((5, 300), (3, 512)):
        q = quantize(torch.randn(shape, generator=torch.Generator().manual_seed(0)), scheme)
        q.save(path)
        assert sum(tensor.nbytes for tensor in load_file(path).values()) == q.nbytes
        loaded = explorer.load(path)
        assert_same(loaded, q, NOT_RESTORING)
        assert torch.equal(loaded.dequantize().view(torch.int32), q.dequantize().view(torch.int32))
        assert not load_whole(path)[1]
        loaded.save(tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
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
        with pytest.raises(ValueError, match="int4_group128"):
            pickle.loads(pickle.dumps(wrong))


def test_what_is_no_saved_tensor_is_refused(tmp_path: Path) -> None:
    """A text, an empty file, a file cut anywhere: one error that names the file. No file: ``OSError``."""
    path = tmp_path / "q.safetensors"
    quantize(torch.randn(5, 300), SCHEMES["nvfp4"]).save(path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:7], whole[:100], whole[: len(whole) // 2], whole[:-1], whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"q\.safetensors is not"):
            explorer.load(path)
    tensors, about = saved(path, "nvfp4")
    del tensors["tensor.scale"]
    hostile = {f"\x1b[2J{name}": tensor for name, tensor in tensors.items()}
    for shown, named in ((tensors, "tensor"), (hostile, "\x1b[2Jtensor"), (tensors, "a\nb\x1b]0;x\x07")):
        save_file(shown, path, {"quantization_explorer": json.dumps(about | {"name": named})})
        with pytest.raises(ValueError, match=r"q\.safetensors is not") as refused:
            explorer.load(path)
        assert str(refused.value).isprintable()
    with pytest.raises(OSError):
        explorer.load(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="no regular file"):
        explorer.load(tmp_path)
