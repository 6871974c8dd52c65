"""For which addresses there is a first look, and what it must not do to the page.

If these fail, a link's visitor first sees another view than the link's, or a page without a first look does
not open at all.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from app import first_look, limits
from app.link import says_fresh
from app.serving import opened
from app.state.record import Record
from app.state.selection import is_read
from explorer.analysis import estimate

FRESH = Record.fresh()
PAGE = '<head><script>{"theme_hash":"abc"}</script></head><body class="a"><p></p></body>'


@pytest.mark.parametrize(
    ("query", "fresh"),
    [
        ("", True),
        ("__theme=dark", True),
        ("utm_source=x&tab=tensor", True),
        (f"source=builtin&sample={FRESH.sample}&scheme={FRESH.scheme}&second={FRESH.second}", True),
        (f"second={FRESH.second}", True),
        (f"scheme={FRESH.scheme}", False),
        ("second=", False),
        ("second=mxfp4", False),
        ("sample=portrait", False),
        ("source=file", False),
        ("goal=8-bit", False),
        ("list=nvfp4,mxfp4", False),
        ("row=1&column=2", False),
        ("tab=learn", False),
        ("section=compare", False),
        ("range=0.5", False),
        ("view=api", False),
    ],
)
def test_addresses_with_a_first_look(query: str, fresh: bool) -> None:
    """Those of what a fresh page shows; what an address without B says is A alone."""
    assert says_fresh(query) is fresh


def test_markup_and_what_a_failure_leaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first look stands at the beginning of the body, and Tab leads nowhere in it. Where it cannot be
    made, the page is as it was and the log says why."""
    monkeypatch.setattr(first_look, "_made", [])
    assert first_look.with_first_look(PAGE, "") == PAGE
    first_look.prepare(
        '<div id="head"><button type="button">Learn</button></div>', [("compare", "All schemes")]
    )
    whole = first_look.with_first_look(PAGE, "")
    assert '<body class="a"><first-look' in whole and whole.endswith("<p></p></body>")
    assert 'href="theme.css?v=abc"' in whole.partition("</head>")[0] and "All schemes" in whole
    inside = re.findall(r"<(?:button|input|a)\b[^>]*>", whole)
    assert len(inside) > 30 and all('tabindex="-1"' in tag for tag in inside) and 'tabindex="0"' not in whole
    assert first_look.with_first_look(PAGE, "tab=learn") == PAGE
    other = PAGE.replace("<body", "<div")
    assert first_look.with_first_look(other, "") == other and "HTML is not what it was" in caplog.text

    def breaks(figure: object) -> str:
        raise ValueError("a trace of pie")

    monkeypatch.setattr(first_look, "still", breaks)
    first_look.prepare("", [])
    assert first_look.with_first_look(PAGE, "") == PAGE and "a trace of pie" in caplog.text


def test_a_page_that_opens_on_a_large_file_begins_with_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers and their interval are in the HTML, by the schemes of the link, before the file was read.
    An address that says more than the first screen shows, and a small file, have no first look. If this
    fails, the visitor waits for the whole tensor."""
    for name in ("SPACE_ID", "EXPLORER_HOSTED", "GRADIO_SERVER_NAME", "GRADIO_SHARE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "store"))
    monkeypatch.setattr(limits, "_found", [])
    monkeypatch.setattr(opened, "_FILES", {})
    monkeypatch.setattr(first_look, "_made", [])
    monkeypatch.setattr(estimate, "ELEMENTS", 1 << 14)
    np.save(tmp_path / "tall.npy", np.random.default_rng(0).standard_normal((1024, 256), dtype=np.float32))
    first_look.prepare("", [])
    query = opened.query_of(opened.register(tmp_path / "tall.npy"))
    assert first_look.with_first_look(PAGE, query) == PAGE
    monkeypatch.setattr(estimate, "WORTH", 0)
    seen = first_look.with_first_look(PAGE, f"{query}&scheme=int4_row&second=mxfp4")
    assert "≈ 6.2 % of the tensor, A ± " in seen and "1,024 × 256" in seen and "tall" in seen
    assert 'data-scheme="mxfp4" class="is-b"' in seen and "follow with the whole tensor" in seen
    chosen = Record(source="file", file=str(opened.path_of(query.rpartition("=")[2])), file_tensor="tall")
    assert not is_read(chosen)
    for more in ("tab=learn", "section=compare", "row=1&column=2", "scheme=nonsense"):
        assert first_look.with_first_look(PAGE, f"{query}&{more}") == PAGE
