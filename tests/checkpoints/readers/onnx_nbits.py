"""As the other layout of ONNX."""

from __future__ import annotations

from tests.checkpoints.readers.onnx import read

__all__ = ["read"]
