"""Real layers and their inputs, loaded once for all tests of methods."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from torch import Tensor

from explorer import load_matrix
from tests.covering import sampled

Layer = Callable[..., tuple[Tensor, Tensor]]
LAYERS = {"mlp_up": "mlp_up_in", "mlp_down": "mlp_down_in", "attention_query": "query_in"}


@pytest.fixture(scope="session")
def layer() -> Layer:
    """``layer(name, rows)``: the weight's first rows [rows, K] and the layer's inputs [tokens, K].

    Output channels are independent of each other in every method's sums, so that some of them show what all
    do.
    """

    @functools.cache
    def load(name: str, rows: int | None = 96) -> tuple[Tensor, Tensor]:
        return load_matrix(f"sample:{name}").values[:rows], load_matrix(f"sample:{LAYERS[name]}").values

    return load


@pytest.fixture(params=sampled(LAYERS, ("mlp_up",)))
def real(request: pytest.FixtureRequest, layer: Layer) -> tuple[Tensor, Tensor]:
    """Each of the layers in turn."""
    return layer(request.param)
