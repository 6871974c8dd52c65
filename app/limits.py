"""What a visitor may ask for, and the message when it is too much."""

from __future__ import annotations

import os
from dataclasses import dataclass

import gradio as gr


@dataclass(frozen=True)
class Limits:
    """Bounds on what one visitor may ask for.

    elements: of one tensor; of a larger one the first rows are read.
    upload_bytes: of one uploaded file.
    queue: requests that may wait.
    keep_seconds: how long uploads and results are kept.
    local_folders: whether folders of this machine may be named.
    product_elements: of each matrix of a timed GEMM.
    run_seconds: of one run.
    model_weights: of a model that may be run on text.
    """

    elements: int
    upload_bytes: int
    queue: int
    keep_seconds: int
    local_folders: bool
    product_elements: int
    run_seconds: float
    model_weights: int


LOCAL = Limits(
    elements=1 << 28,
    upload_bytes=16 << 30,
    queue=64,
    keep_seconds=86400,
    local_folders=True,
    product_elements=1 << 28,
    run_seconds=300,
    model_weights=16 << 30,
)
HOSTED = Limits(
    elements=1 << 24,
    upload_bytes=256 << 20,
    queue=32,
    keep_seconds=3600,
    local_folders=False,
    product_elements=1 << 26,
    run_seconds=30,
    model_weights=400_000_000,
)


def current() -> Limits:
    """``LOCAL`` for a page that only this machine can reach; ``HOSTED`` on a Space or a public address."""
    address = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    hosted = bool(os.environ.get("SPACE_ID")) or address not in ("127.0.0.1", "localhost", "::1")
    return HOSTED if hosted else LOCAL


def notify(message: str) -> None:
    """Show ``message`` to the visitor for eight seconds; what is on the screen stays."""
    gr.Warning(message, duration=8)
