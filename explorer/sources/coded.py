"""Quantized weights of a source: listed once each, as what they mean, and read as the values of their codes.

``CodedWeights`` finds the weights among the tensors of a file or model by the table of ``quantized_forms``. A
source lists such a weight as X.weight [N, K], inputs last; its scales are not listed. Values are float32: the
product of code and scale, rounded once. Codes that lie beside scales in a form that no row knows are listed
as what they are, and refused when they are read. Who wants to see the codes themselves reads
``X.weight:codes``.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from explorer.progress import Progress, checkpoint
from explorer.sources.base import Pieces, SourceError, TensorInfo, TensorSource, refused, shape_words
from explorer.sources.quantized_forms import (
    BESIDE,
    EXTRA,
    MAINS,
    OF_INPUTS,
    CodeForm,
    Restored,
    first_rows,
    form_of,
)
from explorer.sources.safetensors_header import NAMES, bytes_of
from explorer.words import plain

CONFIG = "config.json"
SETTINGS = "quantization_config"
STORED = ":codes"
"""After the name of a weight: its codes as the file holds them."""
_BITS = re.compile(r" · ([0-9.]+) bits$", re.ASCII)
_CODES = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4", "I8", "U8")
"""Dtypes that mean nothing beside scales."""
_ENDS = tuple(dict.fromkeys((*MAINS, *BESIDE)))
_SCALES = re.compile(
    r"scale|scaling|a(bs)?max|scl$|delta$|step_size$|alpha$|exponent|_exp$|[._]scb$|\.s$", re.IGNORECASE
)
"""What names of scales hold, after the name of a layer or tensor."""
_WORDS = ("I32", "U32", "I16", "U16")
"""Dtypes of words of codes; of names that codes have, they too mean nothing beside scales."""
_CHANGES = re.compile(r"zero|zp$|offset|shift|pre_quant|weight_(min|bias)$", re.IGNORECASE)
"""What names hold of tensors that change what codes stand for: one that a form does not know refuses it."""
_OF_INPUTS = re.compile(r"(input|output|act|activation|[kv])_(global_)?(scale|zero_point)$", re.IGNORECASE)
_CODES_END = re.compile(
    r"(^|[._]_?)(weight|qweight|weight_packed|packed|qdata|data|codes|blocks|int[48]?|fp8|w_q|q|B)$",
    re.IGNORECASE,
)
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that the entries and numbers of a damaged layer raise."""
ReadRows = Callable[[TensorInfo, int | None, Progress | None], Tensor]


def stored_bits(dtype: str) -> float | None:
    """Bits per weight that codes and scales take in the files of a weight listed with ``dtype``; None for
    dtypes of other weights."""
    found = _BITS.search(dtype)
    return float(found[1]) if found else None


@dataclass(frozen=True)
class CodedWeight:
    """One weight: ``info`` as it is listed, ``parts`` as the files hold them, by what follows the layer's
    name. ``problem``: why they cannot be read; empty if they can."""

    info: TensorInfo
    parts: Mapping[str, TensorInfo]
    settings: Mapping[str, Any]
    form: CodeForm | None = None
    problem: str = ""

    @property
    def codes(self) -> TensorInfo:
        """The tensor of codes, as the files hold it."""
        return self.parts[self.form.main if self.form else ""]

    @property
    def bare(self) -> TensorInfo:
        """The codes, as they are listed beside the weight."""
        return replace(self.codes, name=f"{self.info.name}{STORED}")

    def restore(self, read_rows: ReadRows, rows: int | None, progress: Progress | None) -> Restored:
        """The first ``rows`` rows of the weight, all if None, read from the bytes of those where the form
        allows it. ``SourceError`` where the parts do not fit together."""
        if self.form is None or self.problem:
            raise SourceError(self.problem)
        checkpoint()
        total, name = self.info.shape[0], plain(self.info.name, 80)
        of = ", ".join(plain(part.name, 80) for part in self.parts.values())
        with refused(f"{name}, of {of}, cannot be restored (its codes: {name}{STORED})"):
            parts = first_rows(self.form, self.parts, lambda i, n: read_rows(i, n, None), total, rows)
            found = self.form.restore(parts, self.parts, self.settings)
            if found.values.shape[1:] != self.info.shape[1:]:
                raise ValueError(
                    f"it has {list(found.values.shape)} values, and {list(self.info.shape)} codes"
                )
        if progress is not None:
            progress(total, total)
        if rows is None or rows >= total:
            return found
        steps = None if found.steps is None else found.steps[:rows]
        return replace(found, values=found.values[:rows], steps=steps)


class CodedWeights:
    """The weights that tensors ``infos`` hold as codes, by name, and ``infos``: what their source lists.

    ``settings``: the model's ``quantization_config``, empty without one. ``read`` reads a tensor; it is asked
    for those of a few numbers that a weight's shape stands in.
    """

    def __init__(
        self,
        infos: Iterable[TensorInfo],
        settings: Mapping[str, Any],
        read: Callable[[TensorInfo], Tensor],
        promised: Iterable[str] = (),
    ) -> None:
        raw = {info.name: _in_header_words(info) for info in infos}
        absent = (TensorInfo(name, (), "not in the files") for name in promised if name not in raw)
        every = (*absent, *raw.values())
        scales = {base: info for info in every for base in _bases(info.name)}
        changes = {base: info for info in every for base in _bases(info.name, _CHANGES)}
        self.by_name: dict[str, CodedWeight] = {}
        shown: dict[str, TensorInfo | None] = {}
        for info in raw.values():
            weight = _weight(info, raw, changes, settings, read) or _unknown(info, scales, settings)
            if weight is not None:
                shown |= {part.name: None for part in weight.parts.values() if weight.form}
                shown[info.name] = weight.info
                self.by_name[weight.info.name] = weight
        self.infos = tuple(found for name, info in raw.items() if (found := shown.get(name, info)))

    @property
    def names(self) -> frozenset[str]:
        """The names of the weights that are restored, as they are listed."""
        return frozenset(name for name, weight in self.by_name.items() if weight.form)


class CodedSource(TensorSource):
    """A source whose files may hold weights as codes: it lists and reads what they mean.

    A source of one class sets ``stored``, the tensors as the files have them, and ``read_stored``, and calls
    ``find_codes`` when it is opened.
    """

    stored: tuple[TensorInfo, ...]
    _coded: CodedWeights | None = None

    @abstractmethod
    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        """The first ``rows`` entries of one tensor of the files, all if None, in its own dtype."""

    def promised(self) -> Iterable[str]:
        """The names of tensors that the model's index promises."""
        return ()

    def find_codes(self) -> None:
        """Look for weights of codes; the configuration is read only where there may be some."""
        if not any(_in_header_words(i).dtype in (*_CODES, *_WORDS) for i in self.stored):
            return
        settings = self.config().get(SETTINGS)
        found = CodedWeights(
            self.stored,
            settings if isinstance(settings, Mapping) else {},
            lambda info: self.read_stored(info, None, None),
            self.promised(),
        )
        if found.by_name:
            self._coded, self.restored = found, found.names

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        if self._coded is None:
            return self.stored
        bare = (weight.bare for weight in self._coded.by_name.values() if weight.problem)
        return *self._coded.infos, *bare

    def info(self, name: str | None = None) -> TensorInfo:
        weight = self.coded((name or "").removesuffix(STORED))
        return weight.bare if weight and name and name.endswith(STORED) else super().info(name)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(w.problem for w in self._coded.by_name.values() if w.problem) if self._coded else ()

    def coded(self, name: str) -> CodedWeight | None:
        """The weight of codes that is listed as ``name``; None for any other tensor."""
        return self._coded.by_name.get(name) if self._coded else None

    def restore(self, name: str) -> Restored:
        """A weight of codes with its scales and what they are; ``SourceError`` if it cannot be restored."""
        weight = self.coded(name)
        assert weight is not None
        return weight.restore(self.read_stored, None, None)

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        weight = self.coded(info.name.removesuffix(STORED))
        if weight is None:
            return self.read_stored(info, rows, progress)
        if info.name.endswith(STORED):
            return self.read_stored(weight.codes, rows, progress)
        return weight.restore(self.read_stored, rows, progress).values

    def parts_of(self, name: str) -> tuple[TensorInfo, ...]:
        weight = self.coded(name)
        return tuple(weight.parts.values()) if weight and weight.form else ()

    def pieces(self, name: str | None = None) -> Pieces | None:
        info = self.info(name)
        return None if self.coded(info.name.removesuffix(STORED)) else self.stored_pieces(info)

    def stored_pieces(self, info: TensorInfo) -> Pieces | None:
        """``pieces`` of a tensor that is stored as it is."""
        return None


class Restoring(CodedSource):
    """Another source, whose weights of codes are restored."""

    def __init__(self, source: TensorSource) -> None:
        self.origin, self.broken, self.paths = source.origin, source.broken, source.paths
        self._source, self.stored = source, source.infos
        self.find_codes()

    @property
    def kept_bytes(self) -> int:
        return self._source.kept_bytes

    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        return self._source.read_rows(self._source.info(info.name), rows, progress)

    def stored_pieces(self, info: TensorInfo) -> Pieces | None:
        return self._source.pieces(info.name)


def as_in_network(source: TensorSource, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """One tensor as transformers' network holds it: a restored weight in ``dtype``, experts as [E, inputs,
    outputs]; every other tensor as it is."""
    tensor = source.read(name)
    if name not in source.restored:
        return tensor
    tensor = tensor.to(dtype)
    return tensor.transpose(1, 2).contiguous() if tensor.dim() == 3 else tensor


def shape_in_network(source: TensorSource, info: TensorInfo) -> tuple[int, ...]:
    """The shape of ``as_in_network``, from the header."""
    experts = info.name in source.restored and len(info.shape) == 3
    return (info.shape[0], info.shape[2], info.shape[1]) if experts else info.shape


def weights_of(source: TensorSource) -> tuple[TensorInfo, ...]:
    """The tensors of a source without bare codes, and without those that say something of a restored layer's
    inputs or outputs."""
    layers = {name.removesuffix(".weight") for name in source.restored}
    return tuple(
        info
        for info in source.infos
        if not info.name.endswith(STORED)
        and not any(info.name.endswith(end) and info.name.removesuffix(end) in layers for end in OF_INPUTS)
    )


def _in_header_words(info: TensorInfo) -> TensorInfo:
    """The entry with the dtype by its name in safetensors' headers: "U8" for "uint8"."""
    dtype = getattr(torch, info.dtype, None)
    return replace(info, dtype=NAMES[dtype]) if isinstance(dtype, torch.dtype) and dtype in NAMES else info


def _weight(
    info: TensorInfo,
    raw: Mapping[str, TensorInfo],
    changes: Mapping[str, TensorInfo],
    settings: Mapping[str, Any],
    read: Callable[[TensorInfo], Tensor],
) -> CodedWeight | None:
    """The weight whose codes are the tensor ``info``; None for a tensor that holds none, and for one of a
    form that is not known."""
    of_bytes = any(f"{info.name}.{end}" in raw for end in ("absmax", "quant_map"))  # in any dtype
    if info.dtype not in (*_CODES, "I32") and not of_bytes:
        return None
    for main in MAINS:
        layer = info.name.removesuffix(main)
        if layer == info.name and info.name != main[1:]:
            continue
        layer, dot = ("", 1) if info.name == main[1:] and main[0] == "." else (layer, 0)
        beside = {end: raw[layer + end[dot:]] for end in _ENDS if layer + end[dot:] in raw}
        name = info.name
        try:
            form = form_of(beside, settings)
            if form is None or form.main != main:
                continue
            name = layer + form.weight[dot:]
            if name in raw.keys() - {info.name}:
                continue
            parts = {end: part for end, part in beside.items() if end in (form.main, *form.others)}
            more = [layer + end[dot:] for end in EXTRA if end not in parts and layer + end[dot:] in raw]
            known = {part.name for part in parts.values()}
            near = {one.name for base in (layer, info.name, name) if (one := changes.get(base))}
            more += sorted(near - {*known, *more})
            if more or sum(end in parts for end in (".weight_scale", ".weight_scale_inv", ".scale")) > 1:
                raise ValueError(f"beside {', '.join(parts)} there are {', '.join(more) or 'two scales'}")
            shape = form.shape(parts, settings, read)
            bits = 8 * sum(map(bytes_of, parts.values())) / max(math.prod(shape), 1)
            label = f"{form.label(parts, settings)} · {bits:.7g} bits"
            return CodedWeight(TensorInfo(name, tuple(shape), label), parts, settings, form)
        except _UNREADABLE as error:
            problem = _refusal(name, beside, str(error) or type(error).__name__)
            return CodedWeight(replace(info, name=name), {main: info, **beside}, settings, form, problem)
    return None


def _refusal(name: str, beside: Mapping[str, TensorInfo], why: str) -> str:
    """Why codes of a form that is known are not restored, with the tensors beside them."""
    there = ", ".join(plain(part.name, 80) for part in beside.values())
    return (
        f"{plain(name, 80)}: {plain(why, 300)}. It has {there}. To see the codes themselves, open "
        f"{plain(name, 80)}{STORED} (on the command line, --codes)"
    )


def _unknown(
    info: TensorInfo, scales: Mapping[str, TensorInfo], settings: Mapping[str, Any]
) -> CodedWeight | None:
    """Codes beside scales in a form that no row knows; None for a tensor without such scales."""
    packed = info.dtype in _WORDS and _CODES_END.search(info.name)
    if info.dtype not in _CODES and not packed:
        return None
    base = next((b for b in (info.name, _CODES_END.sub("", info.name)) if b in scales), None)
    promised = settings.get("quant_method") and info.dtype.startswith("F8_E")
    if base is None and not (promised and info.name.endswith(".weight")):
        return None
    name = plain(info.name, 80)
    beside = "and has no scales"
    if base is not None:
        found = scales[base]
        beside = (
            f"beside the scales {plain(found.name, 80)} ({found.dtype}, shape {shape_words(found.shape)})"
        )
    return CodedWeight(
        info, {"": info}, settings, None,
        f"{name} holds codes in {info.dtype}, {beside}: this form is not known, and codes are not read as "
        f"numbers. To see the codes themselves, open {name}{STORED} (on the command line, --codes)",
    )  # fmt: skip


def _bases(name: str, holding: re.Pattern[str] = _SCALES) -> Iterator[str]:
    """The names of layers and tensors that the tensor ``name`` may hold the scales of, or what else names of
    ``holding`` stand for."""
    first = max(name.rfind("."), 0)
    found = None if _OF_INPUTS.search(name) else holding.search(name, first)
    if name.startswith(("scale.", "scales.")):
        yield name.partition(".")[2]
    if found is None:
        return
    for place in range(first, found.start() + 1):
        if name[place] in "._":
            yield name[:place].rstrip("._")
    if name[: found.start()].rstrip("._") == "":
        yield ""
    elif name[found.start() - 1] in "._":
        yield name[: found.start()].rstrip("._")
