"""Quantization weighted by the importance of each column: E[x²] of the layer's inputs.

The codes equal llama.cpp's under an importance matrix (``quant_weights`` of ggml_quantize_chunk). K-quants,
IQ4_NL and IQ4_XS are in ``core.k_quants``. Q4_0, Q4_1, Q5_0 and Q5_1 are searched here
(quantize_row_q4_0_impl and the like): an element's squared error is weighted by importance · √(σ² + x²),
where σ² is the mean square of the row. Without importances their scales follow from a range.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from explorer.core.blocks import runs_of_blocks
from explorer.core.encode import encode_matrix
from explorer.core.k_quants import AT_ONCE, IMPORTANT_STEPS, blocks_across, checked_importance, k_quantized
from explorer.core.ranges import check_finite, find_ranges
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack
from explorer.formats.subnormals import keeps_subnormals
from explorer.schemes import Scales, Scheme
from explorer.schemes.k_search import Found, root, search_signed, search_with_minimum, sum_in_order
from explorer.schemes.levels import round_scale
from explorer.schemes.scales import scale_for

_SEARCHES: dict[str, Callable[[Tensor, Tensor], Found]] = {
    "q4_0": partial(search_signed, half=8),
    "q4_1": partial(search_with_minimum, codes=16, steps=IMPORTANT_STEPS),
    "q5_0": partial(search_signed, half=16),
    "q5_1": partial(search_with_minimum, codes=32, steps=IMPORTANT_STEPS),
}


def takes_importance(scheme: Scheme) -> bool:
    """True if importances affect the codes of ``scheme``: Q4_0 to Q5_1, K-quants, IQ4_NL and IQ4_XS."""
    return str(scheme) in _SEARCHES or (scheme.scale is not None and scheme.scale.is_searched)


@keeps_subnormals
def quantized_by_importance(x: Tensor, scheme: Scheme, importance: Tensor) -> tuple[Tensor, Scales]:
    """Return packed codes uint8 [rows, row bytes] and scales of ``x`` [rows, cols] under ``importance``
    [cols].

    Importances that are all 0 (a layer that no input reached) count as none. ``ValueError`` for a scheme that
    takes no importances, for importances of another shape or that are negative or not finite, and for values
    that are NaN, Inf or too large to be scaled.
    """
    if not takes_importance(scheme):
        raise ValueError(f"{scheme.label} has no search that importances of columns weigh")
    check_finite(x)
    x = x.float()
    found = find_ranges(x, scheme)  # which refuses those that are too large
    search = _SEARCHES.get(str(scheme))
    checked = checked_importance(importance, x, scheme.block[1])
    if search is None:
        return k_quantized(x, scheme, importance if bool(importance.any()) else None)
    if not bool(importance.any()):
        return encode_matrix(x, scale_for(found, scheme), scheme)
    return _searched(x, scheme, checked, search)


def _searched(
    x: Tensor, scheme: Scheme, importance: Tensor, search: Callable[[Tensor, Tensor], Found]
) -> tuple[Tensor, Scales]:
    rule, fmt, shape = scheme.scale, scheme.format, (x.shape[0], x.shape[1])
    assert rule is not None and isinstance(fmt, IntegerFormat)
    scale, minimum = (torch.zeros(scheme.grid(shape), device=x.device) for _ in range(2))
    codes = torch.empty(shape, dtype=fmt.code_dtype, device=x.device)
    squares = x * x
    if x.numel():
        mean = sum_in_order(squares.t().contiguous()) / torch.full_like(x[:, 0], shape[1])
        squares += mean[:, None]
    weights = root(squares).mul_(importance)
    for part in runs_of_blocks(shape, scheme.block, x.device, AT_ONCE[x.device.type]):
        where, cells = (part.rows, part.columns), (part.grid_rows, part.grid_columns)
        found = search(blocks_across(x[where], part.width), blocks_across(weights[where], part.width))
        assert found.codes is not None
        scale[cells] = found.scale.view(len(x[where]), -1)
        if found.minimum is not None:
            minimum[cells] = found.minimum.view(len(x[where]), -1)
        codes[where] = fmt.codes_of(found.codes + fmt.qmin).t().reshape(x[where].shape)
    offsets = round_scale(-minimum, rule) if scheme.mapping.has_offset else None
    return pack(codes, fmt), Scales.of(scheme, round_scale(scale, rule), None, None, offsets)
