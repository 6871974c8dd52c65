"""The first chapter of Learn: its numbers are the core's, and its pictures are what the schemes restored.

If these fail, the chapter says decibels that belong to another picture than the one beside them.
"""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from app import glossary
from app.learn import picture
from app.serving import addresses
from app.state.query import Query
from explorer import compare, load_matrix, quantize
from explorer.schemes import Scheme
from tests.covering import sampled

SCHEMES = [sight.scheme for sight in picture.SIGHTS]


@pytest.fixture(scope="module")
def portrait() -> torch.Tensor:
    return load_matrix("sample:portrait").values


def decoded(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize("name", sampled(SCHEMES, SCHEMES[:3]))
def test_numbers_and_pixels_are_the_cores(name: str, portrait: torch.Tensor) -> None:
    """Bits, dB and the whole picture are of the same quantized tensor; blocks are outlined where there are
    some."""
    (sight,) = (sight for sight in picture.SIGHTS if sight.scheme == name)
    q = quantize(portrait, Scheme.parse(name))
    report = compare(portrait, q)
    assert sight.note == f"{report.bits.total:.4g} bits, {report.sqnr_db:.1f} dB"
    want = (q.dequantize().double().clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    assert (decoded(picture.drawn(name)) == want).all()
    shown = str(picture.view(Query({"picture": name}))["seen"])
    assert sight.note in shown and (' d="M' in shown) == (q.scheme.block != (None, None))


def test_the_section_is_one_piece() -> None:
    """A button for each scheme, every glossary term known, and no picture in the page itself."""
    markup = picture.SECTION.markup()
    assert re.findall(r'<input type="radio" name="control-picture" value="(.*?)"', markup) == SCHEMES
    known = {entry.term.lower() for entry in glossary.terms()}
    assert {term for one in picture.SIGHTS for term in re.findall(r"<(.*?)>", one.seen)} <= known
    assert "data:image" not in markup and len(markup) < 10_000
    assert picture.view(asked := Query({"picture": "pear"})) and "nvfp4" in asked.problems["picture"]


def test_only_the_chapters_own_pictures_are_served(client: TestClient) -> None:
    """A visitor cannot have any scheme of the grammar quantized and kept; browsers keep what they got."""
    for name in ("original", "nvfp4"):
        answer = client.get(f"/picture/{name}.png")
        assert answer.status_code == 200 and answer.headers["content-type"] == "image/png"
        assert answer.headers["cache-control"] == f"public, max-age={picture.KEPT_SECONDS}"
        assert decoded(answer.content).shape == (600, 512)
    for name in ("int4_group128", "..%2Fnvfp4", "nvfp4~", ""):
        answer = client.get(f"/picture/{name}.png")
        assert answer.status_code == 404 and answer.json() == {"detail": addresses.UNKNOWN}
