"""What a visitor may ask for, in one place, and the words when it is too much."""

from __future__ import annotations

import os
from dataclasses import dataclass

import gradio as gr


@dataclass(frozen=True)
class Limits:
    """``elements`` of one tensor (beyond it the first rows are read), bytes of one upload, how many requests
    may wait, seconds an upload is kept, whether folders of this machine may be named, elements of each matrix of a timed product,
    seconds that one run may take, and weights of a model that may be run on text."""

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
    """``LOCAL`` for a page only this machine can reach; ``HOSTED`` on a Space or a public address."""
    address = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    hosted = bool(os.environ.get("SPACE_ID")) or address not in ("127.0.0.1", "localhost", "::1")
    return HOSTED if hosted else LOCAL


def say(message: str) -> None:
    """Show ``message`` to the visitor; what is on the screen stays."""
    gr.Warning(message, duration=8)
