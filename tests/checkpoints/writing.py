"""A checkpoint in one call, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from explorer.checkpoints import ModelFolder, Plan, Request, Written, export
from explorer.methods.recipe import Recipe

OF_PLAN = ("inputs", "input_scales", "shard_bytes", "cache", "cache_scales")


def write_checkpoint(
    target: str, model: Path, layers: Mapping[str, Recipe], out: Path, progress: Any = None, **more: Any
) -> Written:
    """``export`` of a ``Plan`` of the folder ``model`` and a ``Request``, whose fields ``more`` names."""
    changed = more.pop("changed", None)
    plan = {name: more.pop(name) for name in OF_PLAN if more.get(name) is not None}
    more = {name: value for name, value in more.items() if name not in OF_PLAN}
    return export(
        Request(target, Plan(ModelFolder(model, changed), dict(layers), **plan), out, **more), progress
    )
