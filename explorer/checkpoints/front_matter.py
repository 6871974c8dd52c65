"""Header of a model card that the Hub reads: what the original's card says of its terms and its use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData, metadata_load
from yaml import YAMLError

CARD = "README.md"
CARRIED = (
    "license", "license_name", "license_link", "library_name", "pipeline_tag", "language",
)  # fmt: skip
"""Keys that hold for the quantized model too."""
_SNAPSHOTS, _CACHED = "snapshots", "models--"


def hub_id(folder: Path) -> str:
    """The Hub id of the model in ``folder``, if that is a folder of the cache; else empty: config.json and
    the model's card name what it was trained from."""
    folder = Path(folder).absolute()
    if folder.parent.name == _SNAPSHOTS and folder.parent.parent.name.startswith(_CACHED):
        return folder.parent.parent.name.removeprefix(_CACHED).replace("--", "/")
    return ""


def front_matter(folder: Path, tags: Sequence[str]) -> str:
    """The header, with its dashes. ``folder``: that of the original, whose card may be missing."""
    stated = _stated(folder / CARD)
    data = {key: stated[key] for key in CARRIED if stated.get(key)}
    if base := hub_id(folder):
        data |= {"base_model": base, "base_model_relation": "quantized"}
    return f"---\n{ModelCardData(**data, tags=list(tags)).to_yaml()}\n---"


def _stated(card: Path) -> dict[str, Any]:
    """What the header of a card says; nothing where there is none that can be read."""
    try:
        return dict(metadata_load(card) or {})
    except (OSError, ValueError, YAMLError):
        return {}
