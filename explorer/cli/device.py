"""``--device``: where a command computes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

COMMAND = ExitStack()
"""Closed when a command ends: its ``--device`` holds so long, also where a program calls the command."""

Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda",
        help="Where tensors are computed; auto takes a GPU if the kernels run on it.",
        show_default="EXPLORER_DEVICE, else auto",
    ),
]


def use_device(choice: str | None) -> torch.device:
    """Set the device ``choice`` for the command, None for the default; return the device. ``ValueError``
    for unknown choices, and for cuda if the kernels cannot run.
    """
    from explorer.core.backend import use_device as place_by
    from explorer.core.backend import work_device

    if choice is not None:
        COMMAND.enter_context(place_by(choice))
    return work_device()
