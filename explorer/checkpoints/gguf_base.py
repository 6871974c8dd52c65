"""Make a GGUF file from another: round the named layers, and copy everything else bit for bit.

The base is a file in 16 or 32 bits, as llama.cpp's converter writes it. Metadata and vocabulary are copied as
bytes, so that every architecture of llama.cpp works. Layers are rounded from the base's own tensors. Their
rows may be in another order than in transformers, which does not affect blocks along rows.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from explorer import words
from explorer.checkpoints.card import CARD, UNMEASURED, page, scheme_table
from explorer.checkpoints.folder import whole_folder, write_beside
from explorer.checkpoints.gguf_model import UINT32, WEIGHT, GgufModel, open_gguf, place_of
from explorer.checkpoints.imatrix import Imatrix, read_imatrix
from explorer.checkpoints.target import Shape, needed
from explorer.checkpoints.to_gguf import EXPORT, FILE, GUESSED, NAME, announce
from explorer.checkpoints.verify import Verified
from explorer.checkpoints.write import Written, rounded
from explorer.core.importances import takes_importance
from explorer.export.ggml import PLAIN, ggml_type, row_bytes
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.progress import Progress, checkpoint
from explorer.sources.base import TensorInfo, refused, shape_words
from explorer.sources.gguf_file import GgufFile, block_sizes
from explorer.sources.source_limits import LOCAL
from explorer.version import __version__

ROUNDED = tuple(PLAIN.values())
"""Types of tensors that layers can be rounded from; other types are codes, or not weights."""
FILE_TYPE, VERSION = "general.file_type", "general.quantization_version"
"""The keys that the new file sets."""
_NO_PRODUCT = re.compile(
    r"(^|\.)(position_embd|token_types|ffn_gate_inp\w*|ssm_conv1d\w*|shortconv\.conv|attn_rel_b|altup_\w+"
    r"|laurel_\w+|per_layer_model_proj|time_mix_(first|lerp_\w+|decay\w*|[avwg][0-2]))\.weight$"
)
"""Names of matrices that llama.cpp does not quantize: routers, and those that multiply no inputs."""


@dataclass(frozen=True)
class Reread(Verified):
    """A new file as the package gguf reads it. ``layers`` are equal to the rounded weights (``difference`` is
    0); ``tensors`` and the values of ``keys`` are those of the base, bit for bit."""

    keys: int = 0

    def __str__(self) -> str:
        return (
            f"Read back by {self.reader}: the values of all {self.layers} rounded tensors are those of the "
            f"rounded weights; {self.tensors} other tensors and {self.keys} keys of the metadata are those "
            "of the base, bit for bit."
        )


@dataclass(frozen=True)
class _Target:
    """Tensor to round. The experts of a block are several ``layers`` and one tensor."""

    info: TensorInfo
    layers: tuple[str, ...]
    recipe: Recipe

    @property
    def kind(self) -> str:
        """ggml's type of the new tensor."""
        return str(ggml_type(self.recipe.scheme))

    @property
    def shape(self) -> Shape:
        """[N, K] of each of the layers."""
        *above, columns = self.info.shape
        return math.prod(above) // len(self.layers), columns


def write_from_gguf(
    base: Path,
    layers: Mapping[str, Recipe],
    out: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    card: str = "",
    progress: Progress | None = None,
    verified: bool | None = None,
    beside: Mapping[str, str] | None = None,
    imatrix: Path | None = None,
) -> Written:
    """Write a copy of the GGUF file ``base`` with ``layers`` rounded to nearest into the folder ``out``,
    whole or not at all.

    Layers are named as in the base ("blk.0.attn_q") or as in transformers' files
    ("model.layers.0.self_attn.q_proj"), without ".weight"; other tensors are copied bit for bit. The experts
    of a block are one tensor [experts, N, K]: name all of them, or the tensor, with one scheme.

    shapes    layer -> [N, K] in the surveyed model, which the base must have too
    card      text for the model card: how the model measured
    progress  counts tensors; one is in memory at a time
    verified  unless False, the new file is read back and compared (``Reread``) before it is put in place
    beside    name of a further file -> its text
    imatrix   an importance file of llama.cpp, which weighs the rounding of the tensors that it names if their
              types take importances

    Before anything is written, ``ValueError`` names the first layer that cannot be written and the reason,
    and ``SourceError`` a base that is not a whole GGUF file; ``OSError`` if the folder cannot be written.
    After an error or a stop by ``progress`` nothing is left.
    """
    opened = open_gguf(Path(base))
    targets = _targets(opened, layers, shapes or {})
    weights = _importances(read_imatrix(imatrix), targets) if imatrix else {}
    records = _changed(opened.records, any(t.recipe.scheme.plain_dtype is None for t in targets.values()))
    sizes = block_sizes(opened.source.origin)
    kinds = [(info.elements, *sizes[_kind(info, targets)]) for info in opened.source.infos]
    room = sum(elements // block * size for elements, block, size in kinds)
    with whole_folder(out, room + sum(map(len, records.values()))) as folder:
        digests = _write(opened, targets, records, folder / FILE, progress, weights)
        result = None if verified is False else _verify(opened, targets, records, digests, folder / FILE)
        write_beside(folder, {CARD: _card(opened, targets, folder / FILE, card, result), **(beside or {})})
    coded = sum(layers[name].scheme.plain_dtype is None for name in layers)
    return Written.of(out, coded, result)


def _records(reader: Any) -> dict[str, bytes]:
    """Read the same records as ``walk``, by the reader of the package gguf."""
    fields = [field for name, field in reader.fields.items() if not name.startswith("GGUF.")]
    stops = [*(field.offset for field in fields[1:]), reader.tensors[0].field.offset]
    return {
        field.name: reader.data[field.offset : stop].tobytes()
        for field, stop in zip(fields, stops, strict=True)
    }


def _changed(records: Mapping[str, bytes], coded: bool) -> dict[str, bytes]:
    """Add the two keys that the new file sets to ``records``."""
    new = {FILE_TYPE: GUESSED} | ({VERSION: needed("gguf", NAME).GGML_QUANT_VERSION} if coded else {})
    pack = {key: struct.pack(f"<Q{len(key)}sII", len(key), key.encode(), UINT32, new[key]) for key in new}
    return {**records, **pack}


def _targets(
    base: GgufModel, layers: Mapping[str, Recipe], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, _Target]:
    """Return tensor of the base -> its layers and recipe; ``ValueError`` for the first layer that cannot be
    written."""
    if not layers:
        raise ValueError("no layer is named: there is nothing to quantize")
    found: dict[str, list[str]] = {}
    for layer, recipe in layers.items():
        info = place_of(base, layer)
        _check(base, info, layer, recipe)
        if layer in shapes and tuple(shapes[layer]) not in (info.shape, info.shape[-2:]):
            raise ValueError(
                f"{layer} is {shape_words(shapes[layer])} in the surveyed model; {info.name} is "
                f"{shape_words(info.shape)} in {base.source.origin}, which is another model's"
            )
        found.setdefault(info.name, []).append(layer)
    for name, group in found.items():
        _check_group(base.tensors[name], {layer: layers[layer] for layer in group})
    return {
        name: _Target(base.tensors[name], tuple(group), layers[group[0]]) for name, group in found.items()
    }


def _check(base: GgufModel, info: TensorInfo, layer: str, recipe: Recipe) -> None:
    if recipe.method:
        raise ValueError(
            f"{layer}: {label_of(recipe.method)} needs the layer's inputs, which a .gguf file does not give; "
            "with a base, layers are rounded to nearest (a recipe without --method)"
        )
    origin, where = base.source.origin, "" if info.name == f"{layer}{WEIGHT}" else f" ({info.name})"
    if info.dtype not in ROUNDED:
        raise ValueError(
            f"{layer}{where} is stored as {info.dtype} in {origin}; layers are rounded from "
            f"{', '.join(ROUNDED)}: take the file in 16 or 32 bits that it was made of"
        )
    if len(info.shape) not in (2, 3):
        raise ValueError(
            f"{layer}{where} has the shape {shape_words(info.shape)} in {origin}; layers are matrices [N, K] "
            "or experts [experts, N, K]"
        )
    if _NO_PRODUCT.search(info.name):
        raise ValueError(
            f"{layer}{where} cannot hold codes: llama.cpp does not quantize it. Leave it out, for example by "
            f"--keep {layer}"
        )
    if why := EXPORT.refusal(recipe.scheme, (info.shape[-2], info.shape[-1])):
        raise ValueError(f"{EXPORT.label} cannot carry {layer}{where} by {recipe.scheme}: {why}")


def _check_group(info: TensorInfo, layers: Mapping[str, Recipe]) -> None:
    """``ValueError`` unless ``layers`` make up the tensor ``info``: one, or all experts by one scheme."""
    first, *others = layers
    if not others and (len(info.shape) == 2 or info.name == f"{first}{WEIGHT}"):
        return
    if len(info.shape) == 2 or f"{first}{WEIGHT}" == info.name:
        raise ValueError(f"{first} and {others[0]} are both {info.name}: name one of them")
    if len(layers) != info.shape[0]:
        raise ValueError(
            f"{first} is one of {info.shape[0]} experts in {info.name}, of which the recipe names "
            f"{len(layers)}; name all of them, or none (--keep experts)"
        )
    if len({str(recipe) for recipe in layers.values()}) > 1:
        raise ValueError(
            f"{first} and the other experts in {info.name} have several schemes in the recipe; one tensor "
            "has one (--schemes names one, --keep experts leaves them)"
        )


def _kind(info: TensorInfo, targets: Mapping[str, _Target]) -> str:
    return targets[info.name].kind if info.name in targets else info.dtype


def _write(
    base: GgufModel,
    targets: Mapping[str, _Target],
    records: Mapping[str, bytes],
    path: Path,
    progress: Progress | None,
    weights: Mapping[str, Tensor],
) -> dict[str, str]:
    """Write the file; returns rounded tensor -> SHA-256 of its values (``_digest``)."""
    gguf, infos = needed("gguf", NAME), base.source.infos
    digests: dict[str, str] = {}
    with closing(gguf.GGUFWriter(path, base.architecture)) as writer:
        writer.data_alignment = base.alignment
        writer.kv_data = [dict.fromkeys(records)]  # their number; the writer cannot take values as bytes
        for info in infos:
            announce(writer, info.name, info.shape, _kind(info, targets))
        writer.write_header_to_file()
        writer.fout[0].write(b"".join(records.values()))
        writer.state = type(writer.state).KV_DATA
        writer.write_ti_data_to_file()
        for done, info in enumerate(infos, 1):
            checkpoint()
            if info.name in targets:
                data, digests[info.name] = _coded(base, targets[info.name], weights.get(info.name))
            else:
                data = np.frombuffer(base.source.stored(info.name), np.uint8)
            writer.write_tensor_data(data)
            if progress is not None:
                progress(done, len(infos))
    return digests


def _importances(imatrix: Imatrix, targets: Mapping[str, _Target]) -> dict[str, Tensor]:
    """Read tensor -> importances, float32 [matrices, K], for types that use them and tensors that the file
    has. ``ValueError`` for a file of another model, also if it has none of the tensors."""
    found = dict[str, Tensor]()
    weighed = {name: one for name, one in targets.items() if takes_importance(one.recipe.scheme)}
    for name, target in weighed.items():
        *above, _, columns = target.info.shape
        if (importance := imatrix.importance(name, columns, math.prod(above))) is not None:
            found[name] = importance
    if weighed and not found:
        there = next(iter(imatrix.tensors))
        raise ValueError(f"the importance file has none of these tensors: it has {words.plain(there, 200)}")
    return found


def _coded(base: GgufModel, target: _Target, importance: Tensor | None) -> tuple[np.ndarray, str]:
    """Encode a tensor in its new type: uint8 [rows, bytes of a row], and the digest of its values.
    ``importance`` [matrices, K] of its columns."""
    values = base.source.read(target.info.name)
    digest, parts = hashlib.sha256(), []
    for index, matrix in enumerate(values if values.dim() == 3 else values[None]):
        checkpoint()
        try:
            own = None if importance is None else importance[index]
            q = rounded(target.layers[0], matrix.float(), target.recipe, own)
        except ValueError as error:
            raise ValueError(f"{target.layers[0]}, by {target.recipe}: {error}") from error
        parts.append(row_bytes(q))
        _digest(q.dequantize(), digest.update)
    return torch.cat(parts).numpy(), digest.hexdigest()


def _digest(values: Tensor, update: Callable[[Any], None]) -> None:
    """Add float32 values to a digest in which 0 and -0 are equal."""
    update((values.float() + 0.0).contiguous().numpy().data)


def _verify(
    base: GgufModel,
    targets: Mapping[str, _Target],
    records: Mapping[str, bytes],
    digests: Mapping[str, str],
    path: Path,
) -> Reread:
    """Read the new file and compare it with the base and ``records``; ``ValueError`` for the first
    difference."""
    gguf, source = needed("gguf", NAME), GgufFile(path, LOCAL)
    with refused(f"{EXPORT.label}: {path.name} cannot be read back"):
        reader = gguf.GGUFReader(path)
        found = _records(reader)
    if wrong := next((key for key in {**records, **found} if found.get(key) != records.get(key)), ""):
        raise ValueError(f"{EXPORT.label}: {wrong} is read back as something else")
    if list(found) != list(records) or [tensor.name for tensor in reader.tensors] != list(base.tensors):
        raise ValueError(f"{EXPORT.label}: {path.name} has keys or tensors in another order than the base")
    for there, info in zip(reader.tensors, base.source.infos, strict=True):
        checkpoint()
        kind, shape = there.tensor_type.name, tuple(reversed(there.shape.tolist()))
        same = kind == _kind(info, targets) and shape == info.shape
        if same and info.name in targets:
            digest = hashlib.sha256()
            _digest(source.read(info.name), digest.update)
            same = digest.hexdigest() == digests[info.name]
        elif same:
            data = reader.data[there.data_offset : there.data_offset + there.n_bytes]
            same = np.array_equal(data, np.frombuffer(base.source.stored(info.name), np.uint8))
        if not same:
            raise ValueError(f"{EXPORT.label}: {info.name} is read back as something else")
    version, keys = f"gguf {metadata.version('gguf')}", set(records) - {FILE_TYPE, VERSION}
    return Reread(version, len(targets), 0.0, len(base.tensors) - len(targets), keys=len(keys))


def _card(
    base: GgufModel, targets: Mapping[str, _Target], path: Path, text: str, verified: Verified | None
) -> str:
    layers = {name: target.recipe for target in targets.values() for name in target.layers}
    shapes = {name: target.shape for target in targets.values() for name in target.layers}
    size, weights = path.stat().st_size, sum(info.elements for info in base.source.infos)
    tool = "llama-embedding" if base.pooled else "llama-cli"
    paragraphs = [
        f"Made from the GGUF file {words.code(base.source.origin)} ({words.code(base.architecture)}) by "
        f"Quantization Explorer {__version__}. Each layer below was rounded to nearest, as its row says, "
        f"from the tensor of that file. The other {len(base.tensors) - len(targets)} tensors, the vocabulary "
        f"and the metadata are those of that file, except `{FILE_TYPE}` and `{VERSION}`.",
        scheme_table(layers, shapes.__getitem__),
        f"`{FILE}`: {size:,} bytes, {8 * size / max(weights, 1):.3f} bits per weight over all of its "
        f"{words.count(weights)} weights, metadata counted.",
        str(verified or "This file was not read back after it was written."),
        text.strip() or UNMEASURED,
        f"```\nllama.cpp: {tool} -m {FILE}\n```",
    ]
    return page(base.source.origin, EXPORT, paragraphs, base.source.paths[0].parent)
