"""A quantized tensor in a safetensors file, and back.

    <name>.packed        U8 [rows, row bytes]        codes, see ``formats.packing``
    <name>.scale         the scale's own dtype [grid rows, grid columns]
    <name>.zero_point    U8 [bytes]                 asymmetric schemes: packed codes, block after block
    <name>.block_offset  the scale's own dtype [grid rows, grid columns]   schemes with offsets
    <name>.tensor_scale  F32 []                            two-level schemes
    <name>.super_scale   F16 [rows, super-blocks]          scales of super-blocks; then <name>.scale is
                         U8 [bytes], packed integers: all blocks' scales, then all blocks' minimums
    <name>.super_minimum F16 [rows, super-blocks]          where there are minimums
    <name>.super_scale   F32 [scales / 256]                doubly quantized scales; then <name>.scale is
                         U8 [grid rows, grid columns], codes of ``levels.DYNAMIC_MAP``
    <name>.mean          F32 []                            of these scales
    <name>.<key>         whatever else belongs to the layer, see ``methods.files``

Files of version 0.2 and earlier hold zero points as I8 [grid rows, grid columns]; they are read too. The
file's metadata holds the shape and the scheme: its fields, and its text, from which it is read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from explorer.core.lowering import raw_scales
from explorer.core.quantize import QuantizedTensor
from explorer.core.serialize import to_json
from explorer.export.levels import LEVEL_KEYS, packed_levels, unpacked_levels
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack, packed_row_bytes, unpack
from explorer.schemes import Scales, Scheme

OWN_KEYS = ("packed", "scale", "zero_point", "block_offset", "tensor_scale", *LEVEL_KEYS)


def save_quantized(
    q: QuantizedTensor, path: str | Path, name: str = "tensor", extra: Mapping[str, Tensor] | None = None
) -> None:
    """Write ``q``; every stored value is exact, so ``load_quantized`` gives the same bits back.

    ``extra`` tensors, such as what a method folds into the layer before, are written as ``<name>.<key>``.
    """
    scales = packed_levels(q.scales, q.scheme) or _one_level(q)
    tensors = {f"{name}.{key}": value for key, value in {"packed": q.packed.contiguous(), **scales}.items()}
    tensors |= {f"{name}.{key}": value.contiguous() for key, value in (extra or {}).items()}
    about = {"name": name, "shape": list(q.shape), "scheme": to_json(q.scheme)}
    save_file(tensors, path, {"quantization_explorer": json.dumps(about)})


def _one_level(q: QuantizedTensor) -> dict[str, Tensor]:
    """What a file holds of scales that are not themselves quantized."""
    scales, tensors = q.scales, dict[str, Tensor]()
    if q.scheme.scale is not None:
        tensors["scale"] = raw_scales(scales, q.scheme)
    if scales.zero_points is not None:
        tensors["zero_point"] = _packed_zero_points(scales.zero_points, q.scheme)
    if scales.offsets is not None and q.scheme.scale is not None:
        tensors["block_offset"] = scales.offsets.to(q.scheme.scale.stored_dtype)
    if scales.tensor_scale is not None:
        tensors["tensor_scale"] = scales.tensor_scale
    return tensors


def load_quantized(path: str | Path) -> QuantizedTensor:
    """Read a file of ``save_quantized``. ``ValueError`` if it is not one, or its scheme cannot be read."""
    try:
        about, tensors = _read(path)
        scheme, name, shape = _scheme_of(about["scheme"]), about["name"], tuple(about["shape"])
        packed = tensors[f"{name}.packed"]
    except (KeyError, ValueError, SafetensorError) as error:
        raise ValueError(f"{path} is not a tensor saved by this program: {error}") from error
    if tuple(packed.shape) != (shape[0], packed_row_bytes(scheme.format, shape[1])):
        raise ValueError(f"{path}: {tuple(packed.shape)} packed bytes do not hold {shape} codes")
    scales = unpacked_levels({key.removeprefix(f"{name}."): t for key, t in tensors.items()}, scheme, shape)
    scales = scales or _read_one_level(tensors, name, scheme, shape)
    return QuantizedTensor(packed, scales, scheme, shape)


def _read_one_level(
    tensors: Mapping[str, Tensor], name: str, scheme: Scheme, shape: tuple[int, int]
) -> Scales:
    stored = tensors.get(f"{name}.scale", torch.ones(scheme.grid(shape))).to(torch.float32)
    zero_points = tensors.get(f"{name}.zero_point")
    if zero_points is not None and zero_points.dtype == torch.uint8:
        zero_points = _unpacked_zero_points(zero_points, scheme, scheme.grid(shape))
    offsets = tensors.get(f"{name}.block_offset")
    return Scales.of(
        scheme,
        stored,
        zero_points,
        tensors.get(f"{name}.tensor_scale"),
        None if offsets is None else offsets.to(torch.float32),
    )


def _packed_zero_points(zero_points: Tensor, scheme: Scheme) -> Tensor:
    """uint8 [bytes]: int8 zero points [grid], row by row, as one run of packed codes."""
    fmt = scheme.format
    assert isinstance(fmt, IntegerFormat)
    return pack(fmt.codes_of(zero_points.reshape(1, -1)), fmt).view(-1)


def _unpacked_zero_points(packed: Tensor, scheme: Scheme, grid: tuple[int, int]) -> Tensor:
    codes = unpack(packed.view(1, -1), scheme.format, grid[0] * grid[1])
    return scheme.format.decode(codes).to(torch.int8).reshape(grid)


def _scheme_of(record: Mapping[str, str]) -> Scheme:
    """Files of earlier versions hold a name of that time, or a text in its place, and no ``text``.

    MXINT8's exponents were those of elements q then, not of q / 64.
    """
    text = record.get("text") or record["name"]
    return Scheme.parse("int8~1x32~SYMMETRIC~FLOOR~minmax" if text == "mxint8" else text)


def load_extra_tensors(path: str | Path) -> dict[str, Tensor]:
    """The ``extra`` tensors of a file of ``save_quantized``, by key; ``ValueError`` if it is not one."""
    try:
        about, tensors = _read(path)
    except (KeyError, ValueError, SafetensorError) as error:
        raise ValueError(f"{path} is not a tensor saved by this program: {error}") from error
    prefix = f"{about['name']}."
    own = {prefix + key for key in OWN_KEYS}
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key not in own}


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {})["quantization_explorer"])
        return about, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
