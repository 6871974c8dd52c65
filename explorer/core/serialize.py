"""Convert dataclasses to plain JSON values; the keys are the fields' names."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

from explorer.formats import Format
from explorer.schemes.calibrators import Calibrator


def to_json(value: Any) -> Any:
    """Convert ``value`` to dicts, lists, strings and numbers.

    Formats, calibrators and enum members become their names; NaN and infinity become null.
    """
    if isinstance(value, Format | Calibrator):
        return value.name
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
