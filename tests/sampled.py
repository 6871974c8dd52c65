"""Parameters of which ``make test`` runs a sample and ``make test-all`` every one."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Any

import pytest

THOROUGH = pytest.mark.thorough


def sampled(values: Collection[Any], kept: Container[Any]) -> list[Any]:
    """``values`` as parameters of a test: those that are not ``kept`` are marked thorough. A tuple stands for
    several arguments."""
    found = [value in kept for value in values]
    assert any(found), "none is left for `make test`"
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=() if here else THOROUGH)
        for value, here in zip(values, found, strict=True)
    ]
