"""For which addresses there is a first look, and what it must not do to the page.

If these fail, a link's visitor first sees another view than the link's, or a page without a first look does
not open at all.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from app.link import says_fresh

from app import first_look, limits
from app.serving import opened
from app.state.record import Record
from app.state.selection import is_read
from explorer.analysis import estimate

FRESH = Record.fresh()
PAGE = '<head><script>{"theme_hash":"abc"}</script></head><body class="a"><p></p></body>'


def test_addresses_with_a_first_look() -> None:
    """Those of what a fresh page shows; what an address without B says is A alone."""
    whole = f"source=builtin&sample={FRESH.sample}&scheme={FRESH.scheme}&second={FRESH.second}"
    for query in ("", "__theme=dark", "utm_source=x&tab=tensor", whole, f"second={FRESH.second}"):
        assert says_fresh(query), query
    for query in (f"scheme={FRESH.scheme}", "second=", "second=mxfp4", "sample=portrait", "source=file",
                  "goal=8-bit", "list=nvfp4,mxfp4", "row=1&column=2", "tab=learn", "section=compare",
                  "range=0.5", "view=api"):  # fmt: skip
        assert not says_fresh(query), query


def test_a_page_that_opens_on_a_large_file_begins_with_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the visitor waits for the whole tensor. Not for an address that says more."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "store"))
    monkeypatch.setattr(limits, "_found", [])
    monkeypatch.setattr(opened, "_FILES", {})
    monkeypatch.setattr(first_look, "_made", [])
    monkeypatch.setattr(estimate, "ELEMENTS", 1 << 14)
    np.save(tmp_path / "tall.npy", np.random.default_rng(0).standard_normal((1024, 256), dtype=np.float32))
    first_look.prepare("", [])
    query = opened.query_of(opened.register(tmp_path / "tall.npy"))
    assert first_look.look_of(query) == ""
    monkeypatch.setattr(estimate, "WORTH", 0)
    seen = first_look.with_first_look(PAGE, first_look.look_of(f"{query}&scheme=int4_row&second=mxfp4"))
    assert "6.2 %" in seen and "1,024 × 256" in seen and "tall" in seen
    assert 'data-scheme="mxfp4" class="is-b"' in seen
    chosen = Record(source="file", file=str(opened.path_of(query.rpartition("=")[2])), file_tensor="tall")
    assert not is_read(chosen)
    for more in ("tab=learn", "section=compare", "row=1&column=2", "scheme=nonsense"):
        assert first_look.look_of(f"{query}&{more}") == ""
