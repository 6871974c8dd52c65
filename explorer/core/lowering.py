"""Translate a scheme to the kernels' terms: codecs, mapping, scale rule and range by C++ names, blocks in
numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from explorer.formats import CodebookFormat, FloatFormat
from explorer.formats.packing import packed_row_bytes
from explorer.gpu import config as kernel
from explorer.gpu import runtime
from explorer.gpu.config import Config, Layout
from explorer.gpu.quantize import RANGES, LaunchPlan, Output, is_aligned
from explorer.schemes import OWN_CODES, SCHEMES, Convention, ScaleRule, Scales, Scheme, tensor_scale_for


def has_kernels(scheme: Scheme) -> bool:
    """True if the kernels support ``scheme``: its format, blocks, mapping, conventions and rule for codes."""
    own = scheme.scale is None or scheme.scale.convention is Convention.OWN
    return (
        own
        and scheme.format.has_codec
        and not scheme.flat
        and scheme.codes == OWN_CODES
        and scheme.mapping.name in kernel.Mapping.__members__
    )


def with_kernels() -> list[Scheme]:
    """List the rows of ``SCHEMES`` that the kernels support."""
    return [scheme for scheme in SCHEMES.values() if has_kernels(scheme)]


def config_of(scheme: Scheme) -> Config:
    """Translate the scheme for the kernels. A calibrator without a kernel counts as min-max: its scales are
    given."""
    fmt, scale = scheme.format, scheme.scale or ScaleRule()
    calibrator = scheme.calibrator.name
    return Config(
        codec=fmt.cuda_codec,
        bits=fmt.bits,
        per_byte=fmt.per_byte if isinstance(fmt, CodebookFormat) else 0,
        mapping=kernel.Mapping[scheme.mapping.name],
        scale_codec=scale.format.cuda_codec,
        scale_dtype=scale.format.stored_dtype,
        scale_rule=_scale_rule(scheme.scale),
        smallest_scale=scale.smallest,
        range=kernel.KernelRange[calibrator.upper()] if calibrator in RANGES else kernel.KernelRange.MINMAX,
        refit=scheme.least_squares_scale,
        stochastic=scheme.seed is not None,
        wide=scheme.block[1] is None or scheme.block[1] % 32 == 0,
    )


@dataclass(eq=False)
class Lowered:
    """A translated scheme with its launch plans, found once instead of in each call."""

    scheme: Scheme
    config: Config
    plans: dict[tuple[object, ...], LaunchPlan] = field(default_factory=dict)

    def plan(self, x: Tensor) -> LaunchPlan:
        """Plan the launches for a matrix with the shape, element type, alignment and device of ``x``."""
        aligned = is_aligned(x)
        key = (x.shape, x.dtype, aligned, x.get_device())
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= MOST_KEPT:
                self.plans.clear()
            layout, seed = layout_of((x.shape[0], x.shape[1]), self.scheme), self.scheme.seed or 0
            plan = LaunchPlan(self.config, layout, x.dtype, aligned, x.device, seed)
            self.plans[key] = plan
        return plan


MOST_KEPT = 1024
"""The number of schemes kept, and of plans kept for each."""
_LOWERED: dict[int, tuple[Scheme, Lowered | None]] = {}


def lowered(scheme: Scheme) -> Lowered | None:
    """Translate ``scheme`` for the kernels; None if kernels cannot find its scales: for calibrators that
    search, least-squares scales per block, means under a tensor scale, and other libraries' conventions.

    Cached by identity: comparing schemes takes longer than launching a kernel.
    """
    kept = _LOWERED.get(id(scheme))
    if kept is None or kept[0] is not scheme:
        if len(_LOWERED) >= MOST_KEPT:
            _LOWERED.clear()
        kept = scheme, Lowered(scheme, config_of(scheme)) if _finds_scales(scheme) else None
        _LOWERED[id(scheme)] = kept
    return kept[1]


def _finds_scales(scheme: Scheme) -> bool:
    # The kernel sums for a least-squares scale of the whole tensor, and without zero points.
    fit_in_torch = scheme.least_squares_scale and (scheme.block != (None, None) or scheme.asymmetric)
    # The tensor scale comes from the largest range of a block, which the kernels find where it is that of x.
    of_means = scheme.scale is not None and scheme.scale.per_tensor and scheme.calibrator.name != "minmax"
    return scheme.calibrator.name in RANGES and not fit_in_torch and not of_means and has_kernels(scheme)


def _scale_rule(rule: ScaleRule | None) -> kernel.KernelScaleRule:
    if rule is None:
        return kernel.KernelScaleRule.CAST
    if rule.exponent is not None:
        return kernel.KernelScaleRule[rule.exponent.name]
    return kernel.KernelScaleRule.TWO_LEVEL if rule.per_tensor else kernel.KernelScaleRule.ROUNDED


def layout_of(shape: tuple[int, int], scheme: Scheme) -> Layout:
    """Describe the matrix and its blocks in whole numbers; a cast is one block."""
    height, width = scheme.block if scheme.scale is not None else (None, None)
    rows, columns = shape
    return Layout(
        rows,
        columns,
        min(height or rows, rows) or 1,
        min(width or columns, columns) or 1,
        packed_row_bytes(scheme.format, columns),
    )


class CodedScales(Scales):
    """Scales as kernels wrote them. ``stored`` is converted from ``raw`` at its first use: kernels read
    ``raw``, and float32 takes up to four times its memory. ``tensor_scale`` is then taken from ``_amax``."""

    _format: FloatFormat
    _amax: Tensor

    @classmethod
    def of_codes(
        cls, raw: Tensor, fmt: FloatFormat, zero_points: Tensor | None, amax: Tensor | None
    ) -> CodedScales:
        """Scales whose codes in ``fmt`` are ``raw``; ``amax`` as in ``Output``."""
        self = object.__new__(cls)  # without what __getattr__ then makes
        vars(self).update(raw=raw, zero_points=zero_points, _format=fmt)
        vars(self).update({"tensor_scale": None} if amax is None else {"_amax": amax})
        return self

    def __getattr__(self, name: str) -> Tensor:
        """Compute ``stored`` or ``tensor_scale`` when it is first asked for."""
        if name == "tensor_scale":
            return vars(self).setdefault(name, self._amax.select(0, 2))
        if name != "stored":
            raise AttributeError(f"scales have no {name!r}")
        assert self.raw is not None
        stored = self._format.from_stored(self.raw)
        # What a graph's capture computes is there after a replay only, and in the graph's memory.
        if not runtime.is_capturing(self.raw.device):
            vars(self)["stored"] = stored
        return stored

    def __reduce__(self) -> tuple[Any, ...]:
        return Scales, tuple(getattr(self, row.name) for row in fields(Scales))


def scales_from(out: Output, scheme: Scheme, capturing: bool) -> Scales:
    """Wrap the kernels' stored scales, which are codes of their format."""
    if scheme.scale is None:
        return Scales(torch.ones_like(out.scales, dtype=torch.float32), None, None)
    raw, fmt, amax = out.scales, scheme.scale.format, out.amax
    if not (capturing or raw.dtype == torch.float32) and (amax is None or out.launches):
        return CodedScales.of_codes(raw, fmt, out.zeros, amax)
    tensor_scale = None
    if amax is not None:  # of an empty matrix no kernel has made it
        tensor_scale = amax.select(0, 2) if out.launches else tensor_scale_for(amax[:2], scheme)
    # Where a graph captures, each replay converts its own.
    stored = raw if raw.dtype == torch.float32 else fmt.from_stored(raw)
    return Scales(stored, out.zeros, tensor_scale, raw=raw)


def raw_scales(scales: Scales, scheme: Scheme) -> Tensor:
    """Encode the scales [grid rows, grid columns] in ``Format.stored_dtype``, the form that kernels and files
    hold."""
    if scales.raw is not None:
        return scales.raw
    return (scheme.scale or ScaleRule()).format.to_stored(scales.stored).contiguous()
