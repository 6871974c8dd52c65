"""How the page's parts hang together, read from what Gradio is told.

If these fail, an answer that comes late can stand over that of a later choice.
"""

from __future__ import annotations

from typing import Any

import pytest

from app import ui


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return ui.build().get_config_file()


@pytest.mark.parametrize("shown", ["verdict", "numbers", "chips", "notice"])
def test_what_follows_the_selection_has_one_listener(config: dict[str, Any], shown: str) -> None:
    """Gradio keeps only the latest of several events in a row within one listener: where two listeners write
    one component, the slower answer wins, not the later one."""
    (number,) = (c["id"] for c in config["components"] if c["props"].get("elem_id") == shown)
    writers = [d for d in config["dependencies"] if number in d["outputs"]]
    assert [d["trigger_mode"] for d in writers] == ["always_last"]
