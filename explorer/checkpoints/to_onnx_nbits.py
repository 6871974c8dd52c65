"""ONNX with weights as codes, which ONNX Runtime multiplies by its operation MatMulNBits."""

from explorer.checkpoints.to_onnx import MULTIPLIED as EXPORT

__all__ = ["EXPORT"]
