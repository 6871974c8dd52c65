"""A quantized tensor in a safetensors file, and back.

    <name>.packed        U8 [rows, row bytes]        codes, see ``formats.packing``
    <name>.scale         the scales' codes [grid rows, grid columns], with their format's ``stored_dtype``
    <name>.zero_point    U8 [bytes]                 asymmetric schemes: packed codes, block after block
    <name>.block_offset  likewise [grid rows, grid columns]   schemes with offsets
    <name>.tensor_scale  F32 []                            two-level schemes
    <name>.super_scale   F16 [rows, super-blocks]          scales of super-blocks; then <name>.scale is
                         U8 [bytes], packed integers: all blocks' scales, then all blocks' minimums
    <name>.super_minimum F16 [rows, super-blocks]          where there are minimums
    <name>.super_scale   F32 [scales / 256]                doubly quantized scales; then <name>.scale is
                         U8 [grid rows, grid columns], codes of ``levels.DYNAMIC_MAP``
    <name>.mean          F32 []                            of these scales
    <name>.<key>         whatever else belongs to the layer, see ``methods.files``

``QuantizedTensor.save`` and ``explorer quantize --out`` write it, ``explorer.load`` reads it.

Files of version 0.2 and earlier hold zero points as I8 [grid rows, grid columns]; they are read too. The
file's metadata holds the shape and the scheme: its fields, and its text, from which it is read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from explorer.core.file_about import KEY, read_about
from explorer.core.file_levels import LEVEL_KEYS, Part, level_parts, packed_levels, unpacked_levels
from explorer.core.lowering import raw_scales
from explorer.core.quantize import QuantizedTensor
from explorer.core.serialize import to_json
from explorer.export.files import write_tensors
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack, packed_row_bytes, unpack
from explorer.schemes import Scales, Scheme
from explorer.schemes.text import checked_text
from explorer.sources.safetensors_file import SafetensorsFile
from explorer.sources.source_limits import LOCAL
from explorer.words import plain

OWN = ("packed", "scale", "zero_point", "block_offset", "tensor_scale", *LEVEL_KEYS)
"""The parts that a quantized tensor consists of, in the order above; all others are ``extra``."""


def save_quantized(
    q: QuantizedTensor, path: str | Path, name: str = "tensor", extra: Mapping[str, Tensor] | None = None
) -> None:
    """Write ``q``; every stored value is exact, so ``load`` gives the same bits back.

    ``extra`` tensors, such as scales that a method folds into the preceding layer, are written as
    ``<name>.<key>``. ``ValueError`` for a scheme that cannot be read back (``checked_text``), ``OSError``
    for a path that cannot be written.
    """
    checked_text(q.scheme)
    tensors = {f"{name}.{key}": value for key, value in parts_of(q).items()}
    tensors |= {f"{name}.{key}": value.contiguous() for key, value in (extra or {}).items()}
    about = {"name": name, "shape": list(q.shape), "scheme": to_json(q.scheme)}
    write_tensors(tensors, path, {KEY: json.dumps(about)})


def parts_of(q: QuantizedTensor) -> dict[str, Tensor]:
    """Return the tensors of a file by key (``packed``, ``scale``, ...); every stored value is exact."""
    scales = packed_levels(q.scales, q.scheme) or _one_level(q)
    return {"packed": q.packed.contiguous(), **scales}


def part_names(scheme: Scheme, shape: tuple[int, int]) -> set[str]:
    """Return the keys that ``parts_of`` gives for a tensor of this scheme and shape."""
    return {key for key, accepted in _parts(scheme, shape).items() if accepted}


def tensor_of(
    parts: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int], prefix: str = ""
) -> QuantizedTensor:
    """Invert ``parts_of``. ``ValueError`` names, with ``prefix``, a part that is missing or has a wrong shape
    or dtype."""
    own = {key: parts.get(key) for key in OWN}
    for key, accepted in _parts(scheme, shape).items():
        _check(prefix + key, own[key], accepted)
    packed = own["packed"]
    assert packed is not None
    scales = unpacked_levels(own, scheme, shape) or _scales(own, scheme, shape)
    return QuantizedTensor(packed, scales, scheme, shape)


def _one_level(q: QuantizedTensor) -> dict[str, Tensor]:
    """Tensors of scales that are not themselves quantized, as stored in a file."""
    scales, tensors = q.scales, dict[str, Tensor]()
    if q.scheme.scale is not None:
        tensors["scale"] = raw_scales(scales, q.scheme)
    if scales.zero_points is not None:
        tensors["zero_point"] = _packed_zero_points(scales.zero_points, q.scheme)
    if scales.offsets is not None and q.scheme.scale is not None:
        tensors["block_offset"] = q.scheme.scale.format.to_stored(scales.offsets)
    if scales.tensor_scale is not None:
        tensors["tensor_scale"] = scales.tensor_scale
    return tensors


def load(path: str | Path, device: torch.device | str = "cpu") -> QuantizedTensor:
    """Read a quantized tensor from a file of ``QuantizedTensor.save`` or ``explorer quantize --out``.

    Codes, scales and scheme are restored bit for bit; a scheme without a row in ``SCHEMES`` is named by its
    text. ``ValueError`` if the file has another format, is cut short, names an unknown scheme, or lacks a
    tensor that the scheme implies, or holds it with another shape or dtype; ``OSError`` if it cannot be
    opened. The file is read, not mapped. A method's extra tensors are ignored (``methods.files.load_layer``
    reads them).
    """
    return load_whole(path)[0].to(device)


def load_whole(path: str | Path) -> tuple[QuantizedTensor, dict[str, Tensor]]:
    """Read what ``load`` reads, and the ``extra`` tensors of ``save_quantized`` by key."""
    try:
        return whole_of(SafetensorsFile(Path(path), "it", LOCAL))
    except ValueError as error:
        raise ValueError(
            f"{plain(str(path))} is not a tensor saved by this program: {plain(str(error), 400)}"
        ) from error


def whole_of(file: SafetensorsFile) -> tuple[QuantizedTensor, dict[str, Tensor]]:
    """Read all of an open file as ``load_whole`` does; ``ValueError`` if it has changed since."""
    about = read_about(file.metadata())
    prefix = f"{about.name}."
    parts = {info.name.removeprefix(prefix): file.read_stored(info, None, None) for info in file.stored}
    own = {key: parts.pop(key) for key in OWN if key in parts}
    return tensor_of(own, about.scheme.scheme(), about.shape, prefix), parts


def _scales(own: Mapping[str, Tensor | None], scheme: Scheme, shape: tuple[int, int]) -> Scales:
    """Assemble the scales from the checked parts of a file."""
    stored, zero_points, offsets = own["scale"], own["zero_point"], own["block_offset"]

    def values(part: Tensor) -> Tensor:
        if part.dtype == torch.float32 or scheme.scale is None:  # of version 0.2 and earlier
            return part.to(torch.float32)
        return scheme.scale.format.from_stored(part)

    if zero_points is not None and zero_points.dtype == torch.uint8:
        zero_points = _unpacked_zero_points(zero_points, scheme, scheme.grid(shape))
    return Scales.of(
        scheme,
        torch.ones(scheme.grid(shape)) if stored is None else values(stored),
        zero_points,
        own["tensor_scale"],
        None if offsets is None else values(offsets),
    )


def _parts(scheme: Scheme, shape: tuple[int, int]) -> dict[str, list[Part]]:
    """Allowed parts for each of ``OWN``; empty if the scheme has no such part.

    Files of version 0.2 and earlier hold other zero points and may hold scales as float32.
    """
    grid, rule = scheme.grid(shape), scheme.scale
    packed = (torch.uint8, (shape[0], packed_row_bytes(scheme.format, shape[1])))
    if rule is not None and rule.has_upper_level:
        return {**{key: [] for key in OWN}, "packed": [packed], **level_parts(scheme, shape)}
    zero_bytes = packed_row_bytes(scheme.format, grid[0] * grid[1])
    offset = rule is not None and scheme.mapping.has_offset
    return {
        **{key: [] for key in LEVEL_KEYS},
        "packed": [packed],
        "scale": [(dtype, grid) for dtype in (rule.format.stored_dtype, torch.float32)] if rule else [],
        "zero_point": [(torch.uint8, (zero_bytes,)), (torch.int8, grid)] if scheme.asymmetric else [],
        "block_offset": [(rule.format.stored_dtype, grid)] if rule and offset else [],
        "tensor_scale": [(torch.float32, ())] if rule and rule.per_tensor else [],
    }


def _check(name: str, tensor: Tensor | None, accepted: Sequence[Part]) -> None:
    words = " or ".join(f"{dtype} {list(shape)}" for dtype, shape in dict.fromkeys(accepted))
    if tensor is None:
        if accepted:
            raise ValueError(f"{name} is missing, {words}")
        return
    if (tensor.dtype, tuple(tensor.shape)) not in accepted:
        wanted = f"it has to be {words}" if words else "the scheme has no such part"
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; {wanted}")


def _packed_zero_points(zero_points: Tensor, scheme: Scheme) -> Tensor:
    """Pack int8 zero points [grid], row by row, into one run of codes, uint8 [bytes]."""
    fmt = scheme.format
    assert isinstance(fmt, IntegerFormat)
    return pack(fmt.codes_of(zero_points.reshape(1, -1)), fmt).view(-1)


def _unpacked_zero_points(packed: Tensor, scheme: Scheme, grid: tuple[int, int]) -> Tensor:
    codes = unpack(packed.view(1, -1), scheme.format, grid[0] * grid[1])
    return scheme.format.decode(codes).to(torch.int8).reshape(grid)
