"""GPU tests that were asked for fail, rather than skip, where kernels cannot run."""

from __future__ import annotations

import pytest

from explorer import gpu


@pytest.fixture(autouse=True)
def kernels_available() -> None:
    """Where these tests run, a GPU was asked for or torch has found one: kernels have to work."""
    state = gpu.available()
    if not state.ok:
        pytest.fail(f"make test-gpu needs a GPU with working kernels: {state.reason}")
