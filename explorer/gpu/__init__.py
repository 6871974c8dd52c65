"""CUDA kernels: compiler, runtime, typed launchers. It imports torch, numpy and pycuda, and nothing of the
library above it."""

from explorer.gpu.runtime import Availability, KernelError, available, native_formats

__all__ = ["Availability", "KernelError", "available", "native_formats"]
