"""What a report holds of its making."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from explorer.reports.write import NUMBERS_ID


def read_record(path: Path) -> dict[str, Any]:
    """The numbers, versions and recipe in a report's file."""
    element = rf'<script type="application/json" id="{NUMBERS_ID}">(.*?)</script>'
    found = re.search(element, path.read_text(encoding="utf-8"), re.DOTALL)
    assert found, path
    record: dict[str, Any] = json.loads(found[1])
    return record
