"""What an address says, and what of it cannot be shown. If these fail, a link's receiver sees another view
than its sender, without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from app.link import NO_FILE

from app.state.record import Record
from tests.app.acting import did, plots_of, unchanged, visited


def test_a_links_recipe() -> None:
    """The survey, its signal, the budget and what it is kept to; the usual ones for what is not said."""
    query = {"survey": "all-MiniLM-L6-v2", "budget": "4.25", "for": "gguf"}
    seen = visited(urlencode(query | {"keep": "layer.0."})).kept
    assert (seen.survey, seen.budget["value"]) == ("all-MiniLM-L6-v2", 4.25)
    assert (seen.budget["minimum"], seen.budget["maximum"]) == (0, 32), "not the ends of the recipe before"
    assert (seen.target["value"], seen.keep) == ("gguf", "layer.0.")
    assert seen.inputs == "none" and visited("inputs=int8_row").kept.inputs == "int8_row"
    assert visited("inputs=int8_row&for=gguf").kept.target["value"] == "compressed-tensors"
    back = visited("").kept
    assert (back.survey, back.budget["value"]) == ("all-MiniLM-L6-v2", 4.5)
    assert (back.target["value"], back.keep) == ("compressed-tensors", "")
    assert (back.by, back.batch) == ("bits", 1) and visited("for=any").kept.target["value"] == "any"
    timed = visited("by=time&batch=16&budget=250.5&for=any").kept
    assert (timed.by, timed.batch, timed.budget["value"]) == ("time", 16, 250.5)
    assert "µs" in timed.budget["label"] and timed.budget["maximum"] > 1e6
    assert visited("by=time&batch=16").kept.budget["value"] == 0, "the middle"
    own = visited("survey=own", first=True)
    assert unchanged(own.kept.survey) and own.missing, "a survey of one's own stays open"


def test_a_link_that_cannot_be_shown_shows_a_fresh_page() -> None:
    out = did({"do": "visit", "query": "?source=model&model=/nonexistent/x&layer=w&scheme=nvfp4"}, whole=True)
    assert out.notice and out.record.source == "builtin" and plots_of(out)
    assert (out.record.scheme, out.record.second) == Record.fresh().schemes


LINKS: list[tuple[dict[str, str], list[str]]] = [
    ({}, []),
    ({"scheme": "nvfp4", "sample": "mlp_down", "tab": "speed"}, []),
    ({"tab": "what"}, ["tab 'what'"]),
    ({"sample": "zzz"}, ["sample 'zzz'"]),
    ({"source": "moon"}, ["source 'moon'"]),
    ({"source": "file"}, []),
    ({"scheme": "zzz"}, ["scheme"]),
    ({"second": "zzz"}, ["scheme"]),
    ({"scheme": "nvfp4", "second": "nvfp4"}, ["as A and as B"]),
    ({"second": "nvfp4", "row": "3", "column": "4", "tab": "learn"}, []),
    ({"range": "0.31", "shape": "1x8192x8192", "k": "640"}, []),
    ({"range": "7", "shape": "<b>", "m": "-3"}, ["range '7'", "shape '<b>'", "m '-3'"]),
    ({"row": "x", "column": "4"}, ["row 'x'"]),
    ({"budget": "4.5", "for": "awq", "ranked": "weight", "fuse": "true"}, []),
    ({"budget": "1e3", "for": "tar", "survey": "x"}, ["budget '1e3'", "survey 'x'", "for 'tar'"]),
    ({"inputs": "int4_row"}, ["inputs 'int4_row'"]),
    ({"by": "time", "batch": "16", "budget": "250", "for": "any"}, []),
    ({"by": "weight", "batch": "3"}, ["by 'weight'", "batch '3'"]),
    ({"by": "time", "batch": "16", "budget": "4.5", "for": "any"}, ["budget '4.5'"]),
    ({"budget": "20"}, ["2.53 to 8.07"]),
    ({"budget": "2.4"}, ["budget '2.4'"]),
    ({"budget": "20", "for": "gguf"}, ["4.25"]),
    ({"budget": "2.4", "for": "any"}, []),
    ({"budget": "8.06", "keep": "encoder.layer.0.*"}, []),
    ({"pear": "1", "__theme": "dark", "utm_source": "x", "view": "api", "opened": "x"}, ["'pear'"]),
    ({"pear": ""}, ["'pear'"]),
]


def test_what_a_link_cannot_show_is_said() -> None:
    """Else its receiver takes the defaults for what the sender saw, and the next copy has the same defect."""
    for query, words in LINKS:
        seen = visited(urlencode(query), first=True)
        told = [NO_FILE] if query.get("source") == "file" else words
        assert bool(seen.missing) == bool(told) and all(part in seen.missing for part in told), query
        assert len(seen.dropped) == len(words) and set(seen.dropped) <= set(query), query


KEPT: list[tuple[dict[str, str], tuple[Any, ...]]] = [
    ({}, (0.5, None, 512, 1536, 384)),
    ({"range": "0.31", "shape": "1x8192x8192", "k": "640"}, (0.31, "1×8192×8192", 512, 1536, 640)),
    ({"shape": "layer-decode", "m": "1", "range": "1"}, (1.0, "layer-decode", 1, 1536, 384)),
    ({"range": "7", "shape": "<b>", "m": "-3", "n": "1.5", "k": "0"}, (0.5, None, 512, 1536, 384)),
    ({"range": "nan", "shape": "0x1x1", "m": "", "n": "9" * 20}, (0.5, None, 512, 1536, 384)),
]


def test_back_leads_to_a_tensor_of_the_file(tmp_path: Path) -> None:
    """A link from outside cannot carry the file; of one that another replaced, the tensor is said."""
    back = visited("?source=file&file_tensor=b", upload="f.npz")
    assert (back.record.source, back.record.file, back.record.file_tensor) == ("file", "f.npz", "b")
    outside = visited("?source=file&file_tensor=b", first=True)
    assert outside.record.source == "builtin" and outside.missing == NO_FILE
    np.save(path := tmp_path / "second.npy", np.ones((4, 4), np.float32))
    other = visited("?source=file&file_tensor=first", upload=str(path))
    assert (other.record.source, other.record.file_tensor) == ("file", "second")
    assert "'first'" in other.missing and "second.npy" in other.missing
    assert not visited("?source=file&file_tensor=second", upload=str(path)).missing


def test_a_page_without_a_link_compares_two() -> None:
    """A link that names one scheme has one, and a link's goal is one that there is."""
    fresh = visited("").record
    assert (fresh.scheme, fresh.second) == ("int4_group128_asym", "nvfp4")
    assert visited("scheme=nvfp4").record.second == "" and visited("second=mxfp4").record.second == "mxfp4"
    link = visited("goal=nonsense")
    assert link.record.goal == "" and link.missing and link.dropped == ("goal",)
