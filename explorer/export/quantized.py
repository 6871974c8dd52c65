"""The reader and the writer of ``core.file`` under their names of version 0.2 and earlier."""

from __future__ import annotations

from explorer.core.file import load as load_quantized
from explorer.core.file import load_extra_tensors, save_quantized

__all__ = ["load_extra_tensors", "load_quantized", "save_quantized"]
