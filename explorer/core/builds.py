"""The kernels that are compiled ahead of their first use."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from explorer.core.lowering import config_of, layout_of, with_kernels
from explorer.gpu.compile import Build
from explorer.gpu.dequantize import builds as dequantize_builds
from explorer.gpu.fake_quantize import builds as fake_quantize_builds
from explorer.gpu.quantize import builds as quantize_builds
from explorer.gpu.statistics import BUILD as STATISTICS
from explorer.schemes import Scheme

WARM_SHAPES = {torch.float32: ((64, 2048), (64, 4096), (64, 8192), (3, 33)), torch.bfloat16: ((64, 4096),)}
"""Shapes compiled ahead of time, by element type. The page reads float32 tensors of any shape; the GEMM table
quantizes bfloat16 operands of whole blocks. Other builds are compiled at first use."""


def all_builds(schemes: Iterable[Scheme] | None = None) -> list[Build]:
    """List the builds that quantizing by ``schemes`` (default: the named ones) needs for ``WARM_SHAPES``, and
    those of the analysis statistics; without duplicates."""
    compiled = [STATISTICS]
    every = with_kernels() if schemes is None else schemes
    for config, scheme in {config_of(scheme): scheme for scheme in every}.items():
        for dtype, shapes in WARM_SHAPES.items():
            for layout in (layout_of(shape, scheme) for shape in shapes):
                compiled += [
                    *quantize_builds(config, layout, dtype),
                    *dequantize_builds(config, layout, dtype),
                ]
        compiled += fake_quantize_builds(config, torch.float32)
    return list(dict.fromkeys(compiled))
