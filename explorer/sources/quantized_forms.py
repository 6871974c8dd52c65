"""The forms in which checkpoints hold quantized weights: one row of ``FORMS`` each.

A form recognises a layer by the header entries of its tensors and by ``quantization_config``, which may be
missing or wrong, and restores the values of the codes. Layouts: the documentation of compressed-tensors,
AutoGPTQ, AutoAWQ, bitsandbytes, torchao, HQQ, ModelOpt and the OCP Microscaling specification. The writers in
``explorer.checkpoints`` draw the same layouts. GGUF's types are read by ``gguf_file``.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from explorer.formats import E8M0, FloatFormat, float_format
from explorer.formats.packing import codes_in_words, unpack_bits
from explorer.formats.subnormals import keeps_subnormals
from explorer.progress import checkpoint
from explorer.sources.base import TensorInfo
from explorer.sources.matrix import unpack_fp4
from explorer.sources.safetensors_header import bytes_of

Parts = Mapping[str, Tensor]
"""Tensors of a layer by their endings after its name: ".qweight"."""
Read = Callable[[TensorInfo], Tensor]
ReadFirst = Callable[[TensorInfo, int | None], Tensor]
Shape = tuple[int, ...]
Block = tuple[int | None, int | None]
"""Rows and columns of the codes that share a scale; None for all."""
_WHOLE: dict[Block, tuple[str, str]] = {
    (None, None): ("tensor", "per tensor"), (1, None): ("row", "per row"),
}  # fmt: skip
"""Blocks with a word of their own -> that word in a scheme's text, and in labels."""
_WORD, _MX = 32, 32
_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
_FLOATS, _EXPONENTS = ("F32", "F16", "BF16"), ("F8_E8M0", "U8")
_F8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_SCALES = (".weight_scale", ".weight_scale_inv", ".scale", "._weight_scale")
_ZEROS = (".weight_zero_point", "._weight_zero_point")
PACKED = "packed integers"
"""Kind of codes whose bits the header does not tell."""
_SHAPE = ".weight_shape"
_WITHOUT_ROWS = (".g_idx", ".weight_g_idx", _SHAPE)
"""Endings of tensors that do not follow the weight's rows."""
_STATE = ".weight.quant_state.bitsandbytes__"
_INT8_STEPS = 127.0
"""LLM.int8() stores the largest magnitude of a row, which the code 127 stands for."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Order of the codes in AWQ's words, from the lowest four bits up."""


@dataclass(frozen=True, eq=False)
class Restored:
    """Weight restored from codes.

    values  float32, in the weight's own shape
    kind    the stored form in words: "INT4 group 128, asymmetric"
    scheme  text for ``Scheme.parse`` of a scheme with such codes and scales, or empty. A file does not say
            how its ranges and codes were chosen
    steps   float32, broadcast to ``values``: each element's scale; None if there is none, or it is unknown
    """

    values: Tensor
    kind: str
    scheme: str = ""
    steps: Tensor | None = None


@dataclass(frozen=True)
class CodedLayer:
    """Header entries of a layer's tensors by their endings after its name, and the model's
    ``quantization_config``.

    ``main`` is the ending of the tensor of codes. ``rows``: how many first rows of the weight are wanted;
    None for all.
    """

    infos: Mapping[str, TensorInfo]
    settings: Mapping[str, object]
    main: str
    rows: int | None = None

    @property
    def codes(self) -> TensorInfo:
        return self.infos[self.main]

    @property
    def scales(self) -> str:
        """Ending of the scales of codes that are not packed in words."""
        return next(end for end in _SCALES if end in self.infos)

    def has(self, *ends: str) -> bool:
        return all(end in self.infos for end in ends)

    def is_in(self, end: str, *dtypes: str) -> bool:
        """True if the tensor with this ending exists in one of these dtypes."""
        return end in self.infos and self.infos[end].dtype in dtypes

    def scaled(self, *dtypes: str) -> bool:
        """True if there are scales in one of ``dtypes``."""
        return any(self.is_in(end, *dtypes) for end in _SCALES)

    def stated(self) -> Iterator[Mapping[str, object]]:
        """Parts of ``quantization_config`` that describe weights."""
        yield self.settings
        groups = self.settings.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping):
                yield group["weights"]

    def stated_bits(self) -> object:
        """``num_bits`` of ``quantization_config``; None if it is missing, or if layers differ."""
        bits = {part["num_bits"] for part in self.stated() if "num_bits" in part}
        return bits.pop() if len(bits) == 1 else None

    def stated_blocks(self) -> Iterator[tuple[int, int]]:
        """Rows and columns of a scale's block, wherever ``quantization_config`` states them."""
        for part in self.stated():
            groups = [1, part.get("group_size")]
            for block in (part.get("weight_block_size"), part.get("block_structure"), groups):
                match block:
                    case [int(down), int(across)] if down > 0 and across > 0:
                        yield down, across

    def block(self) -> Block:
        """The block of a scale, from the shapes [N, K] of codes and [N, G], [N], [1] or [] of scales."""
        shape, grid = self.codes.shape, self.infos[self.scales].shape
        if len(shape) != 2 or len(grid) > 2:
            raise ValueError(
                f"its codes have {len(shape)} axes and its scales {len(grid)}; matrices are read"
            )
        if len(grid) == 1 and grid[0] not in (1, shape[0]):
            raise ValueError(f"{shape[0]:,} rows of codes have {grid[0]:,} scales")
        whole = grid == (1, 1)
        grid = (*grid, 1, 1)[:2]
        fitting = [
            block
            for block in self.stated_blocks()
            if tuple(-(-n // side) for n, side in zip(shape, block, strict=True)) == grid
        ]
        if whole and self.settings.get("weight_block_size") and not fitting:
            raise ValueError(f"its one scale has the shape [1, 1]; its codes {list(shape)} need one a block")
        tall = _side(shape[0], grid[0], (down for down, _ in fitting))
        wide = _side(shape[1], grid[1], (across for _, across in fitting))
        if self.main == "._weight_qdata" and grid[0] not in (1, shape[0]):
            raise ValueError(f"its scales have the shape {list(grid)}: their order is not known")
        return None if grid[0] == 1 else tall, None if grid[1] == 1 else wide


class CodeForm(ABC):
    """Form in which files hold a quantized weight.

    mains    endings of the tensor of codes; a layer has one of them
    others   endings of the other tensors of the weight
    along    the axis along which the parts follow the weight's rows; None if they do not, so that they are
             read whole, and ``restore`` takes of them what the first rows need
    weight   ending of the weight's name in the network
    codes_label  the kind of codes, if it is always the same
    """

    mains: tuple[str, ...]
    others: tuple[str, ...]
    along: int | None = 0
    weight = ".weight"
    codes_label = ""

    @abstractmethod
    def fits(self, layer: CodedLayer) -> bool:
        """True if the header entries are of this form."""

    def label(self, layer: CodedLayer) -> str:
        """The kind of codes in the field's words."""
        return self.codes_label

    @abstractmethod
    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        """Find the weight's shape, from the header entries and if necessary from small tensors that ``read``
        reads.

        ``ValueError`` if the entries do not fit together.
        """

    @abstractmethod
    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        """Restore the values of ``parts``: whole tensors, or the rows of them that the first rows need.

        ``layer`` describes the whole tensors. ``ValueError`` if they do not fit together.
        """

    def read(
        self, layer: CodedLayer, rows: int | None, total: int, read_rows: ReadFirst
    ) -> dict[str, Tensor]:
        """Read the tensors of a weight of ``total`` rows, cut to the need of its first ``rows``; whole if
        None."""
        if rows is None or self.along is None or rows >= total:
            return {end: read_rows(info, None) for end, info in layer.infos.items()}
        found = {}
        if layer.codes.dtype == "I32":
            rows += -rows % _WORD
        for end, info in layer.infos.items():
            length = info.shape[self.along] if info.shape and end not in _WITHOUT_ROWS else 1
            count = None if length == 1 else min(length, -(-rows * length // total))
            if self.along == 0 or count is None:
                found[end] = read_rows(info, count)
            else:
                found[end] = read_rows(info, None)[:, :count].contiguous()
        return found


def form_of(layer: CodedLayer) -> tuple[CodeForm, str] | None:
    """Find the form of a layer, and the ending of its codes; None for plain weights and unknown forms."""
    for form in FORMS:
        for main in form.mains:
            if main in layer.infos and form.fits(replace(layer, main=main)):
                return form, main
    return None


def scheme_text(fmt: str, block: Block, scale: str, mapping: str = "symmetric") -> str:
    """Write the text of a scheme with these parts, whether or not they can be combined."""
    height, width = block
    where = _WHOLE[block][0] if block in _WHOLE else f"{height or 'all'}x{width or 'all'}"
    return f"{fmt}~{where}~{mapping}~{scale}~minmax"


def kind_of(label: str, block: Block, *more: str) -> str:
    """Describe a stored form: "INT4 group 128, asymmetric"."""
    height, width = block
    group = f"group {width}" if height == 1 else f"{height or 'all'}×{width or 'all'}"
    return ", ".join([f"{label} {_WHOLE[block][1] if block in _WHOLE else group}", *filter(None, more)])


def mx_kind(fmt: FloatFormat) -> str:
    """Describe elements of ``fmt`` in groups of 32 under E8M0 scales: "MXFP6 E2M3"."""
    return f"MX{fmt.label}" if fmt.bits > 4 else "MXFP4"


def _side(length: int, count: int, stated: Iterable[int]) -> int:
    """Number of codes that share a scale, in a line of ``length`` codes with ``count`` scales.

    The number of ``stated`` that fits, else the only equal share or power of two that fits. ``ValueError`` if
    none or several fit: a block that is cut at the edge may have several sizes.
    """
    if count == 1:
        return max(length, 1)
    if count < 1:
        raise ValueError(f"{length:,} codes in a line have {count:,} scales")
    fitting = {side for side in stated if -(-length // side) == count}
    if len(fitting) == 1:
        return fitting.pop()
    equal = {length // count} if length % count == 0 else set()
    powers = {1 << n for n in range(length.bit_length()) if -(-length // (1 << n)) == count}
    found = fitting or equal | powers
    if len(found) != 1 or not equal | fitting:
        sizes = f"blocks of {' or '.join(f'{n:,}' for n in sorted(found))} fit" if found else "no size fits"
        raise ValueError(
            f"{length:,} codes in a line have {count:,} scales, and quantization_config states no "
            f"group_size, block_structure or weight_block_size that fits: {sizes}"
        )
    return found.pop()


def _steps(scales: Tensor) -> Tensor:
    """Convert scales, in a float dtype or E8M0 exponents, to float32."""
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return E8M0.decode(scales.view(torch.uint8))
    return scales.float()


def _integers(
    codes: Tensor,
    zeros: Tensor | None,
    scales: Tensor,
    bits: int,
    layer: CodedLayer,
    groups: Tensor | None = None,
) -> Restored:
    """Restore integer codes uint8 [N, K], counted from the lowest.

    ``zeros``: zero points in the same count [N, G], None for the middle. ``scales``: [N, G], [N, 1] or [1].
    ``groups``: int64 [K], the group of each input if groups are not contiguous.
    """
    (rows, columns), middle = codes.shape, 1 << (bits - 1)
    grid = scales.float().reshape(-1, 1) if scales.dim() < 2 else scales.float()
    if len(grid) not in (1, rows):
        raise ValueError(f"{rows:,} rows of codes have {len(grid):,} rows of scales")
    count = grid.shape[1]
    if groups is None:
        width = _side(columns, count, (across for _, across in layer.stated_blocks()))
    else:
        width = int(groups.bincount().max())
    even = torch.arange(columns) // width
    where = even if groups is None else groups
    steps = grid[:, where].expand(rows, columns)
    signed = codes.to(torch.int16) - middle
    if zeros is not None and bool((zeros != middle).any()):
        points = (zeros.to(torch.int16) - middle).reshape(grid.shape)
        signed, mapping = signed - points[:, where], "asymmetric"
    else:
        mapping = "full" if bool((codes == 0).any()) else "symmetric"
    grouped = count > 1 or (len(grid) == rows and (1, columns) in layer.stated_blocks())
    block = (1, width) if grouped else (None if grid.numel() == 1 < rows else 1, None)
    mixed = groups is not None and bool((groups[1:] < groups[:-1]).any())
    words = "asymmetric" if mapping == "asymmetric" else ""
    kind = kind_of(f"INT{bits}", block, words, "groups by activation order" if mixed else "")
    rule = _DTYPES.get(scales.dtype, "float32")
    scheme = scheme_text(f"int{bits}", block, rule, mapping) if torch.equal(where, even) else ""
    return Restored(signed.float() * steps, kind, scheme, steps)


def _groups_of(stored: Tensor, columns: int, count: int) -> Tensor:
    """Read the group of each input, int64 [K]; ``ValueError`` unless there are K numbers below ``count``."""
    if stored.shape != (columns,):
        raise ValueError(f"it has groups of {stored.numel():,} inputs, and codes of {columns:,}")
    groups = stored.long()
    if bool(((groups < 0) | (groups >= count)).any()):
        raise ValueError(f"an input is in a group other than 0 to {count - 1}, of which there are scales")
    return groups


class _Gptq(CodeForm):
    """GPTQ: codes in int32 words [K · bits / 32, N] down each column."""

    mains, others, along = (".qweight",), (".qzeros", ".scales", ".g_idx"), 1

    def fits(self, layer: CodedLayer) -> bool:
        return layer.has(".qzeros", ".scales") and layer.codes.shape[-1] == layer.infos[".scales"].shape[-1]

    def bits(self, layer: CodedLayer) -> int:
        bits = _WORD * layer.infos[".qzeros"].shape[1] // layer.infos[".scales"].shape[1]
        if bits not in (2, 3, 4, 8):
            raise ValueError(f"its zero points and scales make codes of {bits} bits; read are 2, 3, 4 and 8")
        return bits

    def label(self, layer: CodedLayer) -> str:
        return f"INT{self.bits(layer)}"

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        (words, rows), settings = layer.codes.shape, layer.settings
        if settings.get("quant_method") == "awq":
            raise ValueError("its config says AWQ, and its tensors have the shapes of GPTQ")
        bits = self.bits(layer)
        if (stated := settings.get("bits")) not in (None, bits) and not settings.get("dynamic"):
            raise ValueError(f"its tensors hold codes of {bits} bits, and its config says {stated}")
        return rows, _WORD * words // bits

    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        words, scales, bits = parts[".qzeros"], parts[".scales"], self.bits(layer)
        count, rows = scales.shape
        columns = _WORD * parts[".qweight"].shape[0] // bits
        codes = codes_in_words(parts[".qweight"].t(), bits, columns)
        if self.is_second_version(words, layer.settings):
            zeros = codes_in_words(words, bits, rows)
        elif _WORD % bits:  # codes of 3 bits cross words, and each wraps by itself
            zeros = (codes_in_words(words, bits, rows) + 1) & ((1 << bits) - 1)
        else:  # gptqmodel subtracts one from each code as a whole word, which borrows: add to whole words
            ones = sum(1 << place for place in range(0, _WORD, bits))
            zeros = codes_in_words((words.long() + ones).to(torch.int32), bits, rows)
        groups = _groups_of(parts[".g_idx"], columns, count) if ".g_idx" in parts else None
        return _integers(codes, zeros.t(), scales.t(), bits, layer, groups)

    def is_second_version(self, words: Tensor, settings: Mapping[str, object]) -> bool:
        """True if zero points are stored as they are, False if less one; ``ValueError`` if the version is
        unknown."""
        stated = settings.get("checkpoint_format") or settings.get("format")
        if stated or settings:
            return str(stated).lower() == "gptq_v2"
        first = int(words.reshape(-1)[0]) & 0xFFFFFFFF if words.numel() else 0
        if first in (0x77777777, 0x88888888) and bool((words == words.reshape(-1)[0]).all()):
            return first == 0x88888888
        raise ValueError("no quantization_config names the version of GPTQ's layout of its zero points")


class _Awq(CodeForm):
    """AWQ: codes of 4 bits in int32 words [K, N / 8] along each row, in ``AWQ_ORDER``."""

    codes_label = "INT4"
    mains, others, along = (".qweight",), (".qzeros", ".scales"), 1

    def fits(self, layer: CodedLayer) -> bool:
        return (
            layer.has(".qzeros", ".scales") and 8 * layer.codes.shape[-1] == layer.infos[".scales"].shape[-1]
        )

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        if (version := str(layer.settings.get("version") or "gemm").lower()) != "gemm":
            raise ValueError(f"its codes lie in AWQ's order {version!r}; only 'gemm' is read")
        columns, words = layer.codes.shape
        return 8 * words, columns

    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        codes, zeros = (self.in_order(parts[end]).t() for end in (".qweight", ".qzeros"))
        return _integers(codes, zeros, parts[".scales"].t(), 4, layer)

    def in_order(self, words: Tensor) -> Tensor:
        """Unpack words int32 [rows, N/8] to codes in order, uint8 [rows, N]."""
        mixed = codes_in_words(words, 4, 8 * words.shape[1])
        back = [AWQ_ORDER.index(place) for place in range(8)]
        return mixed.unflatten(1, (-1, 8))[:, :, back].flatten(1)


class _PackedIntegers(CodeForm):
    """compressed-tensors' pack-quantized: codes in int32 words [N, K · bits / 32] along each row."""

    mains = (".weight_packed",)
    others = (".weight_scale", ".weight_zero_point", _SHAPE, ".weight_g_idx")

    def fits(self, layer: CodedLayer) -> bool:
        return layer.is_in(".weight_packed", "I32") and layer.has(".weight_scale", _SHAPE)

    def label(self, layer: CodedLayer) -> str:
        bits = layer.stated_bits()
        return PACKED if bits is None else f"INT{bits}"

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        """Read the shape by the bits that the configuration states, else from the two numbers of
        ``.weight_shape``."""
        (rows, words), grid, bits = layer.codes.shape, layer.infos[".weight_scale"].shape, layer.stated_bits()
        if type(bits) is int and bits in (4, 8) and len(grid) == 2 and grid[1] > 1:
            columns = _WORD * words // bits
            if any(across * grid[1] == columns for _, across in layer.stated_blocks()):
                return rows, columns  # without a read: groups are whole
        if layer.infos[_SHAPE].shape != (2,):
            raise ValueError(f"its {_SHAPE} is no pair of numbers")
        stored = [int(n) for n in read(layer.infos[_SHAPE])]
        if stored[0] != rows or not 0 < stored[1] <= _WORD * words:
            raise ValueError(f"its {_SHAPE} says {stored}, and it has codes of {rows} rows")
        return rows, stored[1]

    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        packed, scales, held = parts[".weight_packed"], parts[".weight_scale"], layer.codes.shape[0]
        rows, columns = parts[_SHAPE].tolist()
        if columns < 1 or rows != held:
            raise ValueError(f"its {_SHAPE} says [{rows}, {columns}], and it has codes of {held} rows")
        bits, rows = self._bits(layer, packed.shape[1], columns), len(packed)
        codes, zeros = codes_in_words(packed, bits, columns), parts.get(".weight_zero_point")
        if zeros is not None and zeros.dtype is torch.int32:
            zeros = codes_in_words(zeros.t(), bits, rows).t()
        elif zeros is not None:
            zeros = zeros.to(torch.int16) + (1 << (bits - 1))
        groups = parts.get(".weight_g_idx")
        if groups is not None:
            groups = None if bool((groups == -1).any()) else _groups_of(groups, columns, scales.shape[1])
        return _integers(codes, zeros, scales, bits, layer, groups)

    @staticmethod
    def _bits(layer: CodedLayer, words: int, columns: int) -> int:
        """The stated bits of a code, else the only ones, of powers of two first, with so many ``words`` a
        row; ``ValueError`` if none fit, or several."""
        fitting = [bits for bits in range(1, 9) if -(-columns * bits // _WORD) == words]
        for some in ({layer.stated_bits()}, {2, 4, 8}, {*fitting}):
            if len(found := [bits for bits in fitting if bits in some]) == 1:
                return found[0]
        sizes = " or ".join(map(str, fitting)) or "no number of"
        raise ValueError(f"{words:,} words hold a row of {columns:,} codes: {sizes} bits a code fit")


class _Nvfp4(CodeForm):
    """NVFP4: two E2M1 codes a byte, an E4M3 scale a group of 16, and a tensor scale above.

    compressed-tensors divides by the tensor scale, ModelOpt multiplies by it.
    """

    codes_label = "NVFP4"

    def __init__(self, main: str, above: str, divides: bool) -> None:
        self.mains, self.others = (main,), (".weight_scale", above)
        self.above, self.divides = above, divides

    def fits(self, layer: CodedLayer) -> bool:
        coded = layer.is_in(layer.main, "U8", "F4") and layer.is_in(".weight_scale", "F8_E4M3")
        return coded and layer.has(self.above)

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        codes, scales = layer.codes, layer.infos[".weight_scale"].shape
        rows, columns = codes.shape[0], codes.shape[-1] * (1 if codes.dtype == "F4" else 2)
        above = layer.infos[self.above].shape
        if math.prod(above) != 1:
            raise ValueError(f"its tensor scale has the shape {list(above)}; accepted is one number")
        if len(codes.shape) != 2 or len(scales) != 2 or scales[0] != rows or scales[1] * 16 != columns:
            raise ValueError(
                f"its scales have the shape {list(scales)}; its codes need [{rows}, {columns // 16}]"
            )
        return rows, columns

    @keeps_subnormals
    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        codes, above = unpack_fp4(parts[layer.main]), parts[self.above].float()
        blocks = parts[".weight_scale"].float()
        blocks = blocks / above if self.divides else blocks * above
        steps = blocks.repeat_interleave(codes.shape[1] // blocks.shape[1], 1)
        kind = "NVFP4 (E4M3 scale a group of 16, FP32 scale a tensor)"
        scheme = scheme_text("float4_e2m1fn", (1, 16), "nvfp4-ct" if self.divides else "nvfp4")
        return Restored(codes * steps, kind, scheme, steps)


class _Microscaling(CodeForm):
    """MXFP4, MXFP6 and MXFP8 in bytes: an E8M0 scale a group of 32."""

    mains, others = (".weight_packed", ".weight"), _SCALES[:3]

    def fits(self, layer: CodedLayer) -> bool:
        exponents = any(layer.is_in(end, *_EXPONENTS) for end in self.others)
        return exponents and self.element(layer) is not None

    def element(self, layer: CodedLayer) -> FloatFormat | None:
        """Find the format of the codes by the number of bytes that share a scale; None if it does not follow.

        Bytes of one code each are E4M3 only if the dtype or the configuration says so.
        """
        codes, scales = layer.codes, layer.infos[layer.scales]
        if len(codes.shape) != 2 or len(scales.shape) != 2 or codes.shape[0] != scales.shape[0]:
            return None
        if codes.dtype not in ("U8", "I8", "F4"):
            return None
        bits = codes.shape[1] * (4 if codes.dtype == "F4" else 8)
        each = {n: _MX * n * scales.shape[1] for n in (4, 6, 8)}
        if bits == each[8]:
            return float_format("float8_e4m3fn") if layer.settings.get("quant_method") == "mxfp8" else None
        said = str(layer.settings).lower()
        e2m3 = layer.main == ".weight_packed" or "mxfp6" in said  # compressed-tensors has E2M3
        if bits == each[6] and e2m3 and "e3m2" not in said:
            return float_format("float6_e2m3fn")
        return float_format("float4_e2m1fn") if bits == each[4] else None

    def label(self, layer: CodedLayer) -> str:
        fmt = self.element(layer)
        assert fmt is not None
        return mx_kind(fmt)

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        rows, groups = layer.infos[layer.scales].shape
        return rows, _MX * groups

    @keeps_subnormals
    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        fmt, raw = self.element(layer), parts[layer.main].view(torch.uint8)
        assert fmt is not None
        steps = _steps(parts[layer.scales]).repeat_interleave(_MX, 1)
        values = fmt.decode(unpack_bits(raw, fmt.bits, steps.shape[1]))
        return Restored(values * steps, mx_kind(fmt), scheme_text(fmt.name, (1, _MX), "floor"), steps)


class _ScaledFloats(CodeForm):
    """FP8 codes, scaled per tensor, row or block."""

    mains, others = (".weight", "._weight_qdata"), _SCALES

    def fits(self, layer: CodedLayer) -> bool:
        return layer.is_in(layer.main, *_F8) and layer.scaled(*_FLOATS, *_EXPONENTS)

    def label(self, layer: CodedLayer) -> str:
        fmt = float_format(_F8[layer.codes.dtype])
        exponents = layer.is_in(layer.scales, *_EXPONENTS) and layer.block() == (1, _MX)
        return mx_kind(fmt) if exponents else fmt.label

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        layer.block()
        return layer.codes.shape

    @keeps_subnormals
    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        values, scales, block = parts[layer.main].float(), parts[layer.scales], layer.block()
        grid = _steps(scales)
        grid = grid.reshape(-1, 1) if grid.dim() < 2 else grid
        for axis, side in enumerate(block):
            if side != 1 and side is not None:
                grid = grid.index_select(axis, torch.arange(values.shape[axis]) // side)
        steps = grid.expand(values.shape)
        fmt = float_format(_F8[layer.codes.dtype])
        if layer.is_in(layer.scales, *_EXPONENTS):
            rule = "floor"
            kind = mx_kind(fmt) if block == (1, _MX) else kind_of(fmt.label, block, "E8M0 scales")
        else:
            rule, kind = _DTYPES.get(scales.dtype, "float32"), kind_of(fmt.label, block)
        return Restored(values.mul_(steps), kind, scheme_text(fmt.name, block, rule), steps)


class _Int8(CodeForm):
    """INT8 codes, scaled per tensor, row or group."""

    codes_label = "INT8"
    mains, others = (".weight", "._weight_qdata"), (*_SCALES, *_ZEROS)

    def fits(self, layer: CodedLayer) -> bool:
        return layer.is_in(layer.main, "I8") and layer.scaled(*_FLOATS)

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        tall, _ = layer.block()
        if tall not in (1, None) or any(layer.is_in(end, *_FLOATS) for end in _ZEROS):
            raise ValueError("read are INT8 codes with scales of rows or groups, and integer zero points")
        return layer.codes.shape

    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        zeros = next((parts[end].to(torch.int16) + 128 for end in _ZEROS if end in parts), None)
        return _integers(parts[layer.main].view(torch.uint8) ^ 128, zeros, parts[layer.scales], 8, layer)


class _LlmInt8(CodeForm):
    """LLM.int8() of bitsandbytes: INT8 codes and the largest magnitude of each row."""

    codes_label = "INT8"
    mains, others = (".weight",), (".SCB", ".weight_format")

    def fits(self, layer: CodedLayer) -> bool:
        return layer.is_in(".weight", "I8") and layer.has(".SCB")

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        return layer.codes.shape

    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        if int(parts.get(".weight_format", torch.zeros(1)).reshape(-1)[0]):
            raise ValueError("its INT8 codes are in the order of one GPU's tiles; rows are read")
        scales = parts[".SCB"].float()[:, None] / _INT8_STEPS
        found = _integers(parts[".weight"].view(torch.uint8) ^ 128, None, scales, 8, layer)
        return replace(found, kind=f"{found.kind} (LLM.int8())")


class _Bitsandbytes(CodeForm):
    """NF4 and FP4 of bitsandbytes: two codes a byte, the first in the high nibble, scales of flat blocks."""

    mains, along = (".weight",), None
    others = (
        ".weight.absmax", ".weight.nested_absmax", ".weight.nested_quant_map", ".weight.quant_map",
        f"{_STATE}nf4", f"{_STATE}fp4",
    )  # fmt: skip

    def fits(self, layer: CodedLayer) -> bool:
        return layer.has(".weight.absmax", ".weight.quant_map") and any(
            end.startswith(_STATE) for end in layer.infos
        )

    def label(self, layer: CodedLayer) -> str:
        return "FP4" if layer.has(f"{_STATE}fp4") else "NF4"

    def state(self, stored: Tensor) -> tuple[dict[str, object], tuple[int, int]]:
        """Parse a layer's description, JSON in a tensor of bytes; returns it and the shape in it."""
        state = json.loads(bytes(stored.tolist()))
        if not isinstance(state, dict):
            raise ValueError("its state is no JSON object")
        shape = state.get("shape")
        if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int for n in shape):
            raise ValueError("its state names no shape of two axes")
        return state, (shape[0], shape[1])

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        _, shape = self.state(read(next(i for end, i in layer.infos.items() if end.startswith(_STATE))))
        codes = 2 * bytes_of(layer.codes)
        if min(shape) < 0 or math.prod(shape) > codes:
            raise ValueError(f"its state says {list(shape)}, and it has {codes:,} codes")
        return shape

    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        state, shape = self.state(next(part for end, part in parts.items() if end.startswith(_STATE)))
        absmax, size = parts[".weight.absmax"], self.block_of(state, "blocksize")
        shape, whole = (shape[0] if layer.rows is None else layer.rows, shape[1]), math.prod(shape)
        count, blocks = math.prod(shape), len(absmax)
        absmax = self.first(absmax, size, whole, count)
        nested = ".weight.nested_absmax" in parts
        if nested:
            above, each = parts[".weight.nested_absmax"], self.block_of(state, "nested_blocksize")
            above = self.spread(self.first(above, each, blocks, len(absmax)), each, len(absmax))
            levels = parts[".weight.nested_quant_map"].float()
            absmax = levels[absmax.int()] * above + float(state["nested_offset"])  # type: ignore[arg-type]
        raw = parts[".weight"].contiguous().view(torch.uint8).reshape(-1)[: -(-count // 2)]
        codes = torch.stack((raw >> 4, raw & 15), 1).reshape(-1)
        steps = self.spread(absmax, size, count)
        values = parts[".weight.quant_map"].float()[codes[:count].int()] * steps
        fmt, label = {"nf4": ("nf4", "NF4"), "fp4": ("bnb_fp4", "FP4")}[str(state["quant_type"])]
        where = f"1x{size}" if shape[1] % size == 0 else f"flat{size}"
        rule = "nested~minmax~reciprocal~unrounded" if nested else "float32-zero~minmax~reciprocal"
        kind = f"{label} block {size}{', double-quantized' if nested else ''}"
        return Restored(values.reshape(shape), kind, f"{fmt}~{where}~symmetric~{rule}", steps.reshape(shape))

    def block_of(self, state: Mapping[str, object], name: str) -> int:
        """Read the size of a block, which is any value of the file's JSON."""
        size = state[name]
        if type(size) is not int or size < 1:
            raise ValueError(f"its state says blocks of {size}")
        return size

    def first(self, scales: Tensor, size: int, count: int, wanted: int) -> Tensor:
        """The scales of the first ``wanted`` values of ``count``, one for each ``size`` of them."""
        if len(scales) != -(-count // size):
            raise ValueError(
                f"its state says blocks of {size}, and {count:,} values have {len(scales):,} scales"
            )
        return scales[: -(-wanted // size)]

    def spread(self, scales: Tensor, size: int, count: int) -> Tensor:
        """Expand to the scale of each value, float32 [count]."""
        return scales.float().repeat_interleave(min(size, count))[:count]


class _Experts(CodeForm):
    """MXFP4 of gpt-oss: blocks [E, N, K/32, 16] and scales [E, N, K/32] of all experts of a layer."""

    codes_label = "MXFP4"
    mains, others, weight = ("_blocks",), ("_scales",), ""

    def fits(self, layer: CodedLayer) -> bool:
        return (
            layer.is_in("_blocks", "U8")
            and len(layer.codes.shape) == 4
            and (layer.is_in("_scales", *_EXPONENTS) or layer.settings.get("quant_method") == "mxfp4")
        )

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        *grid, size = layer.codes.shape
        if size != _MX // 2:
            raise ValueError(f"blocks are of {size} bytes; MXFP4 has {_MX // 2}")
        if "_scales" not in layer.infos:
            raise ValueError("it has no scales: its codes mean nothing without them")
        scales = layer.infos["_scales"]
        if scales.dtype not in _EXPONENTS:
            raise ValueError(f"its scales are {scales.dtype}; accepted are {', '.join(_EXPONENTS)}")
        if list(scales.shape) != grid:
            raise ValueError(f"its scales have the shape {list(scales.shape)}; its codes need {grid}")
        return grid[0], grid[1], grid[2] * _MX

    @keeps_subnormals
    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        blocks, scales = parts["_blocks"], parts["_scales"]
        experts, outputs, groups, size = blocks.shape
        values = torch.empty(experts, outputs, groups * size * 2)
        for expert in range(experts):  # one at a time: who leaves is noticed, and memory is bounded
            checkpoint()
            values[expert] = (unpack_fp4(blocks[expert]) * _steps(scales[expert])[..., None]).flatten(1)
        steps = _steps(scales).repeat_interleave(_MX, -1)
        return Restored(values, "MXFP4", scheme_text("float4_e2m1fn", (1, _MX), "floor"), steps)


class _Hqq(CodeForm):
    """HQQ: several codes a byte, the first rows in the high bits; values are (code - zero) · scale.

    Groups lie in rows ([N·K/G, G], axis 1) or columns ([G, N·K/G], axis 0).
    """

    codes_label = PACKED
    mains, along = (".W_q",), None
    others = (
        ".scale", ".zero", ".nbits", ".axis", ".shape", ".group_size", ".packing", ".unpack_view_dtype",
        ".view_as_float", ".compute_dtype", ".channel_wise", ".optimize", ".round_zero", ".offload_meta",
        ".stores_quant_config", ".encoded_state_dict",
    )  # fmt: skip

    def fits(self, layer: CodedLayer) -> bool:
        return (
            layer.is_in(".W_q", "U8")
            and layer.is_in(".scale", *_FLOATS)
            and layer.has(".zero", ".nbits", ".axis", ".shape")
        )

    def shape(self, layer: CodedLayer, read: Read) -> Shape:
        rows, columns = (int(n) for n in read(layer.infos[".shape"]))
        if not 0 <= rows * columns <= 8 * math.prod(layer.codes.shape):
            raise ValueError(f"its shape says [{rows}, {columns}], and it has fewer codes")
        return rows, columns

    def restore(self, layer: CodedLayer, parts: Parts) -> Restored:
        bits, axis, packed = int(parts[".nbits"]), int(parts[".axis"]), parts[".W_q"]
        rows, columns = parts[".shape"].tolist()
        shifts, (tall, wide) = range(8 - bits, -1, -bits), packed.shape
        groups = (1, -1) if axis == 0 else (-1, 1)
        grid, points = (parts[end].reshape(groups) for end in (".scale", ".zero"))
        count, scales = packed.numel() * len(shifts), grid.numel()
        if count != rows * columns or scales != (tall * len(shifts), wide)[1 - axis] or 8 % bits:
            raise ValueError(f"its shape says [{rows}, {columns}], and it has {count:,} codes")
        rows = rows if layer.rows is None else layer.rows
        need = -(-rows * columns // max(wide, 1))
        first = (packed[: max(0, need - place * tall)] >> shift for place, shift in enumerate(shifts))
        codes = torch.cat([one & ((1 << bits) - 1) for one in first])
        grid, points = (one[: need if axis else 1].float() for one in (grid, points))
        steps = grid.expand(codes.shape).reshape(-1)[: rows * columns].reshape(rows, columns)
        values = codes.float().sub_(points).mul_(grid).reshape(-1)[: rows * columns].reshape(rows, columns)
        size = count // scales
        return Restored(values, f"INT{bits} groups of {size}, zero points in floating point (HQQ)", "", steps)


FORMS: tuple[CodeForm, ...] = (
    _Gptq(), _Awq(), _PackedIntegers(), _Nvfp4(".weight_packed", ".weight_global_scale", divides=True),
    _Nvfp4(".weight", ".weight_scale_2", divides=False), _Microscaling(), _ScaledFloats(), _Int8(),
    _LlmInt8(), _Bitsandbytes(), _Experts(), _Hqq(),
)  # fmt: skip
"""All forms; the first that fits is used."""
OF_INPUTS = (
    ".input_scale", ".input_global_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale",
)  # fmt: skip
"""Endings of tensors of a quantized layer that are no part of its weight."""
MAINS = tuple(dict.fromkeys(end for form in FORMS for end in form.mains))
EXTRA = (*_SCALES[:3], *_ZEROS, ".weight_scale_2", ".weight_global_scale", ".weight_offset", ".weight_shift",
         ".scales", ".zeros", ".zero", ".qzeros", ".SCB")  # fmt: skip
"""Endings of tensors that change what codes stand for: one that a form does not know is no part of it."""
BESIDE = tuple(dict.fromkeys(end for form in FORMS for end in form.others))
