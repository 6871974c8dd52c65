"""Quantized weights of a source: each is listed once, as the restored weight, and read as the values of its
codes.

The table ``FORMS`` of ``quantized_forms`` finds the weights among the tensors of a file or model. A source
lists such a weight as X.weight [N, K], inputs last, without its scales. Values are float32: the product of
code and scale, rounded once. Codes beside scales in an unknown form are listed as they are stored, and
refused when they are read. ``X.weight:codes`` reads the codes themselves.
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
    FORMS,
    MAINS,
    OF_INPUTS,
    CodedLayer,
    CodeForm,
    Restored,
    form_of,
)
from explorer.sources.safetensors_header import NAMES, bytes_of
from explorer.sources.source_limits import LOCAL, SourceLimits
from explorer.words import plain

CONFIG = "config.json"
SETTINGS = "quantization_config"
STORED = ":codes"
"""Ending after the name of a weight that selects its codes as the file holds them."""
_BITS = re.compile(r" · ([0-9.]+) bits$", re.ASCII)
_CODES = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4", "I8", "U8")
"""Dtypes of codes, which mean nothing without their scales."""
_WORDS = ("I32", "U32", "I16", "U16")
"""Dtypes of words of codes, if ``_CODES_END`` matches the tensor's name."""
_SCALES = re.compile(
    r"scale|scaling|a(bs)?max|scl$|delta$|step_size$|alpha$|exponent|_exp$|[._]scb$|\.s$", re.IGNORECASE
)
"""Names of scales, after the name of a layer or tensor."""
_CHANGES = re.compile(r"zero|zp$|offset|shift|pre_quant|weight_(min|bias)$", re.IGNORECASE)
"""Names of tensors that change what codes stand for: one that a form does not know refuses the weight."""
_OF_INPUTS = re.compile(r"(input|output|act|activation|[kv])_(global_)?(scale|zero_point)$", re.IGNORECASE)
_CODES_END = re.compile(
    r"(^|[._]_?)(weight|qweight|weight_packed|packed|qdata|data|codes|blocks|int[48]?|fp8|w_q|q|B)$",
    re.IGNORECASE,
)
_WEIGHTS = {form.weight for form in FORMS}
"""Endings of weights' names."""
_PARTS_OF_AN_ELEMENT, _PARTS_BESIDE = 4, 4096
"""Largest accepted number of codes and scales of a weight: so many for each of its values, and so many
more."""
_SMALL = 1 << 14
"""Largest accepted number of bytes of a tensor that describes a weight: a shape, or some words of JSON."""
_MOST_WORDS = 16
"""Number of last words of a scale's own name, at each of which the name of its layer may end."""
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that the entries and numbers of a damaged layer raise."""
ReadRows = Callable[[TensorInfo, int | None, Progress | None], Tensor]


def stored_bits(dtype: str) -> float | None:
    """Bits per weight of codes and scales in the files, by the dtype that the weight is listed with.

    None for a weight that is not stored as codes.
    """
    found = _BITS.search(dtype)
    return float(found[1]) if found else None


@dataclass(frozen=True)
class CodedWeight:
    """One weight: ``info``, its listed entry; ``layer`` with the tensors that hold it.

    ``problem``: the reason why it cannot be read; empty if it can. ``form`` is None for an unknown form.
    """

    info: TensorInfo
    layer: CodedLayer
    form: CodeForm | None = None
    problem: str = ""

    @property
    def bare(self) -> TensorInfo:
        """Entry of the codes, listed beside the weight."""
        return replace(self.layer.codes, name=f"{self.info.name}{STORED}")

    def restore(self, read_rows: ReadRows, rows: int | None, progress: Progress | None) -> Restored:
        """Restore the first ``rows`` rows of the weight, all if None; reads no more than the form needs for
        them.

        ``SourceError`` if the parts do not fit together.
        """
        if self.form is None or self.problem:
            raise SourceError(self.problem)
        checkpoint()
        total, name = self.info.shape[0], plain(self.info.name, 80)
        of = _listed(self.layer.infos.values())
        with refused(f"{name}, of {of}, cannot be restored (its codes: {name}{STORED})"):
            parts = self.form.read(self.layer, rows, total, lambda info, n: read_rows(info, n, None))
            found = self.form.restore(replace(self.layer, rows=rows and min(rows, total)), parts)
            if found.values.shape[1:] != self.info.shape[1:]:
                raise ValueError(
                    f"it has {list(found.values.shape)} values, and {list(self.info.shape)} codes"
                )
        if progress is not None:
            progress(total, total)
        steps = None if found.steps is None else found.steps[:rows]
        return replace(found, values=found.values[:rows], steps=steps)


class CodedSource(TensorSource):
    """Source that lists weights stored as codes in restored form, and reads the codes' values.

    A subclass defines ``stored``, the tensors as the files have them, and ``read_stored``. The code that
    opens it calls ``find_codes``.
    """

    stored: tuple[TensorInfo, ...]
    _coded: Mapping[str, CodedWeight] = {}
    _limits: SourceLimits = LOCAL

    @abstractmethod
    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        """Read the first ``rows`` entries of one tensor of the files, all if None, in its own dtype."""

    def promised(self) -> Iterable[str]:
        """Names of tensors in the model's index."""
        return ()

    def find_codes(self) -> None:
        """List the tensors, with weights in place of their codes.

        The configuration is read only if there may be such weights.
        """
        self.infos = self.stored
        raw = {info.name: _in_header_words(info) for info in self.stored}
        if not any(info.dtype in (*_CODES, *_WORDS) for info in raw.values()):
            return
        stated = self.config().get(SETTINGS)
        settings = stated if isinstance(stated, Mapping) else {}
        absent = (TensorInfo(name, (), "not in the files") for name in self.promised() if name not in raw)
        every = (*absent, *raw.values())
        asked = {name for info in raw.values() if _may_be_codes(info, raw) for name in _layers_of(info.name)}
        scales, changes = dict[str, TensorInfo](), dict[str, TensorInfo]()
        for info in every:
            checkpoint()
            scales |= {base: info for base in _bases(info.name) if base in asked}
            changes |= {base: info for base in _bases(info.name, _CHANGES) if base in asked}
        coded, shown = {}, dict[str, TensorInfo | None](raw)
        for info in raw.values():
            checkpoint()
            weight = self._weight(info, raw, changes, settings) or _unknown(info, scales, settings)
            if weight is not None:
                if weight.form:
                    shown |= {part.name: None for part in weight.layer.infos.values()}
                shown[info.name] = weight.info
                coded[weight.info.name] = weight
        if coded:
            unread = [weight for weight in coded.values() if weight.problem]
            bare = (weight.bare for weight in unread)
            self.infos = (*(info for info in shown.values() if info is not None), *bare)
            self.problems = tuple(weight.problem for weight in unread)
            self.restored = frozenset(name for name, weight in coded.items() if weight.form)
            self._coded = coded

    def _weight(
        self,
        info: TensorInfo,
        raw: Mapping[str, TensorInfo],
        changes: Mapping[str, TensorInfo],
        settings: Mapping[str, Any],
    ) -> CodedWeight | None:
        """Make the weight with the codes ``info``; None for a tensor that is not the codes of a known
        form."""
        if info.dtype not in (*_CODES, "I32") and not _has_bytes(info, raw):
            return None
        dotted = f".{info.name}"  # a tensor may be called "weight", and its scales "weight_scale"
        for main in filter(dotted.endswith, MAINS):
            base = dotted.removesuffix(main)
            beside = {end: raw[(base + end)[1:]] for end in (*MAINS, *BESIDE) if (base + end)[1:] in raw}
            name, form = info.name, None
            try:
                form, at = form_of(CodedLayer(beside, settings, main)) or (None, "")
                if form is None or at != main:
                    continue
                name = (base + form.weight)[1:]
                if name != info.name and name in raw:
                    continue
                parts = {end: part for end, part in beside.items() if end in (main, *form.others)}
                layer = CodedLayer(parts, settings, main)
                more = [(base + end)[1:] for end in EXTRA if end not in parts and (base + end)[1:] in raw]
                known = {part.name for part in parts.values()}
                near = {one.name for key in (base[1:], info.name, name) if (one := changes.get(key))}
                more += sorted(near - {*known, *more})
                scales = (".weight_scale", ".weight_scale_inv", ".scale")
                if more or sum(end in parts for end in scales) > 1:
                    raise ValueError(f"beside {', '.join(parts)} there are {', '.join(more) or 'two scales'}")
                shape = tuple(form.shape(layer, self._read_small))
                held = sum(math.prod(part.shape) for part in parts.values())
                if held > _PARTS_OF_AN_ELEMENT * math.prod(shape) + _PARTS_BESIDE:
                    raise ValueError(
                        f"{held:,} codes and scales are too many for {math.prod(shape):,} values"
                    )
                bits = 8 * sum(map(bytes_of, parts.values())) / max(math.prod(shape), 1)
                return CodedWeight(
                    TensorInfo(name, shape, f"{form.label(layer)} · {bits:.7g} bits"), layer, form
                )
            except _UNREADABLE as error:
                why = plain(str(error) or type(error).__name__, 300)
                problem = f"{plain(name, 80)}: {why}. It has {_listed(beside.values())}. {_how_to_see(name)}"
                layer = CodedLayer({main: info, **beside}, settings, main)
                return CodedWeight(replace(info, name=name), layer, form, problem)
        return None

    def _read_small(self, info: TensorInfo) -> Tensor:
        """Read a tensor that describes a weight, to list it."""
        if bytes_of(info) > _SMALL:
            raise ValueError(f"{info.name} has {bytes_of(info):,} bytes; accepted are up to {_SMALL:,}")
        return self.read_stored(info, None, None)

    def info(self, name: str | None = None) -> TensorInfo:
        weight = self.coded((name or "").removesuffix(STORED))
        return weight.bare if weight and name and name.endswith(STORED) else super().info(name)

    def coded(self, name: str) -> CodedWeight | None:
        """Return the weight of codes that is listed as ``name``; None for any other tensor."""
        return self._coded.get(name)

    def restore(self, name: str) -> Restored:
        """Restore a weight of codes, with its scales and its stored form; ``SourceError`` if it cannot be
        restored."""
        return self._coded[name].restore(self.read_stored, None, None)

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        weight = self.coded(info.name.removesuffix(STORED))
        if weight is None:
            return self.read_stored(info, rows, progress)
        if info.name.endswith(STORED):
            return self.read_stored(weight.layer.codes, rows, progress)
        size, most = sum(map(bytes_of, weight.layer.infos.values())), self._limits.coded_bytes
        if size > most and (rows is None or weight.form is None or weight.form.along != 0):
            what = f"{plain(info.name, 80)} has {size:,} bytes of codes and scales"
            raise SourceError(f"{what}, which are read whole; here up to {most:,} are")
        return weight.restore(self.read_stored, rows, progress).values

    def parts_of(self, name: str) -> tuple[TensorInfo, ...]:
        weight = self.coded(name)
        return tuple(weight.layer.infos.values()) if weight and weight.form else ()

    def pieces(self, name: str | None = None) -> Pieces | None:
        info = self.info(name)
        return None if self.coded(info.name.removesuffix(STORED)) else self.stored_pieces(info)

    def stored_pieces(self, info: TensorInfo) -> Pieces | None:
        """Return ``pieces`` of a tensor that is stored as it is."""
        return None


def as_in_network(source: TensorSource, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Read one tensor as transformers' network holds it.

    A restored weight is in ``dtype``, and experts are [E, inputs, outputs]; every other tensor is as stored.
    """
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
    """List the tensors of a source without bare codes, and without the scales of a restored layer's inputs
    and outputs."""
    layers = {name.removesuffix(".weight") for name in source.restored}
    return tuple(
        info
        for info in source.infos
        if not info.name.endswith(STORED)
        and not any(info.name.endswith(end) and info.name.removesuffix(end) in layers for end in OF_INPUTS)
    )


def stored_dtype(named: object, infos: Iterable[TensorInfo]) -> torch.dtype:
    """Return the dtype that a configuration names ("bfloat16", "torch.bfloat16"), else that of the first
    floating-point tensor, else float32."""
    dtype = getattr(torch, str(named or "").removeprefix("torch."), None)
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    short = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    return next((short[info.dtype] for info in infos if info.dtype in short), torch.float32)


def _in_header_words(info: TensorInfo) -> TensorInfo:
    """Rename the entry's dtype as in safetensors' headers: "U8" for "uint8"."""
    dtype = getattr(torch, info.dtype, None)
    return replace(info, dtype=NAMES[dtype]) if isinstance(dtype, torch.dtype) and dtype in NAMES else info


def _listed(infos: Iterable[TensorInfo]) -> str:
    """Names and shapes: of damaged tensors these say what does not fit."""
    return ", ".join(f"{plain(info.name, 80)} {shape_words(info.shape)}" for info in infos)


def _how_to_see(name: str) -> str:
    return f"To see the codes themselves, open {plain(name, 80)}{STORED} (on the command line, --codes)"


def _unknown(
    info: TensorInfo, scales: Mapping[str, TensorInfo], settings: Mapping[str, Any]
) -> CodedWeight | None:
    """Describe codes beside scales in an unknown form; None for a tensor without such scales."""
    packed = info.dtype in _WORDS and _CODES_END.search(info.name)
    if info.dtype not in _CODES and not packed:
        return None
    base = next((b for b in (info.name, _CODES_END.sub("", info.name)) if b in scales), None)
    promised = settings.get("quant_method") and info.dtype.startswith("F8_E")
    if base is None and not (promised and info.name.endswith(".weight")):
        return None
    beside = "and has no scales"
    if base is not None:
        found = scales[base]
        shape = shape_words(found.shape)
        beside = f"beside the scales {plain(found.name, 80)} ({found.dtype}, shape {shape})"
    problem = (
        f"{plain(info.name, 80)} holds codes in {info.dtype}, {beside}: this form is not known, and codes "
        f"are not read as numbers. {_how_to_see(info.name)}"
    )
    return CodedWeight(info, CodedLayer({"": info}, settings, ""), None, problem)


def _has_bytes(info: TensorInfo, raw: Mapping[str, TensorInfo]) -> bool:
    """True of codes whose tensor may have any dtype."""
    return any(f"{info.name}.{end}" in raw for end in ("absmax", "quant_map"))


def _may_be_codes(info: TensorInfo, raw: Mapping[str, TensorInfo]) -> bool:
    """True of a tensor for which scales are looked for."""
    return info.dtype in (*_CODES, *_WORDS) or _has_bytes(info, raw)


def _layers_of(name: str) -> Iterator[str]:
    """The layers and weights of which the tensor ``name`` may be the codes: by these its scales are found.
    (All prefixes of all names would be gigabytes of a header of 16 MB.)"""
    yield name
    yield _CODES_END.sub("", name)
    for main in filter(f".{name}".endswith, MAINS):
        base = f".{name}".removesuffix(main)
        yield from (base[1:], *((base + weight)[1:] for weight in _WEIGHTS))


def _bases(name: str, holding: re.Pattern[str] = _SCALES) -> Iterator[str]:
    """The layers and tensors that the tensor ``name`` may belong to, if ``holding`` matches its own name."""
    first = max(name.rfind("."), 0)
    found = None if _OF_INPUTS.search(name) else holding.search(name, first)
    if name.startswith(("scale.", "scales.")):
        yield name.partition(".")[2]
    if found is None:
        return
    places = [place for place in range(first, found.start() + 1) if name[place] in "._"]
    for place in places[-_MOST_WORDS:]:
        yield name[:place].rstrip("._")
    if not name[: found.start()].rstrip("._"):
        yield ""
