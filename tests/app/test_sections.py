"""What sections take of the address, and what they say of it. If these fail, a number is of another model or
another choice than the page shows, or a visitor is told the same thing in three places."""

from __future__ import annotations

from typing import Any

import pytest

from app.sections import checkpoints
from app.state.query import Query
from explorer import SourceError


def test_two_checkpoints_take_the_bars_model_at_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the one that is named instead of it at none."""
    opened: list[Any] = []

    def opens(where: str, revision: str | None = None, limits: Any = None) -> Any:
        opened.append((where, revision))
        raise SourceError("offline")

    monkeypatch.setattr("explorer.checkpoints.diff.open_checkpoint", opens)
    for one in ("", "other/two"):
        asked = {"model": "owner/one", "revision": "a1b2", "one": one, "other": "owner/two", "weight": "w"}
        checkpoints.view(query := Query(asked))
        assert query.problems == {"weight": "offline"}
    assert opened == [("owner/one", "a1b2"), ("other/two", None)]
    assert "revision" in checkpoints.SECTION.follows
