"""What stands in for a GPU in tests of launchers: a context that counts, and the last launch of the stub."""

from __future__ import annotations

import json
from typing import Any


class StubContext:
    """A context that counts how often it is on the thread's stack, and how often it was put there."""

    depth = pushed = 0

    def push(self) -> None:
        self.depth += 1
        self.pushed += 1

    def pop(self) -> None:
        self.depth -= 1


def last(library: Any) -> dict[str, Any]:
    """The last launch."""
    return json.loads(library.stub_launch())
