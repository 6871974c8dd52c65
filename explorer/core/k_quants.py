"""Scales of K-quants, IQ4_NL and IQ4_XS by llama.cpp's search (``schemes.k_search``).

Each type has its weights of the error, its candidates, and its rounding of a super-block's scales, with and
without importances of the columns (ggml's ``quant_weights``: the mean square of the layer's inputs). A CPU
processes runs of about 2^18 elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from explorer.core.blocks import runs_of_blocks
from explorer.core.encode import encode_matrix
from explorer.formats import IntegerFormat
from explorer.formats.codebooks import IQ4_LEVELS
from explorer.formats.packing import pack, unpack
from explorer.formats.subnormals import keeps_subnormals
from explorer.progress import checkpoint
from explorer.schemes import Scales, Scheme
from explorer.schemes.k_search import (
    SMALLEST,
    Found,
    Levels,
    Steps,
    first_largest,
    nearest_whole,
    root,
    search_by_code,
    search_levels,
    search_positive,
    search_signed,
    search_with_minimum,
    sum_in_order,
)
from explorer.schemes.levels import SuperBlockLevel, divide, integer_limits, round_scale
from explorer.schemes.rules import IQ4_FORMAT, SUPER_BLOCK, ScaleRule

Weights = Callable[[Tensor], Tensor]
Search = Callable[[Tensor, Tensor], Found]
AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Elements searched at a time, a multiple of a super-block: the search makes about ten tensors of this
size."""
UNSEEN = 1e-6
"""The weight of columns that no input reached, relative to the mean importance."""
IMPORTANT_STEPS = Steps(-0.9, 0.05, 36)
"""Candidates for a scale and a minimum if columns have importances (make_qkx3_quants)."""


@dataclass(frozen=True)
class KQuant:
    """ggml's search for one type.

    ``weigh``      weights of the error without importances, from blocks [width, n]
    ``search``     search of a block's scale under weights
    ``important``  the same search for columns with importances
    ``sigma``      factor on the mean square of a super-block (or of a block outside super-blocks) in
                   weights with importances; None: the importances are the weights
    """

    weigh: Weights
    search: Search
    important: Search
    sigma: float | None = 2.0


def _root_mean_square_and_magnitude(x: Tensor) -> Tensor:
    mean = sum_in_order(x * x) / torch.full_like(x[0], len(x))
    return root(mean) + x.abs()


def _with_minimum(
    bits: int, steps: Steps, weigh: Weights, absolute: bool = False, sigma: float = 2.0
) -> KQuant:
    codes = 1 << bits
    search = partial(search_with_minimum, codes=codes, steps=steps, absolute=absolute)
    important = partial(search_with_minimum, codes=codes, steps=IMPORTANT_STEPS)
    return KQuant(weigh, search, important, sigma)


K_QUANTS: dict[int, KQuant] = {
    2: _with_minimum(2, Steps(-0.5, 0.1, 15), torch.abs, absolute=True, sigma=1.0),
    3: KQuant(torch.square, lambda x, _: search_by_code(x, 4), partial(search_signed, half=4)),
    4: _with_minimum(4, Steps(-1.0, 0.1, 20), _root_mean_square_and_magnitude),
    5: _with_minimum(5, Steps(-0.5, 0.1, 15), _root_mean_square_and_magnitude),
    6: KQuant(torch.square, partial(search_signed, half=32), partial(search_signed, half=32), sigma=None),
}
"""Searches of Q2_K … Q6_K by the bits of a code."""
_LEVELS = partial(search_levels, levels=Levels(IQ4_LEVELS))
IQ4 = KQuant(torch.square, _LEVELS, _LEVELS)
"""Search of IQ4_NL and IQ4_XS."""


@dataclass(frozen=True)
class KScales:
    """Result of the search: scales as stored, and the codes before the scales were rounded.

    ``codes``  uint8 [rows, cols], counted from 0, used for blocks with a scale rounded to 0; None for a
               codebook, where codes follow from ``Scales.unrounded``
    """

    scales: Scales
    codes: Tensor | None


@keeps_subnormals
def find_k_scales(x: Tensor, scheme: Scheme, importance: Tensor | None = None) -> KScales:
    """Search the scales of finite float32 ``x`` [rows, cols] under a K-quant, IQ4_NL or IQ4_XS, as ggml does.

    ``importance`` float32 [cols], not negative, weights the squared error of each column (the mean square of
    the layer's inputs; ``quant_weights`` of ``ggml_quantize_chunk``). A shorter last block or super-block is
    searched in the same way. ``ValueError`` for an importance of another shape, or one that is negative or
    not finite.
    """
    rule, shape = scheme.scale, (x.shape[0], x.shape[1])
    kind = IQ4 if scheme.format.name == IQ4_FORMAT else K_QUANTS[scheme.format.bits]
    assert rule is not None and rule.is_searched
    if importance is not None:
        importance = checked_importance(importance, x, scheme.block[1])
    grid = scheme.grid(shape)
    scale, minimum, weight = (torch.zeros(grid, device=x.device) for _ in range(3))
    codes = torch.zeros(shape, dtype=torch.uint8, device=x.device)
    for part in runs_of_blocks(shape, scheme.block, x.device, AT_ONCE[x.device.type]):
        values, cells = x[part.rows, part.columns], (part.grid_rows, part.grid_columns)
        blocks = blocks_across(values, part.width)
        if importance is None:
            found = kind.search(blocks, kind.weigh(blocks))
        else:
            each = scheme.block[1] if rule.super_bits is None else SUPER_BLOCK
            assert each is not None
            weights = blocks_across(
                _weights(x[part.rows], importance, kind, each)[:, part.columns], part.width
            )
            found = kind.important(blocks, weights)
            weight[cells] = sum_in_order(weights).view(len(values), -1)
        scale[cells] = found.scale.view(len(values), -1)
        if found.minimum is not None:
            minimum[cells] = found.minimum.view(len(values), -1)
        if found.codes is not None:
            codes[part.rows, part.columns] = found.codes.to(torch.uint8).t().reshape(values.shape)
    if kind is IQ4:
        return KScales(_of_codebook(scale, scheme, rule), None)
    below = minimum if scheme.mapping.has_offset else None
    if importance is None:
        stored, offsets, upper, zero = _rounded(scale, below, scheme, rule)
    else:
        stored, offsets, upper, zero = _rounded_by_weight(scale, below, weight, scheme, rule)
    if zero is not None:
        codes.masked_fill_(_of_elements(zero, scheme, shape[1]), 0)
    return KScales(Scales.of(scheme, stored, None, None, offsets, upper), codes)


def k_quantized(x: Tensor, scheme: Scheme, importance: Tensor | None = None) -> tuple[Tensor, Scales]:
    """Return packed codes uint8 [rows, row bytes] and scales of finite float32 ``x`` [rows, cols] under a
    K-quant, IQ4_NL or IQ4_XS.

    A block with a scale rounded to 0 restores one value from any code; it keeps the codes of the search, as
    in ggml.
    """
    found = find_k_scales(x, scheme, importance)
    packed, scales = encode_matrix(x, found.scales, scheme)
    fmt, dead = scheme.format, scales.scale == 0
    if found.codes is None or not bool(dead.any()):
        return packed, scales
    assert isinstance(fmt, IntegerFormat)
    searched = fmt.codes_of(found.codes.float() + fmt.qmin)
    spread = _of_elements(dead, scheme, x.shape[1])
    return pack(torch.where(spread, searched, unpack(packed, fmt, x.shape[1])), fmt), scales


def _of_elements(grid: Tensor, scheme: Scheme, columns: int) -> Tensor:
    """Expand a ``grid`` [rows, blocks] to [rows, columns]."""
    return grid.repeat_interleave(scheme.block[1] or 1, 1)[:, :columns]


def checked_importance(importance: Tensor, x: Tensor, width: int | None) -> Tensor:
    """Return ``importance`` in float32 on the device of ``x``; errors as in ``find_k_scales``.

    In a block of ``width`` columns that no input reached, all columns get the same small weight: with weights
    of 0 the search would find no scale and wipe the block out.
    """
    if importance.shape != (x.shape[1],):
        raise ValueError(
            f"importances are one number for each of the {x.shape[1]} columns, not {list(importance.shape)}"
        )
    importance = importance.to(x.device, torch.float32)
    if not bool(((importance >= 0) & importance.isfinite()).all()):
        raise ValueError("importances are finite numbers that are not negative")
    padded = torch.nn.functional.pad(importance, (0, -len(importance) % (width or len(importance))))
    unseen = (padded.view(-1, width or len(importance)) == 0).all(1)
    if not bool(unseen.any()):
        return importance
    little = importance.mean() * UNSEEN if bool(importance.any()) else importance.new_ones(())
    columns = unseen.repeat_interleave(width or len(importance))[: len(importance)]
    return torch.where(columns, little, importance)


def blocks_across(x: Tensor, width: int) -> Tensor:
    """Rearrange whole blocks of ``x`` [rows, cols], row by row, to [width, n]."""
    return x.reshape(-1, width).t().contiguous()


def _weights(x: Tensor, importance: Tensor, kind: KQuant, length: int) -> Tensor:
    """Weights float32 [rows, cols]: importance · √(σ² + x²) with σ² of runs of ``length``, or the importance
    alone."""
    if kind.sigma is None:
        return importance.expand(x.shape)
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % length)).unflatten(1, (-1, length))
    across = padded.permute(2, 0, 1).contiguous()
    sigma = sum_in_order(across * across).mul_(kind.sigma).div_(length)
    each = sigma.repeat_interleave(length, 1)[:, : x.shape[1]]
    return root((x * x).add_(each)).mul_(importance)


def _super_blocks(grid: Tensor, scheme: Scheme) -> Tensor:
    """Rearrange [rows, blocks] to float32 [blocks of a super-block, super-blocks]; a shorter one is padded
    with zeros, unless no row has a whole one."""
    checkpoint()
    each = max(min(SUPER_BLOCK // (scheme.block[1] or 1), grid.shape[1]), 1)
    padded = torch.nn.functional.pad(grid, (0, -grid.shape[1] % each))
    return padded.view(-1, each).t().contiguous()


def _of_blocks(each: Tensor, like: Tensor, count: int) -> Tensor:
    """Expand one number for each super-block, [super-blocks], to [rows, blocks]."""
    spread = each.view(like.shape[0], -(-like.shape[1] // count)).repeat_interleave(count, 1)
    return spread[:, : like.shape[1]].contiguous()


def _as_grid(across: Tensor, like: Tensor) -> Tensor:
    """Invert ``_super_blocks``: float32 [rows, blocks]."""
    count = -(-like.shape[1] // len(across)) * len(across)
    return across.t().reshape(like.shape[0], count)[:, : like.shape[1]].float().contiguous()


Rounded = tuple[Tensor, Tensor | None, SuperBlockLevel, Tensor | None]
"""Stored scales, offsets, the level above, and bool [grid] that marks blocks with all codes 0 (None: no such
block)."""


def _rounded(scale: Tensor, minimum: Tensor | None, scheme: Scheme, rule: ScaleRule) -> Rounded:
    """Round scales and minimums [grid] to integer fractions of the largest of their super-block."""
    assert rule.super_bits is not None
    low, high = integer_limits(rule.super_bits, signed=minimum is None)
    across = _super_blocks(scale, scheme)
    if minimum is not None:
        whole, d = _parts_of_largest(across, high, rule)
        whole_minimum, d_minimum = _parts_of_largest(_super_blocks(minimum, scheme), high, rule)
        return _assembled(whole, d, whole_minimum, d_minimum, scale, (low, high))
    largest, _ = first_largest(across)
    per_unit = torch.full_like(largest, low) / largest
    # Q3_K's scales are as good as zero where they are zero, Q6_K's below SMALLEST.
    empty = largest.abs() < SMALLEST if scheme.format.bits == 6 else largest == 0
    whole = nearest_whole(per_unit * across).clamp_(low, high)
    whole.masked_fill_(empty, 0 if scheme.format.bits == 6 else low)
    d = round_scale(1 / per_unit, rule).masked_fill_(empty, 0)
    stored, _, upper, _ = _assembled(whole, d, None, None, scale, (low, high))
    zero = _of_blocks(empty, scale, len(across)) if scheme.format.bits == 6 else None
    return stored, None, upper, zero


def _of_codebook(scale: Tensor, scheme: Scheme, rule: ScaleRule) -> Scales:
    """Round the scales found [grid] as they are stored, and keep them unrounded for the codes."""
    if rule.super_bits is None:
        scales = Scales.of(scheme, round_scale(scale, rule), None, None)
        return dataclasses.replace(scales, unrounded=scale)
    low, high = integer_limits(rule.super_bits, signed=True)
    across = _super_blocks(scale, scheme)
    largest, _ = first_largest(across)
    unit = largest / torch.full_like(largest, low)
    per_unit = torch.where(unit == 0, torch.zeros_like(unit), 1 / unit)
    whole = nearest_whole(per_unit * across).clamp_(low, high)
    stored, _, upper, _ = _assembled(whole, round_scale(unit, rule), None, None, scale, (low, high))
    scales = Scales.of(scheme, stored, None, None, None, upper)
    return dataclasses.replace(scales, unrounded=_as_grid(whole * unit, scale))


def _parts_of_largest(across: Tensor, high: int, rule: ScaleRule) -> tuple[Tensor, Tensor]:
    """Return integers int32 for ``across`` [m, n], and float16 units [n]; ``high`` units make the largest
    entry."""
    largest = across.amax(0).clamp_(min=0)
    zero = largest == 0
    per_unit = (torch.full_like(largest, high) / largest).masked_fill_(zero, 0)
    whole = nearest_whole(per_unit * across).bitwise_and_(0xFF).clamp_(max=high)
    return whole, round_scale(divide(largest, high), rule).masked_fill_(zero, 0)


def _rounded_by_weight(
    scale: Tensor, minimum: Tensor | None, weight: Tensor, scheme: Scheme, rule: ScaleRule
) -> Rounded:
    """Round scales and minimums [grid] to multiples of a searched unit, weighted by the blocks' sums of
    weights."""
    if scheme.format.bits == 6:
        return _rounded(scale, minimum, scheme, rule)
    assert rule.super_bits is not None
    low, high = integer_limits(rule.super_bits, signed=minimum is None)
    across, weights = (_super_blocks(grid, scheme) for grid in (scale, weight))
    if minimum is not None:
        d, whole = search_positive(across, weights, high)
        d_minimum, whole_minimum = search_positive(_super_blocks(minimum, scheme), weights, high)
        d, d_minimum = round_scale(d, rule), round_scale(d_minimum, rule)
        return _assembled(whole, d, whole_minimum, d_minimum, scale, (low, high))
    found = search_signed(across, weights, -low)
    assert found.codes is not None
    return _assembled(found.codes + low, round_scale(found.scale, rule), None, None, scale, (low, high))


def _assembled(
    whole: Tensor,
    d: Tensor,
    whole_minimum: Tensor | None,
    d_minimum: Tensor | None,
    like: Tensor,
    limits: tuple[int, int],
) -> Rounded:
    stored, count = _as_grid(whole, like), len(whole)
    unit = _of_blocks(d, like, count)
    if whole_minimum is None or d_minimum is None:
        return stored, None, SuperBlockLevel(unit, None, *limits), None
    above = _of_blocks(d_minimum, like, count)
    offsets = -(_as_grid(whole_minimum, like) * above)
    return stored, offsets, SuperBlockLevel(unit, above, *limits), None
