"""Shapes (M, N, K) at which products are compared: square ones, and those of models' layers."""

from __future__ import annotations

TOKENS = tuple(1 << i for i in range(14))
"""Values of M in a sweep: 1 … 8192."""
SQUARE, LARGE = (4096, 4096, 4096), (8192, 8192, 8192)
SERVED = 64
"""Number of tokens that a server decodes together."""
DECODE, SERVING = (1, 8192, 8192), (SERVED, 8192, 8192)
LAYERS: dict[str, tuple[tuple[int, int], ...]] = {
    "Llama-2-7B": ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)),
    "Llama-3-70B": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
}
"""(N, K) of a block's products: Q, K and V in one; attention's output; gate and up in one; down."""
SMALL_LAYERS = ((384, 384), (1536, 384), (384, 1536), (768, 768), (3072, 768), (768, 3072), (1024, 1024),
                (2048, 2048), (8192, 2048), (2048, 8192))  # fmt: skip
"""(N, K) in encoders and small decoders, where the model of times (``shape_times``) extrapolates."""
