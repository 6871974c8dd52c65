"""By ONNX Runtime: the product of the unit matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from explorer import Scheme


def read(path: Path, scheme: Scheme) -> Tensor:
    """The weight [N, K] of a file of one tensor."""
    run = session(path)
    columns = run.get_inputs()[0].shape[1]
    return torch.from_numpy(run.run(None, {"x": np.eye(columns, dtype=np.float32)})[0]).t()


def session(path: Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime with one thread, and inputs of 4-bit products left in float32."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
